"""The process behind the estimators: a kernel by name, hyperparameters by the bound, inducing points for many data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self, final

import numpy as np
import numpy.typing as npt

from klimb.errors import InputError
from klimb.infer.evidence import optimise
from klimb.infer.hyper import Hypermodel
from klimb.infer.result import Result
from klimb.kernels import KERNELS, Constant, Kernel, White
from klimb.kernels.inducing_points import choose_inducing
from klimb.kernels.means import Constant as Level
from klimb.latents.base import Latent, Posterior
from klimb.models.gp import INDUCING_JITTER, GaussianProcess, gp
from klimb.models.inducing import enough_inducing
from klimb.numerics.arrays import Array, as_float
from klimb.priors import LogNormal
from klimb.sites.base import Site
from klimb.sites.real import Gaussian
from klimb.sklearn.likelihood import OPEN, Likelihood, positive_or_auto
from klimb.sklearn.linear import parts_of, side_by_side

FULL = 800  # rows up to which "auto" keeps the full process
SOME = 400  # rows for a first search of the kernel, where there are more than that
FIRST_POINTS, MOST_POINTS = 50, 300  # inducing points
ENOUGH = 1e-3  # nats per datum that further inducing points would have to promise
LEVEL = 3.0  # prior standard deviation of the level of f around the link of the mean response
NO_SITE = Gaussian(1.0)  # stands in a process whose likelihood is elsewhere
PER_COLUMN = 20  # columns up to which "auto" gives each its own lengthscale


def make_kernel(estimator: Any, n_columns: int) -> Kernel:
    """The kernel of an estimator's settings, at the values where the search starts.

    Inputs are standardised, so two random rows are about sqrt(2 D) apart: lengthscales have a log-normal prior with
    median sqrt(D), the variance one with median 1. The priors say little beside some tens of data, but keep the search
    from running away where the data say nothing.
    """
    name = estimator.kernel
    if isinstance(name, Kernel):
        return name
    found = {known.lower(): kernel for known, kernel in KERNELS.items()}.get(str(name).lower())
    if found is None:
        raise InputError(f"kernel must be a klimb kernel or one of {', '.join(KERNELS)}", repr(name),
                         "Build others from klimb.kernels: they can be added and multiplied.")
    kernel: Kernel = found()
    if "variance" in kernel.parameters:
        kernel = _set(kernel, "variance", positive_or_auto(estimator.variance, "variance"), 1.0, 1.5)
    if "lengthscale" in kernel.parameters:
        kernel = _set(kernel, "lengthscale", _lengthscale(estimator.lengthscale, n_columns),
                      float(np.sqrt(n_columns)), 1.0)
    return kernel


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


@final
@dataclass(frozen=True, eq=False)
class ProcessModel(Hypermodel):
    """A process (for several classes, the same for each) and a likelihood with weights."""

    process: GaussianProcess  # its own likelihood is not used
    likelihood: Likelihood

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.process.names, *self.likelihood.names)

    @property
    def theta(self) -> Array:
        return np.concatenate([self.process.theta, self.likelihood.theta])

    @property
    def bounds(self) -> tuple[Array, Array]:
        lower, upper = (limits.copy() for limits in self.process.bounds)
        upper[:1] = OPEN
        own = np.array(self.likelihood.bounds).reshape(-1, 2)
        return np.concatenate([lower, own[:, 0]]), np.concatenate([upper, own[:, 1]])

    def with_theta(self, theta: Array) -> Self:
        k = len(self.process.names)
        process, likelihood = self.process.with_theta(theta[:k]), self.likelihood.with_theta(theta[k:])
        return replace(self, process=process, likelihood=likelihood)

    @cached_property
    def latent(self) -> Latent:
        return side_by_side([self.process.latent] * self.site.n_outputs)

    @property
    def site(self) -> Site:
        return self.likelihood.site

    def gradient(self, posterior: Posterior, y: Any) -> Array:
        kernel, _ = self.process.kernel_gradient(parts_of(posterior))
        return np.concatenate([kernel, self.likelihood.gradient(posterior, y)])

    def log_prior(self) -> tuple[float, Array]:
        process, process_slope = self.process.log_prior()
        likelihood, likelihood_slope = self.likelihood.log_prior()
        return process + likelihood, np.concatenate([np.asarray(process_slope), likelihood_slope])


def fit_process(
    kernel: Kernel, X: Array, likelihood: Likelihood, y: Array, centre: float, estimator: Any
) -> tuple[ProcessModel, Result, int]:
    """The process at its best hyperparameters and inducing points, the fit there, and the number of fits it took."""
    inducing = estimator.inducing
    automatic = isinstance(inducing, str) and inducing == "auto"
    count = isinstance(inducing, int | np.integer) and not isinstance(inducing, bool)
    if not (automatic or count or inducing is None or np.ndim(inducing) == 2):
        raise InputError('inducing must be "auto", None, a number or an array of points', repr(inducing),
                         'Leave it at "auto".')
    whole, mean = kernel + Constant(LEVEL**2).fixed(), Level(centre).fixed()
    if (automatic and len(X) <= FULL) or (count and int(inducing) >= len(X)):
        inducing, automatic, count = None, False, False
    if not (automatic or count):
        process = gp(whole, X, NO_SITE, mean=mean, inducing=inducing)
        return _search_all(ProcessModel(process, likelihood), y, estimator)
    # A kernel from some of the rows, points for that kernel, then both for all rows.
    some = _some_rows(y, likelihood)
    first, n_first = ProcessModel(gp(whole, X[some], NO_SITE, mean=mean), likelihood.rows(some)), 0
    if first.theta.size:
        first, _, n_first = _search_all(first, y[some], estimator)
    process = replace(first.process, X=X, jitter=INDUCING_JITTER)
    model = ProcessModel(process, replace(first.likelihood, weights=likelihood.weights))
    model, start = _with_points(model, y, None if automatic else int(inducing))
    model, result, n_fits = _search(model, y, estimator.max_iter, start)
    return model, result, n_first + n_fits


def _some_rows(y: Array, likelihood: Likelihood) -> npt.NDArray[np.intp]:
    """The first rows (their order is random), with as many of each class as there are, up to an equal share."""
    if likelihood.plain.response != "classes":
        return np.arange(min(SOME, len(y)))
    labels = np.unique(y)
    chosen = np.concatenate([np.flatnonzero(y == label)[: SOME // len(labels)] for label in labels])
    others = np.setdiff1d(np.arange(len(y)), chosen)[: SOME - len(chosen)]
    return np.sort(np.concatenate([chosen, others]))


def _search_all(model: ProcessModel, y: Array, estimator: Any) -> tuple[ProcessModel, Result, int]:
    """One lengthscale for all columns first, then one for each."""
    model, result, n_fits = _search(model, y, estimator.max_iter)
    if _own_lengthscales(estimator, model.process):
        model, result, more = _search(_with_lengthscales(model), y, estimator.max_iter)
        n_fits += more
    return model, result, n_fits


def _search(
    model: ProcessModel, y: Array, max_iter: int, start: Posterior | None = None
) -> tuple[ProcessModel, Result, int]:
    if not model.theta.size:
        return model, model.fit(y, start=start), 1
    best = optimise(model, y, max_iter=max_iter)
    return best.model, best.result, best.n_fits


def _own_lengthscales(estimator: Any, process: GaussianProcess) -> bool:
    """Whether each column shall have a lengthscale of its own: after one for all is known, and if there are data."""
    n, D = process.X.shape
    if D == 1 or "0.lengthscale" not in process.kernel.free or isinstance(estimator.kernel, Kernel):
        return False
    return bool(2 <= D <= PER_COLUMN and n >= 5 * D) if estimator.ard == "auto" else bool(estimator.ard)


def _with_lengthscales(model: ProcessModel) -> ProcessModel:
    """One lengthscale per column, starting at the common one, around which they vary a priori."""
    whole: Any = model.process.kernel
    kernel, level = whole.parts
    common = float(kernel.lengthscale)
    rules = tuple((name, rule) for name, rule in kernel.rules if name != "lengthscale")
    wider = replace(kernel, lengthscale=(common,) * model.process.X.shape[1], rules=rules)
    wider = wider.with_priors({"lengthscale": LogNormal(median=common, sd=1.0)})
    return replace(model, process=replace(model.process, kernel=wider + level))


def _with_points(model: ProcessModel, y: Array, count: int | None) -> tuple[ProcessModel, Posterior | None]:
    """The model with inducing points for its kernel, as many as the bound asks for unless told, and a first fit."""
    process = replace(model.process, likelihood=model.site)
    tol, most = max(0.1, ENOUGH * model.likelihood.total(len(y))), min(MOST_POINTS, len(y))
    if count is not None:
        return replace(model, process=replace(process, Z=choose_inducing(process.kernel, process.X, count))), None
    if model.site.separable:
        chosen = enough_inducing(process, y, tol=tol, most=most)
        return replace(model, process=chosen.model), chosen.result.posterior
    size, result = FIRST_POINTS, None
    while True:  # as in enough_inducing, for several latent values per datum
        here = replace(model, process=replace(process, Z=choose_inducing(process.kernel, process.X, size)))
        result = here.fit(y, start=None if result is None else result.posterior, tol=1e-3)
        price = 0.5 * float(np.maximum(result.posterior.gamma, 0.0) @ here.latent.slack)
        if price <= tol or size >= most:
            return here, result.posterior
        size = min(2 * size, most)


def has_noise(kernel: Any) -> bool:
    """Whether a kernel gives every row a value of its own, so that equal rows are not one."""
    return isinstance(kernel, White) or any(has_noise(part) for part in getattr(kernel, "parts", ()))
