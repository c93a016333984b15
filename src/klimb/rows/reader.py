"""Rows of a block as a source of columns, some at a time."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np

from klimb.errors import InputError
from klimb.numerics.arrays import Array
from klimb.numerics.dense import threads_for
from klimb.rows.blocks import RowBlock
from klimb.rows.frames import Frame
from klimb.rows.table import Source, complete_rows


@dataclass(frozen=True, eq=False)
class PieceReader:
    """Which columns of a block are read, and which of its rows are kept."""

    names: tuple[str, ...]  # without any of which a row is left out
    weights: str | None
    missing: str
    rows: int  # at a time

    def sources(self, block: RowBlock) -> Iterator[tuple[Frame, Source, int]]:
        """Some rows at a time: all of them, those that are kept, and how many are not."""
        begin, own = block.begin, () if self.weights is None else (self.weights,)
        for found in block.frames(tuple(dict.fromkeys([*self.names, *own])), self.rows):
            frame = replace(found, begin=begin)
            begin += frame.n
            weights = None if self.weights is None else _counts(frame, self.weights)
            yield frame, *complete_rows(frame, list(self.names), self.missing, weights=weights)

    def folded(self, work: Callable[[Source], Any], join: Callable[[Any, Any], Any], block: RowBlock) -> Any:
        """What ``work`` says of the rows of a block that are kept; None where there are none."""
        with placed(block):
            found = [work(source) for _, source, _ in self.sources(block) if source.n]
            return reduce(join, found) if found else None


@contextmanager
def placed(block: RowBlock) -> Iterator[None]:
    """Work on the rows of a block, whose errors say in which file these are."""
    try:
        with threads_for(0), np.errstate(over="ignore", invalid="ignore"):
            yield
    except InputError as error:
        if not block.name or block.name.partition(", ")[0] in error.got:
            raise
        raise InputError(error.expected, f"{error.got}, in {block.name}", error.advice) from error


def _counts(frame: Frame, name: str) -> Array:
    """A column that says how often each row counts."""
    weights = frame.read(name).number
    good = (weights >= 0.0) & (weights < np.inf)
    if not good.all():
        i = int(np.argmin(good))
        raise InputError("weights must be finite numbers that are not negative",
                         f"{weights[i]:g} at row {frame.begin + i}", "0 leaves a row out.")
    return weights
