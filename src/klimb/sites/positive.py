"""Sites of positive measurements (waiting times, sizes, costs) and of proportions."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import betainc, expit, gamma, gammainc, gammaincc, gammaln

from klimb.errors import InputError
from klimb.numerics.arrays import Array, ArrayLike
from klimb.numerics.quadrature import Landscape, gaussian_expectation
from klimb.numerics.responses import lognormal_moments, sigmoid_moments
from klimb.numerics.search import monotone_root
from klimb.numerics.special import HALF_LOG_2PI, SPAN, exponentials, gamma_family, stirling_error
from klimb.sites.base import Expectation, Site, clean_data
from klimb.sites.counts import rate_expectation

SMALLEST_TAIL = 1e-290  # of a gamma distribution: below, its logarithm comes from the asymptotic form


class WaitingTime(Site):
    """P(T > t | f) = exp(-e^(sign f) t^shape): what is over at a rate that f raises or lowers."""

    log_concave = True
    gamma_trend = "rising"
    survivor_trend = "rising"
    response = "positive"
    shape: Array | float = 1.0

    @property
    def sign(self) -> float:
        """1 where f raises the rate, -1 where it lowers it."""
        return 1.0

    def oracle(self, y: Array, m: Array, v: Array) -> Expectation:
        with np.errstate(divide="ignore"):  # one event at the cumulative hazard
            e = rate_expectation(np.ones_like(y), self.sign * m + self.shape * np.log(y), v)
        return Expectation(e.value, self.sign * e.alpha, e.gamma)

    def response_moments(self, m: Array, v: Array) -> tuple[Array, Array]:
        k = np.asarray(self.shape)
        mean, second, spread = lognormal_moments(-self.sign * m / k, v / k**2)
        with np.errstate(over="ignore", invalid="ignore"):
            first, square = gamma(1.0 + 1.0 / k), gamma(1.0 + 2.0 / k)
            return first * mean, np.nan_to_num((square - first**2) * second + first**2 * spread, nan=np.inf)

    def cdf(self, y: Array, f: Array) -> Array:
        return -np.expm1(self.survivor_point(y, f).value)

    def survivor_point(self, y: Array, f: Array) -> Expectation:
        return self.survivor(y, f, np.zeros(()))

    def survivor(self, y: Array, m: Array, v: Array) -> Expectation:
        with np.errstate(over="ignore", under="ignore", divide="ignore"):
            lost = np.minimum(np.exp(self.sign * m + 0.5 * v + self.shape * np.log(y)), 1e300)
        return Expectation(-lost, self.sign * lost, lost)


@dataclass(frozen=True)
class Exponential(WaitingTime):
    """Waiting times with log rate f, or with log mean f if ``mean`` is true.

    >>> e = Exponential().expect([1.0], m=[0.0], v=[2.0])  # E[f - e^f]
    >>> print(e.value.round(6))
    [-2.718282]
    """

    mean: bool = False

    support = "[0, inf)"

    def __post_init__(self) -> None:
        if not isinstance(self.mean, (bool, np.bool_)):
            raise InputError("Exponential needs mean = True (f is the log mean) or False (f is the log rate)",
                             repr(self.mean), "The rate itself is e^f; it is not a parameter.")

    @property
    def sign(self) -> float:
        return -1.0 if self.mean else 1.0

    def validate(self, y: ArrayLike) -> Array:
        return clean_data(self, y, lambda x: x >= 0.0, "Waiting times are not negative; check the sign or the origin.")

    def constant(self, y: Array) -> Array:
        return np.where(y > 0.0, -1.0 - np.log(np.where(y > 0.0, y, 1.0)), 0.0)

    def oracle(self, y: Array, m: Array, v: Array) -> Expectation:
        e = super().oracle(y, m, v)
        return e._replace(value=np.where(y > 0.0, e.value, self.sign * m))  # what has no maximum has none taken out

    def start(self, y: Array) -> tuple[Array, Array]:
        # The mode of f - y e^f is -log y with curvature 1; a zero wait is moderated to the smallest scale of the data.
        floor = np.maximum(y, 1e-3 * np.mean(y) if np.any(y > 0.0) else 1.0)
        return -self.sign * np.log(floor), np.ones_like(y)


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
    response = "positive"
    positive = (("shape", "The shape is mean^2 / variance of y given f."),)
    advice = "Use Exponential if zeros are exact, or model zeros apart."

    def constant(self, y: Array) -> Array:
        # k log k - k - log gamma(k) - log y by Stirling's formula, of which only the small terms remain.
        shape = np.asarray(self.shape)
        return np.asarray(0.5 * np.log(shape) - HALF_LOG_2PI - stirling_error(shape) - np.log(y))

    def oracle(self, y: Array, m: Array, v: Array) -> Expectation:
        with np.errstate(over="ignore", under="ignore"):
            whole, excess, rest = exponentials(np.log(y) - m + 0.5 * v)
            return Expectation(-self.shape * (rest + 0.5 * v), -self.shape * excess, self.shape * whole)

    def start(self, y: Array) -> tuple[Array, Array]:
        gamma = np.broadcast_to(np.asarray(self.shape), y.shape).copy()
        return gamma * np.log(y), gamma

    def response_moments(self, m: Array, v: Array) -> tuple[Array, Array]:
        mean, second, spread = lognormal_moments(m, v)
        return mean, second / self.shape + spread

    def cdf(self, y: Array, f: Array) -> Array:
        with np.errstate(over="ignore", under="ignore"):
            return np.asarray(gammainc(self.shape, np.minimum(self.shape * y * np.exp(-f), 1e300)))

    def survivor_point(self, y: Array, f: Array) -> Expectation:
        k = np.asarray(self.shape)
        with np.errstate(all="ignore"):
            x = np.clip(k * y * np.exp(-f), 1e-300, 1e300)
            log_density = (k - 1.0) * np.log(x) - x - gammaln(k)
            share = gammaincc(k, x)
            far = log_density - np.log1p(-np.minimum((k - 1.0) / x, 0.5))
            value = np.where(share > SMALLEST_TAIL, np.log(np.maximum(share, SMALLEST_TAIL)), far)
            slope = np.exp(np.log(x) + log_density - value)  # of -log P(Y > y) in log x
            return Expectation(value, -slope, slope * np.maximum(k - x + slope, 0.0))


@dataclass(frozen=True, eq=False)
class Weibull(WaitingTime):
    """Waiting times with the hazard ``shape`` t^(shape - 1) e^f: P(T > t | f) = exp(-e^f t^shape).

    >>> e = Weibull(shape=2.0).expect([1.0], m=[0.0], v=[2.0])  # log 2 + E[f - e^f]
    >>> print(e.value.round(6))
    [-2.025135]
    """

    shape: Array | float

    positive = (("shape", "The hazard rises with time where shape > 1, and falls where shape < 1."),)
    advice = "Waiting times are positive; give zeros half the smallest unit."

    def constant(self, y: Array) -> Array:
        return np.asarray(np.log(self.shape) - 1.0 - np.log(y))

    def parameter_slopes(self, y: Array, m: Array, v: Array, counts: Array | float = 1.0) -> Mapping[str, Any] | None:
        return self.censored_slopes(y, m, v, np.ones(()), counts)

    def censored_slopes(self, y: Array, m: Array, v: Array, status: Array,
                        counts: Array | float = 1.0) -> Mapping[str, Any] | None:
        lost = self.survivor(y, m, v).gamma
        return {"shape": float(np.sum(counts * (status / self.shape - (lost - status) * np.log(y))))}

    def start(self, y: Array) -> tuple[Array, Array]:
        return -self.shape * np.log(y), np.ones_like(y)

    @property
    def mean_predictor(self) -> tuple[Any, Any]:
        return gammaln(1.0 + 1.0 / self.shape), -1.0 / self.shape


@dataclass(frozen=True, eq=False)
class Beta(Site):
    """y ~ Beta(precision mu, precision (1 - mu)) with mean mu = sigmoid(f). Not log-concave in f.

    >>> e = Beta(precision=2.0).expect([0.3], m=[0.0], v=[0.0])  # uniform
    >>> print(np.abs(e.value).round(12))
    [0.]
    """

    precision: Array | float

    log_concave = False
    response = "unit"
    positive = (("precision", "The variance of y given f is mu (1 - mu) / (1 + precision)."),)
    advice = "Use Binomial for counts, or shrink exact 0 and 1 inwards."

    # There is no constant: all of log p is in ``point``, since near the uniform density its terms in y cancel.

    def oracle(self, y: Array, m: Array, v: Array) -> Expectation:
        # The gamma functions and the sigmoid have their singularities on Im f = +-pi, over |Re f| < log(1 + precision).
        edge = np.log1p(self.precision) + np.zeros_like(m)
        s, size = np.sqrt(v), np.abs(m)
        far = np.maximum(size - edge, 0.0)
        # The curvature falls like exp(-|f|), which moves its mass from m towards the centre.
        inward = np.where(v < size, v + SPAN * s, np.sqrt(m * m + SPAN * SPAN * v))
        side = np.where(m > 0.0, 1.0, -1.0)
        ends = (m + side * SPAN * s, m - side * inward)
        landscape = Landscape(offset=far, height=np.full_like(m, np.pi), tilt=np.ones_like(m),
                              low=np.minimum(*ends), high=np.maximum(*ends), centre=np.zeros_like(m),
                              step=lambda f, rows: 0.75 * np.hypot(np.maximum(np.abs(f) - edge[rows], 0.0), np.pi),
                              by_parts=size < 3.0 * s)
        return Expectation(*gaussian_expectation(lambda f, rows: self.rows(rows).point(y[rows], f), m, v, landscape))

    def point(self, y: Array, f: Array) -> Expectation:
        precision = np.asarray(self.precision)
        logit = np.log(y) - np.log1p(-y)
        with np.errstate(under="ignore"):
            e = np.exp(-np.abs(f))
            larger = 1.0 / (1.0 + e)
            smaller = e * larger
            mu, nu = np.where(f < 0.0, smaller, larger), np.where(f < 0.0, larger, smaller)
            p, q, w = precision * mu, precision * nu, smaller * larger
            # log gamma(p) = log gamma(1 + p) - log p, and so on: no poles at p -> 0.
            log_pq = 2.0 * np.log(precision) - np.abs(f) - 2.0 * np.log1p(e)
            log_p, digamma_p, trigamma_p = gamma_family(1.0 + p)
            log_q, digamma_q, trigamma_q = gamma_family(1.0 + q)
            value = gammaln(precision) - log_p - log_q + log_pq
            value += (p - 1.0) * np.log(y) + (q - 1.0) * np.log1p(-y)
            pull = digamma_q - digamma_p + logit
            tilt, spread = nu - mu, precision * w
            slope = tilt + spread * pull
            curvature = 2.0 * w - spread * tilt * pull + spread * spread * (trigamma_p + trigamma_q)
        return Expectation(value, -slope, curvature)

    def start(self, y: Array) -> tuple[Array, Array]:
        # Mode near logit(y), moderated towards 0 for extreme y, with the expected information there.
        middle = np.clip(np.log(y) - np.log1p(-y), -6.0, 6.0)
        e = self.point(y, middle)
        gamma = np.maximum(e.gamma, 0.0)
        return gamma * middle - e.alpha, gamma

    def peak(self, y: Array) -> tuple[Array, Array]:
        # log p rises up to one peak, between 0 and a little beyond logit(y).
        logit = np.log(y) - np.log1p(-y)
        f = monotone_root(lambda rows, at: self.rows(rows).point(y[rows], at).alpha, logit, np.ones_like(y))
        return f, 1.0 / np.sqrt(np.maximum(self.point(y, f).gamma, 1.0))

    def response_moments(self, m: Array, v: Array) -> tuple[Array, Array]:
        mean, within, between = sigmoid_moments(m, v)
        return mean, within / (1.0 + self.precision) + between

    def cdf(self, y: Array, f: Array) -> Array:
        return np.asarray(betainc(np.maximum(self.precision * expit(f), 1e-300),
                                  np.maximum(self.precision * expit(-f), 1e-300), y))
