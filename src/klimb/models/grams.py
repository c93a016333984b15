"""Wide linear models: X Sigma X' as a sum over terms of matrices that are made once, times variances that move."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from klimb.latents.base import Posterior, Product
from klimb.linalg.matrix import DesignMatrix
from klimb.numerics.arrays import Array
from klimb.numerics.dense import row_blocks
from klimb.terms.base import Term, WeightsPrior

FEW = 16  # columns of terms without a scale, each of which costs a solve


@dataclass(frozen=True, eq=False)
class Grams:
    """The columns of a model, its terms with their priors, and what all points of theta share."""

    design: DesignMatrix
    terms: tuple[Term, ...]
    places: tuple[slice, ...]
    priors: tuple[WeightsPrior | None, ...]
    kept: dict[str, Any]

    def total(self, *, single: bool = False) -> Array:
        """X Sigma X', in single precision where that is enough."""
        parts = [(self._scale(number, prior) ** 2, self._gram(number, prior))
                 for number, prior in enumerate(self.priors) if prior is not None]
        total = np.empty(parts[0][1].shape, np.float32 if single else np.float64)
        for rows in row_blocks(len(total), 4 * len(total)):  # all parts while the block is in the cache
            np.multiply(parts[0][1][rows], parts[0][0], out=total[rows])
            for square, part in parts[1:]:
                total[rows] += square * part[rows]
        return total

    def of_first(self, k: int) -> dict[str, Any]:
        """What a model of the first ``k`` rows keeps."""
        made = ((f"gram {number}", self._gram(number, prior)) for number, prior in enumerate(self.priors)
                if prior is not None)
        return {name: np.ascontiguousarray(gram[:k, :k]) for name, gram in made}

    def slopes(self, posterior: Posterior) -> Iterator[tuple[Term, float]]:
        """d bound / d s = 2 s <d bound / dK, Gram of the term> for every term with a scale s, without the weights.

        d bound / dK = [a a' - P] / 2, P = (K + G^-1)^-1, and <P, K> = gamma'v: where only one term has a scale and the
        others have few columns, no product of N x N matrices is needed.
        """
        scaled, rest = self._parts()
        latent: Any = posterior.latent
        if self._one_scale(scaled, rest):
            (number,), a, gamma = scaled, posterior.a, posterior.gamma
            slope = float(a @ latent.mvm(a)) - float(gamma @ (posterior.v - latent.slack))
            factor = posterior.factorised()
            for x in self._columns(rest):
                slope -= float(a @ x) ** 2 - float(x @ factor.solve(gamma * x)[0])
            yield self.terms[number], slope / self._scale(number, self.priors[number])
            return
        d_K = latent.bound_gradient(posterior)
        for number in scaled:
            prior = self.priors[number]
            assert prior is not None
            yield self.terms[number], 2.0 * self._scale(number, prior) * float(np.vdot(d_K, self._gram(number, prior)))

    def held(self, posterior: Posterior, square: Product) -> tuple[Array, Array, float] | None:
        """d m, d v and the change of the slope with log s where the sites are held; None but for one scale.

        K = s^2 K_0 + sum x x', and V answers by dV = 2 (I - V G) (K - sum x x') (I - G V), where (I - V G) K = V. So
        with x~ = x - V G x, dm = 2 (V a - sum x~ x'a), dv = 2 (v - (V o V) gamma - sum x~^2) and da = -G dm; ``square``
        multiplies by V o V.
        """
        scaled, rest = self._parts()
        if not self._one_scale(scaled, rest):
            return None
        factor, latent, a, gamma = posterior.factorised(), posterior.latent, posterior.a, posterior.gamma
        xs = np.reshape(list(self._columns(rest)), (-1, len(a)))
        told = np.reshape([factor.smooth(gamma * x) for x in xs], xs.shape)
        left, pull, v = xs - told, xs @ a, posterior.v - latent.slack
        dm = 2.0 * (factor.smooth(a) - pull @ left)
        dv = 2.0 * (v - square(gamma) - (left**2).sum(axis=0))
        da, Ka = -gamma * dm, posterior.m - latent.mean
        bend = 2.0 * float(Ka @ da) + 2.0 * (float(a @ Ka) - float(pull @ pull)) - float(gamma @ dv)
        bend -= 2.0 * float(pull @ (xs @ da))
        seen = left * gamma  # (K + G^-1)^-1 x
        bend -= 2.0 * float(np.vdot(told, seen)) - 2.0 * float(np.square(seen @ xs.T).sum())
        return dm, dv, bend

    def fixed_columns(self) -> list[Array] | None:
        """The columns of terms without a scale, times prior sds, where they are few beside one term with a scale."""
        scaled, rest = self._parts()
        return list(self._columns(rest)) if self._one_scale(scaled, rest) else None

    def _parts(self) -> tuple[list[int], list[int]]:
        """The terms with a scale, and those without."""
        there = [number for number, prior in enumerate(self.priors) if prior is not None]
        scaled = [number for number in there if self.terms[number].parameters]
        return scaled, [number for number in there if number not in scaled]

    def _one_scale(self, scaled: list[int], rest: list[int]) -> bool:
        """Whether only one term has a scale and the others have few columns."""
        return len(scaled) == 1 and sum(self.terms[number].size for number in rest) <= FEW

    def _columns(self, numbers: list[int]) -> Iterator[Array]:
        """The columns of some terms, times the prior standard deviations of their weights."""
        for number in numbers:
            prior, place = self.priors[number], self.places[number]
            assert prior is not None
            for column, variance in zip(range(place.start, place.stop), prior.variances, strict=True):
                weights = np.zeros(self.design.shape[1])
                weights[column] = np.sqrt(variance)
                yield self.design.times(weights)

    def _scale(self, number: int, prior: WeightsPrior | None) -> float:
        """The standard deviation that all weights of a term with parameters share; 1 for terms without."""
        assert prior is not None
        return float(np.sqrt(prior.variances[0])) if self.terms[number].parameters else 1.0

    def _gram(self, number: int, prior: WeightsPrior) -> Array:
        name = f"gram {number}"
        if name not in self.kept:
            if len(prior.variances) <= FEW:
                columns = np.array(list(self._columns([number]))) / self._scale(number, prior)
                self.kept[name] = columns.T @ columns
            else:
                root = np.zeros(self.design.shape[1])
                root[self.places[number]] = np.sqrt(prior.variances) / self._scale(number, prior)
                self.kept[name] = self.design.outer_gram(root)
        return np.asarray(self.kept[name])
