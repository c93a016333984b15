"""Sparse Cholesky factorisation with selected inverse: a pattern is analysed once, then values are factorised.

Notation of one front: the pivots 1, the boundary 2. Its part of the matrix is F = [[F11, F21'], [F21, F22]] with the
children's updates added. F11 = L11 L11', L21 = F21 L11^-T, and F22 - L21 L21' is the update that goes to the parent.

Arrays are in C order and BLAS reads them as their transposes: the lower triangle of L11 is the upper one of LAPACK.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, final

import numpy as np

from klimb.errors import NotPositiveDefiniteError
from klimb.linalg.fronts import FrontTree, Placement
from klimb.linalg.independent import EliminatedSet, IndependentSet, independent_set
from klimb.numerics.arrays import Array
from klimb.numerics.lazy import blas, lapack

FREE, SLICE = 20, 40  # slices that cost as much as one indexed addition, and entries of it that cost one more slice
LOST = 16.0 * np.finfo(float).eps  # a pivot below this share of its diagonal entry has no digit left
DENSE = 10.0  # a row with more than this many times sqrt(n) entries is eliminated last


@final
class FrontFactor:
    """L of P M P' = L L' in panels, for ``values`` of the lower triangle in the order of ``tree.lower``."""

    def __init__(self, tree: FrontTree, values: Array) -> None:
        self.tree = tree
        buffer = np.zeros(tree.length)
        buffer[tree.entries] = values
        updates: dict[int, Array] = {}
        self.panels: list[tuple[Array, Array]] = []
        for i, front in enumerate(tree.fronts):
            p, m = front.pivots, front.rows
            panel = buffer[front.offset:front.offset + p * m].reshape(m, p)
            received = [(updates.pop(child), placement) for child, placement in tree.children[i]]
            for update, placement in received:
                _add_to_panel(panel, update, placement)
            top, below = panel[:p], panel[p:]
            _, info = lapack.dpotrf(top.T, lower=0, clean=1, overwrite_a=1)
            if info != 0:
                raise NotPositiveDefiniteError("a pivot is not positive")
            self.panels.append((top, below))
            if m == p:
                continue
            blas.dtrsm(1.0, top.T, below.T, side=0, lower=0, trans_a=1, overwrite_b=1)  # L21' = L11^-1 F21'
            update = blas.dsyrk(-1.0, below.T, trans=1, lower=0).T
            for other, placement in received:
                _add_to_update(update, other, placement, p)
            updates[i] = update
        self.roots = buffer[tree.diagonal]  # the diagonal of L

    def forward(self, x: Array) -> Array:
        """L^-1 x in place; x of shape (n, k) is in the order of elimination."""
        for (top, below), front in zip(self.panels, self.tree.fronts, strict=True):
            y = x[front.begin:front.end]
            blas.dtrsm(1.0, top.T, y.T, side=1, lower=0, overwrite_b=1)
            if len(below):
                x[front.boundary] -= below @ y
        return x

    def backward(self, x: Array) -> Array:
        """L^-T x in place."""
        for (top, below), front in zip(reversed(self.panels), reversed(self.tree.fronts), strict=True):
            y = x[front.begin:front.end]
            if len(below):
                y -= below.T @ x[front.boundary]
            blas.dtrsm(1.0, top.T, y.T, side=1, lower=0, trans_a=1, overwrite_b=1)
        return x

    def inverse_entries(self) -> Array:
        """Entries of M^-1 = Z in the order of the pattern.

        M Z = I means L' Z = L^-1, which is lower triangular. Its rows of one front's pivots are L11' Z1. + L21' Z2.,
        with 0 in the columns 2 and L11^-1 in the columns 1 on the right. With W = L21 L11^-1 therefore

            Z21 = -Z22 W,        Z11 = L11^-T L11^-1 - W' Z21.

        Z22 is known when the parent is done, because the boundary of a front lies among its parent's rows (Takahashi's
        recursion in blocks). Entries of Z outside the panels are never needed.
        """
        tree = self.tree
        buffer = np.empty(tree.length)
        known: dict[int, Array] = {}
        waiting = [len(children) for children in tree.children]
        for i in range(len(tree.fronts) - 1, -1, -1):
            front, (top, below) = tree.fronts[i], self.panels[i]
            p, m = front.pivots, front.rows
            panel = buffer[front.offset:front.offset + p * m].reshape(m, p)
            inverse, _ = lapack.dpotri(top.T, lower=0)  # one triangle of F11^-1, zeros in the other
            np.add(inverse, inverse.T, out=panel[:p])
            panel[:p].flat[::p + 1] *= 0.5
            if front.placement is not None:
                rows = front.placement
                z22 = _gathered(known[front.parent], rows)
                waiting[front.parent] -= 1
                if not waiting[front.parent]:
                    del known[front.parent]
                w = blas.dtrsm(1.0, top.T, below.T, side=0, lower=0).T
                np.matmul(z22, w, out=panel[p:])
                np.negative(panel[p:], out=panel[p:])
                panel[:p] -= w.T @ panel[p:]
            if waiting[i]:
                full = np.empty((m, m))
                full[:, :p] = panel
                full[:p, p:] = panel[p:].T
                if m > p:
                    full[p:, p:] = z22
                known[i] = full
        return buffer[tree.mirrored]


def _in_slices(placement: Placement) -> bool:
    """Whether a block for each pair of runs is less work than to index every entry."""
    return len(placement.runs) ** 2 <= FREE + len(placement.rows) ** 2 / SLICE


def _add_to_panel(panel: Array, update: Array, placement: Placement) -> None:
    """The columns of a child's update that belong to pivots of its parent."""
    first = placement.first
    if not _in_slices(placement):
        panel[placement.rows[:, None], placement.rows[:first]] += update[:, :first]
        return
    for j, (column, column_of) in enumerate(placement.runs):
        if column_of.start >= first:
            break
        for row, row_of in placement.runs[j:]:
            block = panel[row, column]
            block += update[row_of, column_of]


def _add_to_update(update: Array, other: Array, placement: Placement, pivots: int) -> None:
    """The rest of a child's update, which its parent hands on."""
    first = placement.first
    if first == len(placement.rows):
        return
    if not _in_slices(placement):
        rows = placement.rows[first:] - pivots
        update[rows[:, None], rows] += other[first:, first:]
        return
    for j, (column, column_of) in enumerate(placement.runs):
        if column_of.start < first:
            continue
        across = slice(column.start - pivots, column.stop - pivots)
        for row, row_of in placement.runs[j:]:
            block = update[row.start - pivots:row.stop - pivots, across]
            block += other[row_of, column_of]


def _gathered(full: Array, placement: Placement) -> Array:
    """Rows and columns of a symmetric matrix."""
    if not _in_slices(placement):
        return np.asarray(full[placement.rows[:, None], placement.rows])
    out = np.empty((len(placement.rows), len(placement.rows)))
    for row, row_of in placement.runs:
        for column, column_of in placement.runs:
            out[row_of, column_of] = full[row, column]
    return out


@final
class SymbolicCholesky:
    """The analysis of a symmetric pattern: order of elimination, tree of fronts, places of the entries.

    Parameters
    ----------
    pattern
        Square ``csc_array`` or ``csc_matrix`` with both triangles, every diagonal entry stored, sorted indices and no
        duplicates. Its values are not looked at.
    coordinates
        Positions of the nodes, shape (n, d), where there are any: separators are then found in space, not in the graph.
    """

    def __init__(self, pattern: Any, coordinates: Array | None = None) -> None:
        self.pattern = pattern
        self.size: int = pattern.shape[0]
        degree = np.diff(pattern.indptr)
        last = degree > max(16.0, DENSE * np.sqrt(self.size))
        nodes = np.arange(self.size)
        pivots = np.flatnonzero(pattern.indices == np.repeat(nodes, degree))
        self.stages: list[IndependentSet] = []
        self.diagonal = np.zeros(0, dtype=np.int64)  # places of the diagonal's entries in the order of elimination
        while (stage := independent_set(pattern, last)) is not None:
            self.stages.append(stage)
            self.diagonal = np.concatenate([self.diagonal, pivots[nodes[stage.taken]]])
            pattern, last, nodes = stage.rest, last[stage.kept], nodes[stage.kept]
        self.tree = FrontTree(pattern, last, None if coordinates is None else coordinates[nodes])
        self.diagonal = np.concatenate([self.diagonal, pivots[nodes[self.tree.order]]])

    def factor(self, values: Array) -> SparseCholesky:
        """The factor for entries in the order of ``pattern.data``; only one triangle is looked at."""
        return SparseCholesky(self, values)


@final
class SparseCholesky:
    """P M P' = L L' with what follows from it. Made by `SymbolicCholesky.factor`."""

    def __init__(self, symbolic: SymbolicCholesky, values: Array) -> None:
        self.symbolic = symbolic
        self._parts: list[EliminatedSet] = []
        left = np.asarray(values, dtype=float)
        with np.errstate(all="ignore"):  # whatever is not a number ends in a pivot
            for stage in symbolic.stages:
                part, left = stage.eliminate(left)
                self._parts.append(part)
            self._core = FrontFactor(symbolic.tree, left[symbolic.tree.lower])
            roots = np.concatenate([*(part.root for part in self._parts), self._core.roots])
            sound = (roots**2 > LOST * np.asarray(values)[symbolic.diagonal]) & np.isfinite(roots)
        if not sound.all():
            raise NotPositiveDefiniteError("a pivot has no digit left: the matrix is singular to working precision")
        self.logdet = 2.0 * float(np.log(roots).sum())

    def half_solve(self, b: Array) -> Array:
        """L^-1 P b for b of shape (n,) or (n, k): the squared length is b' M^-1 b."""
        x = np.array(b, dtype=float).reshape(len(b), -1)
        done = []
        for part in self._parts:
            y, x = part.forward(x)
            done.append(y)
        done.append(self._core.forward(x[self.symbolic.tree.order]))
        return np.concatenate(done).reshape(np.shape(b))

    def root_solve(self, z: Array) -> Array:
        """P' L^-T z: has covariance M^-1 where the entries of z are independent with variance 1."""
        z_ = np.array(z, dtype=float).reshape(len(z), -1)
        sizes = [len(stage.taken) for stage in self.symbolic.stages]
        *parts, core = np.split(z_, np.cumsum(sizes))
        x = np.empty_like(core)
        x[self.symbolic.tree.order] = self._core.backward(core)
        for part, y in zip(reversed(self._parts), reversed(parts), strict=True):
            x = part.backward(y, x)
        return x.reshape(np.shape(z))

    def solve(self, b: Array) -> Array:
        """M^-1 b for b of shape (n,) or (n, k)."""
        return self.root_solve(self.half_solve(b))

    def inverse_entries(self) -> Array:
        """Entries of M^-1 in the order of ``pattern.data``."""
        return self._inverse

    @cached_property
    def _inverse(self) -> Array:
        values = self._core.inverse_entries()
        for part in reversed(self._parts):
            values = part.inverse_entries(values)
        return values
