"""What an exact factorisation of a precision A offers."""

from __future__ import annotations

from abc import ABC, abstractmethod

from klimb.linalg.operators.base import Operator
from klimb.numerics.arrays import Array


class Factorisation(ABC):
    """A = R R' in some form."""

    log_det: float  # log det(A)

    @abstractmethod
    def solve(self, rhs: Array) -> Array:
        """A^-1 rhs for a vector (D,) or for the columns of a matrix (D, k)."""

    @abstractmethod
    def variances(self, B: Operator) -> Array:
        """diag(B A^-1 B')."""
