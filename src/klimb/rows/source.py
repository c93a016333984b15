"""Where rows come from when they need not fit in memory: an array, a memory map, or a stream that can be read again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, final

import numpy as np
import numpy.typing as npt

from klimb.errors import InputError
from klimb.numerics.arrays import Array, Index, as_float
from klimb.numerics.dense import row_blocks


@final
class RowSource:
    """N rows of d numbers that can be read from the front as often as needed, in cache-sized blocks.

    They are those of an array or a memory map, where 1-d counts as one column, or of a callable that yields the same
    blocks in the same order each time it is called. Batches of a stream come in its order: rows that are sorted by
    anything should be shuffled where they are stored.

    >>> rows = RowSource(np.arange(10.0))
    >>> rows.shape, [batch.ravel().tolist() for _, batch in rows.batches(5, seed=0)]
    ((10, 1), [[2.0, 3.0, 4.0, 6.0, 7.0], [0.0, 1.0, 5.0, 8.0, 9.0]])
    >>> rows = RowSource(lambda: (np.full((2, 1), float(k)) for k in range(3)))
    >>> rows.shape, rows.take(np.array([1, 4])).ravel()
    ((6, 1), array([0., 2.]))
    """

    def __init__(self, given: Any) -> None:
        self.shape, self._given = (0, 0), given  # of a stream it is not known before the first pass
        if not callable(given):
            array = given if isinstance(given, np.ndarray) else as_float(given, "X")
            self._given = array = array[:, None] if array.ndim == 1 else array
            if array.ndim != 2 or 0 in array.shape:
                raise InputError("X must have at least one row and one column", f"shape {array.shape}",
                                 "Pass some data.")
            self.shape = (array.shape[0], array.shape[1])
            return
        n, width = 0, 0
        for block in self._pieces():
            n, width = n + len(as_float(block, "X")), block.shape[1]
        if n == 0:
            raise InputError("a stream must yield at least one row", "none", "Check the callable.")
        self.shape = (n, width)

    def _pieces(self) -> Iterator[npt.NDArray[Any]]:
        """All rows in order, of an array in one piece."""
        begin, width = 0, self.shape[1]
        for piece in self._given() if callable(self._given) else (self._given,):
            block = np.asarray(piece.toarray() if hasattr(piece, "tocsr") else piece)
            block = block[:, None] if block.ndim == 1 else block
            if block.ndim != 2 or block.shape[1] == 0 or (width and block.shape[1] != width):
                raise InputError("every block of a stream must be rows with the same columns",
                                 f"shape {block.shape} after {begin} rows", "Check what the callable yields.")
            begin, width = begin + len(block), block.shape[1]
            if len(block):
                yield block
        if self.shape[0] and begin != self.shape[0]:
            raise InputError(f"a stream must yield the same {self.shape[0]} rows each time", f"{begin}",
                             "Check that the callable starts from the front again.")

    def blocks(self, width: int) -> Iterator[tuple[slice, Array]]:
        """All rows in order, in blocks for which ``width`` numbers a row fit the cache."""
        begin = 0
        for piece in self._pieces():
            for rows in row_blocks(len(piece), width):
                yield slice(begin + rows.start, begin + rows.stop), as_float(piece[rows], "X")
            begin += len(piece)

    def take(self, rows: Index) -> Array:
        """Some rows, given in ascending order."""
        found = np.empty((len(rows), self.shape[1]))
        begin = 0
        for piece in self._pieces():
            first, last = np.searchsorted(rows, [begin, begin + len(piece)])
            found[first:last] = as_float(piece[rows[first:last] - begin], "X")
            begin += len(piece)
        return found

    def batches(self, size: int, seed: int) -> Iterator[tuple[Index, Array]]:
        """Every row once, about ``size`` at a time, in an order that ``seed`` fixes."""
        if not callable(self._given):
            yield from ((rows, self.take(rows)) for rows in shuffled_batches(self.shape[0], size, seed))
            return
        begin = 0
        for piece in self._pieces():
            for rows in np.array_split(np.arange(len(piece)), max(1, -(-len(piece) // size))):
                yield rows + begin, as_float(piece[rows], "X")
            begin += len(piece)


def shuffled_batches(n: int, size: int, seed: int) -> Iterator[Index]:
    """A fixed random partition of 0..n-1 into batches of at most ``size``, each in ascending order (kind to disks)."""
    order = np.random.default_rng(seed).permutation(n)
    for batch in np.array_split(order, max(1, -(-n // size))):
        yield np.sort(batch)
