"""What is remembered of every predictor: range and middle of numbers, levels and the commonest one.

Enough to draw an effect over its range with all else held at typical values, without keeping the data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np

from klimb.rows.table import Source


@final
@dataclass(frozen=True)
class Variable:
    """A column that the formula uses on its right side."""

    name: str
    kind: str  # number or levels
    minimum: float = 0.0
    maximum: float = 0.0
    mean: float = 0.0
    median: float = 0.0
    levels: tuple[str, ...] = ()
    commonest: str = ""
    whole: bool = False  # whole numbers only

    @property
    def typical(self) -> float | str:
        """The median of numbers (rounded where all are whole), the commonest level."""
        return self.median if self.kind == "number" else self.commonest

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "kind": self.kind, "minimum": self.minimum, "maximum": self.maximum,
                "mean": self.mean, "median": self.median, "levels": list(self.levels), "commonest": self.commonest,
                "whole": self.whole}

    @classmethod
    def from_json(cls, state: dict[str, Any]) -> Variable:
        return cls(str(state["name"]), str(state["kind"]), float(state["minimum"]), float(state["maximum"]),
                   float(state["mean"]), float(state["median"]), tuple(state["levels"]), str(state["commonest"]),
                   bool(state["whole"]))


def learn_variable(name: str, source: Source, as_levels: bool) -> Variable:
    """Look at one column."""
    if as_levels or source.column(name).is_factor:
        codes, levels = source.factor(name)
        counts = np.bincount(codes, minlength=len(levels))
        return Variable(name, "levels", levels=levels, commonest=levels[int(np.argmax(counts))])
    values = source.number(name)
    whole = bool((values == np.floor(values)).all())
    middle = float(np.median(values))
    if whole and middle != np.floor(middle):
        middle = float(np.floor(middle))
    size = float(np.abs(values).max()) or 1.0
    return Variable(name, "number", float(values.min()), float(values.max()), float((values / size).mean()) * size,
                    middle, whole=whole)
