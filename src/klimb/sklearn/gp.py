"""Gaussian process estimators with kernel, noise and inducing points found by the bound."""

from __future__ import annotations

from typing import Any, Self, final

import numpy as np

from klimb.errors import InputError
from klimb.likelihoods import Likelihood
from klimb.models.matrix import MatrixData
from klimb.numerics.arrays import Array
from klimb.rows.distinct import Rows, distinct_rows
from klimb.rows.scaling import Scaling
from klimb.sklearn.base import Classifier, Estimator, GrowingRegressor, one_or_list
from klimb.sklearn.gp_search import ScaledFit, extend, fit_gp, has_noise, scaled, shown_kernel

DENSE_LIMIT = 2**27  # entries (1 GiB) of a sparse X that may be filled in


def _dense(X: Any) -> Array:
    if not hasattr(X, "tocsr"):
        return np.asarray(X)
    if np.prod(X.shape, dtype=np.float64) > DENSE_LIMIT:
        raise InputError("a Gaussian process works on dense inputs of up to 1 GiB",
                         f"a sparse matrix of shape {X.shape}", "Reduce its columns (TruncatedSVD), or use a GLM.")
    return np.asarray(X.toarray())


class _GaussianProcess(Estimator):
    """What both estimators do with inputs: fill in, scale, merge."""

    def _checked_rows(self, X: Any) -> Any:
        return _dense(super()._checked_rows(X))

    def _rows(self, X: Any, y: Array, weights: Array | None) -> Rows:
        return distinct_rows(_dense(X), y, weights, merge=not has_noise(self.kernel))

    def _fitted(self, rows: Rows, likelihood: Likelihood, names: tuple[str, ...], weights: Array | None) -> ScaledFit:
        scaling = Scaling.of(rows.X, rows.weights) if self.standardize else Scaling.none(rows.X.shape[1])
        fit = fit_gp(scaling.apply(rows.X), MatrixData.of(rows, likelihood, names, weights), self)
        return scaled(fit, scaling)

    def _extended(self, fit: ScaledFit, rows: Rows, names: tuple[str, ...], weights: Array | None) -> ScaledFit:
        assert fit.scaling is not None
        return extend(fit, fit.scaling.apply(rows.X), rows, names, weights, self.tol)

    def _set(self, fits: list[ScaledFit]) -> Self:
        self._hold(list(fits))
        models: list[Any] = [fit.model for fit in fits]
        self.kernel_ = one_or_list([shown_kernel(model) for model in models])
        self.inducing_ = one_or_list([model.Z for model in models])
        return self


@final
class GPRegressor(_GaussianProcess, GrowingRegressor):
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

    Notes
    -----
    ``partial_fit`` fits all data so far.

    Attributes
    ----------
    kernel_ : klimb kernel
        With what was learnt, for scaled inputs.
    dispersion_ : dict
        The likelihood's parameters by name, in the units of y.
    bound_, fit_, converged_, n_iter_
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

    def __init__(self, likelihood: Any = "gaussian", *, kernel: Any = "Matern52", variance: Any = "auto",
                 lengthscale: Any = "auto", ard: Any = "auto", dispersion: Any = "auto", inducing: Any = "auto",
                 standardize: bool = True, tol: float = 1e-6, max_iter: int = 100) -> None:
        self._keep(locals())

    def _target(self) -> tuple[Any, Any]:
        return self.likelihood, self.dispersion


@final
class GPClassifier(_GaussianProcess, Classifier):
    """Gaussian process classification for two or more classes.

    Parameters
    ----------
    link : "logit" or "probit"
        For two classes, and for several with ``multi_class="ovr"``.
    multi_class : "softmax" or "ovr"
        More than two classes: one model with a Gaussian process per class, all with the same kernel; or one model per
        class against the rest, each with its own.
    kernel, variance, lengthscale, ard, inducing, standardize, tol, max_iter
        As in `GPRegressor`.

    Attributes
    ----------
    classes_ : array
    kernel_, inducing_, bound_, fit_
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

    def __init__(self, link: str = "logit", *, multi_class: str = "softmax", kernel: Any = "Matern52",
                 variance: Any = "auto", lengthscale: Any = "auto", ard: Any = "auto", inducing: Any = "auto",
                 standardize: bool = True, tol: float = 1e-6, max_iter: int = 100) -> None:
        self._keep(locals())
