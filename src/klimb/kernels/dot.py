"""Kernels that are powers of products of features: Constant, White, Linear, Polynomial, Cosine."""

import math
from dataclasses import dataclass, field
from functools import reduce
from typing import ClassVar

import numpy as np

from klimb.errors import InputError
from klimb.kernels.base import LeafKernel
from klimb.kernels.parameters import Columns, Value
from klimb.kernels.tiles import Pairs, by_angles, centre_of, on_circles
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


class DotPairs(Pairs):
    """variance * (a_i'b_j + offset)^degree of features ``a`` and ``b``; without ``inputs`` no gradient in ``b``."""

    def __init__(self, kernel: LeafKernel, width: int, a: Array, b: Array, *, variance: float = 1.0,
                 offset: float = 0.0, degree: int = 1, inputs: bool) -> None:
        self._leaf, self._width, self._a, self._b, self._inputs = kernel, width, a, b, inputs
        self._variance, self._offset, self._degree = variance, offset, degree
        self._by_variance = self._by_offset = 0.0
        self._by_a, self._by_b = np.zeros(a.shape), np.zeros(b.shape)

    def tile(self, rows: slice, columns: slice) -> Array:
        return self._variance * whole_power(self._base(rows, columns), self._degree)

    def pull(self, rows: slice, columns: slice, G: Array) -> None:
        base = self._base(rows, columns)
        G *= self._variance
        if self._degree > 1:
            G *= whole_power(base, self._degree - 1)
        self._by_variance += float(np.vdot(G, base))
        if self._offset:  # of polynomials
            G *= self._degree
            self._by_offset += self._offset * float(G.sum())
        self._by_a[rows] += G @ self._b[columns]
        if self._inputs:
            self._by_b[columns] += G.T @ self._a[rows]

    def _base(self, rows: slice, columns: slice) -> Array:
        product = np.asarray(self._a[rows] @ self._b[columns].T)
        return product + self._offset if self._offset else product

    def right_gradient(self) -> Array:
        return self._leaf._spread(self._by_b, self._width)


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
        left, right = self._seen(X, Z)
        weighted = left * self._vector("variance", left.shape[1])
        return LinearPairs(self, X.shape[1], weighted, right, inputs=inputs)

    def _diag(self, X: Array) -> Array:
        seen = self._columns(X)
        return np.asarray((seen * seen) @ self._vector("variance", seen.shape[1]))

    def _diag_pull(self, X: Array, g: Array) -> Array:
        seen = self._columns(X)
        return self._collected("variance", self._vector("variance", seen.shape[1]) * (g @ (seen * seen)))


class LinearPairs(DotPairs):
    """A linear kernel bound to its inputs, the left ones times the variances."""

    def gradient(self) -> Array:
        return self._leaf._collected("variance", np.einsum("id,id->d", self._a, self._by_a))


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
        return PolynomialPairs(self, X.shape[1], *self._seen(X, Z), variance=self.variance, offset=self.offset,
                               degree=self.degree, inputs=inputs)

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


class PolynomialPairs(DotPairs):
    """A polynomial kernel bound to its inputs."""

    def gradient(self) -> Array:
        return np.array([self._by_variance, self._by_offset])


def whole_power(base: Array, degree: int) -> Array:
    """base^degree by products: far faster than a floating-point power, and exact for whole numbers."""
    return reduce(np.multiply, [base] * (degree - 1), base) if degree else np.ones_like(base)


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


class CosinePairs(DotPairs):
    """cos(a - b) = cos a cos b + sin a sin b, where a and b are sums of angles over the columns."""

    def __init__(self, kernel: Cosine, X: Array, Z: Array | None) -> None:
        left, right = kernel._seen(X, Z)
        self._frequency = 2.0 * math.pi / kernel._vector("lengthscale", left.shape[1])
        centre = centre_of(left)
        self._left, self._right = (left - centre) * self._frequency, (right - centre) * self._frequency
        features = [on_circles(angles.sum(axis=1, keepdims=True)) for angles in (self._left, self._right)]
        super().__init__(kernel, X.shape[1], *features, variance=kernel.variance, inputs=True)

    def gradient(self) -> Array:
        # d angle_d / d log l_d = -angle_d
        per_column = -(by_angles(self._by_a, self._a) * self._left).sum(axis=0)
        per_column -= (by_angles(self._by_b, self._b) * self._right).sum(axis=0)
        return np.concatenate([[self._by_variance], self._leaf._collected("lengthscale", per_column)])

    def right_gradient(self) -> Array:
        return self._leaf._spread(by_angles(self._by_b, self._b) * self._frequency, self._width)
