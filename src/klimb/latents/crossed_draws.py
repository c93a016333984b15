"""q of the weights of crossed grouping factors too large to factorise: levels eliminated, the border by products.

Weights of dense columns have their exact covariance, by one system for each. Those of sparse columns, given them, are
known by K draws z_k of N(0, S^-1), S their precision when levels are eliminated. For a row that moves by h with the one
weight e_j that matters most to it and by r'e in all, the part of its variance that e_j has given all others is exact,

    Var(r'e) = h^2 / S_jj + E (r'e - h (S e)_j / S_jj)^2,

and only the second part, what the other weights leave unknown of e_j, is an average over the draws. It is small where
levels have many rows, and its relative standard error is sqrt(2 / (K - 4)). A shift of all levels of a factor against
those of another is known worst, and all weights share it: the variances along such modes Q are exact as well, by
S^-1 Q, and the draws are those of what is left, e - S^-1 Q (Q'S^-1 Q)^-1 Q'e.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from klimb._stored import stored
from klimb.latents.arrow import ArrowRows, own_variances
from klimb.latents.crossed_cells import padded
from klimb.latents.crossed_weights import CrossedPosterior, seen
from klimb.latents.weights_posterior import register
from klimb.linalg.krylov import simplest_preconditioner, solve
from klimb.linalg.krylov.cg import InverseRoots, inverse_roots
from klimb.linalg.normal_matrix import NormalMatrix
from klimb.linalg.operators import SparseOperator
from klimb.numerics.arrays import Array, Index
from klimb.numerics.dense import row_blocks
from klimb.numerics.lazy import scipy_sparse

TOLERANCE = 1e-10  # of systems
STEPS = 15.0  # products that a draw takes, roughly
ROOT_TOLERANCE, TIGHT = 1e-5, 1e-12  # of draws: far below their own noise, and where they are unit vectors, without any
MOST_DRAWS = 64


def noise_of(draws: int) -> float:
    """Relative standard error of a variance by so many draws: inverse chi-squared."""
    return float(np.sqrt(2.0 / (draws - 4)))


@stored("latents.csr")
@dataclass(frozen=True, eq=False)
class CsrArrays:
    """A CSR matrix of ``width`` columns."""

    values: Array
    columns: npt.NDArray[np.int32]
    starts: npt.NDArray[np.int32]
    width: int

    @classmethod
    def of(cls, matrix: Any) -> Self:
        """Of a scipy.sparse matrix."""
        rows = matrix.tocsr()
        rows.sort_indices()
        return cls(rows.data, rows.indices.astype(np.int32), rows.indptr.astype(np.int32), rows.shape[1])

    @cached_property
    def csr(self) -> Any:
        return scipy_sparse.csr_matrix((self.values, self.columns, self.starts),
                                       shape=(len(self.starts) - 1, self.width))


@stored("latents.border")
@dataclass(frozen=True, eq=False)
class SparseBorder:
    """S = diag(shift) + E' diag(pair_weights) E - H'H, the precision of whitened weights e; the weights are W e."""

    shift: Array
    pull: CsrArrays  # H
    pairs: CsrArrays  # E: a row with two ones for every pair of columns that share a row of data
    pair_weights: Array
    root: CsrArrays  # W

    @cached_property
    def matrix(self) -> NormalMatrix:
        parts: list[tuple[Any, Any]] = [(SparseOperator(self.pull.csr), -1.0)]
        if len(self.pair_weights):
            parts.append((SparseOperator(self.pairs.csr), self.pair_weights))
        return NormalMatrix(self.shift, parts)

    @cached_property
    def diagonal(self) -> Array:
        """diag(S)."""
        found = self.matrix.diagonal()
        assert found is not None
        return found

    @property
    def W(self) -> Any:
        return self.root.csr

    @cached_property
    def scale(self) -> Array | None:
        """W, where that is diagonal."""
        S = len(self.shift)
        plain = len(self.root.values) == S and bool((self.root.columns == np.arange(S)).all())
        return self.root.values if plain else None

    def solve(self, rhs: Array) -> Array:
        """S^-1 rhs, of vectors or of columns."""
        return solve(self.matrix, rhs, preconditioner=simplest_preconditioner(self.matrix), tol=TOLERANCE).x

    @property
    def few(self) -> bool:
        """Whether there are no more weights than draws might be: then all unit vectors stand for those."""
        return len(self.shift) <= MOST_DRAWS

    def roots(self, z: Array) -> InverseRoots:
        """R z with R R' = S^-1, of columns."""
        return inverse_roots(self.matrix, 1.0 / np.sqrt(self.diagonal), z, TIGHT if self.few else ROOT_TOLERANCE)

    def roots_transposed(self, slopes: Array) -> Array:
        """R' slopes, of columns."""
        scale = 1.0 / np.sqrt(self.diagonal)
        return np.asarray(self.roots(scale[:, None] * slopes).x / scale[:, None])


@register
@dataclass(frozen=True, eq=False)
class CrossedDraws(CrossedPosterior):
    """w = shared + exact x + (0, W e), x ~ N(0, I) for dense columns and for modes of e, the rest of e by ``draws``.

    ``exact`` is (B, p + r) for p dense columns and r modes, ``draws`` (S, K). ``ahead`` (S, r + K) has (S e)_j / S_jj
    for the modes, then for the draws.
    """

    kind: ClassVar[str] = "crossed draws"
    border: SparseBorder
    exact: Array
    draws: Array
    ahead: Array

    @property
    def _dense(self) -> int:
        """p."""
        return int(self.exact.shape[1] + self.draws.shape[1] - self.ahead.shape[1])

    @property
    def n_shocks(self) -> int:
        return self._dense + len(self.border.shift)

    @property
    def root_work(self) -> float:
        return float(STEPS * (2 * len(self.border.pull.values) + len(self.border.shift)) + self.exact.size)

    def spread(self, shocks: Array) -> Array:
        p, Bd = self._dense, self.dense.shape[2]
        w = self.exact[:, :p] @ shocks[:, :p].T
        w[Bd:] += self.border.W @ self.border.roots(np.ascontiguousarray(shocks[:, p:].T)).x
        return np.asarray(w.T)

    def gathered(self, slopes: Array) -> Array:
        back = self.border.roots_transposed(self.border.W.T @ slopes[:, self.dense.shape[2] :].T)
        return np.hstack([slopes @ self.exact[:, : self._dense], back.T])

    @cached_property
    def _moves(self) -> Array:
        """How w moves with x, and with each draw, (B, p + r + K)."""
        Bd, K = self.dense.shape[2], self.draws.shape[1]
        return np.hstack([self.exact, np.vstack([np.zeros((Bd, K)), self.border.W @ self.draws])])

    @cached_property
    def _level_moves(self) -> Array:
        """The same of the levels with the opposite sign, (L k, p + r + K)."""
        return self.pulled(self._moves)

    @cached_property
    def _shares(self) -> Array:
        """What each of these counts in a covariance: a draw is one of K."""
        p, K = self.exact.shape[1], self.draws.shape[1]
        return np.concatenate([np.ones(p), np.full(K, 1.0 / max(K, 1))])

    @property
    def _noise(self) -> float:
        """Relative standard error of a variance given its average over the draws, which has the longer tail."""
        return 0.0 if self.border.few else noise_of(self.draws.shape[1])

    @cached_property
    def _whitened_pulls(self) -> Any:
        found = scipy_sparse.csr_matrix(self._pulls[:, self.dense.shape[2] :] @ self.border.W)
        found.sort_indices()
        return found

    def variances(self, L: ArrowRows) -> tuple[Array, Array]:
        """Of rows, and their standard errors."""
        (t, at), p, exact, K = seen(L), self._dense, self.exact.shape[1], self.draws.shape[1]
        which, h = self._own_weight(L, t, at)
        v, error = own_variances(t, self.level_cov, at) + h**2 / self.border.diagonal[which], np.zeros(len(h))
        for rows in row_blocks(len(h), 4 * (K + exact)):
            moves = self._row_moves(L, t, at, rows)
            moves[:, p:] -= h[rows, None] * self.ahead[which[rows]]
            left = np.einsum("ij,ij->i", moves[:, exact:], moves[:, exact:]) / max(K, 1)
            v[rows] += np.einsum("ij,ij->i", moves[:, :exact], moves[:, :exact]) + left
            error[rows] = self._noise * left
        return v, error

    def _row_moves(self, L: ArrowRows, t: Array, at: Index, rows: Any) -> Array:
        Bd, k = self.dense.shape[2], t.shape[1]
        moves = np.asarray(L.sparse[rows] @ self._moves[Bd:])
        moves[:, : self.exact.shape[1]] += L.X[rows] @ self.exact[:Bd]
        for j in range(k):
            moves -= t[rows, j, None] * self._level_moves[at[rows] * k + j]
        return moves

    def _own_weight(self, L: ArrowRows, t: Array, at: Index) -> tuple[Index, Array]:
        """The weight of a sparse column that matters most to each row, and how the row moves with it."""
        scale = None if L.cells is None else self.border.scale
        columns, values = padded(scipy_sparse.csr_matrix(L.sparse @ self.border.W) if scale is None else L.sparse)
        n, most = columns.shape
        if not most:
            return np.zeros(n, dtype=np.intp), np.zeros(n)
        if scale is not None:
            values = values * scale[columns]
        best = np.argmax(values**2 / self.border.diagonal[columns], axis=1) if most > 1 else np.zeros(n, dtype=np.intp)
        which, h = columns[np.arange(n), best], values[np.arange(n), best]
        if scale is not None:
            pull = self.cells[L.cells[np.arange(n), best]] * scale[which, None]
            return which, np.where(h != 0.0, h - np.einsum("ij,ij->i", t, pull), 0.0)
        k, some = t.shape[1], np.flatnonzero(h)
        for j in range(k):
            h[some] -= t[some, j] * np.asarray(self._whitened_pulls[at[some] * k + j, which[some]]).ravel()
        return which, h

    # -- the weights

    @cached_property
    def _variances(self) -> tuple[Array, Array]:
        """Of all weights, and their standard errors."""
        Bd, S, k = self.dense.shape[2], len(self.border.shift), self.level_mean.shape[1]
        each = ArrowRows(np.zeros((S, Bd)), np.full(S, -1, dtype=np.intp), np.zeros((S, k)),
                         scipy_sparse.eye_array(S, format="csr"))
        v, error = self.variances(each)
        squares = self._level_moves**2 * self._shares
        p, own = self.exact.shape[1], np.diagonal(self.level_cov, axis1=1, axis2=2).ravel()
        levels = own + squares.sum(axis=1)
        level_error = self._noise * squares[:, p:].sum(axis=1)
        return (np.concatenate([np.einsum("ij,ij->i", self.exact[:Bd], self.exact[:Bd]), v, levels]),
                np.concatenate([np.zeros(Bd), error, level_error]))

    def sd_error(self) -> float:
        """The median over the weights of sparse columns and of levels of the relative error of their sds."""
        v, error = (values[self.dense.shape[2] :] for values in self._variances)
        return 0.5 * float(np.median(error / np.maximum(v, 1e-300)))

    def covariances(self, rows: Index, columns: Index) -> Array:
        B, k = len(self.shared), max(self.level_mean.shape[1], 1)
        out, same = np.empty(len(rows)), rows == columns
        out[same] = self._variances[0][rows[same]]
        for some in np.array_split(np.flatnonzero(~same), max(len(rows) * self._moves.shape[1] // 2**22, 1)):
            one, other = rows[some], columns[some]
            out[some] = np.einsum("ij,j,ij->i", self._weight_moves(one), self._shares, self._weight_moves(other))
            i, j = one - B, other - B
            own = np.flatnonzero((i >= 0) & (j >= 0) & (i // k == j // k))
            out[some[own]] += self.level_cov[i[own] // k, i[own] % k, j[own] % k]
        return out

    def _weight_moves(self, index: Index) -> Array:
        B = len(self.shared)
        out = np.empty((len(index), self._moves.shape[1]))
        levels = index >= B
        out[~levels], out[levels] = self._moves[index[~levels]], -self._level_moves[index[levels] - B]
        return out

    def block_covariance(self, at: slice, k: int) -> Array:
        return np.array([[self._variances[0][at].sum()]]) if k == 1 else super().block_covariance(at, k)

    # -- rows

    def at(self, L: ArrowRows, rest: Any = 0.0) -> tuple[Array, Array]:
        return self._means(L, *seen(L)), self.variances(L)[0] + rest

    def joint(self, L: ArrowRows, rest: Any = 0.0) -> tuple[Array, Array]:
        """By a system for each row: nothing is estimated."""
        rows = self.border_rows(L, slice(0, len(L.X)))
        moved = rows @ self.exact[:, : self._dense]
        whitened = np.asarray(self.border.W.T @ rows[:, self.dense.shape[2] :].T)
        V = moved @ moved.T + whitened.T @ self.border.solve(whitened)
        return self._joint(L, 0.5 * (V + V.T), rest)

    def covariance_with(self, L: ArrowRows, at: slice) -> Array:
        moves = self._row_moves(L, *seen(L), slice(0, len(L.X)))
        return np.asarray((moves * self._shares) @ self._weight_moves(np.arange(*at.indices(self.size))).T)
