"""-log(2 cosh(d / 2)) as a function of x = d^2, with derivatives: the even part of logistic sites, [N] Appendix."""

from __future__ import annotations

import numpy as np

from klimb.numerics.arrays import Array

_SMALL = 0.3  # d / 2 below which the series of tanh is used


def _tanh_coefficients(count: int) -> list[float]:
    """tanh u = sum_k c_k u^(2k + 1), from tanh' = 1 - tanh^2."""
    c = [1.0]
    for k in range(1, count):
        c.append(-sum(c[i] * c[k - 1 - i] for i in range(k)) / (2 * k + 1))
    return c


_SERIES = _tanh_coefficients(13)


def log_cosh_even(x: Array) -> tuple[Array, Array, Array, Array]:
    """g(x) = -log(2 cosh(sqrt(x) / 2)), g', g'' and -(2 g' + 4 x g'') = sech^2(sqrt(x) / 2) / 4, for x >= 0.

    >>> g, slope, curvature, bend = log_cosh_even(np.array([0.0, 4.0]))
    >>> print(slope.round(6), bend.round(6))
    [-0.125    -0.095199] [0.25     0.104994]
    """
    d = np.sqrt(x)
    with np.errstate(under="ignore", over="ignore", divide="ignore", invalid="ignore"):  # at the centre: mended below
        e = np.exp(-d)
        share = 1.0 / (1.0 + e)
        value = -0.5 * d - np.log1p(e)
        gamma = (1.0 - e) * share / (2.0 * d)  # tanh(d/2) / (2d) = -2 g'
        bend = e * share * share
        curvature = (gamma - bend) / (4.0 * x)
    near = np.flatnonzero(d < 2.0 * _SMALL)
    if near.size:
        square = 0.25 * x[near]
        gamma_near, curvature_near = np.zeros_like(square), np.zeros_like(square)
        for k in range(len(_SERIES) - 1, 0, -1):
            gamma_near = (gamma_near + _SERIES[k]) * square
            curvature_near = curvature_near * square - 2 * k * _SERIES[k]
        gamma[near] = 0.25 * (1.0 + gamma_near)
        curvature[near] = curvature_near / 64.0
    return value, -0.5 * gamma, curvature, bend
