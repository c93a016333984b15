"""The default step: natural gradients that never lower the bound, with stronger proposals where they are slow."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from klimb.errors import NotPositiveDefiniteError, require
from klimb.infer.loop import Move, Moves, Step, note
from klimb.infer.newton import ENOUGH, STIFF, Linearised, Mixer, newton_direction
from klimb.infer.problem import Problem, State
from klimb.infer.result import Status
from klimb.infer.start import first_state, local_sites
from klimb.numerics.arrays import Array

SMALLEST_STEP = 2.0**-20
FAST_ENOUGH = 0.15  # a natural step that leaves less of the residual than this needs no help
VERY_SLOW = 0.4  # what two steps in a row must leave on average before Newton directions are worth their price
NEAR = 0.5  # stationarity below which a Newton direction is worth its products
FAR, STRETCH, PAUSE = 0.03, 4.0, 8  # stationarity above which to stretch, by how much, and how long to wait after a no
WORTH = 1e-3  # nats that local optima must gain, while far from the optimum, to be tried again at once
SHARED = 20  # sites per weight from which their own optima, ten oracle calls each, say little of all together
WAIT = 3  # iterations until Newton directions or local optima are tried again after a failure
RESCUE_AFTER, RESCUE_SITES = 6, 2000  # when and up to which N Newton helps models with fewer weights than sites
STEP_COST = 3e-4, 1.5e-7, 3e-10  # seconds of a plain step: in all, for each of N sites, and for each of N D^2 products
NEWTON_COST = 1e-3, 7e-9, 1.4e-10  # of a Newton direction by N x N matrices: in all, for each entry, and for N^2 D
MOST_PATIENT = 6.0, 4.0  # plain steps that are waited for, whatever the price: before and after a first direction
COUPLED_AFTER = 4  # when Newton helps sites that couple several latent values
ROUGH_END = 1e-3  # residual below which a Newton step that lowers a rough bound says that its oracle has no more to say
KEPT = 0.05, 0.2  # residual below which, and what a step leaves up to which, matrices of coupled sites serve the next
COUPLED_CHANGE = 3.0  # factor by which it may change one of their gammas
USUAL_TOL = 1e-6
PATIENCE = 12  # iterations at the level of rounding without a better stationarity


@dataclass(frozen=True)
class Natural(Step):
    """Natural gradient with a line search on the bound; the default.

    Where plain steps are fast they are all there is. Where they are slow, the bound judges stronger proposals: far from
    the optimum each site's own optimum against its cavity, or the whole posterior stretched; near it a Newton direction
    (with the covariance at hand); else an Anderson combination of the last states. Whatever is refused falls back to
    the natural step, shortened until the bound does not fall. gamma may be negative (likelihoods that are not
    log-concave) as long as the posterior is proper; a proposal that is not is shortened too.

    Parameters
    ----------
    memory : int
        How many states Anderson acceleration combines; 1 turns it off.
    newton : bool
        Whether to use Newton directions and local optima.

    Examples
    --------
    >>> import klimb
    >>> klimb.steps.Natural()
    Natural(memory=5, newton=True)
    """

    memory: int = 5
    newton: bool = True

    def __post_init__(self) -> None:
        require(self.memory >= 1, "memory must be at least 1", self.memory, "1 turns Anderson acceleration off.")

    def moves(self, problem: Problem, notes: list[str]) -> Moves:
        state = problem.own_start() or first_state(problem, self)
        yield Move(state, "start")
        helped = self.newton and problem.site.uses_variance
        mixer = Mixer(self.memory)
        pace = _Pace(state, patience(problem), _price(problem)) if helped else _Pace(state, float("inf"), 0.0)
        if problem.warm and (state.stationarity < NEAR or (helped and problem.site.separable)):
            pace.begin_near(helped and problem.latent.n_sites <= max(problem.dense_size, ENOUGH))
        while not (pace.stalled or pace.exhausted):
            if self.memory > 1:
                mixer.add(state)
            move = _stronger(problem, state, pace) if helped and pace.slow else None
            state.release()  # what follows needs neither its matrices nor its variances
            if move is None and pace.slow and len(mixer) > 1:
                move = _anderson(problem, state, mixer)
                if move is None:
                    mixer.restart()
            if move is None:
                move = _natural(problem, state, notes)
            if move is None:
                break
            pace.note(state, move.state)
            state = move.state
            yield move
        return Status.STALLED


class _Pace:
    """How fast the residual has been falling, and how long to leave the more expensive proposals alone."""

    def __init__(self, state: State, patience: float, price: float) -> None:
        self.price = price  # of a Newton direction, in plain steps
        self.slow = False  # some step left more than a little of the residual
        self.hard = False  # two steps in a row left much of it
        self.gain = 0.0  # of the objective in the last step
        self.newton_in, self.stretch_in, self.local_in = patience, 0.0, 0  # iterations until each may be tried (again)
        self.linear: Linearised | None = None  # of a state near by
        self.exhausted = False  # values and slopes of a rough oracle contradict each other
        self._before, self._best, self._idle, self._rate = 0.0, state.stationarity, 0, 0.5

    def expected(self, state: State) -> float:
        """How many plain steps the rest would take at the pace of late."""
        return float(np.log(max(state.stationarity / USUAL_TOL, 1.0)) / -np.log(np.clip(self._rate, 1e-3, 0.999)))

    def begin_near(self, at_once: bool) -> None:
        """A start close to the optimum, as from other hyperparameters: Newton or local optima pay ``at_once``.

        Of long chains a Newton direction takes as long as two plain steps, and three times their memory: it waits until
        these are slow.
        """
        self.slow = self.newton_in == 0
        self.hard = self.slow and at_once
        self.stretch_in = PAUSE

    def note(self, state: State, after: State) -> None:
        left = after.stationarity / state.stationarity
        self._rate = self._rate**0.75 * left**0.25
        self.slow = self.slow or left > FAST_ENOUGH
        self.hard = self.hard or left * self._before > VERY_SLOW**2
        self.gain = after.objective - state.objective
        settled = self.gain <= state.noise and after.stationarity >= 0.9 * self._best
        self._idle = self._idle + 1 if settled else 0
        self._before, self._best = left, min(self._best, after.stationarity)
        self.newton_in, self.stretch_in = max(self.newton_in - 1, 0), max(self.stretch_in - 1, 0)
        self.local_in = max(self.local_in - 1, 0)

    @property
    def stalled(self) -> bool:
        """Nothing but rounding for a while."""
        return self._idle >= PATIENCE


def _stronger(problem: Problem, state: State, pace: _Pace) -> Move | None:
    """What to try where plain steps are slow: a stretch, local optima while far from the optimum, Newton near it."""
    if pace.hard and pace.stretch_in == 0 and state.stationarity > FAR:
        move = _stretch(problem, state, pace.gain)
        if move is not None:
            return move
        pace.stretch_in = PAUSE
    if state.stationarity >= NEAR and problem.site.separable:
        if pace.local_in > 0 or problem.latent.n_sites > SHARED * problem.latent.n_weights:
            return None
        move = _local(problem, state)
        if move is not None and _useful(state, move.state, WORTH):
            return move
        pace.local_in = WAIT + 1  # sites that are content one by one may still be far from it together
        return None
    if pace.hard and pace.newton_in == 0 and pace.expected(state) >= pace.price:
        move = _newton(problem, state, pace)
        if move is None or not _useful(state, move.state):
            pace.newton_in = WAIT
            pace.exhausted = problem.rough and move is None and state.stationarity < ROUGH_END
        else:  # near enough for the next to leave the square of the residual
            pace.price = min(pace.price, MOST_PATIENT[1])
        return move
    return None


def patience(problem: Problem) -> float:
    """How many iterations to do without Newton directions: they cost N x N products.

    Those are cheap beside a factor of that size; beside a smaller one they are a rescue, and for many data too
    expensive. A site that couples latent values makes plain steps slow, its oracle is expensive, and most of its latent
    values need no product: there Newton comes early.
    """
    latent = problem.latent
    if latent.n_weights >= latent.n_sites:
        return 0
    if not problem.site.separable:
        return 0 if problem.warm else COUPLED_AFTER
    return RESCUE_AFTER if latent.n_sites <= RESCUE_SITES * latent.n_outputs else float("inf")


def _price(problem: Problem) -> float:
    """What a Newton direction by N x N matrices costs where factors are D x D, in plain steps."""
    N, D = problem.latent.n_sites, problem.latent.n_weights
    if D >= N or not problem.site.separable:
        return 0.0
    (fixed, site, product), (begin, entry, wide) = STEP_COST, NEWTON_COST
    return min((begin + N * N * (entry + wide * D)) / (fixed + N * (site + product * D * D)), MOST_PATIENT[0])


def _useful(state: State, after: State, least: float = 0.0) -> bool:
    """Whether a move got somewhere: a gain above rounding (and ``least``), or a clearly smaller residual."""
    gained = after.objective - state.objective > max(10 * state.noise, least)
    return gained or after.stationarity < 0.5 * state.stationarity


def _accept(state: State, found: State, rule: str, step: float = 1.0) -> Move | None:
    """The judge of every proposal: the objective must not fall by more than rounding (nor be NaN).

    A proposal so extreme that rounding could have made its objective up must be better by as much.
    """
    doubt = max(found.noise - 2 * state.noise, 0.0)
    return Move(found, rule, step) if found.objective - doubt >= state.objective - state.noise else None


def _natural(problem: Problem, state: State, notes: list[str]) -> Move | None:
    """The natural step shortened to t = 1, 1/2, ..., by the true target and then by one that is always proper."""
    for rule in problem.rules(state):
        step = 1.0
        while step >= SMALLEST_STEP:
            try:
                move = _accept(state, problem.stepped(state, rule, step), rule, step)
            except NotPositiveDefiniteError:
                move = None
            if move is not None:
                if rule == "clipped":
                    note(notes, "negative gamma was held at zero for some steps")
                return move
            step *= 0.5
    return None


def _anderson(problem: Problem, state: State, mixer: Mixer) -> Move | None:
    """The natural step from the best combination of the last states."""
    gamma, alpha, moved = mixer.combine()
    if problem.site.log_concave:  # stay inside the cone, near what single states ask for
        gamma = np.maximum(gamma, 0.1 * np.minimum(state.gamma, state.expectation.gamma))
    residual = [state.a + alpha - gamma * moved]  # of the sites (gamma, gamma m - alpha), seen from the last state
    del alpha, moved  # vectors of all sites, as the residual is
    try:
        return _accept(state, problem.towards(gamma, state.a, state.m, residual.pop()), "anderson")
    except NotPositiveDefiniteError:
        return None


def _local(problem: Problem, state: State) -> Move | None:
    """Every site at its own optimum against its cavity, N(m - v_c a, v_c) with 1/v_c = 1/V_ii - gamma."""
    with np.errstate(divide="ignore"):
        cavity_v = 1.0 / (1.0 / (state.v - problem.latent.slack) - state.gamma)
    if not (np.isfinite(cavity_v) & (cavity_v >= 0)).all():
        return None
    try:
        found = problem.at_sites(*local_sites(problem, state.m - cavity_v * state.a, cavity_v, state))
    except NotPositiveDefiniteError:
        return None
    return _accept(state, found, "local")


def _stretch(problem: Problem, state: State, gain: float) -> Move | None:
    """The same posterior four times as wide about the prior mean: slopes / 4, gamma / 16.

    Under a wide prior, data that only bound f from one side (separable or single-class labels) push the scale of the
    posterior out by orders of magnitude, a little at every ordinary step. It must gain more than the last of those did.
    """
    mean = problem.latent.mean
    gamma = state.gamma / STRETCH**2
    slope = (state.a + state.gamma * (state.m - mean)) / STRETCH
    try:
        found = problem.at_sites(slope + gamma * mean, gamma)
    except NotPositiveDefiniteError:
        return None
    return _accept(state, found, "stretch") if found.objective > state.objective + gain else None


def _newton(problem: Problem, state: State, pace: _Pace) -> Move | None:
    """A full or half Newton step on (a, gamma)."""
    linear, pace.linear = pace.linear or Linearised.of(problem, state), None
    direction = None if linear is None else newton_direction(linear, state)
    if direction is None:
        return None
    linear = None if problem.site.separable else linear  # whose matrices are as large as the factor that comes now
    state.factor.release()
    for step in (1.0, 0.5):
        gamma = state.gamma + step * direction.gamma
        if problem.site.log_concave:
            gamma = within_reach(problem, state, gamma)
        try:
            factor = problem.factor(gamma)
            found = problem.state(state.a + step * direction.a, state.m + step * direction.m, factor)
        except NotPositiveDefiniteError:
            continue
        move = _accept(state, found, "newton", step)
        if move is not None:
            if found.stationarity < min(KEPT[0], KEPT[1] * state.stationarity):
                pace.linear = linear
            return move
    return None


def within_reach(problem: Problem, state: State, gamma: Array) -> Array:
    """``gamma`` cut to some times that of a state and its sites; those that say less than a small residual are free."""
    most = 10.0 if problem.site.separable else COUPLED_CHANGE
    free = (state.stationarity if state.stationarity < STIFF else 0.0) / np.where(state.v > 0.0, state.v, np.inf)
    low = np.maximum(state.gamma / most - free, 0.1 * np.minimum(state.gamma, state.expectation.gamma))
    return np.clip(gamma, low, most * state.gamma + state.expectation.gamma + free)
