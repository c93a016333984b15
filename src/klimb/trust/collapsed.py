"""Importance weights of the shared weights, with the levels of a grouping factor integrated out by quadrature.

With h_i(d) = log p(y_i | m_i + d) - a_i d + gamma_i d^2 / 2 (see `klimb.trust.weights`) and d_i = r_i'e + s_i'u,

    log w(e) = offset + sum_l log E_u exp sum_{i in l} h_i(r_i'e + s_i'u),    u ~ N(0, I)

is the log weight of the shared weights alone. At the optimum of the bound the h_i begin with third powers, so that few
nodes suffice, and the weights hardly vary even where hundreds of small levels are each far from Gaussian.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product
from typing import Self, final

import numpy as np

from klimb.infer.problem import Problem
from klimb.latents.base import Posterior
from klimb.latents.shocks import ShockMoments, Shocks
from klimb.numerics.arrays import Array
from klimb.numerics.dense import row_blocks
from klimb.numerics.pareto import smooth_log_weights
from klimb.sites.base import Expectation, Site
from klimb.trust.weights import exact_site

# Nodes per coefficient of a level, the fewest first: the larger the sds, the more are needed (`settled`).
NODES = {0: (1,), 1: (5, 9, 15, 31, 63), 2: (5, 7, 11, 17), 3: (3, 5, 7)}
SAME_SUM = 0.01  # nats between the sums over levels by more and by fewer nodes
FAR = 600.0  # nats beyond which a density is no number
BLOCK = 100_000  # values of log p that are held at once
MOST_THIRD = 50_000  # third moments of levels with the shared weights that are kept


@lru_cache(maxsize=16)
def quadrature(k: int, count: int) -> tuple[Array, Array]:
    """Nodes (Q, k) and log weights (Q,) of a rule for averages under N(0, I), ``count`` in every direction.

    >>> nodes, log_weights = quadrature(1, 9)
    >>> float(np.exp(log_weights) @ nodes[:, 0] ** 4)
    3.0...
    """
    from scipy.special import roots_hermite

    x, w = roots_hermite(count)
    nodes = np.array(list(product(np.sqrt(2.0) * x, repeat=k))).reshape(len(x) ** k, k)
    log_w = np.log(w) - 0.5 * np.log(np.pi)
    return nodes, np.array([sum(one) for one in product(log_w, repeat=k)], dtype=float)


@final
@dataclass(frozen=True, eq=False)
class CollapsedDraws:
    """Draws of e: their log weights, the gradients there, and moments of each level's u given e: ``skew`` the third."""

    e: Array  # (S, R)
    log_weights: Array  # (S,)
    gradient: Array  # (S, R)
    mean: Array  # (S, L, k)
    covariance: Array  # (S, L, k, k)
    skew: Array = field(default_factory=lambda: np.zeros((0,) * 5))  # (S, L, k, k, k); nothing where that is too much

    def moments(self, weights: Array, *, stein: bool = True) -> ShockMoments:
        """Of all shocks, by Stein's identity for e: E e = E G and E ee' = I + E eG', G the gradient of log w.

        Their right-hand sides vanish as q becomes exact, and so does their noise; where q is far from that, and for
        one of several modes, the averages of e and ee' themselves are better.
        """
        G, identity = (self.gradient, np.eye(self.e.shape[1])) if stein else (self.e, 0.0)
        centre = weights @ G
        second = self.e.T @ (weights[:, None] * G)
        spread = identity + 0.5 * (second + second.T) - np.outer(centre, centre)
        mean = np.tensordot(weights, self.mean, axes=1)
        away = self.mean - mean
        with_shared = np.einsum("s,slk,sr->lkr", weights, away, self.e - weights @ self.e)
        between = np.einsum("s,slj,slk->ljk", weights, away, away)
        return ShockMoments(centre, spread, mean, with_shared, between + np.tensordot(weights, self.covariance, axes=1))

    def third(self, weights: Array, *, stein: bool = True) -> Array:
        """Third central moments of (e, u) for every level, (L, R + k, R + k, R + k); of e alone without ``skew``.

        Those of e are by the same identity: E (G - E G)_a d_b d_c with d = e - E e.
        """
        G = self.gradient if stein else self.e
        pull = weights[:, None] * (G - weights @ G)
        away = self.e - weights @ G
        found = np.einsum("sa,sb,sc->abc", pull, away, away, optimize=True)
        shared = (found + np.swapaxes(found, 0, 1) + np.swapaxes(found, 0, 2)) / 3.0
        if not self.skew.size:
            return np.asarray(shared[None])
        (S, R), (L, k) = self.e.shape, self.mean.shape[1:]
        out = np.empty((L, R + k, R + k, R + k))
        for some in row_blocks(L, S * (R + k) ** 2):
            levels = self.mean[:, some] - np.tensordot(weights, self.mean[:, some], axes=1)
            a = np.concatenate([np.broadcast_to(away[:, None], (*levels.shape[:2], R)), levels], axis=2)
            third = np.einsum("s,sla,slb,slc->labc", weights, a, a, a, optimize=True)
            # What u varies by given e: E a_i Cov(u_j, u_k | e) in all three orders, and its own third moments.
            given = np.einsum("s,sla,sljk->lajk", weights, a, self.covariance[:, some], optimize=True)
            third[:, :, R:, R:] += given
            third[:, R:, :, R:] += np.swapaxes(given, 1, 2)
            third[:, R:, R:, :] += np.moveaxis(given, 1, 3)
            third[:, R:, R:, R:] += np.tensordot(weights, self.skew[:, some], axes=1)
            out[some] = third
        out[:, :R, :R, :R] = shared
        return out


class ShockWeights(ABC):
    """The log weight of draws of the shocks that all rows share."""

    shocks: Shocks
    bound: float
    scale: float = 1.0  # levels over those that stand for them
    _site: Site
    _y: Array
    _each: int  # values of log p for a datum

    @property
    def work(self) -> int:
        """Values of log p that one draw takes, copies of a row counted: a row of weight 2 asks what two rows do."""
        copies = getattr(self._site, "weights", None)
        return self._each * round(float(len(self._y) if copies is None else np.sum(copies)))

    @abstractmethod
    def __call__(self, e: Array) -> CollapsedDraws:
        """The draws ``e`` with their log weights and all that moments need."""

    def settled(self, e: Array) -> Self:
        """As exact as it must be at the draws ``e``."""
        del e
        return self

    def evidence(self, e: Array) -> Array:
        """The log weights alone."""
        return self(e).log_weights

    def log_density(self, e: Array) -> tuple[Array, Array]:
        """Of the exact posterior of e, times the evidence, and its gradient."""
        draws = self(e)
        return (draws.log_weights - 0.5 * (e**2).sum(axis=1) - 0.5 * e.shape[1] * np.log(2.0 * np.pi),
                draws.gradient - e)


@final
class CollapsedWeights(ShockWeights):
    """The log weight of draws of the shared weights, the levels integrated out.

    Where a draw would take more than ``most`` values of log p, some of the levels, chosen by a fixed seed, stand for
    all: what their number says of the sum over levels is a relative error that is the same for all hyperparameters.
    ``bound`` is that of the posterior, where it is known.
    """

    def __init__(self, problem: Problem, posterior: Posterior, shocks: Shocks, most: float = np.inf,
                 nodes: int | None = None, bound: float | None = None) -> None:
        k = shocks.own.shape[1]
        self.nodes = NODES[k][0] if nodes is None else nodes
        self.rule = quadrature(k, self.nodes)
        whole = len(shocks.order) * len(self.rule[1])
        n_runs = len(shocks.starts)
        kept = max(int(n_runs * most / max(whole, 1)), 1) if whole > most else n_runs
        self.scale = n_runs / kept
        whole_there = kept == n_runs and isinstance(shocks.shared_rows, np.ndarray)
        self.shocks = shocks if whole_there else shocks.some(np.sort(
            np.random.default_rng(0).permutation(n_runs)[:kept]))
        order = self.shocks.order
        site = exact_site(problem.site)
        self._site, self._y = site.rows(order), problem.y[order]
        self._m, self._v, self._a, self._gamma = (
            values[order] for values in (posterior.m, posterior.v, posterior.a, posterior.gamma))
        # E_q h_i: with it taken off, every term is small and the sum of all begins at the bound.
        self._expected = self._site.oracle(self._y, self._m, self._v).value + 0.5 * self._gamma * self._v
        if bound is None or site is not problem.site:  # the bound of another likelihood than that of the fit
            every = site.oracle(problem.y, posterior.m, posterior.v).value
            bound = float(every.sum()) + problem.constant - posterior.kl
        self.bound = bound

    def settled(self, e: Array) -> CollapsedWeights:
        """With as many nodes as the levels need here: the next larger rule gives the same sums at the draws ``e``."""
        found, k, total = self, self.shocks.own.shape[1], self.evidence(e)
        for count in (count for count in NODES[k] if count > self.nodes):
            more = copy(found)
            more.nodes, more.rule = count, quadrature(k, count)
            before, total = total, more.evidence(e)
            if np.abs(total - before).max() <= SAME_SUM:
                break
            found = more
        return found

    @property
    def _each(self) -> int:  # type: ignore[override]
        return len(self.rule[1])

    def evidence(self, e: Array) -> Array:
        values = np.empty(len(e))
        for some, _, _, total, _ in self._blocks(e):
            values[some] = self.bound + self.scale * total
        return values

    def _blocks(self, e: Array, *, slopes: bool = False) -> Iterator[tuple[slice, Array, Expectation, Array, Array]]:
        """Blocks of draws: deviations (s, Q, N), log p there and its ``slopes``, if wanted.

        And the sums over levels of the logs of their integrals (s,), and shares of the nodes in these (s, Q, runs).
        """
        shocks = self.shocks
        nodes, log_rule = self.rule
        steps = nodes @ shocks.level_rows.T
        size = max(BLOCK // steps.size, 1)
        for begin in range(0, len(e), size):
            some = slice(begin, min(begin + size, len(e)))
            d = shocks.along(e[some])[:, None, :] + steps
            with np.errstate(over="ignore", invalid="ignore"):
                f = self._m + d
                point = self._site.point(self._y, f) if slopes else Expectation(self._site.value(self._y, f), f, f)
                h = point.value - self._expected + d * (0.5 * self._gamma * d - self._a)
                logs = np.add.reduceat(h, shocks.starts, axis=2) + log_rule[:, None]
            logs = np.where(np.isfinite(logs), logs, -np.inf)
            top = logs.max(axis=1, keepdims=True)
            share = np.exp(logs - np.where(np.isfinite(top), top, 0.0))
            total = share.sum(axis=1, keepdims=True)
            with np.errstate(divide="ignore"):
                yield some, d, point, (np.log(total) + top).sum(axis=(1, 2)), share / np.maximum(total, 1e-300)

    def left_out(self, e: Array) -> tuple[Array, Array, Array]:
        """Of each row: log E[1 / p(y_i | f_i)], and mean and variance of f_i without its own datum, by the draws ``e``.

        1 / p(y_i | others) = E[1 / p(y_i | f_i)] under the posterior, and a density over p(y_i | f_i) is the one that
        the others leave. Of a row that counts twice one copy is taken out; constants of log p are the caller's.
        """
        copies = np.maximum(getattr(self._site, "weights", 1.0), 1e-300)
        middle = (self._expected - 0.5 * self._gamma * self._v) / copies
        counts = np.diff(np.append(self.shocks.starts, len(self._y)))
        values, sums = np.empty(len(e)), np.empty((3, len(e), len(self._y)))
        for some, d, point, values[some], share in self._blocks(e):
            each = np.repeat(share, counts, axis=2)
            each *= np.exp(np.clip(middle - np.nan_to_num(point.value / copies), -FAR, FAR))
            for k in range(3):
                sums[k, some] = each.sum(axis=1)
                each *= d
        total, first, second = np.tensordot(smooth_log_weights(values).normalised, sums, axes=(0, 1))
        mean, found = first / total, np.empty((3, len(self._y)))
        found[:, self.shocks.order] = np.log(total) - middle, self._m + mean, second / total - mean**2
        return found[0], found[1], found[2]

    def __call__(self, e: Array) -> CollapsedDraws:
        shocks, S = self.shocks, len(e)
        L, k = shocks.q.level_mean.shape
        nodes, _ = self.rule
        values, slopes = np.empty(S), np.empty((S, len(self._y)))
        mean, covariance = np.zeros((S, L, k)), np.broadcast_to(np.eye(k), (S, L, k, k)).copy()
        few = k > 0 and L * (shocks.dim + k) ** 3 <= MOST_THIRD and self.scale == 1.0
        skew = np.zeros((S, L, k, k, k) if few else (0,) * 5)
        counts = np.diff(np.append(shocks.starts, len(self._y)))
        for some, d, point, total, share in self._blocks(e, slopes=True):
            values[some] = self.bound + self.scale * total
            with np.errstate(over="ignore", invalid="ignore"):
                slope = np.nan_to_num(self._gamma * d - point.alpha - self._a)
            slopes[some] = np.einsum("sqi,sqi->si", np.repeat(share, counts, axis=2), slope)
            first = np.einsum("sql,qk->slk", share, nodes)
            mean[some, shocks.present] = first
            second = np.einsum("sql,qj,qk->sljk", share, nodes, nodes, optimize=True)
            covariance[some, shocks.present] = second - first[..., :, None] * first[..., None, :]
            if few:
                away = nodes[:, None] - first[:, None]
                third = np.einsum("sql,sqla,sqlb,sqlc->slabc", share, away, away, away, optimize=True)
                skew[some, shocks.present] = third
        return CollapsedDraws(e, values, self.scale * (slopes @ shocks.shared_rows), mean, covariance, skew)
