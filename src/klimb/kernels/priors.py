"""Priors of positive parameters: a density of the value, whose slope is taken in the logarithm of the value."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

from klimb.errors import InputError


class Prior(ABC):
    """A density on the positive numbers."""

    @abstractmethod
    def log_density(self, value: float) -> float:
        """Log density of the value itself (not of its logarithm)."""

    @abstractmethod
    def slope(self, value: float) -> float:
        """Derivative of ``log_density`` in log(value)."""


@final
@dataclass(frozen=True)
class LogNormal(Prior):
    """log(value) is normal around log(median) with standard deviation ``sd``.

    >>> LogNormal(median=2.0, sd=0.5).slope(2.0)  # at the median only the Jacobian -log(value) is left
    -1.0
    """

    median: float = 1.0
    sd: float = 1.0

    def __post_init__(self) -> None:
        _check_positive(self, "median", self.median)
        _check_positive(self, "sd", self.sd)

    def log_density(self, value: float) -> float:
        return -0.5 * self._score(value) ** 2 - math.log(self.sd * math.sqrt(2.0 * math.pi)) - math.log(value)

    def slope(self, value: float) -> float:
        return -self._score(value) / self.sd - 1.0

    def _score(self, value: float) -> float:
        return (math.log(value) - math.log(self.median)) / self.sd


@final
@dataclass(frozen=True)
class PCVariance(Prior):
    """Penalised complexity for a variance: its square root is exponential, P(sqrt(variance) > sd) = ``probability``.

    The simplest model is the one without the component (variance 0), and leaving it is penalised at a constant rate.

    >>> prior = PCVariance(sd=1.0, probability=0.05)  # a standard deviation above 1 is thought unlikely
    >>> prior.log_density(0.01) > prior.log_density(1.0)
    True
    """

    sd: float = 1.0
    probability: float = 0.05

    def __post_init__(self) -> None:
        _check_positive(self, "sd", self.sd)
        _check_probability(self, self.probability)

    def log_density(self, value: float) -> float:
        rate, root = self._rate(), math.sqrt(value)
        return math.log(rate / 2.0) - math.log(root) - rate * root

    def slope(self, value: float) -> float:
        return -0.5 - 0.5 * self._rate() * math.sqrt(value)

    def _rate(self) -> float:
        return -math.log(self.probability) / self.sd


@final
@dataclass(frozen=True)
class PCLengthscale(Prior):
    """Penalised complexity for a lengthscale: P(lengthscale < lower) = ``probability``, inputs of dimension ``dim``.

    The simplest model is the flat one (infinite lengthscale): lengthscale^(-dim/2) is exponential.

    >>> prior = PCLengthscale(lower=0.1, probability=0.05)
    >>> prior.log_density(1.0) > prior.log_density(0.01)
    True
    """

    lower: float = 0.1
    probability: float = 0.05
    dim: int = 1

    def __post_init__(self) -> None:
        _check_positive(self, "lower", self.lower)
        _check_probability(self, self.probability)
        if self.dim < 1:
            raise InputError("PCLengthscale needs dim >= 1", f"{self.dim}", "Pass the number of input columns.")

    def log_density(self, value: float) -> float:
        half, rate = 0.5 * self.dim, -math.log(self.probability)
        log_ratio = self._log_ratio(value)
        return math.log(half * rate) - math.log(value) + log_ratio - rate * math.exp(log_ratio)

    def slope(self, value: float) -> float:
        half, rate = 0.5 * self.dim, -math.log(self.probability)
        return -1.0 - half + half * rate * math.exp(self._log_ratio(value))

    def _log_ratio(self, value: float) -> float:
        """Log of (lower / value)^(dim/2), held where its exponential still is a number."""
        return min(0.5 * self.dim * (math.log(self.lower) - math.log(value)), 700.0)


def _check_positive(prior: Prior, name: str, value: float) -> None:
    if not 0.0 < value < math.inf:
        raise InputError(f"{type(prior).__name__} needs a finite {name} > 0", f"{value}", f"Pass a positive {name}.")


def _check_probability(prior: Prior, value: float) -> None:
    if not 0.0 < value < 1.0:
        raise InputError(f"{type(prior).__name__} needs 0 < probability < 1", f"{value}",
                         "Pass how likely the far side of the stated limit is, e.g. 0.05.")
