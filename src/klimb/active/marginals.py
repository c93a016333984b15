"""The inclusion algebra of [N] section 3: marginals of all candidates kept valid while labels come in, one by one.

Including row i adds one site exp(slope s - gamma s^2 / 2), found by `include`, and leaves all others as they are (the
paper's gamma_i is 1/gamma, its kappa_i is 1 + gamma v_i):

    d = V x_i    w = X d    v_i = x_i'd    c = gamma / (1 + gamma v_i)    e = (slope - gamma m_i) / (1 + gamma v_i)
    v' = v - c w^2      m' = m + e w      u' = u + e d      V' = V - c d d'      log|A'| = log|A| + log(1 + gamma v_i)

Estimated variances (Lanczos) are corrected by the solution d before the site is found; one that the update takes below
zero is solved for. The product w waits until somebody asks for all rows: `Drift` and `Marginals.at` do without.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from klimb.active.belief import Belief
from klimb.active.inclusion import Inclusion, include
from klimb.active.pool import block_products, row_vector
from klimb.linalg.matrix import DesignMatrix
from klimb.numerics.arrays import Array, Index, pieces
from klimb.sites.base import Site

SOLVED_AT_ONCE = 64  # right-hand sides of one block of solves
LOST = 1e-10  # share of its former value below which a variance is a difference of equal numbers


@dataclass(frozen=True, eq=False)
class Pending:
    """V - sum_k c_k d_k d_k': the covariance of the weights after inclusions that no fit has seen yet."""
    belief: Belief
    directions: tuple[Array, ...] = ()
    weights: tuple[float, ...] = ()
    steps: tuple[float, ...] = ()  # of the mean, along each direction

    def times(self, vectors: Array) -> Array:
        """V' times one vector, or several as columns."""
        product = self.belief.times(vectors)
        if not self.directions:
            return product
        return np.asarray(product - self._stacked @ (np.array(self.weights) * (self._stacked.T @ vectors).T).T)

    @cached_property
    def _stacked(self) -> Array:
        """The directions as columns."""
        return np.column_stack(self.directions)

    def explained(self, rows: DesignMatrix, after: int) -> Array:
        """sum_k c_k (x'd_k)^2 for some rows, over all inclusions but the first ``after``."""
        directions, c, _ = self.since(after)
        found = np.empty(rows.shape[0])
        for part, w in block_products(rows, directions):
            found[part] = np.square(w, out=w) @ c
        return found

    def including(self, d: Array, c: float, e: float) -> "Pending":
        """After one more inclusion."""
        return Pending(self.belief, (*self.directions, d), (*self.weights, c), (*self.steps, e))

    def since(self, number: int) -> tuple[Array, Array, Array]:
        """d as columns, c and e of all inclusions but the first ``number``."""
        if number == len(self.directions):
            return np.empty((0, 0)), np.empty(0), np.empty(0)
        return self._stacked[:, number:], np.array(self.weights[number:]), np.array(self.steps[number:])

    def pool_variances(self, pool: DesignMatrix) -> Array:
        """x'V'x for every row of a pool, by the belief's own way, and one pass for the inclusions."""
        v = self.belief.variances(pool)
        return np.maximum(v - self.explained(pool, 0) if self.directions else v, 0.0)

    def variances(self, rows: DesignMatrix) -> Array:
        """x'V'x for a few rows, each by a solve."""
        found = [np.einsum("ij,ji->i", part, self.times(np.ascontiguousarray(part.T)))
                 for part in pieces(rows.dense(), SOLVED_AT_ONCE)]
        return np.asarray(np.maximum(np.concatenate(found), 0.0))


class Targets(NamedTuple):
    """Rows whose predictions matter: ``rows`` (T x D), V rows' (D x T), and the marginals of their latent values."""
    rows: Array
    directions: Array
    m: Array
    v: Array

    @staticmethod
    def of(rows: Array, pending: Pending, weights: Array) -> "Targets":
        """Those of a state: one solve per target."""
        directions = pending.times(np.ascontiguousarray(rows.T))
        return Targets(rows, directions, rows @ weights, np.maximum(np.einsum("td,dt->t", rows, directions), 0.0))

    def including(self, d: Array, c: float, e: float) -> "Targets":
        """After an inclusion."""
        w = self.rows @ d
        return Targets(self.rows, self.directions - np.multiply.outer(c * d, w), self.m + e * w,
                       np.maximum(self.v - c * w * w, 0.0))


@dataclass(eq=False)
class WorkCounts:
    """What the algebra has cost, from one state to the next."""
    products: int = 0  # with the pool
    solves: int = 0  # of systems
    recomputed: int = 0  # variances that were solved for
    fits: int = 0  # marginals of the whole pool that were computed from a fit
    rows: int = 0  # whose marginals were computed alone


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The marginals of all rows at one time, and what the weights were then."""
    m: Array
    v: Array
    pending: Pending = field(repr=False)
    weights: Array = field(repr=False)

    @cached_property
    def belief(self) -> Belief | None:
        """The Gaussian over the weights of that time, inclusions and all; None where it has no form of its own."""
        return self.pending.belief.after(self.weights, self.pending.directions, self.pending.weights)


class Drift(NamedTuple):
    """How far marginals may be from a snapshot: |m' - m| <= shift sqrt(v) and v' <= growth v, for every row."""
    shift: float
    growth: float


@dataclass(frozen=True, eq=False)
class Marginals:
    """``m`` and ``v`` of every row of the pool, ``weights`` u, and ``log_det``: log|A| less that of the last fit."""
    pool: DesignMatrix = field(repr=False)
    site: Site
    pending: Pending = field(repr=False)
    weights: Array = field(repr=False)
    before: Snapshot | None = field(default=None, repr=False)  # the last one, of this fit or of one before
    travelled: float = 0.0  # by the mean since then, each step in units of the belief that it started from
    log_det: float = 0.0
    counts: WorkCounts = field(default_factory=WorkCounts)
    targets: Targets | None = None

    @staticmethod
    def of(pool: DesignMatrix, site: Site, belief: Belief, before: Snapshot | None = None,
           counts: WorkCounts | None = None) -> "Marginals":
        """Those of a fit; ``before`` are those of an earlier one."""
        return Marginals(pool, site, Pending(belief), belief.mean, before, counts=counts or WorkCounts())

    @property
    def m(self) -> Array:
        """Means of all rows."""
        return self.snapshot.m

    @property
    def v(self) -> Array:
        """Variances of all rows."""
        return self.snapshot.v

    @cached_property
    def snapshot(self) -> Snapshot:
        """Both, computed when they are asked for: one pass over the pool for all inclusions since the last ones."""
        if self.before is None or self.before.pending.belief is not self.pending.belief:
            self.counts.fits += 1
            m, v = self.pending.belief.marginals(self.pool)
            done = 0
        else:
            m, v, done = self.before.m, self.before.v, len(self.before.pending.directions)
        first, (directions, c, e) = v, self.pending.since(done)
        if c.size:
            m, v = m.copy(), v.copy()
            for rows, w in block_products(self.pool, directions):
                m[rows] += w @ e
                v[rows] -= np.square(w, out=w) @ c
            self.counts.products += c.size
        return Snapshot(m, self._without_lost(v, first, None), self.pending, self.weights)

    @property
    def computed(self) -> bool:
        """Whether the marginals of all rows have been asked for."""
        return "snapshot" in self.__dict__

    @property
    def latest(self) -> Snapshot | None:
        """The last marginals of all rows that were computed: these, or those of a state before."""
        return self.snapshot if self.computed else self.before

    @cached_property
    def means(self) -> Array:
        """Means of all rows, without their variances."""
        if self.computed:
            return self.m
        self.counts.products += 1
        return self.pool.times(self.weights)

    def at(self, rows: Index) -> tuple[Array, Array]:
        """Means and variances of some rows alone."""
        if self.computed:
            return self.m[rows], self.v[rows]
        self.counts.rows += rows.size
        some, before = self.pool.subset(rows), self.before
        m = some.times(self.weights)
        if before is None or before.pending.belief is not self.pending.belief:
            first, done = self.pending.belief.variances(some), 0
        else:
            first, done = before.v[rows], len(before.pending.directions)
        if done == len(self.pending.directions):
            return m, first
        return m, self._without_lost(first - self.pending.explained(some, done), first, rows)

    def _without_lost(self, v: Array, first: Array, rows: Index | None) -> Array:
        """``v``; what subtraction from ``first`` left without digits, or without sense, is solved for."""
        lost: Index = np.flatnonzero((v < LOST * first) & (first > 0.0)) if v is not first else np.zeros(0, np.intp)
        if lost.size:
            v[lost] = self.pending.variances(self.pool.subset(lost if rows is None else rows[lost]))
            self.counts.solves += lost.size
            self.counts.recomputed += lost.size
        return v

    def drift(self) -> Drift:
        """From ``before`` to here; infinite where nothing is known of it."""
        before = self.before
        if before is None or not self.pending.belief.exact:
            return Drift(np.inf, np.inf)
        same = before.pending.belief is self.pending.belief  # then V has only shrunk
        if before.belief is not None:
            return Drift(before.belief.distance(self.weights),
                         1.0 if same else before.belief.growth(self.pending.belief))
        # A step is no longer in the units of the snapshot than in its own, those of a V that has shrunk since.
        return Drift(self.travelled, 1.0) if same else Drift(np.inf, np.inf)

    def include(self, row: int, y: float) -> "tuple[Marginals, Inclusion]":
        """With label ``y`` (as ``site.validate`` gives it) of ``row``: one solve; the product with the pool waits."""
        x = row_vector(self.pool, row)
        d = self.pending.times(x)
        one = np.array([row])
        new = include(self.site.rows(one), np.array([y]), np.array([x @ self.weights]), np.array([max(x @ d, 0.0)]))
        gamma, slope = float(new.gamma[0]), float(new.slope[0])
        return self.with_site(x, d, gamma, slope, known=True), new

    def with_site(self, x: Array, d: Array, gamma: float, slope: float, *, known: bool = False) -> "Marginals":
        """With the site exp(slope s - gamma s^2 / 2) on s = x'w, ``d`` = V x; the means stay unless it is ``known``."""
        mean, variance = float(x @ self.weights), max(float(x @ d), 0.0)
        kappa = 1.0 + gamma * variance
        c, e = gamma / kappa, (slope - gamma * mean) / kappa if known else 0.0
        self.counts.solves += 1
        start = 0.0 if self.computed else self.travelled
        return replace(self, pending=self.pending.including(d, c, e), weights=self.weights + e * d, before=self.latest,
                       travelled=start + abs(e) * float(np.sqrt(variance)), log_det=self.log_det + float(np.log(kappa)),
                       targets=None if self.targets is None else self.targets.including(d, c, e))
