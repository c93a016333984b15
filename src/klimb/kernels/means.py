"""Mean functions m(x) of a Gaussian process. Their parameters have the view of the kernels', by value, not logarithm.

    latent = klimb.latents.Kernel(kernel.gram(X), mean=mean(X))
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from klimb.kernels.parameters import Leaf, Value, as_points, per_row, real
from klimb.numerics.arrays import Array, ArrayLike

__all__ = ["ConstantMean", "LinearMean", "Mean", "ZeroMean"]


@dataclass(frozen=True, repr=False)
class Mean(Leaf):
    """A mean function: call it with inputs, one row per point (a 1-d array is one column)."""

    _clean = staticmethod(real)

    def __call__(self, X: ArrayLike) -> Array:
        """m(x) for each row of ``X``."""
        return self._at(as_points(X, "X"))

    def vjp(self, X: ArrayLike, g: ArrayLike) -> Array:
        """The gradient of sum_i g_i m(x_i) in ``values``."""
        inputs = as_points(X, "X")
        return self._pull(inputs, per_row(g, inputs))[self._free_places()]

    @property
    def values(self) -> Array:
        """The values of the free parameters, in the order of ``free``."""
        return np.array([entry.value for entry in self._entries() if not entry.rule.fixed], dtype=np.float64)

    def with_values(self, values: ArrayLike) -> Self:
        """The same mean function with other values of its free parameters."""
        return self._with_free(values, "values", lambda number, _: number)

    @property
    def bounds(self) -> Array:
        """One row (lower, upper) per free parameter; infinite where none were set."""
        rows = [entry.rule.bounds or (-np.inf, np.inf) for entry in self._entries() if not entry.rule.fixed]
        return np.array(rows, dtype=np.float64).reshape(-1, 2)

    @abstractmethod
    def _at(self, X: Array) -> Array: ...

    @abstractmethod
    def _pull(self, X: Array, g: Array) -> Array: ...


@dataclass(frozen=True, repr=False)
class ZeroMean(Mean):
    """m(x) = 0.

    >>> ZeroMean()([1.0, 2.0])
    array([0., 0.])
    """

    def _at(self, X: Array) -> Array:
        return np.zeros(len(X))

    def _pull(self, X: Array, g: Array) -> Array:
        return np.zeros(0)


@dataclass(frozen=True, repr=False)
class ConstantMean(Mean):
    """m(x) = value.

    >>> ConstantMean(3.0)([1.0, 2.0])
    array([3., 3.])
    """

    parameter_fields: ClassVar[tuple[str, ...]] = ("value",)

    value: float = 0.0

    def _at(self, X: Array) -> Array:
        return np.full(len(X), self.value)

    def _pull(self, X: Array, g: Array) -> Array:
        return np.array([g.sum()])


@dataclass(frozen=True, repr=False)
class LinearMean(Mean):
    """m(x) = intercept + slope'x; one slope for all columns, or one per column.

    >>> mean = LinearMean(slope=[1.0, -1.0], intercept=0.5)
    >>> mean([[2.0, 1.0]]), mean.free
    (array([1.5]), ('slope[0]', 'slope[1]', 'intercept'))
    """

    parameter_fields: ClassVar[tuple[str, ...]] = ("slope", "intercept")
    vector_fields: ClassVar[tuple[str, ...]] = ("slope",)

    slope: Value = 0.0
    intercept: float = 0.0

    def _at(self, X: Array) -> Array:
        self._check_width(X.shape[1])
        return np.asarray(X @ self._vector("slope", X.shape[1]) + self.intercept)

    def _pull(self, X: Array, g: Array) -> Array:
        self._check_width(X.shape[1])
        return np.append(self._collected("slope", g @ X), g.sum())
