"""Sites and the prior scale of a wide model together, with variances that one factorisation predicts.

Let lambda_i = 1 / v_i - gamma_i be the precision that the prior and all other sites leave f_i, rho_ij the correlation
of f_i and f_j without the sites of these two, and R_ij that with them. Then

    d log lambda_i / d gamma_j = rho_ij^2 lambda_j v_j^2    (j != i)        R_ij^2 = rho_ij^2 (lambda v)_i (lambda v)_j

and K -> k K is gamma -> k gamma and V -> k V. With rho held, log lambda_i moves by the sum over j of rho_ij^2 times the
change of -lambda_j / (lambda_j + gamma_j) at the new lambda_j: v follows its own site and the scale exactly, one other
site as well where rho is small, and all together to first order and nearly to second. With these, sites and scale are
solved for by products with N x N matrices, and factorised when they have been found: what was wrong with them is
squared each time. Terms without a scale count in means and slopes, and in variances at the next factorisation.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from klimb.errors import NotPositiveDefiniteError
from klimb.infer.newton import anderson_weights, symmetric_product
from klimb.infer.problem import Problem, State
from klimb.latents.base import Latent
from klimb.likelihoods import Observed
from klimb.models.plain_steps import FARTHEST, ROUGH, Joint, Slope, in_single, judged
from klimb.numerics.arrays import Array

COMBINED, MOST, MOST_STATES = 10, 40, 12  # combined steps, all of them, and states
LEFT, LEAST = 1e-3, (0.1, 1e-3)  # of the residual which such steps may leave; of what is asked for, and at most
SQUARED = 0.2  # of the square of a residual is left by a step with matrices of its own (pcmac, basehock: 0.06 to 0.1)
SHARES = 1.0, 0.3  # of the way to what was solved for that are tried
BENT = 0.1  # of the curvature with the sites held, at least, is left where they follow
ASTRAY = 10.0  # times the least residual so far: back to where that was, and half as far
REACH = 1.0  # most that the log scale moves from a state
FARTHEST_SITE = 2.0  # that a log lambda may move, and 1,000 times that a gamma may change

MOST_HELD, MET, MET_BY = 15, 0.5, 0.3  # steps where cavities are held, their residual, and what is left of its squares
MOST_PRODUCTS = 20  # for one such step

Solved: TypeAlias = tuple[Array, Array, Array]  # slopes and gamma of the sites, and theta


class Near(NamedTuple):
    """Correlations of f at some state and their squares, in single precision, which serve states near by as well."""

    state: State
    at: float  # log scale
    sd: Array
    R: npt.NDArray[np.float32]
    squares: npt.NDArray[np.float32]

    @classmethod
    def of(cls, state: State, at: float) -> Near | None:
        sd = np.sqrt(state.v)
        R = state.factor.correlations(sd)
        return None if R is None else cls(state, at, sd, R, R * R)

    def by_squares(self, b: Array) -> Array:
        return symmetric_product(1.0, self.squares, b)

    def solve(self, b: Array) -> tuple[Array, Array]:
        """(I + G K)^-1 b and K times that at this state, in single precision."""
        Kx = self.sd * symmetric_product(1.0, self.R, self.sd * b)
        return b - self.state.gamma * Kx, Kx

    def left(self, alone: Array, about: Array, before: Array, after: Array) -> Array:
        """Lambda where it is ``alone`` at some gamma and ``about`` so much at another, at which it is asked for."""
        free = 1.0 - self.state.gamma * self.state.v  # lambda v
        told = (about / (about + before) - about / (about + after)) / free
        change = (self.by_squares(told) - told) / free
        return np.asarray(alone * np.exp(np.clip(change, -FARTHEST_SITE, FARTHEST_SITE)))

    def gain(self, state: State) -> float:
        """What natural steps gain, to second order."""
        d = state.v * state.gamma_residual
        return 0.5 * state.factor.energy(state.mean_residual) + 0.25 * float(d @ self.by_squares(d))


def predicted_steps(model: Any, data: Observed, problem: Problem, state: State, slope_of: Slope, enough: float,
                    small: tuple[float, float]) -> Joint | None:
    """Until the gain in the scale is ``enough``, the residual and the remaining gain of the sites ``small``, or stuck.
    """
    coarse, before = small[1] >= ROUGH, 1.0 / SQUARED
    made = Near.of(state, float(model.at[0])) if state.gamma.min() > 0.0 < state.v.min() else None
    if made is None:
        return None
    found, first = judged(model, problem, state, slope_of), state
    for _ in range(MOST_STATES):
        state, size = found.state, found.state.stationarity
        near = size <= small[0] and made.gain(state) <= small[1] and found.gain <= BENT * enough
        if near and (coarse or not found.model.loose):
            return found._replace(done=True)
        size = max(size, float(np.sqrt(2.0 * found.gain)))  # the scale's own
        expected = size**2 / before
        if expected > small[0] and state is not first:  # these matrices do not make the next state the last
            made, expected = Near.of(state, float(found.model.at[0])) or made, SQUARED * size**2
        before, single = state.stationarity, coarse or expected > small[0]
        goal = solved(found, made, min(LEAST[0] * small[0], LEAST[1]))
        tried = (_ahead(found, data, goal, share, slope_of, single) for share in SHARES if goal is not None)
        after = next(filter(None, tried), None)
        if after is None:
            break
        found = after
    return found if found.state is not first else None


def _ahead(found: Joint, data: Observed, goal: Solved, share: float, slope_of: Slope, single: bool) -> Joint | None:
    """The state a ``share`` of the way to the solution for predicted variances; None where the objective falls."""
    state = found.state
    begin = state.a + state.gamma * state.m, state.gamma, found.model.at
    slopes, gamma, at = (one + share * (there - one) for one, there in zip(begin, goal, strict=True))
    moved = found.model.moved(at)
    moved = in_single(moved, moved.loose and single)
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
    theta, v, n, began, mean = model.theta, state.v, len(state.v), float(model.at[0]), problem.latent.mean
    xs = np.reshape(model._grams.fixed_columns(), (-1, n))
    seen = sum(float(x @ state.factor.solve(state.gamma * x)[0]) for x in xs)
    alone, bend = 1.0 / v - state.gamma, found.bend
    low, high = max(theta.lower[0], began - REACH), min(theta.upper[0], began + REACH)
    a, gamma, at, left, last, enough = state.a, state.gamma, began, alone, list[tuple[Array, Array]](), least
    rest, best, goal, part = (xs @ a) @ xs, np.inf, None, 1.0
    K_a = rest + np.exp(2.0 * (made.at - began)) * (state.m - mean - rest)  # K of the state that products are of
    for k in range(MOST):
        share, rest, moved = float(np.exp(2.0 * (at - began))), (xs @ a) @ xs, np.exp(2.0 * (at - made.at))
        Ka = rest + moved * (K_a - rest)
        left, m = made.left(alone, left, state.gamma, share * gamma), mean + Ka
        spread = share / (left + share * gamma)
        e = problem.oracle(m, spread)
        slope = float(a @ Ka) - float(gamma @ spread) - float(np.square(xs @ a).sum()) + seen
        slope += float(theta.log_prior(np.array([at]))[1][0])
        step = float(np.clip(slope / bend, -FARTHEST, FARTHEST))
        b, change = a + e.alpha, np.log(np.maximum(e.gamma, 1e-3 * state.gamma) / gamma)
        residual = np.concatenate([np.sqrt(v) * b, v * (e.gamma - gamma), [np.sqrt(bend) * step]])
        size = float(np.abs(residual).max())
        enough = max(enough, LEFT * size) if k == 0 else enough
        if size <= enough:
            return a + gamma * m, gamma, np.array([at])
        if not np.isfinite(min(size, best)):
            return None
        if size < ASTRAY * best:
            x, Kx = made.solve(b)
            here = np.concatenate([a, K_a, np.log(gamma), [at]])
            ahead = here + part * np.concatenate([-x, -Kx, change, [step]])
            if size < best:
                best, goal = size, (a + gamma * m, gamma, np.array([at])) if k else None
                safe = here, ahead, residual, left
            last = [*last, (ahead, residual)][-COMBINED:]
        else:
            here, ahead, residual, left = safe
            part, ahead = 0.5 * part, 0.5 * (here + ahead)
            safe, last = (here, ahead, residual, left), [(ahead, residual)]
        target = _combined(last)
        a, K_a, at = target[:n], target[n : 2 * n], float(np.clip(target[-1], low, high))
        gamma = np.clip(np.exp(np.clip(target[2 * n : -1], -700.0, 700.0)), 1e-3 * state.gamma, 1e3 * state.gamma)
    return goal


def _combined(last: list[tuple[Array, Array]]) -> Array:
    """Where the combination of steps leads whose residual is least."""
    weights = anderson_weights(np.array([one[1] for one in last])) if last[1:] else np.ones(1)
    return np.asarray(sum(weight * one[0] for weight, one in zip(weights, last, strict=True)))


def sites_in_cavities(problem: Problem, left: Array, m: Array, a: Array, gamma: Array) -> tuple[Array, Array]:
    """Slopes and gamma of sites that meet in their means, with lambda held at ``left``; from m = mu + K a.

    So begins who knows variances from other rows: natural steps again, with conjugate gradients for the factor.
    """
    n, mean, last = len(m), problem.latent.mean, list[tuple[Array, Array]]()
    Ka, best, found = m - mean, np.inf, (a + gamma * m, gamma)
    for _ in range(MOST_HELD):
        v = 1.0 / (left + gamma)
        e = problem.oracle(mean + Ka, v)
        b, change = a + e.alpha, np.log(np.maximum(e.gamma, 0.1 * gamma) / gamma)
        residual = np.concatenate([np.sqrt(v) * b, v * (e.gamma - gamma)])
        size = float(np.abs(residual).max())
        if size < best:
            best, found = size, (a + gamma * (mean + Ka), gamma)
        if not MET < size < ASTRAY * best:
            break
        x = _by_products(problem.latent, gamma, b)
        ahead = np.concatenate([a - x, Ka - problem.latent.mvm(x), np.log(gamma) + change])
        last = [*last, (ahead, residual)][-COMBINED:]
        target = _combined(last)
        a, Ka, gamma = target[:n], target[n : 2 * n], np.exp(target[2 * n :])
    return found


def _by_products(latent: Latent, gamma: Array, b: Array) -> Array:
    """(I + G K)^-1 b, nearly, by conjugate gradients for I + G^1/2 K G^1/2 scaled by its diagonal."""
    root = np.sqrt(gamma)
    scale = root / np.sqrt(1.0 + gamma * latent.prior_variances)
    free = (scale / root) ** 2
    r = b * scale / gamma
    y, p, rho = np.zeros_like(r), r, float(r @ r)
    first = rho
    for _ in range(MOST_PRODUCTS):
        Ap = free * p + scale * latent.mvm(scale * p)
        length = rho / float(p @ Ap)
        y, r = y + length * p, r - length * Ap
        rho, before = float(r @ r), rho
        if rho <= MET_BY**2 * first:
            break
        p = r + (rho / before) * p
    return scale * y
