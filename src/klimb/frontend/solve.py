"""Fitting a formula's model: parameters beside the coefficients are chosen, or averaged over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, final

import numpy as np

from klimb.errors import InputError
from klimb.frontend.model import FormulaModel
from klimb.infer.result import Result, Status
from klimb.numerics.arrays import Array

HyperMode: TypeAlias = Literal["auto", "optimise", "integrate"]
MOST_INTEGRATED = 8  # parameters up to which "auto" averages over them
FLATTEST = 0.05  # smallest curvature taken at face value
MOST_WORK = 3e10  # multiplications that "auto" spends on the averaging, roughly


@final
@dataclass(frozen=True, eq=False)
class Solution:
    """Fits at one or several theta, with weights that sum to one."""

    models: tuple[FormulaModel, ...]
    results: tuple[Result, ...]
    weights: Array
    best: int  # index of the fit at the best theta
    bound: float  # on the log evidence; averaged over theta where that was done
    mode: str  # "none" (no free parameters), "optimise" or "integrate"
    curvature: Array  # of the objective in theta at its best: minus the Hessian
    status: Status
    n_fits: int

    @property
    def spread(self) -> Array:
        """Standard deviation of every parameter in theta by the curvature at the best, 0 where it is not known."""
        model = self.models[self.best]
        out = np.zeros(len(model.full))
        if self.curvature.size:
            values, vectors = np.linalg.eigh(self.curvature)
            out[model.shared.free] = np.sqrt((vectors**2 / np.maximum(values, FLATTEST)).sum(axis=1))
        return out


def solve(model: FormulaModel, y: Array, *, hyper: HyperMode = "auto", callback: Any = None) -> Solution:
    """Fit ``model``; ``callback`` hears of every fit."""
    if hyper not in ("auto", "optimise", "integrate"):
        raise InputError('hyper must be "auto", "optimise" or "integrate"', repr(hyper), "Leave it out for auto.")
    if not model.theta.size:
        result = model.fit(y)
        return Solution((model,), (result,), np.ones(1), 0, result.bound, "none", np.zeros((0, 0)), result.status, 1)
    from klimb.infer.evidence import optimise
    from klimb.infer.integrate import _curvature, integrate

    best = optimise(model, y)
    if hyper == "integrate" or (hyper == "auto" and worth_integrating(model)):
        found = integrate(model, y, optimum=best)
        order = int(np.argmax([m is best.model for m in found.models]))
        worst = next((r.status for r in found.results if not r.converged), best.status)
        return Solution(found.models, found.results, found.weights, order, found.log_evidence, "integrate",
                        np.zeros((0, 0)), worst, best.n_fits + len(found.models))
    status = best.status if best.result.converged else best.result.status
    return Solution((best.model,), (best.result,), np.ones(1), 0, best.bound, "optimise", _curvature(best, y), status,
                    best.n_fits)


def worth_integrating(model: FormulaModel) -> bool:
    """Whether averaging costs little: a matter of counts, not of the clock, so that the answer is the same anywhere."""
    d, rows = model.theta.size, model.shared.rows
    if d > MOST_INTEGRATED:
        return False
    points = 9 if d == 1 else 45 if d == 2 else 2**d if d <= 4 else 4 * d
    work = rows.n * (rows.X.shape[1] + rows.values.shape[1] + 5.0) ** 2
    return bool(15.0 * points * work <= MOST_WORK)
