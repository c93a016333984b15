"""The record of a run: what was found, with what, on what. It is the journal too: written anew after every job.

A file appears whole or not at all (a new file takes the place of the old one), so that a run may be killed at any
moment and be continued from what it had done.
"""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, final

import numpy as np

from klimb._files import whole_file
from klimb.apps.papers.experiment import Found, Size
from klimb.errors import InputError

SCHEMA = "klimb.reproduce/1"


def plain(value: Any) -> Any:
    """A value as JSON has it: arrays as lists, NaN and infinities as null.

    >>> plain({"a": np.array([1.0, np.nan]), "b": (np.int64(3), True)})
    {'a': [1.0, None], 'b': [3, True]}
    """
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(inside) for key, inside in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inside) for inside in value]
    if value is None or isinstance(value, str | bool | int):
        return value
    raise TypeError(f"{type(value).__name__} has no JSON form")


@cache
def machine() -> dict[str, Any]:
    """What the figures depend on besides the code: versions, kind of machine, BLAS."""
    import scipy
    import threadpoolctl

    import klimb

    blas = sorted({f"{info.get('internal_api')} {info.get('version')} {info.get('architecture', '')}".strip()
                   for info in threadpoolctl.threadpool_info() if info.get("user_api") == "blas"})
    return {"klimb": klimb.__version__, "python": platform.python_version(), "numpy": np.__version__,
            "scipy": scipy.__version__, "system": platform.system(), "machine": platform.machine(),
            "processors": os.cpu_count(), "blas": blas, "blas_threads": 1}


@final
@dataclass
class Record:
    """The file of one run, as far as it has come."""

    path: Path
    experiment: str
    size: Size
    data: dict[str, Any] = field(default_factory=dict)  # set -> files, digest, rows, columns
    results: dict[str, Found] = field(default_factory=dict)
    cpu_seconds: dict[str, float] = field(default_factory=dict)  # by job
    finished: bool = False
    extra: dict[str, Any] = field(default_factory=dict)  # title, tables, ... of a finished run

    @classmethod
    def open(cls, path: Path, experiment: str, size: Size) -> Record:
        """What an earlier run left, or an empty record."""
        if not path.exists():
            return cls(path, experiment, size)
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            head = (stored["schema"], stored["experiment"], stored["size"])
            if head != (SCHEMA, experiment, size):
                raise ValueError(f"that of {head}")
            return cls(path, experiment, size, stored["data"], stored["results"], stored["cpu_seconds"])
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"expected {path} to be the record of {experiment} ({size}, {SCHEMA})",
                             f"{type(error).__name__}: {error}",
                             "Move it away, name another folder with --out, or begin anew with --fresh.") from error

    def keep(self, job: str, found: Found, cpu_seconds: float) -> None:
        """Add what a job found, and write the file."""
        self.results[job] = plain(found)
        self.cpu_seconds[job] = round(cpu_seconds, 3)
        self.write()

    def write(self) -> None:
        """The whole record, in the place of the last one."""
        facts = {"schema": SCHEMA, "experiment": self.experiment, "size": self.size, "finished": self.finished,
                 **self.extra, "machine": machine(), "total_cpu_seconds": round(sum(self.cpu_seconds.values()), 1),
                 "data": self.data, "cpu_seconds": self.cpu_seconds, "results": self.results}
        with whole_file(self.path) as stream:
            stream.write(compact(plain(facts)) + "\n")


def compact(value: Any, indent: int = 0) -> str:
    """JSON with one entry of an object per line and lists on a line of their own: small, and good to read in a diff.

    >>> print(compact({"a": [1, 2.5], "b": {"c": None}, "d": {}}))
    {
     "a": [1, 2.5],
     "b": {
      "c": null
     },
     "d": {}
    }
    """
    if isinstance(value, dict) and value:
        blanks = " " * (indent + 1)
        inside = ",\n".join(f"{blanks}{json.dumps(key, ensure_ascii=False)}: {compact(one, indent + 1)}"
                            for key, one in value.items())
        return f"{{\n{inside}\n{' ' * indent}}}"
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
