"""Progress on stderr for work of more than a second; silence where nobody looks."""

import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from klimb.errors import KlimbError
from klimb.infer.loop import Callback
from klimb.models.model import Listen, Progress
from klimb.rows.blocks import BlockEngine

PATIENCE = 1.0  # seconds of work before anything is shown


@contextmanager
def reporter(wanted: bool | Listen | None) -> Iterator[Listen]:
    """A listener that is told of every fit, and of every block of a pass: the caller's own, or one that shows it.

    ``wanted`` None means: where stderr is a terminal. There a bar is drawn by rich, which is imported only then; asked
    for elsewhere, a line is written every now and then.
    """
    if callable(wanted):
        yield wanted
        return
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
            of = f" of about {total:,}" if total else ""
            height = "" if math.isnan(bound) else f", bound {bound:.6g}"
            left = "" if math.isnan(told.left) else f", {told.left:.0f} s left in this pass"
            print(f"{what}: {done:,}{of}{height}, {now - begin:.1f} s{left}", file=sys.stderr)

    try:
        yield hear
    finally:
        if bar:
            bar[0].stop()


class StoppedError(KlimbError):
    """A callback ended a fit of rows that are not in memory before there was anything to give back."""


class Watched:
    """An engine, or this process, that tells a listener of every block."""

    def __init__(self, engine: BlockEngine | None, rows: int, listen: Listen) -> None:
        self.engine, self.rows, self.listen = engine, rows, listen
        self.passes, self.bound = 0, math.nan

    def map(self, function: Callable[[Any], Any], blocks: Iterable[Any], /) -> Iterator[Any]:
        every, begin = list(blocks), time.monotonic()
        self.passes += 1
        found = map(function, every) if self.engine is None else self.engine.map(function, every)
        for k, one in enumerate(found, 1):
            share = k / len(every)
            left = (time.monotonic() - begin) * (1.0 / share - 1.0)
            told = Progress(f"rows of pass {self.passes}", round(share * self.rows), self.rows, self.bound, self.passes,
                            left)
            if self.listen(told) is False:
                raise StoppedError(f"a fit that goes to its end; got a callback that returned False in pass "
                                   f"{self.passes}. With checkpoint= the same call goes on from there.")
            yield one

    def heard(self, callback: Callback | None) -> Callback:
        """A callback of the loop that hears what the bound is, before the one that was given."""
        def each(row: Any) -> Any:
            self.bound = row.bound
            return None if callback is None else callback(row)

        return each


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
    height = "" if math.isnan(bound) else f"bound {bound:.5g}"
    bar[0].update(bar[1], description=what, completed=done, total=total or None, bound=height)
