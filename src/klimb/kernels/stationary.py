"""Kernels of the distance r between two points, measured in lengthscales: k = variance * profile(r^2)."""

import math
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from klimb.kernels.base import LeafKernel
from klimb.kernels.parameters import Columns, Value
from klimb.kernels.tiles import HUGE, Pairs, SquaredDistances, by_angles, centre_of, on_circles
from klimb.numerics.arrays import Array

SQRT3, SQRT5 = math.sqrt(3.0), math.sqrt(5.0)


@dataclass(frozen=True, repr=False)
class Stationary(LeafKernel):
    """What the kernels of a distance share. ``lengthscale`` is one number, or one per column (ARD)."""

    parameter_fields: ClassVar[tuple[str, ...]] = ("variance", "lengthscale")
    vector_fields: ClassVar[tuple[str, ...]] = ("lengthscale",)

    variance: float = 1.0
    lengthscale: Value = 1.0
    active_dims: Columns | None = field(default=None, kw_only=True)

    @abstractmethod
    def _profile(self, r2: Array) -> Array:
        """The profile at r^2."""

    @abstractmethod
    def _slope(self, r2: Array, value: Array) -> Array:
        """The derivative of the profile in r^2, given its value; zero where it is infinite (r = 0)."""

    def _shape_pull(self, G: Array, r2: Array, value: Array) -> float:
        """sum G o (derivative of the profile in the logarithm of the shape parameter), where there is one."""
        return 0.0

    def _pairs(self, X: Array, Z: Array | None, *, inputs: bool = False) -> Pairs:
        return StationaryPairs(self, X, Z, inputs=inputs)

    def _typical(self, X: Array, shares: Array, variance: float) -> dict[str, float]:
        return super()._typical(X, shares, variance) | self._lengthscales(self._columns(X), shares)

    def _lengthscales(self, seen: Array, shares: Array) -> dict[str, float]:
        """About the distance between two points, column by column where there is one for each."""
        sd = np.sqrt(shares @ (seen - shares @ seen) ** 2)
        if not isinstance(self.lengthscale, tuple):
            return {"lengthscale": float(np.linalg.norm(sd))}
        return {f"lengthscale[{d}]": float(one) for d, one in enumerate(math.sqrt(len(sd)) * sd)}


class StationaryPairs(Pairs):
    """A stationary kernel bound to its inputs; `PeriodicPairs` puts the inputs on circles first."""

    def __init__(self, kernel: Stationary, X: Array, Z: Array | None, *, inputs: bool) -> None:
        self._kernel = kernel
        self._width = X.shape[1]
        self._inputs = inputs
        self._variance_pull = self._shape_pull = self._scale_pull = 0.0
        self._distances = self._bind(*kernel._seen(X, Z))
        # One lengthscale needs sum M o r^2 only; several need the distances column by column.
        self._one_scale = not isinstance(kernel.lengthscale, tuple)

    def _bind(self, left: Array, right: Array) -> SquaredDistances:
        lengthscale = self._kernel._vector("lengthscale", left.shape[1])
        return SquaredDistances(left, right, lengthscale, inputs=self._inputs)

    def tile(self, rows: slice, columns: slice) -> Array:
        return self._kernel.variance * self._kernel._profile(self._distances.squared(rows, columns)[0])

    def pull(self, rows: slice, columns: slice, G: Array) -> None:
        kernel = self._kernel
        r2, close = self._distances.squared(rows, columns)
        value = kernel._profile(r2)
        G *= kernel.variance
        self._variance_pull += float(np.vdot(G, value))
        self._shape_pull += kernel._shape_pull(G, r2, value)
        M = kernel._slope(r2, value)
        M *= G
        if self._one_scale:
            self._scale_pull += float(np.vdot(M, r2))
        if self._inputs or not self._one_scale:
            self._distances.pull(rows, columns, M, close)

    def gradient(self) -> Array:
        # d r^2 / d log l_d = -2 (x_d - z_d)^2 / l_d^2
        scales = np.array([self._scale_pull]) if self._one_scale else self._squares()
        shape = [self._shape_pull] * (len(self._kernel.parameter_fields) - 2)
        return np.concatenate([[self._variance_pull], -2.0 * scales, shape])

    def _squares(self) -> Array:
        return self._distances.squares

    def right_gradient(self) -> Array:
        lengthscale = self._kernel._vector("lengthscale", self._distances.right_sums.shape[1])
        return self._kernel._spread(2.0 * self._distances.right_sums / lengthscale, self._width)


@dataclass(frozen=True, repr=False)
class RBF(Stationary):
    """variance * exp(-r^2 / 2): very smooth functions.

    >>> RBF(variance=2.0, lengthscale=[1.0, 3.0]).gram([[0.0, 0.0], [1.0, 3.0]]).round(4)
    array([[2.    , 0.7358],
           [0.7358, 2.    ]])
    """

    def _profile(self, r2: Array) -> Array:
        return np.exp(-0.5 * r2)

    def _slope(self, r2: Array, value: Array) -> Array:
        return -0.5 * value


@dataclass(frozen=True, repr=False)
class Matern12(Stationary):
    """variance * exp(-r): continuous, rough functions (Ornstein-Uhlenbeck).

    >>> Matern12(lengthscale=2.0).gram([0.0, 2.0])[0, 1].round(4)
    np.float64(0.3679)
    """

    def _profile(self, r2: Array) -> Array:
        return np.exp(-np.sqrt(r2))

    def _slope(self, r2: Array, value: Array) -> Array:
        r = np.sqrt(r2)
        return np.divide(-0.5 * value, r, out=np.zeros_like(r), where=r > 0.0)


@dataclass(frozen=True, repr=False)
class Matern32(Stationary):
    """variance * (1 + s) exp(-s) with s = sqrt(3) r: functions with one derivative.

    >>> Matern32().gram([0.0, 1.0])[0, 1].round(4)
    np.float64(0.4834)
    """

    def _profile(self, r2: Array) -> Array:
        s = SQRT3 * np.sqrt(r2)
        return (1.0 + s) * np.exp(-s)

    def _slope(self, r2: Array, value: Array) -> Array:
        return -1.5 * value / (1.0 + SQRT3 * np.sqrt(r2))


@dataclass(frozen=True, repr=False)
class Matern52(Stationary):
    """variance * (1 + s + s^2 / 3) exp(-s) with s = sqrt(5) r: functions with two derivatives.

    >>> Matern52().gram([0.0, 1.0])[0, 1].round(4)
    np.float64(0.524)
    """

    def _profile(self, r2: Array) -> Array:
        s = SQRT5 * np.sqrt(r2)
        return (1.0 + s + (5.0 / 3.0) * r2) * np.exp(-s)

    def _slope(self, r2: Array, value: Array) -> Array:
        s = SQRT5 * np.sqrt(r2)
        return (-5.0 / 6.0) * value * ((1.0 + s) / (1.0 + s + (5.0 / 3.0) * r2))


@dataclass(frozen=True, repr=False)
class RationalQuadratic(Stationary):
    """variance * (1 + r^2 / (2 alpha))^-alpha: a mixture of RBF kernels of many lengthscales; alpha -> inf is RBF.

    >>> RationalQuadratic(alpha=0.5).gram([0.0, 1.0])[0, 1].round(4)
    np.float64(0.7071)
    """

    parameter_fields: ClassVar[tuple[str, ...]] = ("variance", "lengthscale", "alpha")

    alpha: float = 1.0

    def _profile(self, r2: Array) -> Array:
        # log1p keeps its digits for large alpha, where a power of 1 + u would not.
        return np.exp(-self.alpha * np.log1p(self._excess(r2)))

    def _slope(self, r2: Array, value: Array) -> Array:
        return -0.5 * value / (1.0 + self._excess(r2))

    def _shape_pull(self, G: Array, r2: Array, value: Array) -> float:
        u = self._excess(r2)
        change = u / (1.0 + u) - np.log1p(u)
        change *= value
        return self.alpha * float(np.vdot(G, change))

    def _excess(self, r2: Array) -> Array:
        """u = r^2 / (2 alpha)."""
        return np.minimum(r2 * (0.5 / self.alpha), HUGE)


@dataclass(frozen=True, repr=False)
class Periodic(Stationary):
    """variance * exp(-2 sum_d sin^2(pi (x_d - z_d) / period_d) / lengthscale_d^2): functions that repeat themselves.

    A product with an RBF kernel lets the pattern change slowly.

    >>> Periodic(period=2.0).gram([0.0, 1.0, 2.0])[0].round(4)
    array([1.    , 0.1353, 1.    ])
    """

    parameter_fields: ClassVar[tuple[str, ...]] = ("variance", "lengthscale", "period")
    vector_fields: ClassVar[tuple[str, ...]] = ("lengthscale", "period")

    period: Value = 1.0

    _profile, _slope = RBF._profile, RBF._slope

    def _pairs(self, X: Array, Z: Array | None, *, inputs: bool = False) -> Pairs:
        return PeriodicPairs(self, X, Z, inputs=inputs)

    def _lengthscales(self, seen: Array, shares: Array) -> dict[str, float]:
        return {}  # in units of the circle


class PeriodicPairs(StationaryPairs):
    """Column x becomes (cos t, sin t), t = 2 pi x / period: the squared chord is 4 sin^2(pi (x - z) / period)."""

    _kernel: Periodic

    def __init__(self, kernel: Periodic, X: Array, Z: Array | None, *, inputs: bool) -> None:
        super().__init__(kernel, X, Z, inputs=True)  # the period needs the gradient in the points on the circles

    def _bind(self, left: Array, right: Array) -> SquaredDistances:
        D = left.shape[1]
        centre, self._frequency = centre_of(left), 2.0 * math.pi / self._kernel._vector("period", D)
        self._angles = [(points - centre) * self._frequency for points in (left, right)]
        on_left, on_right = self._circles = [on_circles(angles) for angles in self._angles]
        lengthscale = np.tile(self._kernel._vector("lengthscale", D), 2)
        return SquaredDistances(on_left, on_right, lengthscale, inputs=True)

    def gradient(self) -> Array:
        # x enters through its angle, and d angle / d log period = -angle.
        pulls = (self._by_angle(self._distances.left_sums, 0), self._by_angle(self._distances.right_sums, 1))
        per_column = -sum((pull * angles).sum(axis=0) for pull, angles in zip(pulls, self._angles, strict=True))
        return np.concatenate([super().gradient()[:-1], self._kernel._collected("period", np.asarray(per_column))])

    def _squares(self) -> Array:
        cosines, sines = np.split(self._distances.squares, 2)
        return np.asarray(cosines + sines)

    def _by_angle(self, sums: Array, side: int) -> Array:
        """The gradient in the angles from the sums over scaled differences of points on the circles."""
        lengthscale = self._kernel._vector("lengthscale", self._angles[side].shape[1])
        return 2.0 * by_angles(sums, self._circles[side]) / lengthscale

    def right_gradient(self) -> Array:
        return self._kernel._spread(self._by_angle(self._distances.right_sums, 1) * self._frequency, self._width)
