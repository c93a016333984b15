"""Sparse A by multifrontal Cholesky, with the entries of its inverse that rows of B need."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, final

import numpy as np

from klimb.errors import NotPositiveDefiniteError
from klimb.linalg.factors.dense import Factorisation
from klimb.linalg.matrix import with_data
from klimb.linalg.normal_matrix import NormalMatrix
from klimb.linalg.operators.base import Operator, SparseOperator
from klimb.linalg.sparse_cholesky import SymbolicCholesky
from klimb.numerics.arrays import Array
from klimb.numerics.lazy import scipy_sparse


def sparse_pattern(A: NormalMatrix) -> Any | None:
    """Where A may have entries, as CSC of ones; None where an operator is not stored as a sparse matrix."""
    total: Any = scipy_sparse.eye_array(A.size, format="csr")
    for operator in A.operators:
        if not isinstance(operator, SparseOperator):
            return None
        ones = with_data(operator.matrix, np.ones_like(operator.matrix.data))
        total = total + ones.T @ ones
    return total.tocsc().sorted_indices()


def analysed(pattern: Any) -> SymbolicCholesky:
    """The analysis of a pattern; the last few are kept, since weights change more often than patterns."""
    return _analysed(pattern.indptr.tobytes(), pattern.indices.tobytes(), pattern.indices.dtype.str, pattern.shape[0])


@lru_cache(maxsize=4)
def _analysed(indptr: bytes, indices: bytes, dtype: str, size: int) -> SymbolicCholesky:
    places = np.frombuffer(indices, dtype)
    entries = (np.ones(len(places)), places, np.frombuffer(indptr, dtype))
    return SymbolicCholesky(scipy_sparse.csc_array(entries, shape=(size, size)))


@final
class SparseFactorisation(Factorisation):
    """Cholesky of A scaled to unit diagonal, whose pattern was analysed before."""

    def __init__(self, A: NormalMatrix, symbolic: SymbolicCholesky) -> None:
        diagonal = A.diagonal()
        if diagonal is None or not (diagonal > 0.0).all():
            raise NotPositiveDefiniteError("the diagonal is not positive")
        self._A, self._scale = A, 1.0 / np.sqrt(diagonal)
        self._pattern = symbolic.pattern
        self._factor = symbolic.factor(self._entries())
        self.log_det = self._factor.logdet - 2.0 * float(np.log(self._scale).sum())

    def _entries(self) -> Array:
        """The scaled A in the order of the pattern, which may have places where A has nothing."""
        total: Any = scipy_sparse.diags_array(self._A.shift, format="csc")
        for operator, weights in self._A.parts:
            assert isinstance(operator, SparseOperator)
            total = total + operator.sparse_gram(weights)
        total = total.tocsc().sorted_indices()
        size, nodes = len(self._scale), np.arange(len(self._scale), dtype=np.int64)
        columns, known = (np.repeat(nodes, np.diff(matrix.indptr)) for matrix in (total, self._pattern))
        places = np.searchsorted(known * size + self._pattern.indices, columns * size + total.indices)
        values = np.zeros(len(known))
        values[places] = total.data * self._scale[total.indices] * self._scale[columns]
        return values

    def solve(self, rhs: Array) -> Array:
        scale = self._scale if rhs.ndim == 1 else self._scale[:, None]
        return self._factor.solve(scale * rhs) * scale

    def factor_times(self, noise: Array) -> Array:
        """R noise, A = R R': for noise of unit covariance, draws with covariance A."""
        scale = self._scale if noise.ndim == 1 else self._scale[:, None]
        return self._A.times(scale * self._factor.root_solve(noise))

    def variances(self, B: Operator) -> Array:
        """b'Z b from the entries of Z = A^-1 within the pattern; rows that need others are solved for."""
        if not isinstance(B, SparseOperator):
            return self._by_solves(B)
        matrix, inverse = with_data(B.matrix, B.matrix.data * self._scale[B.matrix.indices]), self._pattern.copy()
        inverse.data = self._factor.inverse_entries()
        ones = with_data(matrix, np.ones_like(matrix.data))
        values = _row_sums(matrix @ inverse, matrix)
        other = np.flatnonzero(_row_sums(ones @ self._pattern, ones) < np.diff(matrix.indptr).astype(float) ** 2)
        if len(other):
            values[other] = self._by_solves(B.take(other))
        return values

    def _by_solves(self, B: Operator) -> Array:
        values = np.empty(B.shape[0])
        for begin in range(0, B.shape[0], 256):
            rows = B.take(slice(begin, begin + 256)).dense()
            values[begin : begin + 256] = np.einsum("ij,ji->i", rows, self.solve(np.ascontiguousarray(rows.T)))
        return values


def _row_sums(left: Any, right: Any) -> Array:
    """sum_j left_ij right_ij of two sparse matrices."""
    return np.asarray(left.multiply(right).sum(axis=1), dtype=np.float64).ravel()
