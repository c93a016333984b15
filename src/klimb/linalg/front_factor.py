"""The numeric part of a multifrontal Cholesky factorisation: panels of L, solves, and the selected inverse.

Notation of one front: the pivots 1, the boundary 2. Its part of the matrix is F = [[F11, F21'], [F21, F22]] with the
children's updates added. F11 = L11 L11', L21 = F21 L11^-T, and F22 - L21 L21' is the update that goes to the parent.

Arrays are in C order and BLAS reads them as their transposes: the lower triangle of L11 is the upper one of LAPACK.
Small updates of all children are added in one sum over listed places, large ones block by block.
"""

import numpy as np

from klimb.errors import NotPositiveDefiniteError
from klimb.linalg.fronts import FrontTree, Placement
from klimb.numerics.arrays import Array
from klimb.numerics.lazy import blas, lapack


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
