"""The normal distribution function and the probability of an interval: logarithms, derivatives, expectations."""

from functools import lru_cache

import numpy as np
from numpy.polynomial import chebyshev
from scipy.special import erfcx, ndtr

from klimb.numerics.arrays import Array, Index
from klimb.numerics.quadrature import Landscape, WideTable, gaussian_expectation, geometric_edges, tabulate
from klimb.numerics.special import HALF_LOG_2PI, LARGEST_EXPONENT, SPAN, SQRT_2, SQRT_2PI, Triple, legendre


@lru_cache(maxsize=1)
def _mills_excess_series() -> Array:
    """Chebyshev coefficients in u = 4/x - 1 of x (1/M(x) - x), x >= 2, by the continued fraction of Mills' ratio M."""
    degree = 40
    u = chebyshev.chebpts1(degree + 1)
    with np.errstate(divide="ignore"):
        x = 4.0 / (u + 1.0)
    tail = np.zeros_like(x)
    for k in range(400, 1, -1):  # 1/M(x) = x + 1/(x + 2/(x + 3/(x + ...))), all terms positive, so stable backwards
        tail = k / (x + tail)
    coefficients = chebyshev.chebfit(u, x / (x + tail), degree)
    return np.asarray(np.trim_zeros(np.where(np.abs(coefficients) > 1e-18, coefficients, 0.0), "b"))


def mills_excess(x: Array) -> Array:
    """1/M(x) - x where M(x) = (1 - Phi(x)) / phi(x): the inverse Mills ratio above its asymptote; for x >= 2."""
    return np.asarray(chebyshev.chebval(4.0 / x - 1.0, _mills_excess_series()) / x)


def log_ndtr_derivatives(t: Array) -> Triple:
    """log Phi(t), its first derivative r = phi/Phi and minus its second, r (r + t), each with relative accuracy."""
    value, ratio, curvature = np.empty_like(t), np.empty_like(t), np.empty_like(t)
    for rule, chosen in ((_far_left, t < -2.0), (_middle, t >= -2.0)):
        if chosen.all():
            return rule(t)
        if chosen.any():
            value[chosen], ratio[chosen], curvature[chosen] = rule(t[chosen])
    return value, ratio, curvature


def _far_left(t: Array) -> Triple:
    gap = mills_excess(-t)  # r + t, which cancels where r -> -t
    ratio = gap - t
    return -0.5 * t * t - HALF_LOG_2PI - np.log(ratio), ratio, ratio * gap


def _middle(t: Array) -> Triple:
    with np.errstate(under="ignore"):
        below, above = ndtr(t), ndtr(-t)
        ratio = np.exp(-0.5 * t * t) / (SQRT_2PI * below)
        return np.where(t > 0.0, np.log1p(-np.minimum(above, 0.75)), np.log(below)), ratio, ratio * (ratio + t)


def half_normal_loss(a: Array) -> Array:
    """E max(z - a, 0) = phi(a) - a (1 - Phi(a)) for z standard normal and a >= 0, with relative accuracy."""
    near = np.minimum(a, 2.0)
    mills_near = (SQRT_2PI / 2.0) * erfcx(near / SQRT_2)
    excess = mills_excess(np.maximum(a, 2.0))
    share = np.where(a < 2.0, 1.0 - near * mills_near, excess / (np.maximum(a, 2.0) + excess))
    with np.errstate(under="ignore"):
        return np.asarray(np.exp(-0.5 * a * a) / SQRT_2PI * share)


def probit_point(t: Array, rows: Index | None = None) -> Triple:
    """log Phi(t), minus its first and minus its second derivative."""
    value, ratio, curvature = log_ndtr_derivatives(t)
    return value, -ratio, curvature


@lru_cache(maxsize=1)
def _probit_table() -> WideTable:
    left = [-edge for edge in reversed(geometric_edges(1.5, 2e5))]
    right = [1.5, 3.0, 4.5, 6.0, 8.0, 10.0, 13.0]
    return tabulate(probit_point, [*left, *right], least_deviation=0.6)


def probit_moments(m: Array, v: Array) -> Triple:
    """(E g, -E g', -E g'') for g = log Phi under N(m, v)."""

    def step(t: Array, rows: Index) -> Array:
        # The zeros of Phi nearest to the real line are 1.9 +- 2.8i, the others lie near the diagonals; to the right
        # log Phi falls like exp(-t^2/2).
        left = 0.75 * np.hypot(t - 1.9, 2.8)
        return np.where(t < 1.0, left, np.minimum(left, 16.0 / np.maximum(t, 1.0)))

    s = np.sqrt(v)
    right = np.maximum(m, 0.0)
    # For m > 0 the integrand is exp(-t^2/2) N(t; m, v), a Gaussian at m/(1+v), or lies further left.
    shrunk, narrow = right / (1.0 + v), s / np.sqrt(1.0 + v)
    low = m - s * np.sqrt(np.minimum(right * shrunk, LARGEST_EXPONENT) + SPAN * SPAN)
    high = np.minimum(np.where(m > 0.0, np.minimum(m + SPAN * s, shrunk + SPAN * narrow + 4.0), m + SPAN * s), 39.0)
    landscape = Landscape(offset=np.maximum(1.9 - m, 0.0), height=np.full_like(m, 2.8), tilt=right, low=low, high=high,
                          centre=np.zeros_like(m), step=step, table=_probit_table())
    return gaussian_expectation(probit_point, m, v, landscape)


def log_interval_derivatives(a: Array, b: Array) -> Triple:
    """g = log[Phi(b) - Phi(a)], a < b finite, and dg/df, -d2g/df2 at f = 0 for a - f, b - f, each to relative accuracy.

    In tails and narrow intervals by quadrature scaled by the density at the nearer end, or as a half-line where the
    farther end cannot be seen; for wide ones by the complements.
    """
    a, b = np.broadcast_arrays(a, b)
    # Reflect so that the interval lies to the right of zero or contains it.
    mirrored = b < 0.0
    left = np.where(mirrored, -b, a)
    width = b - a
    fall = width * (left + 0.5 * width)  # the density falls by exp(-fall) over the interval
    tail = (left > 0.0) | (width < 2.0)
    short, seen = (fall < 5.0) & (width < 1.5), fall < 38.0
    value, slope, curvature = np.empty_like(left), np.empty_like(left), np.empty_like(left)
    rules = ((lambda a, width: _truncated(a, width, 10), tail & short),
             (lambda a, width: _truncated(a, width, 24), tail & seen & ~short),
             (lambda a, width: log_ndtr_derivatives(-a), tail & ~seen),
             (_around, ~tail))
    for rule, chosen in rules:
        if chosen.any():
            value[chosen], slope[chosen], curvature[chosen] = rule(left[chosen], width[chosen])
    return value, np.where(mirrored, -slope, slope), curvature


def _truncated(a: Array, width: Array, nodes: int) -> Triple:
    """Phi(a + width) - Phi(a) = phi(a) J with J = int_0^width exp(-a u - u^2/2) du by quadrature."""
    total, first, second = np.zeros_like(a), np.zeros_like(a), np.zeros_like(a)
    with np.errstate(under="ignore"):
        for node, weight in zip(*legendre(nodes), strict=True):
            u = node * width
            density = np.exp(-u * (a + 0.5 * u))
            density *= weight
            total += density
            density *= u
            first += density
            density *= u
            second += density
    mean = first / total
    # dg/df is the mean of the truncated normal, -d2g/df2 is 1 minus its variance.
    return -0.5 * a * a - HALF_LOG_2PI + np.log(width * total), a + mean, 1.0 - (second / total - mean * mean)


def _around(a: Array, width: Array) -> Triple:
    """a <= 0 <= b, b - a >= 2: the complements are below 1/2, and the terms of the second derivative have one sign."""
    b = a + width
    with np.errstate(under="ignore"):
        at_a, at_b = np.exp(-0.5 * a * a) / SQRT_2PI, np.exp(-0.5 * b * b) / SQRT_2PI
        outside = ndtr(a) + ndtr(-b)
        inside = ndtr(b) - ndtr(a)
        slope = (at_a - at_b) / inside
        return np.log1p(-outside), slope, slope * slope + (b * at_b - a * at_a) / inside


def interval_moments(low: Array, high: Array, m: Array, v: Array) -> Triple:
    """(E g, -E g', -E g'') for g = log[Phi(high - f) - Phi(low - f)], both ends finite, under N(m, v)."""
    width, middle = high - low, 0.5 * (low + high)

    def integrands(f: Array, rows: Index) -> Triple:
        value, slope, curvature = log_interval_derivatives(low[rows] - f, high[rows] - f)
        return value, -slope, curvature

    def step(f: Array, rows: Index) -> Array:
        # Outside the interval g is nearly quadratic; inside, at depth t, it is small like exp(-t^2/2), and 0 from 39.
        depth = 0.5 * width[rows] - np.abs(f - middle[rows])
        within = np.where(depth > 40.0, depth - 39.0, np.clip(16.0 / np.maximum(depth, 1.0), 1.0, 2.0))
        return np.where(depth > 1.0, within, 0.6 * np.hypot(depth - 1.9, 2.8))

    s = np.sqrt(v)
    inside = np.maximum(0.5 * width - np.abs(m - middle), 0.0)  # depth of m, 0 outside
    reach = s * np.sqrt(np.minimum(inside * inside / (1.0 + v), LARGEST_EXPONENT) + SPAN * SPAN)
    landscape = Landscape(offset=np.maximum(1.9 - 0.5 * width + np.abs(m - middle), 0.0), height=np.full_like(m, 2.0),
                          tilt=inside, low=m - reach, high=m + reach, centre=middle, step=step)
    return gaussian_expectation(integrands, m, v, landscape)
