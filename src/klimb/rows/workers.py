"""What a worker of an engine does with a block, and what it gives back where that fails; calls that may not return."""

import re
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from klimb.errors import InputError, KlimbError
from klimb.rows.blocks import TableBlock


class EngineError(InputError):
    """An engine could not finish a pass."""


@dataclass(frozen=True)
class Failure:
    """What a worker gives back instead of a result: engines wrap what is raised, each in its own way."""

    error: KlimbError


def applied(function: Callable[[Any], Any], block: Any) -> Any:
    """What a worker does with a block, or with the table of one that it holds."""
    try:
        return function(block)
    except KlimbError as error:
        return Failure(error)
    except Exception as error:
        return Failure(EngineError("a pass without errors", f"{type(error).__name__}: {first_line(error)}",
                                   "Run it without engine= to see where it comes from."))


def applied_there(function: Callable[[Any], Any], data: Any) -> Any:
    """The same for a table that the engine holds."""
    return applied(function, TableBlock.of(data))


def itself(value: Any) -> Any:
    """The same, as a result."""
    return value


def first_line(error: BaseException) -> str:
    """What an error says, in one line."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")[:200]
    return text or type(error).__name__


def bounded(call: Callable[[], Any], seconds: float) -> Any:
    """What a call gives that may wait for processes that are gone; no longer than so many seconds."""
    found: list[tuple[Any, BaseException | None]] = []

    def work() -> None:
        try:
            found.append((call(), None))
        except BaseException as error:
            found.append((None, error))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    value, error = found[0] if found else (None, TimeoutError(f"nothing for {seconds:.0f} seconds"))
    if error is not None:
        raise error
    return value


def listens(address: str) -> bool:
    """Whether somebody does at [protocol://]host:port; of addresses of another form it is not known.

    >>> listens("127.0.0.1:1"), listens("local[2]")
    (False, True)
    """
    found = re.fullmatch(r"(?:(?:tcp|tls|ray|spark)://)?\[?([^/,]+?)\]?:(\d+)", address)
    with suppress(OSError):
        if found is not None:
            socket.create_connection((found[1], int(found[2])), timeout=2.0).close()
        return True
    return False


def serve(pipe: Any) -> None:
    """What a process of `Processes` does until its driver closes the pipe, or is gone; Ctrl-C is for the driver."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(EOFError, OSError):
        while True:
            pipe.send(applied(*pipe.recv()))
