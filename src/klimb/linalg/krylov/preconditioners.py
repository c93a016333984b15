"""Preconditioners: positive definite M close to A, easy to solve with, whose determinant is known and that can draw."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import final

import numpy as np

from klimb.errors import NotPositiveDefiniteError
from klimb.linalg.normal_matrix import NormalMatrix
from klimb.linalg.operators.base import Operator
from klimb.numerics.arrays import Array


class Preconditioner(ABC):
    """M = F F', positive definite."""

    size: int
    log_det: float  # log det(M)

    @abstractmethod
    def solve(self, R: Array) -> Array:
        """M^-1 R for a vector (D,) or for the columns of a matrix (D, k)."""

    @abstractmethod
    def factor_times(self, noise: Array) -> Array:
        """F noise: for noise of unit covariance, draws with covariance M."""


class SurrogateMatrix(Preconditioner):
    """A preconditioner that knows its own variances: where estimates of variances begin."""

    diagonal: Array  # of M, or of the part of it that is not low rank

    @abstractmethod
    def variances(self, B: Operator) -> tuple[Array, Array] | None:
        """diag(B M^-1 B') and diag(B diagonal^-1 B'), or None where the entries of B are not known."""

    @property
    @abstractmethod
    def inverse_diagonal(self) -> Array:
        """diag(M^-1)."""


@final
class Identity(Preconditioner):
    """M = I."""

    def __init__(self, size: int) -> None:
        self.size, self.log_det = size, 0.0

    def solve(self, R: Array) -> Array:
        return R.copy()

    def factor_times(self, noise: Array) -> Array:
        return noise.copy()


@final
class Jacobi(Preconditioner):
    """M = diag(A): what makes the scales of the weights irrelevant."""

    def __init__(self, diagonal: Array) -> None:
        if not (diagonal > 0.0).all():
            worst = int(np.argmin(diagonal))
            raise NotPositiveDefiniteError(f"the diagonal has {diagonal[worst]:.6g} at {worst}")
        self.diagonal, self.size = diagonal, len(diagonal)
        self.log_det = float(np.log(diagonal).sum())

    def solve(self, R: Array) -> Array:
        return R / (self.diagonal if R.ndim == 1 else self.diagonal[:, None])

    def factor_times(self, noise: Array) -> Array:
        root = np.sqrt(self.diagonal)
        return noise * (root if noise.ndim == 1 else root[:, None])


def simplest_preconditioner(A: NormalMatrix) -> Preconditioner:
    """Jacobi where the diagonal of A is known, the identity elsewhere."""
    diagonal = A.diagonal()
    return Identity(A.size) if diagonal is None else Jacobi(diagonal)
