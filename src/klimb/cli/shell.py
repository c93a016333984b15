"""What commands share with the shell: messages, results, files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Advice is written for Python; at the shell the same is said by options.
SPOKEN = ((re.compile(r'family="([^"]+)"'), r"--family \1"), (re.compile(r'link="([^"]+)"'), r"--link \1"),
          (re.compile(r'pass missing="drop"'), "say --on-missing drop"), (re.compile(r"weights="), "--weights "))
ROW = re.compile(r"\brows? \d")


def colour_wanted(stream: Any) -> bool:
    """Colour in a terminal, unless NO_COLOR says no (https://no-color.org)."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb" and bool(
        getattr(stream, "isatty", lambda: False)())


def complain(message: str) -> None:
    """An error, on standard error."""
    head = "\x1b[1;31mklimb:\x1b[0m" if colour_wanted(sys.stderr) else "klimb:"
    for python, option in SPOKEN:
        message = python.sub(option, message)
    hint = "\n(Rows are counted from 0: row 0 is the line below the heading.)" if ROW.search(message) else ""
    with contextlib.suppress(BrokenPipeError):
        print(f"{head} {message}{hint}", file=sys.stderr)


def say(message: str, quiet: bool = False) -> None:
    """A message that is not a result, on standard error."""
    if not quiet:
        with contextlib.suppress(BrokenPipeError):
            print(message, file=sys.stderr, flush=True)


def emit(text: str) -> None:
    """A result, on standard output; names the terminal cannot show are escaped, not fatal.

    A reader that leaves early (``klimb fit ... | head``) is no error: files are still to be written.
    """
    try:
        print(text, flush=True)
    except UnicodeEncodeError:
        encoding = sys.stdout.encoding or "ascii"
        emit(text.encode(encoding, "backslashreplace").decode(encoding))
    except BrokenPipeError:
        hush()


def hush() -> None:
    """The reader of our output has left: write what is still buffered to nowhere."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())


def check_targets(*targets: str | None, sources: tuple[str, ...] = ()) -> None:
    """Before long work: can these files be written, and is none of them one that is read?"""
    from klimb.errors import InputError

    for target in targets:
        if target is None or target == "-":
            continue
        place = Path(target)
        if not place.parent.is_dir():
            raise InputError(f"a directory for {place}", f"{place.parent}, which does not exist", "Make it first.")
        if place.exists() and any(Path(source).exists() and place.samefile(source) for source in sources):
            raise InputError("results go to another file than the one read", f"{place} for both", "Name another file.")


@contextlib.contextmanager
def terminate_softly() -> Iterator[None]:
    """A request to terminate ends the command as an error would, so that what must be cleaned up is."""

    def leave(number: int, frame: Any) -> None:
        raise SystemExit(128 + number)

    try:
        before = signal.signal(signal.SIGTERM, leave)
    except ValueError:  # not in the main thread: nothing to install
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
