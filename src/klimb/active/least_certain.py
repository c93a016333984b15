"""The row that a classifier is least sure of, without the variances of the others.

Of two classes with a symmetric link, |P(y = 1) - 1/2| = g(|m|, v) grows with |m| and shrinks with v. With one bound of
all variances, known from the last time that they were computed and how far the belief has moved since, means alone say
which rows may be closest to a coin flip: one product with the pool, and the variances of a few rows.
"""

from __future__ import annotations

import numpy as np

from klimb.active.marginals import Marginals
from klimb.active.pool import Index, Mask
from klimb.active.responses import plain_site
from klimb.active.scores import Candidates, ClassifierUncertainty, Score
from klimb.numerics.arrays import Array
from klimb.sites.base import Site
from klimb.sites.binary import Logistic, Probit

PROBES = 32  # rows with the smallest |m| that say how close to a coin flip the best must be
LOOSEST = 4.0  # growth of the variances from which they are computed again
MOST = 0.125  # share of the pool from which the means are no help
REACH = np.geomspace(1.0, 1e6, 121)  # of |m|, in units of the smallest


def least_sure(score: Score, now: Marginals, free: Mask, first: Marginals) -> tuple[Index, Array] | None:
    """The rows that may be the least sure, and their scores; None where means alone cannot tell.

    ``first`` are the marginals at the beginning of the batch.
    """
    before = now.before
    if not isinstance(score, ClassifierUncertainty) or before is None or now.computed or not _symmetric(now.site):
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


def _symmetric(site: Site) -> bool:
    return isinstance(plain_site(site), Logistic | Probit)
