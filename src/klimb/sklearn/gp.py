"""Gaussian process estimators: kernel, lengthscales, noise and inducing points by the bound."""

from dataclasses import dataclass, fields, replace
from functools import reduce
from operator import mul
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from klimb._stored import stored
from klimb.errors import InputError, require
from klimb.infer.start import sites_at, start_at
from klimb.kernels import KERNELS, Constant, Kernel, Product, White
from klimb.kernels.inducing_points import choose_inducing
from klimb.kernels.means import ConstantMean as Level
from klimb.latents.base import Posterior
from klimb.likelihoods import Choices, Likelihood, Merged, Observed
from klimb.models.fit import Fit
from klimb.models.gp import gp
from klimb.models.inducing import enough_inducing, with_points
from klimb.models.kernel import KernelModel
from klimb.models.kernel_blocks import KernelBlock
from klimb.models.matrix import MatrixData, left_of
from klimb.models.solution import Solution, solve
from klimb.models.update import joined, update
from klimb.numerics.arrays import Array, as_float
from klimb.priors import LogNormal
from klimb.rows.distinct import Rows, distinct_rows
from klimb.rows.scaling import Scaling
from klimb.sklearn.base import Classifier, Estimator, GrowingRegressor, one_or_list, positive_or_auto

FULL = 800  # rows up to which "auto" keeps the full Gaussian process
SOME = 400  # rows for a first search of the kernel, where there are more than that
FIRST_POINTS, MOST_POINTS = 50, 300  # inducing points
ENOUGH = 1e-3  # nats per datum that further inducing points would have to promise
LEVEL = 3.0  # prior standard deviation of the level of f around the link of the mean response
PER_COLUMN = 20  # columns up to which "auto" gives each its own lengthscale
VARIANCES = (1e-8, 1e8)  # in which a variance is searched, in units of the response
DENSE_LIMIT = 2**27  # entries (1 GiB) of a sparse X that may be filled in


@stored("fit.scaled")
@dataclass(frozen=True, eq=False, repr=False)
class ScaledFit(Fit):
    """A fit whose model works with scaled inputs; it takes those of the user."""

    scaling: Scaling | None = None

    def _prepared_inputs(self, new: Any) -> Any:
        assert self.scaling is not None
        return self.model.prepare(None if new is None else self.scaling.apply(np.asarray(new, dtype=np.float64)))

    @property
    def unscaled(self) -> Fit:
        """The same fit for inputs that are scaled already."""
        return Fit(**{field.name: getattr(self, field.name) for field in fields(Fit)})


def scaled(fit: Fit, scaling: Scaling, **changed: Any) -> ScaledFit:
    """The fit for inputs as they are."""
    own = {field.name: getattr(fit, field.name) for field in fields(Fit)}
    return ScaledFit(**{**own, **changed}, scaling=scaling)


def make_kernel(estimator: Any, n_columns: int, spread: float) -> Kernel:
    """The kernel of an estimator's settings, at the values where the search starts; ``spread`` is the unit of f.

    Standardised rows are about sqrt(2 D) apart, so lengthscales have a log-normal prior of median sqrt(D).
    """
    name, unit = estimator.kernel, spread**2
    if isinstance(name, Kernel):
        return name if unit == 1.0 else Constant(unit).fixed() * name
    found = {known.lower(): kernel for known, kernel in KERNELS.items()}.get(str(name).lower())
    if found is None:
        raise InputError(f"kernel must be a klimb kernel or one of {', '.join(KERNELS)}", repr(name),
                         "Build others from klimb.kernels: they can be added and multiplied.")
    kernel: Kernel = found()
    if "variance" in kernel.parameters:
        given = positive_or_auto(estimator.variance, "variance")
        kernel = _set(kernel, "variance", None if given is None else given * unit, unit, 1.5)
        if unit != 1.0:
            kernel = kernel.bounded(variance=(VARIANCES[0] * unit, VARIANCES[1] * unit))
    if "lengthscale" in kernel.parameters:
        kernel = _set(kernel, "lengthscale", _lengthscale(estimator.lengthscale, n_columns),
                      float(np.sqrt(n_columns)), 1.0)
    return kernel


def shown_kernel(model: KernelModel) -> Kernel:
    """The kernel that was learnt; one of the user's own in units of the response, as it was given."""
    whole: Any = model.kernel
    first = whole.parts[0]
    if not (model.likelihood.scaled and isinstance(first, Product) and isinstance(first.parts[0], Constant)):
        return model.kernel
    return reduce(mul, first.parts[1:]) + Constant(LEVEL**2).fixed()


def _set(kernel: Any, name: str, value: Any, median: float, sd: float) -> Any:
    if value is not None:
        return replace(kernel, **{name: value}).fixed(name)
    return replace(kernel, **{name: median}).with_priors({name: LogNormal(median=median, sd=sd)})


def _lengthscale(value: Any, n_columns: int) -> Any:
    if isinstance(value, str) or np.ndim(value) == 0:
        return positive_or_auto(value, "lengthscale")
    array = as_float(value, "lengthscale")
    if array.shape != (n_columns,) or not np.all(array > 0.0):
        raise InputError(f'lengthscale must be "auto", a positive number or {n_columns} of them', f"{value!r}",
                         "There is one per column.")
    return tuple(array.tolist())


def fit_gp(X: Array, given: MatrixData, estimator: Any) -> Fit:
    """The Gaussian process at its best hyperparameters and inducing points, for scaled inputs."""
    inducing, data, likelihood = estimator.inducing, given.data, given.likelihood
    automatic = isinstance(inducing, str) and inducing == "auto"
    count = isinstance(inducing, int | np.integer) and not isinstance(inducing, bool)
    require(automatic or count or inducing is None or np.ndim(inducing) == 2,
            'inducing must be "auto", None, a number or an array of points', repr(inducing), 'Leave it at "auto".')
    spread = likelihood.units(data).spread
    whole = make_kernel(estimator, X.shape[1], spread) + Constant((LEVEL * spread) ** 2).fixed()
    centre = float(likelihood.centre(data)[0]) if len(likelihood.fields) == 1 else 0.0
    if (automatic and len(X) <= FULL) or (count and int(inducing) >= len(X)):
        inducing, automatic, count = None, False, False
    points = None if automatic or count else inducing
    model = gp(whole, X, given.prepared(Choices()), mean=Level(centre).fixed(), inducing=points).ready(data)
    if not (automatic or count):
        return _search_all(model, data, estimator)
    # A kernel from some of the rows, points for that kernel, then both for all rows.
    some, n_first = _some_rows(data, likelihood), 0
    if model.theta.size:
        first = _search_all(replace(model, X=X[some]), replace(data.take(some), merged=None), estimator)
        assert isinstance(first.model, KernelModel)
        model, n_first = replace(first.model, X=X), first.n_fits
    model, start = _with_points(model, data, None if automatic else int(inducing))
    fit = _search(replace(model, automatic=automatic), data, estimator, start)
    return replace(fit, n_fits=fit.n_fits + n_first)


def _some_rows(data: Observed, likelihood: Likelihood) -> npt.NDArray[np.intp]:
    """The first rows (their order is random), with as many of each class as there are, up to an equal share."""
    if likelihood.response not in ("binary", "classes"):
        return np.arange(min(SOME, data.n))
    labels = np.unique(data.y)
    chosen = np.concatenate([np.flatnonzero(data.y == label)[: SOME // len(labels)] for label in labels])
    return np.sort(np.concatenate([chosen, np.setdiff1d(np.arange(data.n), chosen)[: SOME - len(chosen)]]))


def _search_all(model: KernelModel, data: Observed, estimator: Any) -> Fit:
    """One lengthscale for all columns first, then one for each, if there are data for them."""
    fit, (n, D) = _search(model, data, estimator), model.X.shape
    assert isinstance(fit.model, KernelModel)
    own = 2 <= D <= PER_COLUMN and n >= 5 * D if estimator.ard == "auto" else estimator.ard
    if not own or D == 1 or "0.lengthscale" not in fit.model.kernel.free or isinstance(estimator.kernel, Kernel):
        return fit
    better = _search(_with_lengthscales(fit.model), data, estimator)
    return replace(better, n_fits=better.n_fits + fit.n_fits)


def _search(model: KernelModel, data: Observed, estimator: Any, start: Posterior | None = None) -> Fit:
    return Fit.of(solve(model, data, hyper="optimise", start=start, search_iter=estimator.max_iter, spread=False), data)


def _with_lengthscales(model: KernelModel) -> KernelModel:
    """One lengthscale per column, starting at the common one, around which they vary a priori."""
    whole: Any = model.kernel
    kernel, level = whole.parts
    common = float(kernel.lengthscale)
    rules = tuple((name, rule) for name, rule in kernel.rules if name != "lengthscale")
    wider = replace(kernel, lengthscale=(common,) * model.X.shape[1], rules=rules)
    wider = wider.with_priors({"lengthscale": LogNormal(median=common, sd=1.0)})
    block = KernelBlock(wider + level)
    split = model.theta.split(model.at)
    at = [own for old, own in zip(model.theta.blocks, split, strict=True) if old is not model.kernel_blocks[0]]
    return model.with_blocks([block.start, *at], kernel_blocks=(block,))


def _with_points(model: KernelModel, data: Observed, count: int | None) -> tuple[KernelModel, Posterior | None]:
    """The model with inducing points for its kernel, as many as the bound asks for unless told, and a first fit."""
    tol, most = max(0.1, ENOUGH * data.total), min(MOST_POINTS, data.n)
    if count is not None:
        return with_points(model, choose_inducing(model.kernel, model.X, count)), None
    if model.fields == 1:
        found: Any = enough_inducing(model, data, tol=tol, most=most)
        return found.model, found.posterior
    size, result = FIRST_POINTS, None
    while True:  # as in enough_inducing, for several latent values per datum
        here = with_points(model, choose_inducing(model.kernel, model.X, size))
        result = here.infer(data, start=None if result is None else result.posterior, tol=1e-3)
        price = 0.5 * float(np.maximum(result.posterior.gamma, 0.0) @ here.latent.slack)
        if price <= tol or size >= most:
            return here, result.posterior
        size = min(2 * size, most)


def extend(fit: ScaledFit, X: Array, rows: Rows, names: tuple[str, ...], weights: Array | None,
           tol: float) -> ScaledFit:
    """The fit to all data, these included, at the same hyperparameters and inducing points."""
    old, model = fit.data, fit.model
    assert old is not None
    assert old.merged is not None
    assert isinstance(model, KernelModel)
    inverse = np.where(rows.inverse < 0, -1, rows.inverse + old.n)
    counts = None
    if weights is not None or old.merged.weights is not None:
        counts = np.concatenate([np.ones(len(way)) if own is None else own for way, own in
                                 ((old.merged.inverse, old.merged.weights), (inverse, weights))])
    merged = Merged(np.concatenate([old.merged.inverse, inverse]), counts)
    if model.fields == 1:
        found = update(fit.unscaled, X, rows.y, weights=rows.weights, tol=tol)
    else:
        found = _extended(fit, model, X, model.likelihood.read(left_of(rows, names), rows.weights), tol)
    assert fit.scaling is not None
    assert found.data is not None
    return scaled(found, fit.scaling, data=replace(found.data, merged=merged), n_fits=fit.n_fits, mode=fit.mode)


def _extended(fit: ScaledFit, model: KernelModel, X: Array, new: Observed, tol: float) -> Fit:
    """All data of several classes together, from the sites so far and those that new data suggest."""
    old = fit.data
    assert old is not None
    f, both = fit.latents(None), joined(old, new)
    pairs = zip(sites_at(model.site(old), old.y, f.m[0], f.v[0]), model.site(new).start(new.y), strict=True)
    slope, gamma = (np.hstack([one.reshape(model.fields, -1), two.reshape(model.fields, -1)]).ravel()
                    for one, two in pairs)
    larger = replace(model, X=np.vstack([model.X, X]))
    result = larger.infer(both, start=start_at(larger.latent, slope, gamma), tol=tol)
    return Fit.of(Solution.held(larger, result), both)


def has_noise(kernel: Any) -> bool:
    """Whether a kernel gives every row a value of its own, so that equal rows are not one."""
    return isinstance(kernel, White) or any(has_noise(part) for part in getattr(kernel, "parts", ()))


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
