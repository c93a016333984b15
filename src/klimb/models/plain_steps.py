"""Sites and one prior scale together by natural steps from a mode, where Newton directions cost more than those.

The scale moves by its slope over a guess of the curvature (that of weights seen directly: two for each one that the
data determine), and Anderson's combination of the last states corrects the guess: one factorisation and one integration
of all sites for each step, as if the scale were known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from klimb.errors import NotPositiveDefiniteError
from klimb.infer.newton import anderson_weights
from klimb.infer.problem import Problem, State
from klimb.infer.start import sites_at, start_at
from klimb.latents.base import Posterior
from klimb.likelihoods import Observed
from klimb.numerics.arrays import Array

COMBINED = 8  # states
MOST = 40  # steps
FARTHEST = 0.3  # that a step moves the log scale
NEAR = 1.0  # residual up to which the scale may move with the sites
MODE_STEPS, MODE_GAIN = 12, 1.0  # most Newton steps towards a mode, and the nats of the last one
ROUGH = 1e-4  # nats: single precision does for all of a fit to no more than this
LAST_SINGLE = 5e-3  # residual down to which the next state may be in single precision
SHORTEST = 0.1  # share of such a step

Slope = Callable[[Any, Posterior], float]
Trace = tuple[Array, Array, Array]


class Joint(NamedTuple):
    """A state of sites and scale, and what is left: the last slope in the scale, the curvature, and the gain."""

    model: Any
    problem: Problem
    state: State
    slope: float
    bend: float
    gain: float
    height: float
    done: bool = False

    def trace(self) -> Trace:
        """Slopes and gamma of the sites and the log scale: here, where a natural step leads, and its residual."""
        state, step = self.state, float(np.clip(self.slope / self.bend, -FARTHEST, FARTHEST))
        e, at = state.expectation, self.model.at
        here = np.concatenate([state.a + state.gamma * state.m, state.gamma, at])
        there = np.concatenate([e.gamma * state.m - e.alpha, e.gamma, at + step])
        residual = np.concatenate([np.sqrt(state.v) * state.mean_residual, state.v * state.gamma_residual,
                                   [np.sqrt(self.bend) * step]])
        return here, there, residual


def plain_steps(model: Any, data: Observed, problem: Problem, state: State, slope_of: Slope, enough: float,
                small: tuple[float, float]) -> Joint | None:
    """Until the gain in the scale is ``enough``, the residual and the remaining gain of the sites ``small``, or stuck.
    """
    if state.stationarity > NEAR:
        return None
    last, share, found = list[Trace](), 1.0, judged(model, problem, state, slope_of)
    coarse = small[1] >= ROUGH
    for _ in range(MOST):
        state = found.state
        exact = coarse or not found.model.loose
        if exact and found.gain <= enough and state.stationarity <= small[0] and state.remaining <= small[1]:
            return found._replace(done=True)
        last = [*last, found.trace()][-COMBINED:]
        after = _ahead(found, data, last, share, slope_of, coarse)
        if after is None:  # not along a combination, and less far along a step of sites that pull each other about
            last, share = last[-1:], 0.5 * share
            after = _ahead(found, data, last, share, slope_of, coarse)
        if after is None and exact:
            break
        found, share = (after, min(2.0 * share, 1.0)) if after is not None else (_exactly(found, data, slope_of), 1.0)
    return found


def mode_sites(problem: Problem) -> Posterior | None:
    """Sites that match the marginals of Laplace's approximation, by Newton steps without integrals; None without any.
    """
    site, latent = problem.site, problem.latent
    if not (site.log_concave and site.smooth and site.separable and site.uses_variance) or latent.slack.any():
        return None
    d, a = np.zeros(latent.n_sites), np.zeros(latent.n_sites)  # f - mu = K a
    e = site.point(problem.y, latent.mean)
    height = float(e.value.sum())
    for _ in range(MODE_STEPS):
        factor, pull = latent.factor(e.gamma), e.gamma * d - e.alpha
        ahead = factor.shift(pull)
        step, above, there = 1.0, -np.inf, e
        dd, da = ahead - d, pull - e.gamma * ahead - a
        while not above >= height and step > SHORTEST:
            there = site.point(problem.y, latent.mean + d + step * dd)
            above = float(there.value.sum()) - 0.5 * float((a + step * da) @ (d + step * dd))
            step *= 0.5
        if not above >= height:
            return None
        d, a, e, gain, height = d + 2.0 * step * dd, a + 2.0 * step * da, there, above - height, above
        if gain < MODE_GAIN:
            return start_at(latent, *sites_at(site, problem.y, latent.mean + d, factor.variances()))
    return None


def in_single(model: Any, wanted: bool) -> Any:
    """The model with its products in single precision, where it may have that and it is wanted, or in double."""
    wanted = wanted and (model.by_gram or (model.form == "Weights" and len(model.likelihood.fields) == 1))
    return model if model.loose == wanted else replace(model, loose=wanted)


def _ahead(before: Joint, data: Observed, last: list[Trace], share: float, slope_of: Slope,
           coarse: bool) -> Joint | None:
    """A share of the natural steps from the best combination of the last states; None where the objective falls."""
    state, theta, n = before.state, before.model.theta, len(before.state.a)
    weights = anderson_weights(np.array([one[2] for one in last])) if len(last) > 1 else np.ones(1)
    here, there = (sum(weight * one[k] for weight, one in zip(weights, last, strict=True)) for k in range(2))
    target = (1.0 - share) * here + share * there
    gamma = target[n : 2 * n]
    if before.problem.site.log_concave:
        gamma = np.maximum(gamma, 0.1 * np.minimum(state.gamma, state.expectation.gamma))
    moved = before.model.moved(np.clip(target[2 * n :], theta.lower, theta.upper))
    moved = in_single(moved, moved.loose and (coarse or state.stationarity > LAST_SINGLE))
    problem = Problem(moved.latent, before.problem.site, data.y)
    try:
        found = judged(moved, problem, problem.at_sites(target[:n], gamma), slope_of)
    except NotPositiveDefiniteError:
        return None
    return found if found.height >= before.height - state.noise else None


def _exactly(found: Joint, data: Observed, slope_of: Slope) -> Joint:
    """The state with the same sites in double precision."""
    model, state = in_single(found.model, False), found.state
    problem = Problem(model.latent, found.problem.site, data.y)
    return judged(model, problem, problem.at_sites(state.a + state.gamma * state.m, state.gamma), slope_of)


def judged(model: Any, problem: Problem, state: State, slope_of: Slope) -> Joint:
    """A state with what is left there."""
    slope = slope_of(model, problem.posterior(state))
    bend = 2.0 * max(float(state.gamma @ (state.v - problem.latent.slack)), 1.0)
    return Joint(model, problem, state, slope, bend, 0.5 * slope**2 / bend, state.objective + model.log_prior()[0])
