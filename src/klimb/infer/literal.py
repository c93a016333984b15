"""The papers' own iterations as they stand: KL-proximal gradient [A] and the fixed-point operator [S].

For comparison and research: they may diverge or cycle, as theirs do, and then say so.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Literal, TypeAlias, final

import numpy as np

from klimb.errors import InputError, NotPositiveDefiniteError
from klimb.infer.loop import Move, Moves, Step
from klimb.infer.problem import Problem, State
from klimb.infer.result import Status
from klimb.infer.start import first_state
from klimb.infer.watch import Watch
from klimb.latents.base import Factor
from klimb.numerics.arrays import Array

Start: TypeAlias = Literal["prior", "data"]
Phase: TypeAlias = Generator[Move, None, State]


def begin(problem: Problem, start: Start) -> State:
    """The prior itself (V_0 = Sigma is gamma = 0, not [A] (18)'s gamma_0), or the default data-driven start."""
    if start == "data":
        return first_state(problem)
    zero = np.zeros(problem.latent.n_sites)
    return problem.state(zero, np.array(problem.latent.mean), problem.factor(zero))


def _failure(first: State, last: State) -> Status:
    """What to call the end of an iteration whose next posterior is not proper."""
    return Status.IMPROPER if last.bound >= first.bound else Status.DIVERGED


def check_start(start: str) -> None:
    """An `InputError` unless ``start`` is one of the two."""
    if start not in ("prior", "data"):
        raise InputError('start must be "prior" or "data"', repr(start), "The papers start at the prior.")


@final
@dataclass(frozen=True)
class Proximal(Step):
    """KL-proximal gradient with a fixed step ``beta``: [A] Eq. (16)-(19), misprints corrected.

    With r = 1 / (1 + beta): gamma <- r gamma + (1 - r) e.gamma, while the mean moves with the precision of
    r times the old gamma. Two factorisations an iteration; one with ``shortcut``, which moves the mean with the
    precision of the old gamma itself (A_k in place of B_k, below [A] Eq. (19)): another path to the same fixed point.
    The papers use beta = 0.25 (logistic) and 1 (Laplace). `klimb.methods.safe_step` says which beta is safe.

    Examples
    --------
    >>> import numpy as np, klimb
    >>> latent, y = klimb.latents.Weights(np.ones((3, 1))), [1, 0, 1]
    >>> klimb.infer(latent, klimb.sites.Logistic(), y, step=klimb.steps.Proximal(0.25)).status.name
    'CONVERGED'
    """

    beta: float = 0.25
    start: Start = "prior"
    shortcut: bool = False

    def __post_init__(self) -> None:
        if not self.beta > 0:
            raise InputError("beta must be positive", f"{self.beta}", "The papers use 0.25 and 1.")
        check_start(self.start)

    def moves(self, problem: Problem, notes: list[str]) -> Moves:
        r, watch = 1.0 / (1.0 + self.beta), Watch()
        state = first = begin(problem, self.start)
        yield Move(state, "start")
        while True:
            e = state.expectation
            try:
                with np.errstate(over="ignore", invalid="ignore"):  # on its way to infinity it is judged, not warned of
                    factor = state.factor if self.shortcut else problem.factor(r * state.gamma)  # [A] Eq. (17): B_k
                    a = state.a - (1 - r) * factor.solve(state.mean_residual)[0]
                    gamma = r * state.gamma + (1 - r) * e.gamma  # [A] Eq. (18)
                    m = problem.latent.mean + problem.latent.mvm(a)  # anew: by differences it would drift from a
                    state = problem.state(a, m, problem.factor(gamma))
            except NotPositiveDefiniteError:
                return _failure(first, state)
            yield Move(state, "proximal", 1 - r)
            end = watch.verdict(state)
            if end is not None:
                return end


@final
@dataclass(frozen=True)
class FullNatural(Step):
    """The natural gradient with step 1 and no judge: mean and covariance move at once, from one call of the oracle.

    It is the step of `Natural` with r = 0. [S] section 3.2 shows that T(V) is its half for the covariance; `FixedPoint`
    alternates instead, and is judged in its steps of the mean.

    Examples
    --------
    >>> import numpy as np, klimb
    >>> latent, y = klimb.latents.Weights(np.ones((3, 1))), [2, 0, 1]
    >>> klimb.infer(latent, klimb.sites.Poisson(), y, step=klimb.steps.FullNatural()).status.name
    'CONVERGED'
    """

    start: Start = "prior"

    def __post_init__(self) -> None:
        check_start(self.start)

    def moves(self, problem: Problem, notes: list[str]) -> Moves:
        state = first = begin(problem, self.start)
        yield Move(state, "start")
        watch = Watch()
        while True:
            try:
                factor = problem.factor(state.expectation.gamma)
                a, m = _mean_wanted(problem, state, factor)
                state = problem.state(a, m, factor)
            except NotPositiveDefiniteError:
                return _failure(first, state)
            yield Move(state, "full natural")
            end = watch.verdict(state)
            if end is not None:
                return end


def _mean_wanted(problem: Problem, state: State, factor: Factor) -> tuple[Array, Array]:
    """(a, m) after a full Newton step on the mean with the curvature of ``factor``.

    a - (I + G K)^-1 (a + alpha) = (I + G K)^-1 (G (m - mu) - alpha). The right side has no a: what rounding has done to
    a before, K a drifting away from m - mu, is forgotten at every full step.
    """
    mean = problem.latent.mean
    a, Ka = factor.solve(factor.gamma * (state.m - mean) - state.expectation.alpha)
    return a, mean + Ka


@final
@dataclass(frozen=True)
class FixedPoint(Step):
    """The fixed-point operator T(V)^-1 = Sigma^-1 + sum_i gamma_i(V) d_i d_i' of [S] Eq. (8), and Newton on the mean.

    Newton steps on the mean are halved until the bound does not fall; applications of T are not judged, and may cycle.

    Parameters
    ----------
    batch : bool
        FPb: the mean to its optimum, then V to its fixed point, in turn. Otherwise FPi: one Newton step on the mean,
        then one T(V) at the new mean, in turn ([S] section 4).
    negative : "keep", "clip" or "gradient"
        What becomes of negative gamma: it is kept while the posterior is proper; it is replaced by zero, as in [S]
        section 3.1, which changes the fixed point (the result's notes say if it happened); or T gives way to the step
        along its own gradient, [S] Eq. (16), halved until the bound does not fall, which does not.
    start : "prior" or "data"

    Examples
    --------
    >>> import numpy as np, klimb
    >>> latent, y = klimb.latents.Weights(np.ones((3, 1))), [2, 0, 1]
    >>> fits = [klimb.infer(latent, klimb.sites.Poisson(), y, step=klimb.steps.FixedPoint(b)) for b in (True, False)]
    >>> bool(abs(fits[0].bound - fits[1].bound) < 1e-9)
    True
    """

    batch: bool = False
    negative: Literal["keep", "clip", "gradient"] = "keep"
    start: Start = "prior"

    def __post_init__(self) -> None:
        check_start(self.start)
        if self.negative not in ("keep", "clip", "gradient"):
            raise InputError('negative must be "keep", "clip" or "gradient"', repr(self.negative),
                             'The paper replaces negative gamma by zero: "clip".')

    def moves(self, problem: Problem, notes: list[str]) -> Moves:
        state = first = begin(problem, self.start)
        yield Move(state, "start")
        watch = Watch()
        while True:
            try:
                before = state
                if self.batch:
                    state = yield from self._mean_to_optimum(problem, state)
                    state = yield from self._operator_to_fixed_point(problem, state, notes)
                    if state is before:
                        return Status.STALLED
                else:
                    state, step = self._newton(problem, state)
                    state = self._operator(problem, state, notes)
                    yield Move(state, "fixed point", step)
            except NotPositiveDefiniteError:
                return _failure(first, state)
            end = watch.verdict(state)
            if end is not None:
                return end

    def _newton(self, problem: Problem, state: State) -> tuple[State, float]:
        """One Newton step on m at fixed V, halved until the bound does not fall; the state itself where none is left.

        Negative gamma is a poor curvature: unless it is to be kept, zero stands in for it. That changes the way only.
        """
        gamma = state.expectation.gamma
        curvature = gamma if self.negative == "keep" else np.maximum(gamma, 0.0)
        a, m = _mean_wanted(problem, state, problem.factor(curvature))
        step = 1.0
        while step > 1e-6:
            keep = 1.0 - step
            found = problem.state(keep * state.a + step * a, keep * state.m + step * m, state.factor)
            if found.objective >= state.objective - state.noise:
                return found, step
            step *= 0.5
        return state, 0.0

    def _operator(self, problem: Problem, state: State, notes: list[str]) -> State:
        """V <- T(V) at the mean of ``state``, or what ``negative`` puts in its place."""
        gamma = state.expectation.gamma
        if self.negative == "keep" or gamma.min() >= 0:
            return problem.state(state.a, state.m, problem.factor(gamma))
        if self.negative == "clip":
            _note(notes, "negative gamma was replaced by zero: the fixed point is not the optimum of the bound")
            return problem.state(state.a, state.m, problem.factor(np.maximum(gamma, 0.0)))
        step = 1.0  # [S] Eq. (16): Q - 2 step dVLB/dQ^-1, which is T(Q) at step 1
        while step > 1e-6:
            try:
                found = problem.state(state.a, state.m, problem.factor((1.0 - step) * state.gamma + step * gamma))
            except NotPositiveDefiniteError:
                found = None
            if found is not None and found.objective >= state.objective - state.noise:
                _note(notes, "negative gamma: gradient steps took the place of T(V)")
                return found
            step *= 0.5
        return state

    def _mean_to_optimum(self, problem: Problem, state: State) -> Phase:
        scale = np.sqrt(state.v)
        target = 0.1 * state.stationarity
        for _ in range(50):
            if float((scale * np.abs(state.mean_residual)).max()) <= max(1e-9, 1e-3 * target):
                break
            found, step = self._newton(problem, state)
            if found is state:
                break
            state = found
            yield Move(state, "mean", step)
        return state

    def _operator_to_fixed_point(self, problem: Problem, state: State, notes: list[str]) -> Phase:
        """V <- T(V) at fixed m until it stays, or alternates between two matrices ([S] Theorem 1)."""
        older: Array | None = None
        for _ in range(50):
            found = self._operator(problem, state, notes)
            if older is not None and np.allclose(found.gamma, older, rtol=1e-10, atol=0.0):
                if not np.allclose(found.gamma, state.gamma, rtol=1e-8, atol=0.0):
                    _note(notes, "the operator T(V) entered a cycle of two at a fixed mean")
                break
            older = state.gamma
            state = found
            yield Move(state, "fixed point")
            if float((state.v * np.abs(state.gamma_residual)).max()) <= 1e-10:
                break
        return state


def _note(notes: list[str], text: str) -> None:
    if text not in notes:
        notes.append(text)
