"""Readers of the files as they are published: LIBSVM, UCI's tables, CSV with a heading, ARFF, npz.

Files may be compressed (gz, bz2, xz), as some archives ship them. Every reader says what is wrong with a line by its
number.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np

from klimb.errors import InputError
from klimb.numerics.arrays import Array
from klimb.numerics.svmlight import parse

OPENERS: dict[str, Callable[..., Any]] = {"": open, ".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}


class DataSet(NamedTuple):
    """Rows of a data set: a design (dense or CSR), a target, and which rows are the official training set."""

    X: Any
    y: Array
    train: Any = None

    @property
    def dense(self) -> Array:
        """The design as an array."""
        return np.asarray(self.X if isinstance(self.X, np.ndarray) else self.X.toarray())


class TrainTest(NamedTuple):
    """Rows to train on and rows to test; dense or CSR."""

    X: Any
    y: Array
    X_test: Any
    y_test: Array


def halves(X: Any, y: Array, seed: int) -> TrainTest:
    """A random half to train on."""
    order = np.random.default_rng(seed).permutation(len(y))
    train, test = np.sort(order[: len(y) // 2]), np.sort(order[len(y) // 2 :])
    return TrainTest(X[train], y[train], X[test], y[test])


def opened(path: Path) -> TextIO:
    """A text file, compressed or not."""
    stream: TextIO = OPENERS.get(path.suffix.lower(), open)(path, "rt", encoding="utf-8", errors="replace")
    return stream


def wrong(path: Path, expected: str, line: int, text: str) -> InputError:
    """An error that names file and line."""
    return InputError(f"expected {path.name} to hold {expected}", f"{text.strip()[:60]!r} in line {line}",
                      "Take the file as it is published, without changes.")


def read_libsvm(path: Path, n_features: int, labels: bool = True) -> tuple[Any, Array]:
    """A LIBSVM file ``label index:value ...`` as a CSR matrix and labels (0 where it has none); indices from 1."""
    from scipy.sparse import csr_matrix

    advice = f"Take {path.name} as it is published, without changes."
    with opened(path) as stream:
        y, features, values, ends = parse(stream if labels else (f"0 {line}" for line in stream), advice)
    if not y.size:
        raise wrong(path, "at least one row", 1, "")
    width = int(features.max(initial=0))
    if features.min(initial=1) < 1 or width > n_features:
        raise InputError(f"expected {path.name} to number its features from 1 to {n_features}",
                         f"feature {width if width > n_features else 0}", advice)
    return csr_matrix((values, (features - 1).astype(np.int32), ends), shape=(len(y), n_features)), y


def mixed(path: Path, delimiter: str | None = None, skip: tuple[str, ...] = (), *, after: int = 0, words: int = 0,
          last: int = 0, length: int | None = None, form: str = "") -> tuple[list[list[str]], Array]:
    """A table of rows of one ``length``: the first ``words`` and the ``last`` entries as they are, else numbers.

    It begins ``after`` so many lines; ``skip`` starts lines that are not rows (comments).
    """
    kept: list[list[str]] = []
    found: list[list[float]] = []
    with opened(path) as stream:
        lines = [line.strip() for line in stream]
    for number, line in enumerate(lines, start=1):
        if not line or number <= after or line.startswith(skip):
            continue
        entries = [word.strip().strip('"') for word in line.split(delimiter)]
        end, length = len(entries) - last, length or len(entries)
        expected = form or (f"{length - words - last} numbers in every line" if len(entries) != length else "numbers")
        if len(entries) != length:
            raise wrong(path, expected, number, line)
        try:
            found.append([float(entry) for entry in entries[words:end]])
        except ValueError as error:
            raise wrong(path, expected, number, line) from error
        kept.append([*entries[:words], *entries[end:]])
    if not found:
        raise wrong(path, "at least one row", 1 + after, "")
    return kept, np.array(found)


def numbers(path: Path, delimiter: str | None = None, skip: tuple[str, ...] = ()) -> Array:
    """A table of numbers alone."""
    return mixed(path, delimiter, skip)[1]


def labelled(path: Path, labels: dict[str, float], delimiter: str | None = ",") -> DataSet:
    """A table of numbers whose last column is one of ``labels``."""
    ends, X = mixed(path, delimiter, last=1)
    for number, (end,) in enumerate(ends, start=1):
        if end not in labels:
            raise wrong(path, f"one of {', '.join(labels)} at the end of each line", number, end)
    return DataSet(X, np.array([labels[end] for end, in ends]))


def read_csv(path: Path, target: tuple[str, ...] = ("y",), drop: tuple[str, ...] = ()) -> DataSet:
    """A CSV file with a heading; the target is the first of ``target`` that the heading has."""
    with opened(path) as stream:
        head = [name.strip().strip('"') for name in stream.readline().split(",")]
    chosen = next((name for name in target if name in head), None)
    if chosen is None:
        raise InputError(f"expected {path.name} to have a heading with the column {' or '.join(target)}",
                         f"{', '.join(head[:8]) or 'an empty file'}", "Name the column of the target so.")
    table = mixed(path, ",", after=1, length=len(head), form="numbers below the heading")[1]
    places = [index for index, name in enumerate(head) if name and name != chosen and name not in drop]
    return DataSet(table[:, places], table[:, head.index(chosen)])


def read_numbers(path: Path, delimiter: str | None = None, skip: tuple[str, ...] = ()) -> DataSet:
    """A table of numbers, or an ARFF file below its heading; the last column is the target."""
    table = numbers(path, delimiter, skip)
    return DataSet(table[:, :-1], table[:, -1])


def read_npz(path: Path) -> DataSet:
    """``X`` or the CSR parts ``data, indices, indptr, shape``; ``y``; ``train`` where it is there."""
    import zipfile

    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = {key: stored[key] for key in stored.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"expected {path.name} to be an npz file of plain arrays", str(error).split("\n")[0],
                         "Write it with numpy.savez(path, X=X, y=y).") from error
    if "y" not in arrays or not ("X" in arrays or {"data", "indices", "indptr", "shape"} <= set(arrays)):
        raise InputError(f"expected {path.name} to hold y, and X or data, indices, indptr, shape",
                         ", ".join(arrays) or "nothing", "Write it with numpy.savez(path, X=X, y=y).")
    if "X" in arrays:
        X: Any = arrays["X"].astype(np.float64)
    else:
        from scipy.sparse import csr_matrix

        X = csr_matrix((arrays["data"].astype(np.float64), arrays["indices"], arrays["indptr"]),
                       shape=tuple(arrays["shape"]))
    train = arrays["train"].astype(bool) if "train" in arrays else None
    return DataSet(X, arrays["y"].astype(np.float64), train)
