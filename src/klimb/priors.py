"""Priors by name: normal for coefficients, densities on the positive numbers for standard deviations and their like.

    klimb.fit("y ~ x + (1|g)", df, priors={"x": normal(0, 1), "Intercept": "normal(0, 5)", "sd(g)": half_normal(1)})

A text such as "normal(0, 1)" means the same as the call.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from klimb._calls import checked_number, checked_positive, checked_probability, parse_call
from klimb._stan import literal, spline_text
from klimb._stored import stored
from klimb.errors import InputError, require
from klimb.numerics.lazy import scipy_interpolate

LARGEST_LOG = 700.0  # exp of more is not a number
KIND = "prior."
SHARE_LOGITS, FADING = tuple(range(-14, 15)), 7.0  # where a share's distance is known; beyond, its slope falls by e


class Prior(ABC):
    """A prior that prints as the call that makes it."""

    @abstractmethod
    def __str__(self) -> str: ...


@dataclass(frozen=True)
class NamedPrior(Prior):
    """A prior with checked numbers, positive but for those of ``any_sign``; files know it by its call (repr fields)."""

    stored_kind: ClassVar[str]
    any_sign: ClassVar[tuple[str, ...]] = ()
    shares: ClassVar[tuple[str, ...]] = ()  # numbers that must be below 1 as well

    def __post_init__(self) -> None:
        for name in (part.name for part in fields(self) if part.repr):
            check = checked_probability if name in self.shares else checked_positive
            check = checked_number if name in self.any_sign else check
            object.__setattr__(self, name, check(self.stored_kind.removeprefix(KIND), name, getattr(self, name)))

    def __str__(self) -> str:
        numbers = ", ".join(_short(getattr(self, part.name)) for part in fields(self) if part.repr)
        return f"{self.stored_kind.removeprefix(KIND)}({numbers})"


@stored("prior.normal")
@dataclass(frozen=True)
class Normal(NamedPrior):
    """N(mean, sd^2), for coefficients.

    >>> print(normal(0, 2.5))
    normal(0, 2.5)
    """

    any_sign = ("mean",)
    mean: float = 0.0
    sd: float = 1.0


class PositivePrior(Prior):
    """A density on the positive numbers."""

    @abstractmethod
    def log_density(self, value: Any) -> Any:
        """Log density of a value, or of many."""

    @abstractmethod
    def slope(self, value: float) -> float:
        """Derivative of ``log_density`` in log(value)."""

    @abstractmethod
    def typical(self) -> float:
        """A value in the middle of the prior."""

    def stan(self, name: str) -> str:
        """``log_density`` of a variable as an expression of Stan."""
        raise InputError("this needs a prior that can be written in Stan", str(self), "Give the prior a method stan.")


@stored("prior.exponential")
@dataclass(frozen=True)
class Exponential(NamedPrior, PositivePrior):
    """value^power is exponential with this mean, not rate: penalised complexity, the simplest model being 0.

    Power 1 is for standard deviations, power 1/2 for variances. Power -1/2 is for sizes, shapes and precisions:
    size^-1/2 is the coefficient of variation that they add. Power -dim/2 is for lengthscales over ``dim`` inputs.
    """

    any_sign = ("power",)
    mean: float = 1.0
    power: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.power, "exponential needs a power other than 0", 0, "Leave it out for standard deviations.")

    def log_density(self, value: Any) -> Any:
        p, log_value = self.power, np.log(value)
        size = np.exp(np.minimum(p * log_value, LARGEST_LOG))
        return -size / self.mean - math.log(self.mean) + math.log(abs(p)) + (p - 1.0) * log_value

    def slope(self, value: float) -> float:
        return self.power * (1.0 - math.exp(min(self.power * math.log(value), LARGEST_LOG)) / self.mean) - 1.0

    def typical(self) -> float:
        return float((0.7 * self.mean) ** (1.0 / self.power))

    def stan(self, name: str) -> str:
        rate, p = literal(1.0 / self.mean), self.power
        if p == 1.0:
            return f"exponential_lpdf({name} | {rate})"
        slope = f"log({literal(abs(p))}) + {literal(p - 1.0)} * log({name})"  # of name^p
        return f"exponential_lpdf(pow({name}, {literal(p)}) | {rate}) + {slope}"

    def __str__(self) -> str:
        power = "" if self.power == 1.0 else f", power={_short(self.power)}"
        return f"exponential({_short(self.mean)}{power})"


@stored("prior.half_normal")
@dataclass(frozen=True)
class HalfNormal(NamedPrior, PositivePrior):
    """The positive half of N(0, sd^2)."""

    sd: float = 1.0

    def log_density(self, value: Any) -> Any:
        return 0.5 * math.log(2.0 / math.pi) - math.log(self.sd) - 0.5 * (value / self.sd) ** 2

    def slope(self, value: float) -> float:
        return -((value / self.sd) ** 2)

    def typical(self) -> float:
        return 0.67 * self.sd

    def stan(self, name: str) -> str:
        return f"normal_lpdf({name} | 0, {literal(self.sd)}) + log(2)"


@stored("prior.log_normal")
@dataclass(frozen=True)
class LogNormal(NamedPrior, PositivePrior):
    """log(value) is normal around log(median)."""

    median: float = 1.0
    sd: float = 1.0

    def log_density(self, value: Any) -> Any:
        score = (np.log(value) - math.log(self.median)) / self.sd
        return -0.5 * score**2 - np.log(self.sd * value) - 0.5 * math.log(2.0 * math.pi)

    def slope(self, value: float) -> float:
        return -(math.log(value) - math.log(self.median)) / self.sd**2 - 1.0

    def typical(self) -> float:
        return self.median

    def stan(self, name: str) -> str:
        return f"lognormal_lpdf({name} | {literal(math.log(self.median))}, {literal(self.sd)})"


@stored("prior.gamma")
@dataclass(frozen=True)
class Gamma(NamedPrior, PositivePrior):
    """Density proportional to value^(shape - 1) exp(-rate value)."""

    shape: float
    rate: float

    def log_density(self, value: Any) -> Any:
        a = self.shape
        return a * math.log(self.rate) - math.lgamma(a) + (a - 1.0) * np.log(value) - self.rate * value

    def slope(self, value: float) -> float:
        return self.shape - 1.0 - self.rate * value

    def typical(self) -> float:
        return self.shape / self.rate

    def stan(self, name: str) -> str:
        return f"gamma_lpdf({name} | {literal(self.shape)}, {literal(self.rate)})"


@stored("prior.log_flat")
@dataclass(frozen=True)
class LogFlat(PositivePrior):
    """Flat in the logarithm of the value: no opinion on its size. It is improper."""

    def log_density(self, value: Any) -> Any:
        return -np.log(value)

    def slope(self, value: float) -> float:
        return -1.0

    def typical(self) -> float:
        return 1.0

    def stan(self, name: str) -> str:
        return f"-log({name})"

    def __str__(self) -> str:
        return "flat in its logarithm"


@stored("prior.beta")
@dataclass(frozen=True)
class Beta(NamedPrior):
    """For parameters between two limits: their share of the way from the lower to the upper one is beta(a, b).

    So for a share such as phi(bym2(r)) it is the prior itself, for a correlation rho that of (rho + 1) / 2.

    >>> print(beta(2, 1))
    beta(2, 1)
    """

    a: float = 1.0
    b: float = 1.0


@stored("prior.uniform")
@dataclass(frozen=True)
class Uniform(NamedPrior, PositivePrior):
    """Every value between ``lower`` and ``upper`` alike."""

    any_sign = ("lower", "upper")
    lower: float = 0.0
    upper: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.lower < self.upper, "uniform needs lower < upper", f"{self.lower} and {self.upper}",
                "Pass the smaller one first.")

    def log_density(self, value: Any) -> Any:
        inside = (self.lower <= value) & (value <= self.upper)
        return np.where(inside, -math.log(self.upper - self.lower), -np.inf)[()]

    def slope(self, value: float) -> float:
        return 0.0

    def typical(self) -> float:
        return 0.5 * (self.lower + self.upper)

    def stan(self, name: str) -> str:
        return f"uniform_lpdf({name} | {literal(self.lower)}, {literal(self.upper)})"


@stored("prior.pc_correlation")
@dataclass(frozen=True)
class PCCorrelation(NamedPrior):
    """Penalised complexity of a correlation r, the simplest model being r = 0: sqrt(-log(1 - r^2)) is exponential."""

    shares = ("limit", "probability")
    limit: float = 0.5
    probability: float = 0.5  # of |r| > limit

    def log_density(self, value: float, log_rest: float | None = None) -> float:
        """At r; ``log_rest`` is log(1 - r^2), which r itself does not tell near -1 and 1."""
        rate = -math.log(self.probability) / math.sqrt(-math.log1p(-self.limit**2))
        rest = math.log1p(-(value**2)) if log_rest is None or abs(value) < 0.5 else log_rest
        distance = math.sqrt(-rest)
        return math.log(0.5 * rate * (abs(value) / distance if distance > 0.0 else 1.0)) - rate * distance - rest

    def stan(self, name: str) -> str:
        rate = literal(-math.log(self.probability) / math.sqrt(-math.log1p(-self.limit**2)))
        distance = f"sqrt(-log1m({name}^2))"
        return f"log(0.5 * {rate} * abs({name}) / {distance}) - {rate} * {distance} - log1m({name}^2)"


@stored("prior.pc_share")
@dataclass(frozen=True)
class PCShare(NamedPrior):
    """Penalised complexity of phi of BYM2, the simplest model being phi = 0: P(phi < limit) = probability.

    The distance from there, sqrt(2 KL), is exponential, up to that of phi = 1. It hangs on the graph: the term adds its
    logarithm at the logits ``SHARE_LOGITS`` of phi, between which it is a cubic spline. Beyond them what it grows by
    fades away: it is infinite at phi = 1, by a logarithm alone, which left an eighth of the mass where phi rounds to 1.
    """

    shares = ("limit", "probability")
    limit: float = 0.5
    probability: float = 2.0 / 3.0
    log_distances: tuple[float, ...] = field(default=(), repr=False)

    @cached_property
    def _log_distance(self) -> tuple[Any, float, float]:
        """A spline of the logit, the rate of the distance, and the log of its density at 0."""
        from klimb.numerics.special import cut_exponential

        spline = scipy_interpolate.CubicSpline(SHARE_LOGITS, self.log_distances)
        longest = math.exp(spline(SHARE_LOGITS[-1])) * (1.0 + FADING * float(spline(SHARE_LOGITS[-1], 1)))
        limit = math.exp(spline(math.log(self.limit / (1.0 - self.limit)))) / longest
        rate, level = cut_exponential(limit, self.probability)
        return spline, rate / longest, level - math.log(longest)

    def log_density(self, value: float) -> float:
        return self.log_density_at(math.log(value) - math.log1p(-value)) - math.log(value) - math.log1p(-value)

    def log_density_at(self, logit: float) -> float:
        """Per unit of the logit; below its ends the spline goes on as a line."""
        spline, rate, level = self._log_distance
        inside = min(max(logit, SHARE_LOGITS[0]), SHARE_LOGITS[-1])
        slope, beyond = float(spline(inside, 1)), max(logit - inside, 0.0) / FADING
        log_distance = float(spline(inside)) + slope * min(logit - inside, 0.0)
        rate *= 1.0 - FADING * slope * math.expm1(-beyond)
        return level + math.log(slope) + log_distance - beyond - rate * math.exp(log_distance)

    def stan(self, name: str) -> str:
        spline, rate, level = self._log_distance
        first, last = literal(SHARE_LOGITS[0]), literal(SHARE_LOGITS[-1])
        own, rise = spline_text(f"(fmin(fmax(logit({name}), {first}), {last}) - {first})", spline)
        beyond = f"fmax((logit({name}) - {last}) / {FADING}, 0)"
        log_distance = f"({own} + {rise} * fmin(logit({name}) - {first}, 0))"
        return (f"{level!r} + log({rise}) + {log_distance} - {beyond} - {rate!r} * exp({log_distance}) "
                f"* (1 - {FADING} * {rise} * expm1(-{beyond})) - log({name}) - log1m({name})")


@stored("prior.lkj")
@dataclass(frozen=True)
class LKJ(NamedPrior):
    """Density of a correlation matrix proportional to det^(eta - 1): 1 is uniform, more pulls towards 0."""

    eta: float = 2.0


@stored("prior.dirichlet")
@dataclass(frozen=True)
class Dirichlet(NamedPrior):
    """For cut points: the probabilities of the levels at f = 0 are Dirichlet with this concentration each."""

    concentration: float = 1.0


@stored("prior.fixed")
@dataclass(frozen=True)
class Fixed(NamedPrior):
    """A parameter that is known: held at this value."""

    any_sign = ("value",)
    value: float


normal, exponential, half_normal, log_normal, gamma, lkj = Normal, Exponential, HalfNormal, LogNormal, Gamma, LKJ
dirichlet, fixed, beta, uniform, pc_correlation, pc_share = Dirichlet, Fixed, Beta, Uniform, PCCorrelation, PCShare


def pc_variance(sd: float = 1.0, probability: float = 0.05) -> Exponential:
    """Penalised complexity for a variance: P(sqrt(variance) > sd) = ``probability``; the simplest model has none.

    >>> prior = pc_variance(sd=1.0, probability=0.05)  # a standard deviation above 1 is thought unlikely
    >>> bool(prior.log_density(0.01) > prior.log_density(1.0))
    True
    """
    log_share = math.log(checked_probability("pc_variance", "probability", probability))
    return Exponential(1.0 / (-log_share / checked_positive("pc_variance", "sd", sd)), 0.5)


def pc_lengthscale(lower: float = 0.1, probability: float = 0.05, dim: int = 1) -> Exponential:
    """Penalised complexity for a lengthscale over ``dim`` inputs: P(lengthscale < lower) = ``probability``.

    The simplest model is the flat one, with an infinite lengthscale.

    >>> prior = pc_lengthscale(lower=0.1, probability=0.05)
    >>> bool(prior.log_density(1.0) > prior.log_density(0.01))
    True
    """
    require(dim >= 1, "pc_lengthscale needs dim >= 1", dim, "Pass the number of input columns.")
    rate = -math.log(checked_probability("pc_lengthscale", "probability", probability))
    return Exponential(checked_positive("pc_lengthscale", "lower", lower) ** (-0.5 * dim) / rate, -0.5 * dim)


def pc_range(limit: float, probability: float = 0.5) -> Exponential:
    """For the range of a field over two coordinates: penalised complexity with P(range < limit) = probability.

    1 / range is exponential (Fuglstad and others 2019), so P(range < r) = exp(-m / r) with m = -log(probability) limit.

    >>> print(pc_range(2.0, 0.5))
    exponential(0.721, power=-1)
    """
    log_share = math.log(checked_probability("pc_range", "probability", probability))
    return Exponential(-1.0 / (log_share * checked_positive("pc_range", "limit", limit)), -1.0)


PRIORS: dict[str, Callable[..., Prior]] = {
    prior.stored_kind.removeprefix(KIND): prior for prior in (normal, exponential, half_normal, log_normal, gamma, lkj,
                                                              dirichlet, fixed, beta, uniform, pc_correlation, pc_share)
} | {prior.__name__: prior for prior in (pc_variance, pc_lengthscale, pc_range)}


def as_prior(value: Any, name: str) -> Prior:
    """A prior from a prior, a number (held fixed) or a text such as "normal(0, 1)"."""
    if isinstance(value, Prior):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return fixed(value)
    if isinstance(value, str):
        call, arguments = parse_call(value, f"the prior of {name}")
        require(call in PRIORS, f"the prior of {name} must be one of {', '.join(PRIORS)}", repr(call),
                'Write it as "normal(0, 1)".')
        positional = arguments.pop("", ())
        require(call != "normal" or len(positional) >= 2 or "sd" in arguments,
                f"the prior of {name} must have a mean and an sd", repr(value), 'Write it as "normal(0, 1)".')
        try:
            return PRIORS[call](*positional, **arguments)
        except TypeError as error:
            raise InputError(f"the prior of {name} must have the arguments of klimb.priors.{call}", repr(value),
                             f"{error}.") from error
    raise InputError(f"the prior of {name} must be a prior of klimb.priors", repr(value),
                     'Pass klimb.priors.normal(0, 1), say, or the text "normal(0, 1)".')


def _short(value: float) -> str:
    return f"{value:.3g}"
