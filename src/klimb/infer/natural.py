"""The default step: natural gradients that never lower the bound, accelerated where that pays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from klimb.errors import NotPositiveDefiniteError
from klimb.infer.anderson import Mixer
from klimb.infer.loop import Move, Moves, Step
from klimb.infer.newton import newton_direction
from klimb.infer.problem import Problem, State
from klimb.infer.result import Status
from klimb.infer.start import first_state, local_sites
from klimb.numerics.arrays import Array

SMALLEST_STEP = 2.0**-20
FAST_ENOUGH = 0.15  # a natural step that leaves less of the residual than this needs no help
NEAR = 0.5  # stationarity below which a Newton direction is worth its products
PATIENCE = 12  # iterations at the level of rounding without a better stationarity


@final
@dataclass(frozen=True)
class Natural(Step):
    """Natural gradient with a line search on the bound; the default.

    At every iteration the cheapest promising proposal is judged by the bound: a Newton direction where the latent has
    its dense covariance at hand and plain steps are slow, an Anderson combination of the last states, else the natural
    step itself, shortened until the bound does not fall. gamma may be negative (likelihoods that are not log-concave) as
    long as the posterior is proper; a proposal that is not is shortened too.

    Parameters
    ----------
    memory : int
        How many states Anderson acceleration combines; 1 turns it off.
    newton : bool
        Whether to use Newton directions.

    Examples
    --------
    >>> import klimb
    >>> klimb.steps.Natural()
    Natural(memory=5, newton=True)
    """

    memory: int = 5
    newton: bool = True

    def moves(self, problem: Problem, notes: list[str]) -> Moves:
        state = first_state(problem)
        yield Move(state, "start")
        mixer, slow, wait = Mixer(self.memory), False, 0
        best, idle = state.stationarity, 0
        while True:
            mixer.add(state)
            move = None
            if self.newton and slow and state.stationarity < NEAR and problem.site.uses_variance:
                if wait == 0:
                    move = _newton(problem, state)
                    wait = 0 if move else 2
                else:
                    wait -= 1
            if slow and state.stationarity >= NEAR and problem.site.uses_variance and problem.latent.n_weights >= problem.latent.n_sites:
                move = _local(problem, state)
            if move is None and slow and len(mixer) > 1:
                move = _anderson(problem, state, mixer)
                if move is None:
                    mixer.restart()
            if move is None:
                move = _natural(problem, state, notes)
            if move is None:
                return Status.STALLED
            after = move.state
            slow = move.rule == "newton" or after.stationarity > FAST_ENOUGH * state.stationarity
            gain = after.objective - state.objective
            idle = 0 if gain > state.noise or after.stationarity < 0.9 * best else idle + 1
            best = min(best, after.stationarity)
            state = after
            yield move
            if idle >= PATIENCE:
                return Status.STALLED


def _try(problem: Problem, a: Array, m: Array, gamma: Array, residual: Array, step: float, least: float) -> State | None:
    """The natural move to ``gamma`` from the mean (a, m) with this residual, if its objective is at least ``least``."""
    if not np.isfinite(gamma).all():
        return None
    try:
        factor = problem.factor(gamma)
        da, dm = factor.solve(residual)
        state = problem.state(a - step * da, m - step * dm, factor)
    except NotPositiveDefiniteError:
        return None
    return state if state.objective >= least else None  # false for NaN too


def _natural(problem: Problem, state: State, notes: list[str]) -> Move | None:
    """gamma <- (1 - t) q.gamma + t e.gamma, a <- a - t (I + G K)^-1 (a + alpha), t = 1, 1/2, ... [S] FPi safeguarded."""
    targets = [state.expectation.gamma]
    if state.expectation.gamma.min() < 0:  # a Gauss-Newton-like target that is always proper, if the true one fails
        targets.append(np.maximum(state.expectation.gamma, 0.0))
    for clipped, target in enumerate(targets):
        step = 1.0
        while step >= SMALLEST_STEP:
            gamma = (1 - step) * state.gamma + step * target
            found = _try(problem, state.a, state.m, gamma, state.mean_residual, step, state.objective - state.noise)
            if found is not None:
                if clipped:
                    _note(notes, "negative gamma was held at zero for some steps")
                return Move(found, "natural" if not clipped else "clipped", step)
            step *= 0.5
    return None


def _anderson(problem: Problem, state: State, mixer: Mixer) -> Move | None:
    gamma, a, m, residual = mixer.combine()
    if problem.site.log_concave:  # stay inside the cone, near what single states ask for
        gamma = np.maximum(gamma, 0.1 * np.minimum(state.gamma, state.expectation.gamma))
    found = _try(problem, a, m, gamma, residual, 1.0, state.objective - state.noise)
    return None if found is None else Move(found, "anderson")


def _local(problem: Problem, state: State) -> Move | None:
    """Every site at its own optimum against its cavity: V_i^-1 - gamma_i, m_i - v_c a_i."""
    cavity_v = 1.0 / (1.0 / (state.v - problem.latent.slack) - state.gamma)
    if not (cavity_v > 0).all():
        return None
    try:
        found = local_sites(problem, state.m - cavity_v * state.a, cavity_v, state)
    except NotPositiveDefiniteError:
        return None
    return Move(found, "local") if found.objective >= state.objective - state.noise else None


def _newton(problem: Problem, state: State) -> Move | None:
    V = state.factor.covariance()
    direction = None if V is None else newton_direction(problem, state, V)
    if direction is None:
        return None
    for step in (1.0, 0.5):
        gamma = state.gamma + step * direction.gamma
        if problem.site.log_concave:
            gamma = np.clip(gamma, 0.1 * state.gamma, 10.0 * state.gamma + state.expectation.gamma)
        try:
            factor = problem.factor(gamma)
            found = problem.state(state.a + step * direction.a, state.m + step * direction.m, factor)
        except NotPositiveDefiniteError:
            continue
        if found.objective >= state.objective - state.noise:
            return Move(found, "newton", step)
    return None


def _note(notes: list[str], text: str) -> None:
    if text not in notes:
        notes.append(text)
