"""Low-rank-plus-diagonal Gaussians for many dimensions.

A root D Q with D diagonal and Q orthogonal, of which only the first r axes are refined, has the covariance
D^2 + D Q_r (T T' - I) Q_r' D: diagonal plus rank r. The axes are those in which the slope of log p - log q varies most.
"""

from __future__ import annotations

import numpy as np

from klimb.boosting.ascent import climb
from klimb.boosting.gaussians import one_gaussian
from klimb.boosting.nodes import nodes
from klimb.boosting.proposals import steepest
from klimb.boosting.refine import EvaluatedMixture, evaluated, improve
from klimb.boosting.target import Target
from klimb.numerics.arrays import Array

RANK = 20  # axes that are refined at a time
TURNS = 4  # times that they are chosen anew


def low_rank_gaussian(target: Target, starts: Array, root: Array, tol: float, seed: int) -> EvaluatedMixture:
    """The best Gaussian of that form, from the highest mode that the climbs find."""
    D = target.dim
    Z = nodes(2 * D + 20, D, seed)
    found = climb(target, starts, root, iterations=200)
    best = int(np.argmax(np.where(np.isfinite(found.values), found.values, -np.inf)))
    mean, deviations = found.points[best], np.sqrt(np.diag(found.inverses[best]))
    fit = evaluated(target, np.ones(1), one_gaussian(mean, np.diag(deviations)), Z)
    for _ in range(6):
        if np.isfinite(fit.values).all():
            break
        deviations = 0.5 * deviations
        fit = evaluated(target, np.ones(1), one_gaussian(mean, np.diag(deviations)), Z)
    # Conditional scales from Stein's identity, coordinate by coordinate.
    curvature = -(fit.slopes[0] * Z).mean(axis=0)
    deviations = deviations / np.sqrt(np.clip(curvature, 0.01, 100.0))
    scaled = evaluated(target, np.ones(1), one_gaussian(mean, np.diag(deviations)), Z)
    fit = scaled if scaled.bound > fit.bound else fit
    for _ in range(TURNS):
        before = fit.bound
        turned = one_gaussian(fit.parts.means[0], fit.parts.roots[0] @ steepest(fit, 0))
        fresh = evaluated(target, np.ones(1), turned, Z)
        fit = improve(target, fresh, rounds=8, gain=0.1 * tol, free=min(RANK, D))
        if fit.bound - before < tol:
            break
    return fit
