"""Multifrontal Cholesky factorisation: the tree of fronts, known before any number; panels, solves, selected inverse.

A front is a set of pivots that are eliminated together and their boundary, the later nodes that they are coupled to,
by the matrix or by fill. Its panel is a dense array with a row for each pivot and each node of the boundary and a
column for each pivot. All panels lie one behind the other in one buffer, so entries of the matrix go there in one step.

Notation of one front: the pivots 1, the boundary 2. Its part of the matrix is F = [[F11, F21'], [F21, F22]] with the
children's updates added. F11 = L11 L11', L21 = F21 L11^-T, and F22 - L21 L21' is the update that goes to the parent.
Arrays are in C order and BLAS reads them as their transposes: the lower triangle of L11 is the upper one of LAPACK.
Small updates of all children are added in one sum over listed places, large ones block by block.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from klimb.errors import NotPositiveDefiniteError
from klimb.linalg.ordering import Dissection, Integers, dissect, invented_coordinates, transposition
from klimb.numerics.arrays import Array, Mask
from klimb.numerics.lazy import blas, lapack

Places = Integers | slice
FREE, SLICE = 20, 40  # slices that cost as much as one indexed addition, and entries of it that cost one more slice
LISTED = 40_000  # entries of children's updates up to which each has its place in the parent listed
CALLS = 4e5  # multiplications that cost as much as the calls for one front


@dataclass(frozen=True)
class Placement:
    """Where the boundary of a front lies among its parent's rows, ``first`` as pivots; ``runs`` are slices of both."""

    rows: Integers
    first: int
    runs: list[tuple[slice, slice]]

    @cached_property
    def in_slices(self) -> bool:
        """Whether a block for each pair of runs is less work than to index every entry."""
        return len(self.runs) ** 2 <= FREE + len(self.rows) ** 2 / SLICE


@dataclass(frozen=True)
class Front:
    """Pivots ``begin`` to ``end`` of the new order; ``boundary`` are later nodes; the panel begins at ``offset``."""

    begin: int
    end: int
    boundary: Integers
    offset: int
    parent: int
    placement: Placement | None

    @cached_property
    def pivots(self) -> int:
        return self.end - self.begin

    @cached_property
    def rows(self) -> int:
        return self.end - self.begin + len(self.boundary)


class FrontTree:
    """Order, fronts and places of entries of a symmetric pattern (CSC, both triangles); hubs, ``last``, go last."""

    def __init__(self, pattern: Any, last: Mask, coordinates: Array | None = None) -> None:
        self.size = pattern.shape[0]
        self.entries: Places
        self.lower: Places
        self.mirrored: Places
        if pattern.nnz == self.size**2:  # one front, whose panel is the matrix
            self.order = np.arange(self.size)
            self.entries = self.lower = self.mirrored = slice(None)
            self.fronts = [Front(0, self.size, np.zeros(0, dtype=np.int64), 0, -1, None)]
        else:
            self._analyse(pattern, last, coordinates)
        self.length = int(sum(front.rows * front.pivots for front in self.fronts))
        self.diagonal = np.concatenate([f.offset + np.arange(f.pivots) * (f.pivots + 1) for f in self.fronts])
        self.children: list[list[tuple[int, Placement]]] = [[] for _ in self.fronts]
        for i, front in enumerate(self.fronts):
            if front.placement is not None:
                self.children[front.parent].append((i, front.placement))
        self.own: list[Integers | None] = [None] * len(self.fronts)  # where the entries of a front's update go
        self.listed = [self._listed(*each) for each in zip(self.fronts, self.children, strict=True)]

    def _listed(self, front: Front, children: list[tuple[int, Placement]]) -> Integers | None:
        """Where entries of small updates go: into the front's panel, or its own update behind; upper as lower ones."""
        if not 0 < sum(len(placement.rows) ** 2 for _, placement in children) <= LISTED:
            return None
        p, b = front.pivots, len(front.boundary)
        for i, placement in children:
            rows, beyond = placement.rows, placement.rows >= p
            places = np.multiply.outer(rows, np.where(beyond, b, p))
            places += rows + np.where(beyond, p * (p - 1), 0)
            self.own[i] = np.where(np.tri(len(rows), dtype=bool), places, places.T).ravel()
        return np.concatenate([self.own[i] for i, _ in children])

    def _analyse(self, pattern: Any, last: Mask, coordinates: Array | None) -> None:
        found, points = _dissected(pattern, last, coordinates)
        columns = np.repeat(np.arange(self.size), np.diff(pattern.indptr))
        for merge in (True, False):
            rank = _postorder(found.parent)[found.front]
            self.order = np.argsort(rank, kind="stable") if merge else np.lexsort((_along(points, rank), rank))
            place = np.empty(self.size, dtype=np.int64)
            place[self.order] = np.arange(self.size)
            counts = np.bincount(rank)
            ends = np.cumsum(counts)
            row, column = place[pattern.indices], place[columns]
            lower = np.flatnonzero(row >= column)
            row, column = row[lower], column[lower]
            owner = np.repeat(np.arange(len(ends)), counts)
            boundaries = _boundaries(row, column, owner, ends)
            if merge:
                found = _merged(rank, counts, boundaries, owner)
        self.fronts = _linked(boundaries, owner, ends)
        # places in the buffer of panels of the entries of the lower triangle, and of all entries
        self.entries, self.lower = self._places(row, column, owner), lower
        self.mirrored = np.empty(pattern.nnz, dtype=np.int64)
        self.mirrored[transposition(pattern)[lower]] = self.entries
        self.mirrored[lower] = self.entries

    def _places(self, row: Integers, column: Integers, owner: Integers) -> Integers:
        front = owner[column]
        begin = np.array([f.begin for f in self.fronts])
        width = np.array([f.pivots for f in self.fronts])
        offset = np.array([f.offset for f in self.fronts])
        local = row - begin[front]
        outside = np.flatnonzero(local >= width[front])
        # boundaries one behind the other, each with its front's number times n added, are sorted: one search finds all
        sizes = np.array([len(f.boundary) for f in self.fronts])
        keys = np.concatenate([f.boundary for f in self.fronts]) + np.repeat(np.arange(len(sizes)), sizes) * self.size
        found = np.searchsorted(keys, row[outside] + front[outside] * self.size)
        local[outside] = found - (np.cumsum(sizes) - sizes)[front[outside]] + width[front[outside]]
        return np.asarray(offset[front] + local * width[front] + column - begin[front])


def _dissected(pattern: Any, last: Mask, coordinates: Array | None) -> tuple[Dissection, Array]:
    """Fronts by nested dissection of the nodes that are not last, and one front above them for those that are."""
    size, inner = pattern.shape[0], np.flatnonzero(~last)
    graph = pattern if len(inner) == size else pattern[inner][:, inner]
    points = np.zeros((size, 3 if coordinates is None else coordinates.shape[1]))
    if len(inner):
        if coordinates is None:
            made = invented_coordinates(graph)
            points = np.zeros((size, made.shape[1]))
            points[inner] = made
        else:
            points[inner] = coordinates[inner]
    found = dissect(graph, points[inner], rotate=coordinates is None)
    if len(inner) == size:
        return found, points
    front = np.zeros(size, dtype=np.int64)
    front[inner] = found.front + 1
    return Dissection(front, np.concatenate([[-1], found.parent + 1])), points


def _along(points: Array, front: Integers) -> Array:
    """A node's coordinate in the direction in which its front is longest, so that neighbours stand side by side."""
    order = np.argsort(front, kind="stable")
    starts = np.flatnonzero(np.diff(front[order], prepend=-1))
    sorted_ = points[order]
    extent = np.maximum.reduceat(sorted_, starts) - np.minimum.reduceat(sorted_, starts)
    return np.asarray(np.take_along_axis(points, extent.argmax(axis=1)[front][:, None], 1)[:, 0])


def _postorder(parent: Integers) -> Integers:
    """The rank of every front in an order that has children directly before their parents."""
    children: list[list[int]] = [[] for _ in parent]
    stack: list[int] = []
    for i, p in enumerate(parent.tolist()):
        (children[p] if p >= 0 else stack).append(i)
    rank, left = np.empty(len(parent), dtype=np.int64), len(parent)
    while stack:  # a parent before its children, numbered from the end
        i = stack.pop()
        left -= 1
        rank[i] = left
        stack.extend(children[i])
    return rank


def _boundaries(row: Integers, column: Integers, owner: Integers, ends: Integers) -> list[Integers]:
    """Later nodes coupled to each front: by the matrix, or because a front that it is the first to follow is."""
    count = len(ends)
    beyond = row >= ends[owner[column]]
    keys = np.unique(owner[column[beyond]] * len(owner) + row[beyond])
    of, nodes = np.divmod(keys, len(owner))
    split = np.searchsorted(of, np.arange(1, count))
    boundaries = np.split(nodes, split)
    pending: list[list[Integers]] = [[] for _ in range(count)]
    last = ends.tolist()
    for i in range(count):
        if pending[i]:
            merged = np.unique(np.concatenate([boundaries[i], *pending[i]]))
            boundaries[i] = merged[np.searchsorted(merged, last[i]):]
            pending[i] = []
        if len(boundaries[i]):
            pending[owner[boundaries[i][0]]].append(boundaries[i])
    return boundaries


def _merged(front: Integers, counts: Integers, boundaries: list[Integers], owner: Integers) -> Dissection:
    """Fronts with those of their children that cost less as a part of them: zeros are cheaper than calls."""
    pivots, sizes = counts.tolist(), [len(boundary) for boundary in boundaries]
    parent = [int(owner[boundary[0]]) if len(boundary) else -1 for boundary in boundaries]
    into = np.arange(len(pivots))
    for i, up in enumerate(parent):  # children come first
        if up >= 0 and _work(pivots[i] + pivots[up], sizes[up]) < CALLS + _work(pivots[i], sizes[i]) + _work(
                pivots[up], sizes[up]):
            into[i], pivots[up] = up, pivots[i] + pivots[up]
    kept = into == np.arange(len(into))
    for i in range(len(into) - 1, -1, -1):
        into[i] = into[into[i]]
    above = np.array(parent)
    number = np.cumsum(kept[::-1])[::-1] - 1  # parents have smaller numbers
    return Dissection(number[into[front]], np.where(above >= 0, number[into[above]], -1)[kept][::-1])


def _work(p: int, b: int) -> float:
    """Multiplications of a front's factor and inverse, roughly."""
    return p * (p * p + 4.0 * p * b + 3.0 * b * b)


def _linked(boundaries: list[Integers], owner: Integers, ends: Integers) -> list[Front]:
    """Fronts with their places in the buffer and in their parents. The parent owns the first node of the boundary."""
    sizes = np.array([len(boundary) for boundary in boundaries])
    pivots = np.diff(ends, prepend=0)
    nodes, starts = np.concatenate(boundaries), np.cumsum(sizes) - sizes
    of = np.repeat(np.arange(len(sizes)), sizes)
    parent = np.full(len(sizes), -1)
    parent[sizes > 0] = owner[nodes[starts[sizes > 0]]]
    above = parent[of]
    found = np.searchsorted(nodes + of * len(owner), nodes + above * len(owner))  # among the parent's boundary
    inside = nodes < ends[above]
    rows = np.where(inside, nodes - (ends - pivots)[above], found - starts[above] + pivots[above])
    first = np.bincount(of[inside], minlength=len(sizes))
    # a run ends where the next row is not the next one of the parent, or no pivot of it any more, or of another front
    breaks = np.flatnonzero((np.diff(rows) != 1) | (np.diff(of) != 0) | (np.diff(inside.astype(int)) != 0)) + 1
    begins = np.concatenate([[0], breaks]) if len(nodes) else np.zeros(0, dtype=np.int64)
    local, lengths = begins - starts[of[begins]], np.diff(begins, append=len(nodes))
    runs: list[list[tuple[slice, slice]]] = [[] for _ in boundaries]
    for i, row, begin, length in np.stack([of[begins], rows[begins], local, lengths], axis=1).tolist():
        runs[i].append((slice(row, row + length), slice(begin, begin + length)))
    offsets = np.cumsum(pivots * (pivots + sizes)) - pivots * (pivots + sizes)
    split = np.split(rows, starts[1:])
    numbers = np.stack([ends - pivots, ends, offsets, parent, first], axis=1).tolist()
    lists = zip(numbers, boundaries, split, runs, strict=True)
    return [Front(begin, end, boundary, offset, up, Placement(place, inner, run) if up >= 0 else None)
            for (begin, end, offset, up, inner), boundary, place, run in lists]


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
            flat = buffer[front.offset:front.offset + p * m]
            panel = flat.reshape(m, p)
            received = [(updates.pop(child), placement) for child, placement in tree.children[i]]
            places = tree.listed[i]
            update: Array | None = None
            if places is not None:
                entries = np.concatenate([other.ravel() for other, _ in received])
                sums = np.asarray(np.bincount(places, entries, p * m + (m - p) ** 2), dtype=float)
                flat += sums[:p * m]
                update = sums[p * m:].reshape(m - p, m - p)
            else:
                for other, placement in received:
                    _add(panel, other, placement, 0, placement.first)
            top, below = panel[:p], panel[p:]
            _, info = lapack.dpotrf(top.T, lower=0, clean=1, overwrite_a=1)
            if info != 0:
                raise NotPositiveDefiniteError("a pivot is not positive")
            self.panels.append((top, below))
            if m == p:
                continue
            blas.dtrsm(1.0, top.T, below.T, side=0, lower=0, trans_a=1, overwrite_b=1)  # L21' = L11^-1 F21'
            if update is not None:
                blas.dsyrk(-1.0, below.T, beta=1.0, c=update.T, trans=1, lower=0, overwrite_c=1)
            else:
                update = blas.dsyrk(-1.0, below.T, trans=1, lower=0).T
                for other, placement in received:
                    _add(update, other, placement, placement.first, len(other), p)
            updates[i] = update
        self.roots = buffer[tree.diagonal]  # the diagonal of L

    def forward(self, x: Array) -> Array:
        """L^-1 x for x of shape (n, k) in the order of elimination, which is overwritten."""
        x = x[:, 0] if x.shape[1] == 1 else x
        for (top, below), front in zip(self.panels, self.tree.fronts, strict=True):
            y = x[front.begin:front.end]
            _solve_pivots(top, y, transposed=False)
            if len(below):
                x[front.boundary] -= below @ y
        return x.reshape(len(x), -1)

    def backward(self, x: Array) -> Array:
        """L^-T x, likewise."""
        x = x[:, 0] if x.shape[1] == 1 else x
        for (top, below), front in zip(reversed(self.panels), reversed(self.tree.fronts), strict=True):
            y = x[front.begin:front.end]
            if len(below):
                y -= below.T @ x[front.boundary]
            _solve_pivots(top, y, transposed=True)
        return x.reshape(len(x), -1)

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
            listed = tree.listed[i] is not None
            flat = np.empty(p * m + (m - p) ** 2) if listed else buffer[front.offset:front.offset + p * m]
            panel = flat[:p * m].reshape(m, p)
            panel[:p] = top
            lapack.dpotri(panel[:p].T, lower=0, overwrite_c=1)  # the triangle of F11^-1 where that of L11 was
            if not listed and (waiting[i] or m == p):
                panel[:p] += np.tril(panel[:p], -1).T
            z22 = np.zeros((0, 0))
            if front.placement is not None:
                own, above = tree.own[i], known[front.parent]
                z22 = _gathered(above, front.placement) if own is None else above.take(own).reshape(m - p, m - p)
                waiting[front.parent] -= 1
                if not waiting[front.parent]:
                    del known[front.parent]
                w = blas.dtrsm(1.0, top.T, below.T, side=0, lower=0)  # W'
                blas.dgemm(-1.0, w, z22, c=panel[p:].T, overwrite_c=1)
                blas.dgemm(-1.0, panel[p:].T, w, beta=1.0, c=panel[:p].T, trans_b=1, overwrite_c=1)
            if listed:
                flat[p * m:] = z22.ravel()
                buffer[front.offset:front.offset + p * m] = flat[:p * m]
                known[i] = flat
            elif waiting[i]:
                known[i] = full = np.empty((m, m))
                full[:, :p], full[:p, p:], full[p:, p:] = panel, panel[p:].T, z22
        return np.asarray(buffer[tree.mirrored])


def _solve_pivots(top: Array, y: Array, *, transposed: bool) -> None:
    """L11^-1 y or L11^-T y in place, for a vector or columns."""
    if y.ndim == 1:
        blas.dtrsv(top.T, y, lower=0, trans=0 if transposed else 1, overwrite_x=1)
    else:
        blas.dtrsm(1.0, top.T, y.T, side=1, lower=0, trans_a=1 if transposed else 0, overwrite_b=1)


def _add(target: Array, update: Array, placement: Placement, begin: int, end: int, shift: int = 0) -> None:
    """Columns ``begin`` to ``end`` of a child's update, from row ``begin`` on, less ``shift``."""
    if not placement.in_slices:
        rows = placement.rows[begin:] - shift
        target[rows[:, None], rows[:end - begin]] += update[begin:, begin:end]
        return
    for j, (column, column_of) in enumerate(placement.runs):
        if begin <= column_of.start < end:
            across = slice(column.start - shift, column.stop - shift)
            for row, row_of in placement.runs[j:]:
                block = target[row.start - shift:row.stop - shift, across]
                block += update[row_of, column_of]


def _gathered(full: Array, placement: Placement) -> Array:
    """Rows and columns of a symmetric matrix."""
    if not placement.in_slices:
        return np.asarray(full[placement.rows[:, None], placement.rows])
    out = np.empty((len(placement.rows), len(placement.rows)))
    for row, row_of in placement.runs:
        for column, column_of in placement.runs:
            out[row_of, column_of] = full[row, column]
    return out
