"""Sites of positive measurements: waiting times, sizes, costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
from scipy.special import gammainc

from klimb.errors import InputError
from klimb.numerics.arrays import Array, ArrayLike
from klimb.numerics.responses import lognormal_moments
from klimb.numerics.special import HALF_LOG_2PI, expm1_minus, stirling_error
from klimb.sites.base import Expectation, Site, clean_data, positive_parameter


@final
@dataclass(frozen=True)
class Exponential(Site):
    """Waiting times with log rate f, or with log mean f if ``mean`` is true.

    >>> e = Exponential().expect([1.0], m=[0.0], v=[2.0])  # E[f - e^f]
    >>> print(e.value.round(6))
    [-2.718282]
    """

    mean: bool = False

    log_concave = True
    gamma_trend = "rising"
    discrete = False
    support = "[0, inf)"
    response = "positive"

    def __post_init__(self) -> None:
        if not isinstance(self.mean, (bool, np.bool_)):
            raise InputError("Exponential needs mean = True (f is the log mean) or False (f is the log rate)",
                             repr(self.mean), "The rate itself is e^f; it is not a parameter.")

    def validate(self, y: ArrayLike) -> Array:
        return clean_data(self, y, lambda x: x >= 0.0, "Waiting times are not negative; check the sign or the origin.")

    def constant(self, y: Array) -> Array:
        return np.where(y > 0.0, -1.0 - np.log(np.where(y > 0.0, y, 1.0)), 0.0)

    def oracle(self, y: Array, m: Array, v: Array) -> Expectation:
        rate = _unit_expectation(y, -m if self.mean else m, v)
        return Expectation(rate.value, -rate.alpha, rate.gamma) if self.mean else rate

    def point(self, y: Array, f: Array) -> Expectation:
        return self.oracle(y, f, np.zeros(()))

    def start(self, y: Array) -> tuple[Array, Array]:
        # The mode of f - y e^f is -log y with curvature 1; a zero wait is moderated to the smallest scale of the data.
        floor = np.maximum(y, 1e-3 * np.mean(y) if np.any(y > 0.0) else 1.0)
        slope = np.log(floor) if self.mean else -np.log(floor)
        return slope, np.ones_like(y)

    def response_moments(self, m: Array, v: Array) -> tuple[Array, Array]:
        mean, second, spread = lognormal_moments(m if self.mean else -m, v)
        return mean, second + spread

    def cdf(self, y: Array, f: Array) -> Array:
        with np.errstate(over="ignore", under="ignore"):
            return -np.expm1(-y * np.minimum(np.exp(-f if self.mean else f), 1e300))


def _unit_expectation(y: Array, m: Array, v: Array) -> Expectation:
    """E[f - y e^f], with its maximum -1 - log y taken out where y > 0."""
    positive = y > 0.0
    with np.errstate(over="ignore", under="ignore"):
        u = m + 0.5 * v + np.log(np.where(positive, y, 1.0))
        value = np.where(positive, -(expm1_minus(u) + 0.5 * v), m)
        return Expectation(value, np.where(positive, np.expm1(u), -1.0), np.where(positive, np.exp(u), 0.0))


@final
@dataclass(frozen=True, eq=False)
class Gamma(Site):
    """Positive measurements with mean e^f and variance mean^2 / ``shape``.

    >>> e = Gamma(shape=2.0).expect([1.0], m=[0.0], v=[0.0])
    >>> print(e.value.round(6))
    [-0.613706]
    """

    shape: Array | float

    log_concave = True
    gamma_trend = "rising"
    discrete = False
    support = "(0, inf)"
    response = "positive"
    per_datum = ("shape",)

    def __post_init__(self) -> None:
        positive_parameter(self, "shape", "The shape is mean^2 / variance of y given f.")

    def validate(self, y: ArrayLike) -> Array:
        return clean_data(self, y, lambda x: x > 0.0, "Use Exponential if zeros are exact, or model zeros apart.")

    def constant(self, y: Array) -> Array:
        # k log k - k - log gamma(k) - log y by Stirling's formula, of which only the small terms remain.
        shape = np.asarray(self.shape)
        return np.asarray(0.5 * np.log(shape) - HALF_LOG_2PI - stirling_error(shape) - np.log(y))

    def oracle(self, y: Array, m: Array, v: Array) -> Expectation:
        with np.errstate(over="ignore", under="ignore"):
            u = np.log(y) - m + 0.5 * v
            value = -self.shape * (expm1_minus(u) + 0.5 * v)
            return Expectation(value, -self.shape * np.expm1(u), self.shape * np.exp(u))

    def point(self, y: Array, f: Array) -> Expectation:
        return self.oracle(y, f, np.zeros(()))

    def start(self, y: Array) -> tuple[Array, Array]:
        gamma = np.broadcast_to(np.asarray(self.shape), y.shape).copy()
        return gamma * np.log(y), gamma

    def response_moments(self, m: Array, v: Array) -> tuple[Array, Array]:
        mean, second, spread = lognormal_moments(m, v)
        return mean, second / self.shape + spread

    def cdf(self, y: Array, f: Array) -> Array:
        with np.errstate(over="ignore", under="ignore"):
            return np.asarray(gammainc(self.shape, np.minimum(self.shape * y * np.exp(-f), 1e300)))
