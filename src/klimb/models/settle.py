"""One prior scale, moved with the sites of loose fits: where a search begins that then has little left to do.

With Gaussian sites held, the evidence is that of a Gaussian model. Its slope in the scale is that of the bound at its
optimum, and it bends as q follows the scale, which the bound with q held does not. Two slopes make a secant. Sites
follow the scale as well, so two fits tell more once they are far enough apart.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from klimb.errors import NotPositiveDefiniteError
from klimb.infer.natural import patience, within_reach
from klimb.infer.newton import Linearised, anderson_weights
from klimb.infer.problem import Problem, State
from klimb.infer.result import Result
from klimb.latents.base import Posterior
from klimb.likelihoods import Observed
from klimb.models.model import Listen, Progress
from klimb.models.plain_steps import ROUGH, in_single, mode_sites, plain_steps
from klimb.models.predicted import predicted_steps
from klimb.models.search import under
from klimb.models.sites_near import SitesNear
from klimb.numerics.arrays import Array
from klimb.sites.base import Site

LOOSE, CLOSER = 1.0, 2e-3  # tolerances of the first fit, and of those that follow, at most
SHARE = 0.1  # of the gain that the last move promised, as the tolerance of the next fit
FROM_MODE = 30.0  # tolerance of the first fit from the sites of a mode, which is next to the optimum
SITES = 200.0  # times the nats that may be left: the residual of a site in sds, each of which says little of the answer
LAST = 30.0  # times the tolerance that was asked for, from which the next fit is the last
FIRST, LONGEST = 0.3, 2.0  # of the step that a secant with the sites held is made of, and of any that is taken
APART = 0.02  # first move from a fit, at least: sites that follow the scale bend the objective less than sites held
LEAST_BEND = 0.1  # of the last curvature: sites that follow take up to nine tenths of that with the sites held
CLOSE = 0.1  # that scales must be for the sites of fits to predict others
NEAR = 0.002  # between scales of two fits whose slopes make a secant
ENOUGH = 3e-7  # nats that another move must promise
FALLEN = 0.1  # nats by which the objective (or what a joint step promises) may fall, which loose fits leave open
MOST = 12  # fits
FRESH = 0.6  # of a step in sites and scale: what new matrices cost
LEAST_LEFT = 1e-3, 0.1  # of the residual that such a step leaves; sites that couple latent values have a rough C
COMBINED = 4  # such steps that the next one combines
REACH = 0.5, 0.2  # of a step in sites and scale: the scale's share, and the residual after it
LAST_SINGLE = 5e-2  # residual up to which the next of such steps, which is next to the end, is in double precision
PROMISED = 0.3  # nats that another move must promise, over the tolerance
FEWEST = 800  # rows from which a factorisation costs more than products with predicted variances
SEARCH_TOL = 1e-3  # of the gradient in theta of a search from there, which has little to do


@dataclass(frozen=True, eq=False)
class Settled:
    """A model at a scale near the best, the fit before the last move of it, and what it took."""

    model: Any
    posterior: Posterior | None = None
    objective: float = -np.inf  # that the last move promises: bound and log prior
    curvature: Array | None = None  # minus the second derivative of the objective
    n_fits: int = 0
    before: tuple[float, float] | None = None  # theta and slope of the last fit
    tol: float = LOOSE  # of the next fit
    result: Result | None = None  # the last fit, where it promised too little for a move
    sites: SitesNear = field(default_factory=SitesNear)  # of all fits, which predict those at the next scale
    path: tuple[float, ...] = ()  # the objective at every fit
    joint: bool = False  # whether the last move was one of sites and scale together


def settle(begun: Settled, data: Observed, least: float = CLOSER) -> Settled:
    """A loose fit, and the scale moved by the slopes of two fits, or of one with its sites held.

    The tolerance falls to ``least`` with what is left to gain.
    """
    judged = begun.tol <= least or (begun.joint and begun.tol == SITES * least)
    model = in_single(begun.model, least >= ROUGH or not judged)
    start, guess = begun.posterior, begun.sites.at(model.at)
    if start is not None and guess is not None:
        start = guess()
    if start is None and _by_plain_steps(model, problem := Problem(model.latent, model.site(data).rough(), data.y)):
        start = mode_sites(problem)
    to_end = judged and least < ROUGH
    result = model.infer(data, start=start, tol=begun.tol if to_end or begun.posterior is start else FROM_MODE)
    q, height, theta = result.posterior, result.bound + model.log_prior()[0], float(model.at[0])
    begun.sites.add(model.at, q)
    if not judged and (found := _jointly(model, data, q, least)) is not None:
        return replace(found, n_fits=begun.n_fits + 1, path=(*begun.path, height))
    known = begun.before if judged and begun.joint else None  # what sites that still move add is in it
    slope, bend = known[1] if known is not None and known[0] == theta else _slope(data, model, q), 0.0
    if begun.before is not None and abs(theta - begun.before[0]) >= NEAR:
        bend = (begun.before[1] - slope) / (theta - begun.before[0])
    if begun.curvature is not None and bend < LEAST_BEND * float(begun.curvature[0]):  # loose fits have loose slopes
        bend = float(begun.curvature[0])
    other = _within(model, float(np.clip(slope / q.latent.n_weights, -FIRST, FIRST)))
    if bend <= 0.0 and other.at[0] != theta:
        bend = (slope - _slope(data, other, under(other.latent, q))) / float(other.at[0] - theta)
    step = float(np.clip(slope / bend, -LONGEST, LONGEST)) if bend > 0.0 else float(np.sign(slope)) * LONGEST
    moved = _within(model, step)
    gain = 0.5 * slope * float(moved.at[0] - theta)
    if begun.before is None and gain > ENOUGH and abs(step) < APART:
        moved, gain = _within(model, float(np.sign(step)) * APART), abs(slope) * APART
    done = gain <= max(ENOUGH, PROMISED * least) and judged
    curvature = np.array([bend]) if bend > 0.0 else None
    tol = least if SHARE * gain <= LAST * least else max(min(SHARE * gain, CLOSER), least)
    sites = begun.sites if abs(float(moved.at[0]) - theta) <= CLOSE else SitesNear()
    return Settled(model if done else moved, q, height + gain, curvature, begun.n_fits + 1, (theta, slope), tol,
                   result if done else None, sites, (*begun.path, height))


def settled(begun: Settled, data: Observed, tol: float, listen: Listen | None = None) -> Settled:
    """Until a fit to ``tol`` promises nothing, the listener has enough, or a search should see to what remains."""
    best, halved = begun, False
    while begun.result is None and begun.n_fits < MOST:
        begun = settle(begun, data, tol)
        if listen is not None and listen(Progress("hyperparameters", begun.n_fits, 0, begun.path[-1])) is False:
            break
        if (begun.objective if begun.joint else begun.path[-1]) < max(begun.path) - FALLEN:
            if halved or best.before is None or begun.before is None:
                break
            middle, halved = 0.5 * (best.before[0] + begun.before[0]), True  # of a step farther than slopes can tell
            begun = replace(begun, model=begun.model.moved(np.array([middle])), posterior=best.posterior,
                            joint=False)
        elif begun.path[-1] == max(begun.path):
            best = begun
    begun.model.kept.pop("single", None)
    return replace(begun, model=in_single(begun.model, False))


def _jointly(model: Any, data: Observed, q: Posterior, least: float) -> Settled | None:
    """Sites and scale by Newton steps in both, each for one factorisation; None where that is not to be had.

    The matrices of one state serve the next ones as well, until a step with them leaves too much of the residual.
    """
    site = model.site(data)
    problem = Problem(model.latent, site.rough(), data.y)
    if getattr(model, "passes", None) is not None:
        return None
    state, enough = problem.state(q.a, q.m, q.factorised()), max(ENOUGH, PROMISED * least)
    plain, predicted = _by_plain_steps(model, problem), _by_predictions(model, site)
    if plain or predicted:
        steps = plain_steps if plain else predicted_steps
        end = steps(model, data, problem, state, partial(_slope, data), enough, (SITES * least, least))
        if end is not None:
            return Settled(end.model, end.problem.posterior(end.state), end.height, np.array([end.bend]), 0,
                           (float(end.model.at[0]), end.slope), SITES * least if end.done else CLOSER, joint=True)
        if plain:
            return None
    answer, height = _Answer.of(model, data, problem, state), state.objective + model.log_prior()[0]
    last = list[tuple[Array, Array, float, Array]]()  # where steps went, and the steps
    for _ in range(MOST if answer is not None else 0):
        assert answer is not None
        linear, bend = answer.linear, answer.bend
        r = linear.residual(state)
        slope = _slope(data, model, problem.posterior(state))
        total = slope - float(r @ answer.marginals)
        moved = _within(model, float(np.clip(total / bend, -LONGEST, LONGEST)))
        step = float(moved.at[0] - model.at[0])
        gain = 0.5 * total * step
        done = gain <= enough and max(state.stationarity, state.remaining) <= SITES * least
        # Natural steps gain r'P r / 2 to second order; of several classes `remaining` bounds it by a trace over all.
        done = done and (state.remaining if site.separable else 0.5 * float(r @ linear.P(r))) <= least
        done = done and (least >= ROUGH or not model.loose)
        tol = SITES * least if done else CLOSER if abs(step) <= REACH[0] else LOOSE
        found = Settled(model if done else moved, problem.posterior(state), height + gain, np.array([bend]), 0,
                        (float(model.at[0]), total), tol, joint=True)
        u = None if done or abs(step) > REACH[0] else linear.solve(-r, state.stationarity)
        if u is None:
            return found
        u += step * answer.sites
        x, dgamma = linear.sites(u)
        gamma = state.gamma + dgamma
        target = state.a + x + gamma * state.m, gamma, float(moved.at[0])
        last = [*last, (*target, np.append(u, np.sqrt(bend) * step))][-COMBINED:]
        shares = anderson_weights(np.array([one[3] for one in last]))
        slopes, gamma, at = (sum(share * one[k] for share, one in zip(shares, last, strict=True)) for k in range(3))
        moved, gamma = _within(model, at - float(model.at[0])), within_reach(problem, state, gamma)
        moved = in_single(moved, moved.loose and (least >= ROUGH or state.stationarity > LAST_SINGLE))
        ahead = Problem(moved.latent, problem.site, data.y)
        try:
            after = ahead.at_sites(slopes, gamma)
        except NotPositiveDefiniteError:
            return found
        above = after.objective + moved.log_prior()[0]
        if not above >= height - state.noise:
            return found
        if after.stationarity > REACH[1]:
            return replace(found, posterior=ahead.posterior(after), tol=LOOSE)
        left = LEAST_LEFT[not site.separable]
        if _stale(answer.made_at, state.stationarity, after.stationarity, SITES * least, left):
            answer, last = _Answer.of(moved, data, ahead, after) or answer, []
        model, state, problem, height = moved, after, ahead, above
    return None if answer is None else found


def _by_plain_steps(model: Any, problem: Problem) -> bool:
    """Whether those are cheaper than Newton directions, and rows are at hand."""
    return getattr(model, "passes", None) is None and not np.isfinite(patience(problem))


def _by_predictions(model: Any, site: Site) -> bool:
    """Whether N x N matrices of one latent value for each row are at hand."""
    simple = model.latent.n_sites >= FEWEST and site.separable and site.log_concave and site.uses_variance
    return simple and model.by_gram and model._grams.fixed_columns() is not None


@dataclass(frozen=True, eq=False)
class _Answer:
    """How sites and marginals follow the scale, by what `Linearised` knows of the residuals r near a state.

    With the sites held, the scale changes marginals by p, and residuals by C p. The sites answer with
    w = -(I + C P)^-1 C p, which changes the marginals by P w more. So the bound at its optimum has the slope
    s - r'(p + P w) in the scale, s that with q held, and -(C p)'(p + P w) is what sites add to how s changes.
    """

    linear: Linearised
    sites: Array  # w
    marginals: Array  # p + P w
    bend: float  # minus the second derivative of the bound at its optimum
    made_at: float  # the residual there

    @classmethod
    def of(cls, model: Any, data: Observed, problem: Problem, state: State) -> _Answer | None:
        """None where the bound does not bend downwards, or nothing is known."""
        linear, other, q = Linearised.of(problem, state), _within(model, APART), problem.posterior(state)
        step = float(other.at[0] - model.at[0])
        if linear is None or step == 0.0:
            return None
        dm, dv, bend = _held(model, other, data, q, linear)
        held = linear.marginals(dm, dv)
        change = linear.C(held)
        sites = linear.solve(-change)
        if sites is None:
            return None
        marginals = held + linear.P(sites)
        bend += float(change @ marginals)
        return cls(linear, sites, marginals, bend, state.stationarity) if bend > 0.0 else None


def _stale(made_at: float, before: float, after: float, small: float, least: float) -> bool:
    """Whether new matrices save more steps than they cost: steps leave a share that falls with where those were made.
    """
    left = after / before
    steps = [np.ceil(np.log(max(after / small, 1.0)) / -np.log(np.clip(share, least, 0.99)))
             for share in (left, left * after / made_at)]
    return bool(steps[1] + FRESH < steps[0])


def _held(model: Any, other: Any, data: Observed, q: Posterior, linear: Linearised) -> tuple[Array, Array, float]:
    """How m and v change with the scale where the sites are held, and minus the second derivative of the objective."""
    step, nothing = float(other.at[0] - model.at[0]), np.zeros(len(q.m))
    if q.latent.n_outputs == 1 and model.by_gram:
        v = linear.sd**2
        found = model._grams.held(q, lambda b: 2.0 * v * linear.P(np.concatenate([nothing, v * b]))[len(v) :])
        if found is not None:
            return found[0], found[1], float((model.log_prior()[1] - other.log_prior()[1])[0]) / step - found[2]
    moved = under(other.latent, q)
    bend = (_slope(data, model, q) - _slope(data, other, moved)) / step
    return (moved.m - q.m) / step, (moved.v - q.v) / step, bend


def _within(model: Any, step: float) -> Any:
    return model.moved(np.clip(model.at + step, model.theta.lower, model.theta.upper))


def _slope(data: Observed, model: Any, q: Posterior) -> float:
    """d / d theta of the evidence with the sites of ``q``, and of the log prior."""
    return float((model.gradient(q, data) + model.log_prior()[1])[0])
