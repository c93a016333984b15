"""Means of what is never negative, with relative accuracy: the terms of a divergence, averaged over a Gaussian."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from klimb.numerics.adaptive import Rows, gaussian_average
from klimb.numerics.arrays import Array

STEPS, REACH = (0.75, 0.375, 0.1875, 0.09375), 9.0  # levels of the trapezoid rule, in standard deviations
CERTIFIED = 1e-7  # relative: two levels that agree to this prove the finer one to about its square
CUT_OFF = 1e-13
POINTS = 1 << 15


def divergence_term(log_p: Array, log_mean: Array) -> Array:
    """p log(p / q) - p + q >= 0 for p = exp(log_p), q = exp(log_mean), with relative accuracy where p is close to q."""
    r = log_p - log_mean
    small = np.abs(r) < 0.03
    near = np.where(small, r, 0.0)
    series = np.zeros_like(near)
    for k in range(10, 2, -1):  # r + e^-r - 1 = r^2/2 (1 - r/3 (1 - r/4 (1 - ...)))
        series = near / k * (1.0 - series)
    with np.errstate(under="ignore", over="ignore", invalid="ignore"):
        p, q = np.exp(log_p), np.exp(log_mean)
        far = np.where(p > 0.0, p * r, 0.0) + (q - p)
        return np.where(small, p * (0.5 * near * near) * (1.0 - series), far)


def certified_average(function: Callable[[Rows, Array], Array], m: Array, v: Array) -> Array:
    """E function(s) for an analytic function that is nowhere negative, with a relative accuracy of some 1e-10.

    The error of the trapezoid rule at least squares when its step is halved, so that two levels which agree certify the
    finer one; what is still open after the last level goes to adaptive quadrature.
    """
    sd = np.sqrt(v)
    out = np.empty_like(m)
    rest: list[Rows] = []
    size = int(POINTS * STEPS[0] / (2.0 * REACH))
    for begin in range(0, m.size, size):
        rows = np.arange(begin, min(begin + size, m.size))
        first = -REACH + STEPS[0] * np.arange(round(2 * REACH / STEPS[0]) + 1.0)
        total, ends = _weighted_sum(function, rows, m, sd, first)
        for step in STEPS:
            between = -REACH + step * (0.5 + np.arange(float(round(2 * REACH / step))))
            more, _ = _weighted_sum(function, rows, m, sd, between)
            agree = np.abs(total - more) <= CERTIFIED * (total + more)
            agree &= ends <= CUT_OFF * total  # a tail that reaches further out is left to adaptive quadrature
            total = total + more
            out[rows[agree]] = 0.5 * step * total[agree]
            rows, total, ends = rows[~agree], total[~agree], ends[~agree]
            if not rows.size:
                break
        rest.append(rows)
    left = np.concatenate(rest) if rest else np.empty(0, dtype=np.intp)
    if left.size:
        out[left] = gaussian_average(lambda rows, s: function(left[rows], s), m[left], v[left], 1, tolerance=1e-11)[0]
    return out


def _weighted_sum(function: Callable[[Rows, Array], Array], rows: Rows, m: Array, sd: Array, nodes: Array
                  ) -> tuple[Array, Array]:
    """The sum over ``nodes`` of function times density, and the larger of its two outermost terms."""
    values = np.exp(-0.5 * nodes * nodes)[:, None] / np.sqrt(2.0 * np.pi) * function(
        rows, m[rows] + sd[rows] * nodes[:, None])[0]
    return values.sum(axis=0), np.maximum(values[0], values[-1])
