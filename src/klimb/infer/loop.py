"""The loop: it takes the moves of a step rule, writes the history, and decides when to stop."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from klimb.errors import InputError, require
from klimb.infer.problem import Problem, Start, State
from klimb.infer.result import History, Iteration, Result, Status
from klimb.latents.base import Latent
from klimb.numerics.dense import threads_for
from klimb.sites.base import Site

Callback: TypeAlias = Callable[[Iteration], Any]
ROUGH_SHARE, ROUGH_TOL = 0.5, 5e-7  # of the tolerance, and the least, of what is done with a cheaper oracle
ROUGH_ENOUGH = 5e-5  # tolerance from which that is all: its error is far below what is left open


@dataclass(frozen=True, eq=False)
class Move:
    """One accepted state, with the rule that found it and how much of a full step it took."""

    state: State
    rule: str
    step: float = 1.0


Moves: TypeAlias = Generator[Move, None, Status]


class Step(ABC):
    """How far to go. A rule is a frozen record of its settings; ``moves`` walks from a start, one state at a time."""

    @abstractmethod
    def moves(self, problem: Problem, notes: list[str]) -> Moves:
        """Yield the start, then one accepted state per iteration; return a status where no further step exists."""


def note(notes: list[str], text: str) -> None:
    """Add what a rule has to say, once."""
    if text not in notes:
        notes.append(text)


def run(problem: Problem, step: Step, tol: float, max_iter: int, callback: Callback | None,
        before: Sequence[Iteration] = ()) -> tuple[State, Status, History, list[str]]:
    """Follow ``step`` until the norm and the remaining gain are at most ``tol``, or something else ends it."""
    with threads_for(problem.dense_size):
        return _run(problem, step, tol, max_iter, callback, list(before))


def _run(problem: Problem, step: Step, tol: float, max_iter: int, callback: Callback | None,
         rows: list[Iteration]) -> tuple[State, Status, History, list[str]]:
    begin, notes = time.perf_counter() - (rows[-1].seconds if rows else 0.0), list[str]()
    moves = step.moves(problem, notes)
    n_factor = n_oracle = 0
    n_products = problem.n_products
    state: State | None = None
    while True:
        try:
            move = next(moves)
        except StopIteration as stop:
            status = stop.value
            break
        state = move.state
        rows.append(Iteration(len(rows), state.bound, state.stationarity, move.step, move.rule,
                              time.perf_counter() - begin, problem.n_factor - n_factor, problem.n_oracle - n_oracle,
                              problem.n_products - n_products))
        n_factor, n_oracle, n_products = problem.n_factor, problem.n_oracle, problem.n_products
        if state.stationarity <= tol and state.remaining <= tol:
            status = Status.CONVERGED
            break
        if callback is not None and callback(rows[-1]) is False:
            status = Status.STOPPED
            break
        if len(rows) > max_iter:
            status = Status.MAX_ITER
            break
    assert state is not None
    return state, status, History(rows), notes


def infer(latent: Latent, site: Site, y: Any, *, step: Step | None = None, tol: float = 1e-6, max_iter: int = 500,
          callback: Callback | None = None, start: Start = None) -> Result:
    """Fit the Gaussian q that maximises the bound on the log evidence.

    Parameters
    ----------
    latent : Latent
        The prior and its map to the data, e.g. ``klimb.latents.Weights(X, cov=1.0)`` or ``klimb.latents.Kernel(K)``.
    site : Site
        The likelihood, e.g. ``klimb.sites.Logistic()``.
    y : array
        One observation per site.
    step : Step
        ``klimb.steps.Natural()`` unless given: safeguarded, no learning rate, the bound never falls. For
        ``klimb.latents.Implicit`` it is ``klimb.steps.DoubleLoop()``.
    tol : float
        Stop when both are at most this: the norm ``max(sqrt(v) |a + alpha|, v |q.gamma - e.gamma|)``, which has no unit
        and looks at every datum by itself, and an upper estimate of what the bound may still gain, in nats.
    max_iter : int
        Most steps to take.
    callback : callable
        Called with each `Iteration`; return False to stop.
    start : Posterior
        Begin at the sites of this posterior, say of a fit with slightly different hyperparameters; or of that which
        a function returns.

    Returns
    -------
    Result
        ``result.posterior``, ``result.bound``, ``result.status`` (with ``.advice``), ``result.history``,
        ``result.trust`` (whether to believe it).

    Examples
    --------
    >>> import numpy as np, klimb
    >>> result = klimb.infer(klimb.latents.Weights(np.ones((5, 1)), cov=25.0), klimb.sites.Poisson(), [0, 0, 0, 0, 0])
    >>> result.status.name, round(result.bound, 4)
    ('CONVERGED', -1.2408)
    """
    if step is not None and not isinstance(step, Step):
        raise InputError("step must be a klimb step", repr(step), "Use klimb.steps.Natural(), or leave it out.")
    require(tol > 0, "tol must be positive", tol, "The default is 1e-6.")
    require(max_iter >= 0, "max_iter must not be negative", max_iter, "The default is 500.")
    problem = Problem(latent, site, y)
    rule, before = step or _default_step(latent, site), list[Iteration]()
    near = None if callable(start) else start
    known = near is not None and near.latent is latent and near.factor is not None  # at the optimum, or next to it
    rough = site.rough(tol) if step is None and not known else site
    near = None
    if rough is not site:  # most of the way by a cheaper oracle
        far, enough = Problem(latent, rough, problem.y, start), tol >= ROUGH_ENOUGH
        far.rough = not enough
        share = 1.0 if enough else ROUGH_SHARE
        state, status, history, notes = run(far, rule, max(share * tol, ROUGH_TOL), max_iter, callback)
        if enough:
            return Result(far.posterior(state), state.bound, status, history, tuple(notes), problem, state.bound_error)
        before, start = list(history.iterations), far.posterior(state)
        del far, state  # with vectors of all sites that the rest need not hold
        callback = (lambda row: False) if status is Status.STOPPED else callback
    problem.begin(start)
    start = None  # the loop lets go of it once it has a state
    state, status, history, notes = run(problem, rule, tol, max_iter, callback, before[:-1])
    problem.start = None  # of another fit, with all its matrices
    if before:
        history = _joined(before, list(history.iterations))
    return Result(problem.posterior(state), state.bound, status, history, tuple(notes), problem, state.bound_error)


def _joined(rough: list[Iteration], rows: list[Iteration]) -> History:
    """One history: the last state by the cheaper oracle, which is off by the same at every step, is judged again."""
    last, again = rough[-1], rows[len(rough) - 1]
    rows[len(rough) - 1] = replace(
        again, step=last.step, rule=last.rule, n_factor=again.n_factor + last.n_factor,
        n_oracle=again.n_oracle + last.n_oracle, n_products=again.n_products + last.n_products)
    shift = again.bound - last.bound
    return History([*(replace(row, bound=row.bound + shift) for row in rough[:-1]), *rows[len(rough) - 1 :]])


def _default_step(latent: Latent, site: Site) -> Step:
    if latent.by_products and site.uses_variance:
        from klimb.infer.matrixfree.outer import DoubleLoop

        return DoubleLoop()
    from klimb.infer.natural import Natural

    return Natural()
