"""Weighted draws of the exact posterior of few shared weights, as far out as chances near 0 and 1 rest on.

The sd of a chance h(f) near 0 rests where p h^2 has its mass, p being the posterior: often several sds of f from its
mean, with a thousandth of the mass of p and less. Where p is nearly Gaussian, draws come from Gaussians around such
places, those of rows of the data that lie apart, and around the places half way there.

Elsewhere Hamiltonian chains go at p, at p h(f_i) and at p h(f_i)^2, from draws of a Gaussian that are chosen by their
weights. Draws of all together count as those of a mixture. With n_k draws of the density p b_k / c_k, where c_k = E_p
b_k, the weight of a draw is 1 / sum_k n_k b_k / c_k, and c_k is the weighted mean of b_k: iterations solve that (Shirts
and Chodera, J. Chem. Phys. 129, 2008). The Gaussian is one of these densities, and its c_k gives the evidence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from klimb.latents.shocks import ShockMoments
from klimb.numerics.arrays import Array, Index
from klimb.numerics.lowdiscrepancy import normal_draws
from klimb.numerics.pareto import RELIABLE, SmoothedWeights, smooth_log_weights
from klimb.trust.collapsed import CollapsedDraws, CollapsedWeights

Mean: TypeAlias = Callable[[Array], Array]  # of y, by f
Found: TypeAlias = tuple[CollapsedDraws, SmoothedWeights]

AT_P = 0.35  # share of the draws of p itself, or of the Gaussian around its mean
MOST_PLACES, FEWEST_DRAWS, MOST_DRAWS = 48, 1024, 4096  # places with Gaussians, and draws of these
WIDER = 0.25  # scale of Gaussians: 1 + this / sqrt(dim)
MOST_CHAINS, FEW, FEW_CHAINS = (512, 320), 8, 96  # with few weights and with more; how many are few; too few chains
LENGTH, SETTLING = 16, 6  # draws of a chain that count, and those before them
KICKS, PATH = 4, 1.4  # steps of a path, and its length in sds
WANTED, RATE, LEAST = 0.8, 0.5, 0.5  # share of paths that are taken, how fast steps follow it, and what is too few
POOL, PER_WEIGHT = 1024, 10  # draws that chains begin at; so many effective ones for each weight tell their units
VALUES, MOST_VALUES = 4e6, 2e7  # of log p: for many chains, or more than the fewest draws; and at most
EVEN, NEARLY = 0.6, 0.25  # effective draws over draws of q from which Gaussians are better than chains, than few
APART, FARTHEST = 1.0, 6.0  # squared sds between two places that both count; sds to the farthest
SCORES = np.linspace(-7.0, 7.0, 57)  # of f
SMALLEST, AHEAD = 1e-300, 1e-4  # h, and a step in f for its slope
IMPOSSIBLE = 200.0  # nats
SWEEPS, SAME, THINNED = 100, 1e-3, 4  # for c_k: at most, the change of log c_k at the end, and one draw of so many


def reaches(m: Array, v: Array, mean: Mean) -> tuple[Array, Array]:
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


def tail_draws(weights: CollapsedWeights, found: ShockMoments, mean: Mean, seed: int,
               efficiency: float) -> Found | None:
    """Draws with log weights, or None; ``found``: moments of p as seen by draws of q of this ``efficiency``."""
    each = weights.work * KICKS * (SETTLING + LENGTH)
    values, vectors = np.linalg.eigh(found.spread)
    whole = _Gaussian(found.centre, np.linalg.cholesky((vectors * np.maximum(values, 0.25)) @ vectors.T))
    enough = EVEN if FEW_CHAINS * each <= VALUES else NEARLY
    if efficiency > enough and FEWEST_DRAWS * weights.work < MOST_VALUES:
        count = int(np.clip(VALUES / weights.work, FEWEST_DRAWS, MOST_DRAWS))
        draws = _drawn(weights, whole, _Places.of(weights, whole, mean, MOST_PLACES), count, seed)
        if draws[1].khat <= RELIABLE:  # else tails reach farther than Gaussians do
            return draws
    if FEW_CHAINS * each > MOST_VALUES:
        return None
    count = int(np.clip(VALUES / each, FEW_CHAINS, MOST_CHAINS[weights.shocks.dim > FEW]))
    places = _Places.of(weights, whole, mean, int((1.0 - AT_P) * count) // 2)
    return _chained(weights, whole, places, count, seed)


@dataclass(frozen=True, eq=False)
class _Gaussian:
    """As much of p as its mean and covariance say."""

    centre: Array
    root: Array

    def log_density(self, e: Array) -> Array:
        z = np.linalg.solve(self.root, (e - self.centre).T)
        return np.asarray(_log_standard(np.asarray(z.T)) - np.log(np.abs(np.diagonal(self.root))).sum())


def _log_standard(z: Array) -> Array:
    return np.asarray(-0.5 * (z**2).sum(axis=1) - 0.5 * z.shape[1] * np.log(2.0 * np.pi))


@dataclass(frozen=True, eq=False)
class _Places:
    """Where sds of h rest, in sds from the centre, and h there: rows of the data, with f = m + r'e."""

    at: Array  # (K, R)
    m: Array
    r: Array  # (K, R)
    end: Array
    mean: Mean

    @classmethod
    def of(cls, weights: CollapsedWeights, whole: _Gaussian, mean: Mean, most: int) -> _Places:
        """Those that lie apart, the farthest first."""
        r = np.asarray(weights.shocks.shared_rows)
        along = r @ whole.root
        size = np.linalg.norm(along, axis=1)
        far, end = reaches(weights.means + r @ whole.centre, size**2, mean)
        at = along * (far / np.maximum(size, SMALLEST))[:, None]
        few, left = list[int](), np.where(np.abs(far) < FARTHEST, far**2, 0.0)
        while len(few) < most and left.max() > APART:
            few.append(int(np.argmax(left)))
            left = np.minimum(left, ((at - at[few[-1]]) ** 2).sum(axis=1))
        return cls(at[few], weights.means[few], r[few], end[few], mean)

    def logs(self, e: Array) -> Array:
        """log h of every row, (S, K)."""
        return _log_h(self.mean, self.m + e @ self.r.T, self.end)

    def slopes(self, e: Array, row: Index) -> tuple[Array, Array]:
        """log h of one row for each draw, and its gradient."""
        r, end = self.r[row], self.end[row]
        f = self.m[row] + np.einsum("ij,ij->i", e, r)
        down, here, up = (_log_h(self.mean, f + step, end) for step in (-AHEAD, 0.0, AHEAD))
        return here, ((up - down) / (2.0 * AHEAD))[:, None] * r


def _drawn(weights: CollapsedWeights, whole: _Gaussian, places: _Places, count: int, seed: int) -> Found:
    """Draws of Gaussians around p and all places, with their importance weights."""
    dim, rng = len(whole.centre), np.random.default_rng(seed)
    centres = np.vstack([np.zeros((1, dim)), 0.5 * places.at, places.at])
    shares = np.append(1.0, np.full(len(centres) - 1, (1.0 / AT_P - 1.0) / max(len(centres) - 1, 1)))
    edges = np.cumsum(shares / shares.sum())
    owner = rng.permutation(np.minimum(np.searchsorted(edges, (np.arange(count) + 0.5) / count), len(edges) - 1))
    scale = 1.0 + WIDER / np.sqrt(dim)
    z = centres[owner] / scale + normal_draws(count, dim, seed=seed)
    log_own = np.log(shares / shares.sum()) + z @ centres.T / scale - 0.5 * (centres**2).sum(axis=1) / scale**2
    log_proposal = np.logaddexp.reduce(log_own, axis=1) + _log_standard(z)
    log_proposal -= np.log(scale * np.diagonal(whole.root)).sum()
    draws = weights(whole.centre + scale * z @ whole.root.T)
    draws = replace(draws, log_weights=draws.log_weights + _log_standard(draws.e) - log_proposal)
    return draws, smooth_log_weights(draws.log_weights)


def _chained(weights: CollapsedWeights, whole: _Gaussian, places: _Places, count: int, seed: int) -> Found | None:
    """Draws of chains at p and at powers 1 and 2 of h of all places."""
    dim, rng = len(whole.centre), np.random.default_rng(seed)
    wide = replace(whole, root=(1.0 + WIDER / np.sqrt(dim)) * whole.root)
    pool = wide.centre + normal_draws(POOL, dim, seed=seed) @ wide.root.T
    log_ratio = weights.log_density(pool)[0] - wide.log_density(pool)
    if not np.isfinite(log_ratio).any():
        return None
    K, own = len(places.m), np.arange(count - int(AT_P * count))
    row, power = np.zeros((2, count), dtype=np.intp)
    if K:
        row[own], power[own] = own % K, 2 - own // K % 2
    logs = places.logs(pool) if K else np.zeros((POOL, 1))
    chances = np.exp(log_ratio[:, None] - log_ratio.max() + power * (logs[:, row] - logs[:, row].max(axis=0)))
    edges = np.cumsum(chances, axis=0)
    first = [np.searchsorted(edge, edge[-1] * rng.random()) for edge in edges.T]
    seen, own_units = smooth_log_weights(log_ratio), whole
    if seen.effective > PER_WEIGHT * dim:
        away = pool - (share := seen.normalised) @ pool
        own_units = replace(whole, root=np.asarray(np.linalg.cholesky(away.T @ (share[:, None] * away))))
    chains, gone = _paths(weights, places, row, power, pool[first], own_units.root, rng)
    if gone < LEAST:
        return None
    draws = weights(np.concatenate(chains))
    log_p = draws.log_weights + _log_standard(draws.e)
    counts = np.bincount(np.where(power > 0, 1 + row + (power - 1) * K, 0), minlength=2 * K + 1) * LENGTH
    log_share = _shares(places, np.vstack([draws.e, pool]), np.append(counts, POOL),
                        np.append(wide.log_density(draws.e) - log_p, -log_ratio))
    return replace(draws, log_weights=log_share), SmoothedWeights(log_share, -np.inf, 0)


def _paths(weights: CollapsedWeights, places: _Places, row: Index, power: Index, e: Array, root: Array,
           rng: np.random.Generator) -> tuple[list[Array], float]:
    """The chains after each path that counts, and the share of these paths that were taken."""
    tilted = np.flatnonzero(power)

    def at(e: Array) -> tuple[Array, Array]:
        value, gradient = weights.log_density(e)
        if tilted.size:
            more, rise = places.slopes(e[tilted], row[tilted])
            value[tilted] += power[tilted] * more
            gradient[tilted] += power[tilted, None] * rise
        return value, gradient @ root

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


def _shares(places: _Places, e: Array, counts: Array, log_first: Array) -> Array:
    """Log weights of the draws of chains, whose mean is the evidence; those that they began at come last in ``e``.

    ``counts`` are those of draws at p, at h and h^2 of each place, and of the Gaussian, whose logs over p, which is not
    normalised, are ``log_first``.
    """
    logs, n, log_first = places.logs(e), len(e) - POOL, np.minimum(log_first, log_first.min() + IMPOSSIBLE)
    logs = np.column_stack([np.zeros(len(e)), logs, 2.0 * logs, log_first])
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
    _, c = _means(b, counts / c)
    weight, _ = _means(b[:n, :-1], counts[:-1] / c[:-1])  # of the mixture without the Gaussian
    return np.asarray(np.log(weight / weight.mean()) - np.log(c[-1]) - top[-1])


def _means(b: Array, times: Array) -> tuple[Array, Array]:
    """The weight of each draw, and what is the mean of each b_k with them."""
    weight = 1.0 / (b @ times)
    return weight, np.asarray(weight @ b / weight.sum())
