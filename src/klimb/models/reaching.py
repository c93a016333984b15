"""Whether means of y rest on tails of the exact posterior, and draws that reach these."""

from typing import Any

import numpy as np

from klimb.numerics.pareto import SmoothedWeights
from klimb.trust.collapsed import CollapsedDraws, CollapsedWeights, ShockWeights
from klimb.trust.pieces import ROUND, skewness
from klimb.trust.tails import Mean, reaches, tail_draws

FAR = 2.0  # sds from the mean of f, where an sd of a mean may rest, from which that is looked at
SHOWN = 0.2  # nats by which skewness moves a log density there, from which draws go there


def mean_by_f(model: Any) -> Mean | None:
    """What makes the mean of y of f; None where that is f, or y has several."""
    likelihood = model.likelihood
    if len(likelihood.fields) > 1 or likelihood.response in ("ordered", "classes"):
        return None
    shift, slope = model.new_site(None).mean_predictor
    inverse = likelihood.link.inverse
    return None if likelihood.link.name == "identity" else lambda f: np.asarray(inverse(shift + slope * f))


def reaching_draws(weights: ShockWeights, draws: CollapsedDraws, smoothed: SmoothedWeights, mean: Mean | None,
                   seed: int, *, uneven: bool) -> tuple[CollapsedDraws, SmoothedWeights] | None:
    """Draws as far out as sds of means of y rest; None where Gaussians tell of that, or draws would cost too much."""
    if mean is None or not weights.shocks.simple or smoothed.effective <= 2 * weights.shocks.dim:
        return None
    assert isinstance(weights, CollapsedWeights)
    share = smoothed.normalised
    if not (uneven or skewness(draws.e, share) > ROUND):
        rows = np.asarray(weights.shocks.shared_rows)
        v = (rows**2).sum(axis=1)
        far = np.abs(reaches(weights.means, v, mean)[0])
        own = far > FAR
        if not own.any():
            return None
        third = np.einsum("abc,ia,ib,ic->i", draws.third(share)[0], *(rows[own],) * 3, optimize=True)
        if (np.abs(third) / v[own] ** 1.5 * (far[own] ** 3 - 3.0 * far[own])).max() < 6.0 * SHOWN:
            return None
    return tail_draws(weights, draws.moments(share), mean, seed, smoothed.effective / len(share))
