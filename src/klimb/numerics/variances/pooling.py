"""What the rows have in common: noisy ratios v_i / v_i^M of all rows, made better by each other.

The model is that of small-area estimation (Fay and Herriot, JASA 1979): ratio_i = f_i + tau_i xi_i, where f_i is a
quadratic function of a few features of the row that cost nothing, and the direct estimate of a row adds noise of known
size. The features say much: by how much a surrogate of low rank misses a row depends on how strong the row itself is in
A. The best prediction is f_i plus a share tau_i^2 / (tau_i^2 + noise^2) of what the row's own estimate says beyond it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from klimb.numerics.arrays import Array

ROWS_PER_FEATURE = 20  # fewer rows than this, and only the mean ratio is pooled
EXTREME = 4.0  # standard deviations at which a feature is cut: one odd row shall not steer the others
RIDGE = 1e-8
FITS = 6  # steps of the fit: it is nearly linear
LARGEST_LOG = 4.0  # of a fitted ratio over their mean
ROWS_PER_BIN, MOST_BINS = 200, 10  # for the spread around f
SMALLEST_SHARE = 0.1  # of what is expected that a prediction (or a spread) may shrink to


class Pooled(NamedTuple):
    """Ratios and the standard error of each; ``spread`` is tau, what the features do not explain."""

    ratio: Array
    error: Array
    spread: Array


def standardised(features: list[Array]) -> Array:
    """Columns: a constant, the features that vary (centred, of unit scale, cut at `EXTREME`) and their products."""
    rows = len(features[0])
    single = []
    for feature in features:
        middle, scale = float(np.median(feature)), float(np.std(feature))
        if np.isfinite(scale) and scale > 1e-9 * max(abs(middle), 1e-300):
            single.append(np.clip((feature - middle) / scale, -EXTREME, EXTREME))
    columns = [np.ones(rows)]
    if rows >= ROWS_PER_FEATURE * (len(single) + 1):
        columns += single
    if rows >= ROWS_PER_FEATURE * (len(single) + 1) ** 2:
        columns += [single[i] * single[j] for i in range(len(single)) for j in range(i + 1)]
    return np.stack(columns, axis=1)


def fitted(F: Array, ratio: Array, noise: Array) -> tuple[Array, Array]:
    """(f, tau): f = exp(F beta) by weighted least squares (Gauss and Newton), the weights and tau found in turn."""
    level = max(float(np.mean(ratio)), SMALLEST_SHARE)
    beta = np.zeros(F.shape[1])
    beta[0] = np.log(level)
    f, spread = np.full(len(ratio), level), np.zeros_like(ratio)
    for _ in range(FITS):
        weight = 1.0 / (spread**2 + noise**2 + 1e-300)
        slope = F * f[:, None]
        gram = (slope * weight[:, None]).T @ slope
        gram.flat[:: len(gram) + 1] *= 1.0 + RIDGE
        beta = beta + np.linalg.solve(gram, slope.T @ (weight * (ratio - f)))
        f = np.exp(np.clip(F @ beta, np.log(level) - LARGEST_LOG, np.log(level) + LARGEST_LOG))
        spread = _spread(f, (ratio - f) ** 2 - noise**2)
    return f, spread


def _spread(f: Array, excess: Array) -> Array:
    """tau of each row: rows alike in f, where the surrogate is about as good, are averaged."""
    overall = max(float(np.mean(excess)), 0.0)
    bins = min(MOST_BINS, len(f) // ROWS_PER_BIN)
    if bins < 2:
        return np.full(len(f), np.sqrt(overall))
    order = np.argsort(f, kind="stable")
    spread2 = np.empty(len(f))
    for rows in np.array_split(order, bins):
        spread2[rows] = max(float(np.mean(excess[rows])), SMALLEST_SHARE * overall)
    return np.sqrt(spread2)


def pooled(f: Array, spread: Array, ratio: Array, noise: Array) -> Pooled:
    """The best prediction of each ratio from ``f`` and from its own estimate; always positive."""
    total = spread**2 + noise**2
    share = np.divide(spread**2, total, out=np.ones_like(total), where=total > 0.0)
    best = np.maximum(f + share * (ratio - f), SMALLEST_SHARE * f)
    return Pooled(best, np.sqrt(share) * noise, spread)
