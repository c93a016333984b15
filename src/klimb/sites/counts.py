"""Sites of counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
from scipy.special import betainc, expit, gammaincc

from klimb.numerics.arrays import Array, ArrayLike
from klimb.numerics.responses import lognormal_moments, sigmoid_moments
from klimb.numerics.softplus import folded_moments, folded_point, unfold
from klimb.numerics.special import HALF_LOG_2PI, exponentials, log_binomial, log_cosh_even, stirling_error
from klimb.sites.base import EvenPart, Expectation, Site, clean_data, set_parameter


@final
@dataclass(frozen=True, eq=False)
class Binomial(Site):
    """y successes in ``trials``, each with probability sigmoid(f).

    >>> e = Binomial(trials=10).expect([3], m=[0.0], v=[0.0])
    >>> print(np.exp(e.value).round(12))
    [0.1171875]
    """

    trials: Array | float

    log_concave = True
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
        return log_binomial(np.asarray(self.trials), y)

    def oracle(self, y: Array, m: Array, v: Array) -> Expectation:
        return two_sided(y, self.trials - y, m, *folded_moments(m, v))

    def point(self, y: Array, f: Array) -> Expectation:
        return two_sided(y, self.trials - y, f, *folded_point(f))

    def symmetry(self, y: Array) -> tuple[Array, Array]:
        return y - 0.5 * self.trials, np.zeros_like(y)

    def even_part(self, y: Array, x: Array) -> EvenPart:
        return EvenPart(*log_cosh_even(x)).scaled(self.trials)

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


@final
@dataclass(frozen=True, eq=False)
class Poisson(Site):
    """Counts with mean ``exposure`` e^f.

    >>> e = Poisson().expect([0], m=[0.0], v=[2.0])  # -E e^f
    >>> print(e.value.round(6))
    [-2.718282]
    """

    exposure: Array | float = 1.0

    log_concave = True
    gamma_trend = "rising"
    response = "counts"
    positive = (("exposure", "Drop the rows that were not exposed."),)
    advice = "Use Gamma or Gaussian for measurements."

    def constant(self, y: Array) -> Array:
        # y log y - y - log y! by Stirling's formula, of which only the small terms remain; 0 at y = 0.
        positive = np.maximum(y, 1.0)
        return np.where(y > 0.0, -0.5 * np.log(positive) - HALF_LOG_2PI - stirling_error(positive), 0.0)

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


def rate_expectation(y: Array, log_rate: Array, v: Array) -> Expectation:
    """E[y f - e^f] - (y log y - y) under N(log_rate, v): minus half the deviance, so that large y keeps its digits."""
    positive = y > 0.0
    weight = np.where(positive, y, 1.0)
    with np.errstate(over="ignore", under="ignore"):
        whole, excess, rest = exponentials(log_rate + 0.5 * v - np.log(weight))
        gamma = weight * whole
        value = np.where(positive, -weight * (rest + 0.5 * v), -gamma)
        return Expectation(value, np.where(positive, weight * excess, gamma), gamma)


@final
@dataclass(frozen=True, eq=False)
class NegativeBinomial(Site):
    """Counts with mean mu = e^f and variance mu + mu^2 / ``size``.

    >>> e = NegativeBinomial(size=1.0).expect([0], m=[0.0], v=[0.0])  # geometric with probability 1/2
    >>> print(e.value.round(6))
    [-0.693147]
    """

    size: Array | float

    log_concave = True
    super_gaussian = True
    response = "counts"
    positive = (("size", "Use Poisson for counts that are not overdispersed."),)
    advice = "Use Gamma or Gaussian for measurements."

    def constant(self, y: Array) -> Array:
        # log gamma(y + size) - log gamma(size) - log y!, as a binomial coefficient times size / (y + size).
        return log_binomial(y + self.size, y, np.asarray(self.size)) - np.log1p(y / self.size)

    def oracle(self, y: Array, m: Array, v: Array) -> Expectation:
        shifted = m - np.log(self.size)
        return two_sided(y, np.asarray(self.size), shifted, *folded_moments(shifted, v))

    def point(self, y: Array, f: Array) -> Expectation:
        shifted = f - np.log(self.size)
        return two_sided(y, np.asarray(self.size), shifted, *folded_point(shifted))

    def symmetry(self, y: Array) -> tuple[Array, Array]:
        return 0.5 * (y - self.size), np.log(self.size) + np.zeros_like(y)

    def even_part(self, y: Array, x: Array) -> EvenPart:
        return EvenPart(*log_cosh_even(x)).scaled(y + self.size)

    def start(self, y: Array) -> tuple[Array, Array]:
        count = y + 0.5
        gamma = count * self.size / (count + self.size)
        return gamma * np.log(count), gamma

    def response_moments(self, m: Array, v: Array) -> tuple[Array, Array]:
        mean, second, spread = lognormal_moments(m, v)
        return mean, mean + second / self.size + spread

    def cdf(self, y: Array, f: Array) -> Array:
        return np.asarray(betainc(self.size, y + 1.0, expit(np.log(self.size) - f)))
