"""Reading the bundled table of summit attempts."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from importlib.resources import files

import numpy as np

from klimb.numerics.arrays import Array


@dataclass(frozen=True, slots=True)
class Table:
    """A table as numbers: the names of its columns, the columns as they were measured, and the outcome in {0, 1}."""

    names: tuple[str, ...]
    columns: Array
    y: Array

    def design(self) -> tuple[tuple[str, ...], Array]:
        """Names and matrix of a regression design: an intercept, then each column at mean zero and unit variance."""
        standard = (self.columns - self.columns.mean(axis=0)) / self.columns.std(axis=0)
        return ("intercept", *self.names), np.column_stack([np.ones(len(self.y)), standard])


def load_summit() -> Table:
    """Two hundred invented attempts at a mountain: four things known before each, and whether it reached the top.

    >>> table = load_summit()
    >>> table.names
    ('wind', 'acclimatised', 'party', 'start')
    >>> table.columns.shape, sorted({int(outcome) for outcome in table.y})
    ((200, 4), [0, 1])
    """
    text = files("klimb.demo").joinpath("summit.csv").read_text(encoding="utf-8")
    header, *rows = csv.reader(text.splitlines())
    values = np.array(rows, dtype=np.float64)
    return Table(tuple(header[:-1]), values[:, :-1], values[:, -1])
