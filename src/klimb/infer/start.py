"""Where to begin: Gaussian sites from the data alone, or each site at its own one-dimensional optimum."""

from __future__ import annotations

from contextlib import suppress

import numpy as np

from klimb.errors import InputError, NotPositiveDefiniteError
from klimb.infer.loop import Step, run
from klimb.infer.problem import Problem, State
from klimb.latents.base import Posterior
from klimb.numerics.arrays import Array

INFORMATIVE = 2.0  # gamma k_ii from which a datum matters more to its site than the prior does
THINNING, SMALLEST_THINNED = 8, 1000  # a coarse fit takes every eighth row, if that leaves enough of them
COARSE_TOL, COARSE_ITERATIONS = 1e-2, 30  # its posterior differs from the full one by several sd anyway
CLOSE = 1.0  # stationarity of the coarse start above which the others are tried as well
DIFFERENCE = 1e-5  # relative step in v for derivatives of the oracle
TOO_WIDE = 1e3  # v gamma from which a site wants a far smaller variance than the one tried
DISBELIEF = 1e-3  # what is left of the sites on the other side, in the starts for sites that are not log-concave
LOCAL_STEPS = 12  # Newton steps on each site alone: the start need not be exact


def first_state(problem: Problem, coarse_step: Step | None = None) -> State:
    """The best of a few starts, judged by the bound; log-concave sites that share few weights need only one.

    Where data are many and weights few, a fit to a part of the data (by ``coarse_step``) is next to the answer, and
    otherwise sites that match each datum are a good start. Where K is nearly diagonal (short lengthscales) and wide,
    they are far off, and each site's own optimum against its prior marginal is nearly exact: that is tried where there
    are about as many weights as sites, and informative data. Sites that are not log-concave may have several optima,
    typically where data contradict each other: there two more starts each believe the data on one side of the first.
    """
    if problem.start is not None:
        state = _warm_state(problem, problem.start)
        if state is not None:
            return state
    coarse = None if coarse_step is None else _coarse_state(problem, coarse_step)
    if coarse is not None and coarse.stationarity < CLOSE:
        return coarse
    slope, gamma = problem.site.start(problem.y)
    best = first = _finite_state(problem, slope, gamma)
    if not problem.site.log_concave:
        pull = first.expectation.alpha
        for side in (pull > 0, pull < 0):
            trust = np.where(side, 1.0, DISBELIEF)
            best = _better(best, _finite_state(problem, trust * slope, trust * gamma))
    latent = problem.latent
    weakly_coupled = latent.n_weights >= latent.n_sites
    if problem.site.uses_variance and weakly_coupled and np.median(gamma * latent.prior_variances) > INFORMATIVE:
        with suppress(NotPositiveDefiniteError):
            best = _better(best, local_sites(problem, latent.mean, latent.prior_variances, first))
    return best if coarse is None else _better(best, coarse)


def _warm_state(problem: Problem, start: Posterior) -> State | None:
    """The sites of ``start`` under the present prior; None where they make no proper or finite posterior there."""
    with suppress(NotPositiveDefiniteError):
        state = problem.at_sites(start.a + start.gamma * start.m, start.gamma)
        if np.isfinite(state.objective):
            return state
    return None


def _coarse_state(problem: Problem, step: Step) -> State | None:
    """The sites of a fit to every few rows, seen from all of them; None where data are too few to spare any."""
    latent, site = problem.latent, problem.site
    size = latent.n_sites // THINNING
    if size < max(SMALLEST_THINNED, THINNING * latent.n_weights) or not site.log_concave:
        return None
    rows = np.sort(np.random.default_rng(0).choice(latent.n_sites, size, replace=False))
    thinned = latent.thin(rows)
    if thinned is None:
        return None
    part = Problem(thinned, site.rows(rows), problem.y[rows])
    found, *_ = run(part, step, COARSE_TOL, COARSE_ITERATIONS, None)
    m, v = latent.marginals(part.posterior(found))
    e = problem.oracle(m, v)
    gamma = np.maximum(e.gamma, 0.0)
    if not np.isfinite(gamma.sum() + e.alpha.sum()):
        return None
    return problem.at_sites(gamma * m - e.alpha, gamma)


def _better(one: State, other: State) -> State:
    return other if other.objective > one.objective else one


def _finite_state(problem: Problem, slope: Array, gamma: Array) -> State:
    """The start with these sites, sharpened about their modes while the bound overflows (say, a prior mean of 1000)."""
    mode = np.divide(slope, gamma, out=np.zeros_like(slope), where=gamma > 0)
    for _ in range(60):
        try:
            state = problem.at_sites(slope, gamma)
        except NotPositiveDefiniteError:
            state = None
        if state is not None and np.isfinite(state.objective):
            return state
        gamma = 4.0 * gamma + 1e-3
        slope = gamma * mode
    raise InputError(
        "prior and data must have a finite bound somewhere near the data",
        "an infinite one at every start",
        "Check offsets, exposures and the prior mean for values that overflow under the link.",
    )


def local_sites(problem: Problem, prior_m: Array, prior_v: Array, state: State) -> State:
    """The state whose every site is the one of its own best marginal against N(prior_m, prior_v)."""
    m, spread = local_optimum(problem, prior_m, prior_v, state)
    e = problem.oracle(m, spread + problem.latent.slack)
    gamma = np.maximum(e.gamma, 0.0) if problem.site.log_concave else e.gamma
    if not np.isfinite(gamma.sum() + e.alpha.sum()):
        raise NotPositiveDefiniteError("a local site is not finite")
    return problem.at_sites(gamma * m - e.alpha, gamma)


def local_optimum(problem: Problem, prior_m: Array, prior_v: Array, state: State) -> tuple[Array, Array]:
    """Each site's own best (m, v) against N(prior_m, prior_v): Newton in (m / sd, log v), all sites at once.

    Stationary where -alpha = (m - prior_m) / prior_v and 1 / v = 1 / prior_v + gamma. The missing derivatives of the
    oracle come from one forward difference in v, because d alpha/dm = gamma and d alpha/dv = (d gamma/dm) / 2.
    """
    prior_v = np.maximum(prior_v, 1e-300)
    slack, reach = problem.latent.slack, 3 * np.sqrt(prior_v)
    m, v = np.clip(state.m, prior_m - reach, prior_m + reach), 0.3 * prior_v
    with np.errstate(invalid="ignore", over="ignore"):
        fits = v * problem.oracle(m, v + slack).gamma < TOO_WIDE
    v = np.where(fits, v, np.minimum(v, state.v))
    for _ in range(LOCAL_STEPS):
        e, ahead = problem.oracle(m, v + slack), problem.oracle(m, v * (1 + DIFFERENCE) + slack)
        sd = np.sqrt(v)
        g_m = -sd * (e.alpha + (m - prior_m) / prior_v)
        g_v = 0.5 * (1 - v / prior_v - v * e.gamma)
        h_mm = -v * (e.gamma + 1 / prior_v)
        h_mv = -sd * (ahead.alpha - e.alpha) / DIFFERENCE
        h_vv = -0.5 * v * (1 / prior_v + e.gamma + (ahead.gamma - e.gamma) / DIFFERENCE)
        h_mm, h_vv = np.minimum(h_mm, -0.05), np.minimum(h_vv, -0.05)
        h_mv = np.where(h_mv**2 < 0.9 * h_mm * h_vv, h_mv, 0.0)
        det = h_mm * h_vv - h_mv**2
        d_m = np.clip(-(h_vv * g_m - h_mv * g_v) / det, -2, 2)
        d_v = np.clip(-(h_mm * g_v - h_mv * g_m) / det, -1.5, 1.5)
        finite = np.isfinite(d_m) & np.isfinite(d_v)
        m = np.where(finite, m + sd * d_m, m)
        v = np.where(finite, v * np.exp(d_v), 0.1 * v)
        if max(np.abs(g_m).max(), np.abs(g_v).max()) < 1e-3:
            break
    return m, v
