"""The data sets of the papers, read from the files as they are published; nothing is downloaded.

LIBSVM, UCI's tables, CSV, ARFF and npz, compressed or not; docs/papers/data.md says where each set is published. Every
set can also be given as NAME.npz (``X`` and ``y``, or parts of a CSR matrix) or NAME.csv with a column ``y``.
"""

import bz2
import gzip
import hashlib
import lzma
import os
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TextIO, TypeAlias

import numpy as np

from klimb.errors import InputError, require
from klimb.numerics.arrays import Array, check_finite
from klimb.numerics.lazy import scipy_sparse
from klimb.numerics.svmlight import parse

OPENERS: dict[str, Callable[..., Any]] = {"": open, ".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
Reader: TypeAlias = "Callable[[Sequence[Path]], DataSet]"
Forms: TypeAlias = dict[tuple[str, ...], Reader]
LIBSVM = "the LIBSVM data page, https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/"
UCI = "the UCI repository, https://archive.ics.uci.edu"
SEXES = ("F", "I", "M")  # of abalones
VARIABLE = "KLIMB_DATA"
PAGE = "docs/papers/data.md"


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


def split_rows(X: Any, y: Array, train: Any, test: Any) -> TrainTest:
    """Rows of these numbers."""
    return TrainTest(X[train], y[train], X[test], y[test])


def halves(X: Any, y: Array, seed: int) -> TrainTest:
    """A random half to train on."""
    order = np.random.default_rng(seed).permutation(len(y))
    return split_rows(X, y, np.sort(order[: len(y) // 2]), np.sort(order[len(y) // 2 :]))


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
    advice = f"Take {path.name} as it is published, without changes."
    with opened(path) as stream:
        y, features, values, ends = parse(stream if labels else (f"0 {line}" for line in stream), advice)
    if not y.size:
        raise wrong(path, "at least one row", 1, "")
    width = int(features.max(initial=0))
    if features.min(initial=1) < 1 or width > n_features:
        raise InputError(f"expected {path.name} to number its features from 1 to {n_features}",
                         f"feature {width if width > n_features else 0}", advice)
    return scipy_sparse.csr_matrix((values, (features - 1).astype(np.int32), ends), shape=(len(y), n_features)), y


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
    table = mixed(path, delimiter, skip)[1]
    return DataSet(table[:, :-1], table[:, -1])


def read_npz(path: Path) -> DataSet:
    """``X`` or the CSR parts ``data, indices, indptr, shape``; ``y``; ``train`` where it is there."""
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
        X = scipy_sparse.csr_matrix((arrays["data"].astype(np.float64), arrays["indices"], arrays["indptr"]),
                                    shape=tuple(arrays["shape"]))
    train = arrays["train"].astype(bool) if "train" in arrays else None
    return DataSet(X, arrays["y"].astype(np.float64), train)


class Published(NamedTuple):
    """Where a data set is published, and how it is read from files (each may be compressed) that together are it."""
    where: str
    forms: Forms = {}  # noqa: RUF012 (never written to)


def _joined(parts: Sequence[tuple[Any, Array]]) -> DataSet:
    """One file, or the training rows with the test rows behind them."""
    X, y = [X for X, _ in parts], np.concatenate([y for _, y in parts])
    whole = np.concatenate(X) if isinstance(X[0], np.ndarray) else scipy_sparse.vstack(X, format="csr")
    return DataSet(whole, y, np.arange(len(y)) < len(parts[0][1]) if len(parts) > 1 else None)


def _reader(read: Callable[..., DataSet]) -> Callable[..., Reader]:
    """``read(paths, ...)`` as a function of the rest, which gives a reader."""
    return lambda *how, **more: lambda paths: read(paths, *how, **more)


@_reader
def _libsvm(paths: Sequence[Path], n_features: int, *, dense: bool = True, real: bool = False) -> DataSet:
    """One file, or the training and the test part of it, labels as -1 and +1 unless the target is real."""
    X, y, train = _joined([read_libsvm(path, n_features) for path in paths])
    return DataSet(X.toarray() if dense else X, y if real else np.where(y == np.max(y), 1.0, -1.0), train)


@_reader
def _labelled(paths: Sequence[Path], labels: dict[str, float], delimiter: str | None = ",") -> DataSet:
    """A table of numbers whose last column is one of ``labels``."""
    ends, X = mixed(paths[0], delimiter, last=1)
    for number, (end,) in enumerate(ends, start=1):
        if end not in labels:
            raise wrong(paths[0], f"one of {', '.join(labels)} at the end of each line", number, end)
    return DataSet(X, np.array([labels[end] for end, in ends]))


@_reader
def _challenge(paths: Sequence[Path], n_features: int, *, sparse: bool = False) -> DataSet:
    """The NIPS 2003 challenge: data and labels of the training set, then of the validation set."""
    rows = [read_libsvm(path, n_features, labels=False)[0] if sparse else mixed(path, length=n_features)[1]
            for path in paths[::2]]
    found = _joined(list(zip(rows, (mixed(path)[1][:, 0] for path in paths[1::2]), strict=True)))
    return found._replace(y=np.where(found.y > 0, 1.0, -1.0))


def _challenge_files(name: str) -> tuple[str, ...]:
    return tuple(f"{name}_{part}.{kind}" for part in ("train", "valid") for kind in ("data", "labels"))


def _usps(paths: Sequence[Path]) -> DataSet:
    """LIBSVM's files, whose labels are digit + 1, or the text files zip.train and zip.test, which say the digit."""
    if "zip" in paths[0].name:
        return _joined([(table[:, 1:], table[:, 0]) for _, table in map(mixed, paths)])
    read = _libsvm(256, real=True)(paths)
    return read._replace(y=read.y - 1.0)


def _threes_and_fives(paths: Sequence[Path]) -> DataSet:
    digits = _usps(paths)
    kept = (digits.y == 3) | (digits.y == 5)
    return DataSet(digits.X[kept], np.where(digits.y[kept] == 3, 1.0, -1.0), digits.train[kept])


def _indicators(column: Sequence[str], levels: Sequence[str] | None = None) -> list[Any]:
    return [np.array(column) == level for level in levels or sorted(set(column))]


def _flares(paths: Sequence[Path]) -> DataSet:
    """Three letters as indicators, seven whole numbers; the target is the number of C-class flares."""
    letters, table = mixed(paths[0], skip=("*",), words=3, length=13,
                           form="three letters and ten whole numbers in every line")
    columns = [one for column in zip(*letters, strict=True) for one in _indicators(column)]
    return DataSet(np.column_stack([*columns, table[:, :7]]), table[:, 7])


def _abalone(paths: Sequence[Path]) -> DataSet:
    form = "a letter and eight numbers in every line"
    sexes, table = mixed(paths[0], ",", words=1, length=9, form=form)
    for number, (sex,) in enumerate(sexes, start=1):
        if sex not in SEXES:
            raise wrong(paths[0], form, number, sex)
    return DataSet(np.column_stack([*_indicators([sex for sex, in sexes], SEXES), table[:, :-1]]), table[:, -1])


def _nodal(paths: Sequence[Path]) -> DataSet:
    """Five indicators with an intercept before them; R's table calls the outcome r."""
    read = read_csv(paths[0], target=("y", "r"), drop=("rownames", "m"))
    X = read.X if (read.X[:, 0] == 1.0).all() else np.column_stack([np.ones(len(read.y)), read.X])
    return DataSet(X, np.where(read.y > 0, 1.0, -1.0))


ESL = f"{LIBSVM}, and the page of The Elements of Statistical Learning (zip.train, zip.test)"
CATALOGUE: dict[str, Published] = {
    "a1a": Published(LIBSVM, {("a1a", "a1a.t"): _libsvm(123, dense=False)}),
    "a9a": Published(LIBSVM, {("a9a",): _libsvm(123, dense=False)}),
    "colon": Published(LIBSVM, {("colon-cancer",): _libsvm(2000)}),
    "gisette": Published(f"{LIBSVM}, and {UCI} (Gisette)", {("gisette_scale", "gisette_scale.t"): _libsvm(5000),
                                                            _challenge_files("gisette"): _challenge(5000)}),
    "madelon": Published(f"{LIBSVM}, and {UCI} (Madelon)", {("madelon", "madelon.t"): _libsvm(500),
                                                            _challenge_files("madelon"): _challenge(500)}),
    "arcene": Published(f"{UCI} (Arcene)", {_challenge_files("arcene"): _challenge(10_000)}),
    "dexter": Published(f"{UCI} (Dexter)", {_challenge_files("dexter"): _challenge(20_000, sparse=True)}),
    "ionosphere": Published(f"{UCI} (Ionosphere)", {("ionosphere.data",): _labelled({"g": 1.0, "b": -1.0})}),
    "sonar": Published(f"{UCI} (Connectionist Bench)", {("sonar.all-data",): _labelled({"M": 1.0, "R": -1.0})}),
    "usps": Published(ESL, {("usps", "usps.t"): _usps, ("zip.train", "zip.test"): _usps}),
    "usps_3vs5": Published(ESL, {("usps", "usps.t"): _threes_and_fives, ("zip.train", "zip.test"): _threes_and_fives}),
    "boston": Published(f"{LIBSVM} (housing), and StatLib (boston)",  # the papers' Housing
                        {("housing.data",): lambda paths: read_numbers(paths[0]),
                         ("housing",): _libsvm(13, real=True)}),
    "triazines": Published(LIBSVM, {("triazines",): _libsvm(60, real=True)}),
    "space_ga": Published(LIBSVM, {("space_ga",): _libsvm(6, real=True)}),
    "german": Published(f"{UCI} (Statlog German Credit), and {LIBSVM} (german.numer)",
                        {("german.data-numeric",): _labelled({"2": 1.0, "1": -1.0}, None),  # 2 is bad credit
                         ("german.numer",): _libsvm(24)}),
    "flares": Published(f"{UCI} (Solar Flare)", {("flare.data2",): _flares}),
    "abalone": Published(f"{UCI} (Abalone)", {("abalone.data",): _abalone}),
    "stock": Published("StatLib and OpenML (stock)",
                       {("stock.arff",): lambda paths: read_numbers(paths[0], ",", skip=("@", "%"))}),
    "nodal": Published("R's package boot (nodal), written as CSV", {("nodal.csv",): _nodal}),
    "imdb": Published("Maas et al. (2011), Large Movie Review Dataset; counts of words as imdb.npz"),
    "reuters": Published("the pages of LASVM (reuters), written as reuters.npz"),
    "farm_ads": Published(f"{UCI} (Farm Ads)", {("farm-ads-vect",): _libsvm(54_877, dense=False)}),
    "rcv1_small": Published("the test sets of Vowpal Wabbit, written as rcv1_small.npz"),
}


class Library:
    """The data sets of a folder.

    Parameters
    ----------
    folder : path, optional
        Where the files are; by default what the environment variable KLIMB_DATA names. Nothing is downloaded.

    Examples
    --------
    >>> import numpy as np, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> np.savez(f"{folder}/sonar.npz", X=np.eye(2), y=np.array([1.0, -1.0]))
    >>> Library(folder).load("sonar").X.shape
    (2, 2)
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        named = folder if folder is not None else os.environ.get(VARIABLE) or None
        self.folder = None if named is None else Path(named)
        self._read: dict[str, DataSet] = {}
        self._facts: dict[str, dict[str, Any]] = {}

    def has(self, name: str) -> bool:
        """Is the set in the folder?"""
        return self.folder is not None and self.folder.is_dir() and self._find(name) is not None

    def load(self, name: str) -> DataSet:
        """The data set, read once."""
        if name not in self._read:
            read, paths = self._sure(name)
            data = read(paths)
            require(data.X.shape[0] == len(data.y) > 0,
                    f"expected the data set {name} to have as many targets as rows, and some",
                    f"{data.X.shape[0]} rows and {len(data.y)} targets", "Take the published files.")
            check_finite(data.X if isinstance(data.X, np.ndarray) else data.X.data, f"X of {name}")
            check_finite(data.y, f"y of {name}")
            self._read[name] = data
        return self._read[name]

    def facts(self, name: str) -> dict[str, Any]:
        """Files of the set, and a digest of them, by which a change is noticed."""
        if name not in self._facts:
            _, paths = self._sure(name)
            digest = hashlib.sha256()
            for path in paths:
                digest.update(path.read_bytes())
            self._facts[name] = {"files": [path.name for path in paths], "sha256": digest.hexdigest()}
        return self._facts[name]

    def _forms(self, name: str) -> Forms:
        own = CATALOGUE[name].forms if name in CATALOGUE else {}
        return {(f"{name}.npz",): lambda paths: read_npz(paths[0]), **own,
                (f"{name}.csv",): own.get((f"{name}.csv",), lambda paths: read_csv(paths[0]))}

    def _find(self, name: str) -> tuple[Reader, list[Path]] | None:
        assert self.folder is not None
        for files, read in self._forms(name).items():
            places = [[self.folder / f"{file}{ending}" for ending in OPENERS] for file in files]
            paths = [next((path for path in either if path.is_file()), None) for either in places]
            if None not in paths:
                return read, [path for path in paths if path is not None]
        return None

    def _sure(self, name: str) -> tuple[Reader, list[Path]]:
        files = ", or ".join(map(" and ".join, self._forms(name)))
        where = CATALOGUE[name].where if name in CATALOGUE else f"the places named in {PAGE}"
        if self.folder is None:
            raise InputError(f"expected a folder with the data set {name} ({files})", f"neither --data nor {VARIABLE}",
                             f"It is published at {where}. Put its file into a folder and name that: --data DIR.")
        require(self.folder.is_dir(), f"expected a folder with the data set {name}",
                f"{self.folder}, which is no folder", f"Name another with --data or {VARIABLE}.")
        found = self._find(name)
        if found is None:
            raise InputError(f"expected the data set {name} as {files}", f"no such file in {self.folder}",
                             f"It is published at {where}. Put it there under that name; {PAGE} says more.")
        return found
