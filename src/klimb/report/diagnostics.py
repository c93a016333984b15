"""Calibration from leave-one-out predictions: reliability in bins, and the probability integral transform."""

from typing import Any

import numpy as np
from scipy.special import ndtri

from klimb.errors import require
from klimb.numerics.arrays import Array
from klimb.report.records import CalibrationBins, PitHistogram

BINS = 10
SMALLEST_BIN = 8  # rows: fewer say too little to draw
FARTHEST = 8.0  # sds: the largest quantile residual
SEED = 20260101  # of the places of discrete data within their jumps


def calibration(predicted: Any, variance: Any, y: Any, *, level: float = 0.9, label: str = "y",
                counts: Array | None = None) -> CalibrationBins | None:
    """Observed and predicted means in bins of rows with like predictions; None with too few rows.

    ``predicted`` and ``variance`` are the predictive means and variances of each y without that y, each for ``counts``
    rows. The sum over a bin then has a known variance if the model is right: the expected interval (central limit).
    """
    mean, spread, seen = (np.asarray(values, dtype=float) for values in (predicted, variance, y))
    require(mean.shape == spread.shape == seen.shape, "predictions, variances and y need one entry per row",
            f"shapes {mean.shape}, {spread.shape}, {seen.shape}", "Pass three vectors of one length.")
    usable = np.isfinite(mean) & np.isfinite(spread) & np.isfinite(seen)
    mean, spread, seen = mean[usable], spread[usable], seen[usable]
    rows = (np.ones(len(usable)) if counts is None else counts)[usable]
    total = float(rows.sum())
    count = int(min(BINS, total // SMALLEST_BIN))
    if count < 2:
        return None
    order = np.argsort(mean, kind="stable")
    # Rows with the same prediction stay together: a bin ends where the prediction changes.
    ends = np.searchsorted(np.cumsum(rows[order]), total * np.arange(1, count) // count, side="right")
    cuts = np.unique(np.searchsorted(mean[order], mean[order][np.minimum(ends, len(mean) - 1)], side="left"))
    bins = [part for part in np.split(order, cuts) if len(part)]
    if len(bins) < 2:
        return None
    half = float(ndtri(0.5 + 0.5 * level))
    center = [float(np.average(mean[part], weights=rows[part])) for part in bins]
    sd = [float(np.sqrt(rows[part] @ spread[part]) / rows[part].sum()) for part in bins]
    # The interval cannot leave the range that y itself cannot leave (0 to 1 for yes or no).
    floor, ceiling = (0.0, 1.0) if np.all((seen == 0) | (seen == 1)) else (-np.inf, np.inf)
    return CalibrationBins(tuple(center), tuple(float(np.average(seen[part], weights=rows[part])) for part in bins),
                           tuple(max(middle - half * scale, floor) for middle, scale in zip(center, sd, strict=True)),
                           tuple(min(middle + half * scale, ceiling) for middle, scale in zip(center, sd, strict=True)),
                           tuple(round(float(rows[part].sum())) for part in bins), level, label)


def pit_histogram(below: Any, at: Any, *, level: float = 0.9, bins: int = BINS,
                  counts: Array | None = None) -> PitHistogram | None:
    """The histogram of the probability integral transform; None with too few rows.

    ``below`` is P(Y < y) and ``at`` P(Y <= y), each for ``counts`` rows. A discrete datum is spread evenly over the
    jump.
    """
    low, high = np.asarray(below, dtype=float), np.asarray(at, dtype=float)
    usable = np.isfinite(low) & np.isfinite(high)
    low, high = np.clip(low[usable], 0.0, 1.0), np.clip(high[usable], 0.0, 1.0)
    rows = (np.ones(len(usable)) if counts is None else counts)[usable]
    n = round(float(rows.sum()))
    if n < 2 * SMALLEST_BIN:
        return None
    bins = min(bins, max(4, n // SMALLEST_BIN))
    density = np.diff(_cdf_of_pit(np.linspace(0.0, 1.0, bins + 1), low, high, rows)) * bins
    # A bin of a calibrated model holds Binomial(n, 1 / bins) rows: by the normal approximation, never below nothing.
    half = float(ndtri(0.5 + 0.5 * level)) * np.sqrt((bins - 1.0) / n)
    coverage = []
    for nominal in (0.5, level):
        inside = _cdf_of_pit(np.array([0.5 - 0.5 * nominal, 0.5 + 0.5 * nominal]), low, high, rows)
        coverage.append((nominal, round(float(inside[1] - inside[0]), 6)))
    return PitHistogram(tuple(float(value) for value in density), float(max(1.0 - half, 0.0)), float(1.0 + half), n,
                        level, tuple(coverage))


def quantile_residuals(below: Any, at: Any) -> Array:
    """Normal quantiles of P(Y <= y) = ``at``, at random within its jump from ``below``, cut at `FARTHEST`."""
    low, high = (np.clip(np.asarray(end, dtype=float), 0.0, 1.0) for end in (below, at))
    place = low + np.random.default_rng(SEED).random(len(low)) * (high - low)
    return np.asarray(np.clip(ndtri(place), -FARTHEST, FARTHEST))


def _cdf_of_pit(points: Array, low: Array, high: Array, rows: Array) -> Array:
    """Mean over data of the distribution function of U(low, high) at ``points``; a jump at ``low`` where they meet."""
    jump = high - low > 1e-12
    share = np.clip((points[:, None] - low) / np.where(jump, high - low, 1.0), 0.0, 1.0)
    share[:, ~jump] = (low[~jump] < points[:, None]) | (points[:, None] >= 1.0)
    return np.asarray(share @ rows / rows.sum(), dtype=float)
