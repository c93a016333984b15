"""Blocks of one hyperparameter: positive, between two limits, or on the whole line.

The values that a parameter can have, those of its prior included, are an interval; theta goes through the whole line.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
from scipy.special import expit, log_expit

from klimb._stan import StanPart, literal, said
from klimb._stored import stored
from klimb.errors import require
from klimb.numerics.arrays import Array
from klimb.priors import Beta, Fixed, PCCorrelation, PCShare, PositivePrior, Prior, Uniform
from klimb.theta.base import ParameterBlock, RowKind, Scale

POSITIVE_LIMITS = (-16.0, 14.0)  # of the log of a positive parameter in its unit
LIMIT = math.asinh(14.0)  # of theta between two limits in a search: 8e-7 of the way from either
STEP = 1e-5  # of differences of log densities, which are known to all digits
NEAREST = 0.05  # share of the way between two limits that a search starts from either of them


@dataclass(frozen=True)
class Support:
    """The values that a parameter can have, by a rising map from the whole line: theta is a logarithm, or asinh(logit).

    A correlation that the data leave open has a posterior up to its limits, whose tail falls as exp(-sqrt(logit)) under
    a penalised-complexity prior: too slowly for points at equal distances. The asinh makes such tails short.
    """

    low: float
    high: float

    @classmethod
    def of(cls, name: str, prior: Prior | None, low: float, high: float) -> Self:
        """Between two limits, and where the prior is not zero."""
        if not isinstance(prior, Uniform):
            return cls(low, high)
        found = cls(max(low, prior.lower), min(high, prior.upper))
        require(found.low < found.high, f"the prior of {name} must allow some values between {low:g} and {high:g}",
                str(prior), "Choose other limits.")
        return found

    @property
    def bounded(self) -> bool:
        return self.high < math.inf

    def value(self, theta: Array | float) -> Array:
        return np.asarray(self.low + (self.high - self.low) * expit(np.sinh(theta)) if self.bounded else np.exp(theta))

    def theta(self, value: Array | float) -> Array:
        if not self.bounded:
            return np.asarray(np.log(value))
        return np.asarray(np.arcsinh(np.log(value - self.low) - np.log(self.high - value)))

    def slope(self, theta: Array | float) -> Array:
        """Of the value in theta."""
        if not self.bounded:
            return np.asarray(np.exp(theta))
        logit = np.sinh(theta)
        return np.asarray((self.high - self.low) * expit(logit) * expit(-logit) * np.cosh(theta))

    def log_slope(self, theta: float) -> tuple[float, float]:
        """log of it, and the derivative of that in theta."""
        if not self.bounded:
            return theta, 1.0
        value, slope = self.log_uniform(theta)
        return math.log(self.high - self.low) + value, slope

    def log_uniform(self, theta: float) -> tuple[float, float]:
        """Log density of theta where all values are alike, and its derivative."""
        logit, per_logit = math.sinh(theta), math.cosh(theta)
        slope = (1.0 - 2.0 * float(expit(logit))) * per_logit + math.tanh(theta)
        return float(log_expit(logit) + log_expit(-logit)) + math.log(per_logit), slope

    def unconstrained(self, theta: Array) -> Array:
        """Theta as Stan has it: the logarithm or the logit."""
        return np.asarray(np.sinh(theta) if self.bounded else theta)

    def stan(self) -> str:
        """The same as limits in Stan."""
        return f"lower={literal(self.low)}, upper={literal(self.high)}" if self.bounded else "lower=0"


class SingleParameter(ParameterBlock):
    """One parameter by the map of its ``support``; a `Fixed` prior holds it."""

    name: str
    prior: Prior
    support: Support

    @property
    def free(self) -> bool:
        return not isinstance(self.prior, Fixed)

    @property
    def names(self) -> tuple[str, ...]:  # type: ignore[override]
        return (self.name,) if self.free else ()

    @abstractmethod
    def span(self) -> tuple[float, float, float]:
        """Where a search of theta starts, and its limits."""

    def search(self) -> tuple[Array, Array, Array]:
        start, lower, upper = (np.full(self.size, at) for at in self.span())
        return start, lower, upper

    def priors(self) -> dict[str, Prior | None]:
        return {self.name: self.prior}

    def printed(self) -> dict[str, str]:
        return {self.name: str(self.prior)}

    def to_stan(self, theta: Array) -> tuple[Array, ...]:
        return (np.asarray(self.value(theta)),) if self.free else ()

    def value(self, theta: Array) -> float:
        return self.prior.value if isinstance(self.prior, Fixed) else float(self.support.value(float(theta[0])))

    def pull(self, theta: Array, d_value: float) -> Array:
        return np.full(self.size, d_value * self.support.slope(theta)) if self.free else np.zeros(0)

    def reported(self, theta: Array) -> Array:
        return self.support.value(theta)

    def powers(self) -> tuple[float, ...]:
        power = min(float(getattr(self.prior, "power", 1.0)), 1.0)
        return (0.0 if self.support.bounded else power,) * self.size

    def alone(self) -> tuple[Callable[[Array], Array] | None, ...]:
        return (self.support.value,) * self.size

    def scales(self) -> tuple[Scale, ...]:
        return ((self.support.theta, self.support.value),) * self.size if self.support.bounded else super().scales()

    def stan(self, name: str) -> StanPart:
        if isinstance(self.prior, Fixed):
            return StanPart(data=(f"real {name};" + said(f"{self.name}, held"),), values={name: self.prior.value},
                            value=name)
        return StanPart(parameters=(f"real<{self.support.stan()}> {name};" + said(self.name),), names=(name,),
                        model=(f"target += {self._stan_density(name)};",), value=name)

    @abstractmethod
    def _stan_density(self, name: str) -> str:
        """The log prior of the value in Stan."""

    def from_stan(self, draws: Sequence[Array]) -> Array:
        return self.support.theta(draws[0])[:, None]

    def unconstrained(self, theta: Array) -> Array:
        return self.support.unconstrained(theta)


@stored("parameter.positive")
@dataclass(frozen=True, eq=False)
class PositiveParameter(SingleParameter):
    """One positive parameter, by its logarithm; a `Fixed` prior holds it, one between two limits makes it a logit."""

    name: str
    prior: Prior
    begin: float = 1.0  # where a search starts
    unit: float = 1.0  # limits of a search are in this unit
    least: float = 0.0  # a search stays above
    kind: RowKind = "parameter"

    @cached_property
    def support(self) -> Support:  # type: ignore[override]
        return Support.of(self.name, self.prior, 0.0, math.inf)

    def span(self) -> tuple[float, float, float]:
        support = self.support
        least = float(support.theta(self.least)) if support.low < self.least < support.high else -math.inf
        if support.bounded:
            share = np.clip((self.begin - support.low) / (support.high - support.low), NEAREST, 1.0 - NEAREST)
            return math.asinh(math.log(share / (1.0 - share))), max(-LIMIT, least), LIMIT
        low, high = (limit + math.log(self.unit) for limit in POSITIVE_LIMITS)
        return math.log(self.begin), max(low, least), high

    def log_prior(self, theta: Array) -> tuple[float, Array]:
        if not isinstance(self.prior, PositivePrior):
            return 0.0, np.zeros(0)
        if isinstance(self.prior, Uniform):
            value, slope = self.support.log_uniform(float(theta[0]))
            return value, np.array([slope])
        value = math.exp(theta[0])
        return self.prior.log_density(value) + float(theta[0]), np.array([self.prior.slope(value) + 1.0])

    def log_densities(self, theta: Array) -> Array:
        """The log prior of many thetas, where it has no limits."""
        assert isinstance(self.prior, PositivePrior)
        return np.asarray(self.prior.log_density(np.exp(theta)) + theta)

    def inside(self, theta: Array) -> Array:
        """A size that may be infinite has moments on the scale of its prior alone."""
        return self.support.value(theta) if self.support.bounded else np.exp(np.array(self.powers()) * theta)

    def _stan_density(self, name: str) -> str:
        assert isinstance(self.prior, PositivePrior)
        return self.prior.stan(name)


@stored("parameter.bounded")
@dataclass(frozen=True, eq=False)
class BoundedParameter(SingleParameter):
    """A parameter between ``low`` and ``high``; a `Fixed` prior holds it."""

    name: str
    prior: Prior
    low: float
    high: float
    begin: float = 0.5  # share of the way
    kind: RowKind = "field"

    @cached_property
    def support(self) -> Support:  # type: ignore[override]
        return Support.of(self.name, self.prior, self.low, self.high)

    def span(self) -> tuple[float, float, float]:
        return math.asinh(math.log(self.begin / (1.0 - self.begin))), -LIMIT, LIMIT

    def log_density(self, theta: Array) -> float:
        return self._density(float(theta[0])) if self.free else 0.0

    def _density(self, theta: float) -> float:
        """Per unit of theta."""
        logit, per_theta = math.sinh(theta), self.support.log_uniform(theta)[0]
        log_share, log_rest, prior = float(log_expit(logit)), float(log_expit(-logit)), self.prior
        if isinstance(prior, Beta):
            constant = math.lgamma(prior.a + prior.b) - math.lgamma(prior.a) - math.lgamma(prior.b)
            return constant + (prior.a - 1.0) * log_share + (prior.b - 1.0) * log_rest + per_theta
        if isinstance(prior, Uniform):
            return per_theta
        if isinstance(prior, PCShare):
            return prior.log_density_at(logit) - log_share - log_rest + per_theta
        assert isinstance(prior, PCCorrelation)
        width, value = math.log(self.high - self.low), float(self.support.value(theta))
        above = width + log_share if self.low == -1.0 else math.log1p(value)  # log(1 + r)
        return prior.log_density(value, width + log_rest + above) + width + per_theta

    def log_prior(self, theta: Array) -> tuple[float, Array]:
        if not self.free:
            return 0.0, np.zeros(0)
        at = float(theta[0])
        return self._density(at), np.array([(self._density(at + STEP) - self._density(at - STEP)) / (2.0 * STEP)])

    @cached_property
    def _table(self) -> tuple[Array, Array]:
        theta = np.linspace(-LIMIT, LIMIT, 1001)
        return theta, np.array([self._density(float(at)) for at in theta])

    def sharp_prior(self, theta: Array) -> Array | None:
        """Penalised complexity of a correlation has a cusp at 0; between the entries of a table it is right to 1e-5."""
        return np.interp(theta[:, 0], *self._table) if isinstance(self.prior, PCCorrelation) else None

    def signed(self) -> tuple[bool, ...]:
        return (self.support.low < 0.0,) * self.size

    def _stan_density(self, name: str) -> str:
        if isinstance(self.prior, Beta):
            width, low = literal(self.high - self.low), literal(self.low)
            density = f"beta_lpdf(({name} - {low}) / {width} | {literal(self.prior.a)}, {literal(self.prior.b)})"
            return density + f" - log({width})"
        assert isinstance(self.prior, Uniform | PCCorrelation | PCShare)
        return self.prior.stan(name)
