"""Tables of plain text: aligned, deterministic, safe in a doctest; wide letters count for two."""

from __future__ import annotations

from collections.abc import Sequence

from klimb.errors import width
from klimb.report.digits import decimals, fixed, percent
from klimb.report.records import CoefficientRow


def visible(text: str) -> str:
    """The text on one line, with characters that would move a cursor shown as escapes.

    >>> print(visible("two\\nlines"))
    two\\nlines
    """
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1, indent: str = "") -> str:
    """Columns two blanks apart; the first ``left`` of them are text, the others numbers and right-aligned.

    >>> print(table(["name", "mean"], [["x", "1.25"], ["long name", "-0.50"]]))
    name        mean
    x           1.25
    long name  -0.50
    """
    cells = [[visible(cell) for cell in row] for row in [heads, *rows]]
    widths = [max(width(row[column]) for row in cells) for column in range(len(heads))]
    lines = []
    for row in cells:
        parts = []
        for column, cell in enumerate(row):
            blanks = " " * (widths[column] - width(cell))
            parts.append(cell + blanks if column < left else blanks + cell)
        lines.append((indent + "  ".join(parts)).rstrip())
    return "\n".join(lines)


def coefficient_cells(rows: Sequence[CoefficientRow], level: float) -> tuple[list[str], list[list[str]]]:
    """Headings and cells of a table of coefficients, shared by text and HTML."""
    tail = (1.0 - level) / 2.0
    heads = ["", "mean", "sd", percent(tail), percent(1.0 - tail)]
    signs = any(row.positive is not None for row in rows)
    if signs:
        heads.append("P(>0)")
    places = decimals([row.sd for row in rows])
    cells = []
    for row in rows:
        # One row far finer than the others would stretch all columns: it gets digits of its own.
        own = places if places is not None else decimals([row.sd])
        line = [row.name, *(fixed(value, own) for value in (row.mean, row.sd, row.lower, row.upper))]
        if signs:
            line.append("" if row.positive is None else _chance(row.positive))
        cells.append(line)
    return heads, cells


def _chance(value: float) -> str:
    """A probability that is neither 0 nor 1 is not printed as one."""
    return ">0.99" if 0.995 <= value < 1.0 else "<0.01" if 0.0 < value < 0.005 else f"{value:.2f}"
