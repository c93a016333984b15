"""The hierarchical normal model: group means around a common mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np

from klimb.conjugate.declare import gamma, normal
from klimb.conjugate.families import Gamma, Normal
from klimb.conjugate.loop import Fitted, fit
from klimb.errors import InputError
from klimb.numerics.arrays import Array, as_float


@final
@dataclass(frozen=True, eq=False)
class Hierarchy:
    """Fitted groups: their means, the common mean, the precision between groups and within (None where known)."""

    fit: Fitted
    groups: Normal
    common: Normal
    between: Gamma
    within: Gamma | None


def hierarchical_normal(
    y: Any,
    group: Any = None,
    *,
    sd: Any = None,
    between_prior: tuple[float, float] = (1.0, 1.0),
    within_prior: tuple[float, float] = (1e-3, 1e-3),
    tol: float = 1e-10,
    max_iter: int = 5000,
) -> Hierarchy:
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
    means, centre, spread = fitted[groups], fitted[common], fitted[between]
    noise = None if within is None else fitted[within]
    assert isinstance(means, Normal)
    assert isinstance(centre, Normal)
    assert isinstance(spread, Gamma)
    assert noise is None or isinstance(noise, Gamma)
    moved = [Normal(q.mean + shift, q.precision) for q in (means, centre)]
    return Hierarchy(fitted, moved[0], moved[1], spread, noise)


def standard_deviation(precision: Gamma) -> Array:
    """E of one over the square root of a precision: the standard deviation's mean."""
    from scipy.special import gammaln

    a = precision.shape
    return np.asarray(np.sqrt(precision.rate) * np.exp(gammaln(a - 0.5) - gammaln(a)))
