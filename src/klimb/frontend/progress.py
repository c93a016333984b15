"""Progress on stderr for work of more than a second; silence where nobody looks."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

PATIENCE = 1.0  # seconds of work before anything is shown


@contextmanager
def reporter(wanted: bool | None, size: int) -> Iterator[Callable[[str, int, int, float], None]]:
    """A function (what, done, total, bound) to call after every fit.

    ``wanted`` None means: where stderr is a terminal. rich is imported only when there is something to show.
    """
    show = sys.stderr.isatty() if wanted is None else bool(wanted)
    begin, bar = time.monotonic(), list[Any]()

    def hear(what: str, done: int, total: int, bound: float) -> None:
        if not show or (not bar and wanted is None and time.monotonic() - begin < PATIENCE):
            return
        if not bar:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            progress = Progress(TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[bound]}"),
                                TimeRemainingColumn(), console=Console(stderr=True), transient=True)
            progress.start()
            bar.extend([progress, progress.add_task(what, total=total or None, bound="")])
        bar[0].update(bar[1], description=what, completed=done, total=total or None, bound=f"bound {bound:.4g}")

    try:
        yield hear
    finally:
        if bar:
            bar[0].stop()
