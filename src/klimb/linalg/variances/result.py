"""What an estimator of variances or of a log-determinant returns."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from klimb.linalg.krylov.preconditioners import Preconditioner
from klimb.linalg.operators.base import Operator
from klimb.numerics.arrays import Array

MEDIAN_OF_NORMAL = 0.6745  # |x| is below this half of the time, x standard normal


@final
@dataclass(frozen=True, eq=False)
class Variances:
    """diag(B A^-1 B'), one value per row of B, none of them negative.

    ``error`` is the standard error of each value (zero where exact, the distance of the bounds for "lanczos").
    ``lower`` and ``upper`` are certain bounds where ``certain``, otherwise ends of a 95% interval. ``reached``: the
    median relative error is believed to be within the accuracy that was asked for. What the estimate had to find out on
    its way is kept where there is such: ``log_det`` of A, a good ``preconditioner`` of A, and ``memory``, which makes a
    later call with a nearby A (``previous``) cheaper and its noise the same.
    """

    value: Array
    error: Array
    lower: Array
    upper: Array
    method: str
    exact: bool
    certain: bool
    reached: bool
    n_products: int
    memory: Any = None
    log_det: LogDet | None = None
    preconditioner: Preconditioner | None = None

    @property
    def relative_error(self) -> float:
        """The median over the rows of the relative error, as far as it is known."""
        return median_relative_error(self.value, self.error, normal=self.method != "lanczos")


@final
@dataclass(frozen=True, eq=False)
class LogDet:
    """log det(A) with its standard error (zero where ``exact``)."""

    value: float
    error: float
    exact: bool
    n_products: int


def median_relative_error(value: Array, error: Array, *, normal: bool = True) -> float:
    """Half of the rows have a smaller relative error: from standard errors (``normal``) or from widths of bounds."""
    ratio = np.divide(error, value, out=np.zeros_like(error), where=value > 0.0)
    return float(np.median(ratio)) * (MEDIAN_OF_NORMAL if normal else 1.0)


@final
class ProductCount:
    """Counts single-vector products with any of some operators, each operator once."""

    def __init__(self, operators: Iterable[Operator]) -> None:
        self._operators = list({id(operator): operator for operator in operators}.values())
        self._start = self._total()

    def _total(self) -> int:
        return sum(operator.n_products for operator in self._operators)

    @property
    def spent(self) -> int:
        """Products since this count began."""
        return self._total() - self._start
