"""Matrices that are only ever multiplied with: dense, sparse, a function and its adjoint, or a stack of such."""

from klimb.linalg.operators.base import BlockedOperator, DenseOperator, Operator, SparseOperator, StackedOperator
from klimb.linalg.operators.convert import as_operator, as_real_pairs

__all__ = ["BlockedOperator", "DenseOperator", "Operator", "SparseOperator", "StackedOperator", "as_operator",
           "as_real_pairs"]
