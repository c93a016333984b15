"""Surrogates M of A that precondition it.

M = diag + low rank is what a few Lanczos steps know of A, and the exact diagonal of A for the rest:

    A ~ S^-1 (U U' + diag(delta)) S^-1,    S = diag(A)^-1/2

U holds the Ritz vectors of S A S whose value exceeds the mean tau of what is left of the trace, times sqrt(value -
tau); delta makes the diagonals of M and A equal. M = the sparse part of A, factorised, plus the diagonal of the rest is
for pictures seen through a transform or a blur, whose gradients are most of A where gamma is large.

    A Q_k = Q H,   Q = [Q_k, next block],   T = Q_k' A Q_k the leading square of H

With blocks of one column it is Lanczos's iteration, T tridiagonal. Wider blocks cost less per column (products with A
and reorthogonalisation are matrix products) and see repeated eigenvalues. Where the Krylov space is exhausted before D,
the iteration goes on from random directions, so that a basis of any size up to D is found.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from klimb.errors import NotPositiveDefiniteError
from klimb.linalg.factors.forms import SparseFactorisation
from klimb.linalg.factors.selection import MEMORY, levels_plan
from klimb.linalg.normal_matrix import NormalMatrix, SurrogateMatrix
from klimb.linalg.operators import Operator, SparseOperator
from klimb.linalg.operators.base import added_diagonals, column_blocks
from klimb.numerics.arrays import Array

DEPENDENT = 1e-10  # length of a new direction, relative to the product it came from, below which it is rounding
BLOCK = 8  # columns of a block of Lanczos: half the cost a column of single vectors, hardly fewer digits
SMALLEST_REST = 0.01  # of the unit diagonal that must be left to delta, where the prior does not guarantee more
AFFORDABLE = 10.0  # seconds that its factorisation may take: it serves a block of systems of several hundred iterations


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
    """At least ``k`` directions of a symmetric matrix, by products: from ``start`` (D x b), at random, or ``known``."""
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
        H = np.vstack([np.hstack([H, inside + again]), np.hstack([np.zeros((fresh.shape[1], done)), R])])
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


class LowRankPlusDiagonal(SurrogateMatrix):
    """M = diag(``diagonal``) + ``U U'``, with ``diagonal`` positive."""

    def __init__(self, diagonal: Array, U: Array) -> None:
        self.diagonal, self._root = diagonal, np.sqrt(diagonal)
        vectors, values, _ = np.linalg.svd(U / self._root[:, None], full_matrices=False)
        self._vectors = np.ascontiguousarray(vectors)  # M = root (I + vectors diag(lam) vectors') root
        self._lam = values**2
        self.log_det = float(np.log(diagonal).sum() + np.log1p(self._lam).sum())

    def solve(self, R: Array) -> Array:
        root = self._root if R.ndim == 1 else self._root[:, None]
        return np.asarray(self._function(-self._lam / (1.0 + self._lam), R / root) / root)

    def factor_times(self, noise: Array) -> Array:
        root = self._root if noise.ndim == 1 else self._root[:, None]
        return np.asarray(self._function(np.sqrt(1.0 + self._lam) - 1.0, noise) * root)

    def _function(self, change: Array, X: Array) -> Array:
        """(I + vectors diag(change) vectors') X."""
        inner = self._vectors.T @ X
        return np.asarray(X + self._vectors @ (inner * (change if X.ndim == 1 else change[:, None])))

    def known_variances(self, B: Operator) -> Array | None:
        base = B.row_norms_squared(1.0 / self.diagonal)
        if base is None:
            return None
        weights = self._vectors * np.sqrt(self._lam / (1.0 + self._lam)) / self._root[:, None]
        return np.maximum(base - row_squares(B, weights), 0.0)

    @property
    def inverse_diagonal(self) -> Array:
        return np.asarray((1.0 - self._vectors**2 @ (self._lam / (1.0 + self._lam))) / self.diagonal)


def row_squares(B: Operator, W: Array) -> Array:
    """sum_j (B W)_ij^2, in blocks of columns."""
    total = np.zeros(B.shape[0])
    for columns in column_blocks(W.shape[1], max(B.shape)):
        block = B.times(np.ascontiguousarray(W[:, columns]))
        total += np.einsum("ij,ij->i", block, block)
    return total


class ScaledLanczos:
    """Block Lanczos on S A S with S = diag(A)^-1/2 (S = I where the diagonal is not known)."""

    def __init__(self, A: NormalMatrix, rank: int, seed: int) -> None:
        diagonal = A.diagonal()
        self.A, self.diagonal = A, diagonal
        if diagonal is not None and not (diagonal > 0.0).all():
            raise NotPositiveDefiniteError(f"the diagonal has {diagonal.min():.6g} at {int(diagonal.argmin())}")
        self.scale = np.ones(A.size) if diagonal is None else 1.0 / np.sqrt(diagonal)
        self._rng = np.random.default_rng(seed)
        self.found: Lanczos = lanczos(self._times, A.size, rank, rng=self._rng, block=BLOCK)

    def extend(self, rank: int) -> None:
        """Go on to a basis of ``rank`` directions."""
        self.found = lanczos(self._times, self.A.size, rank, rng=self._rng, block=BLOCK, known=self.found)

    def _times(self, U: Array) -> Array:
        return self.scale[:, None] * self.A.times(self.scale[:, None] * U)

    def surrogate(self) -> LowRankPlusDiagonal:
        """M as the head of this module says."""
        values, vectors = self.found.ritz
        D, k = self.A.size, self.found.k
        if self.diagonal is None:  # the trace is not known either: what Lanczos saw last is the best guess of the rest
            tau = float(np.median(values)) if k < D else float(values.min())
        else:
            tau = max(float((D - values.sum()) / (D - k)), 0.0) if k < D else 0.0
        keep = values > tau
        U = (self.found.basis @ vectors[:, keep]) * np.sqrt(values[keep] - tau)
        floor = np.maximum(self.scale**2 * np.maximum(self.A.shift, 0.0), SMALLEST_REST)
        rest = np.full(D, tau) if self.diagonal is None else 1.0 - np.einsum("ij,ij->i", U, U)
        return LowRankPlusDiagonal(np.maximum(rest, floor) / self.scale**2, U / self.scale[:, None])

    def below(self) -> LowRankPlusDiagonal | None:
        """diag(shift) + Nystrom's B'GB from the basis, never above A; None for a flat prior or a negative weight."""
        if not self.A.positive or self.A.shift.min() <= 0.0:
            return None
        prior = self.scale**2 * self.A.shift
        Q, k = self.found.basis, self.found.k
        sketch = self.found.Q @ self.found.H - prior[:, None] * Q  # (S B'GB S) Q
        inner = Q.T @ sketch
        values, vectors = np.linalg.eigh(0.5 * (inner + inner.T))
        keep = values > max(float(values[-1]), 0.0) * k * np.finfo(float).eps * 10.0
        U = sketch @ (vectors[:, keep] / np.sqrt(values[keep]))
        return LowRankPlusDiagonal(self.A.shift, U / self.scale[:, None])

    def lower(self, B: Operator) -> Array:
        """b'Q (Q'AQ)^-1 Q'b <= b'A^-1 b: grows with the basis. [N] section 2.3."""
        values, vectors = self.found.ritz
        keep = values > 0.0
        return row_squares(B, self.scale[:, None] * (self.found.basis @ (vectors[:, keep] / np.sqrt(values[keep]))))


def sparse_part(A: NormalMatrix) -> SparseFactorisation | None:
    """M for this A; None where no part of A is sparse, all of it is, or factorising it takes seconds."""
    sparse = [(operator, weights) for operator, weights in A.parts if isinstance(operator, SparseOperator)]
    others = [(operator, weights) for operator, weights in A.parts if not isinstance(operator, SparseOperator)]
    rest = added_diagonals(A.shift.copy(), others)
    if rest is None or not sparse or not others:
        return None
    M = NormalMatrix(rest, sparse)
    plan = levels_plan(M)
    if plan is None or plan.symbolic is None or plan.bytes > MEMORY // 4 or plan.seconds > AFFORDABLE:
        return None
    try:
        return SparseFactorisation(M, plan.symbolic)
    except NotPositiveDefiniteError:  # a flat direction that only the others determine, lost to rounding
        return None
