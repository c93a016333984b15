"""Draws of the exact posterior where importance weights of q are of no use: particles that go from q to it in steps.

    p_b(z) = r(z)^(1 - b) p(z)^b,    b from 0 to 1

leads from a mixture r of few Gaussians (q, and other modes where they are known) to the posterior p. Each b is as far
from the last one as the weights of the particles allow; there the particles are drawn anew by these weights and run
Hamiltonian chains, all states of which are the next particles (Dau and Chopin, JRSS B 84, 2022). Islands of particles
know nothing of each other, so that their spread is the error of what they say together, and their mean weights on the
way multiply to the evidence (Del Moral, Doucet and Jasra, JRSS B 68, 2006). No dimension is too high for that as long
as chains mix, which weights in one step would need a number of draws for that grows exponentially with the dimension.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from klimb.boosting.gaussians import Gaussians
from klimb.latents.base import Posterior
from klimb.latents.coordinates import coordinates_of
from klimb.numerics.arrays import Array
from klimb.trust.weights import LogWeights

LogDensity: TypeAlias = Callable[[Array], tuple[Array, Array]]  # log p and its gradient at the rows of z

ISLANDS, CHAINS = 8, 16  # sets of particles, and chains of each
LAST = 3  # times as many states of a chain at p itself, the first third left out
EFFECTIVE = 0.5  # share of the particles that is effective after a step in b
ACCEPTED, RATE = 0.8, 0.5  # share of proposals that step sizes aim at, and how fast they do
MOST_STEPS = 12  # along one path
WIDER = 1.2  # width of the Gaussians that particles start from over that of q and of other modes


@dataclass(frozen=True, eq=False)
class Particles:
    """Weighted draws of p, the Gaussian of the start nearest to each, the largest relative error of a mean or sd."""

    z: Array  # (S, D)
    weights: Array  # (S,), summing to one
    owner: Any  # (S,)
    log_evidence: float
    error: float
    efficiency: float


def tempered(log_density: LogDensity, start: Gaussians, length: int, seed: int = 0) -> Particles:
    """Particles of the density from those of a mixture; ``length`` is the number of states of a chain at each b."""
    rng, dim = np.random.default_rng(seed), start.dim
    z = rng.permutation(start.draws(ISLANDS * CHAINS * length, seed)).reshape(ISLANDS, -1, dim)
    rise = log_density(z.reshape(-1, dim))[0] - start.with_slopes(z.reshape(-1, dim))[0]
    rise, b, evidence = _floored(rise).reshape(ISLANDS, -1), 0.0, np.zeros(ISLANDS)
    logs = np.full(rise.shape, -np.log(rise.shape[1]))  # weights of the particles of each island, summing to one
    step = 0.6 / dim**0.25
    while b < 1.0:
        before, b = b, _next(b, logs, rise)
        logs = logs + (b - before) * rise
        total = np.logaddexp.reduce(logs, axis=1)
        share, evidence = np.exp(logs - total[:, None]), evidence + total
        flat, owner = z.reshape(-1, dim), _owner(start, z)
        away = flat - start.means[owner.ravel()]  # within modes, where they are several
        spread = away.T @ (share.reshape(-1, 1) / ISLANDS * away)
        noise = dim / (dim + share.size)  # what so many directions are known by so few particles
        spread = (1.0 - noise) * spread + noise * np.trace(spread) / dim * np.eye(dim)
        root = np.linalg.cholesky(spread + 1e-9 * np.trace(spread) * np.eye(dim))
        picks, held = (np.array(each) for each in zip(*(_picked(*one, rng) for one in zip(share, owner, strict=True)),
                                                      strict=True))
        bridge = _Bridge(log_density, start, b)
        begin = np.take_along_axis(z, picks[:, :, None], axis=1).reshape(-1, dim)
        states, rises, step = _run(bridge, begin, root, step, LAST * length if b == 1.0 else length, rng)
        kept = slice(length, None) if b == 1.0 else slice(None)
        z, rise = (np.moveaxis(values[kept].reshape(-1, ISLANDS, CHAINS, *values.shape[2:]), 0, 2)
                   for values in (states, rises))
        logs = np.repeat(np.log(held) - np.log(z.shape[2]), z.shape[2], axis=1)
        z, rise = z.reshape(ISLANDS, -1, dim), rise.reshape(ISLANDS, -1)
    return _judged(z, np.exp(logs), evidence, start)


def posterior_particles(log_weights: LogWeights, others: Sequence[Posterior], length: int, seed: int = 0) -> Particles:
    """Particles in the standard coordinates of q, from q and from ``others``, posteriors at other modes."""
    coordinates, q = log_weights.coordinates, log_weights.posterior
    dim = coordinates.dim

    def log_density(z: Array) -> tuple[Array, Array]:
        value, slope = log_weights(z)
        return value - 0.5 * (z**2).sum(axis=1) - 0.5 * dim * np.log(2.0 * np.pi), slope - z

    means, roots = list[Array]([np.zeros(dim)]), list[Array]([np.eye(dim)])
    back = np.linalg.pinv(coordinates.deviations(np.eye(dim)).T) if others else np.zeros((dim, 0))
    for other in others:
        own = coordinates_of(other)
        root = back @ own.deviations(np.eye(own.dim)).T
        means.append(back @ (other.m - q.m))
        roots.append(np.asarray(np.linalg.cholesky(root @ root.T + 1e-6 * np.eye(dim)), dtype=np.float64))
    start = Gaussians(np.array(means), WIDER * np.array(roots))
    return tempered(log_density, start, length, seed)


def _owner(start: Gaussians, z: Array) -> Any:
    """Which Gaussian of the start each particle is nearest to."""
    return np.argmax(start.log_densities(z.reshape(-1, start.dim)), axis=0).reshape(z.shape[:-1])


def _picked(share: Array, owner: Any, rng: np.random.Generator) -> tuple[Array, Array]:
    """Where the chains of an island begin and what each stands for: modes get as many, however little they weigh."""
    modes = np.unique(owner[share > 0.0])
    picks, held = [], []
    for k, count in zip(modes, np.diff(np.linspace(0, CHAINS, len(modes) + 1).round().astype(int)), strict=True):
        own = np.where(owner == k, share, 0.0)
        places = (rng.random() + np.arange(count)) / count * own.sum()
        picks.append(np.minimum(np.searchsorted(np.cumsum(own), places), len(own) - 1))
        held.append(np.full(count, own.sum() / count))
    return np.concatenate(picks), np.concatenate(held)


@dataclass(frozen=True, eq=False)
class _Bridge:
    """p_b."""

    log_density: LogDensity
    start: Gaussians
    b: float

    def __call__(self, z: Array) -> tuple[Array, Array, Array]:
        """log p_b, its gradient, and log p - log r."""
        (value, slope), (before, slope_before) = self.log_density(z), self.start.with_slopes(z)
        value = _floored(value)
        return (self.b * value + (1.0 - self.b) * before,
                np.nan_to_num(self.b * slope + (1.0 - self.b) * slope_before), value - before)


def _floored(values: Array) -> Array:
    """What is impossible is so unlikely that it never comes up, but a number."""
    return np.where(np.isfinite(values), np.maximum(values, -1e8), -1e8)


def _next(b: float, logs: Array, rise: Array) -> float:
    """The next b: bisection for the step that leaves `EFFECTIVE` of the particles that are effective now."""

    def effective(other: float) -> float:
        own = logs + (other - b) * rise
        w = np.exp(own - own.max())
        return float(w.sum() ** 2 / (w**2).sum())

    low, high, wanted = b, 1.0, EFFECTIVE * effective(b)
    if effective(high) >= wanted:
        return high
    for _ in range(40):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if effective(middle) < wanted else (middle, high)
    return high


def _run(bridge: _Bridge, z: Array, root: Array, step: float, length: int,
         rng: np.random.Generator) -> tuple[Array, Array, float]:
    """States of Hamiltonian chains from the rows of ``z``, (length, n, D), log p - log r there, and the step size."""
    value, slope, rise = bridge(z)
    states, rises = [], []
    for t in range(length):
        size = step * float(np.exp(0.2 * rng.standard_normal()))
        momentum = rng.standard_normal(z.shape)
        other, other_slope = z, slope
        moved = momentum + 0.5 * size * slope @ root
        steps = int(rng.integers(1, min(2 + int(1.5 / size), MOST_STEPS) + 1))
        for k in range(steps):
            other = other + size * moved @ root.T
            other_value, other_slope, other_rise = bridge(other)
            moved = moved + (size if k < steps - 1 else 0.5 * size) * other_slope @ root
        change = other_value - value - 0.5 * (moved**2).sum(axis=1) + 0.5 * (momentum**2).sum(axis=1)
        chance = np.exp(np.minimum(np.nan_to_num(change, nan=-np.inf), 0.0))
        taken = rng.random(len(z)) < chance
        z, slope = (np.where(taken[:, None], *pair) for pair in ((other, z), (other_slope, slope)))
        value, rise = np.where(taken, other_value, value), np.where(taken, other_rise, rise)
        step *= float(np.exp(RATE * (chance.mean() - ACCEPTED) / np.sqrt(1.0 + t)))
        states.append(z)
        rises.append(rise)
    return np.array(states), np.array(rises), step


def _judged(z: Array, share: Array, evidence: Array, start: Gaussians) -> Particles:
    """Islands count by what each says of the evidence; their spread is the error of what they say together."""
    own = np.exp(evidence - np.logaddexp.reduce(evidence))
    means = np.einsum("is,isd->id", share, z)
    mean = own @ means
    squares = np.einsum("is,isd->id", share, (z - mean) ** 2)
    variance = own @ squares
    off = np.sqrt((own[:, None] ** 2 * (means - mean) ** 2).sum(axis=0) / variance)
    off_sd = np.sqrt((own[:, None] ** 2 * (squares - variance) ** 2).sum(axis=0)) / (2.0 * variance)
    return Particles(z.reshape(-1, z.shape[2]), (own[:, None] * share).ravel(), _owner(start, z).ravel(),
                     float(np.logaddexp.reduce(evidence) - np.log(ISLANDS)), float(max(off.max(), off_sd.max())),
                     float(1.0 / (own**2).sum() / ISLANDS))
