"""Tables whose columns are written as memory maps once.

A cache has an array for every column, numbers as they are and text as codes, so that a pass neither decodes files nor
looks words up. Its blocks are those of the table that it was made of: a fit has the same bits. Nothing in it is
unpickled: `numpy.load` refuses objects.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from klimb._files import whole_file
from klimb.errors import InputError, require
from klimb.rows.columns import Column
from klimb.rows.frames import Frame

CONTENTS = "klimb-cache.json"
VERSION = 1


@dataclass(frozen=True)
class Cached:
    """What a frame of a cache knows of it: where its blocks begin and end."""

    folder: str
    rows: tuple[slice, ...]


def write_cache(table: Any, names: Sequence[str], folder: Any) -> Path:
    """The columns ``names`` of a table in blocks, an array for each in ``folder``."""
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    lengths = [sum(frame.n for frame in block.frames(names[:1], 1 << 20)) for block in table.blocks]
    columns = []
    for k, name in enumerate(names):
        column = _plain(table.column(name))
        np.save(place / f"{k}.npy", column.values, allow_pickle=False)
        if column.missing is not None:
            np.save(place / f"{k}.missing.npy", column.missing, allow_pickle=False)
        columns.append({"name": name, "kind": column.kind, "labels": list(column.categories),
                        "ordered": column.ordered, "missing": column.missing is not None})
    with whole_file(place / CONTENTS) as stream:  # last: a cache that was cut short is none
        json.dump({"version": VERSION, "ends": np.cumsum(lengths).tolist(), "columns": columns}, stream)
    return place


def _plain(column: Column) -> Column:
    """Text as codes of its levels."""
    if column.kind in ("number", "flag") and column.values.dtype != object:
        return column
    require(column.kind in ("text", "category"), "a cache holds numbers, booleans and text",
            f"column {column.name!r} ({column.kind})", "Name the other columns, or turn this one into numbers or text.")
    codes, labels = column.factor
    small = np.int32 if len(labels) < 2**31 else np.int64
    return Column(column.name, "category", codes.astype(small), column.missing, labels, column.ordered)


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
