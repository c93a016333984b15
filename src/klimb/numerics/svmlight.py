"""The svmlight (LIBSVM) format: ``label index:value index:value ... # comment``, one row per line."""

from array import array
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from klimb.errors import InputError
from klimb.numerics.arrays import Array


class Entries(NamedTuple):
    """Labels, and the entries of all rows: row k has those from ``ends[k]`` to ``ends[k + 1]``."""

    labels: Array
    features: npt.NDArray[np.int64]  # numbered as the file does
    values: Array
    ends: npt.NDArray[np.int64]


def parse(lines: Iterable[str], advice: str) -> Entries:
    """The rows of a file; ``qid`` is passed over, empty lines and comments are none."""
    labels, features, values, ends = array("d"), array("q"), array("d"), array("q", [0])
    for number, line in enumerate(lines, start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        try:
            labels.append(float(words[0]))
            for word in words[1:]:
                index, _, value = word.partition(":")
                if index != "qid":
                    features.append(int(index))
                    values.append(float(value))
        except ValueError as error:
            raise InputError("expected lines label index:value index:value ...",
                             f"{line.strip()[:60]!r} in line {number}", advice) from error
        ends.append(len(features))
    return Entries(np.array(labels), np.array(features), np.array(values), np.array(ends))
