"""Sums of passes kept in a folder: a fit that is begun again finds those it has done, and goes on with the next.

What a pass gives depends on nothing but the rows and the q that it was shown, so its sums are kept under a hash of
both. The work is the same as without, step by step and bit by bit; only passes that are known are not run.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from klimb.errors import InputError
from klimb.numerics.arrays import Array


class Checkpoint:
    """A folder of sums, for the passes over some rows."""

    def __init__(self, folder: Any, rows: Iterable[Any]) -> None:
        self.folder = Path(folder)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError("checkpoint must be a folder that can be written to", f"{folder}: {error.strerror}",
                             "Name another one.") from error
        self._rows = hashlib.sha256()
        for part in rows:
            _add(self._rows, part)

    def path(self, *identity: Any) -> Path:
        """Where the sums of a pass are."""
        own = self._rows.copy()
        for part in identity:
            _add(own, part)
        return self.folder / f"{own.hexdigest()[:32]}.npz"

    def kept(self, make: Callable[[], Mapping[str, Array]], *identity: Any) -> Mapping[str, Array]:
        """The sums of a pass: those that are there, or those that ``make`` gives, which are kept."""
        path = self.path(*identity)
        if path.exists():
            try:
                with path.open("rb") as stream, np.load(stream, allow_pickle=False) as found:
                    return {name: found[name] for name in found.files}
            except (OSError, ValueError, EOFError, BadZipFile):
                path.unlink()  # cut short with the disk full, say
        sums = make()
        part = path.with_suffix(f".{os.getpid()}.part")
        with part.open("wb") as file:
            np.savez(file, **sums)  # type: ignore[arg-type]
        part.replace(path)
        return sums


def _add(digest: Any, part: Any) -> None:
    """A value into a hash: text, numbers, arrays, records of these."""
    if isinstance(part, np.ndarray):
        digest.update(f"{part.dtype}{part.shape}".encode())
        digest.update(np.ascontiguousarray(part).tobytes() if part.dtype != object else repr(part.tolist()).encode())
    elif is_dataclass(part) and not isinstance(part, type):
        digest.update(type(part).__name__.encode())
        for own in fields(part):
            _add(digest, getattr(part, own.name))
    elif isinstance(part, (tuple, list)):
        for one in part:
            _add(digest, one)
    elif isinstance(part, Mapping):
        for name, one in part.items():
            _add(digest, (name, one))
    else:
        digest.update(repr(part).encode())
