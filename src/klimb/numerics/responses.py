"""Closed forms and short integrals of responses: log-normal, sigmoid, double exponential and power moments.

Of E|x|^p under N(x; mu, s^2), 0 < p < 2, and its first two derivatives in mu, with z = mu^2 / (2 s^2): all three are
confluent hypergeometric functions,

    E|x|^p = (2 s^2)^(p/2) gamma((p + 1)/2) / sqrt(pi) 1F1(-p/2; 1/2; -z),

and the derivatives are those of 1F1. For moderate z they are summed after Kummer's transformation, where the terms have
one sign; for large z by the expansion in 1/z, which is |mu|^p times 1 plus corrections and has no digits to lose.
"""

import numpy as np
from scipy.special import erfcx, expit, log_expit, log_ndtr
from scipy.special import gamma as gamma_function

from klimb.numerics.adaptive import gaussian_average
from klimb.numerics.arrays import Array, Index
from klimb.numerics.normal import mills_excess
from klimb.numerics.softplus import folded_moments, unfold
from klimb.numerics.tilted import Tilted, tilted

_FAR = 40.0  # z from which the expansion in 1/z is exact to rounding
_FAR_TERMS = 20
# Largest z that is served by so many terms of the power series.
_TIERS = ((0.5, 18), (4.0, 36), (14.0, 66), (_FAR, 132))


def lognormal_moments(m: Array, v: Array) -> tuple[Array, Array, Array]:
    """E e^f, E e^2f and Var e^f; infinite where they overflow."""
    with np.errstate(over="ignore", under="ignore", divide="ignore"):
        second = 2.0 * (m + v)
        return np.exp(m + 0.5 * v), np.exp(second), np.exp(second + np.log(-np.expm1(-v)))


def sigmoid_moments(m: Array, v: Array) -> tuple[Array, Array, Array]:
    """E sigmoid, E sigmoid (1 - sigmoid) and Var sigmoid, the last two with relative accuracy."""
    value, left_mean, slope = folded_moments(m, v)
    mean = unfold(m, value, left_mean)[1]
    left = -np.abs(m)  # Var sigmoid(f) = Var sigmoid(-f)
    spread = np.empty_like(m)
    narrow, wide = np.flatnonzero(v < 1.0), np.flatnonzero(v >= 1.0)
    if narrow.size:  # nothing cancels around sigmoid(m)
        origin = left[narrow]
        centre = expit(origin)

        def deviations(rows: Index, step: Array) -> Array:
            # sigmoid(m + step) / sigmoid(m) - 1 without its rounding error where the step is small
            d = np.expm1(step) * expit(-(origin[rows] + step))
            return np.stack([d, d * d])

        with np.errstate(all="ignore"):
            shift, square = gaussian_average(deviations, np.zeros_like(origin), v[narrow], 2)
            spread[narrow] = centre * centre * np.maximum(square - shift * shift, 0.0)
    if wide.size:

        def squared(rows: Index, f: Array) -> tuple[Array, Array, Array]:
            miss = expit(-f)
            return 2.0 * log_expit(f), 2.0 * miss, -2.0 * miss * expit(f)

        second = tilted(squared, left[wide], v[wide], log_concave=True).log_z
        with np.errstate(under="ignore"):
            spread[wide] = np.exp(second) - left_mean[wide] * left_mean[wide]
    return mean, slope, spread


def _inverse_mills(x: Array) -> tuple[Array, Array]:
    """1/M(x) and 1/M(x) - x for Mills' ratio M = (1 - Phi) / phi, the second without cancellation."""
    inverse = np.sqrt(2.0 / np.pi) / erfcx(x / np.sqrt(2.0))
    return inverse, np.where(x > 2.0, mills_excess(np.maximum(x, 2.0)), inverse - x)


def double_exponential_tilted(offset: Array, v: Array, rate: Array) -> Tilted:
    """log int exp(-rate |f - y|) N(f; m, v) df with offset = y - m, and its derivatives in m.

    With u = offset/s and k = rate s the two sides of the kink are phi(u) M(k - u) and phi(u) M(k + u), M being Mills'
    ratio; in the derivatives 1/M(x) - x is taken, so that nothing cancels.
    """
    v = np.maximum(v, 1e-200)
    s = np.sqrt(v)
    u, k = offset / s, rate * s
    with np.errstate(all="ignore"):
        left, right = _log_side(k, u), _log_side(k, -u)
        log_z = np.logaddexp(left, right)
        x_left, excess_left = _inverse_mills(k - u)
        x_right, excess_right = _inverse_mills(k + u)
        total = x_left + x_right
        slope = rate * ((2.0 * u + (excess_right - excess_left)) / total)  # (M(k - u) - M(k + u)) over their sum
        share = np.where(total > 0.0, (x_left / total) * (x_right / total), 0.0)
        # share * excess vanishes where one side holds all the mass, however far the kink is.
        curvature = -2.0 * k * np.where(share > 0.0, share * (excess_left + excess_right), 0.0) / v
    return Tilted(log_z, slope, curvature)


def _log_side(k: Array, u: Array) -> Array:
    """log of exp(k^2/2 - k u) Phi(u - k), by the scaled function where Phi is small."""
    x = k - u
    scaled = -0.5 * u * u + np.log(0.5 * erfcx(np.maximum(x, 0.0) / np.sqrt(2.0)))
    return np.where(x > 0.0, scaled, k * (0.5 * k - u) + log_ndtr(-x))


def power_moments(mu: Array, s: Array, p: Array) -> tuple[Array, Array, Array]:
    """E|x|^p, its first and its second derivative in mu; 1-d arrays of one length."""
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
