"""What the rows have in common: noisy ratios v_i / v_i^M of all rows, made better by each other.

The model is that of small-area estimation (Fay and Herriot, JASA 1979): ratio_i = f_i + tau_i xi_i, where f_i is a
quadratic function of a few features of the row that cost nothing, and the direct estimate of a row adds noise of known
size. The features say much: by how much a surrogate of low rank misses a row depends on how strong the row itself is in
A. The best prediction is f_i plus a share tau_i^2 / (tau_i^2 + noise^2) of what the row's own estimate says beyond it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from klimb.numerics.arrays import Array

ROWS_PER_FEATURE = 20  # fewer rows than this, and only the mean ratio is pooled
EXTREME = 4.0  # standard deviations at which a feature is cut: one odd row shall not steer the others
RIDGE = 1e-8
SMALLEST_TOTAL = 1e-12  # of the largest variance, so that no row outweighs all others
FITS = 6  # steps of the fit: it is nearly linear
LARGEST_LOG = 4.0  # of a fitted ratio over their mean
FARTHEST = 2.0  # standard errors by which a row may be moved towards the others
SMALLEST_SHARE = 0.1  # of what is expected that a prediction (or a spread) may shrink to


class Pooled(NamedTuple):
    """Ratios and the standard error of each.

    ``spread`` is tau, what the features do not explain, and ``fit_error`` the standard error of f.
    """

    ratio: Array
    error: Array
    spread: Array
    fit_error: Array


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
        weight = precision_weights(spread, noise)
        slope = F * f[:, None]
        gram = (slope * weight[:, None]).T @ slope
        gram.flat[:: len(gram) + 1] *= 1.0 + RIDGE
        beta = beta + np.linalg.solve(gram, slope.T @ (weight * (ratio - f)))
        f = np.exp(np.clip(F @ beta, np.log(level) - LARGEST_LOG, np.log(level) + LARGEST_LOG))
        spread = _spread(F, (ratio - f) ** 2 - noise**2, precision_weights(spread, noise) ** 2)
    return f, spread


def precision_weights(spread: Array, noise: Array) -> Array:
    """1 / (tau^2 + noise^2), up to a factor."""
    total = spread**2 + noise**2
    top = float(total.max(initial=0.0))
    return np.ones_like(total) if top == 0.0 else np.asarray(top / np.maximum(total, SMALLEST_TOTAL * top))


def _spread(F: Array, excess: Array, weight: Array) -> Array:
    """tau of each row from what squared residuals exceed the noise by: tau^2 is linear in the features as well."""
    overall = max(float(np.average(excess, weights=weight)), 0.0)
    gram = (F * weight[:, None]).T @ F
    gram.flat[:: len(gram) + 1] *= 1.0 + RIDGE
    spread2 = F @ np.linalg.solve(gram, F.T @ (weight * excess))
    return np.asarray(np.sqrt(np.maximum(spread2, SMALLEST_SHARE * overall)))


def pooled(f: Array, spread: Array, ratio: Array, noise: Array, fit_error: Array) -> Pooled:
    """The best prediction of each ratio from ``f`` and from its own estimate; always positive.

    A row is moved by no more than `FARTHEST` of its noise (limited translation, Efron and Morris 1972): rows unlike
    the others, such as edges in a picture, keep what their own estimate says, and its error.
    """
    total = spread**2 + noise**2
    share = np.divide(spread**2, total, out=np.ones_like(total), where=total > 0.0)
    best = f + share * (ratio - f)
    limited = np.clip(best, ratio - FARTHEST * noise, ratio + FARTHEST * noise)
    error = np.where(limited == best, pooled_error(share, noise, fit_error), noise)
    return Pooled(np.maximum(limited, SMALLEST_SHARE * f), error, spread, fit_error)


def pooled_error(share: Array, noise: Array, fit_error: Array) -> Array:
    """Standard error of f + share (own - f): what is unknown of the row, and of the fit."""
    return np.asarray(np.sqrt(share * noise**2 + ((1.0 - share) * fit_error) ** 2))


def fit_errors(F: Array, f: Array, weight: Array, watched: npt.NDArray[np.intp], probes: Array) -> Array:
    """Standard errors of f = exp(F beta), from what each probe alone would make of beta.

    ``probes`` holds residuals of the ``watched`` rows, one column per probe. Rows share the probes, so the errors of
    rows that resemble each other (the pixels of one edge) may be one and the same, and then the fit takes them over.
    """
    n = probes.shape[1]
    slope = F[watched] * f[watched, None]
    gram = (slope * weight[watched, None]).T @ slope
    gram.flat[:: len(gram) + 1] *= 1.0 + RIDGE
    centred = probes - probes.mean(axis=1, keepdims=True)
    moves = np.linalg.solve(gram, slope.T @ (weight[watched, None] * centred))
    covariance = moves @ moves.T / (n * max(n - 1, 1))
    return np.asarray(f * np.sqrt(np.maximum(np.einsum("ij,jk,ik->i", F, covariance, F, optimize=True), 0.0)))
