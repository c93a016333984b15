"""Progress on standard error: a line now and then, nothing if it is not wanted."""

from __future__ import annotations

import sys
import time

from klimb.apps.papers.runner import Hear

PATIENCE = 10.0  # seconds between lines


def progress(title: str, wanted: bool) -> Hear:
    """A function to be called with (job, done, total)."""
    begin, last = time.monotonic(), [float("-inf")]

    def hear(job: str, done: int, total: int) -> None:
        now = time.monotonic()
        if wanted and job and now - last[0] >= PATIENCE:
            last[0] = now
            print(f"{title}: {done} of {total} done, {now - begin:.0f} s, now {job}", file=sys.stderr, flush=True)

    return hear
