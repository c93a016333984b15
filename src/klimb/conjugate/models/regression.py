"""Regression with unknown noise and unknown scale of the weights, and normal means of groups."""

from typing import Any, Literal, NamedTuple

import numpy as np

from klimb.conjugate import Fitted, ProximalPoint, dot, fit, gamma, multivariate_normal, normal, potential
from klimb.conjugate.families import Gamma, MultivariateNormal, Normal
from klimb.conjugate.variables import Variable
from klimb.errors import InputError
from klimb.linalg.matrix import as_design
from klimb.numerics.arrays import Array, as_float
from klimb.sites.base import Site


class Regression(NamedTuple):
    """A fitted regression: ``weights`` and their ``relevance`` (prior precisions) as distributions."""
    fit: Fitted
    weights: MultivariateNormal
    relevance: Gamma
    noise: Gamma | None  # precision of the noise; None where a site took its place

    def predict(self, X_new: Any) -> tuple[Array, Array]:
        """Mean and variance of the linear predictor; add ``1 / noise.mean`` for the variance of a new y."""
        design = as_design(X_new, "X_new")
        D = self.weights.dimension
        if design.shape[1] != D:
            raise InputError(f"X_new must have {D} columns", f"shape {design.shape}", "Use the columns of the fit.")
        root = np.asarray(np.linalg.inv(self.weights.root).T, dtype=float)
        variance, mean = design.row_norms_squared(root, upper=True, times=self.weights.mean)
        return mean, variance


def regression(X: Any, y: Any, site: Site | None = None, *, relevance: Literal["one", "each"] = "one",
               weight_prior: tuple[float, float] = (1e-6, 1e-6), noise_prior: tuple[float, float] = (1e-6, 1e-6),
               step: ProximalPoint | None = None, tol: float = 1e-8, max_iter: int = 1000) -> Regression:
    """y = X w + noise, or y ~ site(X w), with gamma priors on the precision of the weights and of the noise.

    ``relevance="each"`` gives every weight a precision of its own (automatic relevance determination): weights that the
    data do not need go to zero. Priors are (shape, rate) pairs.

    >>> import numpy as np
    >>> X = np.column_stack([np.linspace(-1, 1, 50), np.cos(np.arange(50.0))])
    >>> model = regression(X, 2.0 * X[:, 0] + 0.01 * np.sin(np.arange(50.0) ** 2), relevance="each")
    >>> print(np.abs(np.round(model.weights.mean, 2)))
    [2. 0.]
    """
    design = as_design(X, "X")
    D = design.shape[1]
    if relevance not in ("one", "each"):
        raise InputError('relevance must be "one" or "each"', f"{relevance!r}", "One precision, or one per column.")
    alpha = gamma(*weight_prior, plates=(D,) if relevance == "each" else (), name="relevance")
    w = multivariate_normal(0.0, alpha, dimension=D, name="weights")
    tau: Variable | None = None
    if site is None:
        target = as_float(y, "y", ndim=1)
        tau = gamma(*noise_prior, name="noise")
        variance = float(target.var()) or float(np.square(target).mean()) or 1.0
        start = {tau: Gamma(1.0, variance), alpha: Gamma(np.ones(alpha.plates), 1.0)}
        evidence = normal(dot(design, w), tau, name="y").observe(target)
    else:
        start = {alpha: Gamma(np.ones(alpha.plates), 1.0)}
        evidence = potential(site, dot(design, w)).observe(y)
    fitted = fit(evidence, step=step, start=start, tol=tol, max_iter=max_iter)
    return Regression(fitted, fitted[w], fitted[alpha], None if tau is None else fitted[tau])


class Hierarchy(NamedTuple):
    """Fitted groups: their means, the common mean, the precision between groups and within (None where known)."""
    fit: Fitted
    groups: Normal
    common: Normal
    between: Gamma
    within: Gamma | None


def hierarchical_normal(y: Any, group: Any = None, *, sd: Any = None, between_prior: tuple[float, float] = (1.0, 1.0),
                        within_prior: tuple[float, float] = (1e-3, 1e-3), tol: float = 1e-10,
                        max_iter: int = 5000) -> Hierarchy:
    """y_i ~ N(mean of its group, within), means ~ N(common, between).

    Without ``group`` every datum is a group of its own, and ``sd`` must give its known standard error. Precision
    priors are (shape, rate) in units of the data's variance.

    >>> import numpy as np
    >>> effect = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
    >>> error = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
    >>> model = hierarchical_normal(effect, sd=error)
    >>> print(bool(model.groups.mean.std() < effect.std()))      # shrunk towards the common mean
    True
    """
    data = as_float(y, "y", ndim=1)
    index = np.arange(len(data)) if group is None else np.asarray(group)
    if index.shape != data.shape:
        raise InputError("group must have one entry per datum", f"shape {index.shape}", f"y has {len(data)}.")
    if group is None and sd is None:
        raise InputError("either groups with several data or known standard errors sd are needed", "neither",
                         "Pass group=... or sd=...; one datum per group cannot tell noise from spread.")
    levels, code = np.unique(index, return_inverse=True)
    unit = float(data.var()) or 1.0
    shift = float(data.mean())
    common = normal(0.0, 1e-4 / unit, name="common")
    between = gamma(between_prior[0], between_prior[1] * unit, name="between")
    groups = normal(common, between, plates=(len(levels),), name="groups")
    if sd is not None:
        precision: Any = 1.0 / as_float(sd, "sd") ** 2
        within = None
    else:
        precision = within = gamma(within_prior[0], within_prior[1] * unit, name="within")
    observed = normal(groups[code], precision, plates=data.shape, name="y").observe(data - shift)
    start = {between: Gamma(1.0, unit)} | ({within: Gamma(1.0, unit)} if within is not None else {})
    fitted = fit(observed, start=start, tol=tol, max_iter=max_iter)
    means, centre = (Normal(q.mean + shift, q.precision) for q in (fitted[groups], fitted[common]))
    return Hierarchy(fitted, means, centre, fitted[between], None if within is None else fitted[within])
