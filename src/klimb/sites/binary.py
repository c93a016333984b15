"""Sites of binary data: y is one of two classes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import final

import numpy as np
from scipy.special import wrightomega

from klimb.numerics.arrays import Array, ArrayLike
from klimb.numerics.normal import log_ndtr_derivatives, probit_moments
from klimb.numerics.quadrature import Landscape, WideTable, gaussian_expectation, geometric_edges, tabulate
from klimb.numerics.softplus import folded_moments, folded_point, unfold
from klimb.numerics.special import LARGEST_EXPONENT, SPAN, Index, Triple, log_cosh_even, polynomial
from klimb.numerics.tilted import Tilted
from klimb.sites.base import EvenPart, Expectation, Site, clean_labels


@dataclass(frozen=True)
class BinarySite(Site):
    """What the links of a binary response share: labels, and no constant."""

    log_concave = True
    support = "{-1, +1} or {0, 1}"
    response = "classes"

    def validate(self, y: ArrayLike) -> Array:
        return clean_labels(self, y, "Use Binomial or Ordinal for counts.")

    def constant(self, y: Array) -> Array:
        return np.zeros(())

    def labels(self) -> Array:
        return np.array([-1.0, 1.0])


@final
class Logistic(BinarySite):
    """P(y = 1) = sigmoid(f).

    >>> e = Logistic().expect([1, 0], m=[0.5, 0.5], v=[2.0, 2.0])
    >>> print(e.gamma.round(6))
    [0.176585 0.176585]
    """

    super_gaussian = True

    def oracle(self, y: Array, m: Array, v: Array) -> Expectation:
        return self._signed(y, m, *folded_moments(m, v))

    def point(self, y: Array, f: Array) -> Expectation:
        return self._signed(y, f, *folded_point(f))

    @staticmethod
    def _signed(y: Array, m: Array, value: Array, slope: Array, curvature: Array) -> Expectation:
        softplus, sigmoid = unfold(-y * m, value, slope)  # log p(y|f) = -softplus(-y f)
        return Expectation(np.negative(softplus, out=softplus), np.multiply(-y, sigmoid, out=sigmoid), curvature)

    def start(self, y: Array) -> tuple[Array, Array]:
        return 0.5 * y, np.full_like(y, 0.25)

    def symmetry(self, y: Array) -> tuple[Array, Array]:
        return 0.5 * y, np.zeros_like(y)

    def even_part(self, y: Array, x: Array) -> EvenPart:
        return EvenPart(*log_cosh_even(x))

    def log_predictive(self, y: Array, m: Array, v: Array) -> Array:
        small = folded_moments(m, v)[1]  # the probability of the less likely label
        if np.any(small < 1e-290):
            return super().log_predictive(y, m, v)
        return np.where(y * m > 0.0, np.log1p(-small), np.log(small))

    def class_probabilities(self, m: Array, v: Array) -> Array:
        small = folded_moments(m, v)[1]
        up = m > 0.0
        return np.column_stack([np.where(up, small, 1.0 - small), np.where(up, 1.0 - small, small)])


@final
class Probit(BinarySite):
    """P(y = 1) = Phi(f), the standard normal distribution function.

    >>> e = Probit().expect([1], m=[0.0], v=[1.0])  # the integral of log u over (0, 1)
    >>> print(e.value.round(12))
    [-1.]
    """

    def oracle(self, y: Array, m: Array, v: Array) -> Expectation:
        value, alpha, gamma = probit_moments(y * m, v)
        return Expectation(value, y * alpha, gamma)

    def point(self, y: Array, f: Array) -> Expectation:
        value, ratio, curvature = log_ndtr_derivatives(y * f)
        return Expectation(value, -y * ratio, curvature)

    def start(self, y: Array) -> tuple[Array, Array]:
        # Value and slope at f = 0: r = sqrt(2 / pi) and curvature r^2.
        return y * np.sqrt(2.0 / np.pi), np.full_like(y, 2.0 / np.pi)

    def tilted(self, y: Array, m: Array, v: Array, power: float | Array = 1.0) -> Tilted:
        if np.any(np.asarray(power) != 1.0):
            return super().tilted(y, m, v, power)
        root = np.sqrt(1.0 + v)
        value, ratio, curvature = log_ndtr_derivatives(y * m / root)
        return Tilted(value, y * ratio / root, -curvature / (1.0 + v))


@final
class CLogLog(BinarySite):
    """P(y = 1) = 1 - exp(-e^f), the complementary log-log link: an event in a Poisson process of log rate f.

    >>> e = CLogLog().expect([0], m=[0.0], v=[2.0])  # -E e^f
    >>> print(e.value.round(6))
    [-2.718282]
    """

    def oracle(self, y: Array, m: Array, v: Array) -> Expectation:
        with np.errstate(over="ignore", under="ignore"):
            rate = np.exp(m + 0.5 * v)  # y = -1 is closed form: E e^f
        value, alpha, gamma = -rate, rate, rate.copy()
        event = np.flatnonzero(y > 0.0)
        if event.size:
            value[event], alpha[event], gamma[event] = event_moments(m[event], v[event])
        return Expectation(value, alpha, gamma)

    def point(self, y: Array, f: Array) -> Expectation:
        with np.errstate(over="ignore", under="ignore"):
            rate = np.exp(f)
        value, slope, curvature = event_derivatives(f)
        event = y > 0.0
        return Expectation(np.where(event, value, -rate), np.where(event, -slope, rate),
                           np.where(event, curvature, rate))

    def start(self, y: Array) -> tuple[Array, Array]:
        # The tangent parabola at f = log log 2, where the odds are even.
        even = np.log(np.log(2.0))
        e = self.point(y, np.full_like(y, even))
        return -e.alpha + e.gamma * even, e.gamma


# B_2k / (2k)! of the series x/(e^x - 1) = 1 - x/2 + x^2/12 - x^4/720 + ...
_BERNOULLI = (1 / 12, -1 / 720, 1 / 30240, -1 / 1209600, 1 / 47900160, -691 / 1307674368000, 1 / 74724249600)


def event_derivatives(f: Array) -> Triple:
    """g = log(1 - exp(-e^f)), g' = x/(e^x - 1) with x = e^f, and -g'' = g' (g' + x - 1), with relative accuracy."""
    with np.errstate(over="ignore", under="ignore"):
        x = np.exp(np.minimum(f, 700.0))
        miss = np.exp(-x)
    hit = -np.expm1(-x)
    small = x < 0.5
    near = np.minimum(x, 0.5)
    square = near * near
    series = polynomial(square, _BERNOULLI) * square  # x/(e^x - 1) - 1 + x/2
    slope = np.where(small, 1.0 - 0.5 * near + series, x * miss / np.where(hit > 0.0, hit, 1.0))
    gap = np.where(small, 0.5 * near + series, slope + x - 1.0)
    # log(hit) = f + log(hit / x) keeps its digits when x underflows.
    value = np.where(small, f + np.log1p(_relative_hit(near)), np.log1p(-np.minimum(miss, 0.75)))
    return value, slope, slope * gap


def _relative_hit(x: Array) -> Array:
    """(1 - e^-x)/x - 1 for 0 <= x <= 1/2."""
    total = np.full_like(x, 1.0 / 17.0)
    for k in range(16, 1, -1):
        total *= -x
        total += 1.0
        total /= k
    return -x * total


def _event_integrands(f: Array, rows: Index | None = None) -> Triple:
    value, slope, curvature = event_derivatives(f)
    return value, -slope, curvature


@lru_cache(maxsize=1)
def _event_table() -> WideTable:
    left = [-edge for edge in reversed(geometric_edges(1.0, 2e5))]
    right = [0.9, 1.7, 2.3, 2.8, 3.2, 3.6, 3.9, 4.15, 4.35, 4.5]
    return tabulate(_event_integrands, [*left, *right], by_parts=False, least_deviation=0.5)


def event_moments(m: Array, v: Array) -> Triple:
    """(E g, -E g', -E g'') for g = log(1 - exp(-e^f)) under N(m, v)."""

    def step(f: Array, rows: Index) -> Array:
        # Branch points at log(2 pi k) +- i pi/2; to the right g falls like exp(-e^f).
        return np.where(f < 1.5, 0.75 * np.hypot(f - 1.84, 0.5 * np.pi), 8.0 * np.exp(-np.clip(f, 1.5, 7.0)))

    s = np.sqrt(v)
    with np.errstate(divide="ignore"):
        # Where exp(-e^f) N(f; m, v) peaks: e^f = (m - f)/v.
        peak = np.where(v > 0.0, m - wrightomega(m + np.log(v)).real, m)
    at_peak = (m - peak) * (m - peak) / np.where(v > 0.0, v, 1.0) + 2.0 * np.exp(np.minimum(peak, 7.0))
    low = m - s * np.sqrt(np.where(m > 0.0, np.minimum(at_peak, LARGEST_EXPONENT), 0.0) + SPAN * SPAN)
    high = np.minimum(m + v + SPAN * s, 6.7)
    landscape = Landscape(offset=np.maximum(1.84 - m, 0.0), height=np.full_like(m, 0.5 * np.pi),
                          tilt=np.exp(np.minimum(m, 10.0)) + 1.0, low=low, high=high, centre=np.zeros_like(m),
                          step=step, table=_event_table())
    return gaussian_expectation(_event_integrands, m, v, landscape)
