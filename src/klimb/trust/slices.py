"""log evidence - bound by chains between q and the exact posterior, where leading order does not tell it.

With pi_b proportional to q w^b, where w = p(y, f) / q(f), b goes from 0, where pi_b is q, to 1, the exact posterior:

    log evidence - bound = int_0^1 (E_b log w - bound) db.

Elliptical slices (Murray, Adams and MacKay 2010) around q draw from every pi_b: a chain moves to z cos(t) + e sin(t), e
another draw of q, with t from a bracket that shrinks until the new place lies in the slice. They need no tuning, and as
q is close to pi_b the first t is mostly taken, which makes a draw that hardly knows the one before. The particles of
`klimb.trust.tempered` are as good and as quick up to some 60 directions; with 150 of a field they say 4.4 to 5.4 nats
where chains say 2.3 to 2.4 and take twice as long, with 400 fifteen times.
"""

from collections.abc import Iterator

import numpy as np

from klimb.numerics.arrays import Array, Index
from klimb.trust.weights import LogWeights

NODES, SHARES = (np.array([-1.0, 0.0, 1.0]) * np.sqrt(0.15) + 0.5, np.array([5.0, 8.0, 5.0]) / 18.0)  # Gauss, Legendre
MOST, FEWEST, VALUES = 32, 12, 6500  # chains at each node, and chains times sites
STEPS, SETTLING = 72, 28  # the first are left out
AT_ONCE = 100_000  # numbers of draws of q that are made together
FIRST = 4  # draws of q for each chain, of which they start at the likely ones
SMALLEST = 1e-9  # bracket at which a chain stays where it is: rounding alone can bring one there


def bridged_gap(log_weights: LogWeights, seed: int = 0) -> float:
    """log evidence - bound of q, to about 5% of it, 10% where that is many nats."""
    rng, coordinates = np.random.default_rng(seed), log_weights.coordinates
    chains = int(np.clip(VALUES // coordinates.n_sites, FEWEST, MOST))
    power = np.repeat(NODES, chains)
    at_once = max(AT_ONCE // (len(power) * coordinates.n_sites), 1)

    def draws() -> Iterator[Array]:
        """Deviations of f under q, for all chains."""
        while True:
            yield from np.split(coordinates.deviations(rng.standard_normal((at_once * len(power), coordinates.dim))),
                                at_once)

    others = draws()
    first = np.concatenate([next(others) for _ in range(FIRST)])
    value = log_weights.at(first)
    start = np.concatenate([_chosen(node * value, chains, rng) for node in NODES])
    place, value, total = first[start], value[start], np.zeros(len(power))
    for step in range(STEPS):
        place, value = _moved(log_weights, power, place, value, next(others), rng)
        if step >= SETTLING:
            total += value
    away = total.reshape(len(NODES), chains).mean(axis=1) / (STEPS - SETTLING) - log_weights.mean
    return float(SHARES @ away)


def _chosen(log_weights: Array, chains: int, rng: np.random.Generator) -> Index:
    """Draws by their weights: chains from there need few steps to forget that they come from q."""
    edges = np.cumsum(np.exp(log_weights - log_weights.max()))
    return np.asarray(np.searchsorted(edges, edges[-1] * (np.arange(chains) + rng.random()) / chains))


def _moved(log_weights: LogWeights, power: Array, place: Array, value: Array, other: Array,
           rng: np.random.Generator) -> tuple[Array, Array]:
    """One step of every chain, from deviations ``place`` of f with log weights ``value``."""
    level = power * value + np.log(rng.random(len(power)))
    angle = 2.0 * np.pi * rng.random(len(power))
    low, high, left = angle - 2.0 * np.pi, angle.copy(), np.arange(len(power))
    moved, found = place.copy(), value.copy()
    while left.size:
        trial = place[left] * np.cos(angle[left])[:, None] + other[left] * np.sin(angle[left])[:, None]
        here = log_weights.at(trial)
        inside = power[left] * here >= level[left]
        moved[left[inside]], found[left[inside]] = trial[inside], here[inside]
        left = left[~inside & (high[left] - low[left] > SMALLEST)]
        below = angle[left] < 0.0
        low[left], high[left] = np.where(below, angle[left], low[left]), np.where(below, high[left], angle[left])
        angle[left] = low[left] + (high[left] - low[left]) * rng.random(len(left))
    return moved, found
