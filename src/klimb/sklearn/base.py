"""What the estimators share: checked input, classes, and predictions from the `Fit` that they hold as ``fit_``."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Self

import numpy as np
from scipy.special import logsumexp
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from klimb.errors import InputError, require
from klimb.likelihoods import Likelihood, likelihood, named_site
from klimb.models.fit import Fit
from klimb.numerics.arrays import Array, ArrayLike, as_float
from klimb.rows.distinct import Rows, distinct_rows
from klimb.sites import Site
from klimb.sites.prediction import levels_of

SMALLEST = 1e-15  # probability of a class that is told from 0
TINY = 1e-6  # probabilities below this have few digits left as what others leave of one


class Estimator(BaseEstimator):
    """Checked input for all estimators; sparse matrices are CSR from here on. ``fit_`` is a `Fit`, or a list."""

    tol: float
    _fitted: Any  # (rows, likelihood, names of classes, weights): the fit of distinct rows, hyperparameters included
    _extended: Any  # (fit, rows, names, weights): the fit after more rows
    _set: Callable[..., Self]  # (fits): holds them, with the attributes that users read

    def _keep(self, given: dict[str, Any]) -> None:
        """The arguments of a constructor as attributes of their names, as scikit-learn wants them: unchanged."""
        for name in self._get_param_names():
            setattr(self, name, given[name])

    def _checked_rows(self, X: Any) -> Any:
        check_is_fitted(self)
        return validate_data(self, X, reset=False, accept_sparse="csr", dtype=np.float64)

    def _checked_data(self, X: Any, y: Any, sample_weight: Any, *, numeric: bool,
                      reset: bool = True) -> tuple[Any, Any, Array | None]:
        require(self.tol > 0, "tol must be positive", self.tol, "The default is 1e-6.")
        X, y = validate_data(self, X, y, reset=reset, accept_sparse="csr", dtype=np.float64, y_numeric=numeric)
        if sample_weight is None:
            return X, y, None
        weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        return X, y, np.asarray(weights)

    @property
    def _fits(self) -> list[Fit]:
        fits: list[Fit] = self.fit_ if isinstance(self.fit_, list) else [self.fit_]
        return fits

    def _hold(self, fits: list[Fit]) -> None:
        """The fits, and what every estimator says of them."""
        self.fit_: Any = fits[0] if len(fits) == 1 else fits
        self.bound_ = one_or_array([fit.bound for fit in fits])
        self.converged_ = all(fit.converged for fit in fits)
        self.n_iter_ = max(fit.n_fits for fit in fits)
        for fit in fits:
            if not fit.converged:
                warnings.warn(f"{type(self).__name__} did not converge: {fit.status.advice}", ConvergenceWarning,
                              stacklevel=4)

    def _rows(self, X: Any, y: Array, weights: Array | None) -> Rows:
        """The rows that a model is fitted to."""
        return distinct_rows(X, y, weights)

    def _moments(self, X: Any) -> tuple[Array, Array]:
        """Means and variances of f at checked rows, one column per latent value."""
        found = [(fit.latents(X).for_sites().moments(), len(fit.model.likelihood.fields)) for fit in self._fits]
        m, v = (np.vstack([pair[k].reshape(count, -1) for pair, count in found]).T for k in (0, 1))
        return m, v

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def save(self, path: Any) -> None:
        """Write the fitted estimator to a file that ``klimb.load`` reads, without pickle: see docs/files.md."""
        from klimb.sklearn.files import save

        save(self, path)


class Regressor(RegressorMixin, Estimator):
    """Predictions of numbers, in the units of y."""

    _target: Any  # (): the family of y, and its dispersion

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit the model; a row of weight k counts like k rows."""
        X, y, weights = self._checked_data(X, y, sample_weight, numeric=True)
        rows = self._rows(X, np.asarray(y, dtype=np.float64), weights)
        return self._set([self._fitted(rows, likelihood_of_numbers(*self._target()), (), weights)])

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The mean of y at the rows of X (the median where it has none: Student-t, df <= 1).

        With ``return_std`` also its standard deviation, noise included.
        """
        X = self._checked_rows(X)
        mean, sd = self._fits[0].moments(X)
        mean = np.where(np.isnan(mean), self._moments(X)[0][:, 0], mean) if np.isnan(mean).any() else mean
        return (mean, sd) if return_std else mean

    def predict_quantiles(self, X: Any, q: ArrayLike = (0.05, 0.5, 0.95)) -> Array:
        """Quantiles of y, one column per level; (0.05, 0.95) are the ends of a 90 % interval."""
        fit, X, levels = self._fits[0], self._checked_rows(X), levels_of(q)
        found = [fit.quantile(X, float(level)) for level in np.atleast_1d(levels)]
        return found[0] if levels.ndim == 0 else np.column_stack(found)

    def predict_log_density(self, X: Any, y: ArrayLike) -> Array:
        """log p(y | X, training data) of each row: the score that sees the whole distribution."""
        return self._fits[0].log_density(as_float(y, "y", ndim=1), self._checked_rows(X))

    def predict_latent(self, X: Any) -> tuple[Array, Array]:
        """Mean and standard deviation of f, the response on the scale of the link, without noise."""
        m, v = self._moments(self._checked_rows(X))
        return m[:, 0], np.sqrt(v[:, 0])

    @property
    def dispersion_(self) -> dict[str, float]:
        """The likelihood's parameters by name, in the units of y."""
        check_is_fitted(self)
        model = self._fits[0].model
        own = model.likelihood
        return {**own.known, **own.values(model.theta.of_owner(model.at, own.parameters))}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = self._target()[0] in ("gamma", "exponential")
        return tags


class GrowingRegressor(Regressor):
    """A regressor that takes more rows."""

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn from more rows, at the scaling and the hyperparameters of the first call, which is ``fit``."""
        if not hasattr(self, "fit_"):
            return self.fit(X, y, sample_weight)
        X, y, weights = self._checked_data(X, y, sample_weight, numeric=True, reset=False)
        rows = self._rows(X, np.asarray(y, dtype=np.float64), weights)
        return self._set([self._extended(self.fit_, rows, (), weights)])


class Classifier(ClassifierMixin, Estimator):
    """Predictions of classes from latent values: one for two classes, one per class for more."""

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit the model; a row of weight k counts like k rows."""
        return self._fit_classes(*self._checked_classes(X, y, sample_weight))

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Learn from more rows, at the scaling and the hyperparameters of the first call, which is ``fit``.

        ``classes`` names all classes there will be; it is needed in the first call if that does not see them all.
        """
        if not hasattr(self, "fit_"):
            return self._fit_classes(*self._checked_classes(X, y, sample_weight, classes))
        X, code, weights = self._checked_classes(X, y, sample_weight, reset=False)
        rows = self._rows(X, code, weights)
        return self._set([self._extended(fit, replace(rows, y=target), names, weights)
                          for fit, (target, names) in zip(self._fits, self._targets(rows.y), strict=True)])

    def _fit_classes(self, X: Any, code: Array, weights: Array | None) -> Self:
        rows, own = self._rows(X, code, weights), self._likelihood()
        return self._set([self._fitted(replace(rows, y=target), own, names, weights)
                          for target, names in self._targets(rows.y)])

    def predict_log_proba(self, X: Any) -> Array:
        """Log probabilities of the classes, one column each, accurate also where they are tiny."""
        return self._logs(self._checked_rows(X))

    def _logs(self, X: Any) -> Array:
        parts = [_log_probabilities(fit, X) for fit in self._fits]
        if len(parts) == 1:
            return parts[0]
        logs = np.column_stack([part[:, 1] for part in parts])  # of each class against the rest
        return np.asarray(logs - logsumexp(logs, axis=1, keepdims=True))

    def predict_latent(self, X: Any) -> tuple[Array, Array]:
        """Mean and standard deviation of f, the log odds: (n,) for two classes, (n, K) for more."""
        m, v = self._moments(self._checked_rows(X))
        return (m[:, 0], np.sqrt(v[:, 0])) if m.shape[1] == 1 else (m, np.sqrt(v))

    def _means(self, X: Any) -> Array:
        """Means of f alone."""
        return self._moments(X)[0]

    @property
    def _together(self) -> bool:
        """Whether more than two classes are one model."""
        return self.multi_class == "softmax" and len(self.classes_) > 2

    def _likelihood(self) -> Likelihood:
        """Of all classes together, or of one against the rest."""
        for name, known in (("link", ("logit", "probit")), ("multi_class", ("softmax", "ovr"))):
            if getattr(self, name) not in known:
                raise InputError(f'{name} must be "{known[0]}" or "{known[1]}"', repr(getattr(self, name)),
                                 f"Leave it out for {known[0]}.")
        return likelihood("categorical") if self._together else likelihood("bernoulli", link=self.link)

    def _targets(self, code: Array) -> list[tuple[Array, tuple[str, ...]]]:
        """Class numbers and their names for each fit: as they are, or 1 for each of several against 0 for the rest."""
        names = tuple(map(str, self.classes_.tolist()))
        if self._together or len(names) == 2:
            return [(code, names)]
        return [((code == k).astype(np.float64), (f"not {name}", name)) for k, name in enumerate(names)]

    def predict_proba(self, X: Any) -> Array:
        """Posterior predictive probabilities of the classes, one column each.

        Those of several classes are right to 1e-12; ``predict_log_proba`` says by how many orders one is smaller.
        """
        X = self._checked_rows(X)
        if self._together:
            p = np.maximum(_probabilities(self._fits[0], X), SMALLEST)
        else:
            p = np.exp(self._logs(X))
        return np.asarray(p / p.sum(axis=1, keepdims=True))

    def decision_function(self, X: Any) -> Array:
        """Two classes: log odds of the second; more: log probabilities, one column each."""
        logs = self.predict_log_proba(X)
        return np.asarray(logs[:, 1] - logs[:, 0]) if logs.shape[1] == 2 else logs

    def predict(self, X: Any) -> Any:
        """The most probable class of each row; of two, by the sign of f's mean, since the links are symmetric."""
        check_is_fitted(self)
        if len(self.classes_) == 2:
            return self.classes_[(self._means(self._checked_rows(X))[:, 0] > 0.0).astype(int)]
        return self.classes_[self.predict_proba(X).argmax(axis=1)]

    def _checked_classes(self, X: Any, y: Any, sample_weight: Any, classes: Any = None, *,
                         reset: bool = True) -> tuple[Any, Array, Array | None]:
        """Clean data with class numbers for y; sets ``classes_`` (of the data that count) when ``reset``."""
        X, y, weights = self._checked_data(X, y, sample_weight, numeric=False, reset=reset)
        check_classification_targets(y)
        counted = y if weights is None else y[weights > 0.0]
        if reset:
            self.classes_ = np.unique(counted if classes is None else classes)
            require(len(self.classes_) >= 2, f"{type(self).__name__} needs at least two classes",
                    f"{len(self.classes_)} class {self.classes_.tolist()} where sample_weight is positive",
                    "Check y and sample_weight.")
        code = np.searchsorted(self.classes_, y).clip(max=len(self.classes_) - 1)
        known = self.classes_[code] == y
        if weights is not None:
            known |= weights <= 0.0
        if not np.all(known):
            first = int(np.flatnonzero(~known)[0])
            raise InputError(f"y must be one of the classes {self.classes_.tolist()}",
                             f"{np.asarray(y)[first].item()!r} at index {first}",
                             "Name all classes in the first call of partial_fit.")
        return X, code.astype(np.float64), weights


def likelihood_of_numbers(family: Any, dispersion: Any) -> Likelihood:
    """The likelihood of a regressor by name or site, with ``dispersion`` "auto" or a number in the units of y."""
    found = named_site(family) if isinstance(family, Site) else likelihood(family)
    require(found.response not in ("binary", "trials", "ordered", "classes"), "a regressor needs a family for numbers",
            repr(found.name), "Use GLMClassifier or GPClassifier for classes, klimb.fit for trials and ordered levels.")
    if dispersion == "auto":
        return found
    require(found.free, f"the family {found.name} has no dispersion left to set", f"dispersion={dispersion!r}",
            'Leave it at "auto".')
    return found.knowing({found.free[0].field: _positive(dispersion, "dispersion")})


def positive_or_auto(value: Any, name: str) -> float | None:
    """A number, or None for "auto"."""
    return None if isinstance(value, str) and value == "auto" else _positive(value, name)


def _positive(value: Any, name: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = np.nan
    require(0.0 < number < np.inf, f'{name} must be "auto" or a positive number', repr(value), 'Leave it at "auto".')
    return number


def _probabilities(fit: Fit, X: Any) -> Array:
    """Of the classes, one column each."""
    columns = fit.predict(X)
    if "mean" in columns:
        return np.column_stack([1.0 - columns["mean"], columns["mean"]])
    return np.column_stack(list(columns.values()))


def _log_probabilities(fit: Fit, X: Any) -> Array:
    """Logarithms of the probabilities, where those are tiny from the logarithmic form, which costs more."""
    p = _probabilities(fit, X)
    logs = np.log(np.maximum(p, TINY))
    for k in range(p.shape[1]):
        rows = np.flatnonzero(p[:, k] <= TINY)
        if rows.size:
            logs[rows, k] = fit.log_density(np.full(len(rows), float(k)), X[rows])
    return logs


def one_or_array(values: list[float]) -> Any:
    """A number, or an array of several."""
    return values[0] if len(values) == 1 else np.array(values)


def one_or_list(values: list[Any]) -> Any:
    """A thing, or the list of several."""
    return values[0] if len(values) == 1 else values
