"""The contract of an operator B: N x D, real, known by its products with vectors and with blocks of vectors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, TypeAlias, final

import numpy as np
import numpy.typing as npt

from klimb.errors import InputError
from klimb.numerics.arrays import Array

Rows: TypeAlias = slice | npt.ArrayLike  # a slice, indices or a mask

BLOCK_DOUBLES = 2**24  # 128 MiB: the most that a temporary with one row per site or per weight may hold
WIDEST_BLOCK = 32  # columns in a block product: more of them leave the cache and gain nothing


def column_blocks(n_columns: int, n_rows: int) -> Iterator[slice]:
    """Slices of consecutive columns such that a block of ``n_rows`` rows stays small."""
    width = max(1, min(WIDEST_BLOCK, BLOCK_DOUBLES // max(n_rows, 1)))
    for begin in range(0, n_columns, width):
        yield slice(begin, min(begin + width, n_columns))


class Operator(ABC):
    """A real N x D matrix B that can multiply; what else it knows of itself, it says.

    A subclass sets ``shape`` and writes `_times` and `_transpose_times`, both for one vector or for the columns of a
    matrix. ``n_products`` counts single-vector products with B or B'; a block of k columns counts as k.
    """

    shape: tuple[int, int]
    n_products: int = 0

    def times(self, U: Array) -> Array:
        """B U for a vector (D,) or for the columns of a matrix (D, k)."""
        self._count(U, self.shape[1], "times")
        return self._times(U)

    def transpose_times(self, W: Array) -> Array:
        """B' W for a vector (N,) or for the columns of a matrix (N, k)."""
        self._count(W, self.shape[0], "transpose_times")
        return self._transpose_times(W)

    @abstractmethod
    def _times(self, U: Array) -> Array: ...

    @abstractmethod
    def _transpose_times(self, W: Array) -> Array: ...

    def gram_diagonal(self, gamma: Array) -> Array | None:
        """diag(B' diag(gamma) B), or None where the entries of B are not known."""
        return None

    def row_norms_squared(self, scale: Array) -> Array | None:
        """sum_j B_ij^2 scale_j for each row, or None where the entries of B are not known."""
        return None

    def take(self, rows: Rows) -> Operator:
        """The operator of some rows: a slice, indices or a mask."""
        return SelectedRows(self, rows)

    def coarse(self) -> Operator:
        """The same operator, with products in single precision where those are faster; they count as its own."""
        return self

    @property
    def explicit(self) -> Any | None:
        """The matrix itself, an array or a scipy.sparse CSR matrix, or None where it is not stored."""
        return None

    def dense(self) -> Array:
        """The matrix as a dense array, by products with unit vectors where it is not stored."""
        N, D = self.shape
        if N < D:
            return np.ascontiguousarray(_by_unit_vectors(self.transpose_times, N, D).T)
        return _by_unit_vectors(self.times, D, N)

    def gram(self, gamma: Array) -> Array:
        """B' diag(gamma) B as a dense D x D array in Fortran order."""
        values = self.dense()
        return np.asfortranarray(values.T @ (gamma[:, None] * values))

    def _count(self, block: Array, expected: int, name: str) -> None:
        if block.ndim not in (1, 2) or block.shape[0] != expected:
            raise InputError(f"{name} of an operator of shape {self.shape} needs {expected} rows",
                             f"shape {block.shape}", "Check which operator the vector belongs to.")
        self.n_products += 1 if block.ndim == 1 else block.shape[1]


@final
class SelectedRows(Operator):
    """Some rows of an operator that does not store them: the whole product, of which some entries are used."""

    def __init__(self, base: Operator, rows: Rows) -> None:
        self.base = base
        self.rows = as_row_indices(rows, base.shape[0])
        self.shape = (len(self.rows), base.shape[1])

    def _times(self, U: Array) -> Array:
        return self.base.times(U)[self.rows]

    def _transpose_times(self, W: Array) -> Array:
        whole = np.zeros((self.base.shape[0], *W.shape[1:]))
        np.add.at(whole, self.rows, W)  # a row may be taken twice
        return self.base.transpose_times(whole)

    def gram_diagonal(self, gamma: Array) -> Array | None:
        whole = np.zeros(self.base.shape[0])
        np.add.at(whole, self.rows, gamma)
        return self.base.gram_diagonal(whole)

    def row_norms_squared(self, scale: Array) -> Array | None:
        norms = self.base.row_norms_squared(scale)
        return None if norms is None else norms[self.rows]

    def take(self, rows: Rows) -> Operator:
        return SelectedRows(self.base, self.rows[as_row_indices(rows, len(self.rows))])


def as_row_indices(rows: Rows, n_rows: int) -> npt.NDArray[np.intp]:
    """Indices 0..n_rows - 1 from a slice, a mask or indices (negative ones count from the end)."""
    try:
        return np.arange(n_rows)[rows if isinstance(rows, slice) else np.atleast_1d(np.asarray(rows))]
    except IndexError as error:
        raise InputError(f"rows must be a slice, a mask or indices below {n_rows}", str(error),
                         "Check the row numbers.") from error


def _by_unit_vectors(product: Any, n_columns: int, n_rows: int) -> Array:
    values = np.empty((n_rows, n_columns))
    for columns in column_blocks(n_columns, max(n_rows, n_columns)):
        units = np.zeros((n_columns, columns.stop - columns.start))
        units[np.arange(columns.start, columns.stop), np.arange(units.shape[1])] = 1.0
        values[:, columns] = product(units)
    return values
