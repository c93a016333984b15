"""Quantiles of values that count several times: of an array, and exactly of values that are met some at a time.

Numbers of floating point have an order that is that of whole numbers of 64 bits. How many values lie in each of some
thousand intervals says in which one a rank is; a few such counts, each within the interval of the last, end at a value.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from klimb.numerics.arrays import Array

BINS = 1 << 13  # intervals of a count for each rank
_SIGN = np.uint64(1 << 63)


def counted_quantile(values: Array, counts: Array | None, p: float | Array) -> Array:
    """Quantiles of values that count several times, as if they were repeated; one, where each counts once (None)."""
    if counts is None:
        place = p * (len(values) - 1.0)
        at = int(place)
        ranked_values = np.partition(values, at)
        above = ranked_values[at + 1 :].min() if place > at else ranked_values[at]
        return np.asarray(ranked_values[at] + (place - at) * (above - ranked_values[at]))
    order = np.argsort(values, kind="stable")
    upto, ranked_values = np.cumsum(counts[order]), values[order]
    place = np.asarray(p) * max(float(upto[-1]) - 1.0, 0.0)
    low = np.floor(place)
    below, above = (ranked_values[np.minimum(np.searchsorted(upto, k, side="right"), len(upto) - 1)]
                    for k in (low, low + 1))
    return np.asarray(below + (place - low) * (above - below))


def interval_counts(values: Array, weights: Array | None, first: list[int], last: list[int]) -> Array:
    """(ranks, `BINS`): how many values are in each of the equal parts of [first, last], in the order of floats."""
    keys = _keys(values)
    found = np.zeros((len(first), BINS))
    for own, low, high in zip(found, first, last, strict=True):
        inside = (keys >= np.uint64(low)) & (keys <= np.uint64(high))
        part = ((keys[inside] - np.uint64(low)) // np.uint64(_step(low, high))).astype(np.intp)
        own += np.bincount(part, None if weights is None else weights[inside], BINS)
    return found


def counted_quantiles(count: Callable[[list[int], list[int]], Array], p: Array, lower: float, upper: float) -> Array:
    """`counted_quantile` of the values between two numbers, of which ``count`` gives `interval_counts`.

    >>> x = np.random.default_rng(0).standard_normal(1000)
    >>> found = counted_quantiles(lambda *ends: interval_counts(x, None, *ends), np.array([0.3]), -9.0, 9.0)
    >>> bool(found[0] == counted_quantile(x, np.ones(1000), 0.3))
    True
    """
    ends = [int(key) for key in _keys(np.array([lower, upper]))]
    whole = count([ends[0]], [ends[1]])[0]
    place = p * max(float(whole.sum()) - 1.0, 0.0)
    ranks = np.unique(np.concatenate([np.floor(place), np.floor(place) + 1.0]))
    first, last, below = [ends[0]] * len(ranks), [ends[1]] * len(ranks), np.zeros(len(ranks))
    counts = np.broadcast_to(whole, (len(ranks), BINS))
    while True:
        for k, (rank, own) in enumerate(zip(ranks.tolist(), counts, strict=True)):
            upto, step = below[k] + np.cumsum(own), _step(first[k], last[k])
            # Beyond the last of all values stands that one.
            at = min(int(np.searchsorted(upto, rank, side="right")), int(np.flatnonzero(own)[-1]))
            below[k] = upto[at] - own[at]
            first[k] += at * step
            last[k] = min(last[k], first[k] + step - 1)
        if first == last:
            break
        counts = count(first, last)
    known = dict(zip(ranks.tolist(), _values(np.array(first, dtype=np.uint64)).tolist(), strict=True))
    low = np.array([known[rank] for rank in np.floor(place).tolist()])
    high = np.array([known[rank + 1.0] for rank in np.floor(place).tolist()])
    return np.asarray(low + (place - np.floor(place)) * (high - low))


def _step(first: int, last: int) -> int:
    return -(-(last - first + 1) // BINS)


def _keys(values: Array) -> npt.NDArray[np.uint64]:
    bits = np.ascontiguousarray(values + 0.0).view(np.uint64)
    return np.where(bits >= _SIGN, ~bits, bits | _SIGN)


def _values(keys: npt.NDArray[np.uint64]) -> Array:
    return np.where(keys >= _SIGN, keys ^ _SIGN, ~keys).view(np.float64)
