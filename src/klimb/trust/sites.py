"""Which data drive the misfit: site by site, what a Gaussian cannot follow."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from klimb.errors import require
from klimb.infer.problem import Problem
from klimb.latents.base import Posterior
from klimb.numerics.arrays import Array
from klimb.sites.base import Site
from klimb.trust.weights import exact_site

DIFFERENCE = 1e-4  # relative step in v for derivatives of the oracle
EDGES = 121  # of the sign map, in each direction
FLAT = 1e-9  # |v d gamma/dv| over |gamma| below which gamma counts as constant


@dataclass(frozen=True, eq=False)
class SiteReport:
    """One entry per datum, all without unit.

    ``skewness`` is the third cumulant that the datum alone would give its own f, sd^3 E d^3 log p/df^3; ``misfit`` is
    the share of the variance of log w (in nats) that is the datum's own, to fourth order; ``pull_change`` is
    sd |alpha - alpha at the mean|, how much the spread of f changes the datum's pull.
    """

    y: Array
    m: Array
    v: Array
    gamma: Array
    skewness: Array
    misfit: Array
    pull_change: Array

    @property
    def negative(self) -> Any:
        """Indices of the data with negative precision: they widen the posterior, as outliers do."""
        return np.flatnonzero(self.gamma < 0)

    def worst(self, k: int = 5) -> Any:
        """Indices of the ``k`` data with the largest misfit."""
        return np.argsort(-self.misfit, kind="stable")[:k]

    def table(self, k: int = 5) -> list[dict[str, float]]:
        """The ``k`` worst data as rows."""
        columns = {"y": self.y, "m": self.m, "sd": np.sqrt(self.v), "gamma": self.gamma, "skewness": self.skewness,
                   "misfit": self.misfit, "pull_change": self.pull_change}
        return [{"index": int(i)} | {name: float(column[i]) for name, column in columns.items()} for i in self.worst(k)]


def site_report(problem: Problem, posterior: Posterior) -> SiteReport:
    """Three calls of the oracle: at q's marginals, a little wider, and at the means."""
    site, y, m, v = exact_site(problem.site), problem.y, posterior.m, posterior.v
    here = site.oracle(y, m, v)
    near = site.oracle(y, m, v * (1.0 + DIFFERENCE))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        # d alpha/dv = -E g'''/2 and d gamma/dv = -E g''''/2 for g = log p(y|.).
        cubic = -2.0 * (near.alpha - here.alpha) / (DIFFERENCE * v) * v**1.5
        quartic = -2.0 * (near.gamma - here.gamma) / DIFFERENCE * v
        pull_change = np.sqrt(v) * np.abs(here.alpha - site.point(y, m).alpha)
    cubic, quartic = np.nan_to_num(cubic), np.nan_to_num(quartic)
    if not site.separable:
        y = np.tile(y, site.n_outputs)
    return SiteReport(y, m, v, here.gamma, cubic, cubic**2 / 6.0 + quartic**2 / 24.0, np.nan_to_num(pull_change))


@dataclass(frozen=True, eq=False)
class SignMap:
    """sign(d gamma/dv) on a grid of (m, v) for one value of y: [S] Fig. 1. Rising is +1 (their condition 2a)."""

    y: float
    m: Array
    v: Array
    sign: Array  # one row per v


def sign_map(site: Site, y: float, m: Array, v: Array, at: int = 0) -> SignMap:
    """The sign of d gamma/dv for datum ``at`` of a site, by a difference of the oracle."""
    mean, variance = np.meshgrid(m, v)
    rows = np.full(mean.size, at, dtype=np.intp)
    one = site.rows(rows)
    data = np.full(mean.size, y)
    with np.errstate(over="ignore", invalid="ignore"):
        low = one.oracle(data, mean.ravel(), variance.ravel())
        high = one.oracle(data, mean.ravel(), variance.ravel() * (1.0 + DIFFERENCE))
        change = (high.gamma - low.gamma) / DIFFERENCE
        sign = np.where(np.abs(change) <= FLAT * np.abs(low.gamma), 0.0, np.sign(change))
    return SignMap(y, m, v, np.nan_to_num(sign).reshape(mean.shape))


def maps_of(problem: Problem, posterior: Posterior, most: int = 3) -> list[tuple[SignMap, Any]]:
    """Maps for the most frequent values of y (or its median), each with the data that have it, over their own range."""
    site, y = exact_site(problem.site), problem.y
    require(site.separable, "a map over (m, v) needs one latent value per datum", f"{site.n_outputs} of {site!r}",
            "Look at trust.sites instead.")
    values, counts = np.unique(y, return_counts=True)
    if len(values) > 12:  # real data: one map around the median, and all data on it relative to y
        chosen = [float(values[np.argmin(np.abs(values - np.median(y)))])]
    else:
        chosen = [float(value) for value in values[np.argsort(-counts, kind="stable")][:most]]
    sd = np.sqrt(posterior.v)
    reach = np.array([(posterior.m - sd).min(), (posterior.m + sd).max()])
    span = max(float(reach[1] - reach[0]), 1e-6)
    m = np.linspace(reach[0] - 0.1 * span, reach[1] + 0.1 * span, EDGES)
    low, high = float(posterior.v.min()), float(posterior.v.max())
    v = np.geomspace(max(low / 5.0, 1e-8), max(5.0 * high, 1e-6), EDGES)
    found = []
    for value in chosen:
        rows = np.flatnonzero(y == value) if len(chosen) > 1 or len(values) <= 12 else np.arange(len(y))
        found.append((sign_map(site, value, m, v, int(rows[0])), rows))
    return found
