"""Linear predictors of sparse rows too many to factorise: fits by products alone, and the scale of the prior from them.

The scale of the coefficients maximises the bound, as it does in `klimb.sklearn.linear`. The bound is an estimate here,
but one with the same random vectors at every scale: as a function of the scale it is smooth, and a few parabolas find
its top. (Its gradient would need the sum of all variances, whose errors do not cancel.) Parameters of the likelihood
maximise its expectation under the present posterior, in turn with the scale.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import numpy as np

from klimb.errors import InputError
from klimb.infer.loop import infer
from klimb.infer.matrixfree.outer import DoubleLoop
from klimb.infer.matrixfree.plan import plan, readable
from klimb.infer.result import Result
from klimb.latents.base import Posterior
from klimb.latents.implicit import Implicit
from klimb.numerics.arrays import Array
from klimb.sklearn.likelihood import Likelihood
from klimb.sklearn.linear import INTERCEPT, SCALE_PRIOR
from klimb.sklearn.rows import Rows

PATIENCE = 60.0  # seconds of one exact fit, by the plan, from which products take over
MEMORY = 8e9  # bytes of the matrices of an exact fit
ACCURACY = 0.1, 0.03  # of variances, during the search and at its end
ROUGH_TOL = 1e-3  # of the fits during the search
STRIDE = float(np.log(2.0))  # of the search in the log of the scale
ENOUGH = 0.05  # change of a log parameter that ends it
MOST_ROUNDS = 5  # of scale and likelihood in turn


def too_large(rows: Rows, likelihood: Likelihood) -> bool:
    """Whether the exact engines would take too long, or too much memory, for these rows; then products are enough.

    An `InputError` where products cannot take over, because the likelihood is of several latent values or has no bound
    that they could raise, and the memory is not there.
    """
    if not hasattr(rows.X, "tocsr"):
        return False
    N, D = rows.X.shape
    costs = plan(N, D, max(rows.X.nnz, 1), memory=np.inf)
    exact = min((option for option in costs.options if option.exact), key=lambda option: option.seconds)
    site = likelihood.plain
    size = site.n_outputs * exact.bytes
    if site.n_outputs == 1 and site.log_concave:
        return exact.seconds > PATIENCE or size > MEMORY
    if size > MEMORY:
        what = (f"{site.n_outputs} classes in one model" if site.n_outputs > 1 else
                f"the family {likelihood.family.name}, which is not log-concave,")
        raise InputError(f"{what} must fit into {readable(MEMORY)} of dense matrices",
                         f"{readable(size)} for {N:,} rows and {D:,} columns",
                         'Use multi_class="ovr".' if site.n_outputs > 1 else "Use another family, or fewer columns.")
    return False


@final
class Search:
    """Fits at one scale after the other, each from the last; ``scale`` is fixed where it was given."""

    def __init__(self, X: Any, rows: Rows, likelihood: Likelihood, centre: float | None, scale: float | None) -> None:
        self.likelihood, self.n_fits = likelihood, 0
        self.scale = scale or _unit_scale(X, centre is not None)
        self._X, self._centre, self._given = X, centre, scale is not None
        self._y = likelihood.site.validate(likelihood.scaled(rows.y))
        self._last: Posterior | None = None
        self._known: dict[float, float] = {}  # bounds at logs of the scale, for the present likelihood

    def run(self, *, tol: float) -> Result:
        """Find the scale and the parameters of the likelihood, and return the fit there."""
        for _ in range(MOST_ROUNDS):
            before = np.append(self.likelihood.theta, np.log(self.scale))
            if not self._given:
                self.scale = float(np.exp(top_of(self.bound_at, np.log(self.scale), STRIDE, ENOUGH)))
            if not self.likelihood.learn:
                break
            self._improve_likelihood()
            if np.abs(np.append(self.likelihood.theta, np.log(self.scale)) - before).max() < ENOUGH:
                break
        return self._fit(self.scale, ACCURACY[1], tol)

    def first_bound(self) -> float:
        """The bound where the search begins."""
        return self.bound_at(float(np.log(self.scale)))

    def bound_at(self, log_scale: float) -> float:
        """The bound with the log density of the scale's logarithm."""
        if log_scale not in self._known:
            scale = float(np.exp(log_scale))
            bound = self._fit(scale, ACCURACY[0], ROUGH_TOL).bound
            self._known[log_scale] = bound + SCALE_PRIOR.log_density(scale) + log_scale
        return self._known[log_scale]

    def _fit(self, scale: float, accuracy: float, tol: float) -> Result:
        mean, variances = np.zeros(self._X.shape[1]), np.full(self._X.shape[1], scale**2)
        if self._centre is not None:
            mean[0], variances[0] = self._centre, INTERCEPT**2
        latent = Implicit(self._X, mean=mean, cov=variances)
        result = infer(latent, self.likelihood.site, self._y, step=DoubleLoop(accuracy=accuracy), tol=tol,
                       start=self._last)
        self._last, self.n_fits = result.posterior, self.n_fits + 1
        return result

    def _improve_likelihood(self) -> None:
        """Parameters that maximise the expected log likelihood and their prior, a few times in turn with the fit."""
        for _ in range(MOST_ROUNDS):
            posterior = self._fit(self.scale, ACCURACY[0], ROUGH_TOL).posterior
            found = _better_likelihood(self.likelihood, posterior, self._y)
            moved = np.abs(found.theta - self.likelihood.theta).max()
            self.likelihood = found
            if moved < 0.2 * ENOUGH:
                break
        self._known = {}


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


def _unit_scale(X: Any, intercept: bool) -> float:
    """The prior scale that lets f vary by one or so. Wide priors make slow fits: the search comes from below."""
    square = float(np.sum(X.data**2)) / X.shape[0] - intercept
    return float(1.0 / np.sqrt(max(square, 1e-12)))


def _better_likelihood(likelihood: Likelihood, posterior: Posterior, y: Array) -> Likelihood:
    """Parameters that maximise the expected log likelihood and their prior, under the posterior as it is."""
    from scipy.optimize import minimize

    def negative(theta: Array) -> tuple[float, Array]:
        moved = likelihood.with_theta(theta)
        site, (prior, slope) = moved.site, moved.log_prior()
        value = float((site.oracle(y, posterior.m, posterior.v).value + site.constant(y)).sum()) + prior
        return -value, -(moved.gradient(posterior, y) + slope)

    best = minimize(negative, likelihood.theta, jac=True, method="L-BFGS-B", bounds=likelihood.bounds)
    return likelihood.with_theta(np.asarray(best.x))

