"""Wide linear models: X Sigma X' as a sum over terms of matrices that are made once, times variances that move."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from klimb.linalg.matrix import DesignMatrix
from klimb.numerics.arrays import Array
from klimb.terms.base import Term, WeightsPrior


@final
@dataclass(frozen=True, eq=False)
class Grams:
    """The columns of a model, its terms with their priors, and what all points of theta share."""

    design: DesignMatrix
    terms: tuple[Term, ...]
    places: tuple[slice, ...]
    priors: tuple[WeightsPrior | None, ...]
    kept: dict[str, Any]

    def total(self) -> Array:
        """X Sigma X'."""
        total: Any = None
        for number, prior in enumerate(self.priors):
            if prior is not None:
                part = self._scale(number, prior) ** 2 * self._gram(number, prior)
                total = part if total is None else total + part
        return np.asarray(total)

    def slopes(self, d_K: Array) -> Iterator[tuple[Term, float]]:
        """d bound / d s = 2 s <d bound / dK, Gram of the term> for every term with a scale s, without the weights."""
        for number, (term, prior) in enumerate(zip(self.terms, self.priors, strict=True)):
            if term.parameters and prior is not None:
                yield term, 2.0 * self._scale(number, prior) * float(np.vdot(d_K, self._gram(number, prior)))

    def _scale(self, number: int, prior: WeightsPrior) -> float:
        """The standard deviation that all weights of a term with parameters share; 1 for terms without."""
        return float(np.sqrt(prior.variances[0])) if self.terms[number].parameters else 1.0

    def _gram(self, number: int, prior: WeightsPrior) -> Array:
        name = f"gram {number}"
        if name not in self.kept:
            root = np.zeros(self.design.shape[1])
            root[self.places[number]] = np.sqrt(prior.variances) / self._scale(number, prior)
            self.kept[name] = self.design.outer_gram(root)
        return np.asarray(self.kept[name])
