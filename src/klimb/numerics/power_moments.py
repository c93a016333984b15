"""E|x|^p under N(x; mu, s^2) and its first two derivatives in mu, for 0 < p < 2.

With z = mu^2 / (2 s^2) all three are confluent hypergeometric functions,

    E|x|^p = (2 s^2)^(p/2) gamma((p + 1)/2) / sqrt(pi) 1F1(-p/2; 1/2; -z),

and the derivatives are those of 1F1. For moderate z they are summed after Kummer's transformation, where the terms have
one sign; for large z by the expansion in 1/z, which is |mu|^p times 1 plus corrections and has no digits to lose.
"""

from __future__ import annotations

import numpy as np
from scipy.special import gamma as gamma_function

from klimb.numerics.arrays import Array

_FAR = 40.0  # z from which the expansion in 1/z is exact to rounding
_FAR_TERMS = 20
# Largest z that is served by so many terms of the power series.
_TIERS = ((0.5, 18), (4.0, 36), (14.0, 66), (_FAR, 132))


def power_moments(mu: Array, s: Array, p: Array) -> tuple[Array, Array, Array]:
    """E|x|^p, its first and its second derivative in mu; 1-d arrays of one length.

    >>> mean, slope, bend = power_moments(np.zeros(1), np.ones(1), np.ones(1))  # E|x| = sqrt(2 / pi)
    >>> print((mean**2 * np.pi).round(12), (bend**2 * np.pi).round(12))
    [2.] [2.]
    """
    size = np.abs(mu)
    far = (size >= np.sqrt(2.0 * _FAR) * s) & (size > 0.0)
    out = np.zeros((3, mu.size))
    with np.errstate(over="ignore", under="ignore", divide="ignore"):
        if far.any():
            out[:, far] = _far(size[far], s[far], p[far])
        near = np.flatnonzero(~far & (s > 0.0))
        if near.size:
            out[:, near] = _near(size[near], s[near], p[near])
        np.nan_to_num(out, copy=False)  # what overflows becomes the largest number
    return out[0], np.sign(mu) * out[1], out[2]


def _near(size: Array, s: Array, p: Array) -> Array:
    ratio = size / s
    z = 0.5 * ratio * ratio
    out = np.empty((3, size.size))
    low = -1.0
    for high, terms in _TIERS:
        tier = np.flatnonzero((z > low) & (z <= high))
        low = high
        if tier.size:
            a, q = z[tier], p[tier]
            # 1F1(b; c; -z) = exp(-z) 1F1(c - b; c; z)
            out[:, tier] = np.exp(-a) * np.stack([_series(0.5 * (q + 1.0), 0.5, a, terms),
                                                  _series(0.5 * (q + 1.0), 1.5, a, terms),
                                                  _series(0.5 * (q - 1.0), 0.5, a, terms)])
    unit = np.sqrt(2.0) * s
    scale = gamma_function(0.5 * (p + 1.0)) / np.sqrt(np.pi) * unit**p
    out[0] *= scale
    out[1] *= 2.0 * p * scale * (size / unit) / unit
    out[2] *= 2.0 * p * scale / unit**2
    return out


def _series(a: Array, c: float, z: Array, terms: int) -> Array:
    """1F1(a; c; z) by Horner's rule."""
    total = np.ones_like(z)
    for k in range(terms - 1, -1, -1):
        total = 1.0 + total * (z * (a + k) / ((c + k) * (k + 1.0)))
    return total


def _far(size: Array, s: Array, p: Array) -> Array:
    ratio = s / size
    inverse = 2.0 * ratio * ratio  # 1 / z
    power = size**p
    mean = power * _expansion(-0.5 * p, 0.5 * (1.0 - p), inverse)
    slope = p * power / size * _expansion(1.0 - 0.5 * p, 0.5 * (1.0 - p), inverse)
    bend = p * (p - 1.0) * (power / size / size) * _expansion(1.0 - 0.5 * p, 0.5 * (3.0 - p), inverse)
    # What the expansion leaves out is smaller than rounding, but all there is of the second derivative at p = 1.
    with np.errstate(invalid="ignore"):
        kink = np.where(p == 1.0, 2.0 / np.sqrt(2.0 * np.pi) * np.exp(-0.5 / (ratio * ratio)) / s, 0.0)
    return np.stack([mean, slope, bend + np.nan_to_num(kink)])


def _expansion(a: Array, b: Array, inverse: Array) -> Array:
    """sum_k (a)_k (b)_k / k! inverse^k, by Horner's rule."""
    total = np.ones_like(inverse)
    for k in range(_FAR_TERMS - 1, -1, -1):
        total = 1.0 + total * (inverse * (a + k) * (b + k) / (k + 1.0))
    return total
