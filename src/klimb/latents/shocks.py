"""q of a linear model in standard shocks: those shared by all rows, and those of each level of a grouping factor.

    f_i = m_i + r_i'e + s_i'u_l,    e ~ N(0, I) of the shared weights,    u_l ~ N(0, I) of the level, given e

Given e the levels are independent under q and under the exact posterior, so that each can be integrated out by itself:
what is left has as many dimensions as there are shared weights, however many levels there are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, final

import numpy as np
import numpy.typing as npt

from klimb.latents.arrow import ArrowRows, ArrowWeights
from klimb.latents.crossed_weights import CrossedWeights
from klimb.latents.output_posteriors import CoupledOutputs
from klimb.latents.weights_posterior import DenseWeights, WeightPosterior
from klimb.numerics.arrays import Array

MOST_SHARED = 64  # shared weights up to which importance weights over them are of use
MOST_COLUMNS = 3  # coefficients of a level up to which it is integrated out by quadrature


@final
@dataclass(frozen=True, eq=False)
class ShockMoments:
    """Moments of the shocks under the exact posterior: N(0, I) where q is exact."""

    centre: Array  # (R,): E e
    spread: Array  # (R, R): Cov(e)
    mean: Array  # (L, k): E u_l
    with_shared: Array  # (L, k, R): Cov(u_l, e)
    covariance: Array  # (L, k, k): Cov(u_l)


@final
@dataclass(frozen=True, eq=False)
class _CrossedRows:
    """Rows sorted by level in the shocks of the border, made for those that are asked for."""

    q: CrossedWeights
    L: ArrowRows
    order: npt.NDArray[np.intp]

    def __getitem__(self, rows: npt.NDArray[np.intp]) -> Array | _CrossedRows:
        some = self.order[rows]
        return _CrossedRows(self.q, self.L, some) if self.q.n_shocks > MOST_SHARED else self.q.moved(self.L, some)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Array:
        return np.asarray(self.q.moved(self.L, self.order), dtype=dtype)

    def along(self, e: Array) -> Array:
        """What draws of the shocks add to each row, (S, n), without a matrix of rows by shocks."""
        w = self.q.spread(e)
        return self._rows.times(np.hstack([w, -self.q.pulled(w.T).T]))

    @cached_property
    def _rows(self) -> ArrowRows:
        L, at = self.L, self.order
        return ArrowRows(L.X[at], L.codes[at], L.values[at], L.sparse[at])


@final
@dataclass(frozen=True, eq=False)
class Shocks:
    """Rows in the shocks of q, sorted by level; without a grouping factor all rows are one level that has no shocks."""

    q: ArrowWeights | CrossedWeights
    own: Array  # (L, k, k): roots of the levels' covariances given e
    shared_rows: Any  # (N, R): r_i; of crossed factors only those that are asked for by an index
    level_rows: Array  # (N, k): s_i
    order: npt.NDArray[np.intp]  # original position of each row
    starts: npt.NDArray[np.intp]  # where the runs of the levels begin
    present: npt.NDArray[np.intp]  # level of each run
    outputs: int = 1  # latent values of a datum, whose weights come output by output

    @classmethod
    def of_levels(cls, q: ArrowWeights, X: Array, values: Array, rows: Any) -> Shocks | None:
        """From rows sorted by level; None where there are too many weights to be of use."""
        (_, R), k = q.root.shape, values.shape[1]
        if R > MOST_SHARED or k > MOST_COLUMNS:
            return None
        own = q.level_roots
        shared_rows = X @ q.root
        for j in range(k):
            shared_rows -= values[:, j, None] * q.pull[rows.level, j]
        level_rows = np.einsum("ij,ijk->ik", values, own[rows.level])
        return cls(q, own, shared_rows, level_rows, rows.order, rows.starts, rows.present)

    @classmethod
    def of_crossed(cls, q: CrossedWeights, L: ArrowRows) -> Shocks | None:
        """Of crossed factors: the levels of the largest one are integrated out; the others' weights are shared."""
        if L.values.shape[1] > MOST_COLUMNS:
            return None
        order = np.argsort(L.codes, kind="stable")
        level = L.codes[order]
        starts = np.flatnonzero(np.diff(level, prepend=-1))
        level_rows = np.einsum("ij,ijk->ik", L.values[order], q.level_roots[level])
        return cls(q, q.level_roots, _CrossedRows(q, L, order), level_rows, order, starts, level[starts])

    @classmethod
    def of_rows(cls, q: DenseWeights, X: Any) -> Shocks | None:
        """From the rows of a design that all share their weights."""
        if q.root.ndim != 2 or q.root.shape[1] > MOST_SHARED:
            return None
        rows = np.concatenate([np.asarray(block) for _, block in X.scaled_blocks(q.root)])
        return cls.of_outputs(q.mean, q.root, rows, len(rows))

    @classmethod
    def of_outputs(cls, mean: Array, root: Array, rows: Array, n: int) -> Shocks:
        """From rows in the shocks of N(mean, root root'), those of all ``n`` data output by output."""
        arrow = ArrowWeights(mean, root, np.zeros((1, 0)), np.zeros((1, 0, root.shape[1])), np.zeros((1, 0, 0)))
        one, none = np.zeros(1, dtype=np.intp), np.zeros((len(rows), 0))
        return cls(arrow, np.zeros((1, 0, 0)), rows, none, np.arange(n), one, one, len(rows) // n)

    @property
    def wide(self) -> bool:
        """Whether there are too many shared weights for importance weights over them."""
        return self.dim > MOST_SHARED and self.outputs == 1

    @property
    def dim(self) -> int:
        return int(self.q.root.shape[1])

    def along(self, e: Array) -> Array:
        """What draws of the shared shocks add to each row, (S, N)."""
        rows = self.shared_rows
        return np.asarray(e @ rows.T) if isinstance(rows, np.ndarray) else rows.along(e)

    def some(self, runs: npt.NDArray[np.intp]) -> Shocks:
        """The rows of some levels alone."""
        counts = np.diff(np.append(self.starts, len(self.order)))[runs]
        starts = np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.intp)
        rows = np.arange(counts.sum()) + np.repeat(self.starts[runs] - starts, counts)
        return replace(self, shared_rows=self.shared_rows[rows], level_rows=self.level_rows[rows],
                       order=self.order[rows], starts=starts, present=self.present[runs])

    def by_level(self) -> Array:
        """How w = shared + root e and b_l = mean - pull_l e + own_l u move with (e, u): (L, B + k, R + k)."""
        q, (B, R), (L, k, _) = self.q, self.q.root.shape, self.own.shape
        assert isinstance(q, ArrowWeights)
        moves = np.zeros((L, B + k, R + k))
        moves[:, :B, :R], moves[:, B:, :R], moves[:, B:, R:] = q.root, -q.pull, self.own
        return moves

    def matched(self, found: ShockMoments) -> WeightPosterior:
        """q with the means and covariances of the exact posterior; levels are correlated through e alone."""
        q, own = self.q, self.own
        assert isinstance(q, ArrowWeights)
        eigenvalues, vectors = np.linalg.eigh(found.spread)
        widths = np.sqrt(np.maximum(eigenvalues, 1e-12))
        root, back = vectors * widths, vectors / widths  # e = centre + root e'
        shared = q.shared + q.root @ found.centre
        if self.outputs > 1:
            return CoupledOutputs(shared, q.root @ root, self.outputs)
        if not q.level_mean.size:
            return DenseWeights(shared, q.root @ root)
        # b_l = level_mean - pull e + own u: its mean, how it moves with e', and what is left of its covariance.
        mean = q.level_mean - q.pull @ found.centre + np.einsum("ljk,lk->lj", own, found.mean)
        with_shared = own @ found.with_shared
        moves = with_shared @ back - q.pull @ root
        cross = with_shared @ np.swapaxes(q.pull, 1, 2)
        whole = (q.pull @ found.spread @ np.swapaxes(q.pull, 1, 2) - cross - np.swapaxes(cross, 1, 2)
                 + own @ found.covariance @ np.swapaxes(own, 1, 2))
        left = whole - moves @ np.swapaxes(moves, 1, 2)
        values, directions = np.linalg.eigh(0.5 * (left + np.swapaxes(left, 1, 2)))
        left = (directions * np.maximum(values, 0.0)[:, None, :]) @ np.swapaxes(directions, 1, 2)
        return ArrowWeights(shared, q.root @ root, mean, -moves, left)
