"""Weighted draws of the exact posterior of few shared weights, as far out as chances near 0 and 1 rest on.

The sd of a chance h(f) near 0 rests where p h^2 has its mass, p being the posterior: often several sds of f from its
mean, with a thousandth of the mass of p and less. Beside chains at p others go at p h(f_i) and at p h(f_i)^2, for rows
i of the data that lie apart. All are Hamiltonian, and begin at draws of a Gaussian that are chosen by their weights.

Draws of all together count as those of a mixture. With n_k draws of the density p b_k / c_k, where c_k = E_p b_k, the
weight of a draw is 1 / sum_k n_k b_k / c_k, and c_k is the weighted mean of b_k: iterations solve that (Shirts and
Chodera, J. Chem. Phys. 129, 2008). The Gaussian is one of these densities, and its c_k gives the evidence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from klimb.latents.shocks import ShockMoments
from klimb.numerics.arrays import Array, Index
from klimb.numerics.lowdiscrepancy import normal_draws
from klimb.numerics.pareto import SmoothedWeights
from klimb.trust.collapsed import CollapsedDraws, CollapsedWeights

Mean: TypeAlias = Callable[[Array], Array]  # of y, by f

FEWEST_CHAINS, MOST_CHAINS = 48, 320
AT_P = 0.35  # share of the chains
LENGTH, SETTLING = 16, 6  # draws of a chain that count, and those before them
KICKS, PATH = 4, 1.4  # steps of a path, and its length in sds
WANTED, RATE, LEAST = 0.8, 0.5, 0.5  # share of paths that are taken, how fast steps follow it, and what is too few
POOL, WIDER = 1024, 0.25  # draws that chains begin at, and the scale of these: 1 + this / sqrt(dim)
VALUES, MOST_VALUES = 4e6, 2e7  # of log p: that more than `FEWEST_CHAINS` may take, and at most
APART, FARTHEST = 1.0, 6.0  # squared sds between the ends of two tilts that are both followed; sds to the end of any
SCORES = np.linspace(-7.0, 7.0, 57)  # of f
SMALLEST, AHEAD = 1e-300, 1e-4  # h, and a step in f for its slope
IMPOSSIBLE = 200.0  # nats
SWEEPS, SAME, THINNED = 100, 1e-3, 4  # for c_k: at most, the change of log c_k at the end, and one draw of so many


def tilts(m: Array, v: Array, mean: Mean) -> tuple[Array, Array]:
    """How many sds from m the variance of h(f) rests, f ~ N(m, v), and the end of its range that h is counted from."""
    f = m + np.multiply.outer(SCORES, np.sqrt(v))
    top = float(mean(np.array([np.inf]))[0])
    end = np.where((mean(m) > 0.5 * top) & np.isfinite(top), top, 0.0)
    logs = 2.0 * _log_h(mean, f, end) - 0.5 * SCORES[:, None] ** 2
    share = np.exp(logs - logs.max(axis=0))
    return np.asarray(SCORES @ share / share.sum(axis=0)), end


def _log_h(mean: Mean, f: Array, end: Array) -> Array:
    with np.errstate(over="ignore"):
        return np.asarray(np.log(np.maximum(np.abs(mean(f) - end), SMALLEST)))


def tail_draws(weights: CollapsedWeights, found: ShockMoments, mean: Mean,
               seed: int) -> tuple[CollapsedDraws, SmoothedWeights] | None:
    """Draws with their log weights; None where these cost too much, or chains do not move.

    ``found`` are the moments of p as first seen.
    """
    dim, rng = weights.shocks.dim, np.random.default_rng(seed)
    each = weights.work * KICKS * (SETTLING + LENGTH)
    if FEWEST_CHAINS * each > MOST_VALUES:
        return None
    count = int(np.clip(VALUES / each, FEWEST_CHAINS, MOST_CHAINS))
    values, vectors = np.linalg.eigh(found.spread)
    root = np.linalg.cholesky((vectors * np.maximum(values, 0.25)) @ vectors.T)
    wide = (1.0 + WIDER / np.sqrt(dim)) * root
    pool = found.centre + normal_draws(POOL, dim, seed=seed) @ wide.T
    log_ratio = weights.log_density(pool)[0] - _log_normal(pool, found.centre, wide)
    if not np.isfinite(log_ratio).any():
        return None
    tilted = _Tilted.of(weights, found, root, mean, count)
    logs = np.column_stack([np.zeros(POOL), tilted.logs(pool)])
    first = [_chosen(log_ratio + power * logs[:, row], rng) for row, power in zip(tilted.row, tilted.power, strict=True)]
    chains, gone = _paths(weights, tilted, pool[first], root, rng)
    if gone < LEAST:
        return None
    draws = weights(np.concatenate(chains))
    log_p = draws.log_weights + _log_normal(draws.e, np.zeros(dim), np.eye(dim))
    own = _log_normal(draws.e, found.centre, wide) - log_p
    log_share = _shares(tilted, np.vstack([draws.e, pool]), np.append(own, -log_ratio))
    return replace(draws, log_weights=log_share), SmoothedWeights(log_share, -np.inf, 0)


@dataclass(frozen=True, eq=False)
class _Tilted:
    """log b_k of the chains: powers 1 and 2 of h at rows of the data, f = m + r'e there; power 0 is p itself."""

    mean: Mean
    m: Array
    r: Array  # (K, R)
    end: Array
    row: Index  # of each chain: k + 1 of the row
    power: Index  # of each chain

    @classmethod
    def of(cls, weights: CollapsedWeights, found: ShockMoments, root: Array, mean: Mean, count: int) -> _Tilted:
        """Those of rows that lie apart, the farthest first, as many as ``count`` chains can follow."""
        r = np.asarray(weights.shocks.shared_rows)
        m, along = weights.means + r @ found.centre, r @ root
        size = np.linalg.norm(along, axis=1)
        far, end = tilts(m, size**2, mean)
        ends = along * (far / np.maximum(size, SMALLEST))[:, None]
        few, left = list[int](), np.where(np.abs(far) < FARTHEST, far**2, 0.0)
        tilted = count - int(AT_P * count)
        while len(few) < tilted // 2 and left.max() > APART:
            few.append(int(np.argmax(left)))
            left = np.minimum(left, ((ends - ends[few[-1]]) ** 2).sum(axis=1))
        row, power = np.zeros((2, count), dtype=np.intp)
        if few:
            own = np.arange(tilted)
            row[-tilted:], power[-tilted:] = 1 + own % len(few), 2 - own // len(few) % 2
        return cls(mean, weights.means[few], r[few], end[few], row, power)

    def logs(self, e: Array) -> Array:
        """log h at every row, (S, K)."""
        return _log_h(self.mean, self.m + e @ self.r.T, self.end)

    def at(self, e: Array) -> tuple[Array, Array]:
        """log b of every chain at its place, and the gradient."""
        value, gradient, own = np.zeros(len(e)), np.zeros_like(e), self.power > 0
        row, power = self.row[own] - 1, self.power[own]
        r, end = self.r[row], self.end[row]
        f = self.m[row] + np.einsum("ij,ij->i", e[own], r)
        down, here, up = (_log_h(self.mean, f + step, end) for step in (-AHEAD, 0.0, AHEAD))
        value[own], gradient[own] = power * here, (power * (up - down) / (2.0 * AHEAD))[:, None] * r
        return value, gradient


def _log_normal(e: Array, mean: Array, root: Array) -> Array:
    z = np.linalg.solve(root, (e - mean).T)
    return np.asarray(-0.5 * (z**2).sum(axis=0) - 0.5 * len(z) * np.log(2.0 * np.pi) - np.linalg.slogdet(root)[1])


def _chosen(log_weights: Array, rng: np.random.Generator) -> int:
    edges = np.cumsum(np.exp(log_weights - log_weights.max()))
    return int(np.searchsorted(edges, edges[-1] * rng.random()))


def _paths(weights: CollapsedWeights, tilted: _Tilted, e: Array, root: Array,
           rng: np.random.Generator) -> tuple[list[Array], float]:
    """The chains after each path that counts, and the share of these paths that were taken."""
    def at(e: Array) -> tuple[Array, Array]:
        (value, slope), (more, rise) = weights.log_density(e), tilted.at(e)
        return value + more, (slope + rise) @ root

    (value, slope), length, found, gone = at(e), PATH / KICKS, list[Array](), list[float]()
    with np.errstate(over="ignore", invalid="ignore"):
        for number in range(SETTLING + LENGTH):
            momentum = rng.standard_normal(e.shape)
            step = length * np.exp(0.15 * rng.standard_normal((len(e), 1)))
            there, moved = e, momentum + 0.5 * step * slope
            for kick in range(1, KICKS + 1):
                there = there + step * (moved @ root.T)
                other, rise = at(there)
                moved = moved + (step if kick < KICKS else 0.5 * step) * rise
            energy = other - value - 0.5 * (moved**2).sum(axis=1) + 0.5 * (momentum**2).sum(axis=1)
            taken = np.log(rng.random(len(e))) < energy
            e, slope = (np.where(taken[:, None], *pair) for pair in ((there, e), (rise, slope)))
            value = np.where(taken, other, value)
            if number < SETTLING:
                length *= float(np.exp(RATE * (taken.mean() - WANTED)))
            else:
                found.append(e)
                gone.append(float(taken.mean()))
    return found, float(np.mean(gone))


def _shares(tilted: _Tilted, e: Array, log_first: Array) -> Array:
    """Log weights of the draws of chains, whose mean is the evidence; those that they began at come last in ``e``.

    ``log_first`` are the logs of the Gaussian over p, p not normalised.
    """
    logs, n, K = tilted.logs(e), len(e) - POOL, len(tilted.m)
    log_first = np.minimum(log_first, log_first.min() + IMPOSSIBLE)
    logs = np.column_stack([np.zeros(len(e)), logs, 2.0 * logs, log_first])
    states = np.where(tilted.power > 0, tilted.row + (tilted.power - 1) * K, 0)
    counts = np.append(np.bincount(states, minlength=2 * K + 1) * LENGTH, POOL)
    top = logs.max(axis=0)
    b = np.exp(logs - top)  # each c_k is in the same units
    share = np.exp(log_first[n:].min() - log_first[n:])
    c = np.append(share @ b[n:, :-1], np.exp(log_first[n:].min() - top[-1]) * POOL) / share.sum()
    c = np.maximum(c, SMALLEST)
    times = np.arange(n).reshape(LENGTH, -1)[::THINNED].ravel()
    few = b[np.append(times, np.arange(n, len(e), THINNED))]
    for _ in range(SWEEPS):
        before, c = c, _means(few, counts / c)[1]
        if np.abs(np.log(c / before)).max() < SAME:
            break
    weight, c = _means(b, counts / c)
    return np.asarray(np.log(weight[:n] / weight[:n].mean()) - np.log(c[-1]) - top[-1])


def _means(b: Array, times: Array) -> tuple[Array, Array]:
    """The weight of each draw, and what is the mean of each b_k with them."""
    weight = 1.0 / (b @ times)
    return weight, np.asarray(weight @ b / weight.sum())
