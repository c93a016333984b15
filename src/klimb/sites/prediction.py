"""What a site says of a new y where f ~ N(m, v): p(y) = int p(y|f) N(f; m, v) df."""

from __future__ import annotations

from dataclasses import dataclass

from klimb.numerics.arrays import Array


@dataclass(frozen=True)
class Prediction:
    """The predictive distribution of y, one per entry of ``m`` and ``v``."""

    m: Array
    v: Array
