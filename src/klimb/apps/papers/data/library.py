"""The data sets of the papers: where each is published, the files that are read, and a folder of them.

docs/papers/data.md is the same for readers, and says what stands in for what. Every set can also be given as NAME.npz
(``X`` and ``y``, or the parts of a CSR matrix) or as NAME.csv with a heading and the target in a column ``y``.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, final

import numpy as np

from klimb.apps.papers.data import formats
from klimb.apps.papers.data.formats import DataSet
from klimb.errors import InputError, require
from klimb.numerics.arrays import check_finite

Reader: TypeAlias = Callable[[Sequence[Path]], DataSet]
Forms: TypeAlias = dict[tuple[str, ...], Reader]
LIBSVM = "the LIBSVM data page, https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/"
UCI = "the UCI repository, https://archive.ics.uci.edu"
SEXES = ("F", "I", "M")  # of abalones
VARIABLE = "KLIMB_DATA"
PAGE = "docs/papers/data.md"


@final
@dataclass(frozen=True)
class Published:
    """Where a data set is published, and how it is read from files (each may be compressed) that together are it."""

    where: str
    forms: Forms = field(default_factory=dict)


def _libsvm(n_features: int, *, dense: bool = True, real: bool = False) -> Reader:
    """One file, or the training and the test part of it, labels as -1 and +1 unless the target is real."""
    def read(paths: Sequence[Path]) -> DataSet:
        from scipy.sparse import vstack

        parts = [formats.read_libsvm(path, n_features) for path in paths]
        X = vstack([X for X, _ in parts], format="csr")
        y = np.concatenate([y for _, y in parts])
        if not real:
            y = np.where(y == np.max(y), 1.0, -1.0)
        train = np.arange(len(y)) < len(parts[0][1]) if len(parts) > 1 else None
        return DataSet(X.toarray() if dense else X, y, train)

    return read


def _labelled(labels: dict[str, float], delimiter: str | None = ",") -> Reader:
    return lambda paths: formats.labelled(paths[0], labels, delimiter)


def _challenge(n_features: int, *, sparse: bool = False) -> Reader:
    """The NIPS 2003 challenge: data and labels of the training set, then of the validation set."""
    def read(paths: Sequence[Path]) -> DataSet:
        from scipy.sparse import vstack

        blocks: list[Any] = [formats.read_libsvm(path, n_features, labels=False)[0] if sparse else
                             formats.mixed(path, length=n_features)[1] for path in paths[::2]]
        labels = [formats.numbers(path)[:, 0] for path in paths[1::2]]
        y = np.concatenate(labels)
        X = vstack(blocks, format="csr") if sparse else np.concatenate(blocks)
        return DataSet(X, np.where(y > 0, 1.0, -1.0), np.arange(len(y)) < len(labels[0]))

    return read


def _challenge_files(name: str) -> tuple[str, ...]:
    return tuple(f"{name}_{part}.{kind}" for part in ("train", "valid") for kind in ("data", "labels"))


def _usps(paths: Sequence[Path]) -> DataSet:
    """LIBSVM's files, whose labels are digit + 1, or the text files zip.train and zip.test, which say the digit."""
    if "zip" in paths[0].name:
        tables = [formats.numbers(path) for path in paths]
        return DataSet(np.concatenate([table[:, 1:] for table in tables]),
                         np.concatenate([table[:, 0] for table in tables]),
                         np.arange(sum(map(len, tables))) < len(tables[0]))
    read = _libsvm(256, real=True)(paths)
    return DataSet(read.X, read.y - 1.0, read.train)


def _threes_and_fives(paths: Sequence[Path]) -> DataSet:
    digits = _usps(paths)
    kept = (digits.y == 3) | (digits.y == 5)
    return DataSet(digits.X[kept], np.where(digits.y[kept] == 3, 1.0, -1.0), digits.train[kept])


def _indicators(column: Sequence[str], levels: Sequence[str] | None = None) -> list[Any]:
    return [np.array(column) == level for level in levels or sorted(set(column))]


def _flares(paths: Sequence[Path]) -> DataSet:
    """Three letters as indicators, seven whole numbers; the target is the number of C-class flares."""
    letters, table = formats.mixed(paths[0], skip=("*",), words=3, length=13,
                           form="three letters and ten whole numbers in every line")
    columns = [one for column in zip(*letters, strict=True) for one in _indicators(column)]
    return DataSet(np.column_stack([*columns, table[:, :7]]), table[:, 7])


def _abalone(paths: Sequence[Path]) -> DataSet:
    form = "a letter and eight numbers in every line"
    sexes, table = formats.mixed(paths[0], ",", words=1, length=9, form=form)
    for number, (sex,) in enumerate(sexes, start=1):
        if sex not in SEXES:
            raise formats.wrong(paths[0], form, number, sex)
    return DataSet(np.column_stack([*_indicators([sex for sex, in sexes], SEXES), table[:, :-1]]), table[:, -1])


def _nodal(paths: Sequence[Path]) -> DataSet:
    """Five indicators with an intercept before them; R's table calls the outcome r."""
    read = formats.read_csv(paths[0], target=("y", "r"), drop=("rownames", "m"))
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
                        {("housing.data",): lambda paths: formats.read_numbers(paths[0]),
                         ("housing",): _libsvm(13, real=True)}),
    "triazines": Published(LIBSVM, {("triazines",): _libsvm(60, real=True)}),
    "space_ga": Published(LIBSVM, {("space_ga",): _libsvm(6, real=True)}),
    "german": Published(f"{UCI} (Statlog German Credit), and {LIBSVM} (german.numer)",
                        {("german.data-numeric",): _labelled({"2": 1.0, "1": -1.0}, None),  # 2 is bad credit
                         ("german.numer",): _libsvm(24)}),
    "flares": Published(f"{UCI} (Solar Flare)", {("flare.data2",): _flares}),
    "abalone": Published(f"{UCI} (Abalone)", {("abalone.data",): _abalone}),
    "stock": Published("StatLib and OpenML (stock)",
                       {("stock.arff",): lambda paths: formats.read_numbers(paths[0], ",", skip=("@", "%"))}),
    "nodal": Published("R's package boot (nodal), written as CSV", {("nodal.csv",): _nodal}),
    "imdb": Published("Maas et al. (2011), Large Movie Review Dataset; counts of words as imdb.npz"),
    "reuters": Published("the pages of LASVM (reuters), written as reuters.npz"),
    "farm_ads": Published(f"{UCI} (Farm Ads)", {("farm-ads-vect",): _libsvm(54_877, dense=False)}),
    "rcv1_small": Published("the test sets of Vowpal Wabbit, written as rcv1_small.npz"),
}


@final
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
        return {(f"{name}.npz",): lambda paths: formats.read_npz(paths[0]), **own,
                (f"{name}.csv",): own.get((f"{name}.csv",), lambda paths: formats.read_csv(paths[0]))}

    def _find(self, name: str) -> tuple[Reader, list[Path]] | None:
        assert self.folder is not None
        for files, read in self._forms(name).items():
            places = [[self.folder / f"{file}{ending}" for ending in formats.OPENERS] for file in files]
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
