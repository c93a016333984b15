"""Priors that are no Gaussians: one more row and one more site for each of their weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from klimb.latents.weights_posterior import WeightPosterior
from klimb.linalg.matrix import DesignMatrix
from klimb.numerics.arrays import Array


def log_tapers(model: Any) -> float:
    """What makes such priors proper, and is no part of a linear model."""
    return float(sum(model.terms[number].log_taper(model.values[number]) for number, _ in model.densities))


def density_value(model: Any, q: WeightPosterior) -> float:
    """The expected log densities of the weights that have such priors."""
    total, sd = -log_tapers(model), q.sd()
    for number, site in model.densities:
        place = model.places[number]
        zero = np.zeros(place.stop - place.start)
        total += float((site.oracle(zero, q.mean[place], sd[place] ** 2).value + site.constant(zero)).sum())
    return total


class WithIdentity(DesignMatrix):
    """[X; E]: the rows of a design, then one row for each of some ``columns``, with a one there."""

    def __init__(self, inner: DesignMatrix, columns: npt.NDArray[np.intp]) -> None:
        self._inner, self._columns = inner, columns
        self._n = inner.shape[0]
        self.shape = (self._n + len(columns), inner.shape[1])

    def times(self, vector: Array) -> Array:
        return np.concatenate([self._inner.times(vector), vector[self._columns]])

    def _transpose_times(self, vector: Array) -> Array:
        product = self._inner.transpose_times(vector[: self._n]).copy()
        product[self._columns] += vector[self._n :]
        return product

    def weighted_gram(self, gamma: Array) -> Array:
        gram = self._inner.weighted_gram(np.ascontiguousarray(gamma[: self._n]))
        gram[self._columns, self._columns] += gamma[self._n :]
        return gram

    def row_norms_squared(self, root: Array, *, upper: bool = False, times: Array | None = None) -> tuple[Array, Array]:
        norms, product = self._inner.row_norms_squared(root, upper=upper, times=times)
        own = root[self._columns] ** 2 if root.ndim == 1 else np.einsum("ij,ij->i", *[root[self._columns]] * 2)
        after = np.zeros(len(own)) if times is None else times[self._columns]
        return np.concatenate([norms, own]), np.concatenate([product, after])

    def subset(self, rows: npt.NDArray[np.intp]) -> WithIdentity:
        above = rows[rows < self._n]
        return WithIdentity(self._inner.subset(above), self._columns[rows[rows >= self._n] - self._n])

    def dense_rows(self, rows: slice) -> Array:
        begin, stop, _ = rows.indices(self.shape[0])
        above = self._inner.dense_rows(slice(min(begin, self._n), min(stop, self._n)))
        below = np.zeros((max(stop, self._n) - max(begin, self._n), self.shape[1]))
        places = self._columns[max(begin, self._n) - self._n : max(stop, self._n) - self._n]
        below[np.arange(len(places)), places] = 1.0
        return np.concatenate([above, below])

    def dense(self) -> Array:
        return self.dense_rows(slice(None))
