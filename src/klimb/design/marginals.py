"""The inclusion algebra of [N] section 3: marginals of all candidates kept valid while labels come in, one by one.

Including row i with label y adds one Gaussian site exp(slope s - gamma s^2 / 2), found by `include` from the marginal
N(m_i, v_i) alone, and leaves all other sites as they are. One linear system then moves everything (the paper's gamma_i
is 1/gamma, its kappa_i is 1 + gamma v_i):

    d = V x_i    w = X d    v_i = x_i'd    c = gamma / (1 + gamma v_i)    e = (slope - gamma m_i) / (1 + gamma v_i)
    v' = v - c w^2      m' = m + e w      u' = u + e d      V' = V - c d d'      log|A'| = log|A| + log(1 + gamma v_i)

Where the variances are estimates from below (Lanczos), the solution d corrects v_i before the site is found. A variance
that the update takes below zero is computed anew by a solve, never dropped.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import final

import numpy as np

from klimb.design.belief import Belief
from klimb.design.inclusion import Inclusion, include
from klimb.design.pool import Index, row_vector, take_rows
from klimb.numerics.arrays import Array
from klimb.numerics.matrix import DesignMatrix
from klimb.sites.base import Site

LOST = 1e-10  # share of its former value below which a variance is a difference of equal numbers
SOLVED_AT_ONCE = 64  # right-hand sides of one block of solves


@final
@dataclass(frozen=True, eq=False)
class Pending:
    """V - sum_k c_k d_k d_k': the covariance of the weights after inclusions that no fit has seen yet."""

    belief: Belief
    directions: tuple[Array, ...] = ()
    weights: tuple[float, ...] = ()

    def times(self, vectors: Array) -> Array:
        """V' times one vector, or several as columns."""
        product = self.belief.times(vectors)
        for d, c in zip(self.directions, self.weights, strict=True):
            product = product - np.multiply.outer(d, c * (d @ vectors))
        return product

    def including(self, d: Array, c: float) -> Pending:
        """After one more inclusion."""
        return Pending(self.belief, (*self.directions, d), (*self.weights, c))

    def pool_variances(self, pool: DesignMatrix) -> Array:
        """x'V'x for every row of a pool, by the belief's own way and one product per inclusion."""
        v = self.belief.variances(pool)
        for d, c in zip(self.directions, self.weights, strict=True):
            v = v - c * pool.times(d) ** 2
        return np.maximum(v, 0.0)

    def variances(self, rows: object) -> Array:
        """x'V'x for the rows of a dense array or CSR, each by a solve."""
        dense = np.asarray(rows.toarray() if hasattr(rows, "toarray") else rows)
        found = np.empty(len(dense))
        for begin in range(0, len(dense), SOLVED_AT_ONCE):
            part = dense[begin : begin + SOLVED_AT_ONCE]
            found[begin : begin + len(part)] = np.einsum("ij,ji->i", part, self.times(np.ascontiguousarray(part.T)))
        return np.maximum(found, 0.0)


@final
@dataclass(frozen=True, eq=False)
class Counts:
    """What the algebra has cost: products with the pool, systems solved, variances computed anew."""

    products: int = 0
    solves: int = 0
    recomputed: int = 0


@final
@dataclass(frozen=True, eq=False)
class Targets:
    """Rows whose predictions matter: ``rows`` (T x D), V rows' (D x T), and the marginals of their latent values."""

    rows: Array = field(repr=False)
    directions: Array = field(repr=False)
    m: Array
    v: Array

    @staticmethod
    def of(rows: Array, pending: Pending, weights: Array) -> Targets:
        """Those of a state: one solve per target."""
        directions = pending.times(np.ascontiguousarray(rows.T))
        return Targets(rows, directions, rows @ weights, np.maximum(np.einsum("td,dt->t", rows, directions), 0.0))

    def including(self, d: Array, c: float, e: float) -> Targets:
        """After an inclusion."""
        w = self.rows @ d
        return Targets(self.rows, self.directions - np.multiply.outer(c * d, w), self.m + e * w,
                       np.maximum(self.v - c * w * w, 0.0))


@final
@dataclass(frozen=True, eq=False)
class Marginals:
    """``m`` and ``v`` of every row of the pool, ``weights`` u, and ``log_det``: log|A| less that of the last fit."""

    pool: DesignMatrix = field(repr=False)
    site: Site
    pending: Pending = field(repr=False)
    weights: Array = field(repr=False)
    m: Array
    v: Array
    log_det: float = 0.0
    counts: Counts = field(default_factory=Counts)
    targets: Targets | None = None

    @staticmethod
    def of(pool: DesignMatrix, site: Site, belief: Belief) -> Marginals:
        """Those of a fit."""
        m, v = belief.marginals(pool)
        return Marginals(pool, site, Pending(belief), belief.mean, m, v)

    def include(self, row: int, y: float) -> tuple[Marginals, Inclusion]:
        """With label ``y`` (as ``site.validate`` gives it) of ``row``: one solve and one product with the pool."""
        x = row_vector(self.pool, row)
        d = self.pending.times(x)
        one = np.array([row])
        new = include(self.site.rows(one), np.array([y]), np.array([x @ self.weights]), np.array([max(x @ d, 0.0)]))
        gamma, slope = float(new.gamma[0]), float(new.slope[0])
        return self.with_site(x, d, gamma, slope, known=True), new

    def with_site(self, x: Array, d: Array, gamma: float, slope: float, *, known: bool = False) -> Marginals:
        """With the site exp(slope s - gamma s^2 / 2) on s = x'w, where ``d`` = V x.

        Without a label (``known`` False) the means stay where they are: that is what they are expected to do.
        """
        mean, variance = float(x @ self.weights), max(float(x @ d), 0.0)
        kappa = 1.0 + gamma * variance
        c, e = gamma / kappa, (slope - gamma * mean) / kappa if known else 0.0
        w = self.pool.times(d)
        pending = self.pending.including(d, c)
        v, recomputed = self._lowered(pending, c * w**2)
        counts = Counts(self.counts.products + 1, self.counts.solves + 1 + recomputed,
                        self.counts.recomputed + recomputed)
        return replace(self, pending=pending, weights=self.weights + e * d, m=self.m + e * w if known else self.m, v=v,
                       log_det=self.log_det + float(np.log(kappa)), counts=counts,
                       targets=None if self.targets is None else self.targets.including(d, c, e))

    def _lowered(self, pending: Pending, explained: Array) -> tuple[Array, int]:
        """v - explained; what that leaves without digits, or without sense, is solved for."""
        v = self.v - explained
        lost: Index = np.flatnonzero((v < LOST * self.v) & (self.v > 0.0))
        if lost.size:
            v[lost] = pending.variances(take_rows(self.pool, lost))
        return v, int(lost.size)
