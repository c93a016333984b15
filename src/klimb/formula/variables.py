"""What is remembered of every predictor: range and middle of numbers, levels and the commonest one.

Enough to draw an effect over its range with all else held at typical values, without keeping the data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final

import numpy as np

from klimb._stored import stored
from klimb.formula.numeric import counted_quantile
from klimb.rows.table import Source


@final
@stored("formula.variable")
@dataclass(frozen=True)
class FormulaVariable:
    """A column that the formula uses on its right side."""

    name: str
    kind: Literal["number", "levels"]
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


def learn_variable(name: str, source: Source, as_levels: bool) -> FormulaVariable:
    """Look at one column."""
    if as_levels or source.column(name).is_factor:
        codes, levels = source.factor(name)
        counts = np.bincount(codes, source.counts, minlength=len(levels))
        return FormulaVariable(name, "levels", levels=levels, commonest=levels[int(np.argmax(counts))])
    values = source.number(name)
    whole = bool((values == np.floor(values)).all())
    middle = float(counted_quantile(values, source.counts, 0.5))
    if whole and middle != np.floor(middle):
        middle = float(np.floor(middle))
    size = float(np.abs(values).max()) or 1.0
    mean = float(source.shares @ (values / size)) * size
    return FormulaVariable(name, "number", float(values.min()), float(values.max()), mean, middle, whole=whole)
