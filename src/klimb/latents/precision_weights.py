"""q of the weights of a Gaussian Markov random field, at the size of its sparse factor."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from klimb._stored import SKIPPED
from klimb.latents.weights_posterior import WeightPosterior, register, with_rest
from klimb.linalg.csr import rows_by_length
from klimb.linalg.ordering import transposition
from klimb.linalg.sparse_cholesky import SelectedFactor, analysed, lower_triangle
from klimb.numerics.arrays import Array, Index
from klimb.numerics.dense import psd_square_root, row_blocks
from klimb.numerics.lazy import scipy_sparse


@register
@dataclass(frozen=True, eq=False)
class SparseWeights(WeightPosterior):
    """N(mean, V) with V by its precision: P_ss sparse, T and S^-1 of the border and of the constraints' multipliers.

    The letters are those of `klimb.latents.precision`. Rows of L are sparse, over all weights.
    """

    kind: ClassVar[str] = "sparse"
    mean: Array
    inner: Index
    border: Index
    indptr: Any
    indices: Any
    data: Array  # of P_ss: the entries on and below the diagonal
    T: Array
    S_inverse: Array
    C_s: Array
    C_b: Array
    spread: float = 1.0  # 0 for a point estimate
    made: Any = field(default=None, metadata={SKIPPED: False}, repr=False)  # the factor of the fit

    @cached_property
    def factor(self) -> SelectedFactor:
        """Of P_ss: that of the fit, or a new one."""
        if self.made is not None:
            return self.made  # type: ignore[no-any-return]
        n, whole = len(self.inner), np.empty(len(self.indices))
        pattern = scipy_sparse.csc_array((whole, self.indices, self.indptr), shape=(n, n))
        lower = lower_triangle(pattern)
        whole[transposition(pattern)[lower]] = whole[lower] = self.data
        return analysed(pattern).factor(whole)

    @cached_property
    def _place(self) -> Index:
        """Of every weight, its number among the inner ones; of those in the border, -1 - its number there."""
        place = np.empty(self.size, dtype=np.intp)
        place[self.inner], place[self.border] = np.arange(len(self.inner)), -1 - np.arange(len(self.border))
        return place

    @cached_property
    def _keys(self) -> Any:
        n = len(self.inner)
        return np.repeat(np.arange(n, dtype=np.int64), np.diff(self.indptr)) * n + self.indices

    def _split(self, L: Any) -> tuple[Any, Array]:
        """Rows over the inner weights, and [L_b 0] - L_s T."""
        rows = scipy_sparse.csr_array(L)
        inner = rows[:, self.inner]
        rest = np.asarray(-(inner @ self.T))
        rest[:, : len(self.border)] += rows[:, self.border].toarray()
        return inner, rest

    def _inner_covariances(self, i: Index, j: Index) -> Array:
        """Entries of P_ss^-1: those on the pattern from the selected inverse, others by solves."""
        n = len(self.inner)
        keys = j.astype(np.int64) * n + i
        at = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        out = self.factor.inverse_entries[at]
        missing = np.flatnonzero(self._keys[at] != keys)
        if len(missing):
            columns, which = np.unique(j[missing], return_inverse=True)
            for some in row_blocks(len(columns), n):
                unit = np.zeros((n, some.stop - some.start))
                unit[columns[some], np.arange(unit.shape[1])] = 1.0
                solved = self.factor.solve(unit)
                own = np.flatnonzero((which >= some.start) & (which < some.stop))
                out[missing[own]] = solved[i[missing[own]], which[own] - some.start]
        return out

    def _reach(self, index: Index) -> Array:
        """How weights move with the border and the multipliers, as rows over these."""
        place = self._place[index]
        out = np.zeros((len(index), self.T.shape[1]))
        inner = place >= 0
        out[inner] = -self.T[place[inner]]
        out[np.flatnonzero(~inner), -1 - place[~inner]] = 1.0
        return out

    def covariances(self, rows: Index, columns: Index) -> Array:
        out = np.empty(len(rows))
        for some in row_blocks(len(rows), 3 * max(self.T.shape[1], 1)):
            out[some] = np.einsum("ij,ij->i", self._reach(rows[some]) @ self.S_inverse, self._reach(columns[some]))
        i, j = self._place[rows], self._place[columns]
        both = np.flatnonzero((i >= 0) & (j >= 0))
        out[both] += self._inner_covariances(i[both], j[both])
        return self.spread * out

    def at(self, L: Any, rest: Any = 0.0) -> tuple[Array, Array]:
        rows = scipy_sparse.csr_array(L)
        m, v = np.asarray(rows @ self.mean), np.zeros(rows.shape[0])
        if not self.spread:
            return m, v + rest
        for some in row_blocks(len(v), 2 * max(self.T.shape[1], 1)):
            inner, left = self._split(rows[some])
            v[some] = np.einsum("ij,ij->i", left @ self.S_inverse, left) + self._inner_variances(inner)
        return m, np.maximum(v, 0.0) + rest

    def _inner_variances(self, inner: Any) -> Array:
        """l' P_ss^-1 l of sparse rows, from entries of the inverse; where these are many, by half a solve."""
        v = np.zeros(inner.shape[0])
        for rows, at in rows_by_length(inner):
            columns, values, k = inner.indices[at].astype(np.intp), inner.data[at], at.shape[1]
            if k > 64:
                for some in row_blocks(len(rows), len(self.inner)):
                    half = self.factor.half_solve(np.asarray(inner[rows[some]].toarray().T))
                    v[rows[some]] = np.einsum("ij,ij->j", half, half)
                continue
            i, j = np.repeat(columns, k, axis=1).ravel(), np.tile(columns, k).ravel()
            entries = self._inner_covariances(i, j).reshape(len(rows), k, k)
            v[rows] = np.einsum("ni,nij,nj->n", values, entries, values)
        return v

    def joint(self, L: Any, rest: Any = 0.0) -> tuple[Array, Array]:
        rows = scipy_sparse.csr_array(L)
        inner, left = self._split(rows)
        half = self.factor.half_solve(np.asarray(inner.toarray().T))
        V = self.spread * (half.T @ half + left @ self.S_inverse @ left.T)
        return np.asarray(rows @ self.mean), with_rest(V, rest)

    def covariance_with(self, L: Any, at: slice) -> Array:
        index = np.arange(*at.indices(self.size))
        inner, left = self._split(L)
        out = left @ self.S_inverse @ self._reach(index).T
        place = self._place[index]
        own = np.flatnonzero(place >= 0)
        if len(own):
            unit = np.zeros((len(self.inner), len(own)))
            unit[place[own], np.arange(len(own))] = 1.0
            out[:, own] += inner @ self.factor.solve(unit)
        return np.asarray(self.spread * out)

    # -- a root of V: the border by a root of its own covariance, then the inner weights given it and the constraints

    @property
    def dim(self) -> int:
        """Columns of the root."""
        return len(self.border) + len(self.inner)

    @cached_property
    def _border_root(self) -> Array:
        B = len(self.border)
        block = self.S_inverse[:B, :B]
        return psd_square_root(0.5 * (block + block.T), "the covariance of the border") if B else block

    @cached_property
    def _kriging(self) -> Array:
        """(C_s P_ss^-1 C_s')^-1."""
        inner = self.C_s.T @ self.T[:, len(self.border) :]
        return np.asarray(np.linalg.inv(0.5 * (inner + inner.T))) if len(inner) else inner

    def from_root(self, e: Array) -> Array:
        """(dim, n) of independent standard normals as (size, n) of deviations of the weights."""
        B, R = len(self.border), self._border_root.shape[1]
        b = self._border_root @ e[:R]
        z = self.factor.root_solve(np.ascontiguousarray(e[B:])) - self.T[:, :B] @ b
        z -= self.T[:, B:] @ (self._kriging @ (self.C_s.T @ z + self.C_b.T @ b))
        out = np.empty((self.size, e.shape[1]))
        out[self.inner], out[self.border] = z, b
        return out

    def to_root(self, u: Array) -> Array:
        """The transpose of ``from_root``."""
        B, R = len(self.border), self._border_root.shape[1]
        pulled = self._kriging @ (self.T[:, B:].T @ u[self.inner])
        y = u[self.inner] - self.C_s @ pulled
        out = np.zeros((self.dim, u.shape[1]))
        out[B:] = self.factor.half_solve(y)
        out[:R] = self._border_root.T @ (u[self.border] - self.T[:, :B].T @ y - self.C_b @ pulled)
        return out

    def sample(self, n: int, rng: np.random.Generator) -> Array:
        e = rng.standard_normal((n, self.dim)).T
        return np.asarray(self.mean + self.spread * self.from_root(e).T)

    def push(self, L: Any, weights: Array) -> Array:
        return np.asarray((scipy_sparse.csr_array(L) @ weights.T).T)
