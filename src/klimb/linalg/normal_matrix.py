"""The posterior precision of a linear model with Gaussian sites, known by its products.

    A = diag(shift) + sum_p B_p' diag(weights_p) B_p
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from klimb.errors import InputError, NotPositiveDefiniteError
from klimb.linalg.operators.base import Operator, added_diagonals, column_blocks
from klimb.numerics.arrays import Array, check_finite


class NormalMatrix:
    """A = diag(``diagonal``) + the sum over ``parts`` (B, weights) of B' diag(weights) B.

    Weights may be negative as long as A is positive definite, only `perturbation` needs them to be positive.
    ``n_products`` counts single-vector products with any B or B' made through A.

    >>> from klimb.linalg.operators import as_operator
    >>> B = as_operator([[1.0, 0.0], [1.0, 1.0]], "B")
    >>> A = NormalMatrix(np.array([1.0, 2.0]), [(B, np.array([3.0, 4.0]))])
    >>> A.dense()
    array([[8., 4.],
           [4., 6.]])
    >>> A.times(np.array([1.0, 0.0])), A.n_products
    (array([8., 4.]), 2)
    """

    def __init__(self, diagonal: Array, parts: Sequence[tuple[Operator, Array | float]] = ()) -> None:
        self.shift = np.asarray(diagonal, dtype=np.float64)
        self.size = len(self.shift)  # D, the number of rows and columns
        self.parts = tuple((operator, _weights(operator, weights, self.size)) for operator, weights in parts)
        self.operators = tuple(operator for operator, _ in self.parts)
        self.n_products = 0
        check_finite(self.shift, "the diagonal of the precision")

    @property
    def positive(self) -> bool:
        """Whether no weight is negative, so that A is a sum of squares."""
        return bool(self.shift.min(initial=0.0) >= 0.0 and all(w.min(initial=0.0) >= 0.0 for _, w in self.parts))

    def coarse(self) -> "NormalMatrix":
        """A with products in single precision where that is faster: for systems that need few digits."""
        return NormalMatrix(self.shift, [(operator.coarse(), weights) for operator, weights in self.parts])

    def times(self, U: Array) -> Array:
        """A U for a vector (D,) or for the columns of a matrix (D, k), in blocks of bounded memory."""
        if U.ndim == 1:
            return self._times(U)
        if U.shape[1] == 1:  # a product with a vector is faster than one with a matrix of one column
            return self._times(U[:, 0])[:, None]
        tallest = max((operator.shape[0] for operator in self.operators), default=0)
        blocks = list(column_blocks(U.shape[1], max(tallest, self.size)))
        if len(blocks) == 1:
            return self._times(U)
        product = np.empty_like(U)
        for columns in blocks:
            product[:, columns] = self._times(np.ascontiguousarray(U[:, columns]))
        return product

    def _times(self, U: Array) -> Array:
        product = self.shift * U if U.ndim == 1 else self.shift[:, None] * U
        for operator, weights in self.parts:
            product += operator.normal_times(weights, U)
            self.n_products += 2 if U.ndim == 1 else 2 * U.shape[1]
        return product

    def diagonal(self) -> Array | None:
        """diag(A), or None where an operator does not know its entries."""
        return added_diagonals(self.shift.copy(), self.parts)

    def dense(self) -> Array:
        """A as a dense D x D array in Fortran order."""
        total = np.zeros((self.size, self.size), order="F")
        for operator, weights in self.parts:
            total += operator.gram(weights)
        total.flat[:: self.size + 1] += self.shift
        return total

    def perturbation(self, k: int, rng: np.random.Generator) -> Array:
        """``k`` draws p of N(0, A) as columns, D x k: A^-1 p are draws of N(0, A^-1), as perturb-and-MAP has it."""
        if not self.positive:
            raise NotPositiveDefiniteError("draws need positive weights")
        draws = np.sqrt(self.shift)[:, None] * rng.standard_normal((self.size, k))
        for operator, weights in self.parts:
            root = np.sqrt(weights)[:, None]
            for columns in column_blocks(k, operator.shape[0]):
                noise = rng.standard_normal((operator.shape[0], columns.stop - columns.start))
                draws[:, columns] += operator.transpose_times(root * noise)
            self.n_products += k
        return draws


class Preconditioner(ABC):
    """M, positive definite."""

    log_det: float  # log det(M)

    @abstractmethod
    def solve(self, R: Array) -> Array:
        """M^-1 R for a vector (D,) or for the columns of a matrix (D, k)."""


class SurrogateMatrix(Preconditioner):
    """M = F F' that knows its own variances: where estimates of variances begin."""

    diagonal: Array  # of M, or of the part of it that is not low rank

    @abstractmethod
    def factor_times(self, noise: Array) -> Array:
        """F noise: for noise of unit covariance, draws with covariance M."""

    @abstractmethod
    def known_variances(self, B: Operator) -> Array | None:
        """diag(B M^-1 B'), or None where it would take as many systems as there are rows."""

    @property
    @abstractmethod
    def inverse_diagonal(self) -> Array:
        """diag(M^-1)."""


def _weights(operator: Operator, weights: Array | float, size: int) -> Array:
    N, D = operator.shape
    array = np.asarray(weights, dtype=np.float64)
    if array.ndim == 0:
        array = np.full(N, float(array))
    if array.shape != (N,) or size != D:
        raise InputError(f"a part of a precision of size {size} must be {N} x {size} with {N} weights",
                         f"an operator of shape {operator.shape} with weights of shape {array.shape}",
                         "Check which weights belong to which operator.")
    check_finite(array, "the weights of the precision")
    return array
