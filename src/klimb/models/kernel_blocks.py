"""The hyperparameters of Gaussian processes as blocks of theta: kernels, mean functions, inducing points."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from klimb._stored import stored
from klimb.kernels import Kernel
from klimb.kernels.means import Mean
from klimb.numerics.arrays import Array
from klimb.priors import Prior
from klimb.theta import ParameterBlock, RowKind

MARGIN = 0.5  # how far inducing points may leave the box of the inputs, in units of its sides


@final
@stored("parameter.kernel")
@dataclass(frozen=True, eq=False)
class KernelBlock(ParameterBlock):
    """The free parameters of a kernel, by their logarithms.

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

    def search(self) -> tuple[Array, Array, Array]:
        return self.kernel.log_parameters, *self.kernel.log_bounds.T

    def value(self, theta: Array) -> Kernel:
        return self.kernel.with_log_parameters(theta)

    def pull(self, theta: Array, d_value: Array) -> Array:
        """Kernels give their gradients in the logarithms of their free parameters."""
        return d_value

    def log_prior(self, theta: Array) -> tuple[float, Array]:
        return self.value(theta).log_prior()

    def reported(self, theta: Array) -> Array:
        return np.exp(theta)

    def priors(self) -> dict[str, Prior | None]:
        return {self.prefix + name: prior for name, prior in self.kernel.priors.items()}

    def printed(self) -> dict[str, str]:
        return {name: "flat in its logarithm" if prior is None else str(prior) for name, prior in self.priors().items()}


class PlainBlock(ParameterBlock):
    """Parameters on the whole line that stand for themselves, with a flat prior."""

    def log_prior(self, theta: Array) -> tuple[float, Array]:
        return 0.0, np.zeros(self.size)

    def reported(self, theta: Array) -> Array:
        return np.array(theta)

    def printed(self) -> dict[str, str]:
        return dict.fromkeys(self.names, "flat")

    def signed(self) -> tuple[bool, ...]:
        return (True,) * self.size

    def alone(self) -> tuple[Callable[[Array], Array] | None, ...]:
        return (np.asarray,) * self.size


@final
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


@final
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
    def among(cls, X: Array, Z: Array, *, free: bool = False) -> Points:
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


@final
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
