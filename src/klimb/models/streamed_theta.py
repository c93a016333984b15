"""Hyperparameters of rows that are summed: searched and integrated out on few Gaussian rows that stand for the sites.

Where q is known its sites are Gaussian, and few rows say what they do (`klimb.infer.rows.few_rows`). The evidence of
those, as a function of theta, has the value and the slope of the bound where q was found, and moves away from it to
second order as the sites would. So a search on the few rows finds a better theta without a pass, and the passes of the
next fit say whether it was one. Points of the integral take the few rows of the best theta; exact fits at the farthest
of them tell whether that is good enough.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from klimb.likelihoods import Observed, likelihood
from klimb.models.average import worth_integrating
from klimb.models.linear import LinearModel
from klimb.models.model import HyperMode, Listen
from klimb.models.passes import RowPasses, standing_for
from klimb.models.search import find_peak
from klimb.models.solution import Solution, around
from klimb.numerics.arrays import Array

ROUNDS = 8  # searches, each followed by a fit
SETTLED = 1e-4  # nats that another search may promise
SEARCH_TOL = 1e-4  # of the gradient
LIKELY = 0.02  # weight of a point, over that of the heaviest, that is looked at
AGREED = 5e-3  # nats between its bound and what few rows say, up to which they serve
COARSEST = 1e-6  # tolerance below which every point is fitted


def solve_on_sums(model: LinearModel, passes: RowPasses, data: Observed, hyper: HyperMode, tol: float,
                  listen: Listen | None) -> Solution | None:
    """The solution with theta moved on few rows; None where the model is not one for that."""
    if model.likelihood.parameters or not model.theta.size or hyper == "fixed" or tol < COARSEST:
        return None
    here, n_fits = model, 0
    for _ in range(ROUNDS):
        result = here.infer(data, tol=tol)
        n_fits += 1
        twin, seen = gaussian_twin(here, passes)
        peak = find_peak(twin, seen, tol=SEARCH_TOL, fit_tol=tol, listen=listen)
        start = twin.infer(seen, tol=tol)
        if peak.objective - (start.bound + here.log_prior()[0]) <= SETTLED:
            break
        here = model.moved(peak.model.at)
    else:
        return None
    wanted = hyper == "integrate" or (hyper == "auto" and worth_integrating(twin))
    found = around(replace(peak, model=twin, result=start), seen, integrate=wanted, listen=listen, tol=tol)
    gap = result.bound - start.bound
    if wanted and not _agrees(here, found, data, tol, gap):
        return None
    bound = found.bound + gap if found.mode == "integrate" else result.bound
    return replace(found, model=here, result=result, bound=bound, status=result.status, n_fits=n_fits + found.n_fits)


def gaussian_twin(model: LinearModel, passes: RowPasses) -> tuple[LinearModel, Observed]:
    """The model of few rows with unit noise that stand for the sites of the fit at the same theta, and their data."""
    sums = passes.near(model.at)
    assert sums is not None
    few, y = standing_for(model, sums, passes.n)
    return replace(few, likelihood=likelihood("gaussian").knowing({"scale": 1.0})), Observed(y)


def _agrees(model: LinearModel, found: Solution, data: Observed, tol: float, gap: float) -> bool:
    """Whether fits at the farthest likely points of theta have the bounds that few rows foretell."""
    components = found.components
    points = components.theta[components.weights >= LIKELY * components.weights.max()]
    for theta in _farthest(points):
        twin = found.model.moved(theta)
        foretold = twin.infer(Observed(found.result.problem.y), tol=tol).bound + gap  # type: ignore[union-attr]
        if abs(model.moved(theta).infer(data, tol=tol).bound - foretold) > AGREED:
            return False
    return True


def _farthest(points: Array) -> list[Array]:
    """Both ends of the points along each axis."""
    ends = {int(at) for column in points.T for at in (np.argmin(column), np.argmax(column))}
    return [points[k] for k in sorted(ends)]
