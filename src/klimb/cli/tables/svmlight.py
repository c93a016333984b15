"""The svmlight format: ``label index:value index:value ... # comment``, one row per line."""

from __future__ import annotations

from typing import TextIO

import numpy as np

from klimb.cli.tables.records import Choice, Table
from klimb.errors import InputError

LIMIT = 1 << 28  # entries of the dense table: 2 GiB of float64


def read_svmlight(stream: TextIO, choose: Choice) -> Table:
    """The label as ``y``, the features as ``x1``, ``x2``, ... (numbered as the file does); absent entries are zero."""
    labels: list[float] = []
    rows: list[int] = []
    features: list[int] = []
    values: list[float] = []
    for number, line in enumerate(stream, start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        try:
            labels.append(float(words[0]))
            for word in words[1:]:
                index, _, value = word.partition(":")
                if index == "qid":
                    continue
                features.append(int(index))
                values.append(float(value))
                rows.append(len(labels) - 1)
        except ValueError as error:
            raise InputError("a line of svmlight reads label index:value index:value ...",
                             f"{line.strip()[:60]!r} in line {number}", "Check that line, or the --format.") from error
    low, high = min(features, default=1), max(features, default=0)
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
    target = column_of[np.array(features, dtype=np.intp)] if features else np.zeros(0, dtype=np.intp)
    keep = target >= 0
    dense[target[keep], np.array(rows, dtype=np.intp)[keep]] = np.array(values)[keep]
    if "y" in place:
        dense[place["y"]] = labels
    return Table({name: dense[at] for name, at in place.items()}, len(labels), header)
