"""What estimators of linear models share: how columns are scaled, and coefficients in the units of the user."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from klimb.errors import InputError
from klimb.models.fit import Fit
from klimb.models.linear import LinearModel
from klimb.models.matrix import MatrixData
from klimb.numerics.arrays import Array
from klimb.priors import Fixed
from klimb.rows.distinct import Rows
from klimb.rows.scaling import Scaling
from klimb.sklearn.base import Regressor

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


