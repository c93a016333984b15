"""Functions at many points from their values at a few: which points, and how they are put together."""

from __future__ import annotations

import numpy as np

from klimb.numerics.arrays import Array, Index
from klimb.numerics.lazy import scipy_linalg

EXACT = 1e3  # how much more a function counts that must be met


def skeleton(values: Array, exact: Array, weights: Array, count: int) -> tuple[Index, Array]:
    """Places of ``count`` of K points, the heaviest first, and how functions at all of them follow: f = onto f[chosen].

    ``values`` (K, M) are functions like those that will be asked for; constants and those in ``exact`` (K, q), of
    which there are fewer than ``count``, are met exactly.
    """
    first = int(np.argmax(weights))
    off, known = values - values[first], exact - exact[first]
    off = off / max(float(np.abs(off).max()), 1e-300)
    known = known / np.maximum(np.abs(known).max(axis=0), 1e-300)
    order = scipy_linalg.qr(off.T * np.sqrt(weights), mode="r", pivoting=True)[1]
    chosen = np.concatenate([[first], order[order != first][: count - 1]])
    every = np.concatenate([off, EXACT * np.sqrt(off.shape[1]) * known], axis=1)
    others = np.linalg.lstsq(every[chosen[1:]].T, every.T, rcond=1e-12)[0].T
    return chosen, np.column_stack([1.0 - others.sum(axis=1), others])
