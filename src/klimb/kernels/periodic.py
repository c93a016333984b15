"""The periodic kernel: an RBF kernel on circles."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from klimb.kernels.distances import SquaredDistances, centre_of
from klimb.kernels.parameters import Value
from klimb.kernels.stationary import RBF, Stationary, StationaryPairs
from klimb.kernels.tiles import Pairs
from klimb.numerics.arrays import Array


@final
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


@final
class PeriodicPairs(StationaryPairs):
    """Column x becomes (cos t, sin t), t = 2 pi x / period: the squared chord is 4 sin^2(pi (x - z) / period)."""

    _kernel: Periodic

    def __init__(self, kernel: Periodic, X: Array, Z: Array | None, *, inputs: bool) -> None:
        self._wants_inputs = inputs
        super().__init__(kernel, X, Z, inputs=True)  # the period needs the gradient in the points on the circles

    def _bind(self, left: Array, right: Array | None) -> SquaredDistances:
        D = left.shape[1]
        self._centre, self._frequency = centre_of(left), 2.0 * math.pi / self._kernel._vector("period", D)
        self._left_angles = (left - self._centre) * self._frequency
        self._right_angles = self._left_angles if right is None else (right - self._centre) * self._frequency
        on_left = _on_circles(self._left_angles)
        on_right = None if right is None else _on_circles(self._right_angles)
        lengthscale = np.tile(self._kernel._vector("lengthscale", D), 2)
        return SquaredDistances(on_left, on_right, lengthscale, inputs=True)

    def gradient(self) -> Array:
        # x enters through its angle, and d angle / d log period = -angle.
        per_column = -(self._left_angles * self._by_angle(self._distances.left_sums, self._left_angles)).sum(axis=0)
        per_column -= (self._right_angles * self._by_angle(self._distances.right_sums, self._right_angles)).sum(axis=0)
        return np.concatenate([super().gradient()[:-1], self._kernel._collected("period", per_column)])

    def _squares(self) -> Array:
        cosines, sines = np.split(self._distances.squares, 2)
        return np.asarray(cosines + sines)

    def _by_angle(self, sums: Array, angles: Array) -> Array:
        """The gradient in the angles from the sums over scaled differences of points on the circles."""
        lengthscale = self._kernel._vector("lengthscale", angles.shape[1])
        by_cosine, by_sine = np.split(2.0 * sums, 2, axis=1)
        return np.asarray((by_sine * np.cos(angles) - by_cosine * np.sin(angles)) / lengthscale)

    def right_gradient(self) -> Array:
        by_angle = self._by_angle(self._distances.right_sums, self._right_angles)
        return self._kernel._spread(by_angle * self._frequency, self._width)


def _on_circles(angles: Array) -> Array:
    return np.hstack([np.cos(angles), np.sin(angles)])
