"""The parameters behind the coefficients: their best values, and points around them that stand for all others.

theta = mode + A z makes the objective (bound plus log hyperprior) a unit bowl near its best. One or two parameters get
a lattice in z that grows until the objective has fallen off, wherever that is; more get a central composite design
whose axes are stretched to either side as the objective asks (Rue, Martino and Chopin 2009, section 6.5, has both).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NoReturn, TypeAlias, final

import numpy as np
from scipy.special import ndtr, ndtri

from klimb.errors import KlimbError
from klimb.infer.integrate import central_composite
from klimb.infer.result import Result, Status
from klimb.latents.base import Factor, Latent, Posterior
from klimb.latents.mixed import ArrowPosterior
from klimb.models.formula_model import FormulaModel
from klimb.numerics.arrays import Array
from klimb.numerics.quasi_newton import climb

Heard: TypeAlias = Callable[[str, int, int, float], None]

TOL = 1e-2  # of the gradient, in nats per unit of theta
GAIN = 1e-4  # nats that the next step promises, at most, where many data make the gradient's last digits noise
FIT_TOL = 1e-5  # of fits on the way: what they leave must not mislead a line search
STEP = 0.05  # in theta, for the Hessian as differences of gradients
FLATTEST = 0.05  # smallest curvature taken at face value
SPACING = {1: 0.8, 2: 1.2}  # of the lattice, in sd; sums over it are accurate to 1e-6 for a bowl
DROP = 7.0  # nats below the best at which the lattice ends
MOST_NODES = {1: 60, 2: 200}
PROBE = 2.2  # where along an axis the stretch is measured, in sd
STRETCH = (0.3, 4.0)  # least and most of it
SCORES = np.linspace(-3.6, 3.6, 73)  # normal scores of the quantiles that are kept
KERNEL = 0.8  # width over spacing of the bumps that a density between lattice points is made of


@final
@dataclass(frozen=True, eq=False)
class Peak:
    """The best theta and the fit there."""

    model: FormulaModel
    result: Result
    objective: float
    converged: bool
    n_fits: int
    path: tuple[float, ...]  # the best objective after every fit of the climb


@final
class Footprint(Latent):
    """What is left of a latent when only its posterior at the sites is still of interest: the slack."""

    def __init__(self, latent: Latent) -> None:
        self.n_sites, self.n_weights, self.dense_size = latent.n_sites, latent.n_weights, latent.dense_size
        self.slack, self.mean = latent.slack, np.broadcast_to(0.0, latent.n_sites)

    prior_variances = cached_property(lambda self: self._gone())

    def mvm(self, a: Array) -> Array:
        return self._gone()

    def factor(self, gamma: Array) -> Factor:
        return self._gone()

    def design(self) -> Array:
        return self._gone()

    def weight_mean(self, posterior: Posterior) -> Array:
        return self._gone()

    def weight_covariance(self, posterior: Posterior) -> Array:
        return self._gone()

    def weight_sample(self, posterior: Posterior, n: int, rng: np.random.Generator) -> Array:
        return self._gone()

    def _gone(self) -> NoReturn:
        raise TypeError("only the marginals at the sites were kept of this fit")


@final
@dataclass(frozen=True, eq=False)
class Point:
    """A fit at one theta, without the matrices that made it: dozens of these are kept."""

    full: Array
    q: ArrowPosterior
    posterior: Posterior  # at the sites; its latent is a `Footprint`
    status: Status

    @classmethod
    def of(cls, model: FormulaModel, result: Result) -> Point:
        posterior = replace(result.posterior, latent=Footprint(result.posterior.latent), factor=None)
        return cls(model.full, model.weights_of(result.posterior), posterior, result.status)


@final
@dataclass(frozen=True, eq=False)
class Explored:
    """Fits around the peak with weights that sum to one, and quantiles of every entry of theta at ``SCORES``."""

    points: tuple[Point, ...]
    weights: Array
    log_evidence: float
    quantiles: Array  # (d, scores), of theta
    n_fits: int


def find_peak(model: FormulaModel, y: Array, hear: Heard) -> Peak:
    """Climb bound plus log hyperprior; every fit starts from the sites of the one before."""
    latest: list[Posterior] = []
    best: list[tuple[float, FormulaModel, Result]] = []
    path: list[float] = []

    def objective(theta: Array) -> tuple[float, Array]:
        try:
            here = model.with_theta(theta)
            result = here.fit(y, start=latest[0] if latest else None, tol=FIT_TOL)
        except KlimbError:
            if not best:
                raise
            return -np.inf, np.zeros_like(theta)
        prior, slope = here.log_prior()
        value = result.bound + prior
        path.append(max(value, path[-1]) if path else value)
        hear("parameters", len(path), 0, result.bound)
        if not np.isfinite(value):
            return -np.inf, np.zeros_like(theta)
        latest[:] = [result.posterior]
        if not best or value > best[0][0]:
            best[:] = [(value, here, result)]
        return value, here.gradient(result.posterior, y) + slope

    lower, upper = model.bounds
    found = climb(objective, model.theta, lower, upper, tol=TOL, gain=GAIN)
    _, here, result = best[0]
    result = here.fit(y, start=result.posterior)  # to the usual precision
    close = found.converged or bool(np.abs(found.gradient).max() <= 10 * TOL)
    return Peak(here, result, result.bound + here.log_prior()[0], close, found.evaluations + 1, tuple(path))


def curvature(peak: Peak, y: Array, hear: Heard) -> Array:
    """Minus the Hessian of the objective at the peak, by central differences of its gradient."""
    theta, (lower, upper) = peak.model.theta, peak.model.bounds
    hessian = np.empty((theta.size, theta.size))
    for j in range(theta.size):
        sides: list[Array] = []
        places: list[float] = []
        for sign in (1.0, -1.0):
            shifted = theta.copy()
            shifted[j] = np.clip(theta[j] + sign * STEP, lower[j], upper[j])
            here = peak.model.with_theta(shifted)
            result = here.fit(y, start=peak.result.posterior, tol=1e-7)
            hear("curvature", 2 * j + len(sides) + 1, 2 * theta.size, peak.result.bound)
            sides.append(here.gradient(result.posterior, y) + here.log_prior()[1])
            places.append(float(shifted[j]))
        hessian[j] = -(sides[0] - sides[1]) / (places[0] - places[1])
    return 0.5 * (hessian + hessian.T)


def axes_of(hessian: Array) -> Array:
    """A with A A' the inverse of the curvature, flat directions held at a finite width."""
    values, vectors = np.linalg.eigh(hessian)
    return np.asarray(vectors / np.sqrt(np.maximum(values, FLATTEST)))


@final
class _Fitter:
    """Fits at z, counted; a point that cannot be fitted counts as impossible."""

    def __init__(self, peak: Peak, A: Array, y: Array, hear: Heard, expected: int) -> None:
        self.peak, self.A, self._y, self._hear, self._expected = peak, A, y, hear, expected
        self.lower, self.upper = peak.model.bounds
        self.count = 0

    def __call__(self, z: Array, start: Posterior | None = None) -> tuple[float, FormulaModel, Result]:
        """Objective relative to the peak, the model and its fit."""
        peak = self.peak
        if not z.any():
            return 0.0, peak.model, peak.result
        theta = peak.model.theta + self.A @ z
        inside = np.clip(theta, self.lower, self.upper)
        here = peak.model.with_theta(inside)
        try:
            result = here.fit(self._y, start=start or peak.result.posterior, tol=FIT_TOL)
        except KlimbError:
            return -np.inf, here, peak.result
        self.count += 1
        self._hear("averaging", self.count, max(self._expected, self.count), peak.result.bound)
        value = result.bound + here.log_prior()[0] - peak.objective
        # Beyond the box nothing is known: let it fall off there.
        outside = float(np.abs(theta - inside).max())
        return (value - 5.0 * outside if np.isfinite(value) else -np.inf), here, result


def explore(peak: Peak, y: Array, hear: Heard) -> Explored:
    """Average over theta instead of choosing it."""
    A = axes_of(curvature(peak, y, hear))
    d = len(A)
    return _lattice(peak, A, y, hear) if d <= 2 else _composite(peak, A, y, hear)


def _lattice(peak: Peak, A: Array, y: Array, hear: Heard) -> Explored:
    """Every lattice point that can be reached from the peak without falling by `DROP`, and the rim around those."""
    d = len(A)
    spacing = SPACING[d]
    fitter = _Fitter(peak, A, y, hear, 12 if d == 1 else 60)
    origin = (0,) * d
    values: dict[tuple[int, ...], float] = {}
    fits: dict[tuple[int, ...], Point] = {}
    queue: list[tuple[tuple[int, ...], tuple[int, ...]]] = [(origin, origin)]
    asked = {origin}
    while queue and len(values) < MOST_NODES[d]:
        node, parent = queue.pop(0)
        start = fits[parent].posterior if parent in fits else None
        values[node], model, result = fitter(spacing * np.array(node, dtype=float), start)
        if values[node] < -DROP:
            continue
        fits[node] = Point.of(model, result)
        for axis in range(d):
            for sign in (1, -1):
                near = tuple(k + (sign if i == axis else 0) for i, k in enumerate(node))
                if near not in asked:
                    asked.add(near)
                    queue.append((near, node))
    nodes = list(fits)
    log_w = np.array([values[node] for node in nodes])
    total = float(np.logaddexp.reduce(log_w))
    cell = d * np.log(spacing) + float(np.linalg.slogdet(A)[1])
    quantiles = _lattice_quantiles(peak, A, spacing, values)
    return Explored(tuple(fits.values()), np.exp(log_w - total), peak.objective + total + cell, quantiles,
                    fitter.count + 2 * d)


def _lattice_quantiles(peak: Peak, A: Array, spacing: float, values: dict[tuple[int, ...], float]) -> Array:
    """Quantiles of each entry of theta: the density between the nodes is a sum of normal bumps through its values."""
    z = spacing * np.array(list(values), dtype=float)
    p = np.exp(np.array(list(values.values())))
    width = KERNEL * spacing
    distance = ((z[:, None] - z[None]) ** 2).sum(axis=2)
    bumps = np.linalg.solve(np.exp(-0.5 * distance / width**2) + 1e-10 * np.eye(len(z)), p)
    bumps /= bumps.sum()
    centres = peak.model.theta + z @ A.T
    out = []
    for j in range(len(A)):
        sd = width * float(np.linalg.norm(A[j]))
        low, high = centres[:, j].min() - 4 * sd, centres[:, j].max() + 4 * sd
        grid = np.linspace(low, high, 801)
        cdf = np.maximum.accumulate(np.clip(ndtr((grid[:, None] - centres[:, j]) / sd) @ bumps, 0.0, 1.0))
        out.append(np.interp(ndtr(SCORES), cdf, grid))
    return np.array(out)


def _composite(peak: Peak, A: Array, y: Array, hear: Heard) -> Explored:
    d = len(A)
    z, mass = central_composite(d)
    fitter = _Fitter(peak, A, y, hear, 2 * d + len(z))
    stretch = np.empty((d, 2))  # to the negative and the positive side of each axis
    for k in range(d):
        for side, sign in enumerate((-1.0, 1.0)):
            fall = -fitter(sign * PROBE * np.eye(d)[k])[0]
            stretch[k, side] = np.clip(PROBE / np.sqrt(2.0 * max(fall, 1e-3)), *STRETCH)
    points, logs = [], []
    for point, share in zip(z, mass, strict=True):
        scale = np.where(point > 0, stretch[:, 1], np.where(point < 0, stretch[:, 0], stretch.mean(axis=1)))
        value, model, result = fitter(scale * point)
        logs.append(value + 0.5 * float(point @ point) + np.log(share) + float(np.log(scale).sum()))
        points.append(Point.of(model, result))
    log_w = np.array(logs)
    total = float(np.logaddexp.reduce(log_w))
    weights = np.exp(log_w - total)
    keep = np.flatnonzero(weights > 1e-4 * weights.max())
    evidence = peak.objective + total + 0.5 * d * np.log(2 * np.pi) + float(np.linalg.slogdet(A)[1])
    return Explored(tuple(points[i] for i in keep), weights[keep] / weights[keep].sum(), evidence,
                    _split_quantiles(peak, A, stretch), fitter.count + 2 * d)


def _split_quantiles(peak: Peak, A: Array, stretch: Array) -> Array:
    """Quantiles of each entry of theta under normals with two widths along each axis, by a fixed set of points."""
    from klimb.numerics.lowdiscrepancy import normal_draws

    u = normal_draws(4096, len(A), seed=0)
    # A split normal with widths (a, b) has mass a / (a + b) on its left: map each standard normal coordinate to it.
    a, b = stretch[:, 0], stretch[:, 1]
    p, share = ndtr(u), a / (a + b)
    left = a * ndtri(np.clip(0.5 * p / share, 1e-12, 0.5))
    right = b * ndtri(np.clip(1.0 - 0.5 * (1.0 - p) / (1.0 - share), 0.5, 1.0 - 1e-12))
    theta = peak.model.theta + np.where(p < share, left, right) @ A.T
    return np.asarray(np.quantile(theta, ndtr(SCORES), axis=0).T)
