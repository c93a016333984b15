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

from typing import Any

import numpy as np

from klimb.latents.base import Posterior
from klimb.numerics.arrays import Array, Index
from klimb.numerics.dense import symmetric_from_lower
from klimb.trust.weights import LogWeights, bends

NODES, SHARES = np.array([0.5, 1.0]), np.array([4.0, 1.0]) / 6.0  # Simpson's rule
MOST, FEWEST, VALUES = 128, 12, 2e6  # chains at each node, and chains times squared sites
STEPS, SETTLING, LONG = 12, 4, 4  # draws of a chain that count, those before them, and how many more for variances
KICKS, MOST_KICKS = 3, 12  # in a quarter turn
GONE = 0.6  # share of proposals at a node below which a quarter turn takes more kicks
FIRST = 4  # draws of q for each chain, of which they start at the likely ones
DENSE = 1500  # sites up to which V is formed


def bridged_gap(log_weights: LogWeights, seed: int = 0) -> float:
    """log evidence - bound of q, to some 2% of it, 5% where that is many nats."""
    rng, q, paths = np.random.default_rng(seed), log_weights.posterior, _Paths(log_weights)
    chains = int(np.clip(VALUES // len(q.m) ** 2, FEWEST, MOST))
    power = paths.settled(NODES, chains, rng)
    (third, fourth), v = bends(log_weights.site, log_weights.y, q), np.maximum(q.v - q.latent.slack, 0.0)
    told = list[Array]()
    for _ in range(STEPS):
        paths.moved(rng)
        d, square, pull = paths.d, paths.d**2, power[:, None] * paths.pull
        of_third = (square - v) * pull - d * (square - 3.0 * v)
        of_fourth = (square - 3.0 * v) * d * pull - square * (square - 6.0 * v) - 3.0 * v**2
        told.append(np.array([paths.value - log_weights.mean, np.ones(len(d)), of_third @ third, of_fourth @ fourth]))
    each = np.array(told).reshape(STEPS, 4, len(NODES), chains).transpose(2, 1, 0, 3).reshape(len(NODES), 4, -1)
    return float(SHARES @ [np.linalg.lstsq(own[1:].T, own[0], rcond=None)[0][0] for own in each])


def exact_variances(log_weights: LogWeights, seed: int = 0) -> tuple[Array, Array]:
    """Variances of f at the sites under the exact posterior, and their standard errors: V + E[d pull'] (Stein)."""
    rng, v, paths = np.random.default_rng(seed), log_weights.posterior.v, _Paths(log_weights)
    chains = int(np.clip(VALUES // len(v) ** 2, FEWEST, MOST))
    paths.settled(NODES[-1:], chains, rng)
    told = np.zeros((2, chains, len(v)))
    for _ in range(LONG * STEPS):
        paths.moved(rng)
        told += np.array([paths.pull, paths.d * paths.pull]) / (LONG * STEPS)
    shift = told[0].mean(axis=0)
    each = told[1] - 2.0 * shift * told[0]
    error = np.sqrt(each.var(axis=0, ddof=1) / chains)
    return np.asarray(v + each.mean(axis=0) + shift**2), np.asarray(error)


class _Paths:
    """Chains at powers ``b``: deviations ``d`` of f, log w there, its slopes, and V times these."""

    def __init__(self, log_weights: LogWeights) -> None:
        self._log_weights, self._coordinates, self.kicks = log_weights, log_weights.coordinates, KICKS
        n = self._coordinates.n_sites
        self._root = self._coordinates.pull(np.eye(n)) if n <= DENSE else None
        self._V = None if self._root is None else covariance_of_sites(log_weights.posterior, self._root)

    def draws(self, n: int, rng: np.random.Generator) -> Array:
        """Deviations of f under q."""
        z = rng.standard_normal((n, self._coordinates.dim))
        return self._coordinates.deviations(z) if self._root is None else np.asarray(z @ self._root.T)

    def start(self, b: Array, d: Array) -> None:
        self._b, self.d = b, d
        self.value, self.slopes, self.pull = self._at(d)

    def settled(self, nodes: Array, chains: int, rng: np.random.Generator) -> Array:
        """So many chains at each of the powers, one node after the other, which have forgotten their start."""
        power = np.repeat(nodes, chains)
        first = self.draws(FIRST * len(power), rng)
        value, _ = self._log_weights.at(first)
        self.start(power, first[np.concatenate([_chosen(b * value, chains, rng) for b in nodes])])
        while self.kicks < MOST_KICKS:
            gone = np.array([self.moved(rng) for _ in range(SETTLING)]).reshape(SETTLING, len(nodes), chains)
            if gone.mean(axis=(0, 2)).min() > GONE:
                break
            self.kicks *= 2
        return power

    def _at(self, d: Array) -> tuple[Array, Array, Array]:
        value, slopes = self._log_weights.at(d)
        if self._V is None:
            return value, slopes, self._coordinates.deviations(self._coordinates.pull(slopes))
        return value, slopes, np.asarray(slopes @ self._V)

    def moved(self, rng: np.random.Generator) -> Any:
        """Take every chain along a path: a quarter turn, with as many kicks; which of them went."""
        b, step, last = self._b, 0.5 * np.pi / self.kicks, self.kicks
        cos, sin, d, here = np.cos(step), np.sin(step), self.d, (self.value, self.slopes, self.pull)
        p, energy = self.draws(len(b), rng), b * self.value
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


def covariance_of_sites(posterior: Posterior, root: Array) -> Array:
    """V: by the factor where that has it, which may know more than this ``root`` of it."""
    V = posterior.factorised().covariance()
    return np.asarray(root @ root.T if V is None else symmetric_from_lower(V))


def _chosen(log_weights: Array, chains: int, rng: np.random.Generator) -> Index:
    """Draws by their weights: chains from there need few steps to forget that they come from q."""
    edges = np.cumsum(np.exp(log_weights - log_weights.max()))
    return np.asarray(np.searchsorted(edges, edges[-1] * (np.arange(chains) + rng.random()) / chains))
