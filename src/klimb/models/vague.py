"""Means of y that are known to an order of magnitude only: their sds rest on a tail of f that is not known.

The variance of exp(f) rests at m + 2 v where f ~ N(m, v), and that of a chance near 0 between there and m. Where the
hyperparameters are integrated out, sds of exponentials may even be infinite: the mean time of a Weibull is Gamma(1 +
1 / shape) exp(-f / shape), whose square has no mean under any prior that lets the shape go to 0 more slowly than
exp(-f^2 / shape^2). They are shown as far as some hundredth of the posterior's mass carries them.
"""

from typing import Any

import numpy as np
from scipy.special import ndtr

from klimb.likelihoods import Likelihood
from klimb.models.components import Components, Latents
from klimb.models.correction import mean_by_f
from klimb.numerics.arrays import Array
from klimb.trust.tails import reaches

VAGUE = 1.5  # sd of a log mean, at the likeliest theta, from which leading order leaves the sd of the mean open
NARROW = 0.5  # sd of f up to which nothing rests on its tails
CARRIED = 0.01  # mass beyond the place where the variance of an exponential rests, at several theta
FAR, MOVED = 3.0, 0.7  # sds to that place where skewness is unknown; nats that it moves the density by there elsewhere


def by_leading_order(components: Components, likelihood: Likelihood) -> bool:
    """Whether means of y are exponentials of an f whose moments are those of `klimb.trust.gap`."""
    return _exponential(likelihood) and any(part.cubes.size for part in components.parts)


def _exponential(likelihood: Likelihood) -> bool:
    return "log" in likelihood.link.name.split()


def vague(f: Latents, skewness: Array | None, components: Components) -> Array:
    """The rows whose means have no sd, with what is known of the ``skewness`` of f."""
    model, open_ones = f.models[int(np.argmax(f.weights))], np.zeros(f.m.shape[1], dtype=bool)
    if (mean := mean_by_f(model)) is None:
        return open_ones
    if by_leading_order(components, model.likelihood):
        (_, slope) = model.new_site(None).mean_predictor
        return np.asarray(slope**2 * f.v[int(np.argmax(f.weights))] > VAGUE**2)
    if any((other.at != model.at).any() for other in f.models):
        if not _exponential(model.likelihood) or any(part.by_levels for part in components.parts):
            return open_ones
        logs, _ = f.predictors(f.sites())
        rows = np.flatnonzero(logs.moments()[1] > NARROW**2)
        sign = -1.0 if model.likelihood.link.name.startswith("minus") else 1.0
        open_ones[rows] = _mass_beyond(f.weights, sign * logs.m[:, rows], logs.v[:, rows]) < CARRIED
        return open_ones
    m, v = f.moments()
    rows = np.flatnonzero(v > NARROW**2)
    far = np.abs(reaches(m[rows], v[rows], mean)[0])
    if skewness is None:
        open_ones[rows] = far > FAR
    else:
        moved = np.abs(f.weights @ (f.v**1.5 * skewness))[rows] / v[rows] ** 1.5 * (far**3 - 3.0 * far) / 6.0
        open_ones[rows] = moved > MOVED
    return open_ones


def _mass_beyond(weights: Array, m: Array, v: Array) -> Any:
    """The mass beyond m + 2 v, on average over points that count as their exp(2 m + 2 v) does."""
    logs = np.log(weights)[:, None] + 2.0 * (m + v)
    share = np.exp(logs - logs.max(axis=0))
    place = (share * (m + 2.0 * v)).sum(axis=0) / share.sum(axis=0)
    return weights @ ndtr((m - place) / np.sqrt(np.maximum(v, 1e-300)))
