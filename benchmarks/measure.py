"""How the benchmarks take time and show what they found."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, TypeVar

import numpy as np
import scipy
import threadpoolctl

T = TypeVar("T")
RESULTS = Path(__file__).resolve().parent / "results"


class Timed(NamedTuple):
    """What a call returned the last time, and the median of its CPU seconds."""

    value: Any
    seconds: float


def cpu(call: Callable[[], T], repeats: int = 3) -> Timed:
    """CPU seconds of ``call``, median of ``repeats``."""
    seconds = []
    value = None
    for _ in range(repeats):
        start = time.process_time()
        value = call()
        seconds.append(time.process_time() - start)
    return Timed(value, median(seconds))


def one_thread() -> Any:
    """A context in which BLAS and OpenMP use one thread: CPU time then measures work, not waiting."""
    return threadpoolctl.threadpool_limits(limits=1)


def environment() -> dict[str, Any]:
    """What the figures depend on besides the code."""
    blas = [{key: info.get(key) for key in ("internal_api", "version", "architecture", "num_threads")}
            for info in threadpoolctl.threadpool_info() if info.get("user_api") == "blas"]
    return {"python": platform.python_version(), "numpy": np.__version__, "scipy": scipy.__version__,
            "machine": platform.machine(), "blas": blas}


def table(title: str, header: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """Print rows under a header, numbers to the right."""
    cells = [[_text(cell) for cell in row] for row in rows]
    heads = list(header)
    widths = [max(len(line[column]) for line in [heads, *cells]) for column in range(len(heads))]
    print(f"\n{title}")
    for line in [heads, ["-" * width for width in widths], *cells]:
        print("  ".join(f"{cell:<{width}}" if column == 0 else f"{cell:>{width}}"
                        for column, (cell, width) in enumerate(zip(line, widths, strict=True))).rstrip(), flush=True)


def save(name: str, found: dict[str, Any], path: Path | None = None) -> Path:
    """Write what was found as JSON, with the environment; return where."""
    target = path or RESULTS / f"{name}.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps({"environment": environment(), **found}, indent=1, default=_plain) + "\n")
    return target


def _text(cell: object) -> str:
    if isinstance(cell, (float, np.floating)):
        return f"{cell:.4g}"
    return str(cell)


def _plain(value: object) -> object:
    """Numpy scalars and arrays as what JSON knows."""
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} has no JSON form")
