"""Mutual information between the next observation and its latent value: I(y; s) where s ~ N(m, v).

    I(y; s) = H[E p(y|s)] - E H[p(y|s)] = E KL(p(.|s) || E p(.|s))

The first form is a difference that cancels for small v, the second a mean of what is never negative. Classes are summed
over; each term is p (r + e^-r - 1) with r = log p(y|s) - log E p(y|s), which is r^2/2 for small r: so the information
keeps its relative accuracy however small it is.
"""

from __future__ import annotations

from functools import lru_cache, singledispatch

import numpy as np

from klimb.active.averages import certified_average, divergence_term
from klimb.active.count_information import number_information
from klimb.errors import InputError
from klimb.numerics.adaptive import Rows
from klimb.numerics.arrays import Array
from klimb.numerics.softplus import folded_moments
from klimb.sites.base import Site
from klimb.sites.binary import Logistic
from klimb.sites.local import SuperGaussian
from klimb.sites.real import Gaussian
from klimb.sites.wrappers import Offset

NARROW = 0.02  # v up to which a few nodes give every digit, and the closed form of the logistic begins to cancel
POINTS = 1 << 15


def bald(site: Site, m: Array, v: Array) -> Array:
    """I(y; s) in nats for each marginal N(m, v), 0 where v is 0.

    >>> from klimb.sites import Logistic
    >>> bald(Logistic(), np.array([0.0, 4.0]), np.array([1.0, 1.0])).round(8).tolist()
    [0.09370896, 0.01287376]
    """
    out = np.zeros_like(m)
    open_ = np.flatnonzero(v > 0.0)
    if open_.size == m.size:
        return np.maximum(information(site, m, v), 0.0)
    if open_.size:
        out[open_] = np.maximum(information(site.rows(open_), m[open_], v[open_]), 0.0)
    return out


@singledispatch
def information(site: Site, m: Array, v: Array) -> Array:
    """The rule for a kind of site; this one serves all that have no closed form."""
    if not site.separable or site.response == "mixed":
        raise InputError("BALD needs a site with classes, counts or numbers and one latent value per datum",
                         type(site).__name__, "Use Logistic, Probit, Poisson, Gaussian or a Custom site.")
    return _class_information(site, m, v) if site.response == "classes" else number_information(site, m, v)


@information.register
def _(site: SuperGaussian, m: Array, v: Array) -> Array:
    return information(site.site, m, v)


@information.register
def _(site: Offset, m: Array, v: Array) -> Array:
    return information(site.site, m + site.offset, v)


@information.register
def _(site: Gaussian, m: Array, v: Array) -> Array:
    return np.asarray(0.5 * np.log1p(v / np.broadcast_to(np.asarray(site.scale) ** 2, v.shape)))


@information.register
def _(site: Logistic, m: Array, v: Array) -> Array:
    """H(sigmoid(s)) = softplus(s) - s sigmoid(s), and E s sigmoid(s) = m E sigmoid + v E sigmoid'."""
    out = np.empty_like(m)
    narrow = v <= NARROW
    some = np.flatnonzero(narrow)
    if some.size:
        out[some] = _narrow_logistic(m[some], v[some])
    some = np.flatnonzero(~narrow)
    if some.size:
        mean, wide = -np.abs(m[some]), v[some]
        softplus, p, curvature = folded_moments(mean, wide)
        with np.errstate(divide="ignore", invalid="ignore"):
            marginal = -np.where(p > 0.0, p * np.log(p), 0.0) - (1.0 - p) * np.log1p(-p)
        out[some] = marginal - np.maximum(softplus - mean * p - wide * curvature, 0.0)
    return out


@lru_cache(maxsize=4)
def hermite(n: int) -> tuple[Array, Array]:
    """Nodes and weights for E g(z), z ~ N(0, 1)."""
    node, weight = np.polynomial.hermite_e.hermegauss(n)
    return np.asarray(node), np.asarray(weight / weight.sum())


def _narrow_logistic(m: Array, v: Array) -> Array:
    """E KL(Bernoulli(sigmoid(s)) || Bernoulli(p)) on nodes; with t = logit p it is a Bregman divergence of softplus.

    softplus(t) - softplus(s) - (t - s) sigmoid(s) = (t - s)^2 int_0^1 (1 - u) sigmoid'(s + u (t - s)) du.
    """
    z, weight = hermite(12)
    u, gauss = np.polynomial.legendre.leggauss(5)
    u, gauss = 0.5 * (u + 1.0), 0.5 * gauss
    mean = -np.abs(m)
    out = np.empty_like(m)
    size = max(1, POINTS // z.size)
    for begin in range(0, m.size, size):
        part = slice(begin, begin + size)
        centre, half = mean[part], 0.5 * v[part]
        e = np.exp(centre)
        share = 1.0 / (1.0 + e)
        p, w = e * share, e * share * share
        _, average, _ = folded_moments(centre, v[part])
        # logit p - m for the averaged p, from the difference of the probabilities, to first order and its remainder
        with np.errstate(divide="ignore", invalid="ignore", under="ignore"):
            lift = _lift(centre, half, p, w, average)
        offset = np.sqrt(v[part]) * z[:, None]
        gap = lift - offset  # t - s
        total = np.zeros_like(gap)
        for node, weight_u in zip(u, gauss, strict=True):
            with np.errstate(under="ignore"):
                x = np.exp(-np.abs(centre + offset + node * gap))
                total += weight_u * (1.0 - node) * x / (1.0 + x) ** 2
        out[part] = weight @ (gap * gap * total)
    return out


def _lift(m: Array, half: Array, p: Array, w: Array, average: Array) -> Array:
    """t - m where sigmoid(t) = ``average``; (average - p) / w and two Newton steps on the exact equation."""
    lift = (average - p) / w
    for _ in range(3):
        x = np.exp(m + lift)
        now = x / (1.0 + x)
        lift = lift + (average - now) * (1.0 + x) ** 2 / x
    return np.asarray(np.nan_to_num(lift, nan=0.0, posinf=0.0, neginf=0.0))


# -- any site with classes -------------------------------------------------------------------------------------------


def _class_information(site: Site, m: Array, v: Array) -> Array:
    labels = site.labels()
    marginal = [site.log_predictive(np.full_like(m, label), m, v) for label in labels]

    def terms(rows: Rows, s: Array) -> Array:
        here = site.rows(rows)
        total = np.zeros_like(s)
        for label, log_mean in zip(labels, marginal, strict=True):
            y = np.full(rows.size, label)
            log_p = here.point(y, s).value + here.constant(y)
            total += divergence_term(log_p, log_mean[rows])
        return total[None]

    return certified_average(terms, m, v)
