"""Greedy batches: the best candidate, then the best one given that the first will be labelled, and so on.

The label of a pick is not known yet, but the precision that it will add to its latent value is (on average). With that
the variances of all others follow exactly by a rank-one update, so that near-duplicates of a pick lose their score:

    d = V x_i      w = X d      c = gamma / (1 + gamma v_i)      V' = V - c d d'      v' = v - c w^2      [N] section 3
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from klimb.design.belief import Belief
from klimb.design.pool import Index, row_vector
from klimb.design.scores import Candidates, Score, expected_gamma
from klimb.numerics.arrays import Array
from klimb.numerics.matrix import DesignMatrix
from klimb.sites.base import Site

TIE = 1e-9  # scores closer than this, relative to the largest, are equal: the first row wins
LOST = 1e-10  # share of a variance below which a difference is rounding, and the variance is computed anew


@final
@dataclass(frozen=True, eq=False)
class Pending:
    """V as it will be once the picks so far are labelled: V - sum_k c_k d_k d_k'."""

    belief: Belief
    directions: tuple[Array, ...] = ()
    weights: tuple[float, ...] = ()

    def times(self, vector: Array) -> Array:
        """V' vector."""
        product = self.belief.times(vector)
        for d, c in zip(self.directions, self.weights, strict=True):
            product = product - (c * float(d @ vector)) * d
        return product

    def with_pick(self, d: Array, c: float) -> Pending:
        return Pending(self.belief, (*self.directions, d), (*self.weights, c))


def best_candidate(scores: Array, free: Index) -> int:
    """The free row of the largest score; of equal ones the first."""
    found = scores[free]
    top = float(found.max())
    return int(free[np.flatnonzero(found >= top - TIE * max(abs(top), 1e-300))[0]])


def greedy_batch(pool: DesignMatrix, belief: Belief, site: Site, marginals: tuple[Array, Array], score: Score,
                 free: Index, k: int, waiting: Index | None = None) -> Index:
    """``k`` rows of ``free``, each the best given those before it and those that are ``waiting`` for labels."""
    m, v = marginals[0], marginals[1].copy()
    before = marginals[1]
    pending, picks = Pending(belief), list[int]()
    for row in () if waiting is None else waiting.tolist():
        v, pending = include_pick(pool, pending, site, row, m, v)
    rest = free
    for number in range(k):
        share = np.divide(v[rest], before[rest], out=np.ones(rest.size), where=before[rest] > 0.0)
        some = Candidates(site.rows(rest), m[rest], v[rest], share if pending.weights else 1.0)
        values = np.full(len(m), -np.inf)
        values[rest] = score.of(some)
        pick = best_candidate(values, rest)
        picks.append(pick)
        rest = rest[rest != pick]
        if number + 1 < k:
            v, pending = include_pick(pool, pending, site, pick, m, v)
    return np.array(picks, dtype=np.intp)


def include_pick(pool: DesignMatrix, pending: Pending, site: Site, pick: int, m: Array, v: Array
                 ) -> tuple[Array, Pending]:
    """The variances of all rows once ``pick`` is labelled, and V with it: one product with V and one with the pool."""
    x = row_vector(pool, pick)
    d = pending.times(x)
    exact = max(float(x @ d), 0.0)  # the variance of the pick itself, whatever the estimate of it was
    one = np.array([pick])
    gamma = float(expected_gamma(site.rows(one), m[one], np.array([exact]))[0])
    c = gamma / (1.0 + gamma * exact)
    after = v - c * pool.times(d) ** 2
    pending = pending.with_pick(d, c)
    for row in np.flatnonzero(after < LOST * v):  # rounding, or an estimate from below that has been used up
        x_row = row_vector(pool, int(row))
        after[row] = max(float(x_row @ pending.times(x_row)), 0.0)
    return after, pending
