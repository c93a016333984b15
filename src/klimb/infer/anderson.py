"""Anderson acceleration of the natural step, on the scale-free residuals of the last few states."""

from __future__ import annotations

from typing import final

import numpy as np

from klimb.infer.problem import State
from klimb.numerics.arrays import Array


@final
class Mixer:
    """Keeps the last states and combines them so that their combined residual is least.

    The weights sum to one. The combination has the same form as a natural step from a single state: a target gamma, a
    mean (a, m) and its residual, so that it costs one factorisation as well.
    """

    def __init__(self, memory: int) -> None:
        self._memory = memory
        self._states: list[State] = []

    def add(self, state: State) -> None:
        self._states = [*self._states, state][-self._memory :]

    def restart(self) -> None:
        """Forget all but the last state."""
        self._states = self._states[-1:]

    def __len__(self) -> int:
        return len(self._states)

    def combine(self) -> tuple[Array, Array, Array, Array]:
        """(target gamma, a, m, residual of a) of the best combination."""
        last = self._states[-1]
        sd, v = np.sqrt(last.v), last.v
        residuals = np.stack([np.concatenate([sd * s.mean_residual, v * s.gamma_residual]) for s in self._states])
        differences = residuals[:-1] - residuals[-1]
        gram = differences @ differences.T
        gram.flat[:: len(gram) + 1] += 1e-14 * np.trace(gram) + 1e-300
        weights = np.linalg.solve(gram, -(differences @ residuals[-1]))
        weights = np.append(weights, 1.0 - weights.sum())
        mix = [
            sum(c * part for c, part in zip(weights, parts, strict=True))
            for parts in zip(*((s.expectation.gamma, s.a, s.m, s.mean_residual) for s in self._states), strict=True)
        ]
        return mix[0], mix[1], mix[2], mix[3]
