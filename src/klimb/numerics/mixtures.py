"""Numbers of mixtures of normals: a posterior whose hyperparameters are integrated out."""

import numpy as np
from scipy.special import ndtr, ndtri

from klimb.numerics.arrays import Array
from klimb.numerics.dense import row_blocks
from klimb.numerics.special import SQRT_2PI

STEPS = 100  # at most: Halley's steps are a few, bisection where it fails some fifty
FARTHEST, LARGEST, MOST_BEYOND = 20.0, 100.0, 20.0  # of a tail beyond points: logs, and times what is known
CLOSE = 1e-8  # of the mean standard deviation: an interval that is short enough
SHORT = 1e-3  # of the smallest: a step of Halley's, which leaves its cube


def mixture_moments(weights: Array, means: Array, variances: Array) -> tuple[Array, Array]:
    """Mean and variance over the first axis, the parts."""
    mean = weights @ means
    return mean, weights @ (variances + (means - mean) ** 2)


def mixture_quantile(weights: Array, means: Array, sds: Array, p: float) -> Array:
    """The p-quantiles of mixtures of normals, parts along the first axis: Halley's steps between the parts' own."""
    if len(weights) == 1:
        return np.asarray(means[0] + sds[0] * ndtri(p))
    if not sds.any():
        return _points_quantile(weights, means, p)
    out = np.empty(means.shape[1])
    for block in row_blocks(len(out), 8 * len(weights)):
        out[block] = _halley(weights, means[:, block], np.maximum(sds[:, block], 1e-300), p)
    return out


def _points_quantile(weights: Array, points: Array, p: float) -> Array:
    """The p-quantiles of points with weights: the first below which, itself included, lies that much of the mass."""
    rows = np.ascontiguousarray(points.T)  # sorts along memory take a fourth of the time
    order = np.argsort(rows, axis=1)
    upto, every = np.cumsum(weights[order], axis=1), np.arange(len(rows))
    at = np.minimum((upto < p * upto[:, -1:]).sum(axis=1), len(points) - 1)
    return np.asarray(rows[every, order[every, at]])


def _halley(weights: Array, means: Array, sds: Array, p: float) -> Array:
    parts = means + sds * ndtri(p)
    low, high = parts.min(axis=0), parts.max(axis=0)
    x, last = weights @ parts, np.full(parts.shape[1], np.inf)
    tolerance, short = CLOSE * (weights @ sds), SHORT * sds.min(axis=0)
    open_ = np.flatnonzero(high - low > tolerance)
    for _ in range(STEPS):
        if not open_.size:
            break
        at = x[open_]
        with np.errstate(over="ignore", under="ignore", divide="ignore", invalid="ignore"):
            own = sds[:, open_]
            scores = (at - means[:, open_]) / own
            gap = weights @ ndtr(scores) - p
            heights = np.exp(-0.5 * scores**2) / own
            slope = -(weights @ (heights * scores / own))
            height = weights @ heights
            step = gap / height * SQRT_2PI
            new = at - step / np.clip(1.0 - 0.5 * step * slope / height, 0.5, 2.0)
        low[open_], high[open_] = np.where(gap < 0, at, low[open_]), np.where(gap < 0, high[open_], at)
        # Between parts that lie apart steps may go back and forth for ever: what does not halve them is not taken.
        inside = (new >= low[open_]) & (new <= high[open_]) & (np.abs(new - at) <= 0.5 * last[open_])
        x[open_] = np.where(inside, new, 0.5 * (low[open_] + high[open_]))
        last[open_] = np.abs(x[open_] - at)
        done = np.where(inside, np.abs(new - at) <= short[open_], high[open_] - low[open_] <= tolerance[open_])
        open_ = open_[~done]
    return np.asarray(x)


def mixture_above(weights: Array, means: Array, sds: Array) -> Array:
    """P(value > 0)."""
    safe = np.where(sds > 0, sds, 1e-300)
    with np.errstate(over="ignore"):
        return np.asarray(weights @ ndtr(means / safe))


def sd_beyond(x: Array, log_weights: Array, near: float) -> float:
    """Relative error of the sd of x > 0 by the tail beyond points that end somewhere; 0 where x is not positive.

    The weights go on as the parabola in t = log x through the best point, the largest x within ``near`` nats of that,
    and the largest of all; of x^2 times that, what lies beyond is compared with what lies between the last two.
    """
    weights = np.exp(log_weights - np.logaddexp.reduce(log_weights))
    places = (np.argmax(log_weights), np.argmax(np.where(log_weights > log_weights.max() - near, x, -np.inf)),
              np.argmax(x))
    if x.min() <= 0.0 or not x[places[0]] < x[places[1]] < x[places[2]]:
        return 0.0
    t, heights = np.log(x[[*places]]), log_weights[[*places]]
    slopes = np.diff(heights) / np.diff(t)
    bend = min((slopes[1] - slopes[0]) / (0.5 * (t[2] - t[0])), 0.0)
    y = np.linspace(t[1] - t[2], FARTHEST, 2000)
    part = np.exp(np.minimum((2.0 + slopes[1] + 0.5 * bend * (t[2] - t[1])) * y + 0.5 * bend * y**2, LARGEST))
    times = min(part[y > 0.0].sum() / part[y <= 0.0].sum(), MOST_BEYOND)
    squares = weights * (x - weights @ x) ** 2
    return float(0.5 * times * squares[x > x[places[1]]].sum() / squares.sum())
