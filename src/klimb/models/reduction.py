"""Rows with Gaussian noise reduced without loss: few rows that have the same bound and posterior at every theta.

    sum_i s_i (y_i - z_i'b_level(i) - x_i'w)^2,    s_i how often row i counts

is all that the data say of (w, b), and any rows with the same sum of squares say as much. In each level the k columns
of Z have an orthonormal basis Q. The k rows Q'[Z X y] keep the level; what the basis leaves of [X y] has no Z any more,
so that all levels share one triangle of it. Its last row has nothing but the root r of the residual sum of squares: as
one datum that counts as often as all rows which have gone, it has their share of the log of the noise as well.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from klimb.likelihoods import Observed
from klimb.linalg.matrix import DesignMatrix
from klimb.models.linear_parts import LinearRows
from klimb.numerics.arrays import Array
from klimb.numerics.dense import row_blocks, triangle
from klimb.numerics.lazy import scipy_sparse
from klimb.terms.base import UNSEEN, Placed

WORTHWHILE = 0.5  # rows afterwards over rows before, at most
NEGLIGIBLE = 64 * float(np.finfo(float).eps)  # of a column's length in a level: what is left by rounding
TALL = 16  # rows of a block over those that fit the cache: sums over a block cost as little as they can


def reduced_rows(rows: LinearRows, design: DesignMatrix, n_levels: int,
                 data: Observed) -> tuple[LinearRows, Observed] | None:
    """Few rows that say what all of them do, and their data; None where they would not be far fewer."""
    n, B = design.shape
    k = rows.values.shape[1] if n_levels else 0
    if n_levels * k + B + 1 > WORTHWHILE * n or (k and rows.codes.min() < 0):
        return None
    root = None if data.weights is None else np.sqrt(data.weights)
    y = data.y if data.offset is None else data.y - data.offset
    levels = _Levels(rows, n_levels, root) if k else None

    def plain() -> Iterator[tuple[slice, Array]]:
        for block in row_blocks(n, max((B + 1) // TALL, 1)):
            part = np.empty((block.stop - block.start, B + 1))
            part[:, :B], part[:, B] = design.dense_rows(block), y[block]
            if root is not None:
                part *= root[block, None]
            yield block, part

    codes, values, own = np.zeros(0, dtype=np.intp), np.zeros((0, k)), np.zeros((0, B + 1))
    if levels is None:
        R = triangle(lambda: (part for _, part in plain()), B + 1)
    else:
        steps = levels.projections(plain)
        R = triangle(lambda: (levels.without(steps, *part) for part in plain()), B + 1)
        codes, values, own = levels.rows(steps)
    return finished(codes, values, own, R, data, n, len(rows.blocks))


def finished(codes: Any, values: Array, own: Array, R: Array, data: Observed, n: int,
             n_terms: int) -> tuple[LinearRows, Observed] | None:
    """Rows of levels and a triangle of [X y] as few rows that say what ``n`` do; None where too few were there."""
    k, B = values.shape[1], R.shape[1] - 1
    left = data.total - len(codes) - B
    if left < 1.0:
        return None
    found, rest = np.vstack([own, R]), np.zeros((B + 1, k))
    found[-1, B] = abs(found[-1, B]) / np.sqrt(left)
    weights = np.ones(len(found))
    weights[-1] = left
    codes = np.concatenate([codes, np.full(B + 1, 0 if k else UNSEEN, dtype=np.intp)])
    few = LinearRows(np.ascontiguousarray(found[:, :B]), codes, np.vstack([values, rest]), (Placed(),) * n_terms,
                     np.zeros(len(found)), stands_for=n)
    return few, Observed(np.ascontiguousarray(found[:, B]), weights=weights, name=data.name)


class _Levels:
    """Orthonormal bases of the columns of every level: ``basis`` (n, k), Z = basis R in each."""

    def __init__(self, rows: LinearRows, n_levels: int, root: Array | None) -> None:
        Z = rows.values if root is None else root[:, None] * rows.values
        self.codes, self.n_levels, self.k = rows.codes, n_levels, Z.shape[1]
        self.basis, self.R = np.zeros_like(Z), np.zeros((n_levels, self.k, self.k))
        for j in range(self.k):
            column, size = Z[:, j].copy(), np.sqrt(self._sums(Z[:, j] ** 2))
            for i in [*range(j), *range(j)]:  # twice: what is left is orthogonal to all digits then
                inside = self._sums(self.basis[:, i] * column)
                column -= self.basis[:, i] * inside[self.codes]
                self.R[:, i, j] += inside
            length = np.sqrt(self._sums(column**2))
            length[length <= NEGLIGIBLE * size] = 0.0  # few rows, or equal ones: the level knows no more
            self.R[:, j, j] = length
            inverse = np.divide(1.0, length, out=np.zeros_like(length), where=length > 0.0)
            self.basis[:, j] = column * inverse[self.codes]

    def _sums(self, values: Array) -> Array:
        """By level."""
        return np.asarray(np.bincount(self.codes, values, self.n_levels), dtype=np.float64)

    def projections(self, plain: Any) -> list[Array]:
        """basis'[X y] by level, (L k, B + 1): of the rows, and then of what that has left by rounding."""
        steps: list[Array] = []
        for _ in range(2):
            total: Any = 0.0
            for block, part in plain():
                rest, count = self.without(steps, block, part), block.stop - block.start
                columns, starts = self.codes[block, None] * self.k + np.arange(self.k), self.k * np.arange(count + 1)
                spread = scipy_sparse.csr_array((self.basis[block].ravel(), columns.ravel(), starts),
                                                shape=(count, self.n_levels * self.k))
                total = total + spread.T @ rest
            steps.append(np.asarray(total))
        return steps

    def without(self, steps: list[Array], block: slice, part: Array) -> Array:
        """Rows of [X y] without what the bases of their levels make of them; ``part`` is used up."""
        for step in steps:
            for j in range(self.k):
                part -= self.basis[block, j, None] * step[self.codes[block] * self.k + j]
        return part

    def rows(self, steps: list[Array]) -> tuple[Any, Array, Array]:
        """Codes, values and [X y] of the rows that keep their level."""
        kept = np.flatnonzero(np.diagonal(self.R, axis1=1, axis2=2).ravel() > 0.0)
        return kept // self.k, self.R.reshape(-1, self.k)[kept], (steps[0] + steps[1])[kept]
