"""Numbers of mixtures of normals: what is left of a posterior when the parameters behind it have been averaged over."""

from __future__ import annotations

import numpy as np
from scipy.special import ndtr, ndtri

from klimb.numerics.arrays import Array

STEPS = 60  # of bisection: an interval of 20 standard deviations shrinks below rounding


def mixture_moments(weights: Array, means: Array, variances: Array) -> tuple[Array, Array]:
    """Mean and variance over the first axis, the parts.

    >>> mean, variance = mixture_moments(np.array([0.5, 0.5]), np.array([[0.0], [2.0]]), np.array([[1.0], [1.0]]))
    >>> mean.tolist(), variance.tolist()
    ([1.0], [2.0])
    """
    mean = weights @ means
    return mean, weights @ (variances + (means - mean) ** 2)


def mixture_quantile(weights: Array, means: Array, sds: Array, p: float) -> Array:
    """The p-quantiles of mixtures of normals, parts along the first axis: bisection between those of the parts.

    >>> mixture_quantile(np.array([0.5, 0.5]), np.array([[-1.0], [1.0]]), np.array([[1.0], [1.0]]), 0.5).round(9) + 0.0
    array([0.])
    """
    parts = means + sds * ndtri(p)
    low, high = parts.min(axis=0), parts.max(axis=0)
    if len(weights) == 1 or not (high > low).any():
        return np.asarray(parts[0])
    safe = np.where(sds > 0, sds, 1e-300)
    for _ in range(STEPS):
        middle = 0.5 * (low + high)
        with np.errstate(over="ignore"):
            below = weights @ ndtr((middle - means) / safe) < p
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return np.asarray(0.5 * (low + high))


def mixture_above(weights: Array, means: Array, sds: Array) -> Array:
    """P(value > 0)."""
    safe = np.where(sds > 0, sds, 1e-300)
    with np.errstate(over="ignore"):
        return np.asarray(weights @ ndtr(means / safe))
