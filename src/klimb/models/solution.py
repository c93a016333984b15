"""From a model and data to a solution: hyperparameters held, chosen or integrated out."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import numpy as np

from klimb.errors import KlimbError, require
from klimb.infer.result import Result, Status
from klimb.latents.base import Posterior
from klimb.likelihoods import Observed
from klimb.models.average import Averaged, chosen, integrated, one_point, spread_around, worth_integrating
from klimb.models.components import Components
from klimb.models.model import HyperMode, Listen, Model, Progress
from klimb.models.search import USUAL_TOL, Evaluator, Peak, Stopped, find_peak
from klimb.models.settle import SEARCH_TOL, Settled, settled
from klimb.numerics.arrays import as_float
from klimb.numerics.dense import threads_for

MODES = ("auto", "optimise", "integrate", "fixed")


@dataclass(frozen=True, eq=False)
class Solution:
    """The components, the model at the best theta, and the fit there with all its matrices."""

    model: Any
    result: Result
    components: Components
    bound: float  # on the log evidence; over all theta where those were integrated out
    mode: str  # "fixed", "optimise" or "integrate"
    status: Status
    n_fits: int
    path: tuple[float, ...] = ()  # the objective in theta, as it was climbed

    @classmethod
    def held(cls, model: Model, result: Result) -> Self:
        """Of a fit at hyperparameters that are held."""
        return cls(model, result, one_point(model, result), result.bound, "fixed", result.status, 1)


@threads_for(0)
def solve(model: Model, data: Observed, *, hyper: HyperMode = "auto", start: Posterior | None = None,
          tol: float = 1e-6, max_iter: int = 500, listen: Listen | None = None, restarts: int = 0, seed: int = 0,
          search_tol: float = 1e-2, search_iter: int = 200, spread: bool = True,
          begun: Settled | None = None) -> Solution:
    """Fit ``model``; ``listen`` is told of every fit and stops the work by returning False.

    A model that settles moves its scale with loose fits first; ``begun`` is some of that. Without ``spread`` the
    uncertainty of hyperparameters that are chosen is left for later: it costs two fits for each.
    """
    require(hyper in MODES, 'hyper must be "auto", "optimise", "integrate" or "fixed"', repr(hyper),
            "Leave it out for the default.")
    require(as_float(tol, "tol", ndim=0) > 0, "tol must be positive", tol, "The default is 1e-6.")
    if hyper == "fixed" or not model.theta.size:
        def fitted(model: Model, start: Posterior | None) -> Result:
            return model.infer(data, start=start, tol=tol, max_iter=max_iter, callback=_each_iteration(listen))

        result = fitted(model, start)
        while result.status is not Status.STOPPED and (finer := model.finer(result.posterior)) is not None:
            model, result = finer, fitted(finer, result.posterior)
        return Solution.held(model, result)
    few = model.reduced(data)
    if few is not None:
        found = solve(*few, hyper=hyper, tol=tol, max_iter=max_iter, listen=listen, restarts=restarts, seed=seed,
                      search_tol=search_tol, search_iter=search_iter, spread=spread)
        return _of_all_rows(found, model.moved(found.model.at), data, tol)
    curvature, before, peak = None, 0, None
    if model.settles:
        begun = settled(Settled(model, start) if begun is None else begun, data, max(tol, USUAL_TOL), listen)
        model, start, curvature, before = begun.model, begun.posterior, begun.curvature, begun.n_fits
        search_tol = min(search_tol, SEARCH_TOL)
        if begun.result is not None and tol >= USUAL_TOL:
            slope = np.array([begun.before[1] if begun.before is not None else 0.0])
            peak = Peak(model, begun.result, begun.path[-1], begun.result.status, slope, before, begun.path)
    if peak is None:
        search = partial(find_peak, data=data, tol=search_tol, fit_tol=tol, max_iter=search_iter, fit_iter=max_iter,
                         restarts=restarts, seed=seed, start=start, listen=listen, curvature=curvature)
        other = model.elsewhere(data)
        peak = search(model) if other is None else _higher(search, model, other)
        while peak.status is not Status.STOPPED and (finer := peak.model.finer(peak.result.posterior)) is not None:
            before += peak.n_fits
            peak = search(finer, start=peak.result.posterior)
        peak = replace(peak, n_fits=peak.n_fits + before)
    wanted = hyper == "integrate" or (hyper == "auto" and worth_integrating(model))
    peak = peak if wanted or spread else replace(peak, sites=None)  # vectors of all rows that nobody asks for again
    return around(peak, data, integrate=wanted, spread=spread, listen=listen, tol=tol)


def _higher(search: Callable[[Model], Peak], model: Model, other: Model) -> Peak:
    """The higher peak of two climbs. That from the units of the data stands unless the model's own converged to more.

    Far from these units one may have too few digits to begin with, or a bound that is made up by rounding.
    """
    found: list[Peak | None] = [None, None]
    for number, begin in enumerate((model, other)):
        with suppress(KlimbError):
            found[number] = peak = search(begin)
            if peak.status is Status.STOPPED:
                return peak
    own, there = found
    if own is None or there is None:
        return own or there or search(model)  # which says why
    best = own if own.converged and own.objective > there.objective else there
    return replace(best, n_fits=own.n_fits + there.n_fits)


@threads_for(0)
def around(peak: Peak, data: Observed, *, integrate: bool, spread: bool = True,
           listen: Listen | None = None, tol: float = 1e-6) -> Solution:
    """The solution from a peak that has been found."""
    if not (integrate or spread):
        return _at_peak(peak, peak.status, peak.n_fits)
    few = peak.model.reduced(data)
    if few is not None:
        here = replace(peak, model=few[0], result=few[0].infer(few[1], tol=tol), sites=None)
        found = around(here, few[1], integrate=integrate, listen=listen, tol=tol)
        return _of_all_rows(found, peak.model.moved(found.model.at), data, tol)
    evaluate = Evaluator(peak.model, data, listen=listen, start=peak.result.posterior, tol=tol, sites=peak.sites)
    evaluate.follow(peak.result)
    mode = "integrate" if integrate else "optimise"
    try:
        averaged: Averaged = (integrated if integrate else chosen)(peak, evaluate)
    except Stopped:
        return _at_peak(peak, Status.STOPPED, peak.n_fits + evaluate.n_fits)
    peak = peak if averaged.peak is None else averaged.peak
    return Solution(peak.model, peak.result, averaged.components, averaged.log_evidence, mode, averaged.status,
                    peak.n_fits + evaluate.n_fits, peak.path)


@threads_for(0)
def spread_of(peak: Peak, components: Components, data: Observed) -> Components:
    """``components`` of the peak alone with the spread of the hyperparameters there."""
    few = peak.model.reduced(data)
    if few is not None:
        peak, data = replace(peak, model=few[0], result=few[0].infer(few[1]), sites=None), few[1]
    quantiles, covariance = spread_around(peak, Evaluator(peak.model, data, start=peak.result.posterior))
    plain = components.uncorrected
    plain = plain if plain is None else replace(plain, quantiles=quantiles, covariance=covariance)
    return replace(components, quantiles=quantiles, covariance=covariance, uncorrected=plain)


def _of_all_rows(found: Solution, model: Model, data: Observed, tol: float) -> Solution:
    """The solution of few rows that say what all do, with the fit of all of them at the best theta."""
    result = model.infer(data, tol=tol)
    bound = found.bound if found.mode == "integrate" else result.bound
    return replace(found, model=model, result=result, bound=bound, n_fits=found.n_fits + 1)


def _at_peak(peak: Peak, status: Status, n_fits: int) -> Solution:
    return Solution(peak.model, peak.result, one_point(peak.model, peak.result), peak.result.bound, "optimise", status,
                    n_fits, peak.path)


def _each_iteration(listen: Listen | None) -> Any:
    if listen is None:
        return None
    return lambda row: listen(Progress("fit", row.number, 0, row.bound))
