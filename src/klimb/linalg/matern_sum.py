"""Sums of Matern kernels as one Gauss-Markov chain whose first state is f."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import log
from typing import final

import numpy as np

from klimb.linalg import matern
from klimb.linalg.chains import Chain
from klimb.numerics.arrays import Array


@final
@dataclass(frozen=True)
class Part:
    """One kernel of the sum: its place in what the user gave, and the size of its state."""

    place: int
    variance: float
    rate: float
    size: int


@final
@dataclass(frozen=True, eq=False)
class MaternSum:
    """How the states of the kernels make one state, whose first entry is f = f_1 + f_2 + ...

    The state is mix @ (z_1, z_2, ...). With f itself as a coordinate, and first in every triangular factor, sites that
    know f far better than its parts cost no digits. The roughest kernel gives its own place to f: over short steps most
    of the noise is its.
    """

    parts: tuple[Part, ...]
    mix: Array
    unmix: Array

    @classmethod
    def of(cls, variance: Sequence[float], lengthscale: Sequence[float], smoothness: Sequence[float]) -> MaternSum:
        """The sum of one kernel per entry."""
        parts = [Part(place, sigma2, matern.rate(nu, scale), matern.STATES[nu])
                 for place, (sigma2, scale, nu) in enumerate(zip(variance, lengthscale, smoothness, strict=True))]
        parts.sort(key=lambda one: (one.size, -log(one.variance) - (2 * one.size - 1) * log(one.rate)))
        starts = np.cumsum([0] + [one.size for one in parts])
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
        noise = self._covariance([one.variance * matern.stationary(one.size)[:, :, None] for one in self.parts])
        return Chain.of(np.zeros_like(noise), noise)

    def steps(self, gaps: Array) -> Chain:
        """One step over each gap of time."""
        x = [_unitless(one, gaps) for one in self.parts]
        transitions = [matern.transition(one.size, gap) for one, gap in zip(self.parts, x, strict=True)]
        noises = [one.variance * matern.noise(one.size, gap) for one, gap in zip(self.parts, x, strict=True)]
        return Chain.of(self._transition(transitions), self._covariance(noises))

    def chain(self, gaps: Array) -> Chain:
        """The Gaussian process at times that lie so far apart, from its stationary state."""
        first, rest = self.stationary, self.steps(gaps)
        return Chain(np.concatenate([first.transition, rest.transition], axis=2),
                     np.concatenate([first.noise, rest.noise], axis=2),
                     np.concatenate([first.root, rest.root], axis=2))

    def pulled_back(self, gaps: Array, d_noise: Array, d_transition: Array) -> Array:
        """Gradients in (log variance, log lengthscale), one row per kernel as given, from those in the chain.

        ``d_noise`` is the gradient in the noise of every state, ``d_transition`` that in all transitions but the first.
        """
        out = np.empty((len(self.parts), 2))
        noises = self._split(np.einsum("ji,jkn,kl->iln", self.mix, d_noise, self.mix))
        transitions = self._split(np.einsum("ji,jkn,lk->iln", self.mix, d_transition, self.unmix))
        for one, g_noise, g_transition in zip(self.parts, noises, transitions, strict=True):
            x = _unitless(one, gaps)
            dA, dC = matern.derivatives(one.size, x)
            scale = np.vdot(g_noise[..., 0], matern.stationary(one.size))
            scale += np.vdot(g_noise[..., 1:], matern.noise(one.size, x))
            stretch = -np.vdot(g_transition, dA) - one.variance * np.vdot(g_noise[..., 1:], dC)
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
        for own, block in zip(self._slices(), blocks, strict=True):
            out[own, own] = block
        return out

    def _split(self, whole: Array) -> list[Array]:
        return [whole[own, own] for own in self._slices()]

    def _slices(self) -> Iterator[slice]:
        begin = 0
        for one in self.parts:
            yield slice(begin, begin + one.size)
            begin += one.size


def _unitless(one: Part, gaps: Array) -> Array:
    with np.errstate(over="ignore"):  # an infinite gap is one over which everything is forgotten
        return gaps * one.rate
