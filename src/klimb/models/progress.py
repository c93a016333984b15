"""Progress on stderr for work of more than a second; silence where nobody looks."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from klimb.models.model import Listen, Progress

PATIENCE = 1.0  # seconds of work before anything is shown


@contextmanager
def reporter(wanted: bool | None) -> Iterator[Listen]:
    """A listener that is told of every fit.

    ``wanted`` None means: where stderr is a terminal. There a bar is drawn by rich, which is imported only then; asked
    for elsewhere, a line is written every now and then.
    """
    terminal = sys.stderr.isatty()
    show = terminal if wanted is None else bool(wanted)
    begin, bar, last = time.monotonic(), list[Any](), [-math.inf]

    def hear(told: Progress) -> None:
        what, done, total, bound = told.what, told.done, told.total, told.bound
        now = time.monotonic()
        if not show or (wanted is None and now - begin < PATIENCE):
            return
        if terminal:
            _draw(bar, what, done, total, bound)
        elif now - last[0] >= PATIENCE:
            last[0] = now
            of = f" of about {total}" if total else ""
            print(f"{what}: {done}{of}, bound {bound:.6g}, {now - begin:.1f} s", file=sys.stderr)

    try:
        yield hear
    finally:
        if bar:
            bar[0].stop()


def _draw(bar: list[Any], what: str, done: int, total: int, bound: float) -> None:
    if not bar:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        progress = Bar(TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[bound]}"),
                            TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(),
                            console=Console(stderr=True), transient=True)
        progress.start()
        bar.extend([progress, progress.add_task(what, total=total or None, bound=""), what])
    if bar[2] != what:
        bar[0].reset(bar[1], total=total or None)
        bar[2] = what
    bar[0].update(bar[1], description=what, completed=done, total=total or None, bound=f"bound {bound:.5g}")
