"""Sums over blocks of rows, wherever the blocks are: the one thing that a pass over the data asks of an engine.

An engine maps a function over blocks and gives the results in the order of the blocks; every
`concurrent.futures.Executor` does. The sum is taken here, block after block, so that it has the same bits whatever the
number of workers and whichever of them is done first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeAlias

from klimb.numerics.arrays import Array

Rows: TypeAlias = tuple[Any, Array]  # X (an array, or sparse) and y of some rows
Block: TypeAlias = "Rows | Callable[[], Rows]"  # in memory, or what reads them where the function runs


class BlockEngine(Protocol):
    """Where a function meets its blocks."""

    def map(self, function: Callable[[Any], Any], blocks: Iterable[Any], /) -> Iterable[Any]:
        """function(block) for every block, in the order of ``blocks``."""


def rows_of(block: Block) -> tuple[Array, Array]:
    """The rows themselves; a callable reads them now, and those of a sparse block become dense here."""
    X, y = block() if callable(block) else block
    return X.toarray() if hasattr(X, "tocsr") else X, y


def summed(function: Callable[[Block], tuple[Any, ...]], blocks: Sequence[Block], engine: BlockEngine | None = None
           ) -> tuple[Any, ...]:
    """The sum of function(block) over ``blocks``, entry by entry, in their order.

    >>> import numpy as np
    >>> from concurrent.futures import ThreadPoolExecutor
    >>> blocks = [(np.full((2, 1), float(k)), np.ones(2)) for k in range(3)]
    >>> with ThreadPoolExecutor(2) as engine:
    ...     summed(lambda block: (block[0].sum(), block[1]), blocks, engine)
    (np.float64(6.0), array([3., 3.]))
    """
    total: tuple[Any, ...] = ()
    for part in map(function, blocks) if engine is None else engine.map(function, blocks):
        total = tuple(a + b for a, b in zip(total, part, strict=True)) if total else part
    return total
