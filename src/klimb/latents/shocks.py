"""q of a linear model in standard shocks: those shared by all rows, and those of each level of a grouping factor.

    f_i = m_i + r_i'e + s_i'u_l,    e ~ N(0, I) of the shared weights,    u_l ~ N(0, I) of the level, given e

Given e the levels are independent under q and under the exact posterior, so that each can be integrated out by itself:
what is left has as many dimensions as there are shared weights, however many levels there are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from klimb.latents.arrow import ArrowRows, ArrowWeights
from klimb.latents.crossed_weights import CrossedWeights
from klimb.latents.outputs import CoupledOutputs
from klimb.latents.weights_posterior import DenseWeights, WeightPosterior
from klimb.numerics.arrays import Array, Index
from klimb.numerics.dense import row_blocks

if TYPE_CHECKING:
    from klimb.latents.base import Posterior
    from klimb.latents.kernel_weights import KernelWeights

MOST_SHARED = 64  # shared weights up to which importance weights over them are of use
MOST_REDUCED, MOST_ENTRIES = 512, 1e7  # weights, and of their rows, among whose directions the seen ones are looked for
UNSEEN = 0.01  # share of gamma f^2 that directions together may have to count as seen by no row
EQUAL, NEARLY = 1e-6, 0.9  # shares that are one, over the largest; a row that is as good as the longest
SINGULAR = 1e-12  # of the largest variance, below which f has none in a direction
MOST_COLUMNS = 3  # coefficients of a level up to which it is integrated out by quadrature


def _seen(rows: Array, q: Posterior | KernelWeights) -> tuple[Array, Array]:
    """Directions of shocks that no site sees, and those that sites do, by sums over sites of gamma f^2."""
    shares, directions = np.linalg.eigh(rows.T @ (np.abs(q.gamma)[:, None] * rows))
    directions = directions * np.where((q.gamma + q.a) @ rows @ directions < 0.0, -1.0, 1.0)
    n = int(np.searchsorted(np.cumsum(np.maximum(shares, 0.0)), UNSEEN))
    for same in np.split(np.arange(n, len(shares)), np.flatnonzero(np.diff(shares[n:]) > EQUAL * shares[-1]) + 1):
        if len(same) > 1:
            directions[:, same] = directions[:, same] @ _turned(rows[q.gamma != 0.0] @ directions[:, same])
    return directions[:, :n], directions[:, n:]


def _turned(rows: Array) -> Array:
    """A rotation of directions that nothing else tells apart: along what each of some rows adds to those before."""
    left, found = rows, list[Array]()
    for _ in range(rows.shape[1]):
        sizes = np.linalg.norm(left, axis=1)
        first = left[int(np.argmax(sizes >= NEARLY * sizes.max()))]  # a row and its copies are one
        found.append(first / np.linalg.norm(first))
        left = left - np.outer(left @ found[-1], found[-1])
    return np.array(found).T


@dataclass(frozen=True, eq=False)
class ShockMoments:
    """Moments of the shocks under the exact posterior: N(0, I) where q is exact."""

    centre: Array  # (R,): E e
    spread: Array  # (R, R): Cov(e)
    mean: Array  # (L, k): E u_l
    with_shared: Array  # (L, k, R): Cov(u_l, e)
    covariance: Array  # (L, k, k): Cov(u_l)


@dataclass(frozen=True, eq=False)
class _CrossedRows:
    """Rows sorted by level in the shocks of the border, made for those that are asked for."""

    q: CrossedWeights
    L: ArrowRows

    def __getitem__(self, rows: Index) -> Array | _CrossedRows:
        return self.q.moved(self.L, rows) if self.q.n_shocks <= MOST_SHARED else _CrossedRows(self.q, self.L.some(rows))

    def __array__(self, dtype: Any = None, copy: Any = None) -> Array:
        return np.asarray(self.q.moved(self.L, np.arange(len(self.L.X))), dtype=dtype)

    def along(self, e: Array) -> Array:
        """What draws of the shocks add to each row, (S, n), without a matrix of rows by shocks."""
        w = self.q.spread(e)
        return self.L.times(np.hstack([w, -self.q.pulled(w.T).T]))


@dataclass(frozen=True, eq=False)
class _ArrowRows:
    """Rows sorted by level in the shared shocks, or in those of their levels, made for those that are asked for."""

    q: ArrowWeights
    L: ArrowRows
    order: Index
    own: Array | None = None

    def __getitem__(self, rows: Index) -> Array:
        own, found = self.own, list[Array]()
        for some in row_blocks(len(rows), 2 * self.q.n_shocks + self.L.values.shape[1]):
            part = self.L.some(self.order[rows[some]])
            found.append(self.q.seen(part, slice(None))[0] if own is None else
                         np.einsum("ij,ijk->ik", part.values, own[part.codes]))
        return np.concatenate(found)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Array:
        return np.asarray(self[np.arange(len(self.order))], dtype=dtype)


@dataclass(frozen=True, eq=False)
class Shocks:
    """Rows in the shocks of q, sorted by level; without a grouping factor all rows are one level that has no shocks."""

    q: ArrowWeights | CrossedWeights
    own: Array  # (L, k, k): roots of the levels' covariances given e
    shared_rows: Any  # (N, R): r_i; with a grouping factor only those that are asked for by an index
    level_rows: Any  # (N, k): s_i, in the same way
    order: Index  # original position of each row
    starts: Index  # where the runs of the levels begin
    present: Index  # level of each run
    outputs: int = 1  # latent values of a datum, whose weights come output by output
    unseen: Array = field(default_factory=lambda: np.zeros((0, 0)))  # roots in directions that no row sees
    remade: Callable[[Array, Array], WeightPosterior] | None = None  # q from the mean and a root of e, if not by ``q``

    @classmethod
    def of_levels(cls, q: ArrowWeights, L: ArrowRows, order: Index, starts: Index) -> Shocks | None:
        """From rows, and how they are sorted by level; None where there are too many weights to be of use."""
        if q.n_shocks > MOST_SHARED or L.values.shape[1] > MOST_COLUMNS:
            return None
        own = q.level_roots
        shared, levels = _ArrowRows(q, L, order), _ArrowRows(q, L, order, own)
        return cls(q, own, shared, levels, order, starts, L.codes[order[starts]])

    @classmethod
    def of_crossed(cls, q: CrossedWeights, L: ArrowRows, order: Index) -> Shocks | None:
        """Of crossed factors: the levels of the largest one, by which L is in ``order``, are integrated out."""
        if L.values.shape[1] > MOST_COLUMNS:
            return None
        starts = np.flatnonzero(np.diff(L.codes, prepend=-1))
        level_rows = np.einsum("ij,ijk->ik", L.values, q.level_roots[L.codes])
        return cls(q, q.level_roots, _CrossedRows(q, L), level_rows, order, starts, L.codes[starts])

    @classmethod
    def of_rows(cls, q: DenseWeights, X: Any, posterior: Posterior) -> Shocks | None:
        """From the rows of a design that all share their weights; of many, in the directions that rows see."""
        if q.root.ndim != 2 or q.root.shape[1] > MOST_REDUCED:
            return None
        if q.root.shape[1] > MOST_SHARED and X.shape[0] * q.root.shape[1] > MOST_ENTRIES:
            return None
        rows = np.concatenate([np.asarray(block) for _, block in X.scaled_blocks(q.root)])
        if q.root.shape[1] <= MOST_SHARED:
            return cls.of_outputs(q.mean, q.root, rows, len(rows))
        unseen, seen = _seen(rows, posterior)
        if seen.shape[1] > MOST_SHARED:
            return None
        return replace(cls.of_outputs(q.mean, q.root @ seen, rows @ seen, len(rows)), unseen=q.root @ unseen)

    @classmethod
    def of_kernel(cls, q: KernelWeights, V: Array) -> Shocks | None:
        """Of a Gaussian process whose f has covariance V under q, in the directions that its sites see.

        With V = R R' and e = R^-1 (f - m), f at new inputs is k'(a + (I - G V) R^-T e) and what is independent of e.
        """
        q = q.without_prior()
        values, vectors = np.linalg.eigh(V)
        kept = values > SINGULAR * values[-1]
        root = vectors[:, kept] * np.sqrt(values[kept])
        seen = _seen(root, q)[1]
        if seen.shape[1] > MOST_SHARED:
            return None
        root, back = root @ seen, (vectors[:, kept] / np.sqrt(values[kept])) @ seen
        back -= q.gamma[:, None] * root
        return replace(cls.of_outputs(q.mean, root, root, len(root)), remade=partial(q.moved, root, back))

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
    def simple(self) -> bool:
        """Whether the weights are these shocks in other units: no levels, no several outputs, nothing unseen."""
        return not (self.own.size or self.unseen.size or self.remade) and self.outputs == 1

    @property
    def dim(self) -> int:
        return int(self.q.root.shape[1])

    def along(self, e: Array) -> Array:
        """What draws of the shared shocks add to each row, (S, N)."""
        rows = self.shared_rows
        return rows.along(e) if isinstance(rows, _CrossedRows) else np.asarray(e @ np.asarray(rows).T)

    def _counts(self, runs: Index) -> tuple[Index, Index]:
        """Rows of some levels, and where these begin among them."""
        counts = np.diff(np.append(self.starts, len(self.order)))[runs]
        return counts, np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.intp)

    def rows_of(self, runs: Index) -> Index:
        """The places of the rows of some levels among these."""
        counts, starts = self._counts(runs)
        return np.asarray(np.arange(counts.sum()) + np.repeat(self.starts[runs] - starts, counts))

    def some(self, runs: Index) -> Shocks:
        """The rows of some levels alone."""
        starts, rows = self._counts(runs)[1], self.rows_of(runs)
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
        if self.remade is not None:
            return self.remade(found.centre, root)
        shared = q.shared + q.root @ found.centre
        if self.outputs > 1:
            return CoupledOutputs(shared, q.root @ root, self.outputs)
        if not q.level_mean.size:
            moved = q.root @ root
            return DenseWeights(shared, np.hstack([moved, self.unseen]) if self.unseen.size else moved)
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
