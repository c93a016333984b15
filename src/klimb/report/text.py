"""Numbers as people read them, and tables of plain text: aligned, deterministic, safe in a doctest."""

import math
from collections.abc import Sequence

from klimb.errors import width
from klimb.report.records import CoefficientRow


def plain(value: float | None, digits: int = 3) -> str:
    """A number by itself, to so many significant digits."""
    if value is None or math.isnan(value):
        return "-"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if value == 0.0:
        return "0"
    size = math.floor(math.log10(abs(value)))
    if size < -4 or size > 5:
        return f"{value:.{digits - 1}e}"
    text = f"{value:.{max(digits - 1 - size, 0)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def decimals(scales: Sequence[float], digits: int = 2) -> int | None:
    """Decimal places that show the smallest of ``scales`` to ``digits`` digits; None where no number is readable."""
    useful = [abs(scale) for scale in scales if math.isfinite(scale) and scale != 0.0]
    if not useful:
        return 3
    small, large = math.floor(math.log10(min(useful))), math.floor(math.log10(max(useful)))
    if small < -5 or large > 6 or large - small > 2:
        return None
    return max(digits - 1 - small, 0)


def fixed(value: float | None, places: int | None) -> str:
    """A number with so many decimal places, or in scientific form where ``places`` is None."""
    if value is None or not math.isfinite(value):
        return plain(value)
    if places is None:
        return f"{value:.2e}"
    text = f"{value:.{places}f}"
    return text[1:] if text.startswith("-") and not text.strip("-0.") else text


def percent(value: float) -> str:
    """A level as a heading: 0.05 is "5%", 0.975 is "97.5%"."""
    return f"{100.0 * value:.4g}%"


def visible(text: str) -> str:
    """The text on one line, with characters that would move a cursor shown as escapes."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1, indent: str = "") -> str:
    """Columns two blanks apart; the first ``left`` of them are text, the others numbers and right-aligned."""
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
    scales = [row.sd if math.isfinite(row.sd) else 0.25 * (row.upper - row.lower) for row in rows]
    places = decimals(scales)
    cells = []
    for row, scale in zip(rows, scales, strict=True):
        # One row far finer than the others would stretch all columns: it gets digits of its own.
        own = places if places is not None else decimals([scale])
        line = [row.name, *(fixed(value, own) for value in (row.mean, row.sd, row.lower, row.upper))]
        if signs:
            line.append("" if row.positive is None else _probability(row.positive, row.sd))
        cells.append(line)
    return heads, cells


def _probability(value: float, sd: float) -> str:
    """That of a value above 0, which is not printed as 0 or 1 unless the value is known."""
    return f"{value:.2f}" if 0.005 <= value < 0.995 or sd == 0.0 else ">0.99" if value > 0.5 else "<0.01"
