"""One draw of the weights, as a posterior that is sure of it: many of them are what a sampler found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np

from klimb.latents.arrow import ArrowRows
from klimb.latents.weights_posterior import WeightPosterior, register, with_rest
from klimb.numerics.arrays import Array, Index


@register
@final
@dataclass(frozen=True, eq=False)
class DrawnWeights(WeightPosterior):
    """All mass at one point; rows are those of a design, or `ArrowRows`.

    >>> DrawnWeights(np.array([1.0, 2.0])).at(np.array([[1.0, -1.0]]), 0.5)
    (array([-1.]), array([0.5]))
    """

    kind: ClassVar[str] = "drawn"
    mean: Array

    def covariances(self, rows: Index, columns: Index) -> Array:
        return np.zeros(len(rows))

    def at(self, L: Any, rest: Any = 0.0) -> tuple[Array, Array]:
        m = self.push(L, self.mean[None])[0]
        return m, np.broadcast_to(np.asarray(rest, dtype=np.float64), m.shape).copy()

    def joint(self, L: Any, rest: Any = 0.0) -> tuple[Array, Array]:
        m = self.push(L, self.mean[None])[0]
        return m, with_rest(np.zeros((len(m), len(m))), rest)

    def covariance_with(self, L: Any, at: slice) -> Array:
        return np.zeros((len(self.push(L, self.mean[None])[0]), len(self.mean[at])))

    def sample(self, n: int, rng: np.random.Generator) -> Array:
        return np.tile(self.mean, (n, 1))

    def push(self, L: Any, weights: Array) -> Array:
        return L.times(weights) if isinstance(L, ArrowRows) else super().push(L, weights)
