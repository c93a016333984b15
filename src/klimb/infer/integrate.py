"""Uncertainty of the hyperparameters: fits at a few well-placed points, weighted by their bounds."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any, final

import numpy as np

from klimb.errors import InputError
from klimb.infer.evidence import optimise
from klimb.infer.hyper import Hypermodel, Optimum
from klimb.infer.result import Result
from klimb.numerics.arrays import Array

STEP = 0.05  # in theta, for the Hessian as differences of gradients
FLATTEST = 0.05  # smallest curvature taken at face value: below it the direction counts as having sd 1 / sqrt(0.05)
SPACING, REACH = 0.75, 4  # of the grid, in standard deviations, and its nodes either side of the mode
DROP = 6.0  # nats below the best point at which a point is dropped
SPHERE = 1.1  # radius of the central composite design over sqrt(d): its points carry 1 / SPHERE^2 of the mass


@final
@dataclass(frozen=True, eq=False)
class Integrated:
    """Models and fits at points of hyperparameter space, with weights that sum to one."""

    models: tuple[Any, ...]
    results: tuple[Result, ...]
    weights: Array
    theta: Array  # one row per point
    optimum: Optimum
    log_evidence: float  # of the model with its hyperprior, by the same quadrature over bounds

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.models[0].names)

    def mean(self) -> Array:
        """Posterior means of theta."""
        return np.asarray(self.weights @ self.theta)

    def sd(self) -> Array:
        """Posterior standard deviations of theta."""
        return np.sqrt(self.weights @ (self.theta - self.mean()) ** 2)

    def marginals(self) -> tuple[Array, Array]:
        """Mean and variance of f at the sites, averaged over the hyperparameters."""
        return mix_moments(self.weights, [(r.posterior.m, r.posterior.v) for r in self.results])

    def predict(self, *inputs: Any) -> tuple[Array, Array]:
        """Mean and variance of f at new inputs: ``model.predict(posterior, *inputs)`` averaged over the points."""
        pairs = [m.predict(r.posterior, *inputs) for m, r in zip(self.models, self.results, strict=True)]
        return mix_moments(self.weights, pairs)

    def log_density(self, y_new: Any, *inputs: Any) -> Array:
        """Log predictive density of new data, averaged over the points."""
        terms = []
        for weight, model, result in zip(self.weights, self.models, self.results, strict=True):
            m, v = model.predict(result.posterior, *inputs)
            terms.append(np.log(weight) + model.site.predict(m, v).log_density(y_new))
        return np.asarray(np.logaddexp.reduce(np.array(terms), axis=0))


def mix_moments(weights: Array, moments: list[tuple[Array, Array]]) -> tuple[Array, Array]:
    """Mean and variance of a mixture from those of its parts."""
    m = np.asarray(sum(w * mean for w, (mean, _) in zip(weights, moments, strict=True)))
    parts = zip(weights, moments, strict=True)
    return m, np.asarray(sum(w * (var + (mean - m) ** 2) for w, (mean, var) in parts))


def integrate(model: Hypermodel, y: Any, *, optimum: Optimum | None = None) -> Integrated:
    """Average over the hyperparameters instead of choosing them.

    From the best ones (``optimum``, or `optimise` first) and the curvature of the bound there, hyperparameter space is
    whitened; one or two hyperparameters get a grid of half a dozen standard deviations, cut where the bound has fallen
    off, more get a central composite design. Each point is fitted, starting from the fit at the mode, and weighted by
    exp(bound + log hyperprior) against the Gaussian that placed it.
    """
    best = optimise(model, y) if optimum is None else optimum
    theta, (lower, upper) = best.model.theta, best.model.bounds
    if theta.size == 0:
        raise InputError("the model needs free hyperparameters", "none", "Free a parameter, or call model.fit(y).")
    values, vectors = np.linalg.eigh(_curvature(best, y))
    axes = vectors / np.sqrt(np.maximum(values, FLATTEST))  # theta = mode + axes z
    z, mass = _grid(theta.size) if theta.size <= 2 else central_composite(theta.size)
    points = np.clip(theta + z @ axes.T, lower, upper)
    models, results, logs = [], [], []
    for point, log_mass, distance in zip(points, np.log(mass), 0.5 * (z**2).sum(1), strict=True):
        if distance == 0.0:
            here, result = best.model, best.result
        else:
            here = best.model.with_theta(point)
            result = here.fit(y, start=best.result.posterior)
        objective = result.bound + here.log_prior()[0]
        models.append(here)
        results.append(result)
        logs.append(objective + distance + log_mass)
    log_weights = np.array(logs)
    total = float(np.logaddexp.reduce(log_weights))
    weights = np.exp(log_weights - total)
    volume = 0.5 * theta.size * np.log(2 * np.pi) + np.linalg.slogdet(axes)[1]
    keep = weights > np.exp(-DROP) * weights.max()
    kept = weights[keep] / weights[keep].sum()
    chosen = np.flatnonzero(keep)
    return Integrated(
        tuple(models[i] for i in chosen), tuple(results[i] for i in chosen), kept, points[keep], best, total + volume
    )


def _curvature(best: Optimum, y: Any) -> Array:
    """Minus the Hessian of the objective at the mode, by central differences of its gradient."""
    theta = best.model.theta
    hessian = np.empty((theta.size, theta.size))
    for j in range(theta.size):
        sides = []
        for sign in (1.0, -1.0):
            shifted = theta.copy()
            shifted[j] += sign * STEP
            here = best.model.with_theta(shifted)
            result = here.fit(y, start=best.result.posterior, tol=1e-7)
            sides.append(here.gradient(result.posterior, y) + here.log_prior()[1])
        hessian[j] = -(sides[0] - sides[1]) / (2 * STEP)
    return 0.5 * (hessian + hessian.T)


def _grid(d: int) -> tuple[Array, Array]:
    """Equally spaced nodes and their mass under N(0, I)."""
    line = SPACING * np.arange(-REACH, REACH + 1)
    z = np.array(list(product(line, repeat=d)))
    z = z[(z**2).sum(1) <= (SPACING * REACH) ** 2 + 1e-9]
    mass = np.exp(-0.5 * (z**2).sum(1))
    return z, mass / mass.sum()


def central_composite(d: int) -> tuple[Array, Array]:
    """A centre, 2 d axial points and corners, all on a sphere; masses that match E 1 and E |z|^2 under N(0, I)."""
    radius = SPHERE * np.sqrt(d)
    axial = radius * np.vstack([np.eye(d), -np.eye(d)])
    corners = SPHERE * _two_level_design(d)
    sphere = np.vstack([axial, corners])
    mass = np.full(len(sphere), 1.0 / (SPHERE**2 * len(sphere)))
    return np.vstack([np.zeros(d), sphere]), np.append(1.0 - 1.0 / SPHERE**2, mass)


def _two_level_design(d: int) -> Array:
    """Signs of a two-level design with orthogonal main effects: full up to 4 factors, else Hadamard and its mirror."""
    if d <= 4:
        return np.array(list(product((-1.0, 1.0), repeat=d)))
    matrix = np.ones((1, 1))
    while len(matrix) <= d:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    half = matrix[:, 1 : d + 1]
    return np.vstack([half, -half])
