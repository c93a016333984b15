"""log evidence - bound by chains between q and the exact posterior, where leading order does not tell it.

With pi_b proportional to q w^b, where w = p(y, f) / q(f), b goes from 0, where pi_b is q, to 1, the exact posterior:

    log evidence - bound = int_0^1 E_b g db,    g = log w - bound,

which is 0 at b = 0; Simpson's rule takes b = 1/2 and 1. Hamiltonian paths draw from both: in standard coordinates of
q its own part of the motion is a rotation, which is exact, and b grad g kicks a path between rotations (Shahbaba et al.
2014). A quarter turn makes a draw that hardly knows the one before. With d = Z z all is done at the sites: a kick is V
times the slopes s of log w in d, and energies change by products of these.

A Hermite polynomial phi of order k has E_b [b grad g . grad phi - k phi] = 0 (Stein). Those of third and fourth order
in g = g_3 + g_4 + ..., as q leaves it, explain most of what g varies by from draw to draw: with them 150 draws tell a
gap of two nats to some 1.5%, where g alone would take ten times as many.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from klimb.numerics.arrays import Array, Index
from klimb.trust.weights import LogWeights

if TYPE_CHECKING:
    from klimb.latents.coordinates import Coordinates

NODES, SHARES = np.array([0.5, 1.0]), np.array([4.0, 1.0]) / 6.0  # Simpson's rule
MOST, FEWEST, VALUES = 32, 12, 5000  # chains at each node, and chains times sites
STEPS, SETTLING = 12, 4  # draws of a chain that count, and those before them
KICKS, MOST_KICKS = 3, 12  # in a quarter turn
ACCEPTED = 0.6  # share of proposals at a node below which a quarter turn takes more kicks
FIRST = 4  # draws of q for each chain, of which they start at the likely ones
DENSE = 1500  # sites up to which V is formed


class _Field:
    """Draws of f - m under q, and V times slopes at the sites."""

    def __init__(self, coordinates: Coordinates) -> None:
        n = coordinates.n_sites
        self._coordinates, self._root = coordinates, coordinates.pull(np.eye(n)) if n <= DENSE else None
        self._V = None if self._root is None else self._root @ self._root.T

    def draws(self, n: int, rng: np.random.Generator) -> Array:
        z = rng.standard_normal((n, self._coordinates.dim))
        return self._coordinates.deviations(z) if self._root is None else np.asarray(z @ self._root.T)

    def times(self, slopes: Array) -> Array:
        if self._V is None:
            return self._coordinates.deviations(self._coordinates.pull(slopes))
        return np.asarray(slopes @ self._V)


def bridged_gap(log_weights: LogWeights, seed: int = 0) -> float:
    """log evidence - bound of q, to some 2% of it, 5% where that is many nats."""
    rng, q, field = np.random.default_rng(seed), log_weights.posterior, _Field(log_weights.coordinates)
    chains = int(np.clip(VALUES // len(q.m), FEWEST, MOST))
    power = np.repeat(NODES, chains)
    first = field.draws(FIRST * len(power), rng)
    value, _ = log_weights.at(first)
    paths = _Paths(log_weights, field, power, first[np.concatenate([_chosen(b * value, chains, rng) for b in NODES])])
    while True:
        taken = np.mean([paths.moved(rng) for _ in range(SETTLING)], axis=0).reshape(len(NODES), chains)
        if taken.mean(axis=1).min() > ACCEPTED or paths.kicks >= MOST_KICKS:
            break
        paths.kicks *= 2
    third, fourth = log_weights.bends
    v, told = np.maximum(q.v - q.latent.slack, 0.0), list[Array]()
    for _ in range(STEPS):
        paths.moved(rng)
        d, pull = paths.d, power[:, None] * paths.pull
        square = d**2
        told.append(np.array([paths.value - log_weights.mean, np.ones(len(d)),
                              (0.5 * (square - v) * pull - 0.5 * d * (square - 3.0 * v)) @ third,
                              ((square - 3.0 * v) * d * pull / 6.0 - (square * (square - 6.0 * v) / 6.0
                                                                      + 0.5 * v**2)) @ fourth]))
    each = np.array(told).reshape(STEPS, 4, len(NODES), chains).transpose(2, 1, 0, 3).reshape(len(NODES), 4, -1)
    away = [np.linalg.lstsq(own[1:].T, own[0], rcond=None)[0][0] for own in each]
    return float(SHARES @ away)


class _Paths:
    """Places of chains at powers b, as deviations ``d`` of f, with log w, its slopes there, and V times these."""

    def __init__(self, log_weights: LogWeights, field: _Field, power: Array, d: Array) -> None:
        self._log_weights, self._field, self._power = log_weights, field, power
        self.d, self.kicks = d, KICKS
        self.value, self.slopes, self.pull = self._at(d)

    def _at(self, d: Array) -> tuple[Array, Array, Array]:
        value, slopes = self._log_weights.at(d)
        return value, slopes, self._field.times(slopes)

    def moved(self, rng: np.random.Generator) -> Any:
        """Take every chain along a path: a quarter turn, with as many kicks; which of them went."""
        b, step, last = self._power, 0.5 * np.pi / self.kicks, self.kicks
        cos, sin, d, here = np.cos(step), np.sin(step), self.d, (self.value, self.slopes, self.pull)
        p, energy = self._field.draws(len(b), rng), b * self.value
        with np.errstate(over="ignore", invalid="ignore"):
            for kick in range(last + 1):
                size = (b * step * (0.5 if kick in (0, last) else 1.0))[:, None]
                energy = energy + np.einsum("ij,ij->i", size * p + 0.5 * size**2 * here[2], here[1])
                if kick < last:
                    p = p + size * here[2]
                    d, p = cos * d + sin * p, cos * p - sin * d
                    here = self._at(d)
            gone = np.asarray(np.log(rng.random(len(b))) < b * here[0] - energy)
        self.d, self.slopes, self.pull = (np.where(gone[:, None], *pair) for pair in (
            (d, self.d), (here[1], self.slopes), (here[2], self.pull)))
        self.value = np.where(gone, here[0], self.value)
        return gone


def _chosen(log_weights: Array, chains: int, rng: np.random.Generator) -> Index:
    """Draws by their weights: chains from there need few steps to forget that they come from q."""
    edges = np.cumsum(np.exp(log_weights - log_weights.max()))
    return np.asarray(np.searchsorted(edges, edges[-1] * (np.arange(chains) + rng.random()) / chains))
