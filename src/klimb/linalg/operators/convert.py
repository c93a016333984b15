"""From what users have (arrays, sparse matrices, LinearOperators, lists of those) to an `Operator`, with its checks."""

from typing import Any

import numpy as np

from klimb.errors import InputError, require
from klimb.linalg.matrix import check_not_empty
from klimb.linalg.operators.base import (
    DenseOperator,
    FunctionOperator,
    Operator,
    SparseOperator,
    StackedOperator,
    stack_rows,
)
from klimb.numerics.arrays import Array, as_float, check_finite, check_finite_csr

ADJOINT_TOLERANCE = {"double": 1e-9, "single": 1e-5}  # of |w'(B u) - u'(B' w)|, relative to |w| |B u| and |u| |B' w|
ADJOINT_TRIALS = 2


def as_operator(X: Any, name: str) -> Operator:
    """A checked real operator from an array, a scipy.sparse matrix, a ``LinearOperator``, or a list of those (a stack).

    Complex ones act on real vectors and become real: their real parts, then their imaginary parts, as rows.

    >>> B = as_operator([[[1.0, 2.0]], [[3.0, 4.0], [5.0, 6.0]]], "B")
    >>> B.shape, B.times(np.array([1.0, -1.0]))
    ((3, 2), array([-1., -1., -1.]))
    """
    if isinstance(X, Operator):
        return X
    if hasattr(X, "tocsr"):
        return _sparse(X, name)
    if hasattr(X, "rmatvec") and hasattr(X, "shape"):
        return _linear_operator(X, name)
    if isinstance(X, (list, tuple)) and X and (not _is_numbers(X) or all(np.ndim(part) == 2 for part in X)):
        return _stack(X, name)
    values = X if isinstance(X, np.ndarray) else np.asarray(_as_array(X, name))
    if np.iscomplexobj(values):
        values = as_real_pairs(np.atleast_1d(values))
    values = as_float(values, name, ndim=2)
    check_not_empty(values.shape, name)
    return DenseOperator(values)


def as_real_pairs(values: Any) -> Any:
    """Real parts, then imaginary parts, along the first axis: how complex rows and measurements become real ones."""
    return np.concatenate([np.real(values), np.imag(values)])


def _sparse(X: Any, name: str) -> Operator:
    matrix = X.tocsr()
    if np.iscomplexobj(matrix.data):
        matrix = stack_rows([matrix.real, matrix.imag])
    if matrix.dtype != np.float64:
        matrix = matrix.astype(np.float64)
    if not matrix.has_canonical_format:
        matrix = matrix.copy() if matrix is X else matrix
        matrix.sum_duplicates()
    check_not_empty(matrix.shape, name)
    check_finite_csr(matrix, name)
    return SparseOperator(matrix)


def _linear_operator(X: Any, name: str) -> Operator:
    stored = getattr(X, "A", None)
    if isinstance(stored, np.ndarray) or hasattr(stored, "tocsr"):
        return as_operator(stored, name)
    check_not_empty(X.shape, name)
    dtype = np.dtype(X.dtype if X.dtype is not None else np.float64)
    operator = FunctionOperator(X.matmat, X.rmatmat, (int(X.shape[0]), int(X.shape[1])), name,
                                complex_values=dtype.kind == "c")
    single = dtype in (np.dtype(np.float32), np.dtype(np.complex64))
    check_adjoint(operator, name, ADJOINT_TOLERANCE["single" if single else "double"])
    operator.n_products = 0
    return operator


def check_adjoint(operator: Operator, name: str, tolerance: float = ADJOINT_TOLERANCE["double"]) -> None:
    """An `InputError` unless w'(B u) = u'(B'w) for random u and w, up to rounding."""
    rng = np.random.default_rng(0)
    for _ in range(ADJOINT_TRIALS):
        u, w = rng.standard_normal(operator.shape[1]), rng.standard_normal(operator.shape[0])
        forward = operator.times(u)
        try:
            back = operator.transpose_times(w)
        except (NotImplementedError, TypeError) as error:  # scipy raises either where there is no rmatvec
            raise InputError(f"{name} must offer products with its transpose", f"{type(error).__name__}: {error}",
                             "Define rmatvec (the adjoint) of the LinearOperator as well.") from error
        check_finite(forward, f"a product with {name}")
        check_finite(back, f"a product with the transpose of {name}")
        left, right = float(w @ forward), float(u @ back)
        scale = float(np.linalg.norm(w) * np.linalg.norm(forward) + np.linalg.norm(u) * np.linalg.norm(back))
        require(abs(left - right) <= tolerance * scale,
                f"the rmatvec of {name} must be the adjoint of its matvec (w'(B u) = u'(B'w))",
                f"{left:.10g} and {right:.10g} for random u and w",
                "Check the adjoint: a conjugate, a flip, a boundary or a scale is often missing. Operators that work "
                "in single precision should say dtype=float32.")


def _stack(parts: Any, name: str) -> Operator:
    operators = [as_operator(part, f"{name}[{k}]") for k, part in enumerate(parts)]
    widths = [operator.shape[1] for operator in operators]
    require(len(set(widths)) <= 1, f"the parts of {name} must have equally many columns", widths,
            "Each part multiplies the same weights.")
    if len(operators) == 1:
        return operators[0]
    if all(isinstance(operator, SparseOperator) for operator in operators):
        return SparseOperator(stack_rows([operator.explicit for operator in operators]))
    if all(isinstance(operator, DenseOperator) for operator in operators):
        return DenseOperator(np.concatenate([operator.dense() for operator in operators]))
    return StackedOperator(operators)


def _is_numbers(X: Any) -> bool:
    """Whether a list is a plain matrix (rows of numbers) rather than a list of matrices."""
    try:
        return all(isinstance(row, (list, tuple, np.ndarray)) and np.ndim(row) == 1 for row in X)
    except ValueError:  # ragged
        return False


def _as_array(X: Any, name: str) -> Array:
    try:
        array = np.asarray(X)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must be a matrix", f"{type(X).__name__} ({error})",
                         "Pass an array, a scipy.sparse matrix, a LinearOperator or a list of those.") from error
    if array.dtype.kind not in "biufc":
        raise InputError(f"{name} must be a matrix of numbers", f"{type(X).__name__} with entries {array.dtype}",
                         "Pass an array, a scipy.sparse matrix, a LinearOperator or a list of those.")
    return array
