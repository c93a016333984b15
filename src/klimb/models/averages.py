"""Averages over f of a datum by as few nodes as do: of its density, and of chances."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

from klimb.numerics.arrays import Array
from klimb.sites.base import Site
from klimb.sites.prediction import predictive_cdf
from klimb.trust.levels import quadrature

Rule: TypeAlias = tuple[Array, Array]  # nodes and log weights
NODES, STEPS, REACH = (1, 2, 3, 5, 9), (0.4, 0.2), 6.4  # of averages over f, in its sds
# Nats, or share of a tail, from the rule before: halved steps square an error. Two nodes may agree with five by chance.
CLOSE = (0.0, 1e-4, 1e-3, 1e-2)
FLAT, NEARLY = 0.3, 0.6  # the same between the nodes of the first rule, below which it or the next is right to 1e-4
LITTLE = 0.02  # leverage
SURE = 3e-4  # nats that sums over all data may be off by for fewer nodes


def log_predictive(site: Site, y: Array, m_out: Array, v_out: Array, m: Array, v: Array,
                   known: tuple[Array, Array] | None = None) -> Array:
    """log int p(y | f) N(f; m_out, v_out) df, by nodes of q's own N(m, v), which is close to what is integrated.

    Where N(m_out, v_out) is q without exactly the datum's own site, its leverage gamma v and how often it counts are
    ``known``.
    """
    leverage = None if known is None or not site.steady else known[0]
    rule = _fewest(leverage, v, known[1]) if known is not None and leverage is not None else None
    easy = type(site).tilted is not Site.tilted or type(site).log_predictive is not Site.log_predictive
    if rule is None and (easy or not (site.separable and site.smooth and site.log_concave)):
        return (site.rough() if site.separable else site).log_predictive(y, m_out, v_out)
    few = leverage is not None and leverage.max(initial=0.0) < LITTLE  # then log(1 - h) to h^4
    shrunk = -leverage * (1.0 + leverage * (0.5 + leverage / 3.0)) if few else np.log(v / v_out)  # type: ignore[operator]
    constant, away, scale = site.constant(y) + 0.5 * shrunk, m - m_out, np.sqrt(v)

    def logs(rows: Any, x: Array) -> Array:
        d = scale[rows] * x
        found = site.rows(rows).value(y[rows], m[rows] + d) - 0.5 * (away[rows] + d) ** 2 / v_out[rows]
        return np.asarray(found + (0.5 * x**2 + constant[rows]))

    def average(logs: Array, log_share: Array) -> Array:
        if len(logs) == 1:
            return np.asarray(logs[0])
        top = logs.max(axis=0)
        return np.asarray(np.log((np.exp(log_share) * np.exp(logs - top)).sum(axis=0)) + top)

    if rule is not None:
        return average(logs(slice(None), rule[0]), rule[1])
    # Three nodes do not see what is left of a site once its slope and its curvature are taken from it, a cube.
    return _by_nodes(logs, average, lambda one, other: np.abs(one - other), _rules()[3:], len(y),
                     lambda rows: site.rows(rows).log_predictive(y[rows], m_out[rows], v_out[rows]))


def _fewest(leverage: Array, v: Array, counts: Array) -> Rule | None:
    """The fewest nodes of q that do for the density of a datum left out, where no derivative exceeds the second.

    Freed of its slope and its curvature under q, log p is c_3 h_3 + c_4 h_4 + ... in Hermite's polynomials, with k! c_k
    at most gamma v^(k/2). One node misses c_4 h_4, three c_6 h_6 and half of the variance of c_3 h_3, five the like.
    """
    least, (one, _, three, five) = counts * leverage * v, _rules()[:4]
    if 0.125 * float(least.sum()) <= SURE:
        return one
    if float(least @ (leverage / 12.0 + v / 120.0)) <= SURE:
        return three
    return five if float((least * v) @ (leverage * (v / 70.0 + leverage / 7.0) + v**2 / 2000.0)) <= SURE else None


def place_of(site: Site, y: Array, m: Array, v: Array) -> Array:
    """P(Y <= y) where f ~ N(m, v), to a share of the tail that y is in."""
    if not site.smooth or not v.any():
        return predictive_cdf(site, y, m, v)

    return average_chance(lambda rows, f: site.rows(rows).cdf(y[rows], f), m, v,
                          lambda rows: predictive_cdf(site.rows(rows), y[rows], m[rows], v[rows]))


def average_chance(chance: Callable[[Any, Array], Array], m: Array, v: Array, exact: Callable[[Any], Array]) -> Array:
    """Of one that rises or falls with f ~ N(m, v), given rows and f, to a share of the smaller of it and its opposite.
    """
    scale, rules = np.sqrt(v), _rules()
    with np.errstate(all="ignore"):
        return _by_nodes(lambda rows, x: chance(rows, m[rows] + scale[rows] * x),
                         lambda chances, log_share: (np.exp(log_share) * chances).sum(axis=0),
                         lambda one, other: np.abs(one - other) / np.minimum(one, 1.0 - one), [rules[1], *rules[3:]],
                         len(m), exact)


@lru_cache(maxsize=1)
def _rules() -> list[Rule]:
    """Nodes and log weights of averages under N(0, 1): by Gauss and Hermite, then by trapezia for what is steep."""
    found = [(x, log_share[:, None]) for x, log_share in (quadrature(1, count) for count in NODES)]
    for step in STEPS:
        x = np.arange(-REACH, REACH + 0.5 * step, step)[:, None]
        found.append((x, np.log(step / np.sqrt(2.0 * np.pi)) - 0.5 * x**2))
    return found


def _by_nodes(values: Callable[[Any, Array], Array], average: Callable[[Array, Array], Array],
              apart: Callable[[Array, Array], Array], rules: list[Rule], n: int,
              exact: Callable[[Any], Array]) -> Array:
    """Averages by the fewest nodes that are not ``apart``, or not from the answer of fewer; ``exact`` ones of the rest.
    """
    (x, log_share), *more = rules
    nodes = values(slice(None), x)
    found = average(nodes, log_share)
    spread = apart(nodes.max(axis=0), nodes.min(axis=0))
    left = np.flatnonzero(~(spread < FLAT))
    for (x, log_share), tolerance in zip(more, CLOSE[-len(more):], strict=True):
        if not left.size:
            return found
        before, found[left] = found[left], average(values(left, x), log_share)
        left = left[~((apart(found[left], before) < tolerance) | (spread[left] < NEARLY))]
    if left.size:
        found[left] = exact(left)
    return found
