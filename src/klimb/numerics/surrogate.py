"""A smooth function between the points where it is known: a quadratic trend and a Gaussian process of what is left.

Its own leave-one-out errors, which come in closed form, choose the lengthscale and say how far it can be relied on.
"""

from dataclasses import dataclass, field, replace
from itertools import combinations_with_replacement
from typing import final

import numpy as np
from scipy.linalg import cho_solve

from klimb.numerics.arrays import Array
from klimb.numerics.dense import cholesky, row_blocks

# Lengthscales over the square root of half the dimension, in the units of the points, and the noise at the top as a
# variance over that of what is smooth; it grows with the distance from the top.
TRIED = ((1.5, 1e-5), (2.5, 1e-7), (2.5, 1e-5), (4.0, 1e-7), (6.0, 1e-7))
LEAST_FALL = 0.05  # curvature of a trend that must fall
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
    amplitude: float  # variance of r, by those errors
    inverse: Array = field(repr=False)  # C^-1 of the points
    onto: Array = field(repr=False)  # C^-1 X
    spread: Array = field(repr=False)  # (X'C^-1 X)^-1: the covariance of the trend's coefficients over the amplitude

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

    def variances(self, z: Array, known: Array) -> Array:
        """Variances at ``z`` once the function is also known at ``known``, whatever its values there."""
        (k, h), own = self._residuals(z), np.ones(len(z))
        variances = own - np.einsum("ij,ij->i", k @ self.inverse, k) + np.einsum("ij,ij->i", h @ self.spread, h)
        if len(known):
            k2, h2 = self._residuals(known)
            cross = _rbf(z, known, self.length) - k @ self.inverse @ k2.T + h @ self.spread @ h2.T
            among = _rbf(known, known, self.length) - k2 @ self.inverse @ k2.T + h2 @ self.spread @ h2.T
            among.flat[:: len(known) + 1] += 1e-6
            variances -= np.einsum("ij,ji->i", cross, np.linalg.lstsq(among, cross.T, rcond=1e-10)[0])
        return np.asarray(self.amplitude * np.maximum(variances, 0.0))

    def _residuals(self, z: Array) -> tuple[Array, Array]:
        """Covariances with the points, and the monomials less what the points say of them."""
        k = _rbf(z, self.points, self.length)
        return k, quadratics(z) - k @ self.onto


def fit_surrogate(points: Array, values: Array, weights: Array, *, ridge: float = 0.0) -> Surrogate | None:
    """The surrogate through ``values``, whose errors count by ``weights``.

    None where there are too few points for a trend, unless ``ridge`` (a prior precision of its coefficients, relative
    to the amplitude of r) holds it; then the trend also falls in every direction: r takes the rest.
    """
    n, d = points.shape
    X = quadratics(points)
    if n < 1.6 * X.shape[1] and ridge == 0.0:
        return None
    share = weights / weights.sum()
    depth = (1.0 + (values.max() - values)) ** 2
    best: Surrogate | None = None
    for scale, noise in TRIED:
        length = scale * np.sqrt(0.5 * d)
        K = _rbf(points, points, length)
        K.flat[:: n + 1] += noise * depth
        inverse = cho_solve((cholesky(np.asfortranarray(K)), True), np.eye(n), check_finite=False)
        KX = inverse @ X
        A = X.T @ KX
        A.flat[:: len(A) + 1] += ridge
        spread = np.asarray(np.linalg.pinv(A, rcond=1e-12, hermitian=True), dtype=np.float64)
        trend = spread @ (KX.T @ values)
        pull = inverse @ (values - X @ trend)
        # P = C^-1 - C^-1 X (X'C^-1 X)^-1 X'C^-1; the leave-one-out error of a datum is (P y)_i / P_ii.
        diagonal = np.maximum(np.diagonal(inverse) - np.einsum("ij,ij->i", KX @ spread, KX), 1e-300)
        error = float(np.sqrt(share @ (pull / diagonal) ** 2))
        if best is None or error < best.error:
            amplitude = float(share @ (pull**2 / diagonal))
            best = Surrogate(points, values, trend, pull, length, error, amplitude, inverse, KX, spread)
    if best is not None and ridge > 0.0:
        trend = _falling(best.trend, d)
        best = replace(best, trend=trend, pull=best.inverse @ (values - X @ trend))
    return best


def _falling(trend: Array, d: int) -> Array:
    """The trend with its curvature made negative in every direction, its value and slope at the origin kept."""
    i, j = np.triu_indices(d)
    H = np.zeros((d, d))
    H[i, j] = trend[d + 1 :]
    found, basis = np.linalg.eigh(H + H.T)
    H = (basis * np.minimum(found, -LEAST_FALL)) @ basis.T
    return np.concatenate([trend[: d + 1], np.where(i == j, 0.5, 1.0) * H[i, j]])


def quadratics(z: Array) -> Array:
    """1, all coordinates, and all products of two of them."""
    columns = [np.ones(len(z)), *z.T]
    columns += [z[:, i] * z[:, j] for i, j in combinations_with_replacement(range(z.shape[1]), 2)]
    return np.column_stack(columns)


def _rbf(a: Array, b: Array, length: float) -> Array:
    return np.asarray(np.exp(-0.5 * _squares(a, b) / length**2))


def _squares(a: Array, b: Array) -> Array:
    found = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1) - 2.0 * a @ b.T
    return np.asarray(np.maximum(found, 0.0, out=found))
