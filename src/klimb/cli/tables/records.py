"""What a reader gives back, and what it can be told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, final

MISSING = frozenset({"", "NA", "NaN", "nan", "N/A", "n/a", "NULL", "null", "?"})

Kind: TypeAlias = Literal["number", "boolean", "text"]
Choice: TypeAlias = Callable[[tuple[str, ...]], Sequence[str]]


@final
@dataclass(frozen=True)
class ReadOptions:
    """How to read a table, where its own text does not say it."""

    format: str | None = None  # csv, parquet, npz, svmlight; None: by name and content
    delimiter: str | None = None  # None: the one that fits the first lines
    decimal: str = "."
    missing: frozenset[str] = MISSING
    kinds: dict[str, Kind] = field(default_factory=dict)  # columns whose kind is known beforehand
    encoding: str = "utf-8"
    cells: int = 1 << 18  # entries held as text at any time: what bounds the memory


@final
@dataclass(frozen=True, eq=False)
class Table:
    """Some rows of a table: equally long arrays by name, and the number of rows that came before."""

    columns: dict[str, Any]
    n: int
    header: tuple[str, ...]  # every column the file has, read or not
    first: int = 0


def all_columns(header: tuple[str, ...]) -> Sequence[str]:
    """A choice that reads everything."""
    return header
