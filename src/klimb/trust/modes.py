"""Other optima of the bound, for likelihoods that may have several: no draw of q would ever find them."""

from dataclasses import dataclass

import numpy as np

from klimb.errors import KlimbError
from klimb.infer.loop import run
from klimb.infer.natural import Natural
from klimb.infer.problem import Problem
from klimb.latents.base import Posterior
from klimb.numerics.arrays import Array
from klimb.trust.weights import exact_site

DISBELIEF = 1e-3  # what is left of the sites that a start does not believe
OUTLIER = 0.1  # gamma over the site's own starting precision below which q has given a datum up
TOL, ITERATIONS = 1e-3, 60
ASIDE = 3.0  # sd of q
APART = 2.0  # distance in sd from which two optima are two
FALLEN = 9.0  # nats below the best bound at which an optimum no longer matters
MODE_ODDS = 0.001  # mass of another optimum, relative to the reported one, from which it matters
MODE_SHARE = 0.1  # the same times its squared distance: what it adds to a variance, relative to that
LARGEST = 20_000  # sites up to which other optima are looked for without being asked


@dataclass(frozen=True, eq=False)
class Mode:
    """Another optimum: its bound, its mass relative to the reported one, and how far away it is."""

    bound: float
    odds: float  # exp(its bound - the reported bound)
    distance: float  # largest distance of marginal means, in sd of the narrower of the two
    posterior: Posterior

    @property
    def matters(self) -> bool:
        """Whether it holds mass, or so little so far away that it moves an sd."""
        return self.odds > MODE_ODDS or self.odds * self.distance**2 > MODE_SHARE


def other_modes(problem: Problem, posterior: Posterior, bound: float, direction: Array,
                enough: float = np.inf) -> tuple[Mode, ...]:
    """Optima found from starts that believe other data than the fit did; none where the likelihood is log-concave.

    They believe data above the first guess, those below, those that the fit has given up, or none; or begin a few sd to
    either side along ``direction``, where q is least Gaussian. An optimum with odds of ``enough`` ends the search.
    """
    site = exact_site(problem.site)
    if site.log_concave:
        return ()
    slope, gamma = site.start(problem.y)
    own = Problem(problem.latent, site, problem.y)
    pull = site.oracle(problem.y, posterior.m, posterior.v).alpha
    given_up = posterior.gamma < OUTLIER * gamma
    starts = []
    for believed in (pull > 0, pull < 0, given_up, np.zeros(len(pull), dtype=bool)):
        trust = np.where(believed, 1.0, DISBELIEF)
        starts.append((trust * slope, trust * gamma))
    for step in (ASIDE, -ASIDE):
        aside = posterior.m + step * direction
        e = site.oracle(problem.y, aside, 0.25 * posterior.v)
        precision = np.maximum(e.gamma, DISBELIEF * gamma)
        starts.append((precision * aside - e.alpha, precision))
    found: list[Mode] = []
    for start in starts:
        mode = _climb(own, *start, posterior, bound)
        if mode is not None and all(_distance(mode.posterior, known.posterior) > APART for known in found):
            found.append(mode)
            if mode.odds >= enough:
                break
    return tuple(sorted(found, key=lambda mode: -mode.bound))


def _climb(problem: Problem, slope: Array, gamma: Array, posterior: Posterior, bound: float) -> Mode | None:
    """The optimum reached from these sites, if it is another one and holds any mass."""
    try:
        start = problem.posterior(problem.at_sites(slope, gamma))
        begun = Problem(problem.latent, problem.site, problem.y, start)
        state, *_ = run(begun, Natural(), TOL, ITERATIONS, None)
    except KlimbError:
        return None
    other = begun.posterior(state)
    distance = _distance(other, posterior)
    if not np.isfinite(state.bound) or state.bound < bound - FALLEN or distance < APART:
        return None
    return Mode(state.bound, float(np.exp(min(state.bound - bound, 700.0))), distance, other)


def _distance(one: Posterior, other: Posterior) -> float:
    return float((np.abs(one.m - other.m) / np.sqrt(np.maximum(np.minimum(one.v, other.v), 1e-300))).max())
