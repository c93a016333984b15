"""q of weights that stays with its latent, where a covariance of all weights would take more memory than the fit."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from klimb.errors import InputError
from klimb.latents.base import Posterior
from klimb.latents.implicit import Implicit
from klimb.latents.weights_posterior import WeightPosterior
from klimb.linalg.matrix import DesignMatrix
from klimb.linalg.operators import as_operator
from klimb.numerics.arrays import Array, Index
from klimb.numerics.lazy import scipy_sparse


@dataclass(frozen=True, eq=False)
class AttachedWeights(WeightPosterior):
    """The weights of a posterior that is kept, with its data. Variances that are estimated aim at ``accuracy``.

    ``L`` are rows of a design, stored or known by their products.
    """

    kind: ClassVar[str] = "attached"
    unstored: ClassVar[str] = "weights that are known by products with their data alone"
    posterior: Posterior
    accuracy: float = 0.01

    @cached_property
    def mean(self) -> Array:  # type: ignore[override]
        return self.posterior.mean

    def covariances(self, rows: Index, columns: Index) -> Array:
        if not np.array_equal(rows, columns):
            raise self._too_many("covariances between weights")
        count = len(rows)
        return self.at(scipy_sparse.csr_array((np.ones(count), (np.arange(count), rows)), shape=(count, self.size)))[1]

    def at(self, L: Any, rest: Any = 0.0) -> tuple[Array, Array]:
        latent: Any = self.posterior.latent
        if isinstance(latent, Implicit):
            m, v = latent.predict(self.posterior, L, self.accuracy)
        else:
            m, v = latent.predict(self.posterior, L)
        return m, v + rest

    def joint(self, L: Any, rest: Any = 0.0) -> tuple[Array, Array]:
        raise self._too_many("joint covariances")

    def sample(self, n: int, rng: np.random.Generator) -> Array:
        return self.posterior.sample(n, rng)

    def push(self, L: Any, weights: Array) -> Array:
        if isinstance(L, DesignMatrix):
            return super().push(L, weights)
        return np.asarray(as_operator(L, "L").times(np.ascontiguousarray(weights.T)).T)

    def _too_many(self, what: str) -> InputError:
        return InputError(f"{what} need the covariance of all weights", f"{self.size:,} weights, fitted without it",
                          "Ask for variances or draws, or fit fewer columns.")
