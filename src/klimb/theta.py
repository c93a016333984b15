"""The hyperparameters of a model as one vector theta without units, made of blocks that belong together.

A block knows how its entries of theta become what its owner works with (a standard deviation, the root of a covariance
matrix, cut points, a kernel), how gradients come back, its prior per unit of theta, and what a table prints.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, TypeAlias, final

import numpy as np
from scipy.special import betaln, log_expit, log_ndtr

from klimb._stored import stored
from klimb.numerics.arrays import Array
from klimb.priors import LKJ, Dirichlet, Fixed, Normal, PositivePrior, Prior

RowKind: TypeAlias = Literal["group", "smooth", "gp", "parameter", "cut"]  # where a table prints it
POSITIVE_LIMITS = (-16.0, 14.0)  # of the log of a positive parameter in its unit
CORRELATION_LIMITS = (-6.0, 6.0)  # of atanh of a partial correlation
CUT_LIMITS = (-40.0, 40.0)


class ParameterBlock(ABC):
    """Parameters that are transformed, and have their prior, together. Records: two equal blocks are two blocks."""

    names: tuple[str, ...]  # as printed, of the free entries alone; () where all are held
    kind: RowKind
    start: Array  # (d,), in theta, as are the limits of a search
    lower: Array
    upper: Array

    @property
    def size(self) -> int:
        """How many entries of theta it has."""
        return len(self.names)

    @abstractmethod
    def value(self, theta: Array) -> Any:
        """What the owner works with."""

    @abstractmethod
    def pull(self, theta: Array, d_value: Any) -> Array:
        """A gradient in theta from one in the value."""

    @abstractmethod
    def log_prior(self, theta: Array) -> tuple[float, Array]:
        """Log density per unit of theta (Jacobian included) and its gradient."""

    @abstractmethod
    def reported(self, theta: Array) -> Array:
        """(S, d) of theta as (S, d) of what is printed."""

    @abstractmethod
    def printed(self) -> dict[str, str]:
        """The priors in words, by name."""

    def signed(self) -> tuple[bool, ...]:
        """Of each entry, whether what is printed can be negative, so that P(value > 0) means something."""
        return (False,) * self.size


@final
@stored("parameter.positive")
@dataclass(frozen=True, eq=False)
class Positive(ParameterBlock):
    """One positive parameter, by its logarithm; a `Fixed` prior holds it.

    >>> from klimb.priors import exponential, fixed
    >>> block = Positive("sigma", exponential(2.0), begin=1.0)
    >>> block.names, round(block.value(np.log([3.0])), 12), Positive("sigma", fixed(2.0)).value(np.zeros(0))
    (('sigma',), 3.0, 2.0)
    """

    name: str
    prior: Prior
    begin: float = 1.0  # where a search starts
    unit: float = 1.0  # limits of a search are in this unit
    least: float = 0.0  # a search stays above
    kind: RowKind = "parameter"

    @property
    def free(self) -> bool:
        return not isinstance(self.prior, Fixed)

    @property
    def names(self) -> tuple[str, ...]:  # type: ignore[override]
        return (self.name,) if self.free else ()

    @property
    def start(self) -> Array:  # type: ignore[override]
        return np.full(self.size, math.log(self.begin))

    @property
    def lower(self) -> Array:  # type: ignore[override]
        low = POSITIVE_LIMITS[0] + math.log(self.unit)
        return np.full(self.size, max(low, math.log(self.least)) if self.least > 0 else low)

    @property
    def upper(self) -> Array:  # type: ignore[override]
        return np.full(self.size, POSITIVE_LIMITS[1] + math.log(self.unit))

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

    def printed(self) -> dict[str, str]:
        return {self.name: str(self.prior)}


@final
@stored("parameter.real")
@dataclass(frozen=True, eq=False)
class Real(ParameterBlock):
    """One parameter on the whole line, with a normal prior or a flat one."""

    name: str
    prior: Normal | None = None
    begin: float = 0.0
    limits: tuple[float, float] = (-math.inf, math.inf)
    kind: RowKind = "parameter"

    @property
    def names(self) -> tuple[str, ...]:  # type: ignore[override]
        return (self.name,)

    @property
    def start(self) -> Array:  # type: ignore[override]
        return np.array([self.begin])

    @property
    def lower(self) -> Array:  # type: ignore[override]
        return np.array([self.limits[0]])

    @property
    def upper(self) -> Array:  # type: ignore[override]
        return np.array([self.limits[1]])

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

    def printed(self) -> dict[str, str]:
        return {self.name: "flat" if self.prior is None else str(self.prior)}

    def signed(self) -> tuple[bool, ...]:
        return (True,)


@final
@stored("parameter.group_covariance")
@dataclass(frozen=True, eq=False)
class GroupCovariance(ParameterBlock):
    """The sds and correlations of the coefficients that every level of a grouping factor has.

    Theta holds the logs of the free sds, then atanh of the partial correlations row by row: those of column i with the
    columns before it. The value is R with R R' the covariance. What is printed are correlations, not partial ones.
    """

    sds: tuple[Positive, ...]
    correlations: tuple[str, ...]  # their names, row by row; () where the columns are independent
    prior: LKJ = field(default_factory=lambda: LKJ(2.0))
    kind: RowKind = "group"

    @cached_property
    def _free(self) -> Any:
        return np.flatnonzero([sd.free for sd in self.sds])

    @cached_property
    def names(self) -> tuple[str, ...]:  # type: ignore[override]
        return (*(sd.name for sd in self.sds if sd.free), *self.correlations)

    @cached_property
    def start(self) -> Array:  # type: ignore[override]
        return np.concatenate([*(sd.start for sd in self.sds), np.zeros(len(self.correlations))])

    @cached_property
    def lower(self) -> Array:  # type: ignore[override]
        return np.concatenate([*(sd.lower for sd in self.sds), np.full(len(self.correlations), CORRELATION_LIMITS[0])])

    @cached_property
    def upper(self) -> Array:  # type: ignore[override]
        return np.concatenate([*(sd.upper for sd in self.sds), np.full(len(self.correlations), CORRELATION_LIMITS[1])])

    def _parts(self, theta: Array) -> tuple[Array, Array, Array]:
        """The sds, the root of the correlation matrix and its derivatives."""
        count = len(self._free)
        sd = np.array([block.prior.value if isinstance(block.prior, Fixed) else 0.0 for block in self.sds])
        sd[self._free] = np.exp(theta[:count])
        return sd, *correlation_root(theta[count:], len(self.sds))

    def value(self, theta: Array) -> Array:
        sd, L, _ = self._parts(theta)
        return np.asarray(sd[:, None] * L)

    def pull(self, theta: Array, d_value: Array) -> Array:
        sd, L, d_L = self._parts(theta)
        own = (d_value * sd[:, None] * L).sum(axis=1)[self._free]
        return np.concatenate([own, np.einsum("cij,ij->c", d_L, d_value * sd[:, None])])

    def log_prior(self, theta: Array) -> tuple[float, Array]:
        count, total = len(self._free), 0.0
        gradient = np.zeros(len(theta))
        for place, i in enumerate(self._free):
            value, slope = self.sds[i].log_prior(theta[place : place + 1])
            total, gradient[place] = total + value, slope[0]
        if self.correlations:
            # A partial correlation r has density (1 - r^2)^(b - 1), b = eta + depth; dr = (1 - r^2) dtheta.
            _, columns = np.tril_indices(len(self.sds), -1)
            b = self.prior.eta + 0.5 * (len(self.sds) - 2 - columns)
            r = theta[count:]
            log_cosh = np.abs(r) + np.log1p(np.exp(-2.0 * np.abs(r))) - math.log(2.0)
            total += float((-2.0 * b * log_cosh - (2.0 * b - 1.0) * math.log(2.0) - betaln(b, b)).sum())
            gradient[count:] = -2.0 * b * np.tanh(r)
        return total, gradient

    def reported(self, theta: Array) -> Array:
        count, k = len(self._free), len(self.sds)
        out = np.empty_like(theta, dtype=float)
        out[:, :count] = np.exp(theta[:, :count])
        if self.correlations:
            rows, columns = np.tril_indices(k, -1)
            for s, point in enumerate(theta):
                L, _ = correlation_root(point[count:], k)
                out[s, count:] = np.einsum("ij,ij->i", L[rows], L[columns])
        return out

    def printed(self) -> dict[str, str]:
        words = {name: text for sd in self.sds for name, text in sd.printed().items()}
        return words | dict.fromkeys(self.correlations, str(self.prior))

    def signed(self) -> tuple[bool, ...]:
        return (False,) * len(self._free) + (True,) * len(self.correlations)


def correlation_root(theta: Array, k: int) -> tuple[Array, Array]:
    """Lower L with unit rows, L L' the correlation matrix, from atanh of partial correlations; and dL/dtheta.

    Row i holds partial correlations with the columns before it: L_ij = r_ij prod_{c < j} sqrt(1 - r_ic^2). The
    derivatives are (number of theta, k, k).
    """
    L, d = np.eye(k), np.zeros((len(theta), k, k))
    if not len(theta):  # independent
        return L, d
    place = 0
    for i in range(1, k):
        left = 1.0
        for j in range(i):
            r = math.tanh(theta[place + j])
            L[i, j] = r * left
            left /= math.cosh(theta[place + j])  # sqrt(1 - tanh^2)
        L[i, i] = left
        for c in range(i):
            r = math.tanh(theta[place + c])
            left_c = math.prod(1.0 / math.cosh(theta[place + j]) for j in range(c))
            d[place + c, i, c] = left_c * (1.0 - r * r)
            d[place + c, i, c + 1 : i + 1] = -r * L[i, c + 1 : i + 1]
        place += i
    return L, d


@final
@stored("parameter.cutpoints")
@dataclass(frozen=True, eq=False)
class Cutpoints(ParameterBlock):
    """Rising cut points of an ordinal response: the first one as it is, then the logs of the gaps."""

    cut_names: tuple[str, ...]
    prior: Dirichlet
    link: str  # "logit" or "probit"
    begin: Array  # cut points where a search starts
    kind: RowKind = "cut"

    @property
    def names(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.cut_names

    @property
    def start(self) -> Array:  # type: ignore[override]
        return np.concatenate([self.begin[:1], np.log(np.diff(self.begin))])

    @property
    def lower(self) -> Array:  # type: ignore[override]
        return np.full(self.size, CUT_LIMITS[0])

    @property
    def upper(self) -> Array:  # type: ignore[override]
        return np.full(self.size, CUT_LIMITS[1])

    def value(self, theta: Array) -> Array:
        with np.errstate(over="ignore"):
            return np.asarray(theta[0] + np.concatenate([[0.0], np.cumsum(np.exp(theta[1:]))]))

    def pull(self, theta: Array, d_value: Array) -> Array:
        after = np.cumsum(d_value[::-1])[::-1]  # every later cut point moves with a gap
        return np.concatenate([after[:1], after[1:] * np.exp(theta[1:])])

    def log_prior(self, theta: Array) -> tuple[float, Array]:
        """The chances of the levels at f = 0 are Dirichlet."""
        c, a = self.value(theta), self.prior.concentration
        if self.link == "probit":
            log_density, score = -0.5 * c**2 - 0.5 * math.log(2.0 * math.pi), -c
            log_p = _log_cells(c, log_ndtr)
        else:
            log_density, score = log_expit(c) + log_expit(-c), -np.tanh(0.5 * c)
            log_p = _log_cells(c, log_expit)
        K = len(c) + 1
        value = (a - 1.0) * log_p.sum() + log_density.sum() + theta[1:].sum()
        value += math.lgamma(K * a) - K * math.lgamma(a)
        # d log P_k / d c_k = F'(c_k) / P_k and so on.
        with np.errstate(over="ignore"):
            d_c = score + (a - 1.0) * (np.exp(log_density - log_p[:-1]) - np.exp(log_density - log_p[1:]))
        gradient = self.pull(theta, d_c)
        gradient[1:] += 1.0
        return float(value), gradient

    def reported(self, theta: Array) -> Array:
        return np.array([self.value(point) for point in theta]).reshape(theta.shape)

    def printed(self) -> dict[str, str]:
        return {"cutpoints": f"{self.prior} (chances of the levels at f = 0)"}

    def signed(self) -> tuple[bool, ...]:
        return (True,) * self.size


def _log_cells(c: Array, log_cdf: Any) -> Array:
    """log[F(c_k) - F(c_{k-1})], with F symmetric."""
    low, high = log_cdf(c[:-1]), log_cdf(c[1:])
    upper_low, upper_high = log_cdf(-c[:-1]), log_cdf(-c[1:])
    left = c[1:] + c[:-1] < 0.0  # subtract in the tail that is smaller
    big, small = np.where(left, high, upper_low), np.where(left, low, upper_high)
    with np.errstate(divide="ignore"):
        inner = big + np.log(-np.expm1(np.minimum(small - big, -1e-300)))
    return np.concatenate([log_cdf(c[:1]), inner, log_cdf(-c[-1:])])


@final
@dataclass(frozen=True, eq=False)
class Theta:
    """The blocks of a model in order. A block that several owners hold stands once, by identity.

    >>> from klimb.priors import exponential
    >>> scale = Positive("prior scale", exponential(1.0))
    >>> theta = Theta.of([scale, Positive("sigma", exponential(1.0)), scale])
    >>> theta.names, [part.tolist() for part in theta.split(np.array([0.5, 1.0]))]
    (('prior scale', 'sigma'), [[0.5], [1.0]])
    """

    blocks: tuple[ParameterBlock, ...]

    @classmethod
    def of(cls, blocks: Sequence[ParameterBlock]) -> Theta:
        """The blocks without repetition."""
        return cls(tuple({id(block): block for block in blocks}.values()))

    @cached_property
    def _ends(self) -> Array:
        return np.cumsum([0, *(block.size for block in self.blocks)])

    @cached_property
    def _place(self) -> dict[int, int]:
        return {id(block): number for number, block in enumerate(self.blocks)}

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(name for block in self.blocks for name in block.names)

    def _joined(self, what: str) -> Array:
        return np.concatenate([np.zeros(0), *(getattr(block, what) for block in self.blocks)])

    @cached_property
    def start(self) -> Array:
        return self._joined("start")

    @cached_property
    def lower(self) -> Array:
        return self._joined("lower")

    @cached_property
    def upper(self) -> Array:
        return self._joined("upper")

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

    def reported(self, theta: Array) -> dict[str, Array]:
        """(S, d) of theta as what is printed, by name."""
        found: dict[str, Array] = {}
        for number, block in enumerate(self.blocks):
            own = block.reported(theta[:, self._ends[number] : self._ends[number + 1]])
            found |= {name: own[:, j] for j, name in enumerate(block.names)}
        return found

    def printed(self) -> dict[str, str]:
        """The priors in words."""
        return {name: text for block in self.blocks for name, text in block.printed().items()}
