"""Importance weights of the shared weights, with the levels of a grouping factor integrated out by quadrature.

With h_i(d) = log p(y_i | m_i + d) - a_i d + gamma_i d^2 / 2 (see `klimb.trust.weights`) and d_i = r_i'e + s_i'u,

    log w(e) = offset + sum_l log E_u exp sum_{i in l} h_i(r_i'e + s_i'u),    u ~ N(0, I)

is the log weight of the shared weights alone. At the optimum of the bound the h_i begin with third powers, so that few
nodes suffice, and the weights hardly vary even where hundreds of small levels are each far from Gaussian.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

import numpy as np
import numpy.typing as npt

from klimb.infer.problem import Problem
from klimb.latents.base import Posterior
from klimb.latents.shocks import ShockMoments, Shocks
from klimb.numerics.arrays import Array, finite_sum
from klimb.numerics.dense import row_blocks
from klimb.sites.base import Site
from klimb.trust.levels import (
    BLOCK,
    MANY_NODES,
    NODES,
    LevelRows,
    SiteRows,
    integrated,
    level_moments,
    level_skew,
    quadrature,
)
from klimb.trust.weights import exact_site

FAR = 600.0  # nats beyond which a density is no number
FEWEST_PAIRS = 4  # of draws over which levels that others stand for are averaged; with fewer these stay at e = 0
MOST_THIRD = 50_000  # third moments of levels with the shared weights that are kept


@dataclass(frozen=True, eq=False)
class LevelMoments:
    """Means (S, L, k) and covariances (S, L, k, k) of the u of all levels, at some of the draws or at e = 0 alone."""

    mean: Array
    covariance: Array
    at: npt.NDArray[np.intp] = field(default_factory=lambda: np.zeros(0, dtype=np.intp))  # these draws; none: e = 0

    def averaged(self, weights: Array) -> tuple[Array, Array]:
        """Means and covariances of u over draws with these ``weights``."""
        own = weights[self.at] / max(weights[self.at].sum(), 1e-300) if len(self.at) else np.ones(1)
        mean = np.tensordot(own, self.mean, axes=1)
        away = self.mean - mean
        within = np.tensordot(own, self.covariance, axes=1)
        return mean, within + np.einsum("s,slj,slk->ljk", own, away, away)


@dataclass(frozen=True, eq=False)
class CollapsedDraws:
    """Draws of e: their log weights, the gradients there, and moments of the levels' u given e: ``skew`` the third."""

    e: Array  # (S, R)
    log_weights: Array  # (S,)
    gradient: Array  # (S, R)
    mean: Array  # (S, runs, k)
    covariance: Array  # (S, runs, k, k)
    present: npt.NDArray[np.intp]  # (runs,): their levels
    rest: Callable[[], LevelMoments]  # of all levels, where those do not say
    skew: Array = field(default_factory=lambda: np.zeros((0,) * 5))  # (S, runs, k, k, k); or nothing

    @cached_property
    def _rest(self) -> LevelMoments:
        return self.rest()

    def steady(self, weights: Array) -> bool:
        """Whether G varies less than e, so that `moments` by G have less noise than averages of e."""
        e, G = (own - weights @ own for own in (self.e, self.gradient))
        return bool(weights @ (G**2).sum(axis=1) < weights @ (e**2).sum(axis=1))

    def moments(self, weights: Array, *, stein: bool = True) -> ShockMoments:
        """Of all shocks, by Stein's identity for e: E e = E G and E ee' = I + E eG', G the gradient of log w.

        Its noise vanishes as q becomes exact; far from that, and for one of several modes, averages of e and ee' serve.
        """
        G, identity = (self.gradient, np.eye(self.e.shape[1])) if stein else (self.e, 0.0)
        centre = weights @ G
        second = self.e.T @ (weights[:, None] * G)
        spread = identity + 0.5 * (second + second.T) - np.outer(centre, centre)
        if stein and not np.linalg.eigvalsh(spread)[0] > 0.0:
            return self.moments(weights, stein=False)
        mean, covariance = self._rest.averaged(weights)
        with_shared = np.zeros((*mean.shape, self.e.shape[1]))
        mean[self.present] = own = np.tensordot(weights, self.mean, axes=1)
        away = self.mean - own
        with_shared[self.present] = np.einsum("s,slk,sr->lkr", weights, away, self.e - weights @ self.e)
        between = np.einsum("s,slj,slk->ljk", weights, away, away)
        covariance[self.present] = between + np.tensordot(weights, self.covariance, axes=1)
        return ShockMoments(centre, spread, mean, with_shared, covariance)

    def third(self, weights: Array, *, stein: bool = True) -> Array:
        """Third central moments of (e, u) of every level, (L, R + k, R + k, R + k); of e alone without ``skew``."""
        G = self.gradient if stein else self.e
        pull = weights[:, None] * (G - weights @ G)
        away = self.e - weights @ G
        found = _cubes(pull[None], away[None])[0]
        shared = (found + np.swapaxes(found, 0, 1) + np.swapaxes(found, 0, 2)) / 3.0
        if not self.skew.size:
            return np.asarray(shared[None])
        (S, R), (L, k) = self.e.shape, self._rest.mean.shape[1:]
        out = np.zeros((L, R + k, R + k, R + k))
        for some in row_blocks(len(self.present), S * (R + k) ** 2):
            levels = np.moveaxis(self.mean[:, some] - np.tensordot(weights, self.mean[:, some], axes=1), 1, 0)
            a = np.concatenate([np.broadcast_to(away, (len(levels), S, R)), levels], axis=2)
            weighted = weights[:, None] * a
            third = _cubes(weighted, a)
            # What u varies by given e: E a_i Cov(u_j, u_k | e) in all three orders, and its own third moments.
            inner = np.moveaxis(self.covariance[:, some], 1, 0).reshape(len(a), S, k * k)
            given = (np.swapaxes(weighted, 1, 2) @ inner).reshape(len(a), R + k, k, k)
            third[:, :, R:, R:] += given
            third[:, R:, :, R:] += np.swapaxes(given, 1, 2)
            third[:, R:, R:, :] += np.moveaxis(given, 1, 3)
            third[:, R:, R:, R:] += np.tensordot(weights, self.skew[:, some], axes=1)
            out[self.present[some]] = third
        out[:, :R, :R, :R] = shared
        return out


def _cubes(one: Array, other: Array) -> Array:
    """Sums over s of one_sa other_sb other_sc for each of L, by matrix products: (L, S, R) to (L, R, R, R)."""
    L, S, R = one.shape
    b, c = np.triu_indices(R)
    half = np.zeros((L, R, len(b)))
    for rows in row_blocks(S, L * len(b)):
        half += np.swapaxes(one[:, rows], 1, 2) @ (other[:, rows, b] * other[:, rows, c])
    out = np.empty((L, R, R, R))
    out[:, :, b, c] = out[:, :, c, b] = half
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
        return self._each * round(float(np.sum(np.broadcast_to(getattr(self._site, "weights", 1.0), len(self._y)))))

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


class CollapsedWeights(ShockWeights):
    """The log weight of draws of the shared weights, the levels integrated out.

    Where a draw would take more than ``most`` values of log p, some levels stand for all where e is not 0:
    the evidence at each of several hyperparameters rests on e = 0. ``bound`` is the posterior's, if known.
    """

    def __init__(self, problem: Problem, posterior: Posterior, shocks: Shocks, most: float = np.inf,
                 nodes: int | None = None, bound: float | None = None) -> None:
        k = shocks.own.shape[1]
        narrow = 0 if problem.site.log_concave else min(2, len(NODES[k]) - 1)  # rules that reach no other mode
        self.nodes = NODES[k][narrow] if nodes is None else nodes
        self.rule = quadrature(k, self.nodes)
        whole = len(shocks.order) * len(self.rule[1])
        n_runs = len(shocks.starts)
        kept = max(int(n_runs * most / max(whole, 1)), 1) if whole > most else n_runs
        self.scale = n_runs / kept
        whole_there = kept == n_runs and (shocks.wide or isinstance(shocks.shared_rows, np.ndarray))
        self.shocks = shocks if whole_there else shocks.some(np.sort(
            np.random.default_rng(0).permutation(n_runs)[:kept]))
        site = exact_site(problem.site)
        self._every = problem, posterior, shocks
        rows = SiteRows.of(problem, posterior, self.shocks.order)
        self._levels: tuple[LevelRows, ...] = (LevelRows(self.shocks, rows, self.nodes),)
        self.means = rows.m  # of f at every row, under q
        self._site, self._y = rows.site, rows.y
        if bound is None or site is not problem.site:  # the bound of another likelihood than that of the fit
            every = site.oracle(problem.y, posterior.m, posterior.v).value
            bound = float(every.sum()) + problem.constant - posterior.kl
        self.bound = bound

    def settled(self, e: Array) -> CollapsedWeights:
        """With as many nodes as each level needs: by the next larger rule the sums at the draws ``e`` are the same."""
        if not self.shocks.own.size:
            return self
        found = copy(self)
        found._levels = self._levels[0].settled(e, self.scale)
        found.nodes = min(found._levels[-1].nodes, MANY_NODES[self.shocks.own.shape[1]])
        found.rule = quadrature(self.shocks.own.shape[1], found.nodes)
        return found

    @property
    def work(self) -> int:
        each = (getattr(own.rows.site, "weights", np.ones(len(own.rows.y))) for own in self._levels)
        return sum(len(own.rule[1]) * round(float(np.sum(n))) for own, n in zip(self._levels, each, strict=True))

    def evidence(self, e: Array) -> Array:
        return self.bound + self._at_rest[0] + self._sums(e)

    def _sums(self, e: Array) -> Array:
        """The sum over all levels of the logs of their integrals, by those that stand for them."""
        return np.asarray(self.scale * sum(own.sums(e) for own in self._levels))

    @cached_property
    def _at_rest(self) -> tuple[float, LevelMoments]:
        """At e = 0: what all levels say beyond those that stand for them, and moments of every level's u."""
        zero = np.zeros((1, self.shocks.dim))
        total, found = self._every_level(zero)
        return (0.0 if self.scale == 1.0 else total - float(self._sums(zero)[0])), found

    def _rest(self, e: Array) -> LevelMoments:
        """Of levels that others stand for, at draws spread over ``e``: at e = 0 alone means are off to first order."""
        pairs = int(len(e) / (2.0 * self.scale))
        if self.scale == 1.0 or pairs < FEWEST_PAIRS:
            return self._at_rest[1]
        half = np.unique(np.linspace(0, len(e) // 2 - 1, pairs).astype(np.intp))
        at = np.concatenate([half, len(e) // 2 + half])  # draws come in pairs e and -e
        return replace(self._every_level(e[at])[1], at=at)

    def _every_level(self, e: Array) -> tuple[float, LevelMoments]:
        """The sum over all levels and draws of the logs of their integrals, and the moments of every level's u."""
        (problem, posterior, shocks), (nodes, log_rule) = self._every, self.rule
        (L, k), S = shocks.q.level_mean.shape, len(e)
        found, total = LevelMoments(np.zeros((S, L, k)), np.tile(np.eye(k), (S, L, 1, 1))), 0.0  # N(0, I), as under q
        if self.scale == 1.0:
            return total, found
        n = len(shocks.order)
        begins = np.searchsorted(shocks.starts, np.arange(0, n, max(BLOCK // (S * len(log_rule)), 1)))
        begins = np.unique(begins[begins < len(shocks.starts)])
        for first, last in zip(begins, np.append(begins[1:], len(shocks.starts)), strict=True):
            part, levels = shocks.some(np.arange(first, last)), shocks.present[first:last]
            _, logs = SiteRows.of(problem, posterior, part.order).log_terms(
                part.along(e)[:, None] + nodes @ part.level_rows.T, part.starts, log_rule)
            values, share = integrated(logs)
            total += float(values.sum())
            found.mean[:, levels], found.covariance[:, levels] = level_moments(share, nodes)
        return total, found

    def left_out(self) -> tuple[Array, Array, Array, Array]:
        """Of each row where e = 0: log E[1 / p(y_i | f_i)], mean and variance of f_i without its own datum, and q's.

        1 / p(y_i | others) = E[1 / p(y_i | f_i)]; of a row that counts twice one copy goes; constants are the caller's.
        """
        rows, starts = self._levels[0].rows, self.shocks.starts
        copies = np.maximum(getattr(rows.site, "weights", 1.0), 1e-300)
        middle = (rows.expected - 0.5 * rows.gamma * rows.v) / copies
        steps = self.rule[0] @ self.shocks.level_rows.T
        point, logs = rows.log_terms(steps, starts, self.rule[1])
        each = np.repeat(integrated(logs)[1], np.diff(np.append(starts, len(rows.y))), axis=1)
        each *= np.exp(np.clip(middle - np.nan_to_num(point.value / copies), -FAR, FAR))
        total = each.sum(axis=0)
        mean, found = np.einsum("qi,qi->i", each, steps) / total, np.empty((4, len(rows.y)))
        variance = np.einsum("qi,qi,qi->i", each, steps, steps) / total - mean**2
        found[:, self.shocks.order] = (np.log(total) - middle, rows.m + mean, variance,
                                       (self.shocks.level_rows**2).sum(axis=1))
        return found[0], found[1], found[2], found[3]

    def peaks(self) -> Array:
        """Excess kurtosis of f at every row where e = 0: spikes at data, or modes."""
        found = np.zeros(len(self._y))
        for own in self._levels:
            counts = np.diff(np.append(own.shocks.starts, len(own.rows.y)))
            for _, d, _, logs in own.blocks(np.zeros((1, self.shocks.dim))):
                share = np.repeat(integrated(logs)[1][0], counts, axis=1)
                squares = (d[0] - (share * d[0]).sum(axis=0)) ** 2
                variance = (share * squares).sum(axis=0)
                found[own.shocks.order] = (share * squares**2).sum(axis=0) / np.maximum(variance**2, 1e-300) - 3.0
        return found

    def __call__(self, e: Array) -> CollapsedDraws:
        L, k, _ = self.shocks.own.shape
        few = k > 0 and L * (self.shocks.dim + k) ** 3 <= MOST_THIRD and self.scale == 1.0
        each = [self._level_draws(own, e, few) for own in self._levels]
        values, gradient = (self.scale * np.sum([own[i] for own in each], axis=0) for i in (0, 1))
        mean, covariance, skew = (np.concatenate([own[i] for own in each], axis=1) for i in (2, 3, 4))
        present = np.concatenate([own.shocks.present for own in self._levels])
        values = self.bound + self._at_rest[0] + values
        return CollapsedDraws(e, values, gradient, mean, covariance, present, lambda: self._rest(e),
                              skew if few else np.zeros((0,) * 5))

    @staticmethod
    def _level_draws(own: LevelRows, e: Array, few: bool) -> tuple[Array, Array, Array, Array, Array]:
        """What levels say at draws: their sums and the gradient of these, and moments of every u."""
        rows, S, k, runs = own.rows, len(e), own.shocks.own.shape[1], len(own.shocks.present)
        nodes, counts = own.rule[0], np.diff(np.append(own.shocks.starts, len(own.rows.y)))
        values, slopes = np.empty(S), np.empty((S, len(rows.y)))
        mean, covariance = np.empty((S, runs, k)), np.empty((S, runs, k, k))
        skew = np.empty((S, runs, k, k, k) if few else (0, runs, 0, 0, 0))
        for some, d, point, logs in own.blocks(e, slopes=True):
            value, share = integrated(logs)
            values[some] = value.sum(axis=(1, 2))
            with np.errstate(over="ignore", invalid="ignore"):
                slope = rows.gamma * d
                slope -= point.alpha
                slope -= rows.a
            if not finite_sum(slope):
                np.nan_to_num(slope, copy=False)
            slopes[some] = np.einsum("sqi,sqi->si", np.repeat(share, counts, axis=2), slope) if k else slope[:, 0]
            mean[some], covariance[some] = level_moments(share, nodes)
            if few:
                skew[some] = level_skew(share, nodes, mean[some], covariance[some])
            del d, point, share, slope  # before those of the next block are made
        return values, slopes @ own.shocks.shared_rows, mean, covariance, skew
