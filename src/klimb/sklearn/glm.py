"""Generalised linear models with the prior scale and the dispersion found by the bound: ``y ~ ridge(.)``."""

from __future__ import annotations

from typing import Any, Self, final

import numpy as np
from sklearn.utils.validation import check_is_fitted

from klimb.likelihoods import Likelihood
from klimb.models.fit import Fit
from klimb.models.matrix import MatrixData, absorb, fit_matrix
from klimb.numerics.arrays import Array
from klimb.rows.distinct import Rows
from klimb.sklearn.base import Classifier, Estimator, GrowingRegressor, one_or_array, positive_or_auto
from klimb.sklearn.linear import LinearRegressor, at_zero, coefficients, held, means, prior_scale, ways_to_scale
from klimb.terms.ridge import NAME, Ridge


class _RidgeModel(Estimator):
    """What both estimators do with rows: one prior scale for all coefficients."""

    def _fitted(self, rows: Rows, likelihood: Likelihood, names: tuple[str, ...], weights: Array | None) -> Fit:
        data = MatrixData.of(rows, likelihood, names, weights)
        scale = positive_or_auto(self.prior_scale, "prior_scale")
        ways = ways_to_scale(rows, self.standardize, intercept=bool(self.fit_intercept), given=scale is not None)
        return fit_matrix(data, ways, Ridge.of_matrix, held(NAME, scale, data), tol=self.tol, max_iter=self.max_iter)

    def _extended(self, fit: Fit, rows: Rows, names: tuple[str, ...], weights: Array | None) -> Fit:
        return absorb(fit, rows, names, tol=self.tol)

    def _hold(self, fits: list[Fit]) -> None:
        super()._hold(fits)
        if all(fit.data is not None for fit in fits):  # more rows and files have no say in it
            self.prior_scale_ = one_or_array([prior_scale(fit) for fit in fits])


@final
class GLMRegressor(_RidgeModel, LinearRegressor, GrowingRegressor):
    """A generalised linear model: y depends on f = intercept + X coef through a likelihood.

    Parameters
    ----------
    family : str or klimb site
        "gaussian", "student_t", "laplace", "poisson", "negative_binomial", "gamma", "exponential", "beta"; parameters
        may be fixed in the name, as in "student_t(df=4)", or by a site such as ``klimb.sites.Gamma(2.0)``.
    prior_scale : "auto" or float
        Standard deviation of the coefficients' prior, for columns at unit variance (and, with an identity link, y at
        unit variance). "auto" takes the best bound.
    dispersion : "auto" or float
        The family's parameter (sigma, size, shape, ...), in the units of y.
    fit_intercept : bool
        Whether f has an intercept, whose prior is that of formulas: N(link of the mean response, 2.5^2) in units of
        y's spread. Without one, columns are scaled but not centred.
    standardize : "auto" or bool
        Whether each column is brought to unit variance, so that the prior treats all alike; without it, all have one
        scale in common, and columns of small variance matter less (rare words). "auto" does so, but for a sparse X of
        mostly zeros it takes whichever has the better bound.
    tol : float
        Of the final fit, as in `klimb.infer`.
    max_iter : int
        Most steps of the search for hyperparameters.

    Notes
    -----
    In ``partial_fit`` the posterior so far is the prior of more rows. The first rows decide the scaling of the columns,
    the prior scale and the dispersion, so let them be typical. Exact for a Gaussian likelihood; for others earlier rows
    stay as they were approximated when they came.

    Attributes
    ----------
    coef_, intercept_, coef_std_, intercept_std_ : arrays and floats
        Posterior means and standard deviations, per unit of X.
    prior_scale_ : float
    dispersion_ : dict
        The family's parameters by name.
    bound_ : float
        Evidence lower bound (ELBO) of y.
    fit_ : klimb Fit
        Predictions with credible intervals, ``loo()``, ``trust``, draws; ``fit_.result`` and ``fit_.posterior`` are
        those of the standardised, distinct rows.
    converged_ : bool
    n_iter_ : int
        How many fits the search took.

    Examples
    --------
    >>> import numpy as np
    >>> from klimb.sklearn import GLMRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((200, 2))
    >>> y = rng.poisson(np.exp(0.5 + X @ [1.0, 0.0]))
    >>> model = GLMRegressor(family="poisson").fit(X, y)
    >>> bool(np.all(np.abs(model.coef_ - [1.0, 0.0]) < 3 * model.coef_std_))
    True
    >>> mean, sd = model.predict(X[:2], return_std=True)
    """

    def __init__(self, family: Any = "gaussian", *, prior_scale: Any = "auto", dispersion: Any = "auto",
                 fit_intercept: bool = True, standardize: Any = "auto", tol: float = 1e-6, max_iter: int = 100) -> None:
        self._keep(locals())

    def _target(self) -> tuple[Any, Any]:
        return self.family, self.dispersion


@final
class GLMClassifier(_RidgeModel, Classifier):
    """Bayesian logistic (or probit) regression for two or more classes.

    Parameters
    ----------
    link : "logit" or "probit"
        For two classes, and for several with ``multi_class="ovr"``.
    multi_class : "softmax" or "ovr"
        More than two classes: one model with a linear predictor per class, or one model per class against the rest.
    prior_scale : "auto" or float
        Standard deviation of the coefficients' prior, for columns at unit variance. "auto" takes the best bound.
    fit_intercept : bool
        Whether there is an intercept, whose prior is that of formulas: N(link of the share of the class, 2.5^2).
    standardize, tol, max_iter
        As in `GLMRegressor`.

    Notes
    -----
    A sparse X of tens of thousands of rows and columns (texts) is fitted by products alone; variances are then good to
    a few per cent, and ``partial_fit`` is not there.

    Attributes
    ----------
    classes_ : array
    coef_, coef_std_ : (1, D) arrays for two classes, (K, D) for more
    intercept_, intercept_std_ : (1,) or (K,) arrays
    prior_scale_, bound_ : floats; with "ovr" and several classes, arrays with one entry each
    fit_ : klimb Fit; with "ovr" and several classes, a list
    converged_, n_iter_

    Examples
    --------
    >>> import numpy as np
    >>> from klimb.sklearn import GLMClassifier
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((300, 2))
    >>> y = np.where(X @ [2.0, 0.0] + rng.logistic(size=300) > 0, "up", "down")
    >>> model = GLMClassifier().fit(X, y)
    >>> model.predict([[2.0, 0.0], [-2.0, 0.0]])
    array(['up', 'down'], dtype='<U4')
    >>> model.predict_proba([[0.5, 0.0]]).round(1)
    array([[0.3, 0.7]])
    """

    def __init__(self, link: str = "logit", *, multi_class: str = "softmax", prior_scale: Any = "auto",
                 fit_intercept: bool = True, standardize: Any = "auto", tol: float = 1e-6, max_iter: int = 100) -> None:
        self._keep(locals())

    def _set(self, fits: list[Fit]) -> Self:
        self._hold(fits)
        intercepts = zip(*(at_zero(fit) for fit in fits), strict=True)
        self.coef_ = np.concatenate([coefficients(fit, fit.components.parts[0].mean) for fit in fits])
        self.intercept_, self.intercept_std_ = (np.concatenate(part) for part in intercepts)
        return self

    @property
    def coef_std_(self) -> Array:
        """Posterior standard deviations of the coefficients."""
        check_is_fitted(self)
        return np.concatenate([coefficients(fit, fit.components.parts[0].sd()) for fit in self._fits])

    def _means(self, X: Any) -> Array:
        return np.hstack([means(fit, X) for fit in self._fits])
