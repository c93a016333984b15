"""What a run of boosting writes down after every accepted step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

from klimb.boosting.gaussians import Gaussians
from klimb.numerics.arrays import Array


@final
@dataclass(frozen=True, eq=False)
class Step:
    """The mixture after a step: its size, weights, bound with standard error, and the evaluations used so far."""

    n_components: int
    weights: Array
    bound: float
    bound_error: float
    n_values: int
    n_gradients: int
    parts: Gaussians = field(repr=False)
