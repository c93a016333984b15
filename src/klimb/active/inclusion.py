"""A new datum meets the marginal N(m, v) of its latent value: its own Gaussian site, and what one label teaches.

The new marginal N(m', v') maximises the bound of one datum, E log p(y|s) - KL(q' || q); it is q times a site exp(slope
s - gamma s^2 / 2), with alpha and gamma the oracle's at (m', v'):

    1/v' = 1/v + gamma        m' = m - v alpha        slope = gamma m' - alpha

With the oracle of `klimb.sites.SuperGaussian` this is the minimiser of phi_i of [N] (Appendix; its gamma_i is 1/gamma).
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from klimb.infer.start import DIFFERENCE, newton_step
from klimb.numerics.arrays import Array, Index
from klimb.numerics.search import monotone_root
from klimb.numerics.special import exponentials, legendre
from klimb.sites import Expectation, Site, SuperGaussian

ENOUGH = 1e-11  # size of the gradient in (m / sd, log v) at which a datum is done
MOST_STEPS = 80
ROUNDING = 1e-13  # what the bound of one datum may lose to rounding, relative to its terms
LEVELS = 33  # quantiles of the predictive distribution that stand for counts and numbers
SCORE_TOL = 1e-6  # of the new sites behind a score, whose error is then smaller still


class Inclusion(NamedTuple):
    """New sites, one per datum: ``gamma``, ``slope``, the new marginal (``m``, ``v``) and ``gain`` = KL(q' || q).

    log det of the precision gains ``log_kappa`` = log(1 + gamma v).

    >>> from klimb.sites import Logistic
    >>> new = include(Logistic(), np.ones(2), m=np.array([0.0, 4.0]), v=np.full(2, 4.0))  # label 1: news, and none
    >>> print(new.m.round(2), new.v.round(2), new.gain.round(2))
    [1.21 4.21] [2.51 3.46] [0.23 0.01]
    """

    gamma: Array
    slope: Array
    m: Array
    v: Array
    gain: Array
    log_kappa: Array


def include(site: Site, y: Array, m: Array, v: Array, *, tol: float = ENOUGH) -> Inclusion:
    """The best Gaussian site of each datum ``y`` (as ``site.validate`` gives it) against its marginal N(m, v).

    ``tol`` bounds the gradient of the datum's bound in (m / sd, log v); scores of many candidates need little.

    >>> from klimb.sites import Gaussian
    >>> new = include(Gaussian(scale=1.0), np.array([2.0]), np.zeros(1), np.array([3.0]))
    >>> print(new.m.round(12), new.v.round(12), new.gamma.round(12))
    [1.5] [0.75] [1.]
    """
    prior_v = np.maximum(v, np.finfo(float).tiny)
    with np.errstate(all="ignore"):  # what overflows is worse than what does not, and is left
        if isinstance(site, SuperGaussian):
            gamma, slope = _local_site(site, y, m, prior_v)
        else:
            gamma, slope = _site(site, y, m, prior_v, tol)
        t = gamma * prior_v
        kappa = 1.0 + t
        pull = (slope - gamma * m) / kappa
        log_kappa = np.log1p(t)
        gain = 0.5 * (exponentials(-log_kappa)[2] + prior_v * pull * pull)  # log(1 + t) - t / (1 + t), with its digits
        return Inclusion(gamma, slope, m + prior_v * pull, prior_v / kappa, gain, log_kappa)


def _site(site: Site, y: Array, m: Array, v: Array, tol: float) -> tuple[Array, Array]:
    """(gamma, slope), by Newton in (m / sd, log v), data that are done leaving the field."""
    new_m, new_v = _start(site, y, m, v)
    active = np.arange(m.size)
    best = np.full_like(m, -np.inf)
    step, d_m, d_v = np.ones_like(m), np.zeros_like(m), np.zeros_like(m)
    alpha, gamma = np.empty_like(m), np.empty_like(m)
    trial_m, trial_v = new_m.copy(), new_v.copy()
    for _ in range(MOST_STEPS):
        part = active
        e = site.rows(part).oracle(y[part], trial_m, trial_v)
        ratio, away = trial_v / v[part], trial_m - m[part]
        divergence = 0.5 * (ratio - 1.0 - np.log(ratio) + away**2 / v[part])
        value = e.value - divergence
        value = np.where(value < np.inf, value, -np.inf)  # and where it is no number
        better = value >= best[part] - ROUNDING * (1.0 + np.abs(e.value) + np.abs(divergence))
        kept = part[better]
        new_m[kept], new_v[kept], best[kept] = trial_m[better], trial_v[better], value[better]
        alpha[kept], gamma[kept] = e.alpha[better], e.gamma[better]
        step[part] = np.where(better, 1.0, 0.25 * step[part])
        slopes = np.sqrt(trial_v) * (e.alpha + away / v[part]), 0.5 * (1.0 - ratio - trial_v * e.gamma)
        going = np.where(better, np.maximum(*np.abs(slopes)) > tol, step[part] > 1e-9)
        active = part[going]
        if not active.size:
            break
        ahead = going & better
        kept = part[ahead]
        beyond = site.rows(kept).oracle(y[kept], new_m[kept], new_v[kept] * (1.0 + DIFFERENCE))
        here = Expectation(*(piece[ahead] for piece in e))
        d_m[kept], d_v[kept] = newton_step(here, beyond, new_m[kept], new_v[kept], m[kept], v[kept], floor=0.01)[:2]
        trial_m = new_m[active] + step[active] * d_m[active] * np.sqrt(new_v[active])
        trial_v = new_v[active] * np.exp(step[active] * d_v[active])
    if site.log_concave:
        gamma = np.maximum(gamma, 0.0)
    return gamma, gamma * new_m - alpha


def _start(site: Site, y: Array, m: Array, v: Array) -> tuple[Array, Array]:
    """One natural step from the marginal where the site is tame; else where the site, seen alone, would put it."""
    e = site.oracle(y, m, v)
    step_v = v / (1.0 + np.maximum(e.gamma, 0.0) * v)
    step_m = m - step_v * e.alpha
    slope, gamma = site.start(y)
    own_v = v / (1.0 + gamma * v)
    own_m = m + own_v * (slope - gamma * m)
    tame = (np.abs(step_m - m) <= 2.0 * np.sqrt(v)) & (step_v >= 0.01 * own_v)  # False for NaN
    return np.where(tame, step_m, own_m), np.where(tame, step_v, own_v)


def _local_site(site: SuperGaussian, y: Array, m: Array, v: Array) -> tuple[Array, Array]:
    """The minimiser of phi_i, convex in 1/gamma: there the bound that touches at E (s - c)^2 has this very gamma."""
    odd, centre = site.site.symmetry(y)

    def excess(rows: Index, log_gamma: Array) -> Array:
        """log gamma less the log of the gamma that the new marginal asks for: negative below the minimiser."""
        gamma = np.exp(log_gamma)
        new_v = v[rows] / (1.0 + gamma * v[rows])
        new_m = m[rows] + new_v * (odd[rows] - gamma * (m[rows] - centre[rows]))
        asked = site.rows(rows).oracle(y[rows], new_m, new_v).gamma
        return log_gamma - np.log(np.maximum(asked, np.finfo(float).tiny))

    first = site.oracle(y, m, v).gamma
    gamma = np.exp(monotone_root(excess, np.log(np.maximum(first, np.finfo(float).tiny)), np.full_like(m, 0.5)))
    return gamma, odd + gamma * centre


def plain_site(site: Site) -> Site:
    """The likelihood itself, where the site is its local bound."""
    return site.site if isinstance(site, SuperGaussian) else site


def response_nodes(site: Site, m: Array, v: Array) -> Iterator[tuple[Array, Array]]:
    """Pairs (weight, y), each one per candidate; weights of a candidate sum to 1.

    Classes with their probabilities; of counts and numbers predictive quantiles at the nodes of a Gauss-Legendre rule.
    """
    plain = plain_site(site)
    if plain.response == "classes":
        p = plain.class_probabilities(m, v)
        for k, label in enumerate(plain.labels()):
            yield p[:, k], np.full_like(m, label)
        return
    levels, weight = legendre(LEVELS)
    values = np.stack([plain.response_quantile(float(level), m, v) for level in levels])
    finite = np.isfinite(values)  # counts beyond the largest float are left out
    shares = np.where(finite, weight[:, None], 0.0)
    shares /= np.maximum(shares.sum(axis=0), 1e-300)
    yield from zip(shares, np.where(finite, values, 0.0), strict=True)


def expected_gamma(site: Site, m: Array, v: Array, what: str = "gamma") -> Array:
    """E gamma (or another part of an inclusion) over the predictive distribution of the label, for each N(m, v)."""
    total = np.zeros_like(m)
    for weight, y in response_nodes(site, m, v):
        total += weight * np.nan_to_num(getattr(include(site, y, m, v, tol=SCORE_TOL), what), nan=0.0, posinf=0.0)
    return total
