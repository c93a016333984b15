"""A as a dense D x D matrix, by Cholesky."""

from __future__ import annotations

from typing import Any, final

import numpy as np

from klimb.errors import NotPositiveDefiniteError
from klimb.linalg.factors.base import Factorisation
from klimb.linalg.normal_matrix import NormalMatrix
from klimb.linalg.operators.base import BLOCK_DOUBLES, Operator, as_row_indices
from klimb.numerics.arrays import Array
from klimb.numerics.dense import cholesky, log_det_from_cholesky
from klimb.numerics.threads import threads_for

PAIRS_AT_A_TIME = 2**20
GATHER_COST = 100  # flops of a dense product that one gathered entry of the covariance costs
CANCELLED = 1e-7  # b'Vb over (sum_j |b_j| sd_j)^2 below which the sum of pairs has lost too many digits


@final
class PrimalFactorisation(Factorisation):
    """Cholesky of A itself; A is scaled to unit diagonal first, so that scales of weights do no harm."""

    def __init__(self, A: NormalMatrix) -> None:
        with threads_for(A.size):
            dense = A.dense()
            diagonal = dense.diagonal()
            if not (diagonal > 0.0).all():
                raise NotPositiveDefiniteError(f"the diagonal has {diagonal.min():.6g}")
            self._scale = 1.0 / np.sqrt(diagonal)
            dense *= self._scale
            dense *= self._scale[:, None]
            self._lower = cholesky(dense)
        self.log_det = log_det_from_cholesky(self._lower) - 2.0 * float(np.log(self._scale).sum())
        self._covariance: Array | None = None

    def solve(self, rhs: Array) -> Array:
        from scipy.linalg.lapack import dpotrs

        scale = self._scale if rhs.ndim == 1 else self._scale[:, None]
        return np.asarray(dpotrs(self._lower, scale * rhs, lower=1)[0] * scale)

    def variances(self, B: Operator) -> Array:
        matrix: Any = B.explicit
        if matrix is None:
            matrix = B.dense()
        with threads_for(len(self._scale)):
            if hasattr(matrix, "tocsr"):
                pairs = float((np.diff(matrix.indptr).astype(float) ** 2).sum())
                if GATHER_COST * pairs < float(matrix.shape[0]) * matrix.shape[1] ** 2:
                    return self._by_pairs(matrix)
            return self._by_solves(matrix)

    def _by_solves(self, matrix: Any) -> Array:
        """|L^-1 S b_i|^2, S the scale."""
        from scipy.linalg.blas import dtrsm

        N, D = matrix.shape
        values = np.empty(N)
        step = max(64, BLOCK_DOUBLES // D)
        for begin in range(0, N, step):
            block = matrix[begin : begin + step]
            rows = np.asarray(block.toarray() if hasattr(block, "toarray") else block) * self._scale
            half = dtrsm(1.0, self._lower, rows.T, lower=1)
            np.einsum("ji,ji->i", half, half, out=values[begin : begin + step])
        return values

    def _by_pairs(self, matrix: Any) -> Array:
        """sum_jk b_ij b_ik V_jk over the nonzeros of each row, rows with equally many of them together."""
        V = self._scaled_covariance()
        counts = np.diff(matrix.indptr)
        values, bound = np.zeros(matrix.shape[0]), np.zeros(matrix.shape[0])
        sd = np.sqrt(V.diagonal())
        for count in np.unique(counts[counts > 0]):
            rows = np.flatnonzero(counts == count)
            step = max(1, PAIRS_AT_A_TIME // int(count) ** 2)
            for begin in range(0, len(rows), step):
                chosen = rows[begin : begin + step]
                entries = matrix.indptr[chosen][:, None] + np.arange(count)
                index = matrix.indices[entries]
                b = matrix.data[entries] * self._scale[index]
                block = V[index[:, :, None], index[:, None, :]]
                values[chosen] = np.einsum("nj,njk,nk->n", b, block, b, optimize=True)
                bound[chosen] = (np.abs(b) * sd[index]).sum(axis=1) ** 2
        lost = np.flatnonzero(values < CANCELLED * bound)
        if len(lost):
            values[lost] = self._by_solves(matrix[as_row_indices(lost, matrix.shape[0])])
        return values

    def _scaled_covariance(self) -> Array:
        from scipy.linalg.lapack import dpotri

        if self._covariance is None:
            lower, info = dpotri(self._lower, lower=1)
            if info != 0:
                raise NotPositiveDefiniteError(f"the factor has a zero at {info - 1}")
            lower += np.tril(lower, -1).T
            self._covariance = np.asarray(lower)
        return self._covariance
