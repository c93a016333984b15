"""M = the sparse part of A, factorised, plus the diagonal of the rest.

For pictures seen through a transform or a blur: the gradients' part of A is a sparse matrix, the measurements' part is
not, but its diagonal is known. Where gamma is large, as it is wherever a picture is flat, the sparse part is most of A,
and diag(A) alone would take hundreds of iterations.
"""

from __future__ import annotations

from functools import cached_property
from typing import final

from klimb.errors import NotPositiveDefiniteError
from klimb.linalg.factors.levels import LevelFactorisation, Levels
from klimb.linalg.factors.selection import MEMORY, levels_plan
from klimb.linalg.krylov.preconditioners import SurrogateMatrix
from klimb.linalg.normal_matrix import NormalMatrix
from klimb.linalg.operators import Operator, SparseOperator
from klimb.numerics.arrays import Array

AFFORDABLE = 10.0  # seconds that its factorisation may take: it serves a block of systems of several hundred iterations


@final
class SparsePart(SurrogateMatrix):
    """M as a precision of its own, block tridiagonal in the ``levels`` of its graph."""

    def __init__(self, M: NormalMatrix, levels: Levels) -> None:
        diagonal = M.diagonal()
        assert diagonal is not None
        self.size, self.diagonal = M.size, diagonal
        self._factor = LevelFactorisation(M, levels)
        self.log_det = self._factor.log_det

    def solve(self, R: Array) -> Array:
        return self._factor.solve(R)

    def factor_times(self, noise: Array) -> Array:
        return self._factor.factor_times(noise)

    def variances(self, B: Operator) -> tuple[Array, Array] | None:
        base = B.row_norms_squared(1.0 / self.diagonal) if isinstance(B, SparseOperator) else None
        return None if base is None else (self._factor.variances(B), base)

    @cached_property
    def _inverse_diagonal(self) -> Array:
        from scipy.sparse import eye_array

        return self._factor.variances(SparseOperator(eye_array(self.size, format="csr")))

    @property
    def inverse_diagonal(self) -> Array:
        return self._inverse_diagonal


def sparse_part(A: NormalMatrix) -> SparsePart | None:
    """M for this A; None where no part of A is sparse, all of it is, or factorising it takes seconds."""
    sparse = [(operator, weights) for operator, weights in A.parts if isinstance(operator, SparseOperator)]
    others = [(operator, weights) for operator, weights in A.parts if not isinstance(operator, SparseOperator)]
    rest = A.shift.copy()
    for operator, weights in others:
        diagonal = operator.gram_diagonal(weights)
        if diagonal is None:
            return None
        rest += diagonal
    if not sparse or not others:
        return None
    M = NormalMatrix(rest, sparse)
    plan = levels_plan(M)
    if plan is None or plan.levels is None or plan.bytes > MEMORY // 4 or plan.seconds > AFFORDABLE:
        return None
    try:
        return SparsePart(M, plan.levels)
    except NotPositiveDefiniteError:  # a flat direction that only the others determine, lost to rounding
        return None
