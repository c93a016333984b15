"""The log weight of a draw: log p(y, f) - log q(f), and its gradient in the standard coordinates of q.

q has precision K^-1 + diag(gamma) and mean mu + K a, so prior and q together leave one term per site:

    log w(z) = sum_i [ log p(y_i | m_i + d_i) - a_i d_i + gamma_i d_i^2 / 2 ] - [ a'(m - mu) + log det(I + K G) ] / 2

with d = Z z. No inverse and no determinant of the prior appears. Its mean under q is the bound. At the optimum of the
bound the terms have no part that is linear or quadratic in d: what is left, of third order and higher, is exactly what
a Gaussian cannot say.
"""

from __future__ import annotations

from typing import Any, final

import numpy as np

from klimb.infer.problem import Problem
from klimb.latents.base import Posterior
from klimb.latents.coordinates import Coordinates
from klimb.numerics.arrays import Array
from klimb.sites.base import Site
from klimb.sites.local import SuperGaussian
from klimb.sites.wrappers import Point


def exact_site(site: Site) -> Site:
    """The likelihood itself, where a method saw it at a point (Laplace) or through a local bound."""
    while isinstance(site, Point | SuperGaussian):
        site = site.site
    return site


@final
class LogWeights:
    """log w and its gradient for draws in standard coordinates.

    ``mean`` is the exact expectation of log w under q: the bound, whatever method found q.
    """

    def __init__(self, problem: Problem, posterior: Posterior, coordinates: Coordinates) -> None:
        self.posterior, self.coordinates = posterior, coordinates
        self.site, self.y = exact_site(problem.site), problem.y
        latent = posterior.latent
        self._slack = latent.slack if np.any(latent.slack > 0) else None
        self.expectation = self.site.oracle(self.y, posterior.m, posterior.v)
        variance_term = float(posterior.gamma @ (posterior.v - latent.slack))
        if latent.by_products:  # a flat prior has neither mean nor determinant, but its KL has what matters of both
            self.offset = problem.constant - posterior.kl - 0.5 * variance_term
        else:
            mean_term = float(posterior.a @ (posterior.m - latent.mean))
            self.offset = problem.constant - 0.5 * (mean_term + posterior.factorised().logdet)
        self.mean = float(self.expectation.value.sum()) + self.offset + 0.5 * variance_term
        self.stationarity = _stationarity(posterior, self.expectation.alpha, self.expectation.gamma)

    def __call__(self, z: Array) -> tuple[Array, Array]:
        """(log w, its gradient) for each row of ``z``: shapes (S,) and (S, dim)."""
        total = np.full(len(z), self.offset)
        quadratic = self.coordinates.excess(z)
        gamma = self.posterior.gamma if quadratic is None else np.zeros_like(self.posterior.gamma)

        def visit(rows: slice, d: Array) -> Array:
            value, slope = self._terms(rows, d, gamma[rows])
            np.add(total, value, out=total)
            return slope

        if self.site.separable:
            gradient = self.coordinates.sweep(z, visit)
        else:  # a datum's latent values lie far apart in the order of the sites
            gradient = self.coordinates.pull(visit(slice(0, self.coordinates.n_sites), self.coordinates.deviations(z)))
        if quadratic is not None:
            total += quadratic[0]
            gradient += quadratic[1]
        return total, gradient

    def _terms(self, rows: slice, d: Array, gamma: Array) -> tuple[Array, Array]:
        """Sums over a block of sites for deviations (draws x sites), and the slope of each term."""
        a, f = self.posterior.a[rows], self.posterior.m[rows] + d
        with np.errstate(over="ignore", invalid="ignore"):
            value, alpha = self._log_density(rows, f)
            total = value.sum(axis=1)
            slope = gamma * d
            total += 0.5 * np.einsum("ij,ij->i", slope, d)
            total -= d @ a
            slope -= alpha
            slope -= a
        lost = ~np.isfinite(total)
        if lost.any():  # draws that the data rule out: weight zero, and no slope
            total[lost], slope[lost] = -np.inf, 0.0
        return np.asarray(total), slope

    def _log_density(self, rows: slice, f: Array) -> tuple[Array, Array]:
        """log p(y|f) and minus its slope; where f has unexplained variance, their expectation over that."""
        site, y = (self.site.rows(rows), self.y[rows]) if self.site.separable else (self.site, self.y)
        if self._slack is None:
            e = site.point(y, f)
            return e.value, e.alpha
        parts: list[Any] = [site.oracle(y, row, self._slack[rows]) for row in f]
        return np.array([e.value for e in parts]), np.array([e.alpha for e in parts])


def _stationarity(posterior: Posterior, alpha: Array, gamma: Array) -> float:
    """How far q is from an optimum of the bound, free of scale: for Laplace's or EP's posterior it is not small."""
    with np.errstate(invalid="ignore", over="ignore"):
        first = np.sqrt(posterior.v) * np.abs(posterior.a + alpha)
        second = posterior.v * np.abs(posterior.gamma - gamma)
    worst = float(max(first.max(), second.max()))
    return worst if np.isfinite(worst) else float("inf")
