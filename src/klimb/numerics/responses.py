"""Moments of exp(f) and sigmoid(f), and the integral of exp(-|f|), under N(f; m, v): predictions in closed form."""

from __future__ import annotations

import numpy as np
from scipy.special import erfcx, expit, log_expit, log_ndtr

from klimb.numerics.adaptive import Rows, gaussian_average
from klimb.numerics.arrays import Array
from klimb.numerics.normal import mills_excess
from klimb.numerics.softplus import folded_moments, unfold
from klimb.numerics.tilted import Tilted, tilted


def lognormal_moments(m: Array, v: Array) -> tuple[Array, Array, Array]:
    """E e^f, E e^2f and Var e^f; infinite where they overflow.

    >>> [float(x[0].round(12)) for x in lognormal_moments(np.array([0.0]), np.array([2.0]))]
    [2.718281828459, 54.598150033144, 47.209093934214]
    """
    with np.errstate(over="ignore", under="ignore", divide="ignore"):
        second = 2.0 * (m + v)
        return np.exp(m + 0.5 * v), np.exp(second), np.exp(second + np.log(-np.expm1(-v)))


def sigmoid_moments(m: Array, v: Array) -> tuple[Array, Array, Array]:
    """E sigmoid, E sigmoid (1 - sigmoid) and Var sigmoid, the last two with relative accuracy.

    >>> [float(x[0].round(9)) for x in sigmoid_moments(np.array([0.0]), np.array([1e-4]))]
    [0.5, 0.24999375, 6.25e-06]
    """
    value, left_mean, slope = folded_moments(m, v)
    mean = unfold(m, value, left_mean)[1]
    left = -np.abs(m)  # Var sigmoid(f) = Var sigmoid(-f)
    spread = np.empty_like(m)
    narrow, wide = np.flatnonzero(v < 1.0), np.flatnonzero(v >= 1.0)
    if narrow.size:  # nothing cancels around sigmoid(m)
        origin = left[narrow]
        centre = expit(origin)

        def deviations(rows: Rows, step: Array) -> Array:
            # sigmoid(m + step) / sigmoid(m) - 1 without its rounding error where the step is small
            d = np.expm1(step) * expit(-(origin[rows] + step))
            return np.stack([d, d * d])

        with np.errstate(all="ignore"):
            shift, square = gaussian_average(deviations, np.zeros_like(origin), v[narrow], 2)
            spread[narrow] = centre * centre * np.maximum(square - shift * shift, 0.0)
    if wide.size:

        def squared(rows: Rows, f: Array) -> tuple[Array, Array, Array]:
            miss = expit(-f)
            return 2.0 * log_expit(f), 2.0 * miss, -2.0 * miss * expit(f)

        second = tilted(squared, left[wide], v[wide], log_concave=True).log_z
        with np.errstate(under="ignore"):
            spread[wide] = np.exp(second) - left_mean[wide] * left_mean[wide]
    return mean, slope, spread


def _inverse_mills(x: Array) -> tuple[Array, Array]:
    """1/M(x) and 1/M(x) - x for Mills' ratio M = (1 - Phi) / phi, the second without cancellation."""
    inverse = np.sqrt(2.0 / np.pi) / erfcx(x / np.sqrt(2.0))
    excess = np.where(x > 2.0, mills_excess(np.maximum(x, 2.0)), inverse - x)
    return inverse, excess


def double_exponential_tilted(offset: Array, v: Array, rate: Array) -> Tilted:
    """log int exp(-rate |f - y|) N(f; m, v) df with offset = y - m, and its derivatives in m.

    With u = offset/s and k = rate s the two sides of the kink are phi(u) M(k - u) and phi(u) M(k + u), M being Mills'
    ratio; in the derivatives 1/M(x) - x is taken, so that nothing cancels.

    >>> t = double_exponential_tilted(np.array([0.0]), np.array([1.0]), np.array([1.0]))
    >>> [float(x[0].round(12)) for x in (t.log_z, t.slope, t.curvature)]
    [-0.647874464449, 0.0, -0.525135276161]
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
    plain = k * (0.5 * k - u) + log_ndtr(-x)
    return np.where(x > 0.0, scaled, plain)
