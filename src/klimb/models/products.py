"""Linear models of sparse rows too many to factorise: fits by products alone, and the scale of the prior from them.

The prior scale maximises the bound, as it does everywhere. The bound is an estimate here, but one with the same random
vectors at every scale: as a function of the scale it is smooth, and a few parabolas find its top. (Its gradient would
need the sum of all variances, whose errors do not cancel.) Parameters of the likelihood maximise its expectation under
the present posterior, in turn with the scale.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from klimb.errors import InputError
from klimb.infer.loop import infer
from klimb.infer.matrixfree.outer import DoubleLoop
from klimb.infer.result import Result
from klimb.latents.base import Posterior
from klimb.latents.costs import Shape, dual, primal
from klimb.likelihoods import Observed
from klimb.models.average import one_point
from klimb.models.linear import LinearModel
from klimb.models.plan import readable
from klimb.models.solution import Solution
from klimb.numerics.arrays import Array
from klimb.numerics.quasi_newton import climb
from klimb.sites.base import Site

PATIENCE = 60.0  # seconds of one exact fit, by the plan, from which products take over
MEMORY = 8e9  # bytes of the matrices of an exact fit
ACCURACY = 0.1, 0.03  # of variances, during the search and at its end
ROUGH_TOL = 1e-3  # of the fits during the search
STRIDE = float(np.log(2.0))  # of the search in the log of the scale
ENOUGH = 0.05  # change of a log parameter that ends it
MOST_ROUNDS = 5  # of scale and likelihood in turn


def too_large(X: Any, name: str, site: Site) -> bool:
    """Whether the exact engines would take too long, or too much memory, for these rows; then products are enough.

    An `InputError` where products cannot take over, because the likelihood is of several latent values or has no bound
    that they could raise, and the memory is not there.
    """
    if not hasattr(X, "tocsr"):
        return False
    N, D = X.shape
    shape = Shape(N, D, max(X.nnz, 1), dense=False)
    exact = min(primal(shape), dual(shape), key=lambda option: option.seconds)
    outputs = site.n_outputs
    size = outputs * exact.bytes
    if outputs == 1 and site.log_concave:
        return exact.seconds > PATIENCE or size > MEMORY
    if size > MEMORY:
        what = (f"{outputs} classes in one model" if outputs > 1 else f"the family {name}, which is not log-concave,")
        raise InputError(f"{what} must fit into {readable(MEMORY)} of dense matrices",
                         f"{readable(size)} for {N:,} rows and {D:,} columns",
                         'Use multi_class="ovr".' if outputs > 1 else "Use another family, or fewer columns.")
    return False


def solve_by_products(model: LinearModel, data: Observed, *, tol: float) -> Solution:
    """The model at its best prior scale and parameters of the likelihood, and the fit there."""
    search = _Search(model, data)
    result = search.run(tol=tol)
    mode = "optimise" if model.theta.size else "fixed"
    return Solution(search.model, result, one_point(search.model, result), result.bound, mode, result.status,
                    search.n_fits)


class _Search:
    """Fits at one theta after the other, each from the last."""

    def __init__(self, model: LinearModel, data: Observed) -> None:
        self.data, self.n_fits = data, 0
        (scale,) = model.terms[-1].parameters
        self._scale, self._own = model.theta.slice_of(scale), model.likelihood.parameters
        self.model = model.moved(self._at(model, _unit_scale(model)))
        self._last: Posterior | None = None
        self._known: dict[float, float] = {}  # objectives at logs of the scale, for the present likelihood

    def _at(self, model: LinearModel, log_scale: float) -> Array:
        theta = model.at.copy()
        theta[self._scale] = log_scale
        return theta

    def run(self, *, tol: float) -> Result:
        """Find the scale and the parameters of the likelihood, and return the fit there."""
        for _ in range(MOST_ROUNDS):
            before = self.model.at
            if self._scale.stop > self._scale.start:
                best = top_of(self._objective, float(before[self._scale][0]), STRIDE, ENOUGH)
                self.model = self.model.moved(self._at(self.model, best))
            if not self._own:
                break
            self._improve_likelihood()
            if np.abs(self.model.at - before).max(initial=0.0) < ENOUGH:
                break
        return self._fit(self.model, ACCURACY[1], tol)

    def _objective(self, log_scale: float) -> float:
        """The bound with the log density of theta."""
        if log_scale not in self._known:
            here = self.model.moved(self._at(self.model, log_scale))
            self._known[log_scale] = self._fit(here, ACCURACY[0], ROUGH_TOL).bound + here.log_prior()[0]
        return self._known[log_scale]

    def _fit(self, model: LinearModel, accuracy: float, tol: float) -> Result:
        result = infer(model.latent, model.site(self.data), self.data.y, step=DoubleLoop(accuracy=accuracy), tol=tol,
                       start=self._last)
        self._last, self.n_fits = result.posterior, self.n_fits + 1
        return result

    def _improve_likelihood(self) -> None:
        """Parameters that maximise the expected log likelihood and their prior, a few times in turn with the fit."""
        for _ in range(MOST_ROUNDS):
            posterior = self._fit(self.model, ACCURACY[0], ROUGH_TOL).posterior
            found = self._better(posterior)
            moved = np.abs(found.at - self.model.at).max()
            self.model = found
            if moved < 0.2 * ENOUGH:
                break
        self._known = {}

    def _better(self, posterior: Posterior) -> LinearModel:
        """The model with the best parameters of the likelihood, under the posterior as it is."""
        model, data = self.model, self.data
        free = np.concatenate([np.arange(model.theta.size)[model.theta.slice_of(block)] for block in self._own])

        def height(own: Array) -> tuple[float, Array]:
            theta = model.at.copy()
            theta[free] = own
            here = model.moved(theta)
            site, (prior, slope) = here.site(data), here.log_prior()
            value = float((site.oracle(data.y, posterior.m, posterior.v).value + site.constant(data.y)).sum())
            parts = here.likelihood.gradient(here.theta.of_owner(theta, self._own), data, posterior.m, posterior.v)
            return value + prior, np.concatenate(parts) + slope[free]

        best = climb(height, model.at[free], model.theta.lower[free], model.theta.upper[free], tol=1e-3, gain=1e-6)
        theta = model.at.copy()
        theta[free] = best.x
        return model.moved(theta)


def _unit_scale(model: LinearModel) -> float:
    """Log of the prior scale that lets f vary by one or so. Wide priors make slow fits: the search comes from below."""
    assert model.rows is not None
    assert model.inputs is not None
    square = float(np.sum(model.rows.X.data**2)) / model.rows.n - model.inputs.intercept
    return float(model.terms[-1].parameters[0].start.sum() - 0.5 * np.log(max(square, 1e-12)))


def top_of(height: Callable[[float], float], start: float, stride: float, enough: float, most: int = 16) -> float:
    """Where a smooth function of one variable is largest: uphill in strides, then by parabolas through the best three.

    >>> places = []
    >>> round(top_of(lambda x: places.append(x) or -(x - 2.0) ** 2, 0.0, 0.7, 0.05), 6), len(places)
    (2.0, 6)
    """
    known = {start: height(start), start + stride: height(start + stride)}
    while len(known) < most:
        best = max(known, key=lambda x: known[x])
        left, right = (sorted(x for x in known if (x > best) == above and x != best) for above in (False, True))
        if not left or not right:
            known[best + (stride if left else -stride)] = height(best + (stride if left else -stride))
            continue
        peak = _parabola(known, left[-1], best, right[0])
        if abs(peak - best) < enough:
            return peak
        known[peak] = height(peak)
    return max(known, key=lambda x: known[x])


def _parabola(known: dict[float, float], left: float, best: float, right: float) -> float:
    """The top of the parabola through three points, the middle one of which is highest."""
    rise, fall = (known[best] - known[left]) / (best - left), (known[right] - known[best]) / (right - best)
    bend = (fall - rise) / (right - left)
    return 0.5 * (left + best) - 0.5 * rise / bend if bend < 0.0 else best
