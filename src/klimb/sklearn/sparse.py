"""A linear model in which few columns matter: Laplace or Student-t priors of the coefficients, by the bound.

    y = w_0 + x'w + noise      w_j ~ Laplace(scale) or StudentT(df, scale)      x and y standardised

The prior of each coefficient is one more site, on f = w_j itself: the design is X with an identity below it. What the
engine calls the prior is a Gaussian so wide (TAPER) that it only makes the product proper; its share in the
normalisation, Z = int p(w) N(w; 0, TAPER^2) dw for each coefficient, is taken out of the bound.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self, final

import numpy as np
import numpy.typing as npt

from klimb.errors import InputError
from klimb.infer.evidence import optimise
from klimb.infer.hyper import Hypermodel
from klimb.infer.result import Result
from klimb.latents.base import Posterior
from klimb.latents.weights import Weights
from klimb.linalg.matrix import DesignMatrix
from klimb.numerics.arrays import Array
from klimb.priors import LogNormal
from klimb.sites.base import Site
from klimb.sites.real import Laplace, StudentT
from klimb.sites.stack import Stack
from klimb.sklearn.base import Regressor
from klimb.sklearn.likelihood import BOUNDS, DIFFERENCE, OPEN, Likelihood, likelihood_for, positive_or_auto
from klimb.sklearn.linear import INTERCEPT
from klimb.sklearn.rows import distinct_rows
from klimb.sklearn.scaling import Scaling

TAPER = 1e3  # in standardised units, where coefficients beyond some tens do not happen
SCALE_PRIOR = LogNormal(median=0.1, sd=2.0)  # of the coefficients' prior scale
PRIORS = ("laplace", "student_t")
HEAVY = 2.0  # degrees of freedom of the Student-t prior


@final
class WithIdentity(DesignMatrix):
    """[X; 0 I]: the rows of a design, then one row for each of its columns but the first ``skip``."""

    def __init__(self, inner: DesignMatrix, skip: int, columns: npt.NDArray[np.intp] | None = None) -> None:
        self._inner, self._skip = inner, skip
        self._columns = np.arange(skip, inner.shape[1]) if columns is None else columns
        self._n = inner.shape[0]
        self.shape = (self._n + len(self._columns), inner.shape[1])

    def times(self, vector: Array) -> Array:
        return np.concatenate([self._inner.times(vector), vector[self._columns]])

    def _transpose_times(self, vector: Array) -> Array:
        product = self._inner.transpose_times(vector[: self._n]).copy()
        product[self._columns] += vector[self._n :]
        return product

    def weighted_gram(self, gamma: Array) -> Array:
        gram = self._inner.weighted_gram(np.ascontiguousarray(gamma[: self._n]))
        gram[self._columns, self._columns] += gamma[self._n :]
        return gram

    def row_norms_squared(self, root: Array, *, upper: bool = False, times: Array | None = None) -> tuple[Array, Array]:
        norms, product = self._inner.row_norms_squared(root, upper=upper, times=times)
        own = root[self._columns] ** 2 if root.ndim == 1 else np.einsum("ij,ij->i", *[root[self._columns]] * 2)
        after = np.zeros(len(own)) if times is None else times[self._columns]
        return np.concatenate([norms, own]), np.concatenate([product, after])

    def subset(self, rows: npt.NDArray[np.intp]) -> WithIdentity:
        above = rows[rows < self._n]
        return WithIdentity(self._inner.subset(above), self._skip, self._columns[rows[rows >= self._n] - self._n])

    def dense_rows(self, rows: slice) -> Array:
        begin, stop, _ = rows.indices(self.shape[0])
        above = self._inner.dense_rows(slice(min(begin, self._n), min(stop, self._n)))
        below = np.zeros((max(stop, self._n) - max(begin, self._n), self.shape[1]))
        places = self._columns[max(begin, self._n) - self._n : max(stop, self._n) - self._n]
        below[np.arange(len(places)), places] = 1.0
        return np.concatenate([above, below])

    def dense(self) -> Array:
        return self.dense_rows(slice(None))


@final
@dataclass(frozen=True, eq=False)
class SparseModel(Hypermodel):
    """Rows, a Gaussian likelihood and a site per coefficient, whose ``scale`` is learnt where ``learn_scale``."""

    design: WithIdentity
    n_coefficients: int
    has_intercept: bool
    likelihood: Likelihood
    prior: str
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
        both: Array = np.array([(BOUNDS[0], OPEN)] * self.learn_scale + self.likelihood.bounds).reshape(-1, 2)
        return both[:, 0], both[:, 1]

    def with_theta(self, theta: Array) -> Self:
        k = int(self.learn_scale)
        scale = float(np.exp(theta[0])) if k else self.scale
        return replace(self, scale=scale, likelihood=self.likelihood.with_theta(theta[k:]))

    @property
    def coefficient_site(self) -> Site:
        return Laplace(self.scale) if self.prior == "laplace" else StudentT(HEAVY, self.scale)

    @property
    def site(self) -> Site:
        n = self.design.shape[0] - self.n_coefficients
        return Stack([(self.likelihood.site, n), (self.coefficient_site, self.n_coefficients)])

    @property
    def latent(self) -> Weights:
        variances = np.full(self.design.shape[1], TAPER**2)
        variances[: int(self.has_intercept)] = INTERCEPT**2
        return Weights(self.design, 0.0, variances, form="primal")

    def gradient(self, posterior: Posterior, y: Any) -> Array:
        n = self.design.shape[0] - self.n_coefficients
        data = Posterior(posterior.latent, posterior.a[:n], posterior.gamma[:n], posterior.m[:n], posterior.v[:n], 0.0)
        noise = self.likelihood.gradient(data, y[:n])
        if not self.learn_scale:
            return noise
        sides = []
        for sign in (1.0, -1.0):
            site = replace(self, scale=self.scale * float(np.exp(sign * DIFFERENCE))).coefficient_site
            value = site.oracle(y[n:], posterior.m[n:], posterior.v[n:]).value + site.constant(y[n:])
            sides.append(float(value.sum()))
        return np.concatenate([[(sides[0] - sides[1]) / (2 * DIFFERENCE)], noise])

    def log_taper(self) -> float:
        """log Z over all coefficients: what the bound counts too much, or too little."""
        zero, site = np.zeros(1), self.coefficient_site
        one = site.tilted(zero, zero, np.array([TAPER**2])).log_z + site.constant(zero)
        return self.n_coefficients * float(one[0])

    def log_prior(self) -> tuple[float, Array]:
        """The hyperprior, and the normalisation that the bound lacks."""
        value, slope = self.likelihood.log_prior()
        if not self.learn_scale:
            return value - self.log_taper(), slope
        sides = (replace(self, scale=self.scale * float(np.exp(sign * DIFFERENCE))) for sign in (1.0, -1.0))
        up, down = (side.log_taper() for side in sides)
        own = SCALE_PRIOR.log_density(self.scale) + float(np.log(self.scale)) - self.log_taper()
        own_slope = SCALE_PRIOR.slope(self.scale) + 1.0 - (up - down) / (2 * DIFFERENCE)
        return value + own, np.concatenate([[own_slope], slope])


@final
@dataclass(frozen=True, eq=False)
class SparseFit:
    """A model at its best hyperparameters, and the fit there."""

    model: SparseModel
    result: Result
    n_fits: int

    @property
    def bound(self) -> float:
        """On the log evidence under the normalised prior."""
        return self.result.bound - self.model.log_taper()


@final
class SparseLinearRegressor(Regressor):
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
    coef_, coef_std_, intercept_, intercept_std_, prior_scale_, dispersion_, bound_, result_, posterior_
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

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit the model; a row of weight k counts like k rows."""
        X, y, weights = self._checked_data(X, y, sample_weight, numeric=True)
        if self.prior not in ("auto", *PRIORS):
            raise InputError(f'prior must be "auto", "{PRIORS[0]}" or "{PRIORS[1]}"', repr(self.prior),
                             "Leave it out to let the bound decide.")
        rows = distinct_rows(X, np.asarray(y, dtype=np.float64), weights)
        with_intercept = bool(self.fit_intercept)
        likelihood = likelihood_for("gaussian", self.noise, rows.y, rows.weights, centred=with_intercept)
        scaling = Scaling.of(rows.X, rows.weights, centred=with_intercept)
        scale = positive_or_auto(self.prior_scale, "prior_scale")
        skip = int(with_intercept)
        design = WithIdentity(scaling.design(rows.X, intercept=with_intercept), skip)
        first = PRIORS[0] if self.prior == "auto" else self.prior
        model = SparseModel(design, X.shape[1], with_intercept, likelihood, first, scale or 0.1, scale is None)
        target = np.concatenate([likelihood.scaled(rows.y), np.zeros(X.shape[1])])
        found = self._search(model, target)
        if self.prior == "auto":
            # From there to heavier tails: the scale is then that of the small coefficients, which are most of them.
            heavier = replace(found.model, prior=PRIORS[1], scale=scale or 0.3 * found.model.scale)
            other = self._search(heavier, target)
            found = replace(max(found, other, key=lambda one: one.bound), n_fits=found.n_fits + other.n_fits)
        self._keep(found.model.likelihood)
        self._scaling = scaling
        return self._set(found, rows.total)

    def _search(self, model: SparseModel, target: Array) -> SparseFit:
        if not model.theta.size:
            return SparseFit(model, model.fit(target, tol=self.tol), 1)
        best = optimise(model, target, max_iter=self.max_iter)
        return SparseFit(best.model, best.model.fit(target, start=best.result.posterior, tol=self.tol), best.n_fits)

    def _set(self, found: SparseFit, total: float) -> Self:
        from scipy.special import ndtr

        model, result = found.model, found.result
        skip = int(model.has_intercept)
        mean, deviation = result.posterior.mean[skip:], np.sqrt(np.diag(result.posterior.covariance()))[skip:]
        unit = self._spread / self._scaling.scale
        self.coef_, self.coef_std_ = unit * mean, unit * deviation
        self.sign_probability_ = ndtr(np.abs(mean) / deviation)
        self.result_, self.posterior_ = result, result.posterior
        self.intercept_, self.intercept_std_ = self._centre, 0.0
        if skip:
            m, v = self._predict_latent(np.zeros((1, len(mean))))
            self.intercept_ = float(self._centre + self._spread * m[0])
            self.intercept_std_ = float(self._spread * np.sqrt(v[0]))
        self.prior_, self.prior_scale_ = model.prior, model.scale
        self.bound_ = found.bound + total * model.likelihood.log_jacobian
        self.converged_, self.n_iter_ = result.converged, found.n_fits
        return self

    def _predict_latent(self, X: Any) -> tuple[Array, Array]:
        latent = self.posterior_.latent
        assert isinstance(latent, Weights)
        skip = self.posterior_.latent.n_weights > len(self._scaling.scale)
        return latent.predict(self.posterior_, self._scaling.design(X, intercept=skip))
