"""Operators that are stored: dense arrays, and scipy.sparse matrices with their transpose."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, final

import numpy as np

from klimb.linalg.matrix import DenseDesign
from klimb.linalg.operators.base import BLOCK_DOUBLES, Operator, Rows, as_row_indices
from klimb.numerics.arrays import Array

LARGE = 100_000  # nonzeros from which products in single precision pay
ROWS_AT_A_TIME = 4096  # of a dense matrix, when it has to be scaled or squared


@final
class DenseOperator(Operator):
    """A dense array."""

    def __init__(self, values: Array) -> None:
        self.values = np.ascontiguousarray(values)
        self.shape = (values.shape[0], values.shape[1])

    def _times(self, U: Array) -> Array:
        return np.asarray(self.values @ U)

    def _transpose_times(self, W: Array) -> Array:
        return np.asarray(self.values.T @ W)

    def gram_diagonal(self, gamma: Array) -> Array:
        total = np.zeros(self.shape[1])
        for rows in self._blocks():
            total += gamma[rows] @ self.values[rows] ** 2
        return total

    def row_norms_squared(self, scale: Array) -> Array:
        norms = np.empty(self.shape[0])
        for rows in self._blocks():
            norms[rows] = self.values[rows] ** 2 @ scale
        return norms

    def gram(self, gamma: Array) -> Array:
        return DenseDesign(self.values).weighted_gram(gamma)

    def take(self, rows: Rows) -> DenseOperator:
        return DenseOperator(self.values[as_row_indices(rows, self.shape[0])])

    @property
    def explicit(self) -> Array:
        return self.values

    def dense(self) -> Array:
        return self.values

    def _blocks(self) -> list[slice]:
        return [slice(begin, begin + ROWS_AT_A_TIME) for begin in range(0, self.shape[0], ROWS_AT_A_TIME)]


@final
class SparseOperator(Operator):
    """A scipy.sparse CSR matrix; its transpose is kept as CSR as well, because products with it are the faster ones."""

    def __init__(self, matrix: Any) -> None:
        self.matrix = matrix.tocsr()
        self.transpose = self.matrix.T.tocsr()
        self.shape = (self.matrix.shape[0], self.matrix.shape[1])

    def _times(self, U: Array) -> Array:
        return np.asarray(self.matrix @ U)

    def _transpose_times(self, W: Array) -> Array:
        return np.asarray(self.transpose @ W)

    def gram_diagonal(self, gamma: Array) -> Array:
        return np.asarray(_squared(self.transpose) @ gamma)

    def row_norms_squared(self, scale: Array) -> Array:
        return np.asarray(_squared(self.matrix) @ scale)

    def gram(self, gamma: Array) -> Array:
        D = self.shape[1]
        total = np.empty((D, D), order="F")
        scaled = self._scaled(gamma)
        step = max(64, BLOCK_DOUBLES // D)
        for begin in range(0, D, step):  # the matrix is symmetric: its columns are its rows
            total[:, begin : begin + step] = (self.transpose[begin : begin + step] @ scaled).toarray().T
        return total

    def sparse_gram(self, gamma: Array) -> Any:
        """B' diag(gamma) B as a scipy.sparse CSR matrix."""
        return self.transpose @ self._scaled(gamma)

    def _scaled(self, gamma: Array) -> Any:
        from scipy.sparse import csr_matrix

        weights = np.repeat(gamma, np.diff(self.matrix.indptr))
        return csr_matrix((self.matrix.data * weights, self.matrix.indices, self.matrix.indptr), self.shape)

    def take(self, rows: Rows) -> SparseOperator:
        return SparseOperator(self.matrix[as_row_indices(rows, self.shape[0])])

    def coarse(self) -> Operator:
        return self if self.matrix.nnz < LARGE else self._single

    @cached_property
    def _single(self) -> SingleOperator:
        return SingleOperator(self)

    @property
    def explicit(self) -> Any:
        return self.matrix

    def dense(self) -> Array:
        return np.asarray(self.matrix.toarray())


@final
class SingleOperator(Operator):
    """A sparse matrix in single precision. Block products wait for memory: half the bytes, half the time."""

    def __init__(self, whole: SparseOperator) -> None:
        self._whole, self.shape = whole, whole.shape
        self._matrix, self._transpose = _single(whole.matrix), _single(whole.transpose)

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


def _single(matrix: Any) -> Any:
    """The matrix in single precision; the positions are shared."""
    from scipy.sparse import csr_matrix

    return csr_matrix((matrix.data.astype(np.float32), matrix.indices, matrix.indptr), matrix.shape)


def _squared(matrix: Any) -> Any:
    """The matrix of squares; the positions are shared."""
    from scipy.sparse import csr_matrix

    return csr_matrix((np.square(matrix.data), matrix.indices, matrix.indptr), matrix.shape)


def stack_rows(matrices: Sequence[Any]) -> Any:
    """The matrices below each other, as CSR."""
    from scipy.sparse import csr_matrix, vstack

    rows: list[Any] = [csr_matrix(matrix) for matrix in matrices]
    return vstack(rows, format="csr")
