"""Matern Gaussian processes, and sums of them, as Gauss-Markov chains: transitions, noise, and their derivatives.

With s = nu + 1/2, f and its first s - 1 derivatives (the j-th divided by rate^j, rate = sqrt(2 nu) / l) are a Markov
process dz = F z dx + e_s dw in the unitless time x = rate * t. All eigenvalues of F are -1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import comb, factorial, log, sqrt
from typing import NamedTuple, Self

import numpy as np
from scipy.special import gammainc

from klimb.linalg.chains import AT_ONCE, Chain, alike
from klimb.numerics.arrays import Array, slices

STATES = {0.5: 1, 1.5: 2, 2.5: 3}  # smoothness -> size of the state
EVEN = 1e-9  # of a gap, by which those of evenly spaced times may differ
FORGOTTEN = 800.0  # exp(-x) is zero from here on, and x^2 exp(-x) must not be inf * 0


def rate(smoothness: float, lengthscale: float) -> float:
    """sqrt(2 nu) / l: what makes time unitless."""
    return sqrt(2.0 * smoothness) / lengthscale


def transition(states: int, x: Array) -> Array:
    """exp(F x) = e^-x sum_j (F + I)^j x^j / j!, a finite sum since (F + I)^s = 0; shape (s, s, n)."""
    x = np.minimum(x, FORGOTTEN)
    out = np.zeros((states, states, len(x)))
    for j, power in enumerate(_powers(states)):
        out += power[:, :, None] * (x**j / factorial(j))
    return np.asarray(out * np.exp(-x))


def noise(states: int, x: Array) -> Array:
    """Covariance of what a step adds at unit variance: q int_0^x p p' e^-2t dt, with p the polynomials of exp(F t) e_s.

    int_0^x t^m e^-2t dt = m! / 2^(m+1) P(m + 1, 2x) with P the regularised incomplete gamma function, so that each
    entry keeps its digits for every x; P_inf - A P_inf A' would lose all of them for small x.
    """
    x = np.minimum(x, FORGOTTEN)
    levels = [factorial(m) / 2.0 ** (m + 1) * gammainc(m + 1.0, 2.0 * x) for m in range(2 * states - 1)]
    # Coefficients, by power of t, of the polynomials p(t) = e^t exp(F t) e_s: one row per entry.
    p = np.array([power[:, -1] / factorial(j) for j, power in enumerate(_powers(states))]).T
    out = np.empty((states, states, len(x)))
    for i in range(states):
        for j in range(i + 1):
            coefficients = np.convolve(p[i], p[j])
            out[i, j] = out[j, i] = sum(c * level for c, level in zip(coefficients, levels, strict=True) if c != 0.0)
    return out * _diffusion(states)


def stationary(states: int) -> Array:
    """Covariance of the state at unit variance of f."""
    return np.asarray(noise(states, np.array([FORGOTTEN]))[..., 0])


def derivatives(states: int, x: Array) -> tuple[Array, Array]:
    """x d/dx of `transition` and of `noise` (at unit variance)."""
    x = np.minimum(x, FORGOTTEN)
    A = transition(states, x)
    last = A[:, -1]
    return np.einsum("ij,jkn->ikn", _drift(states), A) * x, _diffusion(states) * x * last[:, None] * last[None, :]


def _drift(states: int) -> Array:
    """F, the companion matrix of (1 + d/dx)^s."""
    F = np.diag(np.ones(states - 1), 1)
    F[-1] = [-comb(states, j) for j in range(states)]
    return F


def _powers(states: int) -> list[Array]:
    nilpotent = _drift(states) + np.eye(states)
    return [np.linalg.matrix_power(nilpotent, j) for j in range(states)]


def _diffusion(states: int) -> float:
    """The strength of the white noise that gives f unit variance: 2, 4, 16/3."""
    return float(2.0 ** (2 * states - 1) * factorial(states - 1) ** 2 / factorial(2 * states - 2))


class ChainPart(NamedTuple):
    """One kernel of the sum: its place in what the user gave, and the size of its state."""

    place: int
    variance: float
    rate: float
    size: int
    own: slice = slice(0)  # of the state


@dataclass(frozen=True, eq=False)
class MaternSum:
    """How the states of the kernels make one state, mix @ (z_1, z_2, ...), whose first entry is f = f_1 + f_2 + ...

    With f first in every triangular factor, sites that know f far better than its parts cost no digits. The roughest
    kernel, of which most noise is over short steps, gives its own place to f.
    """

    parts: tuple[ChainPart, ...]
    mix: Array
    unmix: Array

    @classmethod
    def of(cls, variance: Sequence[float], lengthscale: Sequence[float], smoothness: Sequence[float]) -> Self:
        """The sum of one kernel per entry."""
        parts = [ChainPart(place, sigma2, rate(nu, scale), STATES[nu])
                 for place, (sigma2, scale, nu) in enumerate(zip(variance, lengthscale, smoothness, strict=True))]
        parts.sort(key=lambda one: (one.size, -log(one.variance) - (2 * one.size - 1) * log(one.rate)))
        starts = np.cumsum([0] + [one.size for one in parts])
        parts = [one._replace(own=slice(start, start + one.size)) for one, start in zip(parts, starts, strict=False)]
        mix, unmix = np.eye(starts[-1]), np.eye(starts[-1])
        mix[0, starts[1:-1]], unmix[0, starts[1:-1]] = 1.0, -1.0
        return cls(tuple(parts), mix, unmix)

    @property
    def states(self) -> int:
        """The size of the state."""
        return len(self.mix)

    @cached_property
    def stationary(self) -> Chain:
        """A step from nowhere: no transition, and the stationary covariance as noise."""
        return self.steps(np.array([np.inf]))

    def steps(self, gaps: Array) -> Chain:
        """One step over each gap of time."""
        x = [_unitless(one, gaps) for one in self.parts]
        transitions = [transition(one.size, gap) for one, gap in zip(self.parts, x, strict=True)]
        noises = [one.variance * noise(one.size, gap) for one, gap in zip(self.parts, x, strict=True)]
        return Chain(self._transition(transitions), self._covariance(noises))

    def chain(self, gaps: Array) -> Chain:
        """The Gaussian process at times that lie so far after the last; the first, infinitely far, is stationary."""
        s, n = self.states, len(gaps)
        if n > AT_ONCE and same(gaps[1:]):
            return alike(self.steps(np.array([np.inf, gaps[1:].mean()])), n)
        made = Chain(np.empty((s, s, n)), np.empty((s, s, n)))
        for block in slices(n, AT_ONCE):
            part = self.steps(gaps[block])
            made.transition[..., block], made.noise[..., block] = part.transition, part.noise
        return made

    def pulled_back(self, gaps: Array, d_noise: Array, d_transition: Array) -> Array:
        """Gradients in (log variance, log lengthscale), a row per kernel, by those in noise and transition of steps."""
        if len(gaps) > 1 and np.isinf(gaps[0]):  # the first step comes from nowhere
            parts = [(gaps[own], d_noise[..., own], d_transition[..., own]) for own in (slice(1), slice(1, None))]
            return np.asarray(sum(self.pulled_back(*part) for part in parts))
        out = np.empty((len(self.parts), 2))
        if len(gaps) > 1 and same(gaps):
            gaps = gaps.mean(keepdims=True)
            d_noise, d_transition = (d.sum(axis=2, keepdims=True) for d in (d_noise, d_transition))
        if len(self.parts) > 1:
            d_noise = np.einsum("ji,jkn,kl->iln", self.mix, d_noise, self.mix)
            d_transition = np.einsum("ji,jkn,lk->iln", self.mix, d_transition, self.unmix)
        for one in self.parts:
            x, g_noise, g_transition = _unitless(one, gaps), d_noise[one.own, one.own], d_transition[one.own, one.own]
            dA, dC = derivatives(one.size, x)
            scale = np.vdot(g_noise, noise(one.size, x))
            stretch = -np.vdot(g_transition, dA) - one.variance * np.vdot(g_noise, dC)
            out[one.place] = one.variance * scale, stretch
        return out

    def _covariance(self, blocks: list[Array]) -> Array:
        """mix C mix' of the block diagonal C."""
        out = self._joined(blocks)
        return out if len(blocks) == 1 else np.einsum("ij,jkn,lk->iln", self.mix, out, self.mix)

    def _transition(self, blocks: list[Array]) -> Array:
        """mix A mix^-1 of the block diagonal A."""
        out = self._joined(blocks)
        return out if len(blocks) == 1 else np.einsum("ij,jkn,kl->iln", self.mix, out, self.unmix)

    def _joined(self, blocks: list[Array]) -> Array:
        out = np.zeros((self.states, self.states, blocks[0].shape[2]))
        for one, block in zip(self.parts, blocks, strict=True):
            out[one.own, one.own] = block
        return out


def same(gaps: Array) -> bool:
    """Whether all gaps are one, to within the rounding of evenly spaced times."""
    return float(np.ptp(gaps)) <= EVEN * float(gaps.min())


def _unitless(one: ChainPart, gaps: Array) -> Array:
    with np.errstate(over="ignore"):  # an infinite gap is one over which everything is forgotten
        return gaps * one.rate
