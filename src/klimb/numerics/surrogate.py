"""A smooth function between the points where it is known: a quadratic trend and a Gaussian process of what is left.

Its own leave-one-out errors, which come in closed form, choose the lengthscale and say how far it can be relied on.
"""

from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import final

import numpy as np
from scipy.linalg import cho_solve

from klimb.numerics.arrays import Array
from klimb.numerics.dense import cholesky, row_blocks

# Lengthscales over the square root of half the dimension, in the units of the points, and the noise at the top as a
# variance over that of what is smooth; it grows with the distance from the top.
TRIED = ((1.5, 1e-5), (2.5, 1e-7), (2.5, 1e-5), (4.0, 1e-7), (6.0, 1e-7))
FAR = 1.5  # lengthscales from the nearest point beyond which nothing above that point's value is claimed


@final
@dataclass(frozen=True, eq=False)
class Surrogate:
    """f(z) = q(z) + r(z): ``trend`` are the coefficients of q, ``pull`` those of r at ``points``."""

    points: Array  # (n, d)
    values: Array  # (n,)
    trend: Array
    pull: Array
    length: float
    error: float  # root of the weighted mean of squared leave-one-out errors

    def __call__(self, z: Array) -> Array:
        """Values at other points; far from all known ones no more than the nearest one has."""
        out = quadratics(z) @ self.trend
        for rows in row_blocks(len(z), len(self.points)):
            squares = _squares(z[rows], self.points) / self.length**2
            out[rows] += np.exp(-0.5 * squares) @ self.pull
            nearest = np.argmin(squares, axis=1)
            far = squares[np.arange(len(squares)), nearest] > FAR**2
            out[rows] = np.where(far, np.minimum(out[rows], self.values[nearest]), out[rows])
        return out


def fit_surrogate(points: Array, values: Array, weights: Array) -> Surrogate | None:
    """The surrogate through ``values``, whose errors count by ``weights``; None where there are too few points."""
    n, d = points.shape
    X = quadratics(points)
    if n < 1.6 * X.shape[1]:
        return None
    share = weights / weights.sum()
    depth = (1.0 + (values.max() - values)) ** 2
    squares = _squares(points, points)
    best: Surrogate | None = None
    for scale, noise in TRIED:
        length = scale * np.sqrt(0.5 * d)
        K = np.exp(-0.5 * squares / length**2)
        K.flat[:: n + 1] += noise * depth
        inverse = cho_solve((cholesky(np.asfortranarray(K)), True), np.eye(n), check_finite=False)
        KX = inverse @ X
        A = X.T @ KX
        trend = np.linalg.lstsq(A, KX.T @ values, rcond=1e-12)[0]
        pull = inverse @ (values - X @ trend)
        # P = C^-1 - C^-1 X (X'C^-1 X)^-1 X'C^-1; the leave-one-out error of a datum is (P y)_i / P_ii.
        diagonal = np.diagonal(inverse) - np.einsum("ij,ji->i", KX, np.linalg.lstsq(A, KX.T, rcond=1e-12)[0])
        error = float(np.sqrt(share @ (pull / np.maximum(diagonal, 1e-300))**2))
        if best is None or error < best.error:
            best = Surrogate(points, values, np.asarray(trend, dtype=float), pull, length, error)
    return best


def quadratics(z: Array) -> Array:
    """1, all coordinates, and all products of two of them."""
    columns = [np.ones(len(z)), *z.T]
    columns += [z[:, i] * z[:, j] for i, j in combinations_with_replacement(range(z.shape[1]), 2)]
    return np.column_stack(columns)


def _squares(a: Array, b: Array) -> Array:
    found = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1) - 2.0 * a @ b.T
    return np.asarray(np.maximum(found, 0.0, out=found))
