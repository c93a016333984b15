"""A small quasi-Newton maximiser for few parameters and expensive functions: BFGS, short, checked steps in a box."""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np

from klimb.numerics.arrays import Array
from klimb.numerics.lazy import scipy_optimize

Objective: TypeAlias = Callable[[Array], tuple[float, Array]]

LONGEST = 1.5  # of a step, in any parameter: objectives here are functions of logarithms
SUFFICIENT = 1e-4  # share of the predicted gain that a step must bring
MOST_HALVINGS = 12
MANY = 20  # parameters from which L-BFGS-B needs fewer evaluations: 52 instead of 104 for ten inducing points


class Climbed(NamedTuple):
    """Where the climb ended: the point, the value and gradient there."""

    x: Array
    value: float
    gradient: Array
    converged: bool


def climb(objective: Objective, x: Array, lower: Array, upper: Array, *, tol: float, gain: float = 0.0,
          max_iter: int = 100, curvature: Array | Callable[[Array, Array], Array | None] | None = None) -> Climbed:
    """Maximise ``objective`` (value and gradient; -inf where it cannot be computed) from ``x`` inside a box.

    Stops when no gradient into the box exceeds ``tol``, when the next step promises no more than ``gain``, or none
    gains. ``curvature`` is a first guess of minus the second derivatives, or of their matrix. Many parameters go to
    L-BFGS-B.
    """
    x = np.clip(x, lower, upper)
    if len(x) >= MANY:
        return _limited(objective, x, lower, upper, tol, max_iter)
    value, gradient = objective(x)
    guess = curvature(x, gradient) if callable(curvature) else None if curvature is None else np.diag(curvature)
    H = np.eye(len(x)) if guess is None else np.linalg.inv(guess)  # inverse of minus the Hessian
    fresh = guess is None
    for _ in range(max_iter):
        free = ~(((x <= lower) & (gradient < 0)) | ((x >= upper) & (gradient > 0)))
        if not free.any() or np.abs(gradient[free]).max() <= tol:
            return Climbed(x, value, gradient, True)
        step = np.zeros_like(x)
        step[free] = H[np.ix_(free, free)] @ gradient[free]
        if step @ gradient <= 0:  # curvature gone wrong: start it afresh
            H, fresh = np.eye(len(x)), True
            step = np.where(free, gradient, 0.0)
        elif not fresh and 0.5 * float(step @ gradient) <= gain:
            return Climbed(x, value, gradient, True)
        if fresh:  # no curvature yet: half a unit in the steepest direction, or less near the top
            step *= min(1.0, 0.5 / np.abs(step).max())
        step *= min(1.0, LONGEST / np.abs(step).max())
        found = _line(objective, x, value, gradient, step, lower, upper)
        if found is None:
            if fresh:
                return Climbed(x, value, gradient, False)
            H, fresh = np.eye(len(x)), True
            continue
        moved, new_value, new_gradient = found
        s, g = moved - x, gradient - new_gradient
        if s @ g > 1e-10 * np.linalg.norm(s) * np.linalg.norm(g):
            if fresh:
                H = np.eye(len(x)) * float(s @ g / (g @ g))
            rho = 1.0 / float(s @ g)
            left = np.eye(len(x)) - rho * np.outer(s, g)
            H = left @ H @ left.T + rho * np.outer(s, s)
            fresh = False
        x, value, gradient = moved, new_value, new_gradient
    return Climbed(x, value, gradient, False)


def _line(objective: Objective, x: Array, value: float, gradient: Array, step: Array, lower: Array,
          upper: Array) -> tuple[Array, float, Array] | None:
    """The first of ever shorter steps that gains enough."""
    for _ in range(MOST_HALVINGS):
        moved = np.clip(x + step, lower, upper)
        new_value, new_gradient = objective(moved)
        gain = float(gradient @ (moved - x))
        if np.isfinite(new_value) and new_value >= value + SUFFICIENT * gain and np.isfinite(new_gradient).all():
            return moved, new_value, new_gradient
        step = step * (0.5 if np.isfinite(new_value) else 0.2)
        if np.abs(step).max() < 1e-10:
            break
    return None


def _limited(objective: Objective, x: Array, lower: Array, upper: Array, tol: float, max_iter: int) -> Climbed:
    """The same with a curvature of limited memory."""
    best: list[tuple[float, Array, Array]] = []

    def negative(at: Array) -> tuple[float, Array]:
        value, gradient = objective(at)
        if not np.isfinite(value):  # the line search steps back
            return 1e300, np.zeros_like(at)
        if not best or value > best[0][0]:
            best[:] = [(value, at.copy(), gradient)]
        return -value, -gradient

    scipy_optimize.minimize(negative, x, jac=True, method="L-BFGS-B", bounds=list(zip(lower, upper, strict=True)),
                            options={"maxiter": max_iter, "gtol": tol, "ftol": 1e-9, "maxcor": 20})
    if not best:
        return Climbed(x, -np.inf, np.zeros_like(x), False)
    value, at, gradient = best[0]
    free = ~(((at <= lower) & (gradient < 0)) | ((at >= upper) & (gradient > 0)))
    return Climbed(at, value, gradient, bool(np.abs(gradient[free]).max(initial=0.0) <= tol))
