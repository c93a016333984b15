"""k-means: a quick first guess of classes."""

from __future__ import annotations

from typing import Any

import numpy as np

from klimb.numerics.arrays import Array
from klimb.numerics.dense import row_blocks

SEED_ROWS = 4096  # rows that k-means++ looks at for its first centres


def kmeans(X: Array, count: int, seed: int = 0, *, rounds: int = 10) -> Any:
    """The nearest of ``count`` centres for every row: k-means++ seeds on some rows, then a few rounds on all."""
    rng = np.random.default_rng(seed)
    some = X if len(X) <= SEED_ROWS else X[rng.choice(len(X), max(SEED_ROWS, count), replace=False)]
    centres = _seeds(some, count, rng)
    for data, n in ((some, rounds), (X, 3 if len(X) > SEED_ROWS else 0)):
        for _ in range(n):
            nearest = _nearest(data, centres)
            sizes = np.bincount(nearest, minlength=count)
            sums = np.stack([np.bincount(nearest, weights=column, minlength=count) for column in data.T], axis=1)
            filled = sizes > 0  # a centre that lost all its rows stays where it was
            centres[filled] = sums[filled] / sizes[filled, None]
    return _nearest(X, centres)


def _seeds(X: Array, count: int, rng: np.random.Generator) -> Array:
    """Each centre a row, drawn with probability proportional to its squared distance from those before."""
    chosen = [int(rng.integers(len(X)))]
    distance = ((X - X[chosen[0]]) ** 2).sum(1)
    for _ in range(1, count):
        total = distance.sum()
        place = rng.uniform() * total if total > 0 else 0.0
        chosen.append(int(min(np.searchsorted(np.cumsum(distance), place), len(X) - 1)))
        np.minimum(distance, ((X - X[chosen[-1]]) ** 2).sum(1), out=distance)
    return X[chosen].copy()


def _nearest(X: Array, centres: Array) -> Any:
    nearest = np.empty(len(X), dtype=np.intp)
    half = 0.5 * (centres * centres).sum(1)
    for rows in row_blocks(len(X), X.shape[1] + len(centres)):
        nearest[rows] = (X[rows] @ centres.T - half).argmax(1)
    return nearest
