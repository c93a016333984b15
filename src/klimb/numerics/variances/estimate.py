"""One entrance for all estimators of variances and log-determinants."""

from __future__ import annotations

import numpy as np

from klimb.errors import InputError
from klimb.numerics.factors import cheapest_plan, factorise
from klimb.numerics.normal_matrix import NormalMatrix
from klimb.numerics.operators.base import Operator
from klimb.numerics.variances.result import LogDet, ProductCount, Variances
from klimb.numerics.variances.sampling import sample

METHODS = ("auto", "exact", "sampling")
BUDGET = 4000  # products, unless told otherwise
AFFORDABLE = 2.0  # seconds that an exact answer may take before estimates are considered


def estimate(A: NormalMatrix, B: Operator, *, method: str = "auto", accuracy: float = 0.01, seed: int = 0,
             previous: Variances | None = None, budget: int | None = None) -> Variances:
    """diag(B A^-1 B') with an error for each of its values.

    ``accuracy`` is the median relative error to aim for and ``budget`` the most single-vector products with the
    operators to spend on it; the result says whether it was ``reached``. Equal seeds give equal answers.

    >>> from klimb.numerics.operators import as_operator
    >>> B = as_operator([[1.0, 0.0], [1.0, 1.0]], "B")
    >>> found = estimate(NormalMatrix(np.ones(2), [(B, np.ones(2))]), B)
    >>> found.value, found.method, found.exact
    (array([0.4, 0.6]), 'exact', True)
    """
    _check(A, B, method, accuracy)
    limit = BUDGET if budget is None else budget
    memory = None if previous is None else previous.memory
    if method == "exact" or (method == "auto" and cheapest_plan(A, B).seconds <= AFFORDABLE):
        return _exact(A, B)
    return sample(A, B, accuracy=accuracy, budget=limit, seed=seed, previous=memory)


def log_det(A: NormalMatrix, *, seed: int = 0) -> LogDet:
    """log det(A)."""
    count = ProductCount(A.operators)
    return LogDet(factorise(A).log_det, 0.0, True, count.spent)


def _exact(A: NormalMatrix, B: Operator) -> Variances:
    count = ProductCount((*A.operators, B))
    factor = factorise(A, cheapest_plan(A, B))
    value = np.maximum(factor.variances(B), 0.0)
    return Variances(value, np.zeros_like(value), value, value, "exact", True, True, True, count.spent)


def _check(A: NormalMatrix, B: Operator, method: str, accuracy: float) -> None:
    if method not in METHODS:
        raise InputError(f"method must be one of {', '.join(METHODS)}", repr(method), "'auto' chooses by cost.")
    if B.shape[1] != A.size:
        raise InputError(f"B must have {A.size} columns, as A has rows", f"shape {B.shape}",
                         "Check that B multiplies the weights that A belongs to.")
    if not 0.0 < accuracy < 1.0:
        raise InputError("accuracy must be between 0 and 1", f"{accuracy}", "0.01 asks for 1% median relative error.")
