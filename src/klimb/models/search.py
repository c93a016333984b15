"""The search for hyperparameters: fits at one theta after another, and a climb of bound plus log prior.

    theta -> fit (from the sites of a neighbour) -> bound + log prior, and its gradient by the envelope theorem
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from klimb.errors import InputError, KlimbError
from klimb.infer.problem import Start
from klimb.infer.result import Result, Status
from klimb.latents.base import Latent, Posterior
from klimb.latents.weights_posterior import WeightPosterior
from klimb.likelihoods import Observed
from klimb.models.model import Listen, Model, Progress
from klimb.models.sites_near import SitesNear
from klimb.models.squares import Exact
from klimb.numerics.arrays import Array, as_float
from klimb.numerics.quasi_newton import climb
from klimb.theta import Theta

TOL = 1e-2  # of the gradient, in nats per unit of theta
FINEST = 1e-8  # rounding leaves so much of it
GAIN = 1e-4  # nats that the next step promises, at most, where many data make the gradient's last digits noise
USUAL_TOL = 1e-6  # of a fit; where less is asked for, search and integration follow
FIT_TOL = 1e-5  # of fits on the way: what they leave must not mislead a line search
POINT_TOL = 1e-3  # of fits that are averaged: bounds are good to some 1e-5 nats, means to 3e-3 sd, whose signs vary
FAR_TOL, FAR = 1e-4, 1.0  # of those where some entry of the gradient is larger than this
HOPELESS = 1.0  # stationarity of a stalled fit whose start, the sites of a neighbour, led it astray: it begins again
STEP, FINE = 0.05, 0.04  # in theta, for the Hessian as differences of gradients, and how far it is gone for more digits
NEAR, SMALL = 1.5, 0.5  # sds of theta that this step is at most, as counts guess them, and to one side
LEAST_BENT = 0.03  # of a curvature with the sites held, over the largest
LEAST_FALL, PAST = 0.2, 8.0  # nats per unit of theta by which a prior that ends falls so far beyond a search's limits
PENALTY = 5.0  # for one that does not
FLATTEST = 0.05  # smallest curvature taken at face value: below it a direction has sd 1 / sqrt(0.05)


class Stopped(Exception):
    """The listener asked to stop."""


class HigherGround(Exception):
    """A point that is clearly better than where a climb ended: its theta, and the fit there."""

    def __init__(self, theta: Array, posterior: Posterior | None) -> None:
        self.theta, self.posterior = theta, posterior


@dataclass(frozen=True, eq=False)
class Evaluated:
    """A fit at one theta: its objective, bound plus log prior, is -inf where nothing can be computed."""

    model: Any
    result: Result | None
    objective: float
    exact: Exact | None = None  # what takes the place of a fit to Gaussian rows

    @property
    def possible(self) -> bool:
        return (self.result is not None or self.exact is not None) and bool(np.isfinite(self.objective))

    @property
    def status(self) -> Status:
        return Status.CONVERGED if self.result is None else self.result.status

    @property
    def bound(self) -> float:
        return self.exact.bound if self.exact is not None else self.result.bound if self.result is not None else -np.inf

    @property
    def posterior(self) -> Posterior | None:
        return None if self.result is None else self.result.posterior

    def part(self) -> WeightPosterior:
        """The posterior of the weights."""
        if self.exact is not None:
            return self.exact.part
        assert self.result is not None
        return self.model.detach(self.result.posterior)  # type: ignore[no-any-return]


@dataclass(frozen=True, eq=False)
class Best:
    """The best theta so far, the sites of the fit there, and its objective."""

    theta: Array
    start: Start
    objective: float


class Evaluator:
    """Fits of one model at any theta, counted, each from the sites of the last one unless told otherwise."""

    def __init__(self, model: Model, data: Observed, *, listen: Listen | None = None, max_iter: int = 500,
                 start: Posterior | None = None, tol: float = USUAL_TOL, sites: SitesNear | None = None) -> None:
        self.model, self.data, self.n_fits = model, data, 0
        self.clean = data
        self.sites = SitesNear() if sites is None else sites
        self.finer = tol < USUAL_TOL  # who asks for more digits gets them
        self._finest = FIT_TOL * tol / USUAL_TOL if self.finer else np.inf
        self._listen, self._max_iter = listen, max_iter
        self._latest: Start = start
        self._tol = FAR_TOL  # of the next fit of a climb
        self.path: list[float] = []  # the best objective after every fit of a climb
        self.best: Best | None = None
        self._squares = model.closed(data)

    def __call__(self, theta: Array, *, start: Posterior | None = None, tol: float = FIT_TOL,
                 own: bool = False) -> Evaluated:
        """The fit at ``theta``; ``start`` may be its ``own`` sites. Gaussian noise needs none."""
        here = self.model.moved(theta)
        try:
            found = self._fitted(here, start, tol, own) if self._squares is None else self._closed(here)
        except KlimbError:
            if self.best is None:
                raise
            return Evaluated(here, None, -np.inf)
        self.n_fits += 1
        if not np.isfinite(found.objective):
            return replace(found, objective=-np.inf)
        if self.best is None or found.objective > self.best.objective:
            self.best = Best(here.at, None, found.objective)
        return found

    def _fitted(self, here: Any, start: Posterior | None, tol: float, own: bool) -> Evaluated:
        near: Start = start if start is not None else self._latest
        guess = None if own else self.sites.at(here.at)
        begin = near if guess is None or near is None else guess
        result = here.infer(self.clean, start=begin, tol=min(tol, self._finest), max_iter=self._max_iter)
        if begin is not None and result.status is Status.STALLED and result.history[-1].stationarity > HOPELESS:
            result = here.infer(self.clean, tol=min(tol, self._finest), max_iter=self._max_iter)
        self.follow(result)
        self.sites.add(here.at, result.posterior)
        return Evaluated(here, result, result.bound + here.theta.log_density(here.at))

    def follow(self, result: Result) -> None:
        """Later fits have the clean y of this one: one array for all."""
        if result.problem is not None and len(result.problem.y) == self.data.n:
            self.clean = replace(self.data, y=result.problem.y)

    def _closed(self, here: Any) -> Evaluated:
        exact, (value, slope) = self._squares.at(here), here.log_prior()
        return Evaluated(here, None, value + exact.bound, replace(exact, gradient=exact.gradient + slope))

    def objective(self, theta: Array) -> tuple[float, Array]:
        """For a climb: the objective and its gradient."""
        if not np.array_equal(theta, self.model.at):
            self.model.__dict__.pop("latent", None)  # of the first point, which a climb does not come back to
        found = self(theta, tol=self._tol)
        if not found.possible:
            return -np.inf, np.zeros_like(theta)
        if found.result is not None:
            self._latest = self.sites.last  # without factors, n x n matrices perhaps
            if self.best is not None and self.best.theta is found.model.at:
                self.best = replace(self.best, start=self._latest)
        self.path.append(max(found.objective, self.path[-1]) if self.path else found.objective)
        self.tell("hyperparameters", len(self.path), 0, found.bound)
        gradient = self.gradient(found)
        self._tol = FAR_TOL if np.abs(gradient).max(initial=0.0) > FAR else FIT_TOL
        return found.objective, gradient

    def first_curvature(self, theta: Array, gradient: Array) -> Array | None:
        """Of the objective at the last fit of a climb, with its sites held."""
        model = self.model.moved(theta)
        sites = self._latest() if callable(self._latest) else self._latest
        return None if sites is None else held_curvature(model, self.data, sites, gradient)

    def gradient(self, found: Evaluated) -> Array:
        """Of the objective at a fit."""
        if found.exact is not None:
            return found.exact.gradient
        assert found.result is not None
        q = found.result.posterior
        slopes = found.model.gradient(q, self.data) + found.model.log_prior()[1]
        if q.factor is not None:
            q.factor.release()
        return np.asarray(slopes)

    def tell(self, what: str, done: int, total: int, bound: float) -> None:
        """Let the listener know; False from it stops the work."""
        if self._listen is not None and self._listen(Progress(what, done, total, bound)) is False:
            raise Stopped


@dataclass(frozen=True, eq=False)
class Peak:
    """The best theta and the fit there."""

    model: Any
    result: Result
    objective: float
    status: Status
    gradient: Array
    n_fits: int
    path: tuple[float, ...]
    sites: SitesNear | None = None  # of the fits on the way

    @property
    def converged(self) -> bool:
        return self.status is Status.CONVERGED


def find_peak(model: Model, data: Observed, *, tol: float = TOL, fit_tol: float = 1e-6, max_iter: int = 200,
              fit_iter: int = 500, restarts: int = 0, seed: int = 0, start: Posterior | None = None,
              listen: Listen | None = None, curvature: Array | None = None) -> Peak:
    """Climb bound plus log prior from the model's present theta, and from ``restarts`` random places around it."""
    lower, upper = model.theta.lower, model.theta.upper
    tol = min(tol, max(tol * fit_tol / USUAL_TOL, FINEST))
    rng, guess = np.random.default_rng(seed), model.information() if curvature is None else curvature
    best: Peak | None = None
    for number in range(restarts + 1):
        jump = rng.standard_normal(model.theta.size) if number else np.zeros(model.theta.size)
        begin = np.clip(model.at + jump, lower, upper)
        evaluate = Evaluator(model, data, listen=listen, max_iter=fit_iter, start=start, tol=fit_tol)
        found = _climbed(evaluate, begin, tol, fit_tol, max_iter, guess)
        n_fits = found.n_fits + (best.n_fits if best is not None else 0)
        if best is None or found.objective > best.objective:
            best = found
        best = replace(best, n_fits=n_fits)
    assert best is not None
    return best


def _climbed(evaluate: Evaluator, begin: Array, tol: float, fit_tol: float, max_iter: int,
             curvature: Array | None) -> Peak:
    lower, upper = evaluate.model.theta.lower, evaluate.model.theta.upper
    stopped = False
    try:
        found = climb(evaluate.objective, begin, lower, upper, tol=tol, gain=GAIN * tol / TOL, max_iter=max_iter,
                      curvature=curvature if curvature is not None and not evaluate.model.holds_sites else
                      evaluate.first_curvature)
        converged, gradient = found.converged, found.gradient
    except Stopped:
        stopped, converged, gradient = True, False, np.zeros_like(begin)
    best = evaluate.best
    if best is None:
        raise InputError("some hyperparameters must give a finite bound", "none did", "Start at other values.")
    model = evaluate.model.moved(best.theta)
    result = model.infer(evaluate.clean, start=best.start, tol=fit_tol)  # to the usual precision
    free = ~(((model.at <= lower) & (gradient < 0)) | ((model.at >= upper) & (gradient > 0)))
    close = converged or bool(np.abs(gradient[free]).max(initial=0.0) <= 10 * tol)
    status = Status.STOPPED if stopped else result.status if close else (
        Status.MAX_ITER if evaluate.n_fits >= max_iter else Status.STALLED)
    return Peak(model, result, result.bound + model.log_prior()[0], status, gradient, evaluate.n_fits + 1,
                tuple(evaluate.path), evaluate.sites)


def held_curvature(model: Model, data: Observed, sites: Posterior, gradient: Array) -> Array | None:
    """Minus the Hessian of the objective as if the sites of a fit, with this gradient, stayed: d factorisations."""
    if not model.holds_sites:
        return None
    theta, hessian = model.at, np.empty((model.at.size, model.at.size))
    for j, step in enumerate(np.where(theta + STEP > model.theta.upper, -STEP, STEP)):
        other = model.moved(theta + step * np.eye(theta.size)[j])
        try:
            slope = other.gradient(under(other.latent, sites), data) + other.log_prior()[1]
        except KlimbError:
            return None
        hessian[j] = (gradient - slope) / step
    values, vectors = np.linalg.eigh(0.5 * (hessian + hessian.T))
    if not np.isfinite(values).all():
        return None
    sizes = np.abs(values)  # where the objective bends upwards, as far as it would be to the top of such a bowl
    return np.asarray((vectors * np.maximum(sizes, max(LEAST_BENT * sizes.max(), FLATTEST))) @ vectors.T)


def under(latent: Latent, q: Posterior) -> Posterior:
    """The posterior of the sites of ``q`` under another prior."""
    factor = latent.factor(q.gamma)
    a, Ka = factor.solve(q.a + q.gamma * (q.m - latent.mean))
    return Posterior(latent, a, q.gamma, latent.mean + Ka, factor.variances() + latent.slack, 0.0, factor=factor)


def higher_peak(peak: Peak, evaluate: Evaluator, found: HigherGround) -> Peak:
    """The peak above a better point than the first climb reached."""
    higher = find_peak(evaluate.model.moved(found.theta), evaluate.data, start=found.posterior)
    return replace(higher, n_fits=higher.n_fits + peak.n_fits)


def curvature(peak: Peak, evaluate: Evaluator, *, rough: bool = False) -> Array:
    """Minus the Hessian of the objective at the peak, by differences of its gradient; ``rough`` ones go farther.

    A short step to one side leaves less of the third derivative than a long one to both, at half the fits. But it asks
    for many digits of a gradient: where that is estimated, or more than the usual digits are wanted, steps are long.
    """
    theta, lower, upper, q = peak.model.at, peak.model.theta.lower, peak.model.theta.upper, peak.result.posterior
    here, known = evaluate.gradient(Evaluated(peak.model, peak.result, peak.objective)), peak.model.information()
    step = np.full(theta.size, STEP) if known is None else np.minimum(STEP, NEAR / np.sqrt(known))
    if rough:
        held = held_curvature(peak.model, evaluate.data, q, here)
        step = step if held is None else np.minimum(STEP, SMALL / np.sqrt(np.diagonal(held)))
    both = not rough and (evaluate.finer or not peak.result.certified)
    fine, hessian = 1.0 if rough or both else FINE, np.zeros((theta.size, theta.size))
    for j, own in enumerate(fine * np.where(theta + step > upper, -step, step)):
        places, slopes = [theta[j]], [here]
        for move in (own, -own):
            if len(places) > 1 + both:
                break
            shifted = np.clip(theta + move * np.eye(theta.size)[j], lower, upper)
            found = evaluate(shifted, start=q, tol=FAR_TOL if rough else fine * FIT_TOL)
            evaluate.tell("curvature", j + 1, theta.size, peak.result.bound)
            if found.possible:
                places.append(shifted[j])
                slopes.append(evaluate.gradient(found))
            del found
        if len(places) > 1:
            hessian[j] = (slopes[-2] - slopes[-1]) / (places[-1] - places[-2])
    return 0.5 * (hessian + hessian.T)


def axes_of(hessian: Array) -> Array:
    """A with A A' the inverse of the curvature, flat directions held at a finite width."""
    values, vectors = np.linalg.eigh(hessian)
    return np.asarray(vectors / np.sqrt(np.maximum(values, FLATTEST)))


# -- a table of bounds


@dataclass(frozen=True, eq=False)
class Grid:
    """Bounds over a grid of hyperparameters, one axis per name."""

    names: tuple[str, ...]
    axes: tuple[Array, ...]
    bound: Array
    converged: Array
    n_factor: Array
    best: Any  # the model of the best cell
    best_result: Result

    def table(self) -> list[dict[str, float]]:
        """One row per cell: the hyperparameters (as in theta), the bound, whether it converged."""
        return [
            dict(zip(self.names, values, strict=True)) | {"bound": float(bound), "converged": bool(done)}
            for values, bound, done in zip(product(*self.axes), self.bound.flat, self.converged.flat, strict=True)
        ]

    def plot(self, ax: Any = None) -> Any:
        """A heat map over two axes, the best cell marked; needs matplotlib."""
        from klimb.report.plots import plot_grid

        if len(self.names) != 2:
            raise InputError("a heat map needs a grid over two hyperparameters", f"{len(self.names)}", "Use table().")
        return plot_grid(self.names, self.axes, self.bound, ax)


def grid(model: Model, y: Any, axes: Mapping[str, Any], *, tol: float = 1e-6) -> Grid:
    """The bound at every combination of some hyperparameters; the others stay as they are.

    ``axes`` maps names of ``model.names`` to values of theta (logs of positive parameters). Neighbouring cells follow
    each other, so that each fit starts from the sites of a neighbour.
    """
    data = model.read(y)
    model = model.ready(data)
    unknown = [name for name in axes if name not in model.names]
    if unknown or not axes:
        raise InputError(f"axes must name hyperparameters among {', '.join(model.names)}", f"{unknown or 'none'}",
                         "Names are those of model.names.")
    names = tuple(axes)
    values = tuple(as_float(axes[name], name, ndim=1) for name in names)
    places = [model.names.index(name) for name in names]
    shape = tuple(len(v) for v in values)
    bound, done, cost = np.empty(shape), np.zeros(shape, dtype=bool), np.zeros(shape, dtype=int)
    best: tuple[float, Model, Result] | None = None
    start: Posterior | None = None
    for cell in _neighbouring(shape):
        theta = model.at.copy()
        theta[places] = [values[axis][index] for axis, index in enumerate(cell)]
        here = model.moved(theta)
        result = here.infer(data, start=start, tol=tol)
        start = result.posterior if result.converged else None
        bound[cell], done[cell], cost[cell] = result.bound, result.converged, int(result.history.n_factor.sum())
        if best is None or result.bound > best[0]:
            best = (result.bound, here, result)
    assert best is not None
    return Grid(names, values, bound, done, cost, best[1], best[2])


def _neighbouring(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """All cells, neighbours following each other."""
    cells: list[tuple[int, ...]] = [()]
    for size in shape:
        forth, back = list(range(size)), list(range(size - 1, -1, -1))
        cells = [(*cell, i) for number, cell in enumerate(cells) for i in (back if number % 2 else forth)]
    return cells


def within_limits(theta: Theta, at: Array) -> tuple[Array, float]:
    """The nearest point within the limits of the search, and what the objective loses from there on.

    The likelihood is constant there, so it loses what the prior does; a prior that does not end gets a penalty.
    """
    inside = np.clip(at, theta.lower, theta.upper)
    beyond = at - inside
    if not beyond.any():
        return inside, 0.0
    near, past = theta.log_density(inside), theta.log_density(inside + PAST * np.sign(beyond))
    ends = near - past > LEAST_FALL * PAST
    return inside, near - theta.log_density(at) if ends else PENALTY * float(np.abs(beyond).max())
