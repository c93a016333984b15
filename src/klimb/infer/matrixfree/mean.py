"""The inner loop: the best mean for given variances, by Newton steps whose systems are solved no better than needed.

This is the iteratively reweighted least squares of [N] section 2.2. A step costs one system with A(e), e the curvatures
of the sites, and a line search that needs no products, because B u and X u move along known directions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, final

import numpy as np

from klimb.infer.matrixfree.target import BoundTarget, MeanPoint
from klimb.linalg.krylov import KrylovSolution
from klimb.numerics.arrays import Array

MOST_STEPS = 60
LOOSEST, TIGHTEST = 0.1, 1e-11  # relative residuals that systems are solved to
SHARE = 0.1  # of the goal: what the error of a system may contribute
ENOUGH_GAIN = 1e-4  # of what the slope promises: the least that a step must gain
FLAT_ENOUGH = 0.3  # slope along the step, relative to its start, at which a line search ends
MOST_TRIALS = 30

# Newton weights of the sites, right-hand side and relative residual in, solution out.
Solver: TypeAlias = Callable[[Array, Array, float], KrylovSolution]


@final
@dataclass(frozen=True, eq=False)
class Found:
    """The mean, how far it is from the best one (in posterior standard deviations, at most), and how it was found."""

    mean: MeanPoint
    distance: float
    unsolved: float  # the worst relative residual of a system that missed its tolerance; 0 if all were solved


def best_mean(target: BoundTarget, v: Array, start: MeanPoint, solver: Solver, goal: float, most: int = MOST_STEPS
              ) -> Found:
    """Raise the objective over u at fixed ``v`` until the Newton decrement is at most ``goal``.

    The decrement, sqrt(g' A(e)^-1 g), bounds how far any linear function of u is from its value at the optimum, in
    posterior standard deviations; half its square is what the bound still gains.
    """
    mean, distance, unsolved = start, np.inf, 0.0
    before = (np.inf, np.inf)  # norm of the gradient and decrement at the last step
    for _ in range(most):
        gradient = target.gradient(mean)
        size = float(np.linalg.norm(gradient))
        if size == 0.0:
            return Found(mean, 0.0, unsolved)
        weights = target.newton_weights(mean, v)
        solution = solver(weights, gradient, _forcing(size, before, goal))
        if not solution.converged:
            unsolved = max(unsolved, float(np.max(solution.residual)))
        distance = max(float(gradient @ solution.x), 0.0) ** 0.5
        before = (size, distance)
        if distance <= goal:
            return Found(mean, distance, unsolved)
        moved = _line_search(target, v, mean, solution.x, gradient)
        if moved is None:  # nothing but rounding is left
            return Found(mean, distance, unsolved)
        mean = moved
    return Found(mean, distance, unsolved)


def _forcing(size: float, before: tuple[float, float], goal: float) -> float:
    """How well to solve: as the gradient falls (Eisenstat and Walker), but no better than the goal needs."""
    if not np.isfinite(before[0]):
        return LOOSEST
    left = size / before[0]
    wanted, needed = 0.9 * left**2, SHARE * goal / max(left * before[1], 1e-300)
    return float(np.clip(max(wanted, needed), TIGHTEST, LOOSEST))


def _line_search(target: BoundTarget, v: Array, mean: MeanPoint, d: Array, gradient: Array) -> MeanPoint | None:
    """A point along ``d`` that is better than ``mean``: the full step where it will do, else where the slope is small.

    None where no point is better by more than rounding.
    """
    ds, df = target.latent.B.times(d), target.latent.gaussian.fitted(d)
    promised = float(gradient @ d)
    gaussian = target.latent.gaussian
    bend = float(gaussian.prior_precision @ d**2 + gaussian.weights @ df**2)
    gaussian_slope = promised + float(mean.e.alpha @ ds)  # the sites have the rest of the slope

    def at(t: float) -> tuple[MeanPoint, float]:
        trial = target.mean_of(mean.u + t * d, mean.s + t * ds, mean.fitted + t * df, v)
        return trial, gaussian_slope - t * bend - float(trial.e.alpha @ ds)

    trial, slope = at(1.0)
    if promised <= 4 * mean.noise:  # too close for the objective to tell: the slope is the judge
        close = trial.objective >= mean.objective - 4 * mean.noise and abs(slope) < 0.5 * promised
        return trial if close else None
    low, high, t = 0.0, np.inf, 1.0
    best: MeanPoint | None = None
    for _ in range(MOST_TRIALS):
        gain = trial.objective - mean.objective
        if gain >= ENOUGH_GAIN * t * promised and (best is None or trial.objective >= best.objective):
            best = trial
            if t == 1.0 or abs(slope) <= FLAT_ENOUGH * promised:
                return best
        if slope > 0.0 and trial.objective > -np.inf:
            low = t
        else:
            high = t
        if high - low <= 1e-3 * high:
            break
        t = 2.0 * t if high == np.inf else 0.5 * (low + high) if low > 0.0 else 0.25 * high
        trial, slope = at(t)
    return best
