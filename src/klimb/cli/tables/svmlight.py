"""Tables in the svmlight format."""

from __future__ import annotations

from typing import TextIO

import numpy as np

from klimb.cli.tables.records import Choice, Table
from klimb.errors import InputError
from klimb.numerics.svmlight import parse

LIMIT = 1 << 28  # entries of the dense table: 2 GiB of float64


def read_svmlight(stream: TextIO, choose: Choice) -> Table:
    """The label as ``y``, the features as ``x1``, ``x2``, ... (numbered as the file does); absent entries are zero."""
    labels, features, values, ends = parse(stream, "Check that line, or the --format.")
    low, high = int(features.min(initial=1)), int(features.max(initial=0))
    if low < 0:
        raise InputError("features of svmlight are numbered from 0 or 1", f"{low}", "Renumber them.")
    names = [f"x{index}" for index in range(min(low, 1), high + 1)]
    header = ("y", *names)
    wanted = list(choose(header))
    if len(wanted) * len(labels) > LIMIT:
        raise InputError("the columns a formula uses are held dense, at most 2 GiB of them",
                         f"{len(labels)} rows of {len(wanted)} columns",
                         "Name fewer columns, or use klimb.sklearn, whose estimators take sparse matrices.")
    place = {name: index for index, name in enumerate(wanted)}
    column_of = np.full(high + 1, -1)
    for name, at in place.items():
        if name != "y":
            column_of[int(name[1:])] = at
    dense = np.zeros((len(wanted), len(labels)))
    target, rows = column_of[features], np.repeat(np.arange(len(labels)), np.diff(ends))
    keep = target >= 0
    dense[target[keep], rows[keep]] = values[keep]
    if "y" in place:
        dense[place["y"]] = labels
    return Table({name: dense[at] for name, at in place.items()}, len(labels), header)
