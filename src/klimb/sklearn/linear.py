"""Linear models: what their estimators share, the sparse one, and generalised ones."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import partial
from typing import Any, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from klimb.errors import InputError, listed, require
from klimb.likelihoods import Likelihood
from klimb.models.door import fit as formula_fit
from klimb.models.fit import Fit
from klimb.models.linear import LinearModel
from klimb.models.matrix import MatrixData, absorb, fit_matrix, solved
from klimb.models.settle import Settled
from klimb.numerics.arrays import Array
from klimb.priors import Fixed
from klimb.rows.distinct import Rows
from klimb.rows.scaling import Scaling
from klimb.rows.scans import as_table
from klimb.sklearn.base import Classifier, Estimator, GrowingRegressor, Regressor, one_or_array, positive_or_auto
from klimb.terms.ridge import DENSITIES, RIDGE, SPARSE, Ridge, Sparse

MOSTLY_ZERO = 0.1  # share of entries up to which a sparse X may stay as it is, its columns not standardised


class LinearRegressor(Regressor):
    """Coefficients and intercept of a regressor's fit."""

    def _set(self, fits: list[Fit]) -> Self:
        self._hold(fits)
        self.coef_ = coefficients(fits[0], fits[0].components.parts[0].mean)[0]
        (self.intercept_,) = at_zero(fits[0]).tolist()
        return self

    @property
    def intercept_std_(self) -> float:
        """Posterior standard deviation of the intercept."""
        check_is_fitted(self)
        return float(sd_at_zero(self.fit_)[0])

    @property
    def coef_std_(self) -> Array:
        """Posterior standard deviations of the coefficients."""
        check_is_fitted(self)
        return np.asarray(coefficients(self.fit_, self.fit_.components.parts[0].sd())[0])


def ways_to_scale(rows: Rows, standardize: Any, *, intercept: bool, given: bool) -> list[Scaling]:
    """With a scale for each column, or one for all; both where the bound is to decide."""
    if isinstance(standardize, bool | np.bool_):
        each: tuple[bool, ...] = (bool(standardize),)
    elif isinstance(standardize, str) and standardize == "auto":
        X = rows.X
        few = hasattr(X, "tocsr") and X.nnz < MOSTLY_ZERO * np.prod(X.shape, dtype=np.float64)
        each = (True, False) if few and not given else (True,)
    else:
        raise InputError('standardize must be "auto", True or False', repr(standardize), 'Leave it at "auto".')
    return [Scaling.of(rows.X, rows.weights, centred=intercept, each=own, intercept=intercept) for own in each]


def held(name: str, scale: float | None, data: MatrixData) -> dict[str, Any]:
    """The prior of a scale that was given in units of the response; {} where it is learnt."""
    return {} if scale is None else {name: Fixed(scale * data.likelihood.units(data.data).spread)}


def linear_model(fit: Fit) -> LinearModel:
    """The model of a linear estimator's fit."""
    assert isinstance(fit.model, LinearModel)
    return fit.model


def prior_scale(fit: Fit) -> float:
    """The scale of the coefficients' prior, in units of the response."""
    return float(linear_model(fit).values[-1][0]) / fit.model.likelihood.units(fit.observed).spread


def coefficients(fit: Fit, values: Array) -> Array:
    """Numbers of the weights as numbers of coefficients per unit of X, one row per latent value."""
    inputs = linear_model(fit).inputs
    assert inputs is not None
    each = values.reshape(len(fit.model.likelihood.fields), -1)
    return np.asarray(each[:, int(inputs.intercept) :] / inputs.scale)


def at_zero(fit: Fit) -> Array:
    """Means of the intercepts: f where X = 0."""
    inputs = linear_model(fit).inputs
    assert inputs is not None
    return np.asarray(means(fit, np.zeros((1, inputs.n_columns)))[0] * inputs.intercept)


def sd_at_zero(fit: Fit) -> Array:
    """Their standard deviations, which cost more where columns are many."""
    inputs = linear_model(fit).inputs
    assert inputs is not None
    return np.asarray(np.sqrt(fit.latents(np.zeros((1, inputs.n_columns))).moments()[1]) * inputs.intercept)


def means(fit: Fit, X: Any) -> Array:
    """Means of f alone, one column per latent value."""
    part = fit.components.parts[0]
    pushed = part.push(fit.model.functionals(fit.model.prepare(X)).L, part.mean[None])[0]
    return np.asarray(pushed.reshape(len(fit.model.likelihood.fields), -1).T)


class SparseLinearRegressor(LinearRegressor):
    """Linear regression for many columns of which few matter, with a posterior instead of a selection.

    Parameters
    ----------
    prior : "auto", "laplace" or "student_t"
        Of the coefficients. Laplace shrinks all of them evenly; Student-t (two degrees of freedom) shrinks small ones
        more and large ones less, at the price of a bound with several maxima. "auto" takes the better bound.
    prior_scale : "auto" or float
        Scale of that prior, for columns and y at unit variance. "auto" takes the best bound.
    noise : "auto" or float
        Standard deviation of the noise, in the units of y.
    fit_intercept, tol, max_iter
        As in `GLMRegressor`.

    Attributes
    ----------
    coef_, coef_std_, intercept_, intercept_std_, prior_scale_, dispersion_, bound_, fit_
        As in `GLMRegressor`, and so are converged_ and n_iter_. Coefficients that do not matter are small, not zero.
    prior_ : str
        The prior that was used.
    sign_probability_ : array
        How sure the sign of each coefficient is, from 1/2 (not at all) to 1.

    Notes
    -----
    Work grows with (rows + columns) columns^2: up to some thousand columns.

    Examples
    --------
    >>> import numpy as np
    >>> from klimb.sklearn import SparseLinearRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((60, 100))
    >>> y = 3 * X[:, 7] - 2 * X[:, 30] + 0.5 * rng.standard_normal(60)
    >>> model = SparseLinearRegressor().fit(X, y)
    >>> np.flatnonzero(model.sign_probability_ > 0.999).tolist()
    [7, 30]
    """

    def __init__(self, prior: str = "auto", *, prior_scale: Any = "auto", noise: Any = "auto",
                 fit_intercept: bool = True, tol: float = 1e-6, max_iter: int = 100) -> None:
        self._keep(locals())

    def _target(self) -> tuple[Any, Any]:
        return "gaussian", self.noise

    def _fitted(self, rows: Rows, likelihood: Likelihood, names: tuple[str, ...], weights: Array | None) -> Fit:
        if self.prior not in ("auto", *DENSITIES):
            raise InputError(f'prior must be "auto", "{DENSITIES[0]}" or "{DENSITIES[1]}"', repr(self.prior),
                             "Leave it out to let the bound decide.")
        intercept = bool(self.fit_intercept)
        data = MatrixData.of(rows, likelihood, names, weights)
        way = Scaling.of(rows.X, rows.weights, centred=intercept, intercept=intercept)
        scale = positive_or_auto(self.prior_scale, "prior_scale")
        first = partial(Sparse.of_matrix, density_name=DENSITIES[0] if self.prior == "auto" else self.prior)
        fit = fit_matrix(data, [way], first, held(SPARSE, scale, data), tol=self.tol, max_iter=self.max_iter)
        if self.prior == "auto":
            other = Fit.of(solved(Settled(_heavier(fit)), data.data, self.tol, self.max_iter), data.data)
            fit = replace(max(fit, other, key=lambda one: one.bound), n_fits=fit.n_fits + other.n_fits)
        return fit

    def _set(self, fits: list[Fit]) -> Self:
        from scipy.special import ndtr

        super()._set(fits)
        self.sign_probability_ = ndtr(np.abs(self.coef_) / self.coef_std_)
        self.prior_, self.prior_scale_ = _term(linear_model(fits[0])).density_name, prior_scale(fits[0])
        return self


def _term(model: LinearModel) -> Sparse:
    term = model.terms[-1]
    assert isinstance(term, Sparse)
    return term


def _heavier(fit: Fit) -> LinearModel:
    """The same with heavier tails, whose scale is that of the small coefficients, which are most of them."""
    model = linear_model(fit)
    term = replace(_term(model), density_name=DENSITIES[1])
    at = model.at.copy()
    at[model.theta.slice_of(term.parameters[0])] += np.log(0.3)
    return replace(model, terms=(*model.terms[:-1], term), at=at)


class _RidgeModel(Estimator):
    """What both estimators do with rows: one prior scale for all coefficients."""

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit the model; a row of weight k counts like k rows.

        X may be a table that is not in memory (a path, a lazy frame, a Ray dataset, a Dask or Spark data frame); y and
        ``sample_weight`` then are names of its columns, and all others are numbers.
        """
        if isinstance(y, str):
            return self._fit_table(as_table(X), y, sample_weight)
        found: Self = super().fit(X, y, sample_weight)
        return found

    def _fit_table(self, table: Any, y: str, weights: str | None) -> Self:
        """``y ~ ridge(.)``, whose weights are those of the matrix of all other columns."""
        standard = {"prior_scale": "auto", "dispersion": "auto", "fit_intercept": True, "standardize": "auto"}
        for name, usual in standard.items():
            if getattr(self, name, usual) != usual:
                raise InputError(f"a table that is not in memory is fitted with {name}={usual!r}",
                                 repr(getattr(self, name)), "Leave it out, or use klimb.fit.")
        names = [name for name in table.columns if name not in (y, weights)]
        columns = ", ".join(f"`{name}`" for name in names)
        own = isinstance(self, Classifier)
        found = formula_fit(f"`{y}` ~ ridge({columns})", table, "bernoulli" if own else self.family,
                            link=self.link if own else None, weights=weights, hyper="optimise", tol=self.tol)
        model = linear_model(found)
        term = model.terms[-1]
        assert isinstance(term, Ridge)
        require(term.coefficient_names == tuple(names), "columns of numbers beside y",
                f"levels: {listed(term.coefficient_names, 5)}", "Use klimb.fit, which takes columns of text.")
        assert term.scaling is not None
        self.n_features_in_, self.feature_names_in_ = len(names), np.array(names, dtype=object)
        if own:
            assert found.encoder.response is not None
            assert found.frame is not None
            levels, kind = found.encoder.response.levels, found.frame.column(y).dtype
            self.classes_ = np.array([0, 1], dtype=kind) if kind.kind in "biuf" else np.array(levels)
        matrix = replace(model, terms=(model.terms[0], replace(term, used={}, scaling=None)), rows=None, passes=None,
                         kept={}, inputs=replace(term.scaling, intercept=True))
        kept = {part.name: getattr(found, part.name) for part in fields(Fit) if part.init}
        return self._set([Fit(**{**kept, "model": matrix})])

    def _fitted(self, rows: Rows, likelihood: Likelihood, names: tuple[str, ...], weights: Array | None) -> Fit:
        data = MatrixData.of(rows, likelihood, names, weights)
        scale = positive_or_auto(self.prior_scale, "prior_scale")
        ways = ways_to_scale(rows, self.standardize, intercept=bool(self.fit_intercept), given=scale is not None)
        return fit_matrix(data, ways, Ridge.of_matrix, held(RIDGE, scale, data), tol=self.tol, max_iter=self.max_iter)

    def _extended(self, fit: Fit, rows: Rows, names: tuple[str, ...], weights: Array | None) -> Fit:
        return absorb(fit, rows, names, tol=self.tol)

    def _hold(self, fits: list[Fit]) -> None:
        super()._hold(fits)
        if all(fit.data is not None for fit in fits):  # more rows and files have no say in it
            self.prior_scale_ = one_or_array([prior_scale(fit) for fit in fits])


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
        Nats that the bound may still gain: means are within sqrt(2 tol) posterior standard deviations (1e-3).
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
        self.intercept_ = np.concatenate([at_zero(fit) for fit in fits])
        self.coef_ = np.concatenate([coefficients(fit, fit.components.parts[0].mean) for fit in fits])
        return self

    @property
    def intercept_std_(self) -> Array:
        """Posterior standard deviations of the intercepts."""
        check_is_fitted(self)
        return np.concatenate([sd_at_zero(fit) for fit in self._fits])

    @property
    def coef_std_(self) -> Array:
        """Posterior standard deviations of the coefficients."""
        check_is_fitted(self)
        return np.concatenate([coefficients(fit, fit.components.parts[0].sd()) for fit in self._fits])

    def _means(self, X: Any) -> Array:
        return np.hstack([means(fit, X) for fit in self._fits])
