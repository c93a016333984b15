"""Watches a rule that has no line search: does it diverge, or run in a circle of two?"""

from __future__ import annotations

from typing import final

import numpy as np

from klimb.infer.problem import State
from klimb.infer.result import Status

CYCLE_LENGTH = 6  # states in a row that must repeat the one before last
CYCLE_CLOSE = 1e-9  # relative difference at which two values of the stationarity count as the same


@final
class Watch:
    """Fed with every state; says when to give up."""

    def __init__(self) -> None:
        self._trace: list[tuple[float, float]] = []
        self._repeats = 0

    def verdict(self, state: State) -> Status | None:
        if not np.isfinite(state.bound) or not np.isfinite(state.stationarity):
            return Status.DIVERGED
        self._trace = [*self._trace, (state.bound, state.stationarity)][-3:]
        if len(self._trace) == 3 and self._repeated():
            self._repeats += 1
        else:
            self._repeats = 0
        return Status.CYCLE if self._repeats >= CYCLE_LENGTH else None

    def _repeated(self) -> bool:
        (bound_2, norm_2), (bound_1, norm_1), (bound_0, norm_0) = self._trace
        scale = max(norm_0, norm_2)
        back = abs(norm_0 - norm_2) <= CYCLE_CLOSE * scale
        moved = abs(norm_0 - norm_1) > 1e3 * CYCLE_CLOSE * scale
        return back and (moved or abs(bound_0 - bound_1) > 1e3 * abs(bound_0 - bound_2))
