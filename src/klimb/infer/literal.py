"""The papers' own iterations, without safeguards: KL-proximal gradient [A] and the fixed-point operator [S].

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


def _check_start(start: str) -> None:
    if start not in ("prior", "data"):
        raise InputError('start must be "prior" or "data"', repr(start), "The papers start at the prior.")


@final
@dataclass(frozen=True)
class Proximal(Step):
    """KL-proximal gradient with a fixed step ``beta``: [A] Eq. (16)-(19), misprints corrected.

    With r = 1 / (1 + beta): gamma <- r gamma + (1 - r) e.gamma, while the mean moves with the precision of
    r times the old gamma. Two factorisations an iteration. The papers use beta = 0.25 (logistic) and 1 (Laplace).

    Examples
    --------
    >>> import numpy as np, klimb
    >>> latent, y = klimb.latents.Weights(np.ones((3, 1))), [1, 0, 1]
    >>> klimb.infer(latent, klimb.sites.Logistic(), y, step=klimb.steps.Proximal(0.25)).status.name
    'CONVERGED'
    """

    beta: float = 0.25
    start: Start = "prior"

    def __post_init__(self) -> None:
        if not self.beta > 0:
            raise InputError("beta must be positive", f"{self.beta}", "The papers use 0.25 and 1.")
        _check_start(self.start)

    def moves(self, problem: Problem, notes: list[str]) -> Moves:
        r, watch = 1.0 / (1.0 + self.beta), Watch()
        state = first = begin(problem, self.start)
        yield Move(state, "start")
        while True:
            e = state.expectation
            try:
                with np.errstate(over="ignore", invalid="ignore"):  # on its way to infinity it is judged, not warned of
                    # [A] Eq. (17): B_k(r_k gamma_k)
                    da, dm = problem.factor(r * state.gamma).solve(state.mean_residual)
                    gamma = r * state.gamma + (1 - r) * e.gamma  # [A] Eq. (18)
                    state = problem.state(state.a - (1 - r) * da, state.m - (1 - r) * dm, problem.factor(gamma))
            except NotPositiveDefiniteError:
                return _failure(first, state)
            yield Move(state, "proximal", 1 - r)
            end = watch.verdict(state)
            if end is not None:
                return end


@final
@dataclass(frozen=True)
class FixedPoint(Step):
    """The fixed-point operator T(V)^-1 = Sigma^-1 + sum_i gamma_i(V) d_i d_i' of [S] Eq. (8), and Newton on the mean.

    Parameters
    ----------
    batch : bool
        FPb: the mean to its optimum, then V to its fixed point, in turn. Otherwise FPi: one Newton step and one
        application of T, which is the natural gradient with step 1.
    clip : bool
        Replace negative gamma by zero, as [S] section 3.1 does. This changes the fixed point; the result's notes say if
        it happened.
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
    clip: bool = False
    start: Start = "prior"

    def __post_init__(self) -> None:
        _check_start(self.start)

    def moves(self, problem: Problem, notes: list[str]) -> Moves:
        state = first = begin(problem, self.start)
        yield Move(state, "start")
        watch = Watch()
        while True:
            try:
                if self.batch:
                    before = state
                    state = yield from self._mean_to_optimum(problem, state, notes)
                    state = yield from self._operator_to_fixed_point(problem, state, notes)
                    if state is before:
                        return Status.STALLED
                else:
                    factor = problem.factor(self._gamma(state, notes))
                    da, dm = factor.solve(state.mean_residual)
                    state = problem.state(state.a - da, state.m - dm, factor)
                    yield Move(state, "fixed point")
            except NotPositiveDefiniteError:
                return _failure(first, state)
            end = watch.verdict(state)
            if end is not None:
                return end

    def _gamma(self, state: State, notes: list[str]) -> Array:
        gamma = state.expectation.gamma
        if self.clip and gamma.min() < 0:
            text = "negative gamma was replaced by zero: the fixed point is not the optimum of the bound"
            if text not in notes:
                notes.append(text)
            return np.maximum(gamma, 0.0)
        return gamma

    def _mean_to_optimum(self, problem: Problem, state: State, notes: list[str]) -> Phase:
        """Newton on m at fixed V, with a line search on the part of the bound that depends on m."""
        scale = np.sqrt(state.v)
        target = 0.1 * state.stationarity
        for _ in range(50):
            if float((scale * np.abs(state.mean_residual)).max()) <= max(1e-9, 1e-3 * target):
                break
            da, dm = problem.factor(self._gamma(state, notes)).solve(state.mean_residual)
            step = 1.0
            while step > 1e-6:
                found = problem.state(state.a - step * da, state.m - step * dm, state.factor)
                if found.objective >= state.objective - state.noise:
                    break
                step *= 0.5
            else:
                break
            state = found
            yield Move(state, "mean", step)
        return state

    def _operator_to_fixed_point(self, problem: Problem, state: State, notes: list[str]) -> Phase:
        """V <- T(V) at fixed m until it stays, or alternates between two matrices ([S] Theorem 1)."""
        older: Array | None = None
        for _ in range(50):
            gamma = self._gamma(state, notes)
            if older is not None and np.allclose(gamma, older, rtol=1e-10, atol=0.0):
                if not np.allclose(gamma, state.gamma, rtol=1e-8, atol=0.0):
                    note = "the operator T(V) entered a cycle of two at a fixed mean"
                    if note not in notes:
                        notes.append(note)
                break
            older = state.gamma
            state = problem.state(state.a, state.m, problem.factor(gamma))
            yield Move(state, "fixed point")
            if float((state.v * np.abs(state.gamma_residual)).max()) <= 1e-10:
                break
        return state


@final
@dataclass(frozen=True, eq=False)
class Certificate:
    """Two-sided bounds on the variances of the best V for a given mean: ``lower`` <= diag V* <= ``upper``.

    ``gap`` is the largest relative distance of the two. [S] Eq. (13).
    """

    lower: Array
    upper: Array
    gap: float
    n_iter: int


def variance_certificate(problem: Problem, m: Array, tol: float = 1e-8, max_iter: int = 100) -> Certificate:
    """T^odd(Sigma) <= V* <= T^even(Sigma) at the mean ``m``: needs [S] conditions 1 and 2a, and starts at Sigma."""
    site, latent = problem.site, problem.latent
    if not (site.log_concave and site.gamma_trend == "rising"):
        raise InputError(
            "a certificate needs a log-concave site whose gamma rises with v ([S] condition 2a)",
            f"{type(site).__name__} (log_concave={site.log_concave}, gamma_trend={site.gamma_trend!r})",
            "Poisson, Exponential, Gamma and StochasticVolatility qualify.",
        )
    upper, lower = latent.prior_variances + latent.slack, np.zeros(latent.n_sites)
    v, done = upper, 0
    for k in range(1, max_iter + 1):
        with np.errstate(over="ignore"):
            gamma = problem.oracle(m, v).gamma
        if not np.isfinite(gamma).all():  # exp(m + v/2) overflows for a wide prior: T(V) is zero to rounding
            v = np.array(latent.slack)
        else:
            v = problem.factor(gamma).variances() + latent.slack
        if k % 2:
            lower = v
        else:
            upper = v
        done = k
        if np.all(upper - lower <= tol * upper):
            break
    gap = float(np.max((upper - lower) / np.maximum(upper, 1e-300)))
    return Certificate(lower, upper, gap, done)
