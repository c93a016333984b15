"""What a pass over blocks of rows asks of an engine, wherever the blocks are.

An engine maps a function over blocks and gives the results in the order of the blocks; every
`concurrent.futures.Executor` does. Sums are taken by the caller, block after block, so that they have the same bits
whatever the number of workers and whichever of them is done first.
"""

from collections.abc import Callable, Iterable
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
