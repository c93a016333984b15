"""What every bridge returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from klimb.boosting import Mixture, boost
from klimb.numerics.arrays import Array


@final
@dataclass(frozen=True, eq=False)
class Bridge:
    """A log density in unconstrained coordinates, and the way back to the parameters of the model it came from."""

    log_density: Callable[[Any], Any]
    dim: int
    names: tuple[str, ...]
    to_parameters: Callable[[Array], dict[str, Array]]
    gradient: Callable[[Any], Any] | None = None
    init: Array | None = None
    scale: float = 1.0

    def boost(self, **options: Any) -> Mixture:
        """`klimb.boost` of this log density; options are its own."""
        given: dict[str, Any] = {"gradient": self.gradient, "init": self.init, "scale": self.scale, "names": self.names}
        return boost(self.log_density, self.dim, **{**given, **options})

    def parameters(self, draws: Array) -> dict[str, Array]:
        """The model's parameters at the rows of ``draws``, by name."""
        return self.to_parameters(np.atleast_2d(draws))


def missing(package: str, extra: str) -> ImportError:
    """What to raise where a bridge's package is not installed."""
    return ImportError(f"this bridge needs the package {package}: pip install {extra}")
