"""Progress on standard error: a bar in a terminal, a line now and then elsewhere, nothing if it is not wanted."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from klimb.apps.papers.runner import Hear

PATIENCE = 10.0  # seconds between lines where there is no terminal


@contextmanager
def progress(title: str, wanted: bool) -> Iterator[Hear]:
    """A function to be called with (job, done, total)."""
    if not wanted:
        yield lambda *_: None
    elif sys.stderr.isatty():
        with _bar(title) as hear:
            yield hear
    else:
        yield _lines(title)


def _lines(title: str) -> Hear:
    begin, last = time.monotonic(), [float("-inf")]

    def hear(job: str, done: int, total: int) -> None:
        now = time.monotonic()
        if job and now - last[0] >= PATIENCE:
            last[0] = now
            print(f"{title}: {done} of {total} done, {now - begin:.0f} s, now {job}", file=sys.stderr, flush=True)

    return hear


@contextmanager
def _bar(title: str) -> Iterator[Hear]:
    """Drawn by rich, which is imported only here."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn(title), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
               TextColumn("{task.fields[job]}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None, job="")
        yield lambda job, done, total: bar.update(task, completed=done, total=total, job=job)
