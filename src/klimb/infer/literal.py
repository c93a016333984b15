"""The papers' own iterations as they stand: KL-proximal and natural gradients [A], the fixed-point operator [S].

For comparison and research: they may diverge or cycle, as theirs do, and then say so.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias

import numpy as np

from klimb.errors import InputError, NotPositiveDefiniteError, require
from klimb.infer.loop import Move, Moves, Step, note
from klimb.infer.problem import Problem, State
from klimb.infer.result import Status
from klimb.infer.start import first_state
from klimb.latents.base import Factor
from klimb.numerics.arrays import Array

Start: TypeAlias = Literal["prior", "data"]
Phase: TypeAlias = Generator[Move, None, State]
CYCLE_LENGTH = 6  # states in a row that must repeat the one before last
CYCLE_CLOSE = 1e-9  # relative difference at which two values of the stationarity count as the same
CLOSE, TRIES = 1e-3, 40  # relative distance from the radius at which a step is long enough; most tries to find it
SMALLEST = 1e-12  # radius, as a share of epsilon, below which nothing is left to try


def _ended(trace: list[tuple[float, float]]) -> Status | None:
    """Whether a rule without a line search diverges, or runs in a circle of two: bound and stationarity of late."""
    if not np.isfinite(trace[-1]).all():
        return Status.DIVERGED
    repeats = [_repeats(*three) for three in zip(trace, trace[1:], trace[2:], strict=False)]
    return Status.CYCLE if len(repeats) == CYCLE_LENGTH and all(repeats) else None


def _repeats(before_last: tuple[float, float], last: tuple[float, float], now: tuple[float, float]) -> bool:
    (bound_2, norm_2), (bound_1, norm_1), (bound_0, norm_0) = before_last, last, now
    scale = max(norm_0, norm_2)
    back = abs(norm_0 - norm_2) <= CYCLE_CLOSE * scale
    moved = abs(norm_0 - norm_1) > 1e3 * CYCLE_CLOSE * scale
    return back and (moved or abs(bound_0 - bound_1) > 1e3 * abs(bound_0 - bound_2))


def begin(problem: Problem, start: Start) -> State:
    """The prior itself (V_0 = Sigma is gamma = 0, not [A] (18)'s gamma_0), or the default data-driven start."""
    if start == "data":
        return first_state(problem)
    zero = np.zeros(problem.latent.n_sites)
    return problem.state(zero, np.array(problem.latent.mean), problem.factor(zero))


def _repeated(problem: Problem, start: Start, phase: Callable[[State], Phase]) -> Moves:
    """``phase`` again and again, without a judge: until its states say how it ends, or one is not proper."""
    state = first = begin(problem, start)
    yield Move(state, "start")
    trace, end = list[tuple[float, float]](), None
    while end is None:
        before = state
        try:
            state = yield from phase(state)
        except NotPositiveDefiniteError:
            return Status.IMPROPER if state.bound >= first.bound else Status.DIVERGED
        trace = [*trace, (state.bound, state.stationarity)][-CYCLE_LENGTH - 2 :]
        end = Status.STALLED if state is before else _ended(trace)
    return end


def _halved(state: State, at: Callable[[float], State]) -> tuple[State, float]:
    """The longest step of 1, 1/2, ... after which the bound has not fallen; none leaves the state itself."""
    step = 1.0
    while step > 1e-6:
        try:
            found = at(step)
            if found.objective >= state.objective - state.noise:
                return found, step
        except NotPositiveDefiniteError:
            pass
        step *= 0.5
    return state, 0.0


def check_start(start: str) -> None:
    """An `InputError` unless ``start`` is one of the two."""
    if start not in ("prior", "data"):
        raise InputError('start must be "prior" or "data"', repr(start), "The papers start at the prior.")


@dataclass(frozen=True)
class Proximal(Step):
    """KL-proximal gradient with a fixed step ``beta``: [A] Eq. (16)-(19), misprints corrected.

    With r = 1 / (1 + beta): gamma <- r gamma + (1 - r) e.gamma, while the mean moves with the precision of
    r times the old gamma. Two factorisations an iteration; one with ``shortcut``, which moves the mean with the
    precision of the old gamma itself (A_k in place of B_k, below [A] Eq. (19)): another path to the same fixed point.
    The papers use beta = 0.25 (logistic) and 1 (Laplace). `klimb.methods.safe_step` says which beta is safe.

    >>> import numpy as np, klimb
    >>> latent, y = klimb.latents.Weights(np.ones((3, 1))), [1, 0, 1]
    >>> klimb.infer(latent, klimb.sites.Logistic(), y, step=klimb.steps.Proximal(0.25)).status.name
    'CONVERGED'
    """

    beta: float = 0.25
    start: Start = "prior"
    shortcut: bool = False

    def __post_init__(self) -> None:
        require(self.beta > 0, "beta must be positive", self.beta, "The papers use 0.25 and 1.")
        check_start(self.start)

    def moves(self, problem: Problem, notes: list[str]) -> Moves:
        return _repeated(problem, self.start, partial(self._step, problem))

    def _step(self, problem: Problem, state: State) -> Phase:
        r = 1.0 / (1.0 + self.beta)
        with np.errstate(over="ignore", invalid="ignore"):  # on its way to infinity it is judged, not warned of
            factor = state.factor if self.shortcut else problem.factor(r * state.gamma)  # [A] Eq. (17): B_k
            a = state.a - (1 - r) * factor.solve(state.mean_residual)[0]
            gamma = r * state.gamma + (1 - r) * state.expectation.gamma  # [A] Eq. (18)
            m = problem.latent.mean + problem.latent.mvm(a)  # anew: by differences it would drift from a
            found = problem.state(a, m, problem.factor(gamma))
        yield Move(found, "proximal", 1 - r)
        return found


@dataclass(frozen=True)
class FullNatural(Step):
    """The natural gradient with step 1 and no judge: mean and covariance move at once, from one call of the oracle.

    It is the step of `Natural` with r = 0. [S] section 3.2 shows that T(V) is its half for the covariance; `FixedPoint`
    alternates instead, and is judged in its steps of the mean.

    >>> import numpy as np, klimb
    >>> latent, y = klimb.latents.Weights(np.ones((3, 1))), [2, 0, 1]
    >>> klimb.infer(latent, klimb.sites.Poisson(), y, step=klimb.steps.FullNatural()).status.name
    'CONVERGED'
    """

    start: Start = "prior"

    def __post_init__(self) -> None:
        check_start(self.start)

    def moves(self, problem: Problem, notes: list[str]) -> Moves:
        return _repeated(problem, self.start, partial(self._step, problem))

    def _step(self, problem: Problem, state: State) -> Phase:
        factor = problem.factor(state.expectation.gamma)
        found = problem.state(*_mean_wanted(problem, state, factor), factor)
        yield Move(found, "full natural")
        return found


def _mean_wanted(problem: Problem, state: State, factor: Factor) -> tuple[Array, Array]:
    """(a, m) after a full Newton step on the mean with the curvature of ``factor``.

    a - (I + G K)^-1 (a + alpha) = (I + G K)^-1 (G (m - mu) - alpha). The right side has no a: what rounding has done to
    a before, K a drifting away from m - mu, is forgotten at every full step.
    """
    mean = problem.latent.mean
    a, Ka = factor.solve(factor.gamma * (state.m - mean) - state.expectation.alpha)
    return a, mean + Ka


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
        require(self.negative in ("keep", "clip", "gradient"), 'negative must be "keep", "clip" or "gradient"',
                repr(self.negative), 'The paper replaces negative gamma by zero: "clip".')

    def moves(self, problem: Problem, notes: list[str]) -> Moves:
        return _repeated(problem, self.start, partial(self._both if self.batch else self._each, problem, notes))

    def _both(self, problem: Problem, notes: list[str], state: State) -> Phase:
        state = yield from self._mean_to_optimum(problem, state)
        return (yield from self._operator_to_fixed_point(problem, state, notes))

    def _each(self, problem: Problem, notes: list[str], state: State) -> Phase:
        state, step = self._newton(problem, state)
        state = self._operator(problem, state, notes)
        yield Move(state, "fixed point", step)
        return state

    def _newton(self, problem: Problem, state: State) -> tuple[State, float]:
        """One Newton step on m at fixed V, halved until the bound does not fall; the state itself where none is left.

        Negative gamma is a poor curvature: unless it is to be kept, zero stands in for it. That changes the way only.
        """
        gamma = state.expectation.gamma
        curvature = gamma if self.negative == "keep" else np.maximum(gamma, 0.0)
        a, m = _mean_wanted(problem, state, problem.factor(curvature))
        return _halved(state, lambda t: problem.state((1 - t) * state.a + t * a, (1 - t) * state.m + t * m,
                                                      state.factor))

    def _operator(self, problem: Problem, state: State, notes: list[str]) -> State:
        """V <- T(V) at the mean of ``state``, or what ``negative`` puts in its place."""
        gamma = state.expectation.gamma
        if self.negative == "keep" or gamma.min() >= 0:
            return problem.state(state.a, state.m, problem.factor(gamma))
        if self.negative == "clip":
            note(notes, "negative gamma was replaced by zero: the fixed point is not the optimum of the bound")
            return problem.state(state.a, state.m, problem.factor(np.maximum(gamma, 0.0)))
        # [S] Eq. (16): Q - 2 t dVLB/dQ^-1, which is T(Q) at t = 1
        found, step = _halved(state, lambda t: problem.state(state.a, state.m,
                                                             problem.factor((1 - t) * state.gamma + t * gamma)))
        if step > 0:
            note(notes, "negative gamma: gradient steps took the place of T(V)")
        return found

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
                    note(notes, "the operator T(V) entered a cycle of two at a fixed mean")
                break
            older = state.gamma
            state = found
            yield Move(state, "fixed point")
            if float((state.v * np.abs(state.gamma_residual)).max()) <= 1e-10:
                break
        return state


def symmetric_divergence(one: State, other: State) -> float:
    """KL(one || other) + KL(other || one) in nats: what natural parameters differ by times what mean parameters do.

    The natural parameters of q beside the prior are those of its sites, slope = a + gamma m and -gamma / 2.
    """
    slope = (one.a + one.gamma * one.m) - (other.a + other.gamma * other.m)
    square = one.v - other.v + (one.m - other.m) * (one.m + other.m)
    return float(slope @ (one.m - other.m) - 0.5 * (one.gamma - other.gamma) @ square)


@dataclass(frozen=True)
class TrustRegion(Step):
    """The natural gradient until the symmetric divergence from the last q is ``epsilon`` nats: [A] Eq. (3).

    The length t of the step in natural parameters is that of the proximal step with beta = t / (1 - t) ([A] Theorem 1);
    ``history.step`` has it. Where the whole step stays inside the region it is taken whole. The bound judges: where it
    would fall, the radius is a quarter for this step and grows again, at most to ``epsilon``.

    >>> import numpy as np, klimb
    >>> latent, y = klimb.latents.Weights(np.ones((3, 1)), cov=9.0), [2, 0, 1]
    >>> short, default = (klimb.infer(latent, klimb.sites.Poisson(), y, step=step)
    ...                   for step in (klimb.steps.TrustRegion(0.1), None))
    >>> short.converged, bool(abs(short.bound - default.bound) < 1e-6), short.n_iter > default.n_iter
    (True, True, True)
    """

    epsilon: float = 1.0
    start: Start = "prior"

    def __post_init__(self) -> None:
        check_start(self.start)
        require(self.epsilon > 0, "epsilon must be positive", self.epsilon, "It is a divergence in nats; 1 is usual.")

    def moves(self, problem: Problem, notes: list[str]) -> Moves:
        state, radius, length = begin(problem, self.start), self.epsilon, 1.0
        yield Move(state, "start")
        while radius > SMALLEST * self.epsilon:
            found, length = _at_radius(problem, state, radius, length)
            if found is None or not found.objective >= state.objective - state.noise:
                radius *= 0.25
                continue
            state, radius = found, min(2.0 * radius, self.epsilon)
            yield Move(state, "trust region", length)
        return Status.STALLED


def _at_radius(problem: Problem, state: State, radius: float, guess: float) -> tuple[State | None, float]:
    """The state along the natural gradient at ``radius`` from here, or at its end; and the length of that step.

    The divergence rises with the length t, about as t^2: the next try is where that law puts the radius.
    """
    low, high, length = 0.0, np.inf, min(2.0 * guess, 1.0)
    best: State | None = None
    for _ in range(TRIES):
        e = state.expectation
        slope = (1.0 - length) * (state.a + state.gamma * state.m) + length * (e.gamma * state.m - e.alpha)
        try:
            found = problem.at_sites(slope, (1.0 - length) * state.gamma + length * e.gamma)
            size = symmetric_divergence(found, state)
        except NotPositiveDefiniteError:
            size = np.inf
        if size <= radius:
            best, low = found, length
            if length >= 1.0 or size >= (1.0 - CLOSE) * radius:
                break
        else:
            high = length
        aim = length * np.sqrt((1.0 - 0.5 * CLOSE) * radius / size) if 0.0 < size < np.inf else np.inf
        aim = min(aim, 1.0)
        inside = low < aim < high
        length = aim if inside else (0.5 * (low + high) if np.isfinite(high) else min(4.0 * length, 1.0))
        if high - low <= 1e-12 * high:
            break
    return best, low
