"""Gaussian processes with kernel, noise and inducing points found by the bound."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self, final

import numpy as np

from klimb.errors import InputError
from klimb.infer.loop import infer
from klimb.infer.result import Result
from klimb.latents.base import Latent, Posterior
from klimb.models.gp import GaussianProcess
from klimb.models.kernel import new_blocks
from klimb.models.update import update
from klimb.numerics.arrays import Array
from klimb.sites.base import Site
from klimb.sites.wrappers import Weighted
from klimb.sklearn.base import Classifier, Regressor, one_or_array, one_or_list
from klimb.sklearn.likelihood import Likelihood, intercept_centres, likelihood_for
from klimb.sklearn.linear import parts_of, side_by_side
from klimb.sklearn.process_model import fit_process, has_noise, make_kernel
from klimb.sklearn.rows import Rows, distinct_rows
from klimb.sklearn.scaling import Scaling

DENSE_LIMIT = 2**27  # entries (1 GiB) of a sparse X that may be filled in


@final
@dataclass(frozen=True, eq=False)
class ProcessFit:
    """One fitted process, with its data: a process needs them to predict."""

    process: GaussianProcess
    result: Result
    y: Array
    weights: Array | None
    bound: float
    n_fits: int

    @cached_property
    def parts(self) -> tuple[Posterior, ...]:
        return parts_of(self.result.posterior)

    def predict(self, X: Array) -> tuple[Array, Array]:
        """Means and variances of f at scaled inputs, one column per latent value."""
        process, parts = self.process, self.parts
        m, v = np.empty((len(X), len(parts))), np.empty((len(X), len(parts)))
        for rows in new_blocks(X, process.anchors):  # their covariances serve all latent values
            cross, diagonal = process.kernel.gram(X[rows], process.anchors), process.kernel.diag(X[rows])
            for k, part in enumerate(parts):
                latent: Any = part.latent
                m[rows, k], v[rows, k] = latent.predict(part, cross, diagonal, process.mean(X[rows]))
        return m, v

    def extend(
        self, X: Array, y: Array, weights: Array | None, plain: Site, log_jacobian: float, tol: float
    ) -> ProcessFit:
        """The fit to all data, these included, at the same hyperparameters and inducing points."""
        everything = _joined(self.weights, len(self.y), weights, len(y))
        site = plain if everything is None else Weighted(plain, everything)
        size = float(len(self.y) + len(y) if everything is None else everything.sum())
        together = np.concatenate([self.y, y])
        if plain.separable:
            process, result = update(self.process, self.result, self.y, X, y, site=site, tol=tol)
        else:
            process = replace(self.process, X=np.vstack([self.process.X, X]))
            latent = side_by_side([process.latent] * plain.n_outputs)
            result = infer(latent, site, together, start=self._with_new_sites(latent, plain, y), tol=tol)
        return ProcessFit(process, result, together, everything, result.bound + size * log_jacobian, self.n_fits)

    def _with_new_sites(self, latent: Latent, plain: Site, y: Array) -> Posterior:
        """A start from the sites so far and those that new data suggest, latent value by latent value."""
        old, count = self.result.posterior, plain.n_outputs
        slope, gamma = plain.start(y)
        pairs = ((old.a + old.gamma * old.m, slope), (old.gamma, gamma))
        slopes, gammas = (np.hstack([one.reshape(count, -1), two.reshape(count, -1)]).ravel() for one, two in pairs)
        nothing = np.zeros_like(slopes)
        return Posterior(latent, slopes, gammas, nothing, nothing, 0.0)  # the loop takes a + gamma m and gamma


def _joined(first: Array | None, n_first: int, second: Array | None, n_second: int) -> Array | None:
    if first is None and second is None:
        return None
    return np.concatenate([np.ones(n) if w is None else w for w, n in ((first, n_first), (second, n_second))])


def _dense(X: Any) -> Array:
    if not hasattr(X, "tocsr"):
        return np.asarray(X)
    if np.prod(X.shape, dtype=np.float64) > DENSE_LIMIT:
        raise InputError("a process works on dense inputs of up to 1 GiB", f"a sparse matrix of shape {X.shape}",
                         "Reduce its columns (TruncatedSVD), or use a GLM.")
    return np.asarray(X.toarray())


class _Process:
    """What both estimators do with inputs: fill in, scale, merge."""

    def _rows(self, X: Any, y: Array, weights: Array | None) -> Rows:
        kernel: Any = self.kernel  # type: ignore[attr-defined]
        return distinct_rows(_dense(X), y, weights, merge=not has_noise(kernel))

    def _scale(self, X: Array, weights: Array | None) -> None:
        plain = Scaling(np.zeros(X.shape[1]), np.ones(X.shape[1]))
        self._scaling = Scaling.of(X, weights) if self.standardize else plain  # type: ignore[attr-defined]

    def _inputs(self, X: Any) -> Array:
        return np.asarray(self._scaling.apply(_dense(X)))

    def _fit_one(self, X: Array, y: Array, likelihood: Likelihood) -> tuple[ProcessFit, Likelihood]:
        kernel = make_kernel(self, X.shape[1])
        clean = likelihood.site.validate(likelihood.scaled(y))
        centre = intercept_centres(likelihood, y)[0] if likelihood.site.separable else 0.0
        model, result, n_fits = fit_process(kernel, X, likelihood, clean, centre, self)
        process = replace(model.process, likelihood=model.site) if model.site.separable else model.process
        bound = result.bound + likelihood.total(len(y)) * likelihood.log_jacobian
        return ProcessFit(process, result, clean, likelihood.weights, bound, n_fits), model.likelihood


@final
class GPRegressor(Regressor, _Process):
    """Gaussian process regression with any of klimb's likelihoods.

    Parameters
    ----------
    likelihood : str or klimb site
        "gaussian", "student_t", "laplace", "poisson", "negative_binomial", "gamma", "exponential", "beta", or a site.
    kernel : str or klimb kernel
        A name ("Matern52", "RBF", ...) or your own, e.g. ``klimb.kernels.RBF() + klimb.kernels.Linear()``; the free
        parameters of your own are learnt from the values it has.
    variance, lengthscale : "auto" or float
        Of a kernel by name: prior variance of f (in units of the link, or of y's variance) and lengthscale (in standard
        deviations of the columns; one for all, or a list with one per column).
    ard : "auto" or bool
        Whether each column learns a lengthscale of its own; "auto": for up to 20 columns with five rows each.
    dispersion : "auto" or float
        The likelihood's parameter (noise sigma, size, shape, ...), in the units of y.
    inducing : "auto", None, int or array
        Inducing points: none up to 800 distinct rows and as many as the bound asks for beyond, or none at all, or how
        many, or where (in scaled inputs).
    standardize : bool
        Whether columns are scaled to mean 0 and variance 1.
    tol : float
        Of fits in `partial_fit`, as in `klimb.infer`.
    max_iter : int
        Most steps of each search for hyperparameters.

    Attributes
    ----------
    kernel_ : klimb kernel
        With what was learnt, for scaled inputs.
    dispersion_ : dict
        The likelihood's parameters by name, in the units of y.
    bound_, result_, posterior_, converged_, n_iter_
        As in `GLMRegressor`.
    inducing_ : array or None
        The inducing points, for scaled inputs.

    Examples
    --------
    >>> import numpy as np
    >>> from klimb.sklearn import GPRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(0, 6, (80, 1))
    >>> y = np.sin(X[:, 0]) + 0.1 * rng.standard_normal(80)
    >>> model = GPRegressor().fit(X, y)
    >>> mean, sd = model.predict([[1.5], [20.0]], return_std=True)
    >>> bool(abs(mean[0] - np.sin(1.5)) < 2 * sd[0])
    True
    >>> bool(sd[1] > 10 * sd[0])  # far from the data
    True
    """

    def __init__(
        self,
        likelihood: Any = "gaussian",
        *,
        kernel: Any = "Matern52",
        variance: Any = "auto",
        lengthscale: Any = "auto",
        ard: Any = "auto",
        dispersion: Any = "auto",
        inducing: Any = "auto",
        standardize: bool = True,
        tol: float = 1e-6,
        max_iter: int = 100,
    ) -> None:
        self.likelihood = likelihood
        self.kernel = kernel
        self.variance = variance
        self.lengthscale = lengthscale
        self.ard = ard
        self.dispersion = dispersion
        self.inducing = inducing
        self.standardize = standardize
        self.tol = tol
        self.max_iter = max_iter

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit the process; a row of weight k counts like k rows."""
        X, y, weights = self._checked_data(X, y, sample_weight, numeric=True)
        rows = self._rows(X, np.asarray(y, dtype=np.float64), weights)
        self._scale(rows.X, rows.weights)
        likelihood = likelihood_for(self.likelihood, self.dispersion, rows.y, rows.weights)
        fitted, likelihood = self._fit_one(self._inputs(rows.X), rows.y, likelihood)
        self._keep(likelihood)
        return self._set(fitted)

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Add rows: the fit to all data so far, at the scaling and the hyperparameters of the first call."""
        if not hasattr(self, "result_"):
            return self.fit(X, y, sample_weight)
        X, y, weights = self._checked_data(X, y, sample_weight, numeric=True, reset=False)
        rows = self._rows(X, (np.asarray(y, dtype=np.float64) - self._centre) / self._spread, weights)
        jacobian = -float(np.log(self._spread))
        return self._set(self._fit.extend(self._inputs(rows.X), self._site.validate(rows.y), rows.weights, self._site,
                                          jacobian, self.tol))

    def _set(self, fitted: ProcessFit) -> Self:
        self._fit = fitted
        self.kernel_, self.inducing_ = fitted.process.kernel, fitted.process.Z
        self.bound_, self.result_, self.posterior_ = fitted.bound, fitted.result, fitted.result.posterior
        self.converged_, self.n_iter_ = fitted.result.converged, fitted.n_fits
        return self

    def _predict_latent(self, X: Any) -> tuple[Array, Array]:
        m, v = self._fit.predict(self._inputs(X))
        return m[:, 0], v[:, 0]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = self.likelihood in ("gamma", "exponential")
        return tags


@final
class GPClassifier(Classifier, _Process):
    """Gaussian process classification for two or more classes.

    Parameters
    ----------
    link : "logit" or "probit"
        For two classes, and for several with ``multi_class="ovr"``.
    multi_class : "softmax" or "ovr"
        More than two classes: one model with a process per class, all with the same kernel; or one model per class
        against the rest, each with its own.
    kernel, variance, lengthscale, ard, inducing, standardize, tol, max_iter
        As in `GPRegressor`.

    Attributes
    ----------
    classes_ : array
    kernel_, inducing_, bound_, result_, posterior_
        As in `GPRegressor`; with "ovr" and several classes, lists with one entry each.
    converged_, n_iter_

    Examples
    --------
    >>> import numpy as np
    >>> from klimb.sklearn import GPClassifier
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-2, 2, (150, 2))
    >>> y = (X**2).sum(axis=1) < 2  # inside or outside a circle
    >>> model = GPClassifier().fit(X, y)
    >>> model.predict([[0.0, 0.0], [1.8, 1.8]])
    array([ True, False])
    """

    def __init__(
        self,
        link: str = "logit",
        *,
        multi_class: str = "softmax",
        kernel: Any = "Matern52",
        variance: Any = "auto",
        lengthscale: Any = "auto",
        ard: Any = "auto",
        inducing: Any = "auto",
        standardize: bool = True,
        tol: float = 1e-6,
        max_iter: int = 100,
    ) -> None:
        self.link = link
        self.multi_class = multi_class
        self.kernel = kernel
        self.variance = variance
        self.lengthscale = lengthscale
        self.ard = ard
        self.inducing = inducing
        self.standardize = standardize
        self.tol = tol
        self.max_iter = max_iter

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit the process; a row of weight k counts like k rows."""
        return self._fit_classes(*self._checked_classes(X, y, sample_weight))

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Add rows: the fit to all data so far, at the scaling and the hyperparameters of the first call.

        ``classes`` names all classes there will be; it is needed in the first call if that does not see them all.
        """
        if not hasattr(self, "result_"):
            return self._fit_classes(*self._checked_classes(X, y, sample_weight, classes))
        X, code, weights = self._checked_classes(X, y, sample_weight, reset=False)
        rows = self._rows(X, code, weights)
        site, inputs = self._likelihood(None).plain, self._inputs(rows.X)
        return self._set([fit.extend(inputs, site.validate(target), rows.weights, site, 0.0, self.tol)
                          for fit, target in zip(self._fits, self._targets(rows.y), strict=True)])

    def _fit_classes(self, X: Any, code: Array, weights: Array | None) -> Self:
        rows = self._rows(X, code, weights)
        self._scale(rows.X, rows.weights)
        inputs, likelihood = self._inputs(rows.X), self._likelihood(rows.weights)
        return self._set([self._fit_one(inputs, target, likelihood)[0] for target in self._targets(rows.y)])

    def _set(self, fits: list[ProcessFit]) -> Self:
        self._fits = fits
        self.kernel_ = one_or_list([fit.process.kernel for fit in fits])
        self.inducing_ = one_or_list([fit.process.Z for fit in fits])
        self.bound_ = one_or_array([fit.bound for fit in fits])
        self.result_ = one_or_list([fit.result for fit in fits])
        self.posterior_ = one_or_list([fit.result.posterior for fit in fits])
        self.converged_ = all(fit.result.converged for fit in fits)
        self.n_iter_ = max(fit.n_fits for fit in fits)
        return self

    def _latents(self, X: Any) -> tuple[Array, Array]:
        inputs = self._inputs(X)
        pairs = [fit.predict(inputs) for fit in self._fits]
        return np.hstack([m for m, _ in pairs]), np.hstack([v for _, v in pairs])
