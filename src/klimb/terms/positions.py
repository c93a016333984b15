"""Positions along a column that fields over time and over a line are made of."""

from __future__ import annotations

import numpy as np

from klimb.errors import InputError
from klimb.formula.numeric import Numeric
from klimb.numerics.arrays import Array
from klimb.rows.table import Source

MOST_NODES = 5_000_000
CLOSE = 1e-4  # of the mean step, below which two positions have one node: second differences lose its cube in digits


def column_positions(expression: Numeric, source: Source) -> Array:
    """The different values of a column, those of rows that were left out for want of a response included."""
    column = source.frame.read(expression.column)
    there = np.ones(source.frame.n, dtype=bool) if column.missing is None else ~column.missing
    if source.kept is not None and source.weights is not None:  # a row of weight 0 is not there
        there &= np.isin(np.arange(source.frame.n), source.kept)
    every = Source(source.frame, np.flatnonzero(there))
    return np.unique(expression.evaluate(every))


def grid(positions: Array) -> Array:
    """A node at every whole number of their range where positions are whole numbers, else one at each.

    >>> grid(np.array([3.0, 1.0, 6.0])), grid(np.array([0.5, 2.0]))
    (array([1., 2., 3., 4., 5., 6.]), array([0.5, 2. ]))
    """
    positions = np.unique(positions)
    if not len(positions):
        return positions
    if (positions != np.round(positions)).any():
        return positions[np.diff(positions, prepend=-np.inf) > CLOSE * np.ptp(positions) / len(positions)]
    count = positions[-1] - positions[0] + 1.0
    if count > MOST_NODES:
        raise InputError(f"whole-number positions may span {MOST_NODES:,} steps", f"{count:,.0f}",
                         "Divide the column by its natural step.")
    return np.arange(positions[0], positions[-1] + 0.5)
