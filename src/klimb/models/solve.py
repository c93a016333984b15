"""Fitting a formula's model: parameters beside the coefficients are chosen, or averaged over."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias, final

import numpy as np

from klimb.errors import InputError
from klimb.infer.loop import infer
from klimb.infer.result import Result, Status
from klimb.models.explore import SCORES, Heard, Point, axes_of, curvature, explore, find_peak
from klimb.models.formula_model import FormulaModel
from klimb.numerics.arrays import Array

HyperMode: TypeAlias = Literal["auto", "optimise", "integrate"]
MOST_INTEGRATED = 8  # parameters up to which "auto" averages over them
MOST_WORK = 3e10  # multiplications that "auto" spends on the averaging, roughly


@final
@dataclass(frozen=True, eq=False)
class Solution:
    """Fits at one or several theta, with weights that sum to one."""

    points: tuple[Point, ...]
    weights: Array
    model: FormulaModel  # at the best theta
    result: Result  # the fit there, with all its matrices
    bound: float  # on the log evidence; averaged over theta where that was done
    mode: str  # "none" (no free parameters), "optimise" or "integrate"
    quantiles: Array  # of each entry of theta, at the normal scores `SCORES`
    status: Status
    n_fits: int
    path: tuple[float, ...] = ()  # the objective in theta, as it was climbed
    covariance: Array = field(default_factory=lambda: np.zeros((0, 0)))  # of theta, where it was chosen


def solve(model: FormulaModel, y: Array, *, hyper: HyperMode = "auto", hear: Heard = lambda *_: None) -> Solution:
    """Fit ``model``; ``hear`` is told of every fit: what for, how many, of how many, the bound."""
    if hyper not in ("auto", "optimise", "integrate"):
        raise InputError('hyper must be "auto", "optimise" or "integrate"', repr(hyper), "Leave it out for auto.")
    if not model.theta.size:
        result = infer(model.latent, model.site, y, callback=lambda row: hear("fit", row.number, 0, row.bound))
        return Solution((Point.of(model, result),), np.ones(1), model, result, result.bound, "none",
                        np.zeros((0, len(SCORES))), result.status, 1)
    peak = find_peak(model, y, hear)
    status = peak.result.status if peak.converged else Status.STALLED
    if hyper == "integrate" or (hyper == "auto" and worth_integrating(model)):
        found = explore(peak, y, hear)
        if status is Status.CONVERGED:
            status = next((p.status for p in found.points if p.status is not Status.CONVERGED), status)
        return Solution(found.points, found.weights, peak.model, peak.result, found.log_evidence, "integrate",
                        found.quantiles, status, peak.n_fits + found.n_fits, peak.path)
    A = axes_of(curvature(peak, y, hear))
    covariance = A @ A.T
    spread = np.sqrt(np.diagonal(covariance))
    quantiles = peak.model.theta[:, None] + spread[:, None] * SCORES
    return Solution((Point.of(peak.model, peak.result),), np.ones(1), peak.model, peak.result, peak.result.bound,
                    "optimise", quantiles, status, peak.n_fits + 2 * len(spread), peak.path, covariance)


def worth_integrating(model: FormulaModel) -> bool:
    """Whether averaging costs little: a matter of counts, not of the clock, so that the answer is the same anywhere."""
    d, rows = model.theta.size, model.shared.rows
    if d > MOST_INTEGRATED:
        return False
    points = 12 if d == 1 else 55 if d == 2 else 2**d + 4 * d if d <= 4 else 8 * d
    work = rows.n * (rows.X.shape[1] + rows.values.shape[1] + 5.0) ** 2
    return bool(15.0 * points * work <= MOST_WORK)
