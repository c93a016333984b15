"""Where rows come from when they need not fit in memory: an array, a memory map, or a stream that can be read again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias, final

import numpy as np
import numpy.typing as npt

from klimb.errors import InputError
from klimb.numerics.arrays import Array, as_float, check_finite
from klimb.numerics.dense import row_blocks

Index: TypeAlias = npt.NDArray[np.intp]
Stream: TypeAlias = "Callable[[], Iterable[Any]]"


class RowSource(ABC):
    """N rows of d numbers that can be read from the front as often as needed, in cache-sized blocks."""

    shape: tuple[int, int]

    @abstractmethod
    def blocks(self, width: int) -> Iterator[tuple[slice, Array]]:
        """All rows in order, in blocks for which ``width`` numbers a row fit the cache."""

    @abstractmethod
    def take(self, rows: Index) -> Array:
        """Some rows, given in ascending order."""

    @abstractmethod
    def batches(self, size: int, seed: int) -> Iterator[tuple[Index, Array]]:
        """Every row once, about ``size`` at a time, in an order that ``seed`` fixes."""


@final
class ArrayRows(RowSource):
    """Rows of an array or a memory map, of which one block at a time is read; 1-d counts as one column.

    >>> rows = ArrayRows(np.arange(10.0))
    >>> rows.shape, [batch.ravel().tolist() for _, batch in rows.batches(5, seed=0)]
    ((10, 1), [[2.0, 3.0, 4.0, 6.0, 7.0], [0.0, 1.0, 5.0, 8.0, 9.0]])
    """

    def __init__(self, values: Any) -> None:
        array = values if isinstance(values, np.ndarray) else as_float(values, "X")
        if array.ndim == 1:
            array = array[:, None]
        if array.ndim != 2 or 0 in array.shape:
            raise InputError("X must have at least one row and one column", f"shape {array.shape}", "Pass some data.")
        self.values = array
        self.shape = (array.shape[0], array.shape[1])

    def blocks(self, width: int) -> Iterator[tuple[slice, Array]]:
        for rows in row_blocks(self.shape[0], width):
            yield rows, self._clean(self.values[rows])

    def take(self, rows: Index) -> Array:
        return self._clean(self.values[rows])

    def batches(self, size: int, seed: int) -> Iterator[tuple[Index, Array]]:
        for rows in shuffled_batches(self.shape[0], size, seed):
            yield rows, self.take(rows)

    @staticmethod
    def _clean(values: Any) -> Array:
        return as_float(values, "X")


@final
class StreamedRows(RowSource):
    """Rows of a callable that, each time it is called, yields the same blocks in the same order.

    Batches come in the order of the stream: rows that are sorted by anything should be shuffled where they are stored.

    >>> rows = StreamedRows(lambda: (np.full((2, 1), float(k)) for k in range(3)))
    >>> rows.shape, rows.take(np.array([1, 4])).ravel()
    ((6, 1), array([0., 2.]))
    """

    def __init__(self, stream: Stream) -> None:
        if not callable(stream):
            raise InputError("a stream must be a callable that yields blocks of rows", type(stream).__name__,
                             "Pass a function, not its result: the rows are read several times.")
        self._stream = stream
        self.shape = (0, 0)  # not known before the first pass
        n, width = 0, 0
        for block in self._pieces():
            n, width = n + len(block), block.shape[1]
        if n == 0:
            raise InputError("a stream must yield at least one row", "none", "Check the callable.")
        self.shape = (n, width)

    def _pieces(self) -> Iterator[Array]:
        begin, width = 0, self.shape[1]
        for piece in self._stream():
            block = np.asarray(piece.toarray() if hasattr(piece, "tocsr") else piece, dtype=np.float64)
            block = block[:, None] if block.ndim == 1 else block
            if block.ndim != 2 or block.shape[1] == 0 or (width and block.shape[1] != width):
                raise InputError("every block of a stream must be rows with the same columns",
                                 f"shape {block.shape} after {begin} rows", "Check what the callable yields.")
            check_finite(block, "X")
            begin, width = begin + len(block), block.shape[1]
            if len(block):
                yield block
        if self.shape[0] and begin != self.shape[0]:
            raise InputError(f"a stream must yield the same {self.shape[0]} rows each time", f"{begin}",
                             "Check that the callable starts from the front again.")

    def blocks(self, width: int) -> Iterator[tuple[slice, Array]]:
        begin = 0
        for piece in self._pieces():
            for rows in row_blocks(len(piece), width):
                yield slice(begin + rows.start, begin + rows.stop), piece[rows]
            begin += len(piece)

    def take(self, rows: Index) -> Array:
        found = np.empty((len(rows), self.shape[1]))
        begin = 0
        for piece in self._pieces():
            first, last = np.searchsorted(rows, [begin, begin + len(piece)])
            found[first:last] = piece[rows[first:last] - begin]
            begin += len(piece)
        return found

    def batches(self, size: int, seed: int) -> Iterator[tuple[Index, Array]]:
        begin = 0
        for piece in self._pieces():
            count = max(1, -(-len(piece) // size))
            for rows in np.array_split(np.arange(len(piece)), count):
                yield rows + begin, piece[rows]
            begin += len(piece)


def as_source(X: Any) -> RowSource:
    """A row source from an array, a memory map or a callable that yields blocks (or one that was made before).

    >>> halves = [np.zeros((500, 2)), np.ones((300, 2))]
    >>> as_source(np.zeros((800, 2))).shape, as_source(lambda: iter(halves)).shape
    ((800, 2), (800, 2))
    """
    if isinstance(X, RowSource):
        return X
    return StreamedRows(X) if callable(X) else ArrayRows(X)


def shuffled_batches(n: int, size: int, seed: int) -> Iterator[Index]:
    """A fixed random partition of 0..n-1 into batches of at most ``size``, each in ascending order (kind to disks)."""
    order = np.random.default_rng(seed).permutation(n)
    for batch in np.array_split(order, max(1, -(-n // size))):
        yield np.sort(batch)
