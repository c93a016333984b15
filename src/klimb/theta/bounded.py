"""One parameter between two limits, such as a correlation or a share, by the logit of its way between them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from klimb._stan import StanPart, literal, said
from klimb._stored import stored
from klimb.numerics.arrays import Array
from klimb.priors import Beta, Fixed, PCCorrelation, Prior, Uniform
from klimb.theta.base import RowKind, Scale, SingleParameter

LIMIT = 14.0  # of the logit in a search: 8e-7 of the way from a limit
STEP = 1e-5  # of differences of log densities, which are known to all digits


@final
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

    @property
    def start(self) -> Array:  # type: ignore[override]
        return np.full(self.size, math.log(self.begin / (1.0 - self.begin)))

    @property
    def lower(self) -> Array:  # type: ignore[override]
        return np.full(self.size, -LIMIT)

    @property
    def upper(self) -> Array:  # type: ignore[override]
        return np.full(self.size, LIMIT)

    def value(self, theta: Array) -> float:
        if isinstance(self.prior, Fixed):
            return self.prior.value
        return float(self._from_logit(theta[0]))

    def _from_logit(self, logit: Array) -> Array:
        return np.asarray(self.low + (self.high - self.low) / (1.0 + np.exp(-logit)))

    def _to_logit(self, value: Array) -> Array:
        return np.asarray(np.log(value - self.low) - np.log(self.high - value))

    def pull(self, theta: Array, d_value: float) -> Array:
        if not self.free:
            return np.zeros(0)
        share = 1.0 / (1.0 + math.exp(-theta[0]))
        return np.array([d_value * (self.high - self.low) * share * (1.0 - share)])

    def log_density(self, theta: Array) -> float:
        return self._density(float(theta[0])) if self.free else 0.0

    def _density(self, logit: float) -> float:
        """Per unit of the logit, which is that of the share times share (1 - share)."""
        log_share, log_rest = -np.logaddexp(0.0, -logit), -np.logaddexp(0.0, logit)
        prior, width = self.prior, self.high - self.low
        if isinstance(prior, Beta):
            constant = math.lgamma(prior.a + prior.b) - math.lgamma(prior.a) - math.lgamma(prior.b)
            return float(constant + prior.a * log_share + prior.b * log_rest)
        value = float(self._from_logit(np.asarray(logit)))
        assert isinstance(prior, Uniform | PCCorrelation)
        return float(prior.log_density(value) + math.log(width) + log_share + log_rest)

    def log_prior(self, theta: Array) -> tuple[float, Array]:
        if not self.free:
            return 0.0, np.zeros(0)
        at = float(theta[0])
        slope = (self._density(at + STEP) - self._density(at - STEP)) / (2.0 * STEP)
        return self._density(at), np.array([slope])

    def reported(self, theta: Array) -> Array:
        return self._from_logit(theta)

    def signed(self) -> tuple[bool, ...]:
        return (self.low < 0.0,) * self.size

    def alone(self) -> tuple[Callable[[Array], Array] | None, ...]:
        return (self._from_logit,) * self.size

    def scales(self) -> tuple[Scale, ...]:
        return ((self._to_logit, self._from_logit),) * self.size

    def stan(self, name: str) -> StanPart:
        if isinstance(self.prior, Fixed):
            return StanPart(data=(f"real {name};" + said(f"{self.name}, held"),), values={name: self.prior.value},
                            value=name)
        width, low = literal(self.high - self.low), literal(self.low)
        if isinstance(self.prior, Beta):
            density = f"beta_lpdf(({name} - {low}) / {width} | {literal(self.prior.a)}, {literal(self.prior.b)})"
            density += f" - log({width})"
        else:
            assert isinstance(self.prior, Uniform | PCCorrelation)
            density = self.prior.stan(name)
        limits = f"<lower={low}, upper={literal(self.high)}>"
        return StanPart(parameters=(f"real{limits} {name};" + said(self.name),), names=(name,),
                        model=(f"target += {density};",), value=name)

    def from_stan(self, draws: Sequence[Array]) -> Array:
        return self._to_logit(draws[0])[:, None]
