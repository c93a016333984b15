"""Sums over rows that have few nonzeros: one grouping factor by its codes, others as sparse columns beside it.

What a posterior needs of such rows is linear in the products of pairs of their entries. Each product is stored once, at
the cell that it adds to, so that all sums at some gamma are one sparse product, and so are all variances.
"""

from copy import copy
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np

from klimb.latents.arrow import ArrowRows
from klimb.latents.crossed_border import Border, Parting
from klimb.latents.linear import side_by_side
from klimb.linalg.matrix import DenseDesign
from klimb.numerics.arrays import Array, Index, pieces, slices
from klimb.numerics.lazy import scipy_sparse

DENSE_GAIN = 250.0  # how much faster a multiplication is in a dense product than one by gathers
BLOCK = 2**20  # numbers of a temporary array
SAME_RATIO = 8 * np.finfo(float).eps



@dataclass(frozen=True, eq=False)
class CellSums:
    """Z'GZ of unwhitened columns: blocks D of levels, C between levels and the border, and the border itself.

    The border has dense columns first. C is (L, k, Bd) for those, and (E, k) at the cells of sparse ones.
    """

    levels: Array  # (L, k, k)
    dense: Array  # (L, k, Bd)
    cells: Array  # (E, k)
    gram: Array  # (Bd, Bd): of dense columns
    mixed: Array  # (S, Bd): of sparse ones with those
    pairs: Array  # (P,): of pairs of sparse ones that share a row

    def times(self, factor: float) -> "CellSums":
        return CellSums(*(factor * getattr(self, one.name) for one in fields(self)))


class Cells:
    """Rows with a level each, k ``values`` for it, dense columns ``X`` and ``sparse`` ones; nothing of a prior.

    A cell is a level and a sparse column that share a row. Cells are sorted by level, then by column.
    """

    def __init__(self, X: Array, sparse: Any, codes: Index, values: Array, n_levels: int) -> None:
        (n, k), S = values.shape, sparse.shape[1]
        self.n, self.k, self.n_levels, self.n_sparse = n, k, n_levels, S
        self.codes, self.values, self.sparse = codes, values, sparse
        at, self._entries = padded(sparse)
        entries = self._entries
        keys, place = np.unique(codes[:, None] * S + at, return_inverse=True)
        self.place = place = place.reshape(at.shape)
        self.columns = (keys % S).astype(np.int32)
        self.starts = np.searchsorted(keys, np.arange(n_levels + 1) * S)
        self.level = np.repeat(np.arange(n_levels), np.diff(self.starts))
        first, second = np.triu_indices(at.shape[1])
        low, high = np.minimum(at[:, first], at[:, second]), np.maximum(at[:, first], at[:, second])
        pairs, pair_place = np.unique(low * S + high, return_inverse=True)
        self._i, self._j = np.triu_indices(k)
        self._edges = np.cumsum([n_levels * len(self._i), len(keys) * k])
        index = np.hstack([codes[:, None] * len(self._i) + np.arange(len(self._i)),
                           (self._edges[0] + place[:, :, None] * k + np.arange(k)).reshape(n, -1),
                           self._edges[1] + pair_place.reshape(low.shape)])
        products = np.hstack([values[:, self._i] * values[:, self._j],
                              (entries[:, :, None] * values[:, None, :]).reshape(n, -1),
                              entries[:, first] * entries[:, second] * np.where(
                                  (first != second) & (at[:, first] == at[:, second]), 2.0, 1.0)])
        self._products = _rows_of_equal_length(index, products, int(self._edges[1]) + len(pairs))
        self._to_cells = self._products.T
        levels = _rows_of_equal_length(codes[:, None] * k + np.arange(k), values, n_levels * k)
        self.Y = side_by_side([levels, sparse])  # all sparse columns, those of the levels first
        self._to_columns, self._absolute = self.Y.T, abs(self.Y)
        self.pairs = pairs // S, pairs % S
        self._twice = [np.where(one == other, 1.0, 2.0) for one, other in (self.pairs, (self._i, self._j))]
        self.X, self.width, self._absolute_X = DenseDesign(X), X.shape[1] + S, np.abs(X)
        self._known: tuple[Array, CellSums] | None = None
        self.n_draws = 0  # of variances that are estimated; the first estimate says how many

    def with_dense(self, X: Array) -> "Cells":
        """The same sparse columns with other dense ones."""
        new = copy(self)
        for made in ("rows", "by_level", "parted", "whole"):
            new.__dict__.pop(made, None)
        new.X, new.width, new._known, new._absolute_X = DenseDesign(X), X.shape[1] + self.n_sparse, None, np.abs(X)
        return new

    @cached_property
    def rows(self) -> ArrowRows:
        """All rows, in the form that q takes."""
        return ArrowRows(self.X.values, self.codes, self.values, self.sparse, self.place)

    @cached_property
    def by_level(self) -> tuple[ArrowRows, Index]:
        """Rows sorted by level, and where they are among all."""
        order = np.argsort(self.codes, kind="stable")
        return self.rows.some(order), order

    @cached_property
    def alone(self) -> Index:
        """Sparse columns of which no two share a row or a level, as where factors are nested; none unless most are so.

        A column is one of them if it meets fewer others than each of those does.
        """
        if self.cell_pairs is None:
            return np.zeros(0, dtype=np.intp)
        S = self.n_sparse
        at = np.concatenate([self.pairs[0] * S + self.pairs[1], self.cell_pairs[2]])
        one, other = np.divmod(at, S)
        a, b = np.divmod(np.unique(np.concatenate([at, other * S + one])[np.tile(one != other, 2)]), S)
        rank = np.empty(S, dtype=np.intp)
        rank[np.argsort(np.bincount(a, minlength=S), kind="stable")] = np.arange(S)
        least = np.full(S, S)
        np.minimum.at(least, a, rank[b])
        found = np.flatnonzero(rank < least)
        return found if 2 * len(found) > S else found[:0]

    @cached_property
    def parted(self) -> Parting:
        """The border with columns that are `alone` apart."""
        return Parting(self, self.alone)

    @cached_property
    def whole(self) -> Parting:
        """The border as one matrix."""
        return Parting(self, self.alone[:0])

    @cached_property
    def near_rows(self) -> tuple[Index, Array, Index, Index, Index]:
        """The cell of each row with a column that is `alone`, or -1, and its entry there; pairs of rows, and levels.

        Pairs have such a column in common, or a level: last come those that have that. Where there are too many of the
        former, no row has such a cell.
        """
        cell, S, n_alone = np.full(self.n_levels, -1), self.n_sparse, len(self.alone)
        seen = np.flatnonzero(np.isin(self.columns, self.alone))
        cell[self.level[seen]] = seen
        found = cell[self.codes]
        group = np.where(found >= 0, self.columns[found], S + self.codes)
        if not DENSE_GAIN * (np.bincount(group).astype(np.float64) ** 2).sum() < n_alone * float(self.n) ** 2:
            found, group = np.full(self.n, -1), self.codes
        one, other = np.nonzero(group[:, None] == group)
        entry = np.where(self.place == found[:, None], self._entries, 0.0).sum(axis=1)
        return found, entry, one, other, np.flatnonzero(self.codes[one] == self.codes[other])

    # -- sums over rows

    def sums(self, gamma: Array) -> CellSums:
        """At any gamma; those of a multiple of the first gamma (a Gaussian likelihood) are multiples of its sums."""
        if self._known is None:
            self._known = gamma, self._sums(gamma)
            return self._known[1]
        known, sums = self._known
        at = int(np.argmax(np.abs(known)))
        ratio = float(gamma[at] / known[at]) if known[at] else 0.0
        if (np.abs(gamma - ratio * known) <= SAME_RATIO * np.abs(gamma)).all():
            return sums.times(ratio)
        return self._sums(gamma)

    def _sums(self, gamma: Array) -> CellSums:
        L, k, dense = self.n_levels, self.k, self.X.shape[1]
        flat = self._to_cells @ gamma
        levels = np.empty((L, k, k))
        levels[:, self._i, self._j] = flat[: self._edges[0]].reshape(L, -1)
        levels[:, self._j, self._i] = levels[:, self._i, self._j]
        scaled = gamma[:, None] * self.X.values
        mixed = self._to_columns @ scaled
        cells = flat[self._edges[0] : self._edges[1]].reshape(-1, k)
        return CellSums(levels, mixed[: L * k].reshape(L, k, dense), cells, self.X.values.T @ scaled, mixed[L * k :],
                        flat[self._edges[1] :])

    def pulled(self, b: Array) -> tuple[Array, Array]:
        """Columns times b: the border's part and (L, k) for the levels."""
        sparse, count = self._to_columns @ b, self.n_levels * self.k
        return np.concatenate([self.X.transpose_times(b), sparse[count:]]), sparse[:count].reshape(-1, self.k)

    def pushed(self, border: Array, levels: Array) -> Array:
        """f at the rows of weights that are not whitened."""
        dense = self.X.shape[1]
        return np.asarray(self.X.times(border[:dense]) + self.Y @ np.concatenate([levels.ravel(), border[dense:]]))

    # -- products over cells

    def matrix(self, cells: Array, j: int, transposed: bool = False) -> Any:
        """(L, S), or its transpose: the j-th number of each cell."""
        pattern = self._patterns[transposed]
        found = pattern.__class__.__new__(pattern.__class__)  # checks of a new one would take longer than its products
        found.__dict__.update(pattern.__dict__, data=np.ascontiguousarray(cells[:, j]))
        return found

    @cached_property
    def _patterns(self) -> Any:
        ones = np.ones(len(self.columns))
        one = scipy_sparse.csr_matrix((ones, self.columns, self.starts), shape=(self.n_levels, self.n_sparse))
        return one, one.T

    @cached_property
    def cell_pairs(self) -> tuple[Index, Index, Index] | None:
        """Pairs of cells of one level, and of their columns; None where there are too many of them."""
        each = np.diff(self.starts)[self.level]
        if not self._by_gathers or each.sum() > BLOCK:
            return None
        one = np.repeat(np.arange(len(each)), each)
        other = np.arange(len(one)) + np.repeat(self.starts[self.level] - np.cumsum(each) + each, each)
        return one, other, self.columns[one].astype(np.intp) * self.n_sparse + self.columns[other]

    @cached_property
    def _by_gathers(self) -> bool:
        """Whether levels have so few cells that gathers beat dense products."""
        counts = np.diff(self.starts).astype(np.float64)
        return bool(DENSE_GAIN * (counts**2).sum() < self.n_levels * float(self.n_sparse) ** 2)

    def gram(self, cells: Array) -> Array:
        """H'H over levels and the second index of the cells, (S, S)."""
        total = np.zeros((self.n_sparse, self.n_sparse))
        for j in range(cells.shape[1]):
            H = self.matrix(cells, j)
            if self._by_gathers:
                total += (H.T.tocsr() @ H).toarray()
                continue
            for levels in self._level_blocks():
                block = H[levels].toarray()
                total += block.T @ block
        return total

    def _level_blocks(self) -> list[slice]:
        return list(slices(self.n_levels, max(BLOCK // self.n_sparse, 16)))

    def products_at_cells(self, cells: Array, border: Border) -> Array:
        """(T V) at the cells, T being (L, S) for each second index of ``cells``."""
        out, Bd = np.empty_like(cells), self.X.shape[1]
        if self.cell_pairs is not None:
            (one, other, _), entries = self.cell_pairs, border.flat[border.parting.cell_pairs]
            return np.column_stack([np.bincount(one, entries * own[other], len(out)) for own in cells.T])
        V = np.ascontiguousarray(border.rest[Bd:, Bd:])
        if not self._by_gathers:
            for levels in self._level_blocks():
                own = slice(self.starts[levels.start], self.starts[levels.stop])
                for j in range(cells.shape[1]):
                    block = self.matrix(cells, j)[levels].toarray() @ V
                    out[own, j] = block[self.level[own] - levels.start, self.columns[own]]
            return out
        counts = np.diff(self.starts)
        columns, flat = self.columns.astype(np.intp), V.ravel()
        for count in np.unique(counts[counts > 0]).tolist():
            first = self.starts[:-1][counts == count]
            for some in pieces(first, max(BLOCK // count**2, 1)):
                at = some[:, None] + np.arange(count)
                J = columns[at]
                block = flat.take(J[:, :, None] * len(V) + J[:, None, :])
                out[at] = block @ cells[at]  # V is symmetric
        return out

    def level_sums(self, one: Array, other: Array) -> Array:
        """Sums over the cells of each level of one other', (L, k, k)."""
        k = one.shape[1]
        out = np.empty((self.n_levels, k, k))
        for i, j in np.ndindex(k, k):
            out[:, i, j] = np.bincount(self.level, one[:, i] * other[:, j], minlength=self.n_levels)
        return out

    # -- variances of rows

    def variances(self, levels: Array, cells: Array, dense: Array, V: Border) -> tuple[Array, Array]:
        """x'Cov x for every row, and the square of what it would be if nothing cancelled.

        Covariances of the weights of levels (L, k, k), of levels with sparse columns at the cells (E, k), of levels
        with dense columns (L, k, Bd), and V of the border.
        """
        X, Bd, own = self.X.values, self.X.shape[1], levels[:, self._i, self._j] * self._twice[1]
        v = self._products @ np.concatenate([own.ravel(), 2.0 * cells.ravel(),
                                             self._twice[0] * V.flat[V.parting.pairs]])
        with_dense = self.Y @ np.vstack([dense.reshape(-1, Bd), V.mixed()])
        v += np.einsum("ij,ij->i", X, 2.0 * with_dense + X @ V.rest[:Bd, :Bd])
        diagonal = V.diagonal()
        squares = np.concatenate([np.diagonal(levels, axis1=1, axis2=2).ravel(), diagonal[Bd:]])
        size = self._absolute @ np.sqrt(np.maximum(squares, 0.0)) + self._absolute_X @ np.sqrt(diagonal[:Bd])
        return v, size**2


def padded(sparse: Any) -> tuple[Index, Array]:
    """Columns and values of the entries of each row of a CSR matrix; rows with fewer get zeros in column 0."""
    counts = np.diff(sparse.indptr)
    most = int(counts.max(initial=0))
    if most and (counts == most).all():
        return sparse.indices.reshape(-1, most).astype(np.intp), sparse.data.reshape(-1, most)
    here = np.arange(most) < counts[:, None]
    at, values = np.zeros(here.shape, dtype=np.intp), np.zeros(here.shape)
    at[here], values[here] = sparse.indices, sparse.data
    return at, values


def _rows_of_equal_length(index: Any, values: Array, width: int) -> Any:
    n, each = index.shape
    return scipy_sparse.csr_matrix((values.ravel(), index.ravel(), np.arange(n + 1) * each), shape=(n, width))
