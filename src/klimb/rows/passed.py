"""All rows of a table in blocks, for terms that learn from them: what these ask is summed by passes, not held.

One pass says of every column what most terms ask: kind, levels, range, mean and spread, missing values. What asks for
more (different values, quantiles, sums of functions) takes further passes over that column alone.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from typing import Any

import numpy as np

from klimb.errors import require
from klimb.numerics.arrays import Array
from klimb.rows.blocks import BlockEngine, RowBlock, RowTable
from klimb.rows.columns import Column, count
from klimb.rows.frames import Frame
from klimb.rows.quantiles import counted_quantiles, interval_counts
from klimb.rows.reader import PieceReader, placed
from klimb.rows.summaries import ColumnFacts, LevelCounts, NumberFacts
from klimb.rows.table import Expression, Learnable, Source, no_complete_row, numbers_of


@dataclass(frozen=True, eq=False)
class TableFacts:
    """What one pass says of all rows."""

    columns: dict[str, ColumnFacts]
    rows: int  # that are kept
    dropped: int

    def plus(self, other: "TableFacts") -> "TableFacts":
        """Of the rows of both."""
        columns = {name: own.plus(other.columns[name]) for name, own in self.columns.items()}
        return TableFacts(columns, self.rows + other.rows, self.dropped + other.dropped)


def table_facts(reader: PieceReader, as_levels: frozenset[str], block: RowBlock) -> TableFacts | None:
    """Of the rows of a block; None where it is empty."""
    found: list[TableFacts] = []
    with placed(block):
        for frame, source, dropped in reader.sources(block):
            where = block.name or f"rows from {frame.begin:,} on"
            columns = {name: ColumnFacts.of(frame.read(name), source.kept, source.weights, where, name in as_levels)
                       for name in reader.names}
            found.append(TableFacts(columns, source.n, dropped))
        return reduce(TableFacts.plus, found) if found else None


@dataclass(frozen=True, eq=False)
class PassedSource(Learnable):
    """The rows that are kept of a table in blocks."""

    frame: Frame  # whose columns have a kind, and no rows
    reader: PieceReader
    blocks: Sequence[RowBlock]
    engine: BlockEngine | None
    facts: TableFacts
    objects: Mapping[str, Any] = field(default_factory=dict)
    _facts: dict[Expression, NumberFacts] = field(default_factory=dict)

    @classmethod
    def over(cls, table: RowTable, reader: PieceReader, engine: BlockEngine | None,
             as_levels: frozenset[str]) -> "PassedSource":
        """By one pass over all columns."""
        blocks, work = table.blocks, partial(table_facts, reader, as_levels)
        found = [part for part in mapped(engine, work, blocks) if part is not None]
        require(found, "data with at least one row", "no rows", "Check how the data were read.")
        facts = reduce(TableFacts.plus, found)
        gaps = {name: own.missing for name, own in facts.columns.items() if own.missing}
        require(facts.rows or gaps, "some weight must be positive", "none", "Rows with weight 0 are left out.")
        if not facts.rows:
            raise no_complete_row(table.n, [f"{name!r}: {count(n, 'row')}" for name, n in gaps.items()])
        frame = Frame(None, "dict", table.columns, table.n, lambda name: facts.columns[name].column())
        return cls(frame, reader, blocks, engine, facts)

    @property
    def here(self) -> None:
        return None

    @property
    def n(self) -> int:
        return self.facts.rows

    def column(self, name: str) -> Column:
        return self.facts.columns[name].column()

    @property
    def with_waiting(self) -> Learnable:
        return self

    def levels(self, name: str) -> tuple[tuple[str, ...], Array]:
        found = self.facts.columns[name].levels
        if found is None:
            found = self.folded(partial(_levels, name), LevelCounts.plus, [name])
        return found.labels()

    def numbers_anew(self, expression: Expression) -> NumberFacts:
        known = None if expression.steps else self.facts.columns[expression.column].numbers
        if known is None or not np.isfinite([known.low, known.high]).all():  # an error names the row
            known = self.folded(partial(numbers_of, expression), NumberFacts.plus, [expression.column])
        return known

    def look(self, expression: Expression) -> None:
        self.numbers(expression)

    def quantiles(self, expression: Expression, p: Array, lower: float, upper: float) -> Array:
        def counts(first: list[int], last: list[int]) -> Array:
            found: Array = self.folded(partial(_counts, expression, first, last), np.add, [expression.column])
            return found

        return counted_quantiles(counts, p, lower, upper)

    def median(self, name: str) -> float:
        known = self.facts.columns[name].numbers
        return np.nan if known is None else known.mean  # until a sample of the rows says more

    def folded(self, work: Callable[[Source], Any], join: Callable[[Any, Any], Any], names: Iterable[str]) -> Any:
        gaps = [name for name, own in self.facts.columns.items() if own.missing]
        reader = replace(self.reader, names=tuple(dict.fromkeys([*names, *gaps])))
        found = mapped(self.engine, partial(reader.folded, work, join), self.blocks)
        return reduce(join, (part for part in found if part is not None))


def mapped(engine: BlockEngine | None, function: Callable[[Any], Any], blocks: Sequence[RowBlock]) -> Iterable[Any]:
    """function(block) for every block, in order."""
    return map(function, blocks) if engine is None else engine.map(function, blocks)


def _levels(name: str, source: Source) -> LevelCounts:
    return LevelCounts.of(source.column(name), source.kept, source.weights)


def _counts(expression: Expression, first: list[int], last: list[int], source: Source) -> Array:
    return interval_counts(expression.evaluate(source), source.weights, first, last)
