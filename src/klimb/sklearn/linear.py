"""The linear model behind the estimators: coefficients with one prior scale, found by the bound.

    w_0 ~ N(centre, INTERCEPT^2)      w_j ~ N(0, scale^2)      f = w_0 + x'w      x standardised

With several classes there is one such f for each, all with the same scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self, final

import numpy as np

from klimb.infer.evidence import optimise
from klimb.infer.hyper import Hypermodel
from klimb.infer.loop import infer
from klimb.infer.result import Result
from klimb.latents.base import Latent, Posterior
from klimb.latents.implicit import Implicit
from klimb.latents.kernel import Kernel, kernel_factor
from klimb.latents.outputs import Outputs
from klimb.latents.weights import Weights
from klimb.linalg.matrix import DesignMatrix
from klimb.numerics.arrays import Array
from klimb.numerics.dense import row_blocks
from klimb.priors import LogNormal
from klimb.sites.base import Site
from klimb.sklearn.likelihood import OPEN, Likelihood
from klimb.sklearn.scaling import CentredDesign

INTERCEPT = 10.0  # prior standard deviation of the intercept, in units of the link (of y's spread)
SCALE_PRIOR = LogNormal(median=1.0, sd=2.0)  # of the prior scale: says little, but that it is neither 0 nor infinite
SCALE_BOUNDS = (np.log(1e-6), OPEN)
BEHIND = 0.1  # share of the bound by which a way to scale columns may be behind at first and still be searched
PREDICTED = 0.03  # relative error of variances that are estimated after a fit
WIDE = 1.5  # columns over rows from which N x N matrices are cheaper than D x D ones (klimb.latents.Weights)


@final
@dataclass(frozen=True, eq=False)
class LinearModel(Hypermodel):
    """Standardised rows, a likelihood and the scale of the prior; ``learn_scale`` frees it."""

    design: DesignMatrix  # with a column of ones in front where ``intercept`` is not None
    intercept: tuple[float, ...] | None  # prior means of the intercepts, one per output of the site
    likelihood: Likelihood
    scale: float
    learn_scale: bool

    @property
    def names(self) -> tuple[str, ...]:
        return ("log prior scale",) * self.learn_scale + self.likelihood.names

    @property
    def theta(self) -> Array:
        return np.concatenate([np.log([self.scale])[: int(self.learn_scale)], self.likelihood.theta])

    @property
    def bounds(self) -> tuple[Array, Array]:
        both: Array = np.array([SCALE_BOUNDS] * self.learn_scale + self.likelihood.bounds).reshape(-1, 2)
        return both[:, 0], both[:, 1]

    def with_theta(self, theta: Array) -> Self:
        k = int(self.learn_scale)
        scale = float(np.exp(theta[0])) if k else self.scale
        other = replace(self, scale=scale, likelihood=self.likelihood.with_theta(theta[k:]))
        if "gram" in self.__dict__:  # depends on the rows alone
            other.__dict__["gram"] = self.gram
        return other

    @property
    def site(self) -> Site:
        return self.likelihood.site

    @property
    def wide(self) -> bool:
        """Whether the search works with N x N matrices."""
        return self.design.shape[0] < WIDE * self.design.shape[1]

    @cached_property
    def gram(self) -> Array:
        """X X' without the intercept: what the kernel matrix is a multiple of, whatever the scale."""
        slopes = np.ones(self.design.shape[1])
        slopes[: int(self.intercept is not None)] = 0.0
        return self.design.outer_gram(slopes)

    @property
    def latent(self) -> Latent:
        if not self.wide:
            return self.weights
        K = self.scale**2 * self.gram
        if self.intercept is not None:
            K += INTERCEPT**2
        return side_by_side([Kernel(K, mean, check=False) for mean in self._centres])

    @property
    def weights(self) -> Latent:
        """The same prior with its weights at hand."""
        return side_by_side([self._weights(mean) for mean in self._centres])

    @property
    def _centres(self) -> tuple[float, ...]:
        return self.intercept or (0.0,) * self.site.n_outputs

    def _weights(self, centre: float) -> Weights:
        D = self.design.shape[1]
        mean, variances = np.zeros(D), np.full(D, self.scale**2)
        if self.intercept is not None:
            mean[0], variances[0] = centre, INTERCEPT**2
        return Weights(self.design, mean, variances, form="dual" if self.wide else "primal")

    def gradient(self, posterior: Posterior, y: Any) -> Array:
        site = self.likelihood.gradient(posterior, y)
        if not self.learn_scale:
            return site
        return np.concatenate([[sum(self._scale_gradient(part) for part in parts_of(posterior))], site])

    def _scale_gradient(self, posterior: Posterior) -> float:
        """d bound / d log scale = |m_w|^2 / scale^2 + tr V_w / scale^2 - D over the slopes.

        From V_w^-1 = Sigma_w^-1 + X'GX the trace over all weights is D minus gamma'v; the intercept's share is its own.
        """
        latent = posterior.latent
        if isinstance(latent, Kernel):
            return 2.0 * self.scale**2 * float(np.vdot(latent.bound_gradient(posterior), self.gram))
        assert isinstance(latent, Weights)
        mean, known = posterior.mean, 0.0
        if self.intercept is not None:
            first = np.zeros((1, len(mean)))
            first[0, 0] = 1.0
            known = 1.0 - float(latent.predict(posterior, first)[1][0]) / INTERCEPT**2
            mean = mean[1:]
        return float(mean @ mean) / self.scale**2 + known - float(posterior.gamma @ posterior.v)

    def log_prior(self) -> tuple[float, Array]:
        value, slope = self.likelihood.log_prior()
        if not self.learn_scale:
            return value, slope
        own = SCALE_PRIOR.log_density(self.scale) + float(np.log(self.scale))
        return value + own, np.concatenate([[SCALE_PRIOR.slope(self.scale) + 1.0], slope])


def fit_linear(model: LinearModel, y: Array, *, tol: float, max_iter: int) -> tuple[LinearModel, Result, int]:
    """The model at its best hyperparameters, the fit there with weights, and the number of fits it took."""
    n_fits, start = 1, None
    if model.theta.size:
        best = optimise(model, y, max_iter=max_iter)
        model, start, n_fits = best.model, best.result.posterior, best.n_fits
    return model, infer(model.weights, model.site, y, start=start, tol=tol), n_fits


def from_unit_scale(model: LinearModel, y: Array) -> tuple[float, LinearModel]:
    """The bound at the prior scale that lets f vary by one or so, and the model there: to compare ways to scale X."""
    columns = model.design.shape[1] - (model.intercept is not None)
    moved = model.with_theta(np.concatenate([[-0.5 * np.log(columns)], model.likelihood.theta]))
    return infer(moved.latent, moved.site, y, tol=1e-3).bound, moved


def hopeful(bounds: Sequence[float]) -> list[int]:
    """Which of several beginnings are worth a search: those not far behind the best."""
    best = max(bounds)
    return [k for k, bound in enumerate(bounds) if bound >= best - BEHIND * abs(best)]


def side_by_side(parts: Sequence[Latent]) -> Latent:
    """The latent of all latent values of a datum."""
    return parts[0] if len(parts) == 1 else Outputs(parts)


def parts_of(posterior: Posterior) -> tuple[Posterior, ...]:
    """The posterior of each latent value of a datum: itself, where there is one."""
    return posterior.latent.split(posterior) if isinstance(posterior.latent, Outputs) else (posterior,)


def weight_deviations(posterior: Posterior) -> Array:
    """Posterior standard deviation of each weight, without a D x D matrix where there are more weights than data.

    There V_jj = s_j^2 - k_j'(K + G^-1)^-1 k_j with k_j = s_j^2 x_j the covariance of weight j with f, for column x_j.
    """
    latent = posterior.latent
    if isinstance(latent, Implicit):
        return np.sqrt(latent.weight_variances(posterior, PREDICTED).value)
    assert isinstance(latent, Weights)
    if latent.form == "primal" or latent.prior.root.ndim == 2:
        return np.sqrt(np.diag(posterior.covariance()))
    variances = latent.prior.root**2
    factor = kernel_factor(latent.X.outer_gram(latent.prior.root), posterior.gamma)
    deviations = np.empty(latent.n_weights)
    for some in row_blocks(latent.n_weights, latent.n_sites):
        columns = latent.X.columns(some) if isinstance(latent.X, CentredDesign) else latent.X.dense()[:, some]
        left = variances[some] - factor.explained((variances[some] * columns).T)
        deviations[some] = np.sqrt(np.maximum(left, 0.0))
    return deviations
