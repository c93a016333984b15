"""Levels of a grouping factor by quadrature: their integrals and moments of their coefficients, given all else.

With h_i(d) = log p(y_i | m_i + d) - a_i d + gamma_i d^2 / 2 (see `klimb.trust.weights`) and d_i = r_i'e + s_i'u, the
log of the integral over a level is log E_u exp sum_i h_i(r_i'e + s_i'u) with u ~ N(0, I), over the rows i of the level.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product

import numpy as np
import numpy.typing as npt

from klimb.infer.problem import Problem, expectations
from klimb.latents.base import Posterior
from klimb.latents.shocks import Shocks
from klimb.numerics.arrays import Array
from klimb.numerics.special import hermite
from klimb.sites.base import Expectation, Rows, Site
from klimb.trust.weights import exact_site

# Nodes per coefficient of a level, the fewest first: the larger the sds, the more are needed (`settled`).
NODES = {0: (1,), 1: (5, 9, 15, 31, 63), 2: (5, 7, 11, 17, 27, 41, 61), 3: (3, 5, 7, 11, 15)}
MANY_NODES, MOST_MORE = {0: 1, 1: 63, 2: 17, 3: 7}, 3e5  # and values of log p of a draw up to which there may be more
SAME_SUM, SAME_SHARE = 0.01, 1e-3  # nats between the sums over levels by more and by fewer nodes; or that share of them
SAME_VARIANCE = 0.03  # relative, of a level between the same
BLOCK = 32_768  # values of log p that are held at once


@lru_cache(maxsize=16)
def quadrature(k: int, count: int) -> tuple[Array, Array]:
    """Nodes (Q, k) and log weights (Q,) of a rule for averages under N(0, I), ``count`` in every direction."""
    z, weight = hermite(count)
    nodes = np.array(list(product(z, repeat=k))).reshape(count**k, k)
    return nodes, np.array([sum(one) for one in product(np.log(weight), repeat=k)], dtype=float)


@dataclass(frozen=True, eq=False)
class SiteRows:
    """Rows with their sites, and what the log weight takes off log p there."""

    site: Site
    y: Array
    m: Array
    v: Array
    a: Array
    gamma: Array
    expected: Array  # E_q h_i: with it taken off, every term is small and the sum of all begins at the bound

    @classmethod
    def of(cls, problem: Problem, posterior: Posterior, order: Rows) -> SiteRows:
        site, y = exact_site(problem.site).rows(order), problem.y[order]
        m, v, a, gamma = (values[order] for values in (posterior.m, posterior.v, posterior.a, posterior.gamma))
        return cls(site, y, m, v, a, gamma, expectations(site, y, m, v).value + 0.5 * gamma * v)

    def some(self, rows: Rows) -> SiteRows:
        own = (getattr(self, name)[rows] for name in ("y", "m", "v", "a", "gamma", "expected"))
        return SiteRows(self.site.rows(rows), *own)

    def log_terms(self, d: Array, starts: npt.NDArray[np.intp], log_rule: Array,
                  slopes: bool = False) -> tuple[Expectation, Array]:
        """log p at deviations ``d`` (..., Q, N) and its ``slopes``, if wanted; log terms of levels (..., Q, runs)."""
        with np.errstate(over="ignore", invalid="ignore"):
            f = self.m + d
            point = self.site.point(self.y, f) if slopes else Expectation(self.site.value(self.y, f), f, f)
            h = 0.5 * self.gamma * d
            h -= self.a
            h *= d
            h += point.value
            h -= self.expected
            logs = np.add.reduceat(h, starts, axis=-1) + log_rule[:, None]
        return point, np.where(np.isfinite(logs), logs, -np.inf)


@dataclass(frozen=True, eq=False)
class LevelRows:
    """Levels that are integrated out by the same number of nodes in each direction."""

    shocks: Shocks
    rows: SiteRows
    nodes: int

    @property
    def rule(self) -> tuple[Array, Array]:
        return quadrature(self.shocks.own.shape[1], self.nodes)

    @property
    def values(self) -> int:
        """Of log p that one draw takes."""
        return len(self.rows.y) * len(self.rule[1])

    def some(self, runs: npt.NDArray[np.intp]) -> LevelRows:
        return LevelRows(self.shocks.some(runs), self.rows.some(self.shocks.rows_of(runs)), self.nodes)

    def sums(self, e: Array) -> Array:
        """The logs of the integrals over levels, added up, (S,)."""
        return np.concatenate([integrated(logs)[0].sum(axis=(1, 2)) for _, _, _, logs in self.blocks(e)])

    def each(self, e: Array, moved: Array) -> tuple[Array, Array]:
        """The log of the integral over each level, (S, runs), and the variances of u there, (S, runs, k)."""
        found = [integrated(logs) for _, _, _, logs in self.blocks(e, moved)]
        variances = [np.einsum("slkk->slk", level_moments(share, self.rule[0])[1]) for _, share in found]
        return np.concatenate([value[:, 0] for value, _ in found]), np.concatenate(variances)

    def settled(self, e: Array, scale: float) -> tuple[LevelRows, ...]:
        """By as many nodes as each needs: by the next larger rule sums and variances at the draws ``e`` are the same.

        Each of these levels stands for ``scale`` of them. The last have the most nodes. Where log p is concave, levels
        are alike, and all have as many as the sum over all of them needs.
        """
        moved, waiting, done, left = self.shocks.along(e), self, list[LevelRows](), np.inf
        alike = self.rows.site.log_concave
        k, fewer = self.shocks.own.shape[1], waiting.each(e, moved)
        for count in (count for count in NODES[k] if count > self.nodes):
            more = replace(waiting, nodes=count)
            if count > MANY_NODES[k] and (alike or more.values > MOST_MORE):
                break
            found = more.each(e, moved)
            left = min(left, max(SAME_SUM, SAME_SHARE * scale * float(np.abs(found[0].sum(axis=1)).max())))
            if alike:
                if scale * np.abs((found[0] - fewer[0]).sum(axis=1)).max() <= left:
                    break
                waiting, fewer = more, found
                continue
            change = scale * np.abs(found[0] - fewer[0]).max(axis=0)
            spread = np.abs(found[1] / np.maximum(fewer[1], 1e-300) - 1.0).max(axis=(0, 2))
            change[spread > SAME_VARIANCE] = np.inf
            least = np.argsort(change, kind="stable")
            n = int(np.searchsorted(np.cumsum(change[least]), left, side="right"))
            if n == len(least):
                break
            left -= float(change[least[:n]].sum())
            same, other = np.sort(least[:n]), np.sort(least[n:])
            done += [waiting.some(same)] if n else []
            moved, fewer = moved[:, waiting.shocks.rows_of(other)], (found[0][:, other], found[1][:, other])
            waiting = more.some(other) if n else more
        return *done, waiting

    def blocks(self, e: Array, moved: Array | None = None,
               slopes: bool = False) -> Iterator[tuple[slice, Array, Expectation, Array]]:
        """Blocks of draws: deviations (s, Q, N), log p there and its ``slopes``, log terms of levels (s, Q, runs)."""
        nodes, log_rule = self.rule
        steps = nodes @ self.shocks.level_rows.T
        size = max(BLOCK // steps.size, 1)
        for begin in range(0, len(e), size):
            some = slice(begin, min(begin + size, len(e)))
            d = (self.shocks.along(e[some]) if moved is None else moved[some])[:, None, :] + steps
            yield some, d, *self.rows.log_terms(d, self.shocks.starts, log_rule, slopes)
            del d


def integrated(logs: Array) -> tuple[Array, Array]:
    """Logs of the sums over nodes (..., 1, runs) of terms given by their ``logs`` (..., Q, runs), and their shares."""
    top = logs.max(axis=-2, keepdims=True)
    share = np.exp(logs - np.where(np.isfinite(top), top, 0.0))
    total = share.sum(axis=-2, keepdims=True)
    with np.errstate(divide="ignore"):
        value = np.log(total) + top
    share /= np.maximum(total, 1e-300)
    return value, share


def level_moments(share: Array, nodes: Array) -> tuple[Array, Array]:
    """Means (..., runs, k) and covariances of u by the shares (..., Q, runs) of the nodes."""
    pairs = (nodes[:, :, None] * nodes[:, None, :]).reshape(len(nodes), -1)
    share = np.swapaxes(share, -1, -2)
    first = share @ nodes
    second = (share @ pairs).reshape(*first.shape, nodes.shape[1])
    return first, second - first[..., :, None] * first[..., None, :]


def level_skew(share: Array, nodes: Array, mean: Array, covariance: Array) -> Array:
    """Third central moments (..., runs, k, k, k) of u, whose means and covariances are known."""
    Q, k = nodes.shape
    cubes = np.einsum("qa,qb,qc->qabc", nodes, nodes, nodes).reshape(Q, -1)
    found = (np.swapaxes(share, -1, -2) @ cubes).reshape(*mean.shape, k, k)
    a, b, c = mean[..., :, None, None], mean[..., None, :, None], mean[..., None, None, :]
    found -= a * (covariance[..., None, :, :] + b * c)
    found -= b * covariance[..., :, None, :]
    found -= c * covariance[..., :, :, None]
    return np.asarray(found)
