"""The errors klimb raises. Every message says what was expected, what came, and what to do."""

from collections.abc import Iterable
from typing import Any


class KlimbError(Exception):
    """Root of every error that klimb raises on purpose."""


class InputError(KlimbError, ValueError):
    """A value that a user gave cannot be used."""

    def __init__(self, expected: str, got: str, advice: str) -> None:
        super().__init__(f"{expected}; got {got}. {advice}")
        self.expected, self.got, self.advice = expected, got, advice

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), (self.expected, self.got, self.advice)


def require(holds: object, expected: str, got: object, advice: str) -> None:
    """An `InputError` unless ``holds``: for checks whose three parts can be written down before it is known.

    >>> require(0.5 > 0, "tol must be positive", 0.5, "The default is 1e-6.")
    """
    if not holds:
        raise InputError(expected, f"{got}", advice)


class NotPositiveDefiniteError(KlimbError, ArithmeticError):
    """A posterior precision that was asked for is not positive definite (the loop catches this and steps back)."""


class PlotError(KlimbError, ImportError):
    """Plots were asked for where matplotlib is not installed."""

    def __init__(self) -> None:
        super().__init__("plots need matplotlib; got no such package. Run: python -m pip install 'klimb[plot]', or"
                         " write a report, which needs none: klimb report.")


def pyplot() -> Any:
    """matplotlib.pyplot, or an error that says how to get it."""
    try:
        import matplotlib.pyplot as found
    except ImportError as missing:
        raise PlotError from missing
    return found


def one_axes(ax: Any, size: tuple[float, float]) -> Any:
    """The axes that were given, or those of a new figure of this size."""
    return pyplot().subplots(figsize=size, layout="constrained")[1] if ax is None else ax


def grid_of_axes(axes: Any, count: int, across: int, size: tuple[float, float]) -> Any:
    """The axes that were given, or ``count`` (some more) of a new figure, at most so many across, each of this size."""
    columns = max(min(count, across), 1)
    rows = -(-max(count, 1) // columns)
    return axes if axes is not None else pyplot().subplots(
        rows, columns, figsize=(columns * size[0], rows * size[1]), squeeze=False, layout="constrained")[1]


def nearest(word: str, known: Iterable[str]) -> str:
    """``"Did you mean 'age'? "`` where a known word is near, or nothing."""
    from difflib import get_close_matches  # only when there is an error to show

    names = list(known)
    folded = {name.casefold(): name for name in reversed(names)}
    close = get_close_matches(word.casefold(), folded, n=1, cutoff=0.6)
    return f"Did you mean {folded[close[0]]!r}? " if close else ""


def listed(names: Iterable[str], most: int = 20) -> str:
    """Names with commas, cut where there are too many to read."""
    every = list(names)
    if not every:
        return "none"
    shown = ", ".join(every[:most])
    return shown if len(every) <= most else f"{shown}, ... ({len(every) - most} more)"


def need_columns(names: Iterable[str], columns: tuple[str, ...], expected: str = "a column of the data") -> None:
    """An `InputError` about the first name that is no column, with the one that is nearest and those that there are."""
    for name in names:
        if name not in columns:
            raise InputError(expected, repr(name), f"{nearest(name, columns)}The columns are: {listed(columns)}.")


def width(text: str) -> int:
    """Columns a text takes in a terminal.

    >>> width("naïve"), width("高さ"), width("e\u0301")
    (5, 4, 1)
    """
    if text.isascii():
        return len(text)
    import unicodedata  # only where a letter may be wide

    return sum(0 if unicodedata.combining(letter) else 2 if unicodedata.east_asian_width(letter) in "WF" else 1
               for letter in text)
