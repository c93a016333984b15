"""Greedy batches: the best candidate, then the best one given that the first will be labelled, and so on.

The label of a pick is not known yet, but the precision that it will add to its latent value is, on average. With that
the variances of all others follow exactly (`klimb.active.marginals`): near-duplicates of a pick lose their score.
"""

from __future__ import annotations

import numpy as np

from klimb.active.least_certain import least_sure
from klimb.active.marginals import Marginals
from klimb.active.pool import Index, Mask, row_vector, take_rows
from klimb.active.scores import Candidates, Score
from klimb.active.shortlist import Shortlist
from klimb.active.sizes import expected_gamma
from klimb.numerics.arrays import Array

ROWS_AT_ONCE = 1 << 14  # whose covariances with the targets are in memory together
TIE = 1e-9  # scores closer than this, relative to the largest, are equal: the first row wins


def best_candidate(scores: Array, rows: Index) -> int:
    """The row of the largest score; of equal ones the first. ``scores`` belong to ``rows``, which ascend."""
    top = float(scores.max())
    return int(rows[np.flatnonzero(scores >= top - TIE * abs(top))[0]])


def candidates(now: Marginals, rows: Index, first: Marginals | None = None) -> Candidates:
    """What a score sees of ``rows``; ``first`` are the marginals at the beginning of the batch."""
    share: Array | float = 1.0
    if first is not None and first is not now:
        share = np.divide(now.v[rows], first.v[rows], out=np.ones(rows.size), where=first.v[rows] > 0.0)
    targets = now.targets
    if targets is None:
        return Candidates(now.site.rows(rows), now.m[rows], now.v[rows], share)
    return Candidates(now.site.rows(rows), now.m[rows], now.v[rows], share, lambda: (
        targets.m, targets.v, np.asarray(take_rows(now.pool, rows) @ targets.directions)))


def score_rows(score: Score, now: Marginals, rows: Index, first: Marginals | None = None,
               shortlist: Shortlist | None = None) -> Array:
    """The scores of ``rows``, some at a time where they need covariances with targets.

    With a ``shortlist`` only those that may be the best are scored, and the others count as minus infinity.
    """
    if not score.uses_targets:
        some = candidates(now, rows, first)
        return score.of(some) if shortlist is None else shortlist.scores(score, some)
    parts = [rows[begin : begin + ROWS_AT_ONCE] for begin in range(0, rows.size, ROWS_AT_ONCE)]
    return np.concatenate([score.of(candidates(now, part, first)) for part in parts])


def best_row(score: Score, now: Marginals, free: Mask, shortlist: Shortlist, first: Marginals | None = None) -> int:
    """The row of the largest score among the ``free`` ones; those that cannot win are not even looked at."""
    few = shortlist.after_drift(score, now, free) or least_sure(score, now, free, first or now)
    if few is not None:
        rows, scores = few
        return best_candidate(scores, rows)
    rows = np.flatnonzero(free)
    return best_candidate(score_rows(score, now, rows, first, shortlist), rows)


def greedy_batch(marginals: Marginals, score: Score, free: Mask, k: int, waiting: Index, shortlist: Shortlist) -> Index:
    """``k`` rows of those ``free``, each the best given those before it and those that are ``waiting`` for labels."""
    now, picks, rest = marginals, list[int](), free.copy()
    for row in waiting.tolist():
        now = _pending_label(now, row)
    for number in range(k):
        pick = best_row(score, now, rest, shortlist, marginals)
        picks.append(pick)
        rest[pick] = False
        if number + 1 < k:
            now = _pending_label(now, pick)
    return np.array(picks, dtype=np.intp)


def _pending_label(now: Marginals, pick: int) -> Marginals:
    """The variances of all rows once ``pick`` is labelled: one solve and one product with the pool."""
    x, one = row_vector(now.pool, pick), np.array([pick])
    d = now.pending.times(x)
    gamma = expected_gamma(now.site.rows(one), np.array([x @ now.weights]), np.array([max(x @ d, 0.0)]))
    return now.with_site(x, d, float(gamma[0]), 0.0)
