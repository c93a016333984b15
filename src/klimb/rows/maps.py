"""Tables whose columns are written as memory maps once.

A cache has an array for every column, numbers as they are and text as codes, so that a pass neither decodes files nor
looks words up. Its blocks are those of the table that it was made of: a fit has the same bits. Nothing in it is
unpickled: `numpy.load` refuses objects.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.lib.format import open_memmap

from klimb._files import whole_file
from klimb.errors import InputError, require
from klimb.rows.columns import Column, codes_among
from klimb.rows.frames import Frame
from klimb.rows.summaries import LevelCounts

CONTENTS = "klimb-cache.json"
VERSION = 1
AT_ONCE = 1 << 20  # rows


@dataclass(frozen=True)
class Cached:
    """What a frame of a cache knows of it: where its blocks begin and end."""

    folder: str
    rows: tuple[slice, ...]


def write_cache(table: Any, names: Sequence[str], folder: Any) -> Path:
    """The columns ``names`` of a table in blocks, an array for each in ``folder``."""
    place = Path(folder)
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError("a folder that can be written to", f"{place}: {error.strerror}",
                         "Name another one.") from error
    lengths, known = [], dict[str, _Kept]()
    for block in table.blocks:
        lengths.append(0)
        for frame in block.frames(names, AT_ONCE):
            lengths[-1] += frame.n
            for name in names:
                own = _Kept.of(frame.read(name))
                known[name] = known[name].plus(own) if name in known else own
    n, columns = sum(lengths), []
    for k, (name, own) in enumerate(known.items()):
        columns.append({"name": name, "kind": own.kind, "labels": list(own.labels), "ordered": own.ordered,
                        "missing": own.missing})
        values = open_memmap(place / f"{k}.npy", "w+", own.dtype, (n,))
        lost = open_memmap(place / f"{k}.missing.npy", "w+", np.dtype(bool), (n,)) if own.missing else None
        begin = 0
        for frame in (frame for block in table.blocks for frame in block.frames([name], AT_ONCE)):
            rows = slice(begin, begin := begin + frame.n)
            column = frame.read(name)
            values[rows] = codes_among(column, own.labels) if own.kind == "category" else column.values
            if lost is not None:
                lost[rows] = column.lost
    with whole_file(place / CONTENTS) as stream:  # last: a cache that was cut short is none
        json.dump({"version": VERSION, "ends": np.cumsum(lengths).tolist(), "columns": columns}, stream)
    return place


@dataclass(frozen=True, eq=False)
class _Kept:
    """How a column is kept: numbers and flags as they are, text as codes of its levels."""

    name: str
    kind: str
    dtype: Any
    levels: LevelCounts | None
    ordered: bool
    missing: bool
    empty: bool  # no value so far: of what kind is open

    @classmethod
    def of(cls, column: Column) -> Self:
        missing, empty = column.missing is not None, bool(column.lost.all())
        if column.kind in ("number", "flag") and column.values.dtype != object:
            return cls(column.name, column.kind, column.values.dtype, None, False, missing, empty)
        require(column.kind in ("text", "category"), "a cache holds numbers, booleans and text",
                f"column {column.name!r} ({column.kind})",
                "Name the other columns, or turn this one into numbers or text.")
        levels = LevelCounts.of(column, np.flatnonzero(~column.lost), None)
        return cls(column.name, "category", np.dtype(np.int32), levels, column.ordered, missing, empty)

    def plus(self, other: "_Kept") -> "_Kept":
        """Of the rows of both."""
        first = other if self.empty and not other.empty else self
        missing, empty = self.missing or other.missing, self.empty and other.empty
        require(self.empty or other.empty or self.kind == other.kind, f"column {self.name!r} of one kind in all rows",
                f"{self.kind} and {other.kind}", "Write the files with one type for it.")
        dtype = np.result_type(self.dtype, other.dtype) if self.kind == other.kind else first.dtype
        levels = self.levels.plus(other.levels) if self.levels and other.levels else first.levels
        return replace(first, dtype=dtype, levels=levels, missing=missing, empty=empty)

    @property
    def labels(self) -> tuple[str, ...]:
        return () if self.levels is None else self.levels.labels()[0]


def read_cache(folder: Any) -> Frame:
    """The table of a cache, its columns in memory maps."""
    place = Path(folder)
    try:
        found = json.loads((place / CONTENTS).read_text(encoding="utf-8"))
        ends = [0, *found["ends"]]
        known = {own["name"]: (k, own) for k, own in enumerate(found["columns"])}
        good = found["version"] == VERSION
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _no_cache(place, str(error)) from error
    if not good:
        raise _no_cache(place, f"version {found['version']}")

    def read(name: str) -> Column:
        k, own = known[name]
        try:
            values = np.load(place / f"{k}.npy", mmap_mode="r", allow_pickle=False)
            lost = np.load(place / f"{k}.missing.npy", mmap_mode="r", allow_pickle=False) if own["missing"] else None
        except (OSError, ValueError) as error:
            raise _no_cache(place, str(error)) from error
        if len(values) != ends[-1]:
            raise _no_cache(place, f"{len(values)} values of {name!r} for {ends[-1]} rows")
        return Column(name, own["kind"], values, lost, tuple(own["labels"]), own["ordered"])

    rows = tuple(slice(begin, end) for begin, end in zip(ends, ends[1:], strict=False) if end > begin)
    return Frame(Cached(str(place), rows), "dict", tuple(known), ends[-1], read)


def _no_cache(place: Path, why: str) -> InputError:
    return InputError("a folder that klimb cache wrote", f"{place}: {why.splitlines()[0]}", "Write it again.")
