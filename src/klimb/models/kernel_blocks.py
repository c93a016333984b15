"""The hyperparameters of Gaussian processes as blocks of theta: kernels, mean functions, inducing points."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
from scipy.special import logit

from klimb._stored import stored
from klimb.kernels import Kernel
from klimb.kernels.means import Mean
from klimb.numerics.arrays import Array
from klimb.priors import Prior
from klimb.theta import LIMIT, ParameterBlock, PlainBlock, RowKind, Support

MARGIN = 0.5  # how far inducing points may leave the box of the inputs, in units of its sides


@stored("parameter.kernel")
@dataclass(frozen=True, eq=False)
class KernelBlock(ParameterBlock):
    """The free parameters of a kernel, by their logarithms, or between limits of a prior by their logits.

    >>> from klimb.kernels import RBF, White
    >>> block = KernelBlock(RBF(lengthscale=2.0) + White(0.1).fixed())
    >>> block.names, block.value(np.log([3.0, 4.0])).parameters["0.lengthscale"]
    (('0.variance', '0.lengthscale'), 4.0)
    """

    kernel: Kernel
    prefix: str = ""
    kind: RowKind = "gp"

    @property
    def names(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(self.prefix + name for name in self.kernel.free)

    @cached_property
    def _limited(self) -> dict[int, Support]:
        """Of the entries whose priors have limits."""
        supports = (Support.of(name, prior, 0.0, math.inf) for name, prior in self.kernel.priors.items())
        return {i: support for i, support in enumerate(supports) if support.bounded}

    def search(self) -> tuple[Array, Array, Array]:
        start, lower, upper = self.kernel.log_parameters, *self.kernel.log_bounds.T
        for i, support in self._limited.items():
            shares = (np.exp([start[i], lower[i], upper[i]]) - support.low) / (support.high - support.low)
            places = np.clip(logit(np.clip(shares, 0.0, 1.0)), -LIMIT, LIMIT)
            start[i], lower[i], upper[i] = places if 0.0 <= shares[0] <= 1.0 else (places[1:].mean(), *places[1:])
        return start, lower, upper

    def _logs(self, theta: Array) -> Array:
        """The logarithms of the parameters, at many points."""
        found = np.array(theta)
        for i, support in self._limited.items():
            found[..., i] = np.log(support.value(theta[..., i]))
        return found

    def value(self, theta: Array) -> Kernel:
        return self.kernel.with_log_parameters(self._logs(theta))

    def pull(self, theta: Array, d_value: Array) -> Array:
        """Kernels give their gradients in the logarithms of their free parameters."""
        found = np.array(d_value)
        for i, support in self._limited.items():
            found[i] *= support.slope(theta[i]) / support.value(theta[i])
        return found

    def log_prior(self, theta: Array) -> tuple[float, Array]:
        logs = self._logs(theta)
        total, slopes = self.kernel.with_log_parameters(logs).log_prior()
        for i, support in self._limited.items():
            log_slope, bend = support.log_slope(float(theta[i]))
            total, slopes[i] = total + log_slope - float(logs[i]), bend
        return total, slopes

    def reported(self, theta: Array) -> Array:
        return np.exp(self._logs(theta))

    def powers(self) -> tuple[float, ...]:
        return tuple(0.0 if i in self._limited else 1.0 for i in range(self.size))

    def alone(self) -> tuple[Callable[[Array], Array] | None, ...]:
        return tuple(self._limited[i].value if i in self._limited else np.exp for i in range(self.size))

    def endless(self) -> tuple[bool, ...]:
        """Along an infinite lengthscale a function is constant."""
        return tuple("lengthscale" in name for name in self.names)

    def priors(self) -> dict[str, Prior | None]:
        return {self.prefix + name: prior for name, prior in self.kernel.priors.items()}

    def printed(self) -> dict[str, str]:
        return {name: "flat in its logarithm" if prior is None else str(prior) for name, prior in self.priors().items()}


@stored("parameter.mean")
@dataclass(frozen=True, eq=False)
class MeanBlock(PlainBlock):
    """The free values of a mean function."""

    mean: Mean
    prefix: str = ""
    kind: RowKind = "parameter"

    @property
    def names(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(f"{self.prefix}mean.{name}" for name in self.mean.free)

    def search(self) -> tuple[Array, Array, Array]:
        return self.mean.values, *self.mean.bounds.T

    def value(self, theta: Array) -> Mean:
        return self.mean.with_values(theta)

    def pull(self, theta: Array, d_value: Array) -> Array:
        return d_value


@stored("parameter.points")
@dataclass(frozen=True, eq=False)
class Points(PlainBlock):
    """Inducing points, held where they are unless they are ``free``: then theta has them in units of the inputs' sd."""

    begin: Array  # (M, d)
    unit: Array  # (d,)
    low: Array  # (d,), limits of a search
    high: Array
    free: bool = False
    kind: RowKind = "parameter"

    @classmethod
    def among(cls, X: Array, Z: Array, *, free: bool = False) -> Self:
        """Points that belong to these inputs."""
        spread = X.std(axis=0)
        low, high = X.min(axis=0), X.max(axis=0)
        reach = MARGIN * (high - low)
        low, high = np.minimum(low - reach, Z.min(axis=0)), np.maximum(high + reach, Z.max(axis=0))
        return cls(Z, np.where(spread > 0, spread, 1.0), low, high, free)

    @property
    def names(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(f"Z[{i},{j}]" for i, j in np.ndindex(*self.begin.shape)) if self.free else ()

    def search(self) -> tuple[Array, Array, Array]:
        if not self.free:
            return np.zeros(0), np.zeros(0), np.zeros(0)
        lower, upper = (np.broadcast_to(side / self.unit, self.begin.shape).ravel() for side in (self.low, self.high))
        return (self.begin / self.unit).ravel(), lower, upper

    def value(self, theta: Array) -> Array:
        return theta.reshape(self.begin.shape) * self.unit if self.free else self.begin

    def pull(self, theta: Array, d_value: Array) -> Array:
        return (d_value * self.unit).ravel() if self.free else np.zeros(0)


@stored("parameter.held")
@dataclass(frozen=True, eq=False)
class Held(PlainBlock):
    """Another block at values that do not move."""

    block: ParameterBlock
    held: Array

    names = ()

    def search(self) -> tuple[Array, Array, Array]:
        return np.zeros(0), np.zeros(0), np.zeros(0)

    @property
    def kind(self) -> RowKind:  # type: ignore[override]
        return self.block.kind

    def value(self, theta: Array) -> Any:
        return self.block.value(self.held)

    def pull(self, theta: Array, d_value: Any) -> Array:
        return np.zeros(0)
