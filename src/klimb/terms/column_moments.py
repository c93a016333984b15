"""Ranges, means, sds and correlations of the columns of a block, weighted, in two passes that copy nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from klimb.numerics.arrays import Array
from klimb.numerics.dense import gram, row_blocks

CLEARLY = 1e-6  # share of a column, and eigenvalue of the correlations, below which a QR factorisation has to tell


@final
@dataclass(frozen=True, eq=False)
class ColumnMoments:
    """What priors and notes ask of columns: their least and largest entry, mean and sd, and how they are correlated."""

    low: Array
    high: Array
    mean: Array
    sd: Array
    correlation: Array  # (columns, columns); zero for columns that are constant

    @property
    def size(self) -> Array:
        """Largest absolute entry of every column."""
        return np.maximum(np.abs(self.low), np.abs(self.high))

    @classmethod
    def of(cls, values: Any, shares: Array, made: Callable[[Array], Array] | None = None) -> ColumnMoments:
        """Of the columns that ``made`` makes of blocks of rows, or of those as they are."""
        n = len(shares)
        if not n:
            nothing = np.zeros(values.shape[1])
            return cls(nothing, nothing, nothing, nothing, np.zeros((len(nothing), len(nothing))))
        blocks = list(row_blocks(n, max(values.shape[1], 1)))

        def part(rows: slice) -> Array:
            return values[rows] if made is None else made(values[rows])

        first = part(blocks[0])
        low, high, total = first[0].copy(), first[0].copy(), np.zeros(first.shape[1])
        for rows in blocks:
            block = part(rows)
            np.minimum(low, block.min(axis=0), out=low)
            np.maximum(high, block.max(axis=0), out=high)
            total += shares[rows] @ block
        mean = np.clip(total / shares.sum(), low, high)
        # Rows are divided by the largest entry, so that the squares of 1e200 have a sum.
        unit = np.where(high > low, np.maximum(np.abs(high - mean), np.abs(low - mean)), 1.0)
        root = np.sqrt(shares)[:, None]
        squares = gram((root[rows] * ((part(rows) - mean) / unit) for rows in blocks), len(mean))
        size = np.sqrt(np.diagonal(squares))
        scale = np.divide(1.0, size, out=np.zeros_like(size), where=size > 0.0)
        return cls(low, high, mean, unit * size, squares * np.outer(scale, scale))

    @property
    def apart(self) -> bool:
        """Whether no column is made up of others, or of the constant: clearly, as far as squares can tell."""
        varies = self.high > self.low
        if (~varies).sum() > 1 or (self.size == 0.0).any() or (self.sd[varies] <= CLEARLY * self.size[varies]).any():
            return False
        return bool(np.linalg.eigvalsh(self.correlation[np.ix_(varies, varies)]).min(initial=1.0) > CLEARLY)
