"""Log densities that are expensive: a Gaussian-process surrogate is learnt from few evaluations, and fitted instead.

Rounds of three steps: a surrogate through all values so far; a rough mixture fitted to it; evaluations where variance
times density is largest. Values far apart are first divided by a temperature, so that a start in the tail sees a wide
target. Fresh draws of the final mixture tell how far the surrogate is off (docs/decisions/0033-few-evaluations.md).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from klimb.boosting.divergences import inclusive_refined
from klimb.boosting.gaussians import BoostStep, Gaussians, Watch, nodes, one_gaussian, recorded
from klimb.boosting.mixture import Ended, Mixture
from klimb.boosting.proposals import BEYOND, THIN
from klimb.boosting.target import Target, show
from klimb.boosting.trust import SurrogateCheck
from klimb.errors import InputError
from klimb.numerics.arrays import Array
from klimb.numerics.lowdiscrepancy import normal_draws
from klimb.numerics.surrogate import Surrogate, fit_surrogate

UP_TO, MOST_DIMENSIONS = 1000, 8  # evaluations and dimensions up to which a surrogate serves
RIDGE = 1e-4  # prior precision of the trend: fewer points than coefficients will do
DEPTH = 40.0  # tempered nats below the best from which a value counts by its logarithm only
CAP, SURE = 2.0, 0.3  # tempered nats above the best that may be claimed, and of uncertainty that are no reason to doubt
AROUND = 1.0  # whitened units outside all points from which the surrogate falls
WIDTHS = (0, 1, 3)  # standard deviations outside the shell of the mixture at which points are looked for
BATCH, CLOUD = 3, 512  # points of a round, and draws of each width among which they are chosen
ROUGH, ROUGH_DRAWS, FINE_DRAWS, FINE_ROUNDS = 6, 512, 8192, 6  # components and draws of the mixtures
COUNTING, FLATTEST = 0.1, 2.0**20  # share of draws that must count for EM, and the most that a model is flattened
LEAST = 1e-3  # weight of a component
STEADY = 3  # rounds in a row that must be predicted
PREDICTED = 5.0  # times tol: the error of predictions at which a surrogate has learnt enough
NODES = 128  # of a component, by which it is kept or not
JUDGED = 4096  # draws by which the bound of the surrogate is known


class KnownPoints:
    """Points at which the log density is known, in free coordinates; no more than ``budget`` evaluations are made."""

    def __init__(self, target: Target, budget: int) -> None:
        self.target, self.budget = target, budget
        self.points, self.values = np.zeros((0, target.dim)), np.zeros(0)

    @property
    def left(self) -> int:
        return max(self.budget - self.target.n_values, 0)

    def add(self, U: Array) -> Array:
        """Values at the rows of ``U``, as many as may still be asked for."""
        U = U[: self.left]
        values = self.target.values(U, far=True)
        self.points, self.values = np.concatenate([self.points, U]), np.concatenate([self.values, values])
        return values

    @property
    def temperature(self) -> float:
        """By which values are divided so that the best few are as far apart as draws of a Gaussian are."""
        dim, top = self.target.dim, np.sort(self.values[np.isfinite(self.values)])[::-1]
        return max(1.0, float(top[0] - top[min(2 * dim + 1, len(top) - 1)]) / (3.0 * dim))


@dataclass(frozen=True, eq=False)
class SurrogateModel:
    """A surrogate in whitened coordinates z = inverse (u - centre), as a function of u; it falls beyond all points."""
    surrogate: Surrogate
    centre: Array
    inverse: Array
    radius: float
    outside: Array  # points at which the log density is -inf, whitened
    caution: float = 1.0  # by how many of its standard deviations it is lowered where these are large

    def whitened(self, U: Array) -> Array:
        return np.asarray((U - self.centre) @ self.inverse.T)

    def __call__(self, U: Array) -> Array:
        z = self.whitened(U)
        top = float(self.surrogate.values.max())
        found = np.minimum(self.surrogate(z), top + CAP)
        deep = np.clip(top - DEPTH - found, 0.0, 50.0)  # of logarithms, which are undone
        found -= np.expm1(deep) - deep + np.maximum(np.linalg.norm(z, axis=1) - self.radius, 0.0) ** 2
        if self.caution > 0.0:
            found -= self.caution * np.maximum(np.sqrt(self.surrogate.variances(z, z[:0])) - SURE, 0.0)
        if len(self.outside):
            inner, outer = (((z[:, None] - at) ** 2).sum(axis=2).min(axis=1)
                            for at in (self.surrogate.points, self.outside))
            found[outer < inner] = -np.inf
        return np.asarray(found)


def fitted_model(known: KnownPoints, q: Gaussians, temperature: float) -> SurrogateModel:
    """The surrogate of log p / temperature through all values, whitened by the moments of a mixture."""
    mean, cov = q.moments()
    inverse = np.linalg.inv(np.linalg.cholesky(cov + 1e-10 * np.trace(cov) / len(cov) * np.eye(len(cov))))
    inside = np.isfinite(known.values)
    z, y = (known.points - mean) @ inverse.T, known.values[inside] / temperature
    depth = y.max() - y
    radius = float(np.linalg.norm(z[inside][depth < DEPTH], axis=1).max()) + AROUND
    y = y.max() - np.where(depth < DEPTH, depth, DEPTH + np.log1p(np.maximum(depth - DEPTH, 0.0)))
    surrogate = fit_surrogate(z[inside], y, np.exp(0.5 * (y - y.max())), ridge=RIDGE)
    assert surrogate is not None
    return SurrogateModel(surrogate, mean, inverse, radius, z[~inside])


def flattened(model: SurrogateModel, q: Gaussians, seed: int) -> Callable[[Array], Array]:
    """Between mixture and model, q^(1 - a) p^a, as near to the model as enough draws count: EM must not live on few."""
    U = q.draws(ROUGH_DRAWS, seed + 7)
    height, log_q, flat = model(U), q.log_density(U), 1.0
    while flat < FLATTEST:
        log_w = (height - log_q) / flat
        w = np.exp(log_w - log_w.max())
        if w.sum() ** 2 > COUNTING * len(U) * (w @ w):
            break
        flat *= 2.0
    return lambda V: model(V) / flat + (1.0 - 1.0 / flat) * q.log_density(V)


def next_points(model: SurrogateModel, q: Gaussians, seed: int) -> Array:
    """Draws of the mixture, and around it, where variance times density is largest, one after the other."""
    U = np.concatenate([q.widened(far).draws(CLOUD, seed + far) for far in WIDTHS])
    height = model(U)
    U, height = U[np.isfinite(height)], height[np.isfinite(height)]
    z, chosen = model.whitened(U), list[int]()
    for _ in range(min(BATCH, len(U))):
        with np.errstate(divide="ignore"):
            score = np.log(model.surrogate.variances(z, z[chosen])) + height
        score[chosen] = -np.inf
        chosen.append(int(np.argmax(score)))
    return np.asarray(U[chosen])


def sparingly_boosted(target: Target, starts: Array, spread: Array, n_components: int, tol: float, budget: int,
                      names: tuple[str, ...], seed: int, watch: Watch) -> Mixture:
    """A mixture for ``target`` by at most ``budget`` evaluations."""
    dim = target.dim
    checks = max(8, 2 * dim)
    least = 4 * dim + 6 + 2 * checks
    if dim > MOST_DIMENSIONS or budget < least:
        raise InputError(f"max_evaluations of {UP_TO} or fewer means a surrogate of log_density, for up to "
                         f"{MOST_DIMENSIONS} free parameters and at least {least} evaluations for these",
                         f"{dim} parameters and max_evaluations = {budget}",
                         f"Give more evaluations (above {UP_TO} there is no surrogate) or fewer parameters.")
    known = KnownPoints(target, budget)
    known.add(np.concatenate([starts, starts[0] + spread * normal_draws(2 * dim + 2, dim, seed=seed)]))
    if not np.isfinite(known.values).any():
        known.add(starts[0] + 0.1 * spread * normal_draws(dim + 2, dim, seed=seed + 3))
    if not np.isfinite(known.values).any():
        raise InputError("log_density must be finite somewhere near init", f"-inf at {show(starts[0])} and around",
                         "Pass init, a point inside the support, and scale, the size of the region to look in.")
    q = one_gaussian(known.points[int(np.argmax(known.values))], np.diag(spread))
    steps: list[BoostStep] = []
    while True:
        q, predicted = _learnt(known, q, tol, checks, seed + len(known.values))
        model = fitted_model(known, q, 1.0)
        believed = target.modelled(model)
        fine = inclusive_refined(believed, q, seed, draws=FINE_DRAWS, rounds=FINE_ROUNDS, n_components=n_components)
        found = _judged(known, model, _pruned(believed, fine, seed), names, checks, seed, watch)
        steps += found.steps
        assert found.surrogate is not None
        if found.surrogate.good or known.left < 4 * checks:
            ended = Ended.PREDICTED if predicted and found.surrogate.good else Ended.EVALUATIONS
            return replace(found, steps=tuple(steps), ended=ended)


def _learnt(known: KnownPoints, q: Gaussians, tol: float, reserve: int, seed: int) -> tuple[Gaussians, bool]:
    """Rounds of points until they are predicted, or only ``reserve`` evaluations are left; the rough mixture then."""
    errors: list[float] = []
    while True:
        temperature = known.temperature
        model = fitted_model(known, q, temperature)
        tamed = known.target.modelled(flattened(model, q, seed))
        q = inclusive_refined(tamed, q, seed + len(errors), draws=ROUGH_DRAWS, rounds=2, n_components=ROUGH)
        q = q.take(np.flatnonzero(q.weights > LEAST))
        predicted = len(errors) >= STEADY and max(errors[-STEADY:]) < PREDICTED * tol
        if predicted or known.left < 2 * reserve + BATCH:
            return q, predicted
        new = next_points(model, q, seed + 100 * len(errors))
        off = known.add(new) - temperature * model(new)
        errors.append(float(np.sqrt(np.mean(off**2))) if temperature == 1.0 else np.inf)


def _pruned(target: Target, q: Gaussians, seed: int) -> Gaussians:
    """The mixture without components that lower its bound: wide ones may cover where there is nothing."""
    Z = nodes(NODES, q.dim, seed + 5)

    def residuals(q: Gaussians) -> Array:
        U = q.at(Z).reshape(-1, q.dim)
        found = target.values(U) - q.log_density(U)
        return np.where(np.isfinite(found), found, np.nan).reshape(len(q), -1)

    current = residuals(q)
    while len(q) > 1:
        own = np.nanmean(current, axis=1)
        fewer = q.take(np.arange(len(q)) != int(np.argmin(own)))
        tried = residuals(fewer)
        if not fewer.weights @ np.nanmean(tried, axis=1) > q.weights @ own:
            break
        q, current = fewer, tried
    return q


def _missing(known: KnownPoints, q: Gaussians, bound: float, checks: int, seed: int) -> float:
    """The share of the target where the mixture has less than a third of it, by draws of a wider one."""
    wide = q.widened(BEYOND[0])
    U = wide.draws(checks, seed + 37)
    values = known.add(U)
    U = U[: len(values)]
    thin = values - q.log_density(U) > bound + np.log(THIN)
    mass = np.exp(np.minimum(values - wide.log_density(U) - bound, 50.0))
    return float(np.where(thin, mass, 0.0).sum() / max(len(U), 1))


def _judged(known: KnownPoints, model: SurrogateModel, q: Gaussians, names: tuple[str, ...], checks: int, seed: int,
            watch: Watch) -> Mixture:
    """The mixture with its bound: that of the surrogate, and what the surrogate is off by at fresh draws."""
    target = known.target
    U = q.draws(JUDGED, seed + 31)
    believed = model(U)
    inside = np.isfinite(believed)
    share = float(inside.mean())
    residual = believed[inside] - q.log_density(U[inside]) + np.log(share)
    fresh = U[inside][:: max(int(inside.sum()) // checks, 1)][:checks]
    off = known.add(fresh) - model(fresh)
    met = np.isfinite(off)
    missing = _missing(known, q, float(residual.mean()), checks, seed)
    error = float(np.std(off[met])) if met.sum() > 1 else np.inf
    bound = float(residual.mean()) + (float(off[met].mean()) if met.any() else 0.0)
    spread = float(np.sqrt(residual.var() / len(residual) + error**2 / max(int(met.sum()), 1)))
    check = SurrogateCheck(error, len(off), int((~met).sum()), share, missing)
    step = recorded(target, q, bound, spread, residual, np.full(len(residual), 1.0 / len(residual)), watch)
    free = target.modelled(replace(model, caution=0.0))
    return Mixture(q, bound, spread, Ended.EVALUATIONS, (step,), free, names, share, seed, check)
