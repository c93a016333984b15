"""Leave-one-out predictions of a fit, averaged over the parameters behind it; nothing is fitted again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import final

import numpy as np

from klimb.errors import InputError
from klimb.infer.loo import LeaveOneOut as Part
from klimb.infer.loo import loo
from klimb.models.solve import Solution
from klimb.numerics.arrays import Array
from klimb.numerics.dense import row_blocks
from klimb.sites.base import Site

NODES = 64
MOST_TERMS = 100_000  # rows times fits
LEAST_WEIGHT = 0.02  # of a fit, over that of the heaviest


@final
@dataclass(frozen=True, eq=False)
class Moments:
    """Of each y_i before it was seen: ``mean``, ``variance``, P(Y < y_i) as ``below`` and P(Y <= y_i) as ``at``."""

    mean: Array
    variance: Array
    below: Array
    at: Array


@final
@dataclass(frozen=True, eq=False)
class LeaveOneOut:
    """Predictions of each row from all the others: ``log_density`` is log p(y_i | others).

    ``mean``, ``variance``, ``below`` and ``at`` describe y_i before it was seen, and are worked out when they are asked
    for. Rows whose own part cannot be taken out are NaN.
    """

    log_density: Array
    weights: Array | None
    details: Callable[[], Moments]

    @cached_property
    def _moments(self) -> Moments:
        return self.details()

    @property
    def mean(self) -> Array:
        return self._moments.mean

    @property
    def variance(self) -> Array:
        return self._moments.variance

    @property
    def below(self) -> Array:
        """P(Y < y_i)."""
        return self._moments.below

    @property
    def at(self) -> Array:
        """P(Y <= y_i)."""
        return self._moments.at

    @property
    def elpd(self) -> float:
        """Sum of the log densities: larger is better."""
        return float(np.nansum(self._weighed()))

    @property
    def se(self) -> float:
        """Standard error of ``elpd``, from the spread of its terms."""
        terms = self._weighed()
        terms = terms[np.isfinite(terms)]
        return float(np.sqrt(len(terms)) * np.std(terms, ddof=1)) if len(terms) > 1 else 0.0

    @property
    def failed(self) -> int:
        """Rows whose own part could not be taken out."""
        return int(np.sum(~np.isfinite(self.log_density)))

    def _weighed(self) -> Array:
        return self.log_density if self.weights is None else self.log_density * self.weights

    def __repr__(self) -> str:
        failed = f", failed={self.failed}" if self.failed else ""
        return f"LeaveOneOut(elpd={self.elpd:.4g}, se={self.se:.2g}, n={len(self.log_density)}{failed})"


def leave_one_out(solution: Solution, y: Array, weights: Array | None) -> LeaveOneOut:
    """p(y_i | others) = 1 / sum_k w_k / p_k(y_i | others): leaving i out also changes how likely each theta is."""
    keep = _affordable(solution.weights, len(y))
    models = [replace(solution.model, full=solution.points[k].full) for k in keep]
    parts = [loo(solution.points[k].posterior, model.site, y) for k, model in zip(keep, models, strict=True)]
    shares = solution.weights[keep] / solution.weights[keep].sum()
    log_w = np.log(shares)[:, None] - np.array([part.log_density for part in parts])
    total = np.logaddexp.reduce(log_w, axis=0)
    return LeaveOneOut(-total, weights, lambda: _details(parts, log_w, total))


def _affordable(weights: Array, n: int) -> Array:
    """The fits that weigh something, as many as `MOST_TERMS` allows: with many rows the others hardly differ."""
    order = np.argsort(-weights, kind="stable")
    some = order[weights[order] >= LEAST_WEIGHT * weights.max()]
    return np.sort(some[: max(MOST_TERMS // max(n, 1), 1)])


def _details(parts: list[Part], log_w: Array, total: Array) -> Moments:
    with np.errstate(invalid="ignore"):
        w = np.exp(log_w - total)
    good = np.flatnonzero(np.isfinite(total))
    out = [np.full(len(total), np.nan) for _ in range(4)]
    means, squares, lows, highs = (np.zeros(len(good)) for _ in range(4))
    for part, weight in zip(parts, w[:, good], strict=True):
        site, m, v = part.site.rows(good), part.m[good], part.v[good]
        try:
            own_mean, own_variance = site.response_moments(m, v)
            low, high = _distribution(site, part.y[good], m, v)
        except InputError:  # a likelihood of the user's that has no moments and no distribution function
            return Moments(*out)
        means += weight * own_mean
        squares += weight * (own_variance + own_mean**2)
        lows += weight * low
        highs += weight * high
    with np.errstate(invalid="ignore"):
        variances = np.maximum(squares - means**2, 0.0)
    for column, values in zip(out, (means, variances, lows, highs), strict=True):
        column[good] = values
    return Moments(*out)


def _distribution(site: Site, y: Array, m: Array, v: Array) -> tuple[Array, Array]:
    """P(Y < y) and P(Y <= y) where f ~ N(m, v)."""
    if site.response == "classes":
        upto = np.cumsum(site.class_probabilities(m, v), axis=1)
        place = np.searchsorted(site.labels(), y)
        rows = np.arange(len(y))
        return np.where(place > 0, upto[rows, np.maximum(place - 1, 0)], 0.0), np.minimum(upto[rows, place], 1.0)
    nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
    weights = weights / weights.sum()
    low, high = np.empty_like(m), np.empty_like(m)
    for block in row_blocks(len(m), NODES):
        f = m[block] + np.sqrt(v[block]) * nodes[:, None]
        part = site.rows(np.arange(len(m))[block])
        high[block] = weights @ part.cdf(y[block], f)
        low[block] = weights @ part.cdf(y[block] - 1.0, f) if site.discrete else high[block]
    return low, high
