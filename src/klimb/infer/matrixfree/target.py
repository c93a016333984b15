"""The bound of a model that is known by products, as a function of its mean u and of the variances v at the sites.

For q = N(u, A^-1) with A = P + B' diag(gamma) B, v = diag(B A^-1 B') and m = B u,

    bound = log G(u) + sum_i value_i(m_i, v_i) + [ gamma'v - log det A + D log 2 pi ] / 2

where G is the product of the Gaussian factors and P its precision: E_q log G = log G(u) - (D - gamma'v) / 2, and the
entropy is (D log 2 pi e - log det A) / 2. This bounds the log of the integral of all factors, whether the Gaussian ones
are normalised, singular or absent. With the oracle of the local bound it is -phi_z / 2 of [N] including g*(z).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, final

import numpy as np

from klimb.errors import InputError
from klimb.infer.problem import ROUNDING, Problem
from klimb.latents.base import Factor
from klimb.latents.implicit import LOG_TWO_PI, ImplicitFactor
from klimb.linalg.variances import LogDet, Variances
from klimb.numerics.arrays import Array
from klimb.sites.base import Expectation, Site
from klimb.sites.local import SuperGaussian
from klimb.sites.stack import Stack
from klimb.sites.wrappers import Wrapper

Bound: TypeAlias = Literal["auto", "local", "kl"]
FLOOR = 1e-8  # of a site's own precision: the least curvature that a Newton step on the mean gives it
SMALL = 1e-3  # of |gamma|: the same where the curvature is negative (sites that are not log-concave)


def site_for(site: Site, bound: Bound) -> Site:
    """The oracle whose bound is raised: of the site itself (KL), or of its best Gaussian lower bound (local).

    "auto" decides part by part: the KL bound is the tighter one, the local bound keeps gamma positive where a
    likelihood is not log-concave. A Gaussian site is its own local bound.

    >>> from klimb.sites import Logistic, StudentT
    >>> site_for(Stack([(Logistic(), 3), (StudentT(3.0, 1.0), 2)]), "auto").parts
    ((Logistic(), 3), (SuperGaussian(site=StudentT(df=3.0, scale=1.0)), 2))
    """
    if isinstance(site, Stack):
        return replace(site, parts=[(site_for(part, bound), count) for part, count in site.parts])
    if bound == "kl" or isinstance(site, SuperGaussian) or site.gamma_trend == "constant":
        return site
    if bound == "auto" and (site.log_concave or not site.super_gaussian):
        return site
    return SuperGaussian(site)


def curvature_is_gamma(site: Site) -> bool:
    """Whether the second derivative of the oracle in m is its gamma, so that it need not be asked for."""
    if isinstance(site, Stack):
        return all(curvature_is_gamma(part) for part, _ in site.parts)
    if isinstance(site, SuperGaussian):
        return False
    if isinstance(site, Wrapper):
        return curvature_is_gamma(site.site)
    return type(site).curvature is Site.curvature


@final
@dataclass(frozen=True, eq=False)
class MeanPoint:
    """Weights u with what belongs to them: B u, X u, the oracle there, and the part of the bound that u enters."""

    u: Array
    s: Array
    fitted: Array
    e: Expectation
    objective: float
    noise: float  # size of rounding errors in the objective


@final
class BoundTarget:
    """A latent, an oracle and data; counts oracle calls in the problem it belongs to."""

    def __init__(self, problem: Problem, bound: Bound) -> None:
        if np.any(problem.latent.slack):
            raise InputError("DoubleLoop needs a latent without slack", type(problem.latent).__name__,
                             "Leave the step out.")
        if not problem.site.separable or not problem.site.uses_variance:
            raise InputError("DoubleLoop needs sites with one latent value and an expectation each",
                             type(problem.site).__name__, "Use klimb.latents.Weights with this site.")
        self.problem, self.latent, self.y = problem, problem.latent.implicit(), problem.y
        self.own = self.latent is problem.latent  # else its products are those of f - offset
        self.offset: Array | float = 0.0 if self.own else problem.latent.mean
        self.site = site_for(problem.site, bound)
        self.slope, gamma = self.site.start(self.y)
        self.start_gamma = np.array(np.broadcast_to(gamma, self.y.shape))
        self._direct = curvature_is_gamma(self.site)

    def factor(self, gamma: Array, variances: Variances, log_det: LogDet, u: Array) -> Factor:
        """The factor of a state: it belongs to the latent of the problem."""
        if not self.own:
            return self.problem.latent.factor(gamma)
        return ImplicitFactor(self.latent, gamma, variances=variances, log_det=log_det, weights=u)

    def oracle(self, m: Array, v: Array) -> Expectation:
        self.problem.n_oracle += 1
        with np.errstate(over="ignore", invalid="ignore"):
            return self.site.oracle(self.y, m, v)

    def newton_weights(self, mean: MeanPoint, v: Array) -> Array:
        """Curvatures of the sites in m, kept positive: e of the inner loop ([N] section 2.2)."""
        curvature = mean.e.gamma if self._direct else self.site.curvature(self.y, mean.s, v)
        floor = np.maximum(FLOOR * self.start_gamma, np.where(curvature < 0.0, SMALL * np.abs(mean.e.gamma), 0.0))
        return np.maximum(curvature, floor)

    def mean_at(self, u: Array, v: Array) -> MeanPoint:
        return self.mean_of(u, self.offset + self.latent.B.times(u), self.latent.gaussian.fitted(u), v)

    def mean_of(self, u: Array, s: Array, fitted: Array, v: Array) -> MeanPoint:
        e = self.oracle(s, v)
        gaussian = self.latent.gaussian.log_density(u, fitted)
        with np.errstate(over="ignore", invalid="ignore"):
            total, size = float(e.value.sum()), float(np.abs(e.value).sum())
        objective = gaussian + total if np.isfinite(gaussian + total) else -np.inf
        return MeanPoint(u, s, fitted, e, objective, ROUNDING * (abs(gaussian) + size))

    def gradient(self, mean: MeanPoint) -> Array:
        """Of the objective in u."""
        return self.latent.gaussian.gradient(mean.u, mean.fitted) - self.latent.B.transpose_times(mean.e.alpha)

    def divergence(self, mean: MeanPoint, gamma: Array, v: Array, log_det: float) -> float:
        """What the expected log likelihood loses in the bound: KL(q || G), G the Gaussian factors as they stand."""
        gaussian = self.latent.gaussian.log_density(mean.u, mean.fitted)
        return -gaussian - 0.5 * (float(gamma @ v) - log_det + self.latent.n_weights * LOG_TWO_PI)
