"""Gauss-Markov chains x_k = A_k x_{k-1} + e_k: conditioning on sites, smoothing, sampling, inserting states.

The posterior of a chain is a chain. With B_k all that the sites k, k+1, ... say of x_k,

    A_k <- (I + C_k B_k)^-1 A_k        C_k <- (C_k^-1 + B_k)^-1        log det(I + K G) = sum_k log det(I + C_k B_k),

and its covariance is V = D^-1 C D^-T with D the block bidiagonal matrix (I, -A). The first state has A = 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np

from klimb.linalg.batches import congruence, congruence_t, product, semidefinite_root
from klimb.linalg.scans import absorb, information, marginal_covariances, seen_through
from klimb.numerics.arrays import Array


@final
class Bidiagonal:
    """D, unit diagonal with -A_k below it, for transitions (s, s, n): solves are recursions along the chain."""

    def __init__(self, transition: Array) -> None:
        s, _, n = transition.shape
        band = np.zeros((n, s, 2 * s))
        for i in range(s):
            for j in range(s):
                band[:-1, j, s + i - j] = -transition[i, j, 1:]
        self._band = band.reshape(n * s, 2 * s).T  # LAPACK's lower band: row (i - j) of column j

    def solve(self, rhs: Array, *, transpose: bool = False) -> Array:
        """D^-1 or D^-T times ``rhs`` of shape (n, s) or (n, s, columns)."""
        from scipy.linalg.lapack import dtbtrs

        flat = rhs.reshape(rhs.shape[0] * rhs.shape[1], -1)
        x, _ = dtbtrs(self._band, flat, uplo="L", trans="T" if transpose else "N", diag="U")
        return np.asarray(x).reshape(rhs.shape)


@final
@dataclass(frozen=True, eq=False)
class Chain:
    """Transitions, noise (both (s, s, n)) and a root of the noise: root root' = noise."""

    transition: Array
    noise: Array
    root: Array

    @classmethod
    def of(cls, transition: Array, noise: Array) -> Chain:
        return cls(transition, noise, semidefinite_root(noise))

    @cached_property
    def _recursion(self) -> Bidiagonal:
        return Bidiagonal(self.transition)

    def costates(self, pull: Array) -> Array:
        """r_k = pull_k + A_{k+1}' r_{k+1} for pulls of shape (n, s) or (n, s, columns): what all later ones say."""
        return self._recursion.solve(pull, transpose=True)

    def run(self, push: Array) -> Array:
        """x_k = A_k x_{k-1} + push_k for pushes of shape (n, s) or (n, s, columns)."""
        return self._recursion.solve(push)

    def driven(self, costates: Array) -> Array:
        """The means x = D^-1 C r that belong to costates r."""
        return self.run(np.einsum("ijn,nj...->ni...", self.noise, costates))

    @cached_property
    def covariances(self) -> Array:
        """The marginal covariance of every state."""
        return marginal_covariances(self.transition, self.noise)


@final
class SquaredCovariance:
    """Products with V o V, V the covariance of f: it belongs to a chain as well, that of the products of two states.

    With p_k = Cov(x_k, f_k), Cov(f_i, f_k) = (A_i ... A_{k+1} p_k)_0 for i >= k, whose square is the first entry of
    A_i ... A_{k+1} p_k p_k' A_{k+1}' ... A_i': a recursion for the s (s + 1) / 2 entries of a symmetric matrix.
    """

    def __init__(self, chain: Chain) -> None:
        rows, columns = np.triu_indices(chain.transition.shape[0])
        A, i, j = chain.transition, rows[:, None], columns[:, None]
        lifted = A[i, rows] * A[j, columns]
        lifted += np.where(rows == columns, 0.0, 1.0)[None, :, None] * A[i, columns] * A[j, rows]
        self._recursion = Bidiagonal(lifted)
        p = chain.covariances[0]
        self._lifted = (p[rows] * p[columns]).T

    def times(self, b: Array) -> Array:
        """(V o V) b, in the order of time."""
        later = np.zeros_like(self._lifted)
        later[:, 0] = b
        ahead = self._recursion.solve(later, transpose=True) - later  # sites after this one
        behind = self._recursion.solve(self._lifted * b[:, None])[:, 0]  # this one and those before it
        return np.asarray(behind + np.einsum("ni,ni->n", self._lifted, ahead))


@final
@dataclass(frozen=True, eq=False)
class Conditioned:
    """A chain given its sites: ``after``, the information B that made it so, and the log determinant."""

    before: Chain
    after: Chain
    B: Array
    logdet: float

    @cached_property
    def through(self) -> Array:
        """N_k = (B_k^-1 + C_k)^-1 with C of the chain before, so that its transitions change by -C N A."""
        return seen_through(self.B, self.after.noise)


def condition(chain: Chain, gamma: Array) -> Conditioned:
    """The chain given sites exp(-gamma_k f_k^2 / 2), f the first entry of the state, all gamma of one sign.

    Negative ones raise `NotPositiveDefiniteError` where the result is improper. Only with one sign does a pivot tell:
    leaving out some of the later sites must not make what remains less proper.
    """
    sites = np.zeros_like(chain.noise)
    sites[0, 0] = gamma
    B = information(chain.transition[..., 1:], chain.noise[..., 1:], sites[..., :-1], sites[..., -1])
    found = absorb(chain.root, B)
    transition = chain.transition - product(found.covariance, product(B, chain.transition))
    after = Chain(transition, found.covariance, found.root.transpose(1, 0, 2))
    return Conditioned(chain, after, B, float(found.log_det.sum()))


def inserted(first: Chain, second: Chain, B: Array) -> tuple[Chain, Chain]:
    """A state between two others, the later of which has information ``B``: both steps given that information."""
    last = absorb(second.root, B)
    seen = congruence_t(second.transition, seen_through(B, last.covariance))
    middle = absorb(first.root, seen)
    return (
        Chain(first.transition - product(middle.covariance, product(seen, first.transition)),
              middle.covariance, middle.root.transpose(1, 0, 2)),
        Chain(second.transition - product(last.covariance, product(B, second.transition)),
              last.covariance, last.root.transpose(1, 0, 2)),
    )


def pushed(step: Chain, covariance: Array) -> Array:
    """A P A' + C: the covariance after a step."""
    return congruence(step.transition, covariance) + step.noise
