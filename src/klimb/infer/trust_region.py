"""The natural gradient as a step of given length: [A] Eq. (3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from klimb.errors import InputError, NotPositiveDefiniteError
from klimb.infer.literal import Start, begin, check_start
from klimb.infer.loop import Move, Moves, Step
from klimb.infer.problem import Problem, State
from klimb.infer.result import Status

CLOSE, TRIES = 1e-3, 40  # relative distance from the radius at which a step is long enough; most tries to find it
SMALLEST = 1e-12  # radius, as a share of epsilon, below which nothing is left to try


def symmetric_divergence(one: State, other: State) -> float:
    """KL(one || other) + KL(other || one) in nats: what natural parameters differ by times what mean parameters do.

    The natural parameters of q beside the prior are those of its sites, slope = a + gamma m and -gamma / 2.
    """
    slope = (one.a + one.gamma * one.m) - (other.a + other.gamma * other.m)
    square = one.v - other.v + (one.m - other.m) * (one.m + other.m)
    return float(slope @ (one.m - other.m) - 0.5 * (one.gamma - other.gamma) @ square)


@final
@dataclass(frozen=True)
class TrustRegion(Step):
    """The natural gradient until the symmetric divergence from the last q is ``epsilon`` nats: [A] Eq. (3).

    The length t of the step in natural parameters is that of the proximal step with beta = t / (1 - t) ([A] Theorem 1);
    ``history.step`` has it. Where the whole step stays inside the region it is taken whole. The bound judges: where it
    would fall, the radius is a quarter for this step and grows again, at most to ``epsilon``.

    Examples
    --------
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
        if not self.epsilon > 0:
            raise InputError("epsilon must be positive", f"{self.epsilon}", "It is a divergence in nats; 1 is usual.")

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
