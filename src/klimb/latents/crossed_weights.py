"""q of the weights of a linear model with crossed grouping factors, without a matrix of levels by columns."""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from klimb.latents.arrow import ArrowRows, LevelPosterior, own_variances
from klimb.latents.crossed_cells import BLOCK, padded
from klimb.latents.weights_posterior import register, root_block_covariance, root_covariances, with_rest
from klimb.numerics.arrays import Array, Index
from klimb.numerics.dense import row_blocks, threads_for
from klimb.numerics.lazy import scipy_sparse

DENSE = 4e6  # numbers of T up to which it is held dense where rows ask for it
FEW_ROWS = 64  # up to which squares of a root are quicker than covariances
CANCELLED = 1e-7  # variance over what it would be if nothing cancelled, below which digits are lost


@dataclass(frozen=True, eq=False)
class CrossedPosterior(LevelPosterior):
    """q of all weights: w of the border has mean ``shared``, and b_l ~ N(level_mean_l - T_l (w - shared), K_l) given w.

    The weights w are those of dense columns, then those of sparse ones. T is ``dense`` (L, k, Bd) for the former; for
    the latter it has ``cells`` (E, k) at ``columns`` (E,), level l having those from ``starts[l]`` to
    ``starts[l + 1]``. ``level_cov`` (L, k, k) is K. What is known of w is the subclass's: ``n_shocks`` standard shocks
    make it, and ``spread`` is their map to w - shared.
    """

    shared: Array
    level_mean: Array
    level_cov: Array
    dense: Array
    cells: Array
    columns: npt.NDArray[np.int32]
    starts: Index

    @property
    @abstractmethod
    def root_work(self) -> float:
        """Multiplications of ``spread`` for one draw."""

    @abstractmethod
    def spread(self, shocks: Array) -> Array:
        """w - shared for shocks, one draw a row."""

    @abstractmethod
    def gathered(self, slopes: Array) -> Array:
        """The transpose of ``spread``: slopes in w, one a row, as slopes in the shocks."""

    def moved_by(self, e: Array) -> tuple[Array, Array]:
        w = self.spread(e.T).T
        return w, -self.pulled(w)

    def pulled_to(self, shared: Array, levels: Array) -> Array:
        return self.gathered((shared - self._pulls.T @ levels).T).T

    def pulls(self) -> Any:
        """T as a CSR matrix, with a row for each coefficient of each level."""
        (L, k), Bd = self.level_mean.shape, self.dense.shape[2]
        counts = np.repeat(np.diff(self.starts), k)
        order = np.arange(len(self.cells)) if k == 1 else np.concatenate(
            [np.tile(np.arange(self.starts[at], self.starts[at + 1]), k) for at in range(L)])
        row = np.repeat(np.arange(L * k), counts)
        starts = Bd * np.arange(L * k + 1) + np.concatenate([[0], np.cumsum(counts)])
        columns, values = np.empty(starts[-1], dtype=np.int32), np.empty(starts[-1])
        at = starts[:-1, None] + np.arange(Bd)
        columns[at], values[at] = np.arange(Bd), self.dense.reshape(L * k, Bd)
        at = np.arange(len(row)) + Bd * (row + 1)
        columns[at], values[at] = self.columns[order] + Bd, self.cells[order, row % k]
        return scipy_sparse.csr_matrix((values, columns, starts), shape=(L * k, len(self.shared)))

    @cached_property
    def _pulls(self) -> Any:
        return self.pulls()

    @cached_property
    def _dense_pulls(self) -> Array:
        return np.asarray(self._pulls.toarray())

    def pulled(self, moves: Array) -> Array:
        """T times columns over w, (L k, m)."""
        (L, k, Bd), S = self.dense.shape, len(self.shared) - self.dense.shape[2]
        each = [(np.ascontiguousarray(cells), self.columns, self.starts) for cells in self.cells.T]
        crossed = [np.asarray(scipy_sparse.csr_matrix(one, shape=(L, S)) @ moves[Bd:]) for one in each]
        return np.asarray((np.stack(crossed, axis=1) + self.dense @ moves[:Bd]).reshape(L * k, moves.shape[1]))

    def _means(self, L: ArrowRows, t: Array, at: Index) -> Array:
        Bd = self.dense.shape[2]
        m = L.X @ self.shared[:Bd] + L.sparse @ self.shared[Bd:]
        return np.asarray(m + np.einsum("ik,ik->i", t, self.level_mean[at]))

    def border_rows(self, L: ArrowRows, rows: Any) -> Array:
        """x - T_l't of some rows, dense: what they are of w, the levels following it."""
        t, at = seen(L)
        k, own = t.shape[1], at[rows]
        left = np.hstack([L.X[rows], L.sparse[rows].toarray()])
        dense = float(self.level_mean.size) * len(self.shared) <= DENSE
        for j in np.flatnonzero(t[rows].any(axis=0)):
            if dense:
                left -= self._dense_pulls[own * k + j] * t[rows, j, None]
            else:
                left -= scipy_sparse.csr_matrix(self._pulls[own * k + j].multiply(t[rows, j, None])).toarray()
        return left

    def _joint(self, L: ArrowRows, border: Array, rest: Any) -> tuple[Array, Array]:
        """With the covariance of rows that is left when levels follow the border."""
        t, at = seen(L)
        border += np.where(at[:, None] == at, np.einsum("ij,ijk->ik", t, self.level_cov[at]) @ t.T, 0.0)
        return self._means(L, t, at), with_rest(border, rest)


@register
@dataclass(frozen=True, eq=False)
class CrossedWeights(CrossedPosterior):
    """w = shared + root e; ``level_total`` (L, k, k) is the covariance of the levels with w unknown."""

    kind: ClassVar[str] = "crossed"
    root: Array
    level_total: Array

    @property
    def n_shocks(self) -> int:
        return int(self.root.shape[1])

    @property
    def root_work(self) -> float:
        return float(self.root.size)

    def spread(self, shocks: Array) -> Array:
        return np.asarray(shocks @ self.root.T)

    def gathered(self, slopes: Array) -> Array:
        return np.asarray(slopes @ self.root)

    def sd(self) -> Array:
        own = np.diagonal(self.level_total, axis1=1, axis2=2).ravel()
        return np.asarray(np.sqrt(np.concatenate([np.einsum("ij,ij->i", self.root, self.root), own])))

    @cached_property
    def border_covariance(self) -> Array:
        """Of w, (B, B)."""
        return np.asarray(self.root @ self.root.T)

    def _root_rows(self, index: Index) -> Array:
        """How weights move with e."""
        B, R = self.root.shape
        out = np.empty((len(index), R))
        levels = index >= B
        out[~levels] = self.root[index[~levels]]
        out[levels] = -(self._pulls[index[levels] - B] @ self.root)
        return out

    def covariances(self, rows: Index, columns: Index) -> Array:
        B, k = len(self.shared), max(self.level_mean.shape[1], 1)
        i, j = rows - B, columns - B
        same = (i >= 0) & (j >= 0) & (i // k == j // k)
        out = np.empty(len(rows))
        out[same] = self.level_total[i[same] // k, i[same] % k, j[same] % k]
        shared = (i < 0) & (j < 0)
        out[shared] = root_covariances(self.root, rows[shared], columns[shared])
        others = np.flatnonzero(~(same | shared))
        for some in row_blocks(len(others), 2 * max(self.root.shape[1], 1)):
            at = others[some]
            out[at] = np.einsum("ij,ij->i", self._root_rows(rows[at]), self._root_rows(columns[at]))
        return out

    def block_covariance(self, at: slice, k: int) -> Array:
        first, last, _ = at.indices(self.size)
        B, own = len(self.shared), self.level_mean.shape[1]
        if last <= B:
            return root_block_covariance(self.root[at], k)
        if first >= B and k == own and (first - B) % k == 0:
            return np.asarray(self.level_total[(first - B) // k : (last - B) // k].sum(axis=0))
        return super().block_covariance(at, k)

    # -- rows

    def moved(self, L: ArrowRows, rows: Any) -> Array:
        """(x - T_l't)' root of some rows: how they move with e."""
        return np.asarray(self.border_rows(L, rows) @ self.root)

    def at(self, L: ArrowRows, rest: Any = 0.0) -> tuple[Array, Array]:
        t, at = seen(L)
        n, (B, R) = len(L.X), self.root.shape
        m, v = self._means(L, t, at), np.zeros(n)
        if R:
            with threads_for(B):
                lost = np.arange(n)
                if n > FEW_ROWS:
                    v, size = self._by_covariances(L, t, at)
                    lost = np.flatnonzero(v < CANCELLED * size)
                for some in row_blocks(len(lost), 4 * B):
                    moved = self.moved(L, lost[some])
                    own = own_variances(t[lost[some]], self.level_cov, at[lost[some]])
                    v[lost[some]] = np.einsum("ij,ij->i", moved, moved) + own
        return m, v + rest

    def _by_covariances(self, L: ArrowRows, t: Array, at: Index) -> tuple[Array, Array]:
        """Variances as sums over pairs of entries, and the squares of what they would be if nothing cancelled."""
        Bd, k, V = self.dense.shape[2], t.shape[1], self.border_covariance
        columns, entries = padded(L.sparse)
        v = np.einsum("ij,ij->i", L.X, L.X @ V[:Bd, :Bd] + 2.0 * (L.sparse @ V[Bd:, :Bd]))
        for one in range(columns.shape[1]):
            for other in range(one + 1):
                twice = 2.0 if other < one else 1.0
                v += twice * entries[:, one] * entries[:, other] * V[columns[:, one] + Bd, columns[:, other] + Bd]
        v += own_variances(t, self.level_total, at)
        for levels, rows in _by_level(at, BLOCK // (k * len(V))):
            with_border = (self._pulls[levels.start * k : levels.stop * k] @ V).reshape(-1, k, len(V))
            here = at[rows] - levels.start
            for j in range(k):
                taken = np.einsum("ij,ij->i", L.X[rows], with_border[here, j, :Bd])
                for one in range(columns.shape[1]):
                    taken += entries[rows, one] * with_border[here, j, columns[rows, one] + Bd]
                v[rows] -= 2.0 * t[rows, j] * taken
        sds = np.sqrt(np.diagonal(V))
        own = np.sqrt(np.diagonal(self.level_total, axis1=1, axis2=2))
        size = np.abs(L.X) @ sds[:Bd] + abs(L.sparse) @ sds[Bd:] + np.einsum("ik,ik->i", np.abs(t), own[at])
        return v, size**2

    def joint(self, L: ArrowRows, rest: Any = 0.0) -> tuple[Array, Array]:
        with threads_for(len(self.shared)):
            moved = self.moved(L, slice(0, len(L.X)))
            return self._joint(L, moved @ moved.T, rest)

    def covariance_with(self, L: ArrowRows, at: slice) -> Array:
        (t, level), Bd, k = seen(L), self.dense.shape[2], self.level_mean.shape[1]
        V = self.root @ self.root[at].T
        own = (self._pulls @ V).reshape(-1, k, V.shape[1])[level]
        return np.asarray(L.X @ V[:Bd] + L.sparse @ V[Bd:] - np.einsum("ik,ikb->ib", t, own))


def seen(L: ArrowRows) -> tuple[Array, Index]:
    """Values (0 for levels never seen) and a level of each row."""
    seen = L.codes >= 0
    return np.where(seen[:, None], L.values, 0.0), np.where(seen, L.codes, 0)


def _by_level(at: Index, size: int) -> Iterator[tuple[slice, Index]]:
    """Blocks of about ``size`` levels, and the rows that have one of them."""
    order = np.argsort(at, kind="stable")
    level = at[order]
    for begin in range(int(level[0]), int(level[-1]) + 1, max(size, 1)):
        end = begin + max(size, 1)
        rows = order[np.searchsorted(level, begin) : np.searchsorted(level, end)]
        if len(rows):
            yield slice(begin, end), rows
