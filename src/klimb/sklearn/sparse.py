"""A linear model in which few columns matter: Laplace or Student-t priors of the coefficients, ``y ~ sparse(.)``."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Self, final

import numpy as np

from klimb.errors import InputError
from klimb.likelihoods import Likelihood
from klimb.models.fit import Fit
from klimb.models.linear import LinearModel
from klimb.models.matrix import MatrixData, fit_matrix, solved
from klimb.numerics.arrays import Array
from klimb.rows.distinct import Rows
from klimb.rows.scaling import Scaling
from klimb.sklearn.base import positive_or_auto
from klimb.sklearn.linear import LinearRegressor, held, linear_model, prior_scale
from klimb.terms.sparsity import DENSITIES, NAME, Sparse


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

    def __init__(
        self,
        prior: str = "auto",
        *,
        prior_scale: Any = "auto",
        noise: Any = "auto",
        fit_intercept: bool = True,
        tol: float = 1e-6,
        max_iter: int = 100,
    ) -> None:
        self.prior = prior
        self.prior_scale = prior_scale
        self.noise = noise
        self.fit_intercept = fit_intercept
        self.tol = tol
        self.max_iter = max_iter

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
            other = Fit.of(solved(_heavier(fit), data.data, self.tol, self.max_iter), data.data)
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
