"""Tables whose blocks an engine holds: partitions of Dask and Spark data frames, blocks of Ray datasets.

A block is known here by what the engine knows it by; the work goes to where it is, as a table of Arrow.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, final

from klimb.numerics.lazy import pyarrow as pa
from klimb.rows.blocks import RowTable, arrow_column, arrow_frame
from klimb.rows.columns import Column
from klimb.rows.frames import Frame, read_frame
from klimb.rows.reduction import BlockEngine


@final
@dataclass(frozen=True, eq=False)
class TableBlock:
    """The rows of a block, where they are."""

    table: Any  # of Arrow

    @classmethod
    def of(cls, data: Any) -> TableBlock:
        """From what an engine gives to a worker: a table of Arrow, or a data frame of pandas."""
        return cls(data if isinstance(data, pa.Table) else pa.Table.from_pandas(data, preserve_index=False))

    def frames(self, names: Sequence[str], rows: int) -> Iterator[Frame]:
        whole = self.table.select(list(names)).combine_chunks()
        for begin in range(0, whole.num_rows, rows):
            yield arrow_frame(whole.slice(begin, rows), names)

    def identity(self) -> Any:
        text = hashlib.sha256()
        for batch in self.table.combine_chunks().to_batches():
            text.update(batch.serialize())
        return self.table.num_rows, text.hexdigest()


@final
@dataclass(frozen=True, eq=False)
class HeldBlock:
    """A block by the name that its engine has for it."""

    data: Any
    number: int = 0
    known: tuple[Any, ...] = ()

    def identity(self) -> Any:
        return self.known

    def size(self, names: Sequence[str]) -> float:
        return 8.0 * len(names) * (self.known[0] if self.known else 0)


@final
class HeldTable(RowTable):
    """A table in blocks that ``engine`` holds, and passes over."""

    def __init__(self, engine: BlockEngine, blocks: Sequence[HeldBlock], names: Sequence[str]) -> None:
        self.engine, self.columns = engine, tuple(names)
        known = list(engine.map(TableBlock.identity, blocks))
        self.n = sum(rows for rows, _ in known)
        self.blocks: Any = [HeldBlock(block.data, block.number, own) for block, own in zip(blocks, known, strict=True)]

    def column(self, name: str) -> Column:
        return arrow_column(name, self._gathered((name,)).column(name))

    def whole(self, names: Sequence[str]) -> Frame:
        return read_frame(self._gathered(names))

    def first(self, names: Sequence[str]) -> Frame:
        return read_frame(self._gathered(names, 1).slice(0, 1))

    def _gathered(self, names: Sequence[str], most: int | None = None) -> Any:
        return pa.concat_tables(self.engine.map(partial(chosen, tuple(names)), self.blocks[:most]),
                                promote_options="permissive")


def chosen(names: Sequence[str], block: TableBlock) -> Any:
    """Some columns of a block."""
    return block.table.select(list(names))
