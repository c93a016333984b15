"""A = diag(d) + B' G B through the N x N matrix I + G^1/2 B d^-1 B' G^1/2: fewer rows than weights."""

from __future__ import annotations

from typing import Any, final

import numpy as np

from klimb.errors import NotPositiveDefiniteError
from klimb.numerics.arrays import Array
from klimb.numerics.dense import cholesky, log_det_from_cholesky
from klimb.numerics.factors.base import Factorisation
from klimb.numerics.normal_matrix import NormalMatrix
from klimb.numerics.operators import StackedOperator
from klimb.numerics.operators.base import BLOCK_DOUBLES, Operator
from klimb.numerics.threads import threads_for

CANCELLED = 1e-6  # of the prior variance below which what is left after subtraction is computed in another way
REFINEMENTS = 2


@final
class DualFactor(Factorisation):
    """Woodbury's form. Needs a positive ``shift`` and no negative weight."""

    def __init__(self, A: NormalMatrix) -> None:
        if not A.positive or A.shift.min() <= 0.0:
            raise NotPositiveDefiniteError("the dual form needs a positive diagonal and positive weights")
        self._A = A
        self._rows = A.operators[0] if len(A.parts) == 1 else StackedOperator(A.operators)
        self._weights = np.concatenate([weights for _, weights in A.parts])
        self._matrix = _stored(self._rows)
        self._root = np.sqrt(self._weights)
        N = len(self._root)
        with threads_for(N):
            inner = np.asfortranarray(_product(self._matrix, 1.0 / A.shift, self._matrix))
            self._prior = inner.diagonal().copy()
            inner *= self._root
            inner *= self._root[:, None]
            inner.flat[:: N + 1] += 1.0
            self._lower = cholesky(inner)
        self.log_det = log_det_from_cholesky(self._lower) + float(np.log(A.shift).sum())

    def solve(self, rhs: Array) -> Array:
        """A^-1 r = d^-1 (r - B' G^1/2 M^-1 G^1/2 B d^-1 r)."""
        from scipy.linalg.lapack import dpotrs

        shift, root = (self._A.shift, self._root) if rhs.ndim == 1 else (self._A.shift[:, None], self._root[:, None])
        inner = dpotrs(self._lower, root * self._rows.times(rhs / shift), lower=1)[0]
        return np.asarray((rhs - self._rows.transpose_times(root * inner)) / shift)

    def variances(self, B: Operator) -> Array:
        with threads_for(len(self._root)):
            begin = 0
            for operator in self._A.operators:
                end = begin + operator.shape[0]
                if operator is B:
                    return self._own(begin, end)
                begin = end
            return self._others(B)

    def _own(self, begin: int, end: int) -> Array:
        """v_i = (1 - (M^-1)_ii) / g_i where g_i k_ii > 1; k_ii - |L^-1 G^1/2 k_i|^2 elsewhere: more digits."""
        gain = self._weights[begin:end] * self._prior[begin:end]
        values = np.empty(end - begin)
        strong = np.flatnonzero(gain > 1.0)
        if len(strong):
            inverse = np.empty(len(strong))
            for block in _blocks(len(strong), len(self._root)):
                units = np.zeros((len(self._root), len(strong[block])), order="F")
                units[begin + strong[block], np.arange(units.shape[1])] = 1.0
                inverse[block] = self._half_norms(units)
            values[strong] = (1.0 - inverse) / self._weights[begin + strong]
        weak = np.flatnonzero(gain <= 1.0)
        if len(weak):
            values[weak] = self._subtracted(self._matrix[begin + weak])
        return values

    def _others(self, B: Operator) -> Array:
        return self._subtracted(_stored(B))

    def _subtracted(self, matrix: Any) -> Array:
        """k_ii - |L^-1 G^1/2 B d^-1 b_i|^2, no lower than what rounding can tell from zero."""
        values = np.empty(matrix.shape[0])
        for block in _blocks(matrix.shape[0], max(len(self._root), matrix.shape[1])):
            rows = matrix[block]
            squares = rows.multiply(rows) if hasattr(rows, "multiply") else rows * rows
            prior = np.asarray(squares @ (1.0 / self._A.shift)).ravel()
            cross = _product(self._matrix, 1.0 / self._A.shift, rows)
            taken = self._half_norms(np.asfortranarray(self._root[:, None] * cross))
            left = np.maximum(prior - taken, np.finfo(float).eps * prior)
            lost = np.flatnonzero(left < CANCELLED * prior)
            if len(lost):
                left[lost] = self._refined(rows[lost])
            values[block] = left
        return values

    def _refined(self, rows: Any) -> Array:
        """b'A^-1 b by solving, with the residual solved for again: where a difference has lost its digits."""
        b = np.ascontiguousarray((rows.toarray() if hasattr(rows, "toarray") else rows).T)
        x = self.solve(b)
        for _ in range(REFINEMENTS):
            x += self.solve(b - self._A.times(x))
        return np.asarray(np.maximum(np.einsum("ij,ij->j", b, x), 0.0))

    def _half_norms(self, columns: Array) -> Array:
        """|L^-1 c|^2 for each column c."""
        from scipy.linalg.blas import dtrsm

        half = dtrsm(1.0, self._lower, columns, lower=1, overwrite_b=1)
        return np.asarray(np.einsum("ij,ij->j", half, half))


def _stored(operator: Operator) -> Any:
    matrix = operator.explicit
    return operator.dense() if matrix is None else matrix


def _blocks(count: int, width: int) -> list[slice]:
    step = max(64, BLOCK_DOUBLES // width)
    return [slice(begin, min(begin + step, count)) for begin in range(0, count, step)]


def _product(left: Any, scale: Array, right: Any) -> Array:
    """left diag(scale) right' as a dense array; either may be sparse."""
    if hasattr(left, "multiply") and hasattr(right, "multiply"):
        return np.asarray((left.multiply(scale).tocsr() @ right.T).toarray())
    if hasattr(right, "multiply"):
        return np.asarray((right @ (left * scale).T).T)
    return np.asarray(left @ (right * scale).T)
