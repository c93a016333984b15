"""A folder of data sets: finds the files of a set by their published names, reads them, remembers what was read."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any, final

import numpy as np

from klimb.apps.papers.data.catalogue import CATALOGUE, Form
from klimb.apps.papers.data.formats import OPENERS, DataSet, read_csv, read_npz
from klimb.errors import InputError
from klimb.numerics.arrays import check_finite

VARIABLE = "KLIMB_DATA"
PAGE = "docs/papers/data.md"


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
            form, paths = self._sure(name)
            data = form.read(paths)
            self._check(name, data)
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

    def _forms(self, name: str) -> tuple[Form, ...]:
        own = CATALOGUE[name].forms if name in CATALOGUE else ()
        plain = (Form((f"{name}.npz",), lambda paths: read_npz(paths[0])),)
        if name == "nodal":  # its CSV form is its own
            return (*plain, *own)
        return (*plain, *own, Form((f"{name}.csv",), lambda paths: read_csv(paths[0])))

    def _find(self, name: str) -> tuple[Form, list[Path]] | None:
        assert self.folder is not None
        for form in self._forms(name):
            paths = [self._file(file) for file in form.files]
            found = [path for path in paths if path is not None]
            if len(found) == len(paths):
                return form, found
        return None

    def _file(self, name: str) -> Path | None:
        """A file by its published name, as it is or compressed."""
        assert self.folder is not None
        for ending in OPENERS:
            path = self.folder / f"{name}{ending}"
            if path.is_file():
                return path
        return None

    def _sure(self, name: str) -> tuple[Form, list[Path]]:
        files = ", or ".join(" and ".join(form.files) for form in self._forms(name))
        where = CATALOGUE[name].where if name in CATALOGUE else f"the places named in {PAGE}"
        if self.folder is None:
            raise InputError(f"expected a folder with the data set {name} ({files})", f"neither --data nor {VARIABLE}",
                             f"It is published at {where}. Put its file into a folder and name that: --data DIR.")
        if not self.folder.is_dir():
            raise InputError(f"expected a folder with the data set {name}", f"{self.folder}, which is no folder",
                             f"Name another with --data or {VARIABLE}.")
        found = self._find(name)
        if found is None:
            raise InputError(f"expected the data set {name} as {files}", f"no such file in {self.folder}",
                             f"It is published at {where}. Put it there under that name; {PAGE} says more.")
        return found

    def _check(self, name: str, data: DataSet) -> None:
        if data.X.shape[0] != len(data.y) or len(data.y) == 0:
            raise InputError(f"expected the data set {name} to have as many targets as rows, and some",
                             f"{data.X.shape[0]} rows and {len(data.y)} targets", "Take the published files.")
        check_finite(data.X if isinstance(data.X, np.ndarray) else data.X.data, f"X of {name}")
        check_finite(data.y, f"y of {name}")


