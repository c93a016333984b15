"""Sites of binary data, where y is one of two classes, and of counts."""

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from scipy.special import betainc, expit, gammaincc, wrightomega

from klimb._stored import SKIPPED
from klimb.numerics import special
from klimb.numerics.arrays import Array, ArrayLike, Index
from klimb.numerics.normal import log_ndtr_derivatives, probit_moments
from klimb.numerics.quadrature import Landscape, WideTable, gaussian_expectation, geometric_edges, tabulate
from klimb.numerics.responses import lognormal_moments, sigmoid_moments
from klimb.numerics.softplus import folded_moments, folded_point, rough_moments, unfold
from klimb.numerics.special import SPAN, Triple
from klimb.numerics.tilted import Tilted
from klimb.sites.base import EvenPart, Expectation, Site, clean_data, clean_labels, set_parameter

FAINT = 1e-5  # probability of a label from which 1e-8 is not enough
ENOUGH = 5e-5  # tolerance of a fit from which errors of 1e-8 need not be mended at its end


@dataclass(frozen=True)
class BinarySite(Site):
    """What the links of a binary response share: labels."""

    log_concave = True
    support = "{-1, +1} or {0, 1}"
    response = "classes"

    def validate(self, y: ArrayLike) -> Array:
        return clean_labels(self, y, "Use Binomial or Ordinal for counts.")

    def labels(self) -> Array:
        return np.array([-1.0, 1.0])


@dataclass(frozen=True)
class Logistic(BinarySite):
    """P(y = 1) = sigmoid(f).

    >>> e = Logistic().expect([1, 0], m=[0.5, 0.5], v=[2.0, 2.0])
    >>> print(e.gamma.round(6))
    [0.176585 0.176585]
    """

    exact: bool = field(default=True, repr=False, metadata={SKIPPED: False})  # or to 1e-8, on the way to an optimum

    super_gaussian = True
    steady = True

    def oracle(self, y: Array, m: Array, v: Array) -> Expectation:
        return self._signed(y, m, *(folded_moments if self.exact else rough_moments)(m, v))

    def rough(self, tol: float = 0.0) -> "Logistic":
        return Logistic(exact=False) if self.exact and not 0.0 < tol < ENOUGH else self

    def point(self, y: Array, f: Array) -> Expectation:
        return self._signed(y, f, *folded_point(f))

    def value(self, y: Array, f: Array) -> Array:
        u = y * f
        return np.asarray(np.minimum(u, 0.0) - np.log1p(np.exp(-np.abs(u))))

    @staticmethod
    def _signed(y: Array, m: Array, value: Array, slope: Array, curvature: Array) -> Expectation:
        softplus, sigmoid = unfold(-y * m, value, slope)  # log p(y|f) = -softplus(-y f)
        return Expectation(np.negative(softplus, out=softplus), np.multiply(-y, sigmoid, out=sigmoid), curvature)

    def start(self, y: Array) -> tuple[Array, Array]:
        return 0.5 * y, np.full_like(y, 0.25)

    def symmetry(self, y: Array) -> tuple[Array, Array]:
        return 0.5 * y, np.zeros_like(y)

    def even_part(self, y: Array, x: Array) -> EvenPart:
        return EvenPart(*special.log_cosh_even(x))

    def log_predictive(self, y: Array, m: Array, v: Array) -> Array:
        small = (folded_moments if self.exact else rough_moments)(m, v)[1]  # the probability of the less likely label
        if np.any(small < (1e-290 if self.exact else FAINT)):
            return super().log_predictive(y, m, v) if self.exact else Logistic().log_predictive(y, m, v)
        return np.where(y * m > 0.0, np.log1p(-small), np.log(small))

    def class_probabilities(self, m: Array, v: Array) -> Array:
        small = folded_moments(m, v)[1]
        up = m > 0.0
        return np.column_stack([np.where(up, small, 1.0 - small), np.where(up, 1.0 - small, small)])


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


def event_derivatives(f: Array) -> Triple:
    """g = log(1 - exp(-e^f)), g' = x/(e^x - 1) with x = e^f, and -g'' = g' (g' + x - 1), with relative accuracy."""
    with np.errstate(over="ignore", under="ignore"):
        x = np.exp(np.minimum(f, 700.0))
        miss = np.exp(-x)
    hit = -np.expm1(-x)
    small, near = x < 0.5, np.clip(x, np.finfo(float).tiny, 0.5)
    _, grown, rest = special.exponentials(near)  # e^x - 1, and that less x
    slope = np.where(small, near / grown, x * miss / np.where(hit > 0.0, hit, 1.0))
    gap = np.where(small, near - rest / grown, slope + x - 1.0)
    # 1 - e^-x = x e^-x / slope: nothing is lost where x underflows.
    value = np.where(small, f - near - np.log(np.where(small, slope, 1.0)), np.log1p(-np.minimum(miss, 0.75)))
    return value, slope, slope * gap


def _event_integrands(f: Array, rows: Index | None = None) -> Triple:
    value, slope, curvature = event_derivatives(f)
    return value, -slope, curvature


@lru_cache(maxsize=1)
def _event_table() -> WideTable:
    left = [-edge for edge in reversed(geometric_edges(1.0, 2e5))]
    right = [0.9, 1.7, 2.3, 2.8, 3.2, 3.6, 3.9, 4.15, 4.35, 4.5]
    return tabulate(_event_integrands, [*left, *right], least_deviation=0.5)


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
    low = m - s * np.sqrt(np.where(m > 0.0, np.minimum(at_peak, special.LARGEST_EXPONENT), 0.0) + SPAN * SPAN)
    high = np.minimum(m + v + SPAN * s, 6.7)
    landscape = Landscape(offset=np.maximum(1.84 - m, 0.0), height=np.full_like(m, 0.5 * np.pi),
                          tilt=np.exp(np.minimum(m, 10.0)) + 1.0, low=low, high=high, centre=np.zeros_like(m),
                          step=step, table=_event_table())
    return gaussian_expectation(_event_integrands, m, v, landscape)


@dataclass(frozen=True, eq=False)
class Binomial(Site):
    """y successes in ``trials``, each with probability sigmoid(f).

    >>> e = Binomial(trials=10).expect([3], m=[0.0], v=[0.0])
    >>> print(np.exp(e.value).round(12))
    [0.1171875]
    """

    trials: Array | float

    log_concave = True
    steady = True
    super_gaussian = True
    support = "{0, 1, ..., trials}"
    response = "counts"
    per_datum = ("trials",)

    def __post_init__(self) -> None:
        set_parameter(self, "trials", lambda x: (x >= 1.0) & (x == np.floor(x)), "Binomial needs trials in {1, 2, ...}",
                      "Drop the rows that had no trial.")

    def validate(self, y: ArrayLike) -> Array:
        return clean_data(self, y, lambda x: (x >= 0.0) & (x <= self.trials) & (x == np.floor(x)),
                          "y is the number of successes; check that it does not exceed trials.")

    def constant(self, y: Array) -> Array:
        return special.log_binomial(np.asarray(self.trials), y)

    def oracle(self, y: Array, m: Array, v: Array) -> Expectation:
        return two_sided(y, self.trials - y, m, *folded_moments(m, v))

    def point(self, y: Array, f: Array) -> Expectation:
        return two_sided(y, self.trials - y, f, *folded_point(f))

    def value(self, y: Array, f: Array) -> Array:
        return np.asarray(y * np.minimum(f, 0.0) - (self.trials - y) * np.maximum(f, 0.0)
                          - self.trials * np.log1p(np.exp(-np.abs(f))))

    def symmetry(self, y: Array) -> tuple[Array, Array]:
        return y - 0.5 * self.trials, np.zeros_like(y)

    def even_part(self, y: Array, x: Array) -> EvenPart:
        return EvenPart(*special.log_cosh_even(x)).scaled(self.trials)

    def start(self, y: Array) -> tuple[Array, Array]:
        # Half a success and half a failure more, so that the mode is finite.
        wins, losses = y + 0.5, self.trials - y + 0.5
        gamma = wins * losses / (wins + losses)
        return gamma * (np.log(wins) - np.log(losses)), gamma

    def response_moments(self, m: Array, v: Array) -> tuple[Array, Array]:
        mean, within, between = sigmoid_moments(m, v)
        return self.trials * mean, self.trials * (within + self.trials * between)

    def cdf(self, y: Array, f: Array) -> Array:
        left = self.trials - y
        return np.where(left > 0.0, betainc(np.maximum(left, 1.0), y + 1.0, expit(-f)), 1.0)


def two_sided(wins: Array, losses: Array, m: Array, value: Array, slope: Array, curvature: Array) -> Expectation:
    """-wins softplus(-f) - losses softplus(f) from the folded moments: terms of one sign, each with its own digits."""
    win_value, win_slope = unfold(-m, value, slope)
    loss_value, loss_slope = unfold(m, value, slope)
    with np.errstate(under="ignore"):
        return Expectation(-(wins * win_value + losses * loss_value), losses * loss_slope - wins * win_slope,
                           (wins + losses) * curvature)


@dataclass(frozen=True, eq=False)
class Poisson(Site):
    """Counts with mean ``exposure`` e^f.

    >>> e = Poisson().expect([0], m=[0.0], v=[2.0])  # -E e^f
    >>> print(e.value.round(6))
    [-2.718282]
    """

    exposure: Array | float = 1.0

    log_concave = True
    steady = True
    gamma_trend = "rising"
    response = "counts"
    positive = (("exposure", "Drop the rows that were not exposed."),)
    advice = "Use Gamma or Gaussian for measurements."

    def constant(self, y: Array) -> Array:
        return special.of_counts(_stirling_rest, y)

    def oracle(self, y: Array, m: Array, v: Array) -> Expectation:
        return rate_expectation(y, m + np.log(self.exposure), v)

    def start(self, y: Array) -> tuple[Array, Array]:
        gamma = y + 0.5
        return gamma * (np.log(gamma) - np.log(self.exposure)), gamma

    def response_moments(self, m: Array, v: Array) -> tuple[Array, Array]:
        mean, _, spread = lognormal_moments(m + np.log(self.exposure), v)
        return mean, mean + spread

    def cdf(self, y: Array, f: Array) -> Array:
        with np.errstate(over="ignore", under="ignore"):
            return np.asarray(gammaincc(y + 1.0, np.minimum(self.exposure * np.exp(f), 1e300)))


def _stirling_rest(y: Array) -> Array:
    """y log y - y - log y! by Stirling's formula, of which only the small terms remain; 0 at y = 0."""
    positive = np.maximum(y, 1.0)
    return np.where(y > 0.0, -0.5 * np.log(positive) - special.HALF_LOG_2PI - special.stirling_error(positive), 0.0)


def rate_expectation(y: Array, log_rate: Array, v: Array) -> Expectation:
    """E[y f - e^f] - (y log y - y) under N(log_rate, v): minus half the deviance, so that large y keeps its digits."""
    positive = y > 0.0
    weight = np.where(positive, y, 1.0)
    with np.errstate(over="ignore", under="ignore"):
        whole, excess, rest = special.exponentials(log_rate + 0.5 * v - np.log(weight))
        gamma = weight * whole
        value = np.where(positive, -weight * (rest + 0.5 * v), -gamma)
        return Expectation(value, np.where(positive, weight * excess, gamma), gamma)


@dataclass(frozen=True, eq=False)
class NegativeBinomial(Site):
    """Counts with mean mu = e^f and variance mu + mu^2 / ``size``.

    >>> e = NegativeBinomial(size=1.0).expect([0], m=[0.0], v=[0.0])  # geometric with probability 1/2
    >>> print(e.value.round(6))
    [-0.693147]
    """

    size: Array | float

    log_concave = True
    steady = True
    super_gaussian = True
    response = "counts"
    positive = (("size", "Use Poisson for counts that are not overdispersed."),)
    advice = "Use Gamma or Gaussian for measurements."

    def constant(self, y: Array) -> Array:
        # log gamma(y + size) - log gamma(size) - log y!, as a binomial coefficient times size / (y + size).
        def of(y: Array) -> Array:
            return special.log_binomial(y + self.size, y, np.asarray(self.size)) - np.log1p(y / self.size)

        return of(y) if np.ndim(self.size) else special.of_counts(of, y)

    def oracle(self, y: Array, m: Array, v: Array) -> Expectation:
        shifted = m - np.log(self.size)
        return two_sided(y, np.asarray(self.size), shifted, *folded_moments(shifted, v))

    def point(self, y: Array, f: Array) -> Expectation:
        shifted = f - np.log(self.size)
        return two_sided(y, np.asarray(self.size), shifted, *folded_point(shifted))

    def symmetry(self, y: Array) -> tuple[Array, Array]:
        return 0.5 * (y - self.size), np.log(self.size) + np.zeros_like(y)

    def even_part(self, y: Array, x: Array) -> EvenPart:
        return EvenPart(*special.log_cosh_even(x)).scaled(y + self.size)

    def start(self, y: Array) -> tuple[Array, Array]:
        count = y + 0.5
        gamma = count * self.size / (count + self.size)
        return gamma * np.log(count), gamma

    def response_moments(self, m: Array, v: Array) -> tuple[Array, Array]:
        mean, second, spread = lognormal_moments(m, v)
        return mean, mean + second / self.size + spread

    def cdf(self, y: Array, f: Array) -> Array:
        return np.asarray(betainc(self.size, y + 1.0, expit(np.log(self.size) - f)))
