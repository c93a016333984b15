"""Greedy steps on a grid of a box, where the conditions of [G] Theorem 1 hold and its rate can be checked in numbers.

Densities are vectors of values at the cells of a grid, each of volume ``cell``. The base family is a finite list of
them, so that the infimum of Eq. (2) over components and weights is computed, not estimated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np

from klimb.boosting.paper import bracketed_newton
from klimb.errors import InputError
from klimb.numerics.arrays import Array

MOST_STEPS = 20_000  # towards the best mixture of the whole family


@final
@dataclass(frozen=True, eq=False)
class GreedyTrace:
    """KL(q_t || p) after each step, the best there is, eps_t, the floor a of the densities, and the rate's constant."""

    divergence: Array
    best: float
    tolerance: Array  # eps_t of [G] Eq. (2): how far each step stayed behind the best step
    floor: float
    constant: float  # C of the bound 4 C / (t + 2) on the excess: the largest |h - q|^2 / a

    @property
    def excess(self) -> Array:
        """KL(q_t || p) less that of the best mixture."""
        return self.divergence - self.best


def divergence(q: Array, p: Array, cell: float) -> float:
    """KL(q || p)."""
    return float(cell * np.sum(q * (np.log(q) - np.log(p))))


def smoothness(q1: Array, q2: Array, p: Array, cell: float) -> tuple[float, float]:
    """Both sides of [G] Eq. (6), strong smoothness with the constant 1 / a; the left one is never larger.

    >>> q1, q2, p = (np.array([0.5, 0.5]), np.array([0.8, 0.2]), np.array([0.6, 0.4]))
    >>> left, right = smoothness(q1, q2, p, 1.0)
    >>> left <= right
    True
    """
    a, change = float(min(q1.min(), q2.min())), q2 - q1
    right = cell * float(change @ (np.log(q1) - np.log(p))) + cell * float(change @ change) / a
    return divergence(q2, p, cell) - divergence(q1, p, cell), right


def mass_set(p: Array, cell: float, epsilon: float) -> tuple[Array, float]:
    """The set of highest density that holds 1 - ``epsilon`` of ``p``, as a mask, and the smallest density in it.

    [G] below Theorem 1: densities on R^D have no floor, but on such a set they do.

    >>> mask, a = mass_set(np.array([0.1, 0.5, 0.3, 0.1]), 1.0, 0.2)
    >>> mask.tolist(), a
    ([False, True, True, False], 0.3)
    """
    if not 0.0 < epsilon < 1.0:
        raise InputError("epsilon must lie between 0 and 1", f"{epsilon}", "0.01 leaves out a hundredth of the mass.")
    order = np.argsort(-p, kind="stable")
    held = np.cumsum(p[order]) * cell
    n = int(np.searchsorted(held, (1.0 - epsilon) * held[-1] - 1e-12)) + 1
    mask = np.zeros(len(p), dtype=bool)
    mask[order[:n]] = True
    return mask, float(p[mask].min())


def greedy(p: Array, family: Array, cell: float, n_steps: int,
           choose: Literal["best", "gradient"] = "best") -> GreedyTrace:
    """Mixtures of the rows of ``family`` for ``p``, a component and its weight at a time: [G] Eq. (2).

    "best" takes the component and the weight that lower KL(q || p) most, so that eps_t = 0. "gradient" takes the
    component along the functional gradient log q - log p ([G] Eq. (3)) and then its best weight, as [G]'s algorithms
    do: what it loses by that is eps_t.
    """
    if not (p.min() > 0 and family.min() > 0):
        raise InputError("densities must be positive on the whole grid", f"{min(p.min(), family.min()):.3g}",
                         "Restrict them to a box where they have a floor, as mass_set does.")
    q, values, tolerance = family[0], [divergence(family[0], p, cell)], [0.0]
    for _ in range(n_steps):
        after = [_mixed(q, h, p, cell) for h in family]
        best = int(np.argmin([value for _, value in after]))
        taken = best if choose == "best" else int(np.argmin(family @ (np.log(q) - np.log(p))))
        alpha, value = after[taken]
        q = (1.0 - alpha) * q + alpha * family[taken]
        values.append(value)
        tolerance.append(value - after[best][1])
    a = float(family.min())
    spread = max(float(cell * np.sum((one - other) ** 2)) for one in family for other in family)
    return GreedyTrace(np.array(values), _best_mixture(p, family, cell), np.array(tolerance), a, spread / a)


def _mixed(q: Array, h: Array, p: Array, cell: float) -> tuple[float, float]:
    """The best weight of ``h`` beside ``q`` and the divergence there."""
    def derivatives(alpha: float) -> tuple[float, float]:
        mix = (1.0 - alpha) * q + alpha * h
        return float(cell * np.sum((h - q) * np.log(mix / p))), float(cell * np.sum((h - q) ** 2 / mix))

    alpha = bracketed_newton(derivatives)
    return alpha, divergence((1.0 - alpha) * q + alpha * h, p, cell)


def _best_mixture(p: Array, family: Array, cell: float) -> float:
    """min KL(q || p) over all mixtures, a convex problem in weights that are exponentials, divided by their sum."""
    from scipy.optimize import minimize

    def value(z: Array) -> tuple[float, Array]:
        w = np.exp(z - np.logaddexp.reduce(z))
        slope = cell * family @ np.log(w @ family / p)
        return divergence(w @ family, p, cell), w * (slope - w @ slope)

    options: Any = {"maxiter": MOST_STEPS, "maxfun": 2 * MOST_STEPS, "ftol": 0.0, "gtol": 1e-11, "maxcor": 50}
    return float(minimize(value, np.zeros(len(family)), jac=True, method="L-BFGS-B", options=options).fun)
