"""Operators B: N x D, real, known by their products with vectors and blocks of vectors; stored ones and functions."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from os import PathLike
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from klimb.errors import InputError, require
from klimb.linalg.csr import times_rows, with_data
from klimb.linalg.matrix import DenseDesign
from klimb.numerics.arrays import Array, Index, check_finite_csr, finite_sum, slices
from klimb.numerics.lazy import scipy_sparse

Rows: TypeAlias = slice | npt.ArrayLike  # a slice, indices or a mask

BLOCK_DOUBLES = 2**24  # 128 MiB: the most that a temporary with one row per site or per weight may hold
LARGE = 100_000  # nonzeros from which products in single precision pay
WIDEST_BLOCK = 32  # columns in a block product: more of them leave the cache and gain nothing


def column_blocks(n_columns: int, n_rows: int) -> Iterator[slice]:
    """Slices of consecutive columns such that a block of ``n_rows`` rows stays small."""
    width = max(1, min(WIDEST_BLOCK, BLOCK_DOUBLES // max(n_rows, 1)))
    return slices(n_columns, width)


class Operator(ABC):
    """A real N x D matrix B that can multiply; what else it knows of itself, it says.

    A subclass sets ``shape`` and writes `_times` and `_transpose_times`. ``n_products`` counts blocks as their columns.
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

    def normal_times(self, weights: Array, U: Array) -> Array:
        """B' diag(weights) B U, as two products."""
        inner = self.times(U)
        inner *= weights if U.ndim == 1 else weights[:, None]
        return self.transpose_times(inner)

    def gram_diagonal(self, gamma: Array) -> Array | None:
        """diag(B' diag(gamma) B), or None where the entries of B are not known."""
        return None

    def row_norms_squared(self, scale: Array) -> Array | None:
        """sum_j B_ij^2 scale_j for each row, or None where the entries of B are not known."""
        return None

    def take(self, rows: Rows) -> "Operator":
        """The operator of some rows, a slice, indices or a mask: a dense one of few rows of what is not stored."""
        N, D = self.shape
        return DenseOperator(_by_unit_vectors(self.transpose_times, as_row_indices(rows, N), N, D).T)

    def coarse(self) -> "Operator":
        """The same operator, with products in single precision where those are faster; they count as its own."""
        return self

    @property
    def explicit(self) -> Any | None:
        """The matrix itself, an array or a scipy.sparse CSR matrix, or None where it is not stored."""
        return None

    @property
    def leaves(self) -> "list[Operator]":
        """The operators that it is a stack of; itself, where it is none."""
        return [self]

    def dense(self) -> Array:
        """The matrix as a dense array, by products with unit vectors where it is not stored."""
        N, D = self.shape
        return self.take(slice(None)).dense() if N < D else _by_unit_vectors(self.times, np.arange(D), D, N)

    def gram(self, gamma: Array) -> Array:
        """B' diag(gamma) B as a dense D x D array in Fortran order."""
        values = self.dense()
        return np.asfortranarray(values.T @ (gamma[:, None] * values))

    def _count(self, block: Array, expected: int, name: str) -> None:
        if block.ndim not in (1, 2) or block.shape[0] != expected:
            raise InputError(f"{name} of an operator of shape {self.shape} needs {expected} rows",
                             f"shape {block.shape}", "Check which operator the vector belongs to.")
        self.n_products += 1 if block.ndim == 1 else block.shape[1]


def added_diagonals(total: Array, parts: Iterable[tuple[Operator, Array]]) -> Array | None:
    """``total``, a new array, plus diag(B' diag(weights) B) of every part; None where some entries are not known."""
    for operator, weights in parts:
        diagonal = operator.gram_diagonal(weights)
        if diagonal is None:
            return None
        total += diagonal
    return total


def as_row_indices(rows: Rows, n_rows: int) -> Index:
    """Indices 0..n_rows - 1 from a slice, a mask or indices (negative ones count from the end)."""
    try:
        return np.arange(n_rows)[rows if isinstance(rows, slice) else np.atleast_1d(np.asarray(rows))]
    except IndexError as error:
        raise InputError(f"rows must be a slice, a mask or indices below {n_rows}", str(error),
                         "Check the row numbers.") from error


def _by_unit_vectors(product: Any, chosen: Index, size: int, n_rows: int) -> Array:
    """Products with some unit vectors of that size, as columns."""
    values = np.empty((n_rows, len(chosen)))
    for columns in column_blocks(len(chosen), max(n_rows, size)):
        units = np.zeros((size, columns.stop - columns.start))
        units[chosen[columns], np.arange(units.shape[1])] = 1.0
        values[:, columns] = product(units)
    return values


class StoredOperator(Operator):
    """A matrix that is stored, and its transpose."""

    matrix: Any
    transpose: Any

    @abstractmethod
    def __init__(self, matrix: Any) -> None: ...

    def _times(self, U: Array) -> Array:
        return np.asarray(self.matrix @ U)

    def _transpose_times(self, W: Array) -> Array:
        return np.asarray(self.transpose @ W)

    def take(self, rows: Rows) -> Operator:
        return type(self)(self.matrix[as_row_indices(rows, self.shape[0])])

    @property
    def explicit(self) -> Any:
        return self.matrix


class DenseOperator(StoredOperator):
    """A dense array."""

    def __init__(self, matrix: Array) -> None:
        self.matrix, self.shape = np.ascontiguousarray(matrix), (matrix.shape[0], matrix.shape[1])
        self.transpose = self.matrix.T

    def gram_diagonal(self, gamma: Array) -> Array:
        return np.asarray(np.einsum("ij,ij,i->j", self.matrix, self.matrix, gamma))

    def row_norms_squared(self, scale: Array) -> Array:
        return np.asarray(np.einsum("ij,ij,j->i", self.matrix, self.matrix, scale))

    def gram(self, gamma: Array) -> Array:
        return DenseDesign(self.matrix).weighted_gram(gamma)

    def dense(self) -> Array:
        return np.asarray(self.matrix)


class SparseOperator(StoredOperator):
    """A scipy.sparse CSR matrix; its transpose is kept as CSR as well, because products with it are the faster ones."""

    def __init__(self, matrix: Any) -> None:
        self.matrix = matrix.tocsr()
        self.transpose = self.matrix.T.tocsr()
        self.shape = (self.matrix.shape[0], self.matrix.shape[1])

    def gram_diagonal(self, gamma: Array) -> Array:
        return np.asarray(with_data(self.transpose, np.square(self.transpose.data)) @ gamma)

    def row_norms_squared(self, scale: Array) -> Array:
        return np.asarray(with_data(self.matrix, np.square(self.matrix.data)) @ scale)

    def gram(self, gamma: Array) -> Array:
        D = self.shape[1]
        total = np.empty((D, D), order="F")
        scaled = times_rows(self.matrix, gamma)
        for some in slices(D, max(64, BLOCK_DOUBLES // D)):  # the matrix is symmetric: its columns are its rows
            total[:, some] = (self.transpose[some] @ scaled).toarray().T
        return total

    def coarse(self) -> Operator:
        return self if self.matrix.nnz < LARGE else self._single

    @cached_property
    def _single(self) -> "SingleOperator":
        return SingleOperator(self)

    def dense(self) -> Array:
        return np.asarray(self.matrix.toarray())


class SingleOperator(Operator):
    """A sparse matrix in single precision. Block products wait for memory: half the bytes, half the time."""

    def __init__(self, whole: SparseOperator) -> None:
        self._whole, self.shape = whole, whole.shape
        self._matrix, self._transpose = (with_data(matrix, matrix.data.astype(np.float32))
                                         for matrix in (whole.matrix, whole.transpose))

    def _times(self, U: Array) -> Array:
        return np.asarray(self._matrix @ U.astype(np.float32), dtype=np.float64)

    def _transpose_times(self, W: Array) -> Array:
        return np.asarray(self._transpose @ W.astype(np.float32), dtype=np.float64)

    def gram_diagonal(self, gamma: Array) -> Array:
        return self._whole.gram_diagonal(gamma)

    def row_norms_squared(self, scale: Array) -> Array:
        return self._whole.row_norms_squared(scale)

    def _count(self, block: Array, expected: int, name: str) -> None:
        self._whole._count(block, expected, name)


def stack_rows(matrices: Sequence[Any]) -> Any:
    """The matrices below each other, as CSR."""
    return scipy_sparse.vstack([scipy_sparse.csr_matrix(matrix) for matrix in matrices], format="csr")


class FunctionOperator(Operator):
    """A product and its adjoint, each for the columns of a matrix, as a ``LinearOperator`` has them; both are checked.

    Rows of a complex operator become real parts, then imaginary parts: B' w = Re(B^H (w_re + i w_im)).
    """

    def __init__(self, matmat: Callable[[Any], Any], rmatmat: Callable[[Any], Any], shape: tuple[int, int],
                 name: str, *, complex_values: bool = False) -> None:
        self._matmat, self._rmatmat, self._name = matmat, rmatmat, name
        self._complex, self._rows = complex_values, shape[0]
        self.shape = (2 * shape[0] if complex_values else shape[0], shape[1])

    def _times(self, U: Array) -> Array:
        values = self._checked(self._matmat(U if U.ndim == 2 else U[:, None]), self._rows, "matmat")
        if self._complex:
            values = np.concatenate([values.real, values.imag])
        return np.ascontiguousarray(values if U.ndim == 2 else values[:, 0], dtype=np.float64)

    def _transpose_times(self, W: Array) -> Array:
        block = W if W.ndim == 2 else W[:, None]
        if self._complex:
            block = block[: self._rows] + 1j * block[self._rows :]
        values = self._checked(self._rmatmat(block), self.shape[1], "rmatmat").real
        return np.ascontiguousarray(values if W.ndim == 2 else values[:, 0], dtype=np.float64)

    def _checked(self, values: Any, rows: int, product: str) -> Any:
        values = np.asarray(values)
        if values.ndim != 2 or values.shape[0] != rows:
            raise InputError(f"{product} of {self._name} must return {rows} rows", f"shape {values.shape}",
                             "Check the shape that the operator was given.")
        if np.iscomplexobj(values) and not self._complex and np.abs(values.imag).max(initial=0.0) > 0.0:
            raise InputError(f"{product} of {self._name} must be real, as its dtype says", "complex numbers",
                             "Give the operator dtype=complex, then its rows become pairs of real ones.")
        if not finite_sum(values) and not np.isfinite(values).all():
            where = tuple(int(i) for i in np.argwhere(~np.isfinite(values))[0])
            raise InputError(f"{product} of {self._name} must be finite", f"{values[where]} at index {where}",
                             "Check the operator for overflow and for division by zero.")
        return values


class StackedOperator(Operator):
    """Operators of equal width, one below the other."""

    def __init__(self, parts: Sequence[Operator]) -> None:
        self.parts = tuple(parts)
        self.shape = (sum(part.shape[0] for part in parts), parts[0].shape[1])
        self._ends = np.cumsum([part.shape[0] for part in parts])

    def _times(self, U: Array) -> Array:
        return np.concatenate([part.times(U) for part in self.parts])

    def _transpose_times(self, W: Array) -> Array:
        total = np.zeros((self.shape[1], *W.shape[1:]))
        for part, block in zip(self.parts, self._split(W), strict=True):
            total += part.transpose_times(block)
        return total

    def gram_diagonal(self, gamma: Array) -> Array | None:
        return added_diagonals(np.zeros(self.shape[1]), zip(self.parts, self._split(gamma), strict=True))

    def row_norms_squared(self, scale: Array) -> Array | None:
        norms = [part.row_norms_squared(scale) for part in self.parts]
        known = [part for part in norms if part is not None]
        return np.concatenate(known) if len(known) == len(norms) else None

    @property
    def explicit(self) -> Any | None:
        matrices: list[Any] = [part.explicit for part in self.parts]
        if any(matrix is None for matrix in matrices):
            return None
        if not any(hasattr(matrix, "tocsr") for matrix in matrices):
            return np.concatenate(matrices)
        return stack_rows(matrices)

    @property
    def leaves(self) -> list[Operator]:
        return [leaf for part in self.parts for leaf in part.leaves]

    def dense(self) -> Array:
        return np.concatenate([part.dense() for part in self.parts])

    def gram(self, gamma: Array) -> Array:
        total = np.zeros((self.shape[1], self.shape[1]), order="F")
        for part, weights in zip(self.parts, self._split(gamma), strict=True):
            total += part.gram(weights)
        return total

    def _split(self, rows: Array) -> list[Array]:
        return np.split(rows, self._ends[:-1])


class BlockedOperator(Operator):
    """Blocks of rows, one below the other, each read where it is multiplied: one pass for a product with B or B'GB.

    Parameters
    ----------
    blocks : sequence
        Matrices, paths of files that ``scipy.sparse.save_npz`` wrote, or functions that return a matrix.
    engine : object with ``map(function, items)``
        Where blocks are read: any ``concurrent.futures`` executor. Here unless given. Sums are taken in the order of
        the blocks, so the numbers are the same.

    Examples
    --------
    >>> import scipy.sparse
    >>> X = scipy.sparse.random(90, 20, density=0.2, random_state=0, format="csr")
    >>> B = BlockedOperator([X[:40], lambda: X[40:]])
    >>> B.shape, bool(np.allclose(B.normal_times(np.ones(90), np.ones(20)), X.T @ (X @ np.ones(20))))
    ((90, 20), True)
    """

    def __init__(self, blocks: Sequence[Any], engine: Any = None, *, ones: bool = False) -> None:
        self.blocks, self._engine, self._ones = tuple(blocks), engine, ones
        found = list(self._mapped("about", None, self.blocks))
        widths = sorted({width for _, width, _ in found})
        require(len(widths) == 1, "blocks of rows with equally many columns", widths or "no block",
                "Check how the blocks were written.")
        self._ends = np.cumsum([n for n, *_ in found])
        self.shape, self.nnz = (int(self._ends[-1]), widths[0]), sum(entries for *_, entries in found)

    def with_ones(self) -> "BlockedOperator":
        """The same with a column of ones at the end."""
        return BlockedOperator(self.blocks, self._engine, ones=True)

    def _mapped(self, what: str, shared: Any, own: Iterable[Any]) -> Iterable[Any]:
        work, items = partial(_product, what, self._ones, shared), zip(self.blocks, own, strict=True)
        return map(work, items) if self._engine is None else self._engine.map(work, items)

    def _summed(self, what: str, shared: Any, own: Array) -> Array:
        return np.asarray(sum(self._mapped(what, shared, np.split(own, self._ends[:-1]))))

    def _times(self, U: Array) -> Array:
        return np.concatenate(list(self._mapped("times", U, self.blocks)))

    def _transpose_times(self, W: Array) -> Array:
        return self._summed("transposed", None, W)

    def normal_times(self, weights: Array, U: Array) -> Array:
        self.n_products += 2 if U.ndim == 1 else 2 * U.shape[1]
        return self._summed("normal", U, weights if U.ndim == 1 else weights[:, None])

    def gram_diagonal(self, gamma: Array) -> Array:
        return self._summed("diagonal", None, gamma)

    def gram(self, gamma: Array) -> Array:
        return np.asfortranarray(self._summed("gram", None, gamma[:, None]))

    def row_norms_squared(self, scale: Array) -> Array:
        return np.concatenate(list(self._mapped("norms", scale, self.blocks)))


def _product(what: str, ones: bool, shared: Any, item: tuple[Any, Any]) -> Any:
    """What one block adds, read here; ``own`` is its share of a vector over all rows."""
    block, own = item
    X = block() if callable(block) else scipy_sparse.load_npz(block) if isinstance(block, str | PathLike) else block
    X = scipy_sparse.csr_array(X, dtype=np.float64)
    if ones:
        X = scipy_sparse.hstack([X, np.ones((X.shape[0], 1))], format="csr")
    if what == "about":
        check_finite_csr(X, "a block")
        return *X.shape, X.nnz
    if what == "gram":
        return (X.T @ X.multiply(own)).toarray()
    if what in ("times", "normal"):
        product = X @ shared
        return product if what == "times" else X.T @ (own * product)
    X = X if what == "transposed" else X.power(2)
    return X @ shared if what == "norms" else X.T @ own
