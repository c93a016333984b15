"""Hyperparameters of rows that are summed: searched and integrated out on few Gaussian rows that stand for the sites.

Where q is known its sites are Gaussian, and few rows say what they do (`klimb.infer.rows.few_rows`). The evidence of
those, as a function of theta, has the value and the slope of the bound where q was found, and moves away from it to
second order as the sites would. So a search on the few rows finds a better theta without a pass, and the passes of the
next fit say whether it was one. Points of the integral take the few rows of the best theta; fits by passes at the
farthest of them tell whether that is good enough, or by how much it has to be put right.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self
from weakref import WeakKeyDictionary

import numpy as np

from klimb.infer.loop import Callback
from klimb.infer.newton import anderson_weights
from klimb.infer.result import Result
from klimb.latents.base import Posterior
from klimb.likelihoods import Observed
from klimb.models.average import worth_integrating
from klimb.models.linear import LinearModel
from klimb.models.model import HyperMode, Listen
from klimb.models.passes import RowPasses, gaussian_twin
from klimb.models.search import find_peak
from klimb.models.solution import Solution, around
from klimb.models.streamed_levels import along, exact_of
from klimb.numerics.arrays import Array

ROUNDS = 16  # searches, each followed by a fit
MEMORY, FARTHEST = 3, 3.0  # of them that the next theta is extrapolated from, and how far that may go
SETTLED = 1e-4  # nats that another search may promise
SEARCH_TOL = 1e-4  # of the gradient
LIKELY = 0.02  # weight of a point, over that of the heaviest, that is looked at
AGREED = 5e-3  # nats between its bound and what few rows say, up to which they serve
MOST_TILTED, SETTLED_TILT = 1.0, 0.02  # nats that a cubic along each axis may put right, and may leave
COARSEST = 1e-6  # tolerance below which every point is fitted
ROUGH, FINER = 0.3, 0.03  # tolerance of fits while theta moves, and how much finer once it does not
CLOSE = 1e-2  # of fits whose bound is all that is asked for


def solve_on_sums(model: LinearModel, passes: RowPasses, data: Observed, hyper: HyperMode, tol: float,
                  listen: Listen | None) -> Solution | None:
    """The solution with theta moved on few rows; None where the model is not one for that."""
    if model.likelihood.parameters or not model.theta.size or hyper == "fixed" or tol < COARSEST:
        return None
    here, n_fits, asked = model, 0, max(tol, ROUGH)
    moves: list[tuple[Array, Array]] = []  # theta, and where the few rows of its fit would have it
    for _ in range(ROUNDS):
        result = here.infer(data, tol=asked)
        n_fits += 1
        twin, seen = gaussian_twin(here, passes.ends[result.posterior], passes.n)
        peak = find_peak(twin, seen, tol=SEARCH_TOL, fit_tol=tol, listen=listen)
        start = twin.infer(seen, tol=tol)
        settled = peak.objective - (start.bound + here.log_prior()[0]) <= SETTLED
        if settled and asked <= tol:
            break
        if settled:
            asked = max(tol, FINER * asked)
            continue
        moves = [*moves, (here.at, peak.model.at)][-min(MEMORY, model.theta.size + 1) :]
        here = model.moved(_extrapolated(moves, model.theta.lower, model.theta.upper))
    else:
        return None
    wanted = hyper == "integrate" or (hyper == "auto" and worth_integrating(twin))
    gap = result.bound - start.bound
    found = around(replace(peak, model=twin, result=start), seen, integrate=wanted, listen=listen, tol=tol)
    if wanted:
        ends = _farthest(found)
        before = exact_of(here, passes, result)[1]
        off, gains, there = _misses(here, twin, seen, data, ends, tol, gap, before)
        if np.abs([off, gains]).max() > AGREED:
            tilted = replace(twin, passes=TiltedFits.through(here.at, ends, off, gains, seen, passes.n))
            peak = find_peak(tilted, seen, tol=SEARCH_TOL, fit_tol=tol, listen=listen)
            found = around(peak, seen, integrate=True, listen=listen, tol=tol)
            alone = TiltedFits.through(here.at, ends, 0.0 * off, gains, seen, passes.n)  # evidence beyond bounds
            shares = np.log(found.components.weights) - alone.at(found.components.theta)
            found = replace(found, bound=found.bound + float(np.logaddexp.reduce(shares)))
            more = _farthest(found)
            more = more[((more < ends.min(axis=0)) | (more > ends.max(axis=0))).any(axis=1)]  # what was not looked at
            left = np.sum(_misses(here, tilted, seen, data, more, tol, gap, before)[:2], axis=0)
            if np.abs(off).max() > MOST_TILTED or np.abs(left).max(initial=0.0) > SETTLED_TILT:
                return None
            if peak.objective - (start.bound + here.log_prior()[0]) > SETTLED:
                here = model.moved(peak.model.at)
                result = here.infer(data, tol=max(tol, CLOSE))
        few = twin.moved(here.at).infer(seen, tol=tol).posterior
        pair = few.latent.detach(few), exact_of(here, passes, result)[0]
        shown = along(found.components, here.at, pair, ends, there)
        found = replace(found, components=shown)
    bound = found.bound + gap if found.mode == "integrate" else result.bound
    return replace(found, model=here, result=result, bound=bound, status=result.status, n_fits=n_fits + found.n_fits)


def _extrapolated(moves: Sequence[tuple[Array, Array]], lower: Array, upper: Array) -> Array:
    """Where moves of theta lead in the end: Anderson's combination of their ends, the last one where that is far."""
    ends = np.array([end for _, end in moves])
    if len(moves) > 1:
        weights = anderson_weights(ends - np.array([begin for begin, _ in moves]))
        if np.abs(weights).max() <= FARTHEST:
            return np.asarray(np.clip(weights @ ends, lower, upper))
    return np.asarray(ends[-1])


@dataclass(frozen=True, eq=False)
class TiltedFits:
    """Fits of few rows, in the place of `RowPasses`, whose bound is put right by a cubic along each axis of theta."""

    data: Observed
    n: int
    centre: Array
    slope: Array
    square: Array
    cube: Array
    slopes: WeakKeyDictionary[Posterior, Array] = field(default_factory=WeakKeyDictionary)

    @classmethod
    def through(cls, centre: Array, ends: Array, off: Array, gains: Array, data: Observed, n: int) -> Self:
        """The one that has ``off`` and ``gains`` at both ends of every axis; what bounds are off has no slope here."""
        slope, square, cube = np.zeros((3, len(centre)))
        for j in range(len(centre)):
            own = slice(2 * j, 2 * j + 2)
            t = ends[own, j] - centre[j]
            if t.all() and t[0] != t[1]:
                bend, cube[j] = np.linalg.solve(np.column_stack([t**2, t**3]), off[own])
                slope[j], square[j] = np.linalg.solve(np.column_stack([t, t**2]), gains[own])
                square[j] += bend
        return cls(data, n, centre, slope, square, cube)

    def infer(self, model: LinearModel, tol: float, max_iter: int, callback: Callback | None) -> Result:
        """The fit of few rows, with the bound put right."""
        result = replace(model, passes=None).infer(self.data, tol=tol, max_iter=max_iter, callback=callback)
        t = model.at - self.centre
        self.slopes[result.posterior] = self.slope + 2.0 * self.square * t + 3.0 * self.cube * t**2
        return replace(result, bound=result.bound + float(self.at(model.at)))

    def at(self, theta: Array) -> Any:
        """The cubic, at one or at several points."""
        t = theta - self.centre
        return t @ self.slope + t**2 @ self.square + t**3 @ self.cube

    def slopes_at(self, posterior: Posterior) -> Array:
        """Of the cubic, at the theta of a fit."""
        return self.slopes[posterior]


def _misses(model: LinearModel, twin: LinearModel, seen: Observed, data: Observed, points: Array, tol: float,
            gap: float, before: float) -> tuple[Array, Array, list[tuple[Any, Any]]]:
    """What the bound of fits by passes has more than few rows predict, at ``points``; the evidence; q of both."""
    off, gains, there = *np.zeros((2, len(points))), []
    for k, theta in enumerate(points):
        here = model.moved(theta)
        found, few = here.infer(data, tol=max(tol, CLOSE)), twin.moved(theta).infer(seen, tol=tol)
        exact, gain = exact_of(here, here.passes, found, steps=1)
        off[k], gains[k] = found.bound - few.bound - gap, gain - before
        there.append((few.posterior.latent.detach(few.posterior), exact))
    return off, gains, there


def _farthest(found: Solution) -> Array:
    """The likely points of theta at both ends of each axis."""
    components = found.components
    points = components.theta[components.weights >= LIKELY * components.weights.max()]
    return np.array([points[at(column)] for column in points.T for at in (np.argmin, np.argmax)])
