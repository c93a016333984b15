"""What a run of boosting writes down after every accepted step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

import numpy as np

from klimb.boosting.gaussians import Gaussians
from klimb.numerics.arrays import Array


@final
@dataclass(frozen=True, eq=False)
class BoostStep:
    """The mixture after a step: its size, weights, bound with standard error, and the evaluations used so far.

    ``gap`` estimates KL(q || p) and ``duality_gap`` is the bound on it that Frank-Wolfe algorithms stop by (Locatello
    et al. 2018): the largest log p - log q less its average, at the points the step had.
    """

    n_components: int
    weights: Array
    bound: float
    bound_error: float
    n_values: int
    n_gradients: int
    gap: float
    duality_gap: float
    parts: Gaussians = field(repr=False)


def gaps(residual: Array, share: Array) -> tuple[float, float]:
    """log E e^r - E r and max r - E r of the residuals r = log p - log q: an estimate of KL(q || p), and its bound.

    p integrates to E e^r, so the first is the divergence itself where the points are q's; the second is what moving all
    mass to the best point would gain, which no mixture can exceed.

    >>> print([round(gap, 3) for gap in gaps(np.array([0.0, 1.0]), np.array([0.5, 0.5]))])
    [0.12, 0.5]
    """
    inside = np.isfinite(residual) & (share > 0)
    r, w = residual[inside], share[inside] / share[inside].sum()
    top, average = float(r.max()), float(w @ r)
    return top + float(np.log(w @ np.exp(r - top))) - average, top - average
