"""q of the weights with more than a Gaussian of the data's own form: wider, skewed, or in pieces."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from klimb.latents.base import asked
from klimb.latents.weights_posterior import WeightPosterior, register, root_block_covariance, root_covariances
from klimb.numerics.arrays import Array, Index

MOST_MORE = 1.5  # by which what is lent may grow or shrink in units of sds


@register
@dataclass(frozen=True, eq=False)
class WidenedWeights(WeightPosterior):
    """``base`` at another mean, with rows'rows added to its covariance in units of ``scale``, and third moments."""

    kind: ClassVar[str] = "widened"
    lends: ClassVar[bool] = True
    mean: Array
    base: WeightPosterior
    rows: Array  # (r, D), which others may share
    cubes: Array = field(default_factory=lambda: np.zeros((0, 0)))
    scale: Array = field(default_factory=lambda: np.ones(1))

    @property
    def by_levels(self) -> bool:  # type: ignore[override]
        return self.base.by_levels

    def with_prior_of(self, other: WeightPosterior) -> WidenedWeights:
        return replace(self, base=self.base.with_prior_of(other))

    def lent(self, other: WeightPosterior) -> WeightPosterior:
        ratio = other.sd() / np.maximum(self.base.sd(), 1e-300)
        ratio *= np.clip(ratio, 1.0 / MOST_MORE, MOST_MORE)  # larger sds have more of it in their own units, too
        return WidenedWeights(other.mean + (self.mean - self.base.mean) * ratio, other, self.rows, scale=ratio)

    def without_prior(self) -> WidenedWeights:
        return replace(self, base=self.base.without_prior())

    def covariances(self, rows: Index, columns: Index) -> Array:
        some, at = np.unique(np.concatenate([rows, columns]), return_inverse=True)
        added = self.rows[:, some] * np.broadcast_to(self.scale, self.mean.shape)[some]
        more = root_covariances(added.T, at[: len(rows)], at[len(rows) :])
        return self.base.covariances(rows, columns) + more

    def sd(self) -> Array:
        added = np.einsum("ri,ri->i", self.rows, self.rows) * self.scale**2
        return np.asarray(np.sqrt(self.base.sd() ** 2 + added))

    def block_covariance(self, at: slice, k: int) -> Array:
        return self.base.block_covariance(at, k) + root_block_covariance(self._added[:, at].T, k)

    @property
    def _added(self) -> Array:
        return np.asarray(self.rows * self.scale)

    def _moved(self, L: Any) -> tuple[Array, Array]:
        """What the mean of L w moves by, and how L w moves with what is added."""
        pushed = self.push(L, np.vstack([self.mean - self.base.mean, self._added]))
        return pushed[0], pushed[1:]

    def at(self, L: Any, rest: Any = 0.0) -> tuple[Array, Array]:
        (m, v), (shift, more) = self.base.at(L, rest), self._moved(L)
        return m + shift, v + np.einsum("ij,ij->j", more, more)

    def joint(self, L: Any, rest: Any = 0.0) -> tuple[Array, Array]:
        (m, V), (shift, more) = self.base.joint(L, rest), self._moved(L)
        return m + shift, V + more.T @ more

    def covariance_with(self, L: Any, at: slice) -> Array:
        return self.base.covariance_with(L, at) + self._moved(L)[1].T @ self._added[:, at]

    push = asked("base", "push")
    points, point_shares, drifts = (property(lambda self, name=name: getattr(self.base, name))  # type: ignore[misc]
                                   for name in ("points", "point_shares", "drifts"))

    def split(self) -> tuple[tuple[float, WeightPosterior], ...]:
        pieces = self.base.split()
        return pieces if len(pieces) > 1 else ((1.0, self),)

    def sample(self, n: int, rng: np.random.Generator) -> Array:
        more = rng.standard_normal((n, len(self.rows))) @ self._added
        return self.base.sample(n, rng) + (self.mean - self.base.mean) + more


@register
@dataclass(frozen=True, eq=False)
class CutWeights(WeightPosterior):
    """``whole`` answers for means and covariances; draws, and chances that hang on tails, come from the ``pieces``.

    Weighted draws of the exact posterior, less the mean, tell of chances near 0 what no few pieces do: its ``points``.
    Their ``drifts`` are M^-1 times the gradients of its log density, of second moments M. Both have 32 bits.
    """

    kind: ClassVar[str] = "cut"
    whole: WeightPosterior
    shares: Array
    pieces: tuple[WeightPosterior, ...]
    points: Array = field(default_factory=lambda: np.zeros((0, 0)))  # (n, D)
    point_shares: Array = field(default_factory=lambda: np.zeros(0))
    drifts: Array = field(default_factory=lambda: np.zeros((0, 0)))  # (n, D)

    def with_prior_of(self, other: WeightPosterior) -> CutWeights:
        return replace(self, whole=self.whole.with_prior_of(other),
                       pieces=tuple(piece.with_prior_of(other) for piece in self.pieces))

    @property
    def mean(self) -> Array:  # type: ignore[override]
        return self.whole.mean

    @property
    def couples(self) -> bool:  # type: ignore[override]
        return self.whole.couples

    @property
    def parts(self) -> tuple[WeightPosterior, ...]:
        """The marginals of several outputs."""
        return self.whole.parts  # type: ignore[attr-defined,no-any-return]

    sd = asked("whole", "sd")
    within = asked("whole", "within")
    covariances = asked("whole", "covariances")
    block_covariance = asked("whole", "block_covariance")
    at = asked("whole", "at")
    joint = asked("whole", "joint")
    covariance_with = asked("whole", "covariance_with")
    push = asked("whole", "push")

    def split(self) -> tuple[tuple[float, WeightPosterior], ...]:
        return tuple(zip(self.shares.tolist(), self.pieces, strict=True))

    def sample(self, n: int, rng: np.random.Generator) -> Array:
        if self.points.size:
            return np.asarray(self.mean + self.points[rng.choice(len(self.points), n, p=self.point_shares)])
        counts = rng.multinomial(n, self.shares / self.shares.sum())
        draws = [piece.sample(int(count), rng) for piece, count in zip(self.pieces, counts, strict=True)]
        return np.asarray(rng.permutation(np.concatenate(draws)))
