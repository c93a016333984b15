"""Adding data to a fitted Gaussian process: ``fit.update`` polishes all sites together; a `Summary` forgets old data.

    fit = fit.update(X_new, y_new)                      # the answer of a full refit, for less
    summary = fit.summarise().absorb(X_new, y_new)      # M numbers and an M x M matrix, whatever was seen
"""

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np

from klimb.errors import InputError, NotPositiveDefiniteError, require
from klimb.infer.loop import infer
from klimb.infer.problem import Problem
from klimb.infer.result import Status
from klimb.infer.start import local_sites, sites_at, start_at
from klimb.kernels import Kernel
from klimb.kernels.means import Mean, ZeroMean
from klimb.latents.base import Posterior
from klimb.latents.inducing import Inducing
from klimb.latents.weights import Weights
from klimb.likelihoods import Left, Observed, from_site
from klimb.models.fit import Fit
from klimb.models.kernel import KernelModel, as_inputs, single
from klimb.models.solution import Solution
from klimb.numerics.arrays import Array, ArrayLike, as_float
from klimb.numerics.dense import row_blocks
from klimb.rows.kernel_rows import inducing_latent
from klimb.sites.base import Site


def update(fit: Fit, X_new: ArrayLike, y_new: Any, *, weights: Any = None, site: Site | None = None,
           tol: float = 1e-6, max_iter: int = 500) -> Fit:
    """Add data to a fitted Gaussian process: the optimum of the full refit, in fewer steps.

    The old sites are kept as a start, new ones begin at their own optimum against the predictions there, and the loop
    polishes all of them together. Hyperparameters and inducing points stay as they are.

    Parameters
    ----------
    fit : Fit
        Of `klimb.gp` or `klimb.series`, with its data, at one value of the hyperparameters.
    X_new, y_new : arrays
        The data to add.
    weights : array
        How often each new datum counts.
    site : Site
        The likelihood of all data, old ones first; needed only where its parameters are one per datum.
    tol, max_iter
        As in `klimb.infer`.

    Examples
    --------
    >>> import numpy as np, klimb
    >>> x = np.linspace(0.0, 6.0, 60)
    >>> y = np.sin(x) > 0
    >>> part = klimb.gp(klimb.kernels.RBF(), x[:50], klimb.sites.Logistic()).fit(y[:50], hyper="fixed")
    >>> whole = klimb.gp(klimb.kernels.RBF(), x, klimb.sites.Logistic()).fit(y, hyper="fixed")
    >>> bool(abs(part.update(x[50:], y[50:]).bound - whole.bound) < 1e-6)
    True
    """
    model = single(fit.model, "Fit a model of several classes to all data.")
    old = _known(fit)
    inputs = as_inputs(X_new, "X_new", model.X.shape[1])
    n_old, n_new = len(model.X), len(inputs)
    if site is None:
        _check_scalar_parameters(model.new_site())
    likelihood = model.likelihood if site is None else from_site(site)
    fresh = _read(model if site is None else replace(model, likelihood=from_site(site.rows(slice(n_old, None)))),
                  y_new, weights, old)
    require(fresh.n == n_new, f"y_new must have {n_new} entries", fresh.n, "There is one observation per input.")
    f_old, f_new = (fit.latents(rows) for rows in (None, inputs))
    larger = replace(model, X=np.vstack([model.X, inputs]), likelihood=likelihood)
    both = joined(old, fresh)
    everything = larger.site(both)
    clean = everything.validate(both.y)
    slope, gamma = sites_at(everything.rows(slice(0, n_old)), clean[:n_old], f_old.m[0], f_old.v[0])
    new = Problem(replace(model, X=inputs).latent, everything.rows(slice(n_old, None)), fresh.y)
    own_slope, own_gamma = _new_sites(new, f_new.m[0], f_new.v[0])
    start = start_at(larger.latent, np.concatenate([slope, own_slope]), np.concatenate([gamma, own_gamma]))
    result = larger.infer(both, start=start, tol=tol, max_iter=max_iter)
    return Fit.of(Solution.held(larger, result), both, interval=fit.interval)


def _new_sites(new: Problem, m: Array, v: Array) -> tuple[Array, Array]:
    """(slope, gamma) of new data, each at its own optimum against its prediction; from the datum where that fails."""
    around: Any = Posterior(new.latent, np.zeros_like(m), np.zeros_like(m), m, v, 0.0)
    with suppress(NotPositiveDefiniteError):
        return local_sites(new, m, np.maximum(v - new.latent.slack, 0.0), around)
    return new.site.start(new.y)


def _known(fit: Fit) -> Observed:
    """The data of a fit that can be added to."""
    if fit.components.integrated or fit.data is None:
        what = "integrated hyperparameters" if fit.components.integrated else "a fit without its data"
        raise InputError("only a fit at one value of its hyperparameters, with its data, can be updated", what,
                         'Use hyper="optimise" or hyper="fixed", or fit all data again.')
    return fit.data


def _read(model: KernelModel, y_new: Any, weights: Any, old: Observed) -> Observed:
    """New data with the levels of the old ones."""
    left = Left.of(y_new)
    unknown = [level for level in left.levels if level not in old.levels]
    if unknown:
        raise InputError(f"y_new must have the levels of the fit ({', '.join(old.levels)})", repr(unknown[0]),
                         "Fit all data again.")
    if left.levels:
        codes = np.array([old.levels.index(level) for level in left.levels], dtype=np.float64)
        left = replace(left, values=codes[left.values.astype(np.intp)], levels=old.levels)
    counts = None if weights is None else as_float(weights, "weights", ndim=1)
    return replace(model.likelihood, levels=old.levels or model.likelihood.levels).read(left, counts)


def joined(old: Observed, new: Observed) -> Observed:
    """All data, old ones first."""
    counts = None
    if old.weights is not None or new.weights is not None:
        counts = np.concatenate([np.ones(part.n) if part.weights is None else part.weights for part in (old, new)])
    aux = {name: np.concatenate([values, new.aux[name]]) for name, values in old.aux.items()}
    return replace(old, y=np.concatenate([old.y, new.y]), aux=aux, weights=counts, rows=None)


@dataclass(frozen=True, eq=False)
class Summary:
    """All that a Gaussian process with inducing points knows, without its data.

    It is q(u) = N(weight_mean, weight_covariance) of the whitened inducing values, made by ``fit.summarise()``.
    ``absorb`` returns the summary after more data. Its state does not grow with the data. ``bound`` is the sum of the
    bounds of all parts: what the data have told so far.
    """

    kernel: Kernel
    mean: Mean
    site: Site
    Z: Array
    jitter: float
    weight_mean: Array  # of the whitened inducing values
    weight_covariance: Array
    bound: float
    n_seen: int
    status: Status

    def absorb(self, X_new: ArrayLike, y_new: ArrayLike, *, site: Site | None = None, tol: float = 1e-6) -> Self:
        """The summary after more data, which may be forgotten then.

        Everything before counts as one Gaussian prior of the inducing values. That is exact for a Gaussian site: the
        result is that of fitting all data at once with these inducing points and hyperparameters. For other sites the
        old sites stay as they were when they were absorbed, where a refit would adapt them to the new data too.
        """
        inputs = as_inputs(X_new, "X_new", self.Z.shape[1])
        likelihood = self.site if site is None else site
        seen = inducing_latent(self.kernel, inputs, self.Z, mean=self.mean, jitter=self.jitter)
        latent = self._prior_for(seen)
        result = infer(latent, likelihood, y_new, tol=tol)
        M = len(self.weight_mean)
        mean, covariance = result.posterior.mean[:M], result.posterior.covariance()[:M, :M]
        status = result.status if self.status is Status.CONVERGED else self.status
        return replace(self, weight_mean=mean, weight_covariance=covariance, bound=self.bound + result.bound,
                       n_seen=self.n_seen + len(inputs), status=status)

    def _prior_for(self, seen: Inducing) -> Weights:
        """The weights with what was learnt as their prior; a mean function is one more weight, held at 1."""
        if isinstance(self.mean, ZeroMean):
            return Weights(seen.row_design, self.weight_mean, self.weight_covariance, seen.slack)
        M = len(self.weight_mean)
        covariance = np.zeros((M + 1, M + 1))
        covariance[:M, :M] = self.weight_covariance
        rows = np.column_stack([seen.rows, seen.mean])
        return Weights(rows, np.append(self.weight_mean, 1.0), covariance, seen.slack)

    @cached_property
    def _root(self) -> Array:
        values, vectors = np.linalg.eigh(self.weight_covariance)
        return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0)))

    def predict(self, X_new: ArrayLike) -> tuple[Array, Array]:
        """Mean and variance of f at new inputs, in bounded memory."""
        inputs = as_inputs(X_new, "X_new", self.Z.shape[1])
        m, v = np.empty(len(inputs)), np.empty(len(inputs))
        for rows in row_blocks(len(inputs), max(len(self.Z) // 16, 1)):  # blocks of some 16 MB
            seen = inducing_latent(self.kernel, inputs[rows], self.Z, mean=self.mean, jitter=self.jitter)
            spread, mean = seen.row_design.row_norms_squared(self._root, times=self.weight_mean)
            m[rows], v[rows] = seen.mean + mean, seen.slack + spread
        return m, v


def summarise(fit: Fit) -> Summary:
    """What a fitted Gaussian process with inducing points has learnt, without its data.

    Examples
    --------
    >>> import numpy as np, klimb
    >>> x = np.linspace(0.0, 6.0, 60)
    >>> y, Z = np.sin(x), np.linspace(0, 6, 12)
    >>> fit = klimb.gp(klimb.kernels.RBF(), x[:40], klimb.sites.Gaussian(0.1), inducing=Z).fit(y[:40], hyper="fixed")
    >>> whole = klimb.gp(klimb.kernels.RBF(), x, klimb.sites.Gaussian(0.1), inducing=Z).fit(y, hyper="fixed")
    >>> bool(abs(fit.summarise().absorb(x[40:], y[40:]).bound - whole.bound) < 1e-6)
    True
    """
    model = single(fit.model, "Fit a model of several classes to all data.")
    if model.Z is None:
        raise InputError("a summary needs inducing points", "a full Gaussian process",
                         "Pass inducing= to klimb.gp, or use fit.update.")
    data, site = _known(fit), model.new_site()
    _check_scalar_parameters(site)
    part = fit.components.parts[0]
    mean, covariance = part.joint(np.eye(part.size))
    return Summary(model.kernel, model.mean, site, model.Z, model.jitter, mean, covariance, fit.bound, data.n,
                   fit.status)


def _check_scalar_parameters(site: Site) -> None:
    for name in site.per_datum:
        if np.ndim(getattr(site, name)):
            raise InputError(f"{type(site).__name__} has one {name} per datum, so new data need theirs",
                             f"{np.size(getattr(site, name))} values", "Pass site= with the parameters it needs.")
