"""The hyperparameters of a model as one vector theta without units, made of blocks that belong together.

A block knows how its entries of theta become what its owner works with (a standard deviation, the root of a covariance
matrix, cut points, a kernel), how gradients come back, its prior per unit of theta, and what a table prints.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias, final

import numpy as np

from klimb._stan import StanPart, literal, said
from klimb._stored import stored
from klimb.errors import InputError
from klimb.numerics.arrays import Array
from klimb.priors import Beta, Fixed, Normal, PCCorrelation, PCShare, PositivePrior, Prior, Uniform

RowKind: TypeAlias = Literal["fixed", "group", "smooth", "gp", "field", "parameter", "level",
                             "cut"]  # where a table prints it
POSITIVE_LIMITS = (-16.0, 14.0)  # of the log of a positive parameter in its unit
Scale: TypeAlias = tuple[Callable[[Array], Array], Callable[[Array], Array]]
LIMIT = 14.0  # of the logit in a search: 8e-7 of the way from a limit
STEP = 1e-5  # of differences of log densities, which are known to all digits


class ParameterBlock(ABC):
    """Parameters that are transformed, and have their prior, together. Records: two equal blocks are two blocks."""

    names: tuple[str, ...]  # as printed, of the free entries alone; () where all are held
    kind: RowKind
    power: float = 1.0  # negative where the simplest model is at infinity: exp(power theta) is 0 there

    @property
    def size(self) -> int:
        """How many entries of theta it has."""
        return len(self.names)

    @abstractmethod
    def search(self) -> tuple[Array, Array, Array]:
        """(d,) each, in theta: where a search starts, and its lower and upper limits."""

    @property
    def start(self) -> Array:
        return self.search()[0]

    @property
    def lower(self) -> Array:
        return self.search()[1]

    @property
    def upper(self) -> Array:
        return self.search()[2]

    @abstractmethod
    def value(self, theta: Array) -> Any:
        """What the owner works with."""

    @abstractmethod
    def pull(self, theta: Array, d_value: Any) -> Array:
        """A gradient in theta from one in the value."""

    @abstractmethod
    def log_prior(self, theta: Array) -> tuple[float, Array]:
        """Log density per unit of theta (Jacobian included) and its gradient."""

    def log_density(self, theta: Array) -> float:
        """The first of ``log_prior`` alone, where that is cheaper."""
        return self.log_prior(theta)[0]

    @abstractmethod
    def reported(self, theta: Array) -> Array:
        """(S, d) of theta as (S, d) of what is printed."""

    def inside(self, theta: Array) -> Array:
        """The same of what the computation works with, which no origin of a covariate moves."""
        return self.reported(theta)

    def priors(self) -> dict[str, Prior | None]:
        """The priors of single parameters, by the names of these."""
        return {}

    @abstractmethod
    def printed(self) -> dict[str, str]:
        """The priors in words, by name."""

    def signed(self) -> tuple[bool, ...]:
        """Of each entry, whether what is printed can be negative, so that P(value > 0) means something."""
        return (False,) * self.size

    def alone(self) -> tuple[Callable[[Array], Array] | None, ...]:
        """Of each entry, the rising map from its own theta to what is printed; None where other entries enter it."""
        return (np.exp,) * self.size

    def scales(self) -> tuple[Scale, ...]:
        """Of each entry, what makes printed values roughly normal, and its inverse."""
        return ((np.asarray, np.asarray),) * self.size

    def stan(self, name: str) -> StanPart:
        """Its parameters in Stan, whose unconstrained values are theta, their prior, and the value as an expression."""
        raise InputError("this needs parameters that can be written in Stan", ", ".join(self.names),
                         "Give the block a method stan.")

    def to_stan(self, theta: Array) -> tuple[Array, ...]:
        """The parameters of ``stan`` at theta."""
        raise NotImplementedError

    def from_stan(self, draws: Sequence[Array]) -> Array:
        """(S, d) of theta from draws of the parameters of ``stan``, (S, ...) each."""
        raise NotImplementedError


class SingleParameter(ParameterBlock):
    """One parameter; a `Fixed` prior holds it."""

    name: str
    prior: Prior | None

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
        return {self.name: "flat" if self.prior is None else str(self.prior)}

    def to_stan(self, theta: Array) -> tuple[Array, ...]:
        return (np.asarray(self.value(theta)),) if self.free else ()


@final
@stored("parameter.positive")
@dataclass(frozen=True, eq=False)
class PositiveParameter(SingleParameter):
    """One positive parameter, by its logarithm; a `Fixed` prior holds it.

    >>> from klimb.priors import exponential, fixed
    >>> block = PositiveParameter("sigma", exponential(2.0), begin=1.0)
    >>> block.names, round(block.value(np.log([3.0])), 12), PositiveParameter("sigma", fixed(2.0)).value(np.zeros(0))
    (('sigma',), 3.0, 2.0)
    """

    name: str
    prior: Prior
    begin: float = 1.0  # where a search starts
    unit: float = 1.0  # limits of a search are in this unit
    least: float = 0.0  # a search stays above
    kind: RowKind = "parameter"

    def span(self) -> tuple[float, float, float]:
        low, high = (limit + math.log(self.unit) for limit in POSITIVE_LIMITS)
        return math.log(self.begin), max(low, math.log(self.least)) if self.least > 0 else low, high

    def value(self, theta: Array) -> float:
        if isinstance(self.prior, Fixed):
            return self.prior.value
        return math.exp(theta[0])

    def pull(self, theta: Array, d_value: float) -> Array:
        return np.full(self.size, d_value * math.exp(theta[0])) if self.free else np.zeros(0)

    def log_prior(self, theta: Array) -> tuple[float, Array]:
        if not isinstance(self.prior, PositivePrior):
            return 0.0, np.zeros(0)
        value = math.exp(theta[0])
        return self.prior.log_density(value) + float(theta[0]), np.array([self.prior.slope(value) + 1.0])

    def reported(self, theta: Array) -> Array:
        return np.exp(theta)

    @property
    def power(self) -> float:  # type: ignore[override]
        return min(float(getattr(self.prior, "power", 1.0)), 1.0)

    def inside(self, theta: Array) -> Array:
        """A size that may be infinite has moments on the scale of its prior alone."""
        return np.exp(self.power * theta)

    def stan(self, name: str) -> StanPart:
        if not isinstance(self.prior, PositivePrior):
            held = f"real<lower=0> {name};" + said(f"{self.name}, held")
            return StanPart(data=(held,), values={name: self.value(np.zeros(0))}, value=name)
        return StanPart(parameters=(f"real<lower=0> {name};" + said(self.name),), names=(name,),
                        model=(f"target += {self.prior.stan(name)};",), value=name)

    def from_stan(self, draws: Sequence[Array]) -> Array:
        return np.log(draws[0])[:, None]


@final
@stored("parameter.real")
@dataclass(frozen=True, eq=False)
class RealParameter(SingleParameter):
    """One parameter on the whole line, with a normal prior or a flat one."""

    name: str
    prior: Normal | None = None
    begin: float = 0.0
    limits: tuple[float, float] = (-math.inf, math.inf)
    kind: RowKind = "parameter"

    def span(self) -> tuple[float, float, float]:
        return self.begin, *self.limits

    def value(self, theta: Array) -> float:
        return float(theta[0])

    def pull(self, theta: Array, d_value: float) -> Array:
        return np.array([d_value])

    def log_prior(self, theta: Array) -> tuple[float, Array]:
        if self.prior is None:
            return 0.0, np.zeros(1)
        score = (float(theta[0]) - self.prior.mean) / self.prior.sd
        constant = math.log(self.prior.sd) + 0.5 * math.log(2.0 * math.pi)
        return -0.5 * score**2 - constant, np.array([-score / self.prior.sd])

    def reported(self, theta: Array) -> Array:
        return np.array(theta)

    def stan(self, name: str) -> StanPart:
        prior = self.prior
        line = "" if prior is None else f"target += normal_lpdf({name} | {literal(prior.mean)}, {literal(prior.sd)});"
        return StanPart(parameters=(f"real {name};" + said(self.name),), names=(name,), model=(line,) if line else (),
                        value=name)

    def from_stan(self, draws: Sequence[Array]) -> Array:
        return draws[0][:, None]

    def signed(self) -> tuple[bool, ...]:
        return (True,)

    def alone(self) -> tuple[Callable[[Array], Array] | None, ...]:
        return (np.asarray,)


@final
@dataclass(frozen=True, eq=False)
class Theta:
    """The blocks of a model in order. A block that several owners hold stands once, by identity.

    >>> from klimb.priors import exponential
    >>> scale = PositiveParameter("prior scale", exponential(1.0))
    >>> theta = Theta.of([scale, PositiveParameter("sigma", exponential(1.0)), scale])
    >>> theta.names, [part.tolist() for part in theta.split(np.array([0.5, 1.0]))]
    (('prior scale', 'sigma'), [[0.5], [1.0]])
    """

    blocks: tuple[ParameterBlock, ...]

    @classmethod
    def of(cls, blocks: Sequence[ParameterBlock]) -> Theta:
        """The blocks without repetition."""
        return cls(tuple({id(block): block for block in blocks}.values()))

    def __getstate__(self) -> dict[str, Any]:
        """For pickle: places go by identity, which a copy does not share."""
        return {"blocks": self.blocks}

    @cached_property
    def _ends(self) -> Array:
        return np.cumsum([0, *(block.size for block in self.blocks)])

    @cached_property
    def _place(self) -> dict[int, int]:
        return {id(block): number for number, block in enumerate(self.blocks)}

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(name for block in self.blocks for name in block.names)

    @cached_property
    def _search(self) -> tuple[Array, ...]:
        return tuple(np.hstack([np.zeros((3, 0)), *(block.search() for block in self.blocks)]))

    @property
    def start(self) -> Array:
        return self._search[0]

    @property
    def lower(self) -> Array:
        return self._search[1]

    @property
    def upper(self) -> Array:
        return self._search[2]

    @property
    def powers(self) -> Array:
        """Of each entry, the power of its exponential that is 0 at the simplest model."""
        return np.repeat([block.power for block in self.blocks], [block.size for block in self.blocks])

    @property
    def size(self) -> int:
        return int(self._ends[-1])

    def slice_of(self, block: ParameterBlock) -> slice:
        """Where the entries of one block stand."""
        number = self._place[id(block)]
        return slice(int(self._ends[number]), int(self._ends[number + 1]))

    def split(self, theta: Array) -> tuple[Array, ...]:
        """One vector per block."""
        return tuple(theta[self._ends[i] : self._ends[i + 1]] for i in range(len(self.blocks)))

    def of_owner(self, theta: Array, blocks: Sequence[ParameterBlock]) -> tuple[Array, ...]:
        """The entries of some owner's blocks."""
        return tuple(theta[self.slice_of(block)] for block in blocks)

    def add(self, total: Array, blocks: Sequence[ParameterBlock], gradients: Sequence[Array]) -> None:
        """Add an owner's gradients, one per block, to the whole gradient."""
        for block, gradient in zip(blocks, gradients, strict=True):
            total[self.slice_of(block)] += gradient

    def log_prior(self, theta: Array) -> tuple[float, Array]:
        """Log density of all blocks per unit of theta, and its gradient."""
        parts = [block.log_prior(own) for block, own in zip(self.blocks, self.split(theta), strict=True)]
        return sum(value for value, _ in parts), np.concatenate([np.zeros(0), *(slope for _, slope in parts)])

    def log_density(self, theta: Array) -> float:
        """Log density of all blocks per unit of theta."""
        return sum(block.log_density(own) for block, own in zip(self.blocks, self.split(theta), strict=True))

    def reported(self, theta: Array) -> dict[str, Array]:
        """(S, d) of theta as what is printed, by name."""
        found: dict[str, Array] = {}
        for number, block in enumerate(self.blocks):
            own = block.reported(theta[:, self._ends[number] : self._ends[number + 1]])
            found |= {name: own[:, j] for j, name in enumerate(block.names)}
        return found

    def inside(self, theta: Array) -> Array:
        """(S, d) of theta on the scales of what is printed, whatever the origin of the covariates."""
        return np.hstack([block.inside(theta[:, begin:end])
                          for block, begin, end in zip(self.blocks, self._ends[:-1], self._ends[1:], strict=True)])

    def printed(self) -> dict[str, str]:
        """The priors in words."""
        return {name: text for block in self.blocks for name, text in block.printed().items()}


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

    def span(self) -> tuple[float, float, float]:
        return math.log(self.begin / (1.0 - self.begin)), -LIMIT, LIMIT

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
        log_share, log_rest, prior = -np.logaddexp(0.0, -logit), -np.logaddexp(0.0, logit), self.prior
        if isinstance(prior, Beta):
            constant = math.lgamma(prior.a + prior.b) - math.lgamma(prior.a) - math.lgamma(prior.b)
            return float(constant + prior.a * log_share + prior.b * log_rest)
        assert isinstance(prior, Uniform | PCCorrelation | PCShare)
        value = float(self._from_logit(np.asarray(logit)))
        return float(prior.log_density(value) + math.log(self.high - self.low) + log_share + log_rest)

    def log_prior(self, theta: Array) -> tuple[float, Array]:
        if not self.free:
            return 0.0, np.zeros(0)
        at = float(theta[0])
        return self._density(at), np.array([(self._density(at + STEP) - self._density(at - STEP)) / (2.0 * STEP)])

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
            assert isinstance(self.prior, Uniform | PCCorrelation | PCShare)
            density = self.prior.stan(name)
        declared = f"real<lower={low}, upper={literal(self.high)}> {name};" + said(self.name)
        return StanPart(parameters=(declared,), names=(name,), model=(f"target += {density};",), value=name)

    def from_stan(self, draws: Sequence[Array]) -> Array:
        return self._to_logit(draws[0])[:, None]
