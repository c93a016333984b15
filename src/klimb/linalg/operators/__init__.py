"""Matrices that are only ever multiplied with: dense, sparse, a function and its adjoint, or a stack of such."""

from klimb.linalg.operators.base import Operator, SelectedRows
from klimb.linalg.operators.convert import as_operator, as_real_pairs
from klimb.linalg.operators.explicit import DenseOperator, SparseOperator
from klimb.linalg.operators.implicit import FunctionOperator, StackedOperator

__all__ = ["DenseOperator", "FunctionOperator", "Operator", "SelectedRows", "SparseOperator", "StackedOperator",
           "as_operator", "as_real_pairs"]
