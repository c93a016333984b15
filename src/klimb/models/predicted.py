"""Sites and the prior scale of a wide model together, with variances that one factorisation predicts.

With lambda_i = 1 / v_i - gamma_i, the precision that the prior and all other sites leave f_i,

    d lambda_i / d gamma_j = V_ij^2 / v_i^2    (j != i)        K -> k K is gamma -> k gamma and V -> k V

so v follows its own site and the scale exactly, and other sites to first order in log lambda. With these, sites and
scale are solved for by products with N x N matrices, and factorised when they have been found: what was wrong with them
is squared each time. Terms without a scale count in means and slopes, and in variances at the next factorisation.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from klimb.errors import NotPositiveDefiniteError
from klimb.infer.newton import anderson_weights, symmetric_product
from klimb.infer.problem import Problem, State
from klimb.likelihoods import Observed
from klimb.models.plain_steps import FARTHEST, ROUGH, Joint, Slope, in_single, judged
from klimb.numerics.arrays import Array

COMBINED, MOST, MOST_STATES = 10, 40, 12  # combined steps, all of them, and states
LEFT, LEAST = 5e-3, (0.1, 1e-3)  # of the residual which such steps may leave; of what is asked for, and at most
LAST_SINGLE = 1e-2  # residual from which the next state is in double precision
SHARES = 1.0, 0.3  # of the way to what was solved for that are tried
WORN = 0.1  # of a residual left by a state from which the next one has matrices of its own
BENT = 0.1  # of the curvature with the sites held, at least, is left where they follow
ASTRAY = 10.0  # times the least residual so far: what follows is of no use
REACH = 1.0  # most that the log scale moves from a state
FARTHEST_SITE = 2.0  # that a log lambda may move, and 1,000 times that a gamma may change

Solved: TypeAlias = tuple[Array, Array, Array]  # slopes and gamma of the sites, and theta


class Near(NamedTuple):
    """Correlations of f at some state and their squares, in single precision, which serve states near by as well."""

    state: State
    R: npt.NDArray[np.float32]
    squares: npt.NDArray[np.float32]

    @classmethod
    def of(cls, state: State) -> Near | None:
        R = state.factor.correlations(np.sqrt(state.v))
        return None if R is None else cls(state, R, R * R)

    def by_squares(self, b: Array) -> Array:
        return symmetric_product(1.0, self.squares, b)

    def solve(self, state: State, b: Array) -> tuple[Array, Array]:
        """(I + G K)^-1 b and K times that, in single precision where the correlations are those of the state."""
        if state is not self.state:
            return state.factor.solve(b)
        sd = np.sqrt(state.v)
        Kx = sd * symmetric_product(1.0, self.R, sd * b)
        return b - state.gamma * Kx, Kx

    def gain(self, state: State) -> float:
        """What natural steps gain, to second order."""
        d = state.v * state.gamma_residual
        return 0.5 * state.factor.energy(state.mean_residual) + 0.25 * float(d @ self.by_squares(d))


def predicted_steps(model: Any, data: Observed, problem: Problem, state: State, slope_of: Slope, enough: float,
                    small: tuple[float, float]) -> Joint | None:
    """Until the gain in the scale is ``enough``, the residual and the remaining gain of the sites ``small``, or stuck.
    """
    coarse, before = small[1] >= ROUGH, np.inf
    made = Near.of(state) if state.gamma.min() > 0.0 < state.v.min() else None
    if made is None:
        return None
    found, first = judged(model, problem, state, slope_of), state
    for _ in range(MOST_STATES):
        state = found.state
        near = state.stationarity <= small[0] and made.gain(state) <= small[1] and found.gain <= BENT * enough
        if near and (coarse or not found.model.loose):
            return found._replace(done=True)
        if state.stationarity > WORN * before:
            made = Near.of(state) or made
        before = state.stationarity
        goal = solved(found, made, min(LEAST[0] * small[0], LEAST[1]))
        tried = (_ahead(found, data, goal, share, slope_of, coarse) for share in SHARES if goal is not None)
        after = next(filter(None, tried), None)
        if after is None:
            break
        found = after
    return found if found.state is not first else None


def _ahead(found: Joint, data: Observed, goal: Solved, share: float, slope_of: Slope, coarse: bool) -> Joint | None:
    """The state a ``share`` of the way to the solution for predicted variances; None where the objective falls."""
    state = found.state
    begin = state.a + state.gamma * state.m, state.gamma, found.model.at
    slopes, gamma, at = (one + share * (there - one) for one, there in zip(begin, goal, strict=True))
    moved = found.model.moved(at)
    moved = in_single(moved, moved.loose and (coarse or state.stationarity > LAST_SINGLE))
    ahead = Problem(moved.latent, found.problem.site, data.y)
    try:
        after = judged(moved, ahead, ahead.at_sites(slopes, gamma), slope_of)
    except NotPositiveDefiniteError:
        return None
    return after if after.height >= found.height - state.noise else None


def solved(found: Joint, made: Near, least: float) -> Solved | None:
    """Slopes and gamma of the sites, and theta, by Anderson's combinations of natural steps at predicted variances.

    Until little of the residual, or ``least``, is left; None where nothing was gained.
    """
    model, problem, state = found.model, found.problem, found.state
    theta, v, n, began = model.theta, state.v, len(state.v), float(model.at[0])
    xs = np.reshape(model._grams.fixed_columns(), (-1, n))
    seen = sum(float(x @ state.factor.solve(state.gamma * x)[0]) for x in xs)
    alone, bend, K_a = 1.0 / v - state.gamma, found.bend, state.m - problem.latent.mean
    low, high = max(theta.lower[0], began - REACH), min(theta.upper[0], began + REACH)
    a, gamma, at, last, enough = state.a, state.gamma, began, list[tuple[Array, Array]](), least
    best, number, goal = np.inf, 0, None
    for k in range(MOST):
        share = float(np.exp(2.0 * (at - began)))
        Ka = share * K_a + (1.0 - share) * ((xs @ a) @ xs)
        m, moved = problem.latent.mean + Ka, share * gamma - state.gamma
        others = made.by_squares(v * moved) / v - moved
        with np.errstate(over="ignore"):
            left = alone * np.exp(np.clip(others / alone, -FARTHEST_SITE, FARTHEST_SITE))
        spread = share / (left + share * gamma)
        e = problem.oracle(m, spread)
        slope = float(a @ Ka) - float(gamma @ spread) - float(np.square(xs @ a).sum()) + seen
        slope += float(theta.log_prior(np.array([at]))[1][0])
        step = float(np.clip(slope / bend, -FARTHEST, FARTHEST))
        b, change = a + e.alpha, np.log(np.maximum(e.gamma, 1e-3 * state.gamma) / gamma)
        residual = np.concatenate([np.sqrt(v) * b, v * (e.gamma - gamma), [np.sqrt(bend) * step]])
        size = float(np.abs(residual).max())
        enough = max(enough, LEFT * size) if k == 0 else enough
        if size < best:
            best, number, goal = size, k, (a + gamma * m, gamma, np.array([at]))
        if not enough < size < ASTRAY * best:
            break
        x, Kx = made.solve(state, b)
        ahead = np.concatenate([a - x, K_a - Kx, np.log(gamma) + change, [at + step]])
        last = [*last, (ahead, residual)][-COMBINED:]
        weights = anderson_weights(np.array([one[1] for one in last])) if k else np.ones(1)
        target = sum(weight * one[0] for weight, one in zip(weights, last, strict=True))
        a, K_a, at = target[:n], target[n : 2 * n], float(np.clip(target[-1], low, high))
        gamma = np.clip(np.exp(np.clip(target[2 * n : -1], -700.0, 700.0)), 1e-3 * state.gamma, 1e3 * state.gamma)
    return goal if number or best <= enough else None
