"""A posterior that is far from Gaussian in few pieces that are nearly so: their mixture has its mean and covariance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np

from klimb.latents.weights_posterior import WeightPosterior, register
from klimb.numerics.arrays import Array, Index


@register
@final
@dataclass(frozen=True, eq=False)
class CutWeights(WeightPosterior):
    """``whole`` answers for means and covariances; draws, and chances that hang on tails, come from the ``pieces``.

    >>> from klimb.latents.weights_posterior import DenseWeights
    >>> ends = DenseWeights(np.array([-1.0]), np.eye(1)), DenseWeights(np.array([1.0]), np.eye(1))
    >>> q = CutWeights(DenseWeights(np.zeros(1), np.sqrt(2.0) * np.eye(1)), np.full(2, 0.5), ends)
    >>> q.sd(), [share for share, _ in q.split()]
    (array([1.41421356]), [0.5, 0.5])
    """

    kind: ClassVar[str] = "cut"
    whole: WeightPosterior
    shares: Array
    pieces: tuple[WeightPosterior, ...]

    def with_prior_of(self, other: WeightPosterior) -> CutWeights:
        return CutWeights(self.whole.with_prior_of(other), self.shares,
                          tuple(piece.with_prior_of(other) for piece in self.pieces))

    @property
    def mean(self) -> Array:  # type: ignore[override]
        return self.whole.mean

    def sd(self) -> Array:
        return self.whole.sd()

    def covariances(self, rows: Index, columns: Index) -> Array:
        return self.whole.covariances(rows, columns)

    def block_covariance(self, at: slice, k: int) -> Array:
        return self.whole.block_covariance(at, k)

    def at(self, L: Any, rest: Any = 0.0) -> tuple[Array, Array]:
        return self.whole.at(L, rest)

    def joint(self, L: Any, rest: Any = 0.0) -> tuple[Array, Array]:
        return self.whole.joint(L, rest)

    def covariance_with(self, L: Any, at: slice) -> Array:
        return self.whole.covariance_with(L, at)

    def push(self, L: Any, weights: Array) -> Array:
        return self.whole.push(L, weights)

    def split(self) -> tuple[tuple[float, WeightPosterior], ...]:
        return tuple(zip(self.shares.tolist(), self.pieces, strict=True))

    def sample(self, n: int, rng: np.random.Generator) -> Array:
        counts = rng.multinomial(n, self.shares / self.shares.sum())
        draws = [piece.sample(int(count), rng) for piece, count in zip(self.pieces, counts, strict=True)]
        return np.asarray(rng.permutation(np.concatenate(draws)))
