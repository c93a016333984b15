"""Generalised linear models with the prior scale and the dispersion found by the bound."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self, final

import numpy as np
from sklearn.utils.validation import check_is_fitted

from klimb.errors import InputError
from klimb.infer.loop import infer
from klimb.infer.result import Result
from klimb.latents.base import Posterior
from klimb.latents.implicit import Implicit
from klimb.latents.weights import Weights
from klimb.likelihoods.families import resolve_family
from klimb.numerics.arrays import Array
from klimb.sklearn.base import Classifier, Regressor, one_or_array, one_or_list
from klimb.sklearn.large import Search, too_large
from klimb.sklearn.likelihood import Likelihood, intercept_centres, likelihood_for, positive_or_auto
from klimb.sklearn.linear import (
    PREDICTED,
    LinearModel,
    fit_linear,
    from_unit_scale,
    hopeful,
    parts_of,
    side_by_side,
    weight_deviations,
)
from klimb.sklearn.rows import Rows, distinct_rows
from klimb.sklearn.scaling import Scaling

MOSTLY_ZERO = 0.1  # share of entries up to which a sparse X may stay as it is, its columns not standardised


@final
@dataclass(frozen=True, eq=False)
class LinearFit:
    """Fitted linear predictors, one or one per class, with what they need to speak in the user's units."""

    result: Result
    scaling: Scaling
    intercept: bool
    prior_scale: float
    bound: float
    n_fits: int

    @cached_property
    def parts(self) -> tuple[Posterior, ...]:
        return parts_of(self.result.posterior)

    def predict(self, X: Any) -> tuple[Array, Array]:
        """Means and variances of f, one column per predictor."""
        if isinstance(self.parts[0].latent, Implicit):  # fitted by products, and not centred
            Z = self.scaling.sparse_rows(X, intercept=self.intercept)
            m, v = self.parts[0].latent.predict(self.parts[0], Z, PREDICTED)
            return m[:, None], v[:, None]
        design = self.scaling.design(X, intercept=self.intercept)
        latents = [(part, part.latent) for part in self.parts]
        pairs = [latent.predict(part, design) for part, latent in latents if isinstance(latent, Weights)]
        return np.column_stack([m for m, _ in pairs]), np.column_stack([v for _, v in pairs])

    def means(self, X: Any) -> Array:
        """Means of f alone, one column per predictor."""
        if isinstance(self.parts[0].latent, Implicit):
            return np.asarray(self.scaling.sparse_rows(X, intercept=self.intercept) @ self.parts[0].mean)[:, None]
        return self.predict(X)[0]

    def coefficients(self) -> Array:
        """Means of the coefficients, per unit of X, one row per predictor."""
        return np.array([part.mean[int(self.intercept) :] for part in self.parts]) / self.scaling.scale

    @cached_property
    def deviations(self) -> Array:
        """Their standard deviations; with many columns these cost more than the fit, so they wait to be asked for."""
        return np.array([weight_deviations(part)[int(self.intercept) :] for part in self.parts]) / self.scaling.scale

    def at_zero(self) -> tuple[Array, Array]:
        """Means and standard deviations of the intercepts: f where X = 0."""
        if not self.intercept:
            return np.zeros(len(self.parts)), np.zeros(len(self.parts))
        m, v = self.predict(np.zeros((1, len(self.scaling.centre))))
        return m[0], np.sqrt(v[0])

    def absorb(self, rows: Rows, likelihood: Likelihood, y: Array, tol: float) -> LinearFit:
        """The fit after more data, the posterior so far being the prior."""
        if isinstance(self.parts[0].latent, Implicit):
            raise InputError("partial_fit needs the covariance of all coefficients",
                             f"{self.parts[0].latent.n_weights:,} of them, fitted by products alone",
                             "Fit all rows at once, or fewer columns.")
        design = self.scaling.design(rows.X, intercept=self.intercept)
        latents = [Weights(design, part.mean, part.covariance()) for part in self.parts]
        result = infer(side_by_side(latents), likelihood.site, y, tol=tol)
        return replace(self, result=result, bound=self.bound + result.bound + rows.total * likelihood.log_jacobian)


def fit_rows(rows: Rows, likelihood: Likelihood, estimator: Any) -> tuple[LinearFit, Likelihood]:
    """Fit one site's linear predictors to distinct rows, hyperparameters included."""
    found: list[tuple[Result, Search | LinearModel, Scaling, int]]
    intercept = bool(estimator.fit_intercept)
    centre = intercept_centres(likelihood, rows.y) if intercept else None
    scale = positive_or_auto(estimator.prior_scale, "prior_scale")
    ways = [Scaling.of(rows.X, rows.weights, centred=intercept, each=each)
            for each in _ways_to_scale(rows.X, estimator.standardize, scale)]
    if too_large(rows, likelihood):
        ways = [replace(way, centre=np.zeros_like(way.centre)) for way in ways]  # columns stay sparse
        searches = [Search(way.sparse_rows(rows.X, intercept=intercept), rows, likelihood,
                           None if centre is None else centre[0], scale) for way in ways]
        left = hopeful([search.first_bound() for search in searches]) if len(ways) > 1 else [0]
        found = [(searches[k].run(tol=estimator.tol), searches[k], ways[k], searches[k].n_fits) for k in left]
    else:
        y = likelihood.site.validate(likelihood.scaled(rows.y))
        models = [LinearModel(way.design(rows.X, intercept=intercept), centre, likelihood, scale or 1.0, scale is None)
                  for way in ways]
        left = [0]
        if len(ways) > 1:
            starts = [from_unit_scale(model, y) for model in models]
            left, models = hopeful([bound for bound, _ in starts]), [model for _, model in starts]
        found = []
        for k in left:
            model, result, n_fits = fit_linear(models[k], y, tol=estimator.tol, max_iter=estimator.max_iter)
            found.append((result, model, ways[k], n_fits))
    result, best, scaling, n_fits = max(found, key=lambda one: one[0].bound)
    bound = result.bound + rows.total * likelihood.log_jacobian
    return LinearFit(result, scaling, intercept, best.scale, bound, n_fits), best.likelihood


def _ways_to_scale(X: Any, standardize: Any, scale: float | None) -> tuple[bool, ...]:
    """Whether each column has a scale of its own; both where the bound is to decide."""
    if isinstance(standardize, bool | np.bool_):
        return (bool(standardize),)
    if not (isinstance(standardize, str) and standardize == "auto"):
        raise InputError('standardize must be "auto", True or False', repr(standardize), 'Leave it at "auto".')
    few = hasattr(X, "tocsr") and X.nnz < MOSTLY_ZERO * np.prod(X.shape, dtype=np.float64)
    return (True, False) if few and scale is None else (True,)


@final
class GLMRegressor(Regressor):
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
        Whether f has an intercept, whose prior is wide: N(link of the mean response, 10^2). Without one, columns and y
        are scaled but not centred.
    standardize : "auto" or bool
        Whether each column is brought to unit variance, so that the prior treats all alike; without it, all have one
        scale in common, and columns of small variance matter less (rare words). "auto" does so, but for a sparse X of
        mostly zeros it takes whichever has the better bound.
    tol : float
        Of the final fit, as in `klimb.infer`.
    max_iter : int
        Most steps of the search for hyperparameters.

    Attributes
    ----------
    coef_, intercept_, coef_std_, intercept_std_ : arrays and floats
        Posterior means and standard deviations, per unit of X.
    prior_scale_ : float
    dispersion_ : dict
        The family's parameters by name.
    bound_ : float
        Lower bound on the log evidence of y.
    result_, posterior_ : klimb Result and Posterior
        Of the standardised, distinct rows.
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

    def __init__(
        self,
        family: Any = "gaussian",
        *,
        prior_scale: Any = "auto",
        dispersion: Any = "auto",
        fit_intercept: bool = True,
        standardize: Any = "auto",
        tol: float = 1e-6,
        max_iter: int = 100,
    ) -> None:
        self.family = family
        self.prior_scale = prior_scale
        self.dispersion = dispersion
        self.fit_intercept = fit_intercept
        self.standardize = standardize
        self.tol = tol
        self.max_iter = max_iter

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit the model; a row of weight k counts like k rows."""
        X, y, weights = self._checked_data(X, y, sample_weight, numeric=True)
        rows = distinct_rows(X, np.asarray(y, dtype=np.float64), weights)
        centred = bool(self.fit_intercept)
        likelihood = likelihood_for(self.family, self.dispersion, rows.y, rows.weights, centred=centred)
        fitted, likelihood = fit_rows(rows, likelihood, self)
        self._keep(likelihood)
        return self._set(fitted)

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn from more rows, the posterior so far being the prior; the first call is ``fit``.

        The first rows decide the scaling of the columns, the prior scale and the dispersion, so let them be typical.
        Exact for a Gaussian likelihood; for others earlier rows stay as they were approximated when they came.
        """
        if not hasattr(self, "result_"):
            return self.fit(X, y, sample_weight)
        X, y, weights = self._checked_data(X, y, sample_weight, numeric=True, reset=False)
        rows = distinct_rows(X, np.asarray(y, dtype=np.float64), weights)
        likelihood = self._fixed_likelihood(rows.weights)
        target = likelihood.site.validate(likelihood.scaled(rows.y))
        return self._set(self._fit.absorb(rows, likelihood, target, self.tol))

    def _fixed_likelihood(self, weights: Array | None) -> Likelihood:
        return Likelihood(resolve_family(self._site), {}, (), weights, self._centre, self._spread)

    def _set(self, fitted: LinearFit) -> Self:
        (intercept,), (intercept_deviation,) = fitted.at_zero()
        self._fit = fitted
        self.coef_ = self._spread * fitted.coefficients()[0]
        self.intercept_ = float(self._spread * intercept + self._centre)
        self.intercept_std_ = float(self._spread * intercept_deviation)
        self.prior_scale_, self.bound_ = fitted.prior_scale, fitted.bound
        self.result_, self.posterior_ = fitted.result, fitted.result.posterior
        self.converged_, self.n_iter_ = fitted.result.converged, fitted.n_fits
        return self

    @property
    def coef_std_(self) -> Array:
        """Posterior standard deviations of the coefficients."""
        check_is_fitted(self)
        return np.asarray(self._spread * self._fit.deviations[0])

    def _predict_latent(self, X: Any) -> tuple[Array, Array]:
        m, v = self._fit.predict(X)
        return m[:, 0], v[:, 0]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = self.family in ("gamma", "exponential")
        return tags


@final
class GLMClassifier(Classifier):
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
        Whether there is an intercept, whose prior is wide: N(link of the share of the class, 10^2).
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
    result_, posterior_ : klimb Result and Posterior; with "ovr" and several classes, lists
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

    def __init__(
        self,
        link: str = "logit",
        *,
        multi_class: str = "softmax",
        prior_scale: Any = "auto",
        fit_intercept: bool = True,
        standardize: Any = "auto",
        tol: float = 1e-6,
        max_iter: int = 100,
    ) -> None:
        self.link = link
        self.multi_class = multi_class
        self.prior_scale = prior_scale
        self.fit_intercept = fit_intercept
        self.standardize = standardize
        self.tol = tol
        self.max_iter = max_iter

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit the model; a row of weight k counts like k rows."""
        return self._fit_classes(*self._checked_classes(X, y, sample_weight))

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Learn from more rows, the posterior so far being the prior; see `GLMRegressor.partial_fit`.

        ``classes`` names all classes there will be; it is needed in the first call if that does not see them all.
        """
        if not hasattr(self, "result_"):
            return self._fit_classes(*self._checked_classes(X, y, sample_weight, classes))
        X, code, weights = self._checked_classes(X, y, sample_weight, reset=False)
        rows = distinct_rows(X, code, weights)
        likelihood = self._likelihood(rows.weights)
        return self._set([fit.absorb(rows, likelihood, likelihood.site.validate(target), self.tol)
                          for fit, target in zip(self._fits, self._targets(rows.y), strict=True)])

    def _fit_classes(self, X: Any, code: Array, weights: Array | None) -> Self:
        rows = distinct_rows(X, code, weights)
        likelihood = self._likelihood(rows.weights)
        return self._set([fit_rows(replace(rows, y=target), likelihood, self)[0] for target in self._targets(rows.y)])

    def _set(self, fits: list[LinearFit]) -> Self:
        self._fits = fits
        intercepts = zip(*(fit.at_zero() for fit in fits), strict=True)
        self.coef_ = np.concatenate([fit.coefficients() for fit in fits])
        self.intercept_, self.intercept_std_ = (np.concatenate(part) for part in intercepts)
        self.prior_scale_ = one_or_array([fit.prior_scale for fit in fits])
        self.bound_ = one_or_array([fit.bound for fit in fits])
        self.result_ = one_or_list([fit.result for fit in fits])
        self.posterior_ = one_or_list([fit.result.posterior for fit in fits])
        self.converged_ = all(fit.result.converged for fit in fits)
        self.n_iter_ = max(fit.n_fits for fit in fits)
        return self

    @property
    def coef_std_(self) -> Array:
        """Posterior standard deviations of the coefficients."""
        check_is_fitted(self)
        return np.concatenate([fit.deviations for fit in self._fits])

    def _means(self, X: Any) -> Array:
        return np.hstack([fit.means(X) for fit in self._fits])

    def _latents(self, X: Any) -> tuple[Array, Array]:
        pairs = [fit.predict(X) for fit in self._fits]
        return np.hstack([m for m, _ in pairs]), np.hstack([v for _, v in pairs])
