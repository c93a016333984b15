"""The process behind the estimators: a kernel by name, hyperparameters by the bound, inducing points for many data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self, final

import numpy as np

from klimb.errors import InputError
from klimb.inducing import enough_inducing
from klimb.infer.evidence import optimise
from klimb.infer.hyper import Hypermodel
from klimb.infer.result import Result
from klimb.kernels import KERNELS, Constant, Kernel, LogNormal, White
from klimb.kernels.means import Constant as Level
from klimb.latents.base import Latent, Posterior
from klimb.numerics.arrays import Array, as_float
from klimb.process import INDUCING_JITTER, GaussianProcess, gp
from klimb.scale.choose import choose_inducing
from klimb.sites.base import Site
from klimb.sklearn.likelihood import Likelihood, positive_or_auto

FULL = 800  # rows up to which "auto" keeps the full process
FIRST_POINTS, MOST_POINTS = 50, 300  # inducing points for the first search, and most in the end
ENOUGH = 1e-3  # nats per datum that further inducing points would have to promise
LEVEL = 3.0  # prior standard deviation of the level of f around the link of the mean response
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
    """A process and a likelihood with weights; theta is the kernel's, then the likelihood's, then the mean's."""

    process: GaussianProcess  # its own likelihood is not used
    likelihood: Likelihood

    @property
    def names(self) -> tuple[str, ...]:
        return (*self._kernel_names, *self.likelihood.names, *self.process.names[len(self._kernel_names) :])

    @property
    def _kernel_names(self) -> tuple[str, ...]:
        return tuple(f"log {name}" for name in self.process.kernel.free)

    def _split(self, theta: Array) -> tuple[Array, Array]:
        """The part of the process and that of the likelihood."""
        k, s = len(self._kernel_names), len(self.likelihood.learn)
        return np.concatenate([theta[:k], theta[k + s :]]), theta[k : k + s]

    def _join(self, process: Array, likelihood: Array) -> Array:
        k = len(self._kernel_names)
        return np.concatenate([process[:k], likelihood, process[k:]])

    @property
    def theta(self) -> Array:
        return self._join(self.process.theta, self.likelihood.theta)

    @property
    def bounds(self) -> tuple[Array, Array]:
        lower, upper = self.process.bounds
        own = np.array(self.likelihood.bounds).reshape(-1, 2)
        return self._join(lower, own[:, 0]), self._join(upper, own[:, 1])

    def with_theta(self, theta: Array) -> Self:
        process, likelihood = self._split(theta)
        return replace(self, process=self.process.with_theta(process),
                       likelihood=self.likelihood.with_theta(likelihood))

    @property
    def latent(self) -> Latent:
        return self.process.latent

    @property
    def site(self) -> Site:
        return self.likelihood.site

    def gradient(self, posterior: Posterior, y: Any) -> Array:
        return self._join(self.process.gradient(posterior, y), self.likelihood.gradient(posterior, y))

    def log_prior(self) -> tuple[float, Array]:
        process, process_slope = self.process.log_prior()
        likelihood, likelihood_slope = self.likelihood.log_prior()
        return process + likelihood, self._join(np.asarray(process_slope), likelihood_slope)


def fit_process(
    kernel: Kernel, X: Array, likelihood: Likelihood, y: Array, centre: float, estimator: Any
) -> tuple[ProcessModel, Result, int]:
    """The process at its best hyperparameters and inducing points, the fit there, and the number of fits it took."""
    inducing = estimator.inducing
    automatic = isinstance(inducing, str) and inducing == "auto"
    if automatic:
        inducing = None if len(X) <= FULL else FIRST_POINTS
    if isinstance(inducing, int | np.integer):
        inducing = min(int(inducing), len(X))
    whole = kernel + Constant(LEVEL**2).fixed()
    process = gp(whole, X, likelihood.site, mean=Level(centre).fixed(), inducing=inducing)
    model = ProcessModel(process, likelihood)
    model, result, n_fits = _search(model, y, estimator.max_iter)
    if _own_lengthscales(estimator, model.process):
        model, result, more = _search(_with_lengthscales(model), y, estimator.max_iter, result.posterior)
        n_fits += more
    if model.process.Z is not None and isinstance(estimator.inducing, str | int | np.integer):
        model, result, more = _refine_points(model, result, y, estimator, automatic=automatic)
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


def _refine_points(
    model: ProcessModel, result: Result, y: Array, estimator: Any, *, automatic: bool
) -> tuple[ProcessModel, Result, int]:
    """Choose the inducing points again for the kernel that was found, as many as the bound asks for; search again."""
    process = replace(model.process, likelihood=model.likelihood.site)
    if automatic:
        tol = max(0.1, ENOUGH * model.likelihood.total(len(y)))
        chosen = enough_inducing(process, y, tol=tol, most=min(MOST_POINTS, len(y)))
        points, start = chosen.model.Z, chosen.result.posterior
    else:
        assert process.Z is not None
        points, start = choose_inducing(process.kernel, process.X, len(process.Z)), result.posterior
    moved = replace(model, process=replace(process, Z=points, jitter=INDUCING_JITTER))
    return _search(moved, y, estimator.max_iter, start)


def has_noise(kernel: Any) -> bool:
    """Whether a kernel gives every row a value of its own, so that equal rows are not one."""
    return isinstance(kernel, White) or any(has_noise(part) for part in getattr(kernel, "parts", ()))
