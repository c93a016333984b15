"""Anderson acceleration of the natural step, on the scale-free residuals of the last few states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from klimb.infer.problem import State
from klimb.numerics.arrays import Array

ENOUGH = 100_000  # sites whose residuals choose a combination: of many more, every so-manieth speaks for all


@final
@dataclass(frozen=True, eq=False)
class _Trace:
    """What is needed of a past state: not its factor, which may be an n x n matrix."""

    gamma: Array  # of the oracle: where the natural step would go
    a: Array
    m: Array
    mean_residual: Array
    gamma_residual: Array


@final
class Mixer:
    """Keeps the last states and combines them so that their combined residual is least.

    The weights sum to one. The combination has the same form as a natural step from a single state: a target gamma, a
    mean (a, m) and its residual, so that it costs one factorisation as well.
    """

    def __init__(self, memory: int) -> None:
        self._memory = memory
        self._traces: list[_Trace] = []
        self._v: Array = np.zeros(0)  # of the last state: the scale of the residuals

    def add(self, state: State) -> None:
        trace = _Trace(state.expectation.gamma, state.a, state.m, state.mean_residual, state.gamma_residual)
        self._traces, self._v = [*self._traces, trace][-self._memory :], state.v

    def restart(self) -> None:
        """Forget all but the last state."""
        self._traces = self._traces[-1:]

    def __len__(self) -> int:
        return len(self._traces)

    def combine(self) -> tuple[Array, Array, Array, Array]:
        """(target gamma, a, m, residual of a) of the best combination."""
        traces, some = self._traces, slice(None, None, max(len(self._v) // ENOUGH, 1))
        v, sd = self._v[some], np.sqrt(self._v[some])
        residuals = np.stack([np.concatenate([sd * t.mean_residual[some], v * t.gamma_residual[some]]) for t in traces])
        weights = anderson_weights(residuals)
        mix = [sum(c * part for c, part in zip(weights, parts, strict=True))
               for parts in zip(*((t.gamma, t.a, t.m, t.mean_residual) for t in traces), strict=True)]
        return mix[0], mix[1], mix[2], mix[3]


def anderson_weights(residuals: Array) -> Array:
    """Weights that sum to one and make the combination of the rows of ``residuals`` least."""
    differences = residuals[:-1] - residuals[-1]
    gram = differences @ differences.T
    gram.flat[:: len(gram) + 1] += 1e-14 * np.trace(gram) + 1e-300
    weights = np.linalg.solve(gram, -(differences @ residuals[-1]))
    return np.append(weights, 1.0 - weights.sum())
