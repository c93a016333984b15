"""Kernels that are products of features: Constant, White, Linear, Polynomial, Cosine."""

import math
from dataclasses import dataclass, field
from functools import reduce
from typing import ClassVar

import numpy as np

from klimb.errors import InputError
from klimb.kernels.base import LeafKernel
from klimb.kernels.parameters import Columns, Value
from klimb.kernels.tiles import Pairs, centre_of
from klimb.numerics.arrays import Array


@dataclass(frozen=True, repr=False)
class Constant(LeafKernel):
    """The same covariance for all pairs: a common shift of unknown size.

    >>> Constant(4.0).gram([0.0, 1.0])
    array([[4., 4.],
           [4., 4.]])
    """

    parameter_fields: ClassVar[tuple[str, ...]] = ("variance",)

    variance: float = 1.0

    def _pairs(self, X: Array, Z: Array | None, *, inputs: bool = False) -> Pairs:
        return FlatPairs(self.variance, (X if Z is None else Z).shape)


@dataclass(frozen=True, repr=False)
class White(LeafKernel):
    """Independent noise at each point: on the diagonal of ``gram(X)`` and in ``diag``, never in ``gram(X, Z)``.

    >>> White(0.5).gram([0.0, 0.0]), White(0.5).gram([0.0], [0.0])
    (array([[0.5, 0. ],
           [0. , 0.5]]), array([[0.]]))
    """

    parameter_fields: ClassVar[tuple[str, ...]] = ("variance",)

    variance: float = 1.0

    def _pairs(self, X: Array, Z: Array | None, *, inputs: bool = False) -> Pairs:
        return FlatPairs(0.0, (X if Z is None else Z).shape)


class FlatPairs(Pairs):
    """One value for every pair."""

    def __init__(self, value: float, right_shape: tuple[int, ...]) -> None:
        self._value, self._right_shape = value, right_shape
        self._sum = 0.0

    def tile(self, rows: slice, columns: slice) -> Array:
        return np.full((rows.stop - rows.start, columns.stop - columns.start), self._value)

    def pull(self, rows: slice, columns: slice, G: Array) -> None:
        self._sum += float(G.sum())

    def gradient(self) -> Array:
        return np.array([self._value * self._sum])

    def right_gradient(self) -> Array:
        return np.zeros(self._right_shape)


@dataclass(frozen=True, repr=False)
class Linear(LeafKernel):
    """sum_d variance_d x_d z_d: linear functions through the origin; one variance, or one per column.

    Add ``Constant()`` for an intercept.

    >>> Linear(variance=2.0).gram([1.0, 3.0])
    array([[ 2.,  6.],
           [ 6., 18.]])
    """

    parameter_fields: ClassVar[tuple[str, ...]] = ("variance",)
    vector_fields: ClassVar[tuple[str, ...]] = ("variance",)

    variance: Value = 1.0
    active_dims: Columns | None = field(default=None, kw_only=True)

    def _pairs(self, X: Array, Z: Array | None, *, inputs: bool = False) -> Pairs:
        return LinearPairs(self, X, Z, inputs=inputs)

    def _diag(self, X: Array) -> Array:
        seen = self._columns(X)
        return np.asarray((seen * seen) @ self._vector("variance", seen.shape[1]))

    def _diag_pull(self, X: Array, g: Array) -> Array:
        seen = self._columns(X)
        return self._collected("variance", self._vector("variance", seen.shape[1]) * (g @ (seen * seen)))


class ColumnPairs(Pairs):
    """A kernel bound to the columns that it sees; its gradient in the right inputs is summed tile by tile."""

    def __init__(self, kernel: LeafKernel, X: Array, Z: Array | None, *, inputs: bool) -> None:
        self._leaf, self._width, self._inputs = kernel, X.shape[1], inputs
        self._left = kernel._columns(X)
        self._right = self._left if Z is None else kernel._columns(Z)
        self._right_sums = np.zeros(self._right.shape) if inputs else np.zeros((0, 0))

    def right_gradient(self) -> Array:
        return self._leaf._spread(self._right_sums, self._width)


class LinearPairs(ColumnPairs):
    """A linear kernel bound to its inputs."""

    def __init__(self, kernel: Linear, X: Array, Z: Array | None, *, inputs: bool) -> None:
        super().__init__(kernel, X, Z, inputs=inputs)
        self._weighted = self._left * kernel._vector("variance", self._left.shape[1])
        self._sums = np.zeros(self._left.shape[1])

    def tile(self, rows: slice, columns: slice) -> Array:
        return np.asarray(self._weighted[rows] @ self._right[columns].T)

    def pull(self, rows: slice, columns: slice, G: Array) -> None:
        self._sums += np.einsum("id,id->d", self._weighted[rows], G @ self._right[columns])
        if self._inputs:
            self._right_sums[columns] += G.T @ self._weighted[rows]

    def gradient(self) -> Array:
        return self._leaf._collected("variance", self._sums)


@dataclass(frozen=True, repr=False)
class Polynomial(LeafKernel):
    """variance * (x'z + offset)^degree: polynomials of at most this degree.

    >>> Polynomial(degree=2, offset=1.0).gram([0.0, 1.0, 2.0])[2]
    array([ 1.,  9., 25.])
    """

    parameter_fields: ClassVar[tuple[str, ...]] = ("variance", "offset")

    degree: int = 2
    variance: float = 1.0
    offset: float = 1.0
    active_dims: Columns | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if not np.issubdtype(type(self.degree), np.integer) or self.degree < 1:
            raise InputError("Polynomial needs degree to be a whole number, at least 1", f"{self.degree!r}",
                             "Use Constant() for degree 0.")
        object.__setattr__(self, "degree", int(self.degree))
        super().__post_init__()

    def _pairs(self, X: Array, Z: Array | None, *, inputs: bool = False) -> Pairs:
        return PolynomialPairs(self, X, Z, inputs=inputs)

    def _diag(self, X: Array) -> Array:
        base = self._base(X)
        with np.errstate(over="ignore"):
            return self.variance * whole_power(base, self.degree)

    def _diag_pull(self, X: Array, g: Array) -> Array:
        base = self._base(X)
        with np.errstate(over="ignore"):
            lower = self.variance * whole_power(base, self.degree - 1)
            return np.array([g @ (lower * base), self.degree * self.offset * (g @ lower)])

    def _base(self, X: Array) -> Array:
        seen = self._columns(X)
        return np.asarray(np.einsum("ij,ij->i", seen, seen) + self.offset)


class PolynomialPairs(ColumnPairs):
    """A polynomial kernel bound to its inputs."""

    def __init__(self, kernel: Polynomial, X: Array, Z: Array | None, *, inputs: bool) -> None:
        super().__init__(kernel, X, Z, inputs=inputs)
        self._kernel = kernel
        self._variance_pull = self._offset_pull = 0.0

    def tile(self, rows: slice, columns: slice) -> Array:
        return self._kernel.variance * whole_power(self._base(rows, columns), self._kernel.degree)

    def pull(self, rows: slice, columns: slice, G: Array) -> None:
        base = self._base(rows, columns)
        G *= self._kernel.variance
        G *= whole_power(base, self._kernel.degree - 1)
        self._variance_pull += float(np.vdot(G, base))
        G *= self._kernel.degree
        self._offset_pull += self._kernel.offset * float(G.sum())
        if self._inputs:
            self._right_sums[columns] += G.T @ self._left[rows]

    def _base(self, rows: slice, columns: slice) -> Array:
        return np.asarray(self._left[rows] @ self._right[columns].T + self._kernel.offset)

    def gradient(self) -> Array:
        return np.array([self._variance_pull, self._offset_pull])


def whole_power(base: Array, degree: int) -> Array:
    """base^degree by products: far faster than a floating-point power, and exact for whole numbers."""
    return reduce(np.multiply, [base] * degree, np.ones_like(base))


@dataclass(frozen=True, repr=False)
class Cosine(LeafKernel):
    """variance * cos(2 pi sum_d (x_d - z_d) / lengthscale_d): a single wave; the lengthscale is its length.

    The cosine of a sum over columns, not of a distance, which is no covariance in more than one dimension.

    >>> Cosine(lengthscale=2.0).gram([0.0, 1.0, 2.0])[0].round(12)
    array([ 1., -1.,  1.])
    """

    parameter_fields: ClassVar[tuple[str, ...]] = ("variance", "lengthscale")
    vector_fields: ClassVar[tuple[str, ...]] = ("lengthscale",)

    variance: float = 1.0
    lengthscale: Value = 1.0
    active_dims: Columns | None = field(default=None, kw_only=True)

    def _pairs(self, X: Array, Z: Array | None, *, inputs: bool = False) -> Pairs:
        return CosinePairs(self, X, Z)


class CosinePairs(Pairs):
    """cos(a - b) = cos a cos b + sin a sin b, so that a tile is a product of two columns."""

    def __init__(self, kernel: Cosine, X: Array, Z: Array | None) -> None:
        self._kernel, self._width = kernel, X.shape[1]
        left = kernel._columns(X)
        right = left if Z is None else kernel._columns(Z)
        self._frequency = 2.0 * math.pi / kernel._vector("lengthscale", left.shape[1])
        centre = centre_of(left)
        self._left, self._right = (left - centre) * self._frequency, (right - centre) * self._frequency
        a, b = self._left.sum(axis=1), self._right.sum(axis=1)
        self._on_left = np.column_stack([np.cos(a), np.sin(a)])
        self._turned = np.column_stack([np.sin(a), -np.cos(a)])  # with on_right: sin(a - b)
        self._on_right = np.column_stack([np.cos(b), np.sin(b)])
        self._variance_pull = 0.0
        self._row_sums, self._column_sums = np.zeros(len(left)), np.zeros(len(right))

    def tile(self, rows: slice, columns: slice) -> Array:
        return np.asarray(self._kernel.variance * self._on_left[rows] @ self._on_right[columns].T)

    def pull(self, rows: slice, columns: slice, G: Array) -> None:
        G *= self._kernel.variance
        self._variance_pull += float(np.vdot(G, self._on_left[rows] @ self._on_right[columns].T))
        G *= self._turned[rows] @ self._on_right[columns].T
        self._row_sums[rows] += G.sum(axis=1)
        self._column_sums[columns] += G.sum(axis=0)

    def gradient(self) -> Array:
        # d cos(phase) / d log l_d = sin(phase) 2 pi (x_d - z_d) / l_d
        per_column = self._row_sums @ self._left - self._column_sums @ self._right
        return np.concatenate([[self._variance_pull], self._kernel._collected("lengthscale", per_column)])

    def right_gradient(self) -> Array:
        return self._kernel._spread(np.outer(self._column_sums, self._frequency), self._width)
