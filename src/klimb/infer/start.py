"""Where to begin: Gaussian sites from the data alone, or each site at its own one-dimensional optimum."""

from __future__ import annotations

from contextlib import suppress
from typing import cast

import numpy as np

from klimb.errors import InputError, NotPositiveDefiniteError
from klimb.infer.loop import Step, run
from klimb.infer.problem import Problem, State
from klimb.latents.base import Latent, Posterior
from klimb.numerics.arrays import Array, finite_sum
from klimb.sites.base import Expectation, Site

INFORMATIVE = 2.0  # gamma k_ii from which a datum matters more to its site than the prior does
THINNING, SMALLEST_THINNED = 8, 1000  # a coarse fit takes every eighth row, if that leaves enough of them
COARSE_TOL, COARSE_ITERATIONS = 1e-2, 3  # its posterior differs from the full one by several sd anyway
FAR = 1e3  # stationarity of a warm start from which those from the data alone may be better
CLOSE = 1.0  # stationarity of the coarse start above which the others are tried as well
DIFFERENCE = 1e-5  # relative step in v for derivatives of the oracle
DISBELIEF = 1e-3  # what is left of the sites on the other side, in the starts for sites that are not log-concave
LOCAL_STEPS, LOCAL_TOL = 16, 0.05  # Newton steps on each site alone, which need not be exact


def first_state(problem: Problem, coarse_step: Step | None = None) -> State:
    """The best of a few starts, judged by the bound; log-concave sites that share few weights need only one.

    Where data are many and weights few, a fit to a part of the data (by ``coarse_step``) is next to the answer, and
    otherwise sites that match each datum are a good start. Where K is nearly diagonal (short lengthscales) and wide,
    they are far off, and each site's own optimum against its prior marginal is nearly exact: that is tried where there
    are about as many weights as sites, and informative data. Sites that are not log-concave may have several optima,
    typically where data contradict each other: there two more starts each believe the data on one side of the first.
    """
    if problem.site.gamma_trend == "constant" and problem.site.uses_variance:  # Gaussian data: their sites are known
        return _finite_state(problem, *problem.site.start(problem.y))
    warm = None if problem.start is None else _warm_state(problem)
    if warm is not None and warm.stationarity < FAR:
        return warm
    state = _cold_state(problem, coarse_step)
    return state if warm is None else _better(warm, state)


def _cold_state(problem: Problem, coarse_step: Step | None) -> State:
    """The best of the starts from the data alone."""
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
    site = problem.site
    local = site.uses_variance and site.separable and weakly_coupled
    if local and np.median(gamma * latent.prior_variances) > INFORMATIVE:
        with suppress(NotPositiveDefiniteError):
            best = _better(best, problem.at_sites(*local_sites(problem, latent.mean, latent.prior_variances, first)))
    return best if coarse is None else _better(best, coarse)


def _warm_state(problem: Problem) -> State | None:
    """The sites of the start under the present prior; None where they make no proper or finite posterior there."""
    start, problem.start = problem.start, None
    assert start is not None
    with suppress(NotPositiveDefiniteError):
        if start.factor is not None and start.latent is problem.latent:
            state = problem.state(start.a, start.m, start.factor)
        else:
            gamma, slope = start.gamma, [start.a + start.gamma * start.m]
            del start  # with vectors of all sites, as the slope that is passed on is
            state = problem.at_sites(slope.pop(), gamma)
        if np.isfinite(state.objective):
            return state
    return None


def sites_at(site: Site, y: Array, m: Array, v: Array) -> tuple[Array, Array]:
    """(slope, gamma) of sites whose marginals are known: at the optimum a = -alpha(m, v) and gamma is the oracle's.

    So nothing of a fit need be kept per datum: its sites follow from q by one pass. ``y`` has been validated.
    """
    e = site.oracle(y, m, v)
    return e.gamma * m - e.alpha, e.gamma


def start_at(latent: Latent | None, slope: Array, gamma: Array) -> Posterior:
    """A posterior that stands for its sites exp(slope f - gamma f^2 / 2) alone, to be passed as ``start``.

    The loop reads a + gamma m and gamma of a start, and no latent; its marginals are those under the prior it is used
    with.
    """
    nothing = np.broadcast_to(0.0, slope.shape)
    return Posterior(cast("Latent", latent), slope, gamma, nothing, nothing, 0.0)


def sites_of_fit(posterior: Posterior, latent: Latent | None) -> Posterior:
    """The sites of a fit alone, to start another from, without its matrices; ``latent`` is one that is kept anyway."""
    return start_at(latent, posterior.a + posterior.gamma * posterior.m, posterior.gamma)


def _coarse_state(problem: Problem, step: Step) -> State | None:
    """The sites of a fit to every few rows, seen from all of them; None where data are too few to spare any."""
    latent, site = problem.latent, problem.site
    n_data = len(problem.y)
    size = n_data // THINNING
    if size < max(SMALLEST_THINNED, THINNING * latent.n_weights // site.n_outputs) or not site.log_concave:
        return None
    if site.n_outputs != latent.n_outputs:  # a latent is thinned by data, and y has one entry per site here
        return None
    rows = np.sort(np.random.default_rng(0).choice(n_data, size, replace=False))
    thinned = latent.thin(rows)
    if thinned is None:
        return None
    part = Problem(thinned, site.rows(rows), problem.y[rows])
    found, *_ = run(part, step, COARSE_TOL, COARSE_ITERATIONS, None)
    m, v = latent.marginals(part.posterior(found))
    e = problem.oracle(m, v)
    gamma = np.maximum(e.gamma, 0.0)
    if not (finite_sum(gamma) and finite_sum(e.alpha)):
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
    raise InputError("prior and data must have a finite bound somewhere near the data",
                     "an infinite one at every start",
                     "Check offsets, exposures and the prior mean for values that overflow under the link.")


def local_sites(problem: Problem, prior_m: Array, prior_v: Array, state: State) -> tuple[Array, Array]:
    """(slope, gamma) of every site at its own best marginal against N(prior_m, prior_v)."""
    m, spread = local_optimum(problem, prior_m, prior_v, state)
    e = problem.oracle(m, spread + problem.latent.slack)
    gamma = np.maximum(e.gamma, 0.0) if problem.site.log_concave else e.gamma
    if not (finite_sum(gamma) and finite_sum(e.alpha)):
        raise NotPositiveDefiniteError("a local site is not finite")
    return gamma * m - e.alpha, gamma


def local_optimum(problem: Problem, prior_m: Array, prior_v: Array, state: State) -> tuple[Array, Array]:
    """Each site's own best (m, v) against N(prior_m, prior_v): Newton in (m / sd, log v), all sites at once.

    Stationary where -alpha = (m - prior_m) / prior_v and 1 / v = 1 / prior_v + gamma. A site whose own bound would fall
    goes back and takes a quarter of its step. The search starts at a third of the prior variance or at the present
    marginal, whichever is better for the site.
    """
    prior_v = np.maximum(prior_v, 1e-300)
    slack, reach = problem.latent.slack, 3 * np.sqrt(prior_v)

    def own_bound(m: Array, v: Array) -> tuple[Array, Expectation]:
        e = problem.oracle(m, v + slack)
        divergence = 0.5 * (v / prior_v + (m - prior_m) ** 2 / prior_v - 1.0 - np.log(v / prior_v))
        return np.nan_to_num(e.value - divergence, nan=-np.inf, posinf=-np.inf), e

    with np.errstate(all="ignore"):  # what overflows is worse than what does not, and is left
        m = np.clip(state.m, prior_m - reach, prior_m + reach)
        v = np.clip(state.v - slack, 1e-3 * np.finfo(float).eps * prior_v, prior_v)
        trial_m, trial_v = m, np.where(own_bound(m, 0.3 * prior_v)[0] > own_bound(m, v)[0], 0.3 * prior_v, v)
        best, step = np.full_like(m, -np.inf), np.ones_like(m)
        d_m, d_v, left = np.zeros_like(m), np.zeros_like(m), np.ones_like(m)
        for _ in range(LOCAL_STEPS):
            value, e = own_bound(trial_m, trial_v)
            better = value > best
            m, v, best = np.where(better, trial_m, m), np.where(better, trial_v, v), np.where(better, value, best)
            ahead = problem.oracle(trial_m, trial_v * (1 + DIFFERENCE) + slack)
            new_m, new_v, size = newton_step(e, ahead, trial_m, trial_v, prior_m, prior_v, floor=0.05)
            d_m, d_v, left = np.where(better, new_m, d_m), np.where(better, new_v, d_v), np.where(better, size, left)
            step = np.where(better, 1.0, 0.25 * step)
            if not (left * np.minimum(4 * step, 1.0) > LOCAL_TOL).any():
                break
            trial_m, trial_v = m + step * d_m * np.sqrt(v), v * np.exp(step * d_v)
    return m, v


def newton_step(e: Expectation, ahead: Expectation, m: Array, v: Array, prior_m: Array, prior_v: Array, *,
                floor: float) -> tuple[Array, Array, Array]:
    """A Newton step in (m / sd, log v) for each site against N(prior_m, prior_v), and its gradient's size.

    It is cut to two sd and a factor of e^1.5; curvatures are at least ``floor``. The missing derivatives of the oracle
    come from ``ahead``, the oracle at v (1 + DIFFERENCE), because d alpha/dm = gamma and d alpha/dv = (d gamma/dm) / 2.
    """
    sd = np.sqrt(v)
    g_m = -sd * (e.alpha + (m - prior_m) / prior_v)
    g_v = 0.5 * (1 - v / prior_v - v * e.gamma)
    h_mm = np.minimum(-v * (e.gamma + 1 / prior_v), -floor)
    h_vv = np.minimum(-0.5 * v * (1 / prior_v + e.gamma + (ahead.gamma - e.gamma) / DIFFERENCE), -floor)
    h_mv = -sd * (ahead.alpha - e.alpha) / DIFFERENCE
    # Exponential sites are nearly singular along m + v/2 = const, which is where a wide prior lets them go: keep the
    # cross term as long as the Hessian is definite, and the direction when it is cut.
    h_mv = np.where(h_mv**2 < (1 - 1e-6) * h_mm * h_vv, h_mv, 0.0)
    det = h_mm * h_vv - h_mv**2
    d_m, d_v = -(h_vv * g_m - h_mv * g_v) / det, -(h_mm * g_v - h_mv * g_m) / det
    cut = 1.0 / np.maximum(np.maximum(np.abs(d_m) / 2.0, np.abs(d_v) / 1.5), 1.0)
    d_m, d_v = cut * d_m, cut * d_v
    return (np.where(np.isnan(d_m), 0.0, d_m), np.where(np.isnan(d_v), -1.5, d_v), np.maximum(np.abs(g_m), np.abs(g_v)))
