"""Adding data to a fitted process: ``update`` polishes old and new sites together; a `Summary` forgets the old data.

    model, result = update(model, result, y, X_new, y_new)        # the answer of a full refit, for less
    summary = summarise(model, result).absorb(X_new, y_new)       # M numbers and an M x M matrix, whatever was seen
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import final

import numpy as np

from klimb.errors import InputError
from klimb.infer.loop import infer
from klimb.infer.result import Result, Status
from klimb.kernels import Kernel
from klimb.kernels.means import Mean, Zero
from klimb.latents.base import Posterior
from klimb.latents.inducing import Inducing
from klimb.latents.weights import Weights
from klimb.models.gp import GaussianProcess, as_single
from klimb.numerics.arrays import Array, ArrayLike, as_float
from klimb.numerics.dense import row_blocks
from klimb.rows.kernel_rows import inducing_latent
from klimb.sites.base import Site

LOCAL_STEPS = 6  # on each new datum alone: the loop does the rest


def update(
    model: GaussianProcess,
    result: Result,
    y: ArrayLike,
    X_new: ArrayLike,
    y_new: ArrayLike,
    *,
    site: Site | None = None,
    tol: float = 1e-6,
    max_iter: int = 500,
) -> tuple[GaussianProcess, Result]:
    """Add data to a fitted process: the optimum of the full refit, in fewer steps.

    The old sites are kept as a start, new ones begin at their own optimum against the predictions there, and the loop
    polishes all of them together. Hyperparameters and inducing points stay as they are.

    Parameters
    ----------
    model, result : GaussianProcess and Result
        The process so far and its fit, ``result = model.fit(y)``.
    y : array
        The data so far.
    X_new, y_new : arrays
        The data to add.
    site : Site
        The likelihood of all data, old ones first; needed only where its parameters are one per datum.
    tol, max_iter
        As in `klimb.infer`.

    Returns
    -------
    (GaussianProcess, Result)
        The process with all inputs (old ones first) and its fit.

    Examples
    --------
    >>> import numpy as np, klimb
    >>> from klimb.models.update import update
    >>> x = np.linspace(0.0, 6.0, 60)
    >>> y = np.sin(x) > 0
    >>> model = klimb.gp(klimb.kernels.RBF(), x[:50], klimb.sites.Logistic())
    >>> model, result = update(model, model.fit(y[:50]), y[:50], x[50:], y[50:])
    >>> bool(abs(result.bound - klimb.gp(klimb.kernels.RBF(), x, klimb.sites.Logistic()).fit(y).bound) < 1e-6)
    True
    """
    as_single(model, "Fit a model of several classes to all data.")
    posterior = result.posterior
    inputs = _new_inputs(X_new, model.X.shape[1])
    n_old, n_new = len(model.X), len(inputs)
    if len(posterior.a) != n_old:
        raise InputError(f"result must be the fit of this model ({n_old} sites)", f"{len(posterior.a)} sites",
                         "Pass the result of model.fit(y).")
    everything = model.likelihood if site is None else site
    if site is None:
        _check_scalar_parameters(everything)
    old, new = everything.rows(slice(0, n_old)), everything.rows(slice(n_old, n_old + n_new))
    clean = np.concatenate([old.validate(y), new.validate(y_new)])
    if len(clean) != n_old + n_new:
        raise InputError(f"y and y_new must have {n_old} and {n_new} entries", f"{len(clean)} together",
                         "There is one observation per input.")
    larger = replace(model, X=np.vstack([model.X, inputs]), likelihood=everything)
    m, v = model.predict(posterior, inputs)
    slack = larger.latent.slack[n_old:]
    slope, gamma = local_sites(new, clean[n_old:], m, np.maximum(v - slack, 0.0), slack)
    slope = np.concatenate([posterior.a + posterior.gamma * posterior.m, slope])
    gamma = np.concatenate([posterior.gamma, gamma])
    zeros = np.zeros(n_old + n_new)
    start = Posterior(larger.latent, slope, gamma, zeros, zeros, 0.0)  # of a start the loop takes a + gamma m and gamma
    return larger, infer(larger.latent, everything, clean, start=start, tol=tol, max_iter=max_iter)


def local_sites(site: Site, y: Array, m: Array, v: Array, slack: Array) -> tuple[Array, Array]:
    """(slope, gamma) of each datum at its own optimum where h ~ N(m, v) and f ~ N(h, slack), all at once.

    Natural steps on one datum each, from its own start or from no site; a step that lowers the datum's bound is halved.
    """
    start_slope, start_gamma = site.start(y)
    slope, gamma = np.zeros_like(m), np.zeros_like(m)
    bound, mean, e_alpha, e_gamma = _local_bound(site, y, (m, v, slack), slope, gamma)
    step = np.ones_like(m)
    wanted_slope, wanted_gamma = start_slope, start_gamma
    for _ in range(LOCAL_STEPS):
        tried_slope = slope + step * (wanted_slope - slope)
        tried_gamma = gamma + step * (wanted_gamma - gamma)
        tried = _local_bound(site, y, (m, v, slack), tried_slope, tried_gamma)
        better = tried[0] >= bound
        slope, gamma = np.where(better, tried_slope, slope), np.where(better, tried_gamma, gamma)
        bound = np.where(better, tried[0], bound)
        mean, e_alpha, e_gamma = (
            np.where(better, new, old) for new, old in zip(tried[1:], (mean, e_alpha, e_gamma), strict=True)
        )
        step = np.where(better, 1.0, 0.5 * step)
        usable = np.isfinite(e_alpha) & np.isfinite(e_gamma)
        wanted_gamma = np.where(usable, e_gamma, start_gamma)
        wanted_slope = np.where(usable, wanted_gamma * mean - e_alpha, start_slope)
    return slope, gamma


def _local_bound(
    site: Site, y: Array, prior: tuple[Array, Array, Array], slope: Array, gamma: Array
) -> tuple[Array, Array, Array, Array]:
    """The bound of each datum alone, -inf where it is improper; the mean there, and the oracle's alpha and gamma."""
    m, v, slack = prior
    share = 1.0 + gamma * v
    proper = share > 0.0
    share = np.where(proper, share, 1.0)
    mean, variance = m + v * (slope - gamma * m) / share, v / share
    with np.errstate(over="ignore", invalid="ignore"):
        e = site.oracle(y, mean, variance + slack)
        spread = np.divide((mean - m) ** 2, v, out=np.zeros_like(m), where=v > 0)
        value = e.value - 0.5 * (spread + 1.0 / share - 1.0 + np.log(share))
    alpha, curvature = (np.where(np.isfinite(x), x, np.inf) for x in (e.alpha, e.gamma))
    return np.where(proper & np.isfinite(value), value, -np.inf), mean, alpha, curvature


@final
@dataclass(frozen=True, eq=False)
class Summary:
    """All that a process with inducing points knows, without its data: q(u) = N(weight_mean, weight_covariance).

    Made by `summarise`; ``absorb`` returns the summary after more data. Its state does not grow with the data.
    ``bound`` is the sum of the bounds of all parts: what the data have told so far.
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

    def absorb(self, X_new: ArrayLike, y_new: ArrayLike, *, site: Site | None = None, tol: float = 1e-6) -> Summary:
        """The summary after more data, which may be forgotten then.

        Everything before counts as one Gaussian prior of the inducing values. That is exact for a Gaussian site: the
        result is that of fitting all data at once with these inducing points and hyperparameters. For other sites the
        old sites stay as they were when they were absorbed, where a refit would adapt them to the new data too.
        """
        inputs = _new_inputs(X_new, self.Z.shape[1])
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
        if isinstance(self.mean, Zero):
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
        inputs = _new_inputs(X_new, self.Z.shape[1])
        m, v = np.empty(len(inputs)), np.empty(len(inputs))
        for rows in row_blocks(len(inputs), max(len(self.Z) // 16, 1)):  # blocks of some 16 MB
            seen = inducing_latent(self.kernel, inputs[rows], self.Z, mean=self.mean, jitter=self.jitter)
            spread, mean = seen.row_design.row_norms_squared(self._root, times=self.weight_mean)
            m[rows], v[rows] = seen.mean + mean, seen.slack + spread
        return m, v


def summarise(model: GaussianProcess, result: Result) -> Summary:
    """What a fitted process with inducing points has learnt, without its data.

    Examples
    --------
    >>> import numpy as np, klimb
    >>> from klimb.models.update import summarise
    >>> x = np.linspace(0.0, 6.0, 60)
    >>> y = np.sin(x)
    >>> model = klimb.gp(klimb.kernels.RBF(), x[:40], klimb.sites.Gaussian(0.1), inducing=np.linspace(0, 6, 12))
    >>> later = summarise(model, model.fit(y[:40])).absorb(x[40:], y[40:])
    >>> whole = klimb.gp(klimb.kernels.RBF(), x, klimb.sites.Gaussian(0.1), inducing=np.linspace(0, 6, 12))
    >>> bool(abs(later.bound - whole.fit(y).bound) < 1e-6)
    True
    """
    posterior = result.posterior
    if model.Z is None or not isinstance(posterior.latent, Inducing):
        raise InputError("a summary needs inducing points", "a full process",
                         "Pass inducing= to klimb.gp, or use update.")
    _check_scalar_parameters(model.likelihood)
    return Summary(model.kernel, model.mean, model.likelihood, model.Z, model.jitter, posterior.mean,
                   posterior.covariance(), result.bound, len(model.X), result.status)


def _check_scalar_parameters(site: Site) -> None:
    for name in site.per_datum:
        if np.ndim(getattr(site, name)):
            raise InputError(f"{type(site).__name__} has one {name} per datum, so new data need theirs",
                             f"{np.size(getattr(site, name))} values", "Pass site= with the parameters it needs.")


def _new_inputs(X: ArrayLike, width: int) -> Array:
    array = as_float(X, "X_new")
    array = array[:, None] if array.ndim == 1 else array
    if array.ndim != 2 or len(array) == 0 or array.shape[1] != width:
        raise InputError(f"X_new must have at least one row and {width} column{'s' * (width != 1)}",
                         f"shape {array.shape}", "Pass inputs of the same kind as X.")
    return array
