"""Sds of means of y that rest on a tail of f: by closed forms, or open where that tail is not known.

The variance of exp(f) rests at m + 2 v where f ~ N(m, v), and that of a chance near 0 between there and m. What f is
skewed by counts more there than anywhere: moments of exp(f) are those of a shifted gamma distribution with its moments.

Where the hyperparameters are integrated out, sds of exponentials may even be infinite: the mean time of a Weibull is
Gamma(1 + 1 / shape) exp(-f / shape). Given the shape, f has at least the tails of its prior, so that the mean of the
square grows like exp(c / shape^2) as the shape goes to 0, where likelihoods fall off like powers: it is infinite under
all but priors that fall off as fast. Sds are shown where a hundredth of the posterior's mass carries them.
"""

from typing import Any

import numpy as np
from scipy.special import ndtr

from klimb.models.components import Components, Latents
from klimb.models.reaching import mean_by_f
from klimb.numerics.arrays import Array
from klimb.trust.tails import reaches

VAGUE = 1.5  # sd of a log mean, at the likeliest theta, from which leading order leaves the sd of the mean open
NARROW = 0.5  # sd of f up to which nothing rests on its tails
CARRIED = 0.01  # mass beyond the place where the variance of an exponential rests, at several theta
FAR, SKEWED = (3.0, 2.5), 0.5  # sds to that place, of exponentials and of chances, and how much
# skewness times sd, from which what is not known of f leaves the sd open
ROUND = 1e-3  # skewness of a Gaussian


def tail_sds(f: Latents, skewness: Array | None, components: Components, sd: Array) -> Array:
    """The ``sd`` of each mean, by what is known of the ``skewness`` of f where f is wide; NaN where it is open."""
    heaviest = int(np.argmax(f.weights))
    model = f.models[heaviest]
    if (mean := mean_by_f(model)) is None:
        return sd
    exponential = _exponential(model)
    kinds = {term.kind for term in getattr(model, "terms", ())}
    plain = bool(kinds) and kinds <= {"fixed", "offset"} and f.v.any()
    if by_leading_order(model, components):
        return np.where(f.predictors(f.sites())[0].v[heaviest] > VAGUE**2, np.nan, sd)
    if not plain:  # groups and fields have a scale of their own, and f at draws of a sampler is known
        return sd
    if exponential:
        logs, _ = f.predictors(f.sites())
        rows = np.flatnonzero(logs.moments()[1] > NARROW**2)
        if not rows.size:
            return sd
        sign = -1.0 if model.likelihood.link.name.startswith("minus") else 1.0
        m, v = sign * logs.m[:, rows], logs.v[:, rows]
        lean = np.zeros_like(v)
        if skewness is not None:
            lean += sign * np.sign([[site.mean_predictor[1]] for site in f.sites()]) * skewness[:, rows]
        out = sd.copy()
        out[rows] = _sds_of_exponentials(f.weights, m, v, lean)
        least = CARRIED if any((other.at != model.at).any() for other in f.models) else ndtr(-FAR[0])
        beyond, bend = _beyond(f.weights, m, v, lean)
        out[rows[(beyond < least) | (bend > SKEWED)]] = np.nan
        return out
    m, v = f.moments()
    rows = np.flatnonzero(v > NARROW**2)
    if not rows.size or components.integrated:
        return sd
    out = sd.copy()
    out[rows[np.abs(reaches(m[rows], v[rows], mean)[0]) > FAR[1]]] = np.nan
    return out


def by_leading_order(model: Any, components: Components) -> bool:
    """Whether means are exponentials of f, of which moments to leading order are known: its sd alone says if that does.
    """
    return _exponential(model) and any(part.cubes.size for part in components.parts)


def _exponential(model: Any) -> bool:
    return "log" in model.likelihood.link.name.split()


def _sds_of_exponentials(weights: Array, m: Array, v: Array, skewness: Array) -> Array:
    """Of exp(f), f a mixture of shifted gamma distributions with these moments; NaN where it is infinite."""
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        logs = []
        for power in (1.0, 2.0):
            bend = 0.5 * power * np.sqrt(v) * skewness
            gamma = -4.0 / skewness**2 * (np.log1p(-bend) + bend)
            logs.append(power * m + np.where(np.abs(skewness) < ROUND, 0.5 * power**2 * v, gamma))
        first, second = (np.logaddexp.reduce(np.log(weights)[:, None] + own, axis=0) for own in logs)
        return np.asarray(np.exp(first) * np.sqrt(np.expm1(second - 2.0 * first)))


def _beyond(weights: Array, m: Array, v: Array, skewness: Array) -> tuple[Any, Array]:
    """The mass beyond m + 2 v, and skewness times sd, for points that count as their exp(2 m + 2 v) does."""
    logs = np.log(weights)[:, None] + 2.0 * (m + v)
    share = np.exp(logs - logs.max(axis=0))
    share /= share.sum(axis=0)
    place = (share * (m + 2.0 * v)).sum(axis=0)
    return weights @ ndtr((m - place) / np.sqrt(v)), (share * np.sqrt(v) * skewness).sum(axis=0)
