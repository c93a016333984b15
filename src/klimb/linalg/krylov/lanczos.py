"""Block Lanczos with full reorthogonalisation: an orthonormal basis in which a symmetric matrix is small.

    A Q_k = Q H,   Q = [Q_k, next block],   T = Q_k' A Q_k the leading square of H

With blocks of one column it is Lanczos's iteration, T tridiagonal. Wider blocks cost less per column (products with A
and reorthogonalisation are matrix products) and see repeated eigenvalues. Where the Krylov space is exhausted before D,
the iteration goes on from random directions, so that a basis of any size up to D is found.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np

from klimb.numerics.arrays import Array

DEPENDENT = 1e-10  # length of a new direction, relative to the product it came from, below which it is rounding


@final
@dataclass(frozen=True, eq=False)
class Lanczos:
    """``Q`` (D x (k + b)) orthonormal and ``H`` ((k + b) x k) with A Q[:, :k] = Q H; b = 0 once k = D."""

    Q: Array
    H: Array

    @property
    def k(self) -> int:
        """Directions that were multiplied with A."""
        return int(self.H.shape[1])

    @property
    def basis(self) -> Array:
        """Q_k, those directions."""
        return self.Q[:, : self.k]

    @cached_property
    def T(self) -> Array:
        """Q_k' A Q_k, exactly symmetric."""
        square = self.H[: self.k]
        return np.asarray(0.5 * (square + square.T))

    @cached_property
    def ritz(self) -> tuple[Array, Array]:
        """Eigenvalues of T, ascending, and its eigenvectors: approximate eigenpairs (value, Q_k vector) of A."""
        values, vectors = np.linalg.eigh(self.T)
        return np.asarray(values), np.asarray(vectors)


def lanczos(times: Callable[[Array], Array], size: int, k: int, *, rng: np.random.Generator, block: int = 1,
            start: Array | None = None, known: Lanczos | None = None) -> Lanczos:
    """A basis of (at least) ``k`` directions, begun at ``start`` (D x b) or at random, or continued from ``known``.

    ``times`` is the product of a symmetric ``size`` x ``size`` matrix with the columns of a matrix.
    """
    if known is None:
        first = rng.standard_normal((size, min(block, size))) if start is None else start
        Q, H = _orthonormal(np.empty((size, 0)), first, np.ones(first.shape[1]), rng)[0], np.empty((first.shape[1], 0))
    else:
        Q, H = known.Q, known.H
    while H.shape[1] < min(k, size):
        done = H.shape[1]
        W = times(np.ascontiguousarray(Q[:, done:]))
        scale = np.linalg.norm(W, axis=0)
        inside = Q.T @ W
        W = W - Q @ inside
        again = Q.T @ W  # twice is enough
        W -= Q @ again
        fresh, R = _orthonormal(Q, W, scale, rng)
        H = np.vstack([np.hstack([H, inside + again]),
                       np.hstack([np.zeros((fresh.shape[1], done)), R])])
        Q = np.hstack([Q, fresh])
    return Lanczos(Q, H)


def _orthonormal(Q: Array, W: Array, scale: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """(F, R): W = F R with orthonormal F orthogonal to Q; directions that W lacks are random, with rows of R zero."""
    room = min(W.shape[1], Q.shape[0] - Q.shape[1])
    if room == W.shape[1]:
        F, R = np.linalg.qr(W)
        if (np.abs(np.diagonal(R)) > DEPENDENT * np.maximum(scale, np.finfo(float).tiny)).all():
            return np.asarray(F), np.asarray(R)
    F, R = np.zeros((Q.shape[0], room)), np.zeros((room, W.shape[1]))
    found = 0
    for j in range(W.shape[1]):  # column by column: some depend on the others
        w = W[:, j].copy()
        for _ in range(2):
            inside = F[:, :found].T @ w
            w -= F[:, :found] @ inside
            R[:found, j] += inside
        length = float(np.linalg.norm(w))
        if found < room and length > DEPENDENT * max(float(scale[j]), np.finfo(float).tiny):
            F[:, found], R[found, j] = w / length, length
            found += 1
    for j in range(found, room):
        w = np.asarray(rng.standard_normal(Q.shape[0]), dtype=np.float64)
        for _ in range(3):
            w -= Q @ (Q.T @ w)
            w -= F[:, :j] @ (F[:, :j].T @ w)
            w /= np.linalg.norm(w)
        F[:, j] = w
    return F, R
