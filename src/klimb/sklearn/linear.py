"""What estimators of linear models share (scaled columns, coefficients in the user's units), and the sparse one."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Self, final

import numpy as np
from sklearn.utils.validation import check_is_fitted

from klimb.errors import InputError
from klimb.likelihoods import Likelihood
from klimb.models.fit import Fit
from klimb.models.linear import LinearModel
from klimb.models.matrix import MatrixData, fit_matrix, solved
from klimb.models.settle import Settled
from klimb.numerics.arrays import Array
from klimb.priors import Fixed
from klimb.rows.distinct import Rows
from klimb.rows.scaling import Scaling
from klimb.sklearn.base import Regressor, positive_or_auto
from klimb.terms.sparsity import DENSITIES, NAME, Sparse

MOSTLY_ZERO = 0.1  # share of entries up to which a sparse X may stay as it is, its columns not standardised


class LinearRegressor(Regressor):
    """Coefficients and intercept of a regressor's fit."""

    def _set(self, fits: list[Fit]) -> Self:
        self._hold(fits)
        self.coef_ = coefficients(fits[0], fits[0].components.parts[0].mean)[0]
        (self.intercept_,), (self.intercept_std_,) = (part.tolist() for part in at_zero(fits[0]))
        return self

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


def at_zero(fit: Fit) -> tuple[Array, Array]:
    """Means and standard deviations of the intercepts: f where X = 0."""
    inputs = linear_model(fit).inputs
    assert inputs is not None
    f = fit.latents(np.zeros((1, inputs.n_columns)))
    return (f.m[0], np.sqrt(f.v[0])) if inputs.intercept else (np.zeros_like(f.m[0]), np.zeros_like(f.v[0]))


def means(fit: Fit, X: Any) -> Array:
    """Means of f alone, one column per latent value."""
    part = fit.components.parts[0]
    pushed = part.push(fit.model.functionals(fit.model.prepare(X)).L, part.mean[None])[0]
    return np.asarray(pushed.reshape(len(fit.model.likelihood.fields), -1).T)


@final
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
        first = partial(Sparse.of_matrix, density=DENSITIES[0] if self.prior == "auto" else self.prior)
        fit = fit_matrix(data, [way], first, held(NAME, scale, data), tol=self.tol, max_iter=self.max_iter)
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
