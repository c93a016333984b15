"""E log(1 + e^f), E sigmoid(f) and E sigmoid'(f) under N(f; m, v): the three moments behind every logistic site."""

from __future__ import annotations

import numpy as np

from klimb.numerics.arrays import Array
from klimb.numerics.quadrature import SPAN, Index, Landscape, Triple, gaussian_expectation


def folded_point(f: Array) -> Triple:
    """softplus, sigmoid and sigmoid' at -|f|, where all three are small and have relative accuracy."""
    with np.errstate(under="ignore"):
        e = np.exp(-np.abs(f))
        share = 1.0 / (1.0 + e)
        small = e * share
        return np.log1p(e), small, small * share


def folded_moments(m: Array, v: Array) -> Triple:
    """E softplus, E sigmoid and E sigmoid' under N(-|m|, v), where all three are small and have relative accuracy.

    The other side is the mirror image (`unfold`): softplus(f) = softplus(-f) + f, sigmoid(f) = 1 - sigmoid(-f).
    """
    return _left_moments(-np.abs(m), v)


def unfold(m: Array, value: Array, slope: Array) -> tuple[Array, Array]:
    """E softplus and E sigmoid at m, from those at -|m|."""
    return value + np.maximum(m, 0.0), np.where(m > 0.0, 1.0 - slope, slope)


def softplus_moments(m: Array, v: Array) -> Triple:
    """E log(1 + e^f), E sigmoid(f), E sigmoid'(f) under N(m, v).

    >>> value, slope, curvature = softplus_moments(np.array([0.0]), np.array([0.0]))
    >>> print(value.round(12), slope, curvature)
    [0.693147180560] [0.5] [0.25]
    """
    value, slope, curvature = folded_moments(m, v)
    return *unfold(m, value, slope), curvature


def _point(f: Array) -> Triple:
    value, slope, curvature = folded_point(f)
    return *unfold(f, value, slope), curvature


def _left_moments(m: Array, v: Array) -> Triple:
    """The moments for m <= 0."""

    def integrands(f: Array, rows: Index) -> Triple:
        return _point(f)

    s = np.sqrt(v)
    peak = m + v  # of e^f N(f; m, v)
    inside = peak <= 0.0
    low = np.where(inside, peak - SPAN * s, peak - np.sqrt(peak * peak + SPAN * SPAN * v))
    high = np.where(inside, peak + SPAN * s, m + np.sqrt(m * m + SPAN * SPAN * v))
    landscape = Landscape(offset=m, height=np.full_like(m, np.pi), tilt=np.ones_like(m), low=low, high=high, centre=np.zeros_like(m),
                          step=lambda f, rows: 0.75 * np.hypot(f, np.pi))
    return gaussian_expectation(integrands, m, v, landscape)
