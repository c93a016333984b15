"""I(y; s) where y is a count or a number: the mean over y of KL(p(s|y) || p(s)), and each of these an integral over s.

Counts are summed over: the first few one by one, the rest by Gauss-Legendre rules on panels that grow with the
distance, since a sum of a smooth function is an integral but for its end (Euler and Maclaurin). Of numbers the
predictive quantiles at the nodes of a Gauss-Legendre rule stand for y: an error of at most a percent or two.
"""

from __future__ import annotations

import numpy as np

from klimb.active.averages import certified_average, divergence_term
from klimb.active.responses import response_nodes
from klimb.numerics.adaptive import Rows
from klimb.numerics.arrays import Array
from klimb.sites.base import Site

RARE = 2e-12  # probability of either tail that is left out of a sum over counts
ONE_BY_ONE = 64
GROWTH, NODES = 1.4, 12  # of the panels beyond these, and nodes in each


def number_information(site: Site, m: Array, v: Array) -> Array:
    """I(y; s) for a site of counts or numbers, each marginal N(m, v) by itself."""
    out = np.zeros_like(m)
    rest = np.arange(m.size)
    if site.response == "counts":
        low, high = (site.response_quantile(p, m, v) for p in (RARE, 1.0 - RARE))
        finite = np.isfinite(high)
        rows = np.flatnonzero(finite)
        if rows.size:
            out[rows] = _summed(site.rows(rows), m[rows], v[rows], low[rows], high[rows])
        rest = np.flatnonzero(~finite)
    if rest.size:
        some, m, v = site.rows(rest), m[rest], v[rest]
        for weight, y in response_nodes(some, m, v):
            out[rest] += weight * _divergence(some, y, m, v, relative=True)
    return out


def _summed(site: Site, m: Array, v: Array, low: Array, high: Array) -> Array:
    """Sum over y of p(y) KL(p(s|y) || p(s))."""
    total = np.zeros_like(m)

    def add(rows: Rows, y: Array, weight: float) -> None:
        total[rows] += weight * _divergence(site.rows(rows), y, m[rows], v[rows], relative=False)

    for k in range(min(int((high - low).max()) + 1, ONE_BY_ONE)):
        rows = np.flatnonzero(low + k <= high)
        add(rows, low[rows] + k, 1.0)
    rows = np.flatnonzero(low + ONE_BY_ONE <= high)
    if rows.size:  # f(a) + f(a + 1) + ... = int f from a - 1/2, + f'(a - 1/2) / 24 - ...
        add(rows, low[rows] + ONE_BY_ONE, 1.0 / 24.0)
        add(rows, low[rows] + ONE_BY_ONE - 1.0, -1.0 / 24.0)
    node, share = np.polynomial.legendre.leggauss(NODES)
    begin, width = ONE_BY_ONE - 0.5, (GROWTH - 1.0) * ONE_BY_ONE
    while rows.size:
        for x, w in zip(0.5 * (node + 1.0), 0.5 * share, strict=True):
            add(rows, low[rows] + begin + x * width, w * width)
        begin, width = begin + width, GROWTH * width
        rows = rows[low[rows] + begin < high[rows]]
    return total


def _divergence(site: Site, y: Array, m: Array, v: Array, *, relative: bool) -> Array:
    """KL(p(s|y) || p(s)), or that times p(y): E of q log q - q + 1 with q = p(y|s) / p(y)."""
    log_mean = site.log_predictive(y, m, v)
    log_mean = np.where(np.isfinite(log_mean), log_mean, -1e300)  # an observation that never happens
    log_scale = log_mean if relative else np.zeros_like(m)

    def terms(rows: Rows, s: Array) -> Array:
        here = site.rows(rows)
        with np.errstate(all="ignore"):
            log_p = here.point(y[rows], s).value + np.broadcast_to(here.constant(y[rows]), rows.shape)
        return np.nan_to_num(divergence_term(log_p - log_scale[rows], (log_mean - log_scale)[rows])[None], nan=0.0)

    return certified_average(terms, m, v)
