"""Standard coordinates of a model with a grouping factor: shocks shared by all rows, then those of each level."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

import numpy as np

from klimb.latents.coordinates import BLOCK_DOUBLES, Coordinates, Kind, Visit
from klimb.numerics.arrays import Array

if TYPE_CHECKING:
    from klimb.latents.base import Posterior
    from klimb.latents.crossed import CrossedColumns
    from klimb.latents.mixed import Mixed


@final
class MixedCoordinates(Coordinates):
    """w = mean + root e, b_l = mean_l - pull_l e + own_l u_l, z = (e, u): no matrix over all levels is formed."""

    def __init__(self, latent: Mixed, posterior: Posterior) -> None:
        self._q = q = latent.detach(posterior)
        self._own = q.level_roots
        self._levels, self._k = q.level_mean.shape
        self._width = q.root.shape[1]
        self.dim = self._width + self._levels * self._k
        self.n_sites = latent.n_sites
        rows = latent.rows
        self._X, self._t = rows.unsort(latent.X), rows.unsort(latent.values)
        self._level = np.empty(latent.n_sites, dtype=np.intp)
        self._level[rows.order] = rows.level
        self.kind: Kind = "weight"
        self.mean, self.sd = q.mean, q.sd()

    @property
    def work(self) -> float:
        return float(self.n_sites * (len(self._q.shared) + 2 * self._k) + self._levels * self._k * self._width)

    def _deviations(self, z: Array) -> tuple[Array, Array]:
        """Of the shared weights (draws x B) and of the levels (draws x L x k)."""
        e, u = z[:, : self._width], z[:, self._width :].reshape(len(z), self._levels, self._k)
        levels = np.einsum("ljk,slk->slj", self._own, u) - np.tensordot(e, self._q.pull, axes=(1, 2))
        return e @ self._q.root.T, levels

    def sweep(self, z: Array, visit: Visit) -> Array:
        shared, levels = self._deviations(z)
        to_shared, to_levels = np.zeros_like(shared), np.zeros_like(levels)
        size, n = max(BLOCK_DOUBLES // len(z), 16), len(self._level)
        for begin in range(0, n, size):
            rows = slice(begin, min(begin + size, n))
            X, t, at = self._X[rows], self._t[rows], self._level[rows]
            slopes = visit(rows, shared @ X.T + np.einsum("sik,ik->si", levels[:, at], t))
            to_shared += slopes @ X
            # Levels repeat within a block: sort, and sum over runs.
            order = np.argsort(at, kind="stable")
            starts = np.flatnonzero(np.diff(at[order], prepend=-1))
            sums = np.add.reduceat(slopes[:, order, None] * t[order], starts, axis=1)
            to_levels[:, at[order[starts]]] += sums
        pulled = to_shared @ self._q.root - np.tensordot(to_levels, self._q.pull, axes=((1, 2), (0, 1)))
        own = np.einsum("ljk,slj->slk", self._own, to_levels)
        return np.hstack([pulled, own.reshape(len(z), -1)])

    def report(self, z: Array, which: Any) -> Array:
        shared, levels = self._deviations(z)
        return np.hstack([shared, levels.reshape(len(z), -1)])[:, which]


@final
class CrossedCoordinates(Coordinates):
    """w = mean + root e, b_l = mean_l - T_l root e + own_l u_l, z = (e, u), T sparse; the root may only multiply."""

    def __init__(self, latent: CrossedColumns, posterior: Posterior) -> None:
        self._q = q = latent.detach(posterior)
        self._cells, self._T = latent.cells, q.pulls()
        self._width = q.n_shocks
        self.dim = self._width + q.level_mean.size
        self.n_sites = latent.n_sites
        self.kind: Kind = "weight"
        self.mean, self.sd = q.mean, q.sd()

    @property
    def work(self) -> float:
        cells = self._cells
        return float(self.n_sites * cells.X.shape[1] + cells.Y.nnz + self._T.nnz + self._q.root_work)

    def _deviations(self, z: Array) -> tuple[Array, Array]:
        """Of the border's weights (draws x B) and of the levels (draws x L k)."""
        shared = self._q.spread(z[:, : self._width])
        u = z[:, self._width :].reshape(len(z), *self._q.level_mean.shape)
        own = np.einsum("ljk,slk->slj", self._q.level_roots, u).reshape(len(z), -1)
        return shared, own - (self._T @ shared.T).T

    def sweep(self, z: Array, visit: Visit) -> Array:
        (shared, levels), dense, count = self._deviations(z), self._cells.X.shape[1], self._q.level_mean.size
        crossed = np.ascontiguousarray(np.hstack([levels, shared[:, dense:]]).T)
        to_dense, to_crossed = np.zeros((len(z), dense)), np.zeros_like(crossed)
        size, n = max(BLOCK_DOUBLES // len(z), 16), self.n_sites
        for begin in range(0, n, size):
            rows = slice(begin, min(begin + size, n))
            X, Y = self._cells.X.values[rows], self._cells.Y[rows]
            slopes = visit(rows, shared[:, :dense] @ X.T + (Y @ crossed).T)
            to_dense += slopes @ X
            to_crossed += Y.T @ slopes.T
        to_levels = to_crossed[:count]
        pulled = np.hstack([to_dense, to_crossed[count:].T]) - (self._T.T @ to_levels).T
        by_level = to_levels.T.reshape(len(z), *self._q.level_mean.shape)
        own = np.einsum("ljk,slj->slk", self._q.level_roots, by_level)
        return np.hstack([self._q.gathered(pulled), own.reshape(len(z), -1)])

    def report(self, z: Array, which: Any) -> Array:
        return np.hstack(self._deviations(z))[:, which]
