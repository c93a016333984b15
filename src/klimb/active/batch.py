"""Greedy batches: the best candidate, then the best one given that the first will be labelled, and so on.

The label of a pick is not known yet, but the precision that it will add to its latent value is, on average. With that
the variances of all others follow exactly (`klimb.active.marginals`): near-duplicates of a pick lose their score.

Of two classes with a symmetric link, |P(y = 1) - 1/2| = g(|m|, v) grows with |m| and shrinks with v. With one bound of
all variances, known from the last time that they were computed and how far the belief has moved since, means alone say
which rows may be closest to a coin flip: one product with the pool, and the variances of a few rows.
"""

from __future__ import annotations

import numpy as np

from klimb.active.inclusion import expected_gamma, plain_site
from klimb.active.marginals import Marginals
from klimb.active.pool import Index, Mask, row_vector, take_rows
from klimb.active.scores import Candidates, ClassifierUncertainty, Score
from klimb.active.shortlist import Shortlist
from klimb.numerics.arrays import Array, pieces
from klimb.sites.binary import Logistic, Probit

PROBES = 32  # rows with the smallest |m| that say how close to a coin flip the best must be
LOOSEST = 4.0  # growth of the variances from which they are computed again
MOST = 0.125  # share of the pool from which the means are no help
REACH = np.geomspace(1.0, 1e6, 121)  # of |m|, in units of the smallest
ROWS_AT_ONCE = 1 << 14  # whose covariances with the targets are in memory together
TIE = 1e-9  # scores closer than this, relative to the largest, are equal: the first row wins


def least_sure(score: Score, now: Marginals, free: Mask, first: Marginals) -> tuple[Index, Array] | None:
    """The rows that may be the least sure, and their scores; None where means alone cannot tell.

    ``first`` are the marginals at the beginning of the batch.
    """
    before = now.before
    symmetric = isinstance(plain_site(now.site), Logistic | Probit)
    if not isinstance(score, ClassifierUncertainty) or before is None or now.computed or not symmetric:
        return None
    growth = now.drift().growth
    if not growth <= LOOSEST:
        return None
    distance = np.abs(now.means)
    distance[~free] = np.inf
    some = np.argpartition(distance, min(PROBES, len(distance) - 1))[:PROBES]
    some = some[free[some]]
    best = float(_scores(now, first, np.sort(some)).max())
    # A row at |m| = x cannot have a score above -g(x, the largest variance): how far out is that below the best?
    x = max(float(distance[some].min()), 1e-12) * REACH
    largest = growth * float(before.v.max())
    reached = -np.abs(plain_site(now.site).class_probabilities(x, np.full_like(x, largest))[:, 1] - 0.5)
    out = np.flatnonzero(reached < best * (1.0 + 1e-6) - 1e-12)
    if not out.size:
        return None
    rows = np.flatnonzero(distance <= x[out[0]])
    return None if rows.size > MOST * len(distance) else (rows, _scores(now, first, rows))


def _scores(now: Marginals, first: Marginals, rows: Index) -> Array:
    m, v = now.at(rows)
    share: Array | float = 1.0
    if first is not now:
        whole = first.at(rows)[1]
        share = np.divide(v, whole, out=np.ones_like(v), where=whole > 0.0)
    return ClassifierUncertainty().of(Candidates(now.site.rows(rows), m, v, share))


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
    return np.concatenate([score.of(candidates(now, part, first)) for part in pieces(rows, ROWS_AT_ONCE)])


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
