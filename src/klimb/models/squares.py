"""Rows with Gaussian noise: evidence, slopes and posterior of the weights at any theta, from sums that are made once.

    V^-1 = P + [X Z]'W[X Z] / s,    log p(y) = -n/2 log(2 pi s) - |y - f|_W^2 / 2s - |u|^2 / 2 - 1/2 log det(V^-1 S S')

at the posterior mean f = X w + Z b, whose weights are S u, where P^-1 = S S' is their prior covariance. X'WX and the
sums over levels do not move with theta. Residuals are summed row by row, so that y far from 0 costs no digits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from klimb.latents.arrow import ArrowWeights
from klimb.latents.linear import WeightPrior
from klimb.latents.mixed import eliminated, level_sums
from klimb.latents.weights_posterior import DenseWeights, WeightPosterior
from klimb.likelihoods import Observed
from klimb.models.linear_parts import LinearRows
from klimb.numerics.arrays import Array

if TYPE_CHECKING:
    from klimb.models.linear import LinearModel


@dataclass(frozen=True, eq=False)
class Exact:
    """At one theta: the log evidence, its gradient, and the posterior of the weights."""

    bound: float
    gradient: Array
    part: WeightPosterior


class Squares:
    """The sums of some rows, and what follows from them at the theta of a model."""

    def __init__(self, rows: LinearRows, X: Array, n_levels: int, data: Observed) -> None:
        k = rows.values.shape[1] if n_levels else 0
        self._codes, self._counts, self._X, self._Z = rows.codes, data.counts, X, rows.values[:, :k]
        self._y = data.y if data.offset is None else data.y - data.offset
        self._n, (B, L) = data.total, (X.shape[1], n_levels)
        self._gram = (self._counts[:, None] * X).T @ X
        self._levels, self._across = np.zeros((L, k, k)), np.zeros((L, k, B))
        for j in range(k):
            weights = self._counts * self._Z[:, j]
            self._levels[:, j], self._across[:, j] = (level_sums(rows.codes, L, weights, own) for own in (self._Z, X))
        self._pull: tuple[Array, Array, Array] | None = None
        self._still: tuple[WeightPrior, Array, Array] | None = None

    @classmethod
    def of(cls, model: LinearModel, data: Observed) -> Squares | None:
        """Of the rows of a model; None where they are not few, and have no level each, or other noise."""
        rows = model.fitted_rows()
        few = rows.stands_for or model.form == "Mixed"
        if not few or model.passes is not None or not by_squares(model, data):
            return None
        if model.coded >= 0 and rows.codes.min() < 0:
            return None
        return cls(rows, model.design.dense_rows(slice(None)), model.n_levels, data)

    def _pulled(self, mean: Array) -> tuple[Array, Array]:
        """X'W(y - X mean), and the same by level."""
        if self._pull is None or not np.array_equal(self._pull[0], mean):
            rest = self._counts * (self._y - self._X @ mean)
            self._pull = mean, self._X.T @ rest, level_sums(self._codes, len(self._levels), rest, self._Z)
        return self._pull[1:]

    def _in_units(self, model: LinearModel) -> tuple[WeightPrior, Array, Array]:
        """The prior of the shared weights, and the sums in units of its root, which stand still where it does."""
        if self._still is not None:
            return self._still
        prior = WeightPrior(*model.prior_moments(), self._X.shape[1])
        across = self._across * prior.root if prior.root.ndim == 1 else self._across @ prior.root
        found = prior, across, prior.whiten(self._gram.copy())
        apart = (term for number, term in enumerate(model.terms) if number != model.coded)
        self._still = None if any(term.parameters or term.follows is not None for term in apart) else found
        return found

    def at(self, model: LinearModel) -> Exact:
        """At the theta of a model of these rows."""
        theta, likelihood = model.theta, model.likelihood
        noise = {**likelihood.known, **likelihood.values(theta.of_owner(model.at, likelihood.parameters))}["scale"]
        s, (prior, across, gram) = noise**2, self._in_units(model)
        R = model.values[model.coded][0] if len(self._levels) else np.zeros((0, 0))
        D_inverse, T, root, logdet = eliminated(R.T @ self._levels @ R / s, R.T @ across / s, gram / s)
        border, levels = self._pulled(prior.mean)
        own = levels @ R / s
        pulled = _whitened(prior, border) / s - np.tensordot(own, T, axes=2)
        u = root @ (root.T @ pulled)
        own = np.matmul(D_inverse, own[:, :, None])[:, :, 0] - T @ u
        shared, b = prior.mean + prior.root_times(u[:, None])[:, 0], own @ R.T
        rest = self._y - self._X @ shared
        if len(b):
            rest -= np.einsum("ij,ij->i", self._Z, b[self._codes])
        squares = float(self._counts @ rest**2)
        bound = -0.5 * (self._n * np.log(2.0 * np.pi * s) + squares / s + np.vdot(u, u) + np.vdot(own, own) + logdet)
        S, pull = prior.root_times(np.ascontiguousarray(root)), T @ root
        part = ArrowWeights(shared, S, b, R @ pull, R @ D_inverse @ R.T)
        # tr(I - V P), what the rows say of the weights, is the sum of counts times Var f over s.
        unknown = np.vdot(root, root) + np.trace(D_inverse, axis1=1, axis2=2).sum() + np.vdot(pull, pull)
        slope = (squares / s + u.size + own.size - float(unknown) - self._n) / noise
        gradient, blocks = np.zeros(theta.size), likelihood.parameters
        model.add_field(gradient, part)
        theta.add(gradient, blocks, [block.pull(model.at[theta.slice_of(block)], slope) for block in blocks])
        return Exact(float(bound), gradient, _dense(part) if model.form == "Weights" else part)


def by_squares(model: LinearModel, data: Observed) -> bool:
    """Whether squares of residuals from columns that stand still are all that the data say."""
    rows = model.fitted_rows()
    fixed = rows.sparse is None and not model.densities and model.featured[0] is rows.X
    return fixed and model.form in ("Weights", "Mixed") and model.likelihood.by_squares(data)


def _dense(q: ArrowWeights) -> DenseWeights:
    """The same posterior where levels are columns like any other."""
    (B, R), own = q.root.shape, q.level_roots
    root = np.zeros((q.size, R + own.shape[0] * own.shape[2]))
    root[:B, :R], root[B:, :R] = q.root, -q.pull.reshape(-1, R)
    for number, block in enumerate(own):
        row, column = B + number * len(block), R + number * block.shape[1]
        root[row : row + len(block), column : column + block.shape[1]] = block
    return DenseWeights(q.mean, root)


def _whitened(prior: WeightPrior, values: Array) -> Array:
    """S'values."""
    return np.asarray(values * prior.root if prior.root.ndim == 1 else prior.root.T @ values)
