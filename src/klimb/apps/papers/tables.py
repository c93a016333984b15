"""Tables for the terminal and for Markdown, and numbers as they stand in them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev

from klimb.apps.papers.experiment import PaperTable
from klimb.report.text import table

NOTHING = "-"  # a cell without a figure


def as_text(one: PaperTable) -> str:
    """A table for the terminal.

    >>> print(as_text(PaperTable("Losses", ("set", "ours", "paper"), (("sonar", "0.41", "0.32"),))))
    Losses
    <BLANKLINE>
    set    ours  paper
    sonar  0.41   0.32
    """
    return f"{one.title}\n\n{table(one.heads, one.rows, one.left)}"


def as_markdown(one: PaperTable) -> str:
    """The same in Markdown.

    >>> print(as_markdown(PaperTable("Losses", ("set", "ours"), (("a|b", "0.41"),))))
    **Losses**
    <BLANKLINE>
    | set | ours |
    |---|---:|
    | a\\|b | 0.41 |
    """
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    rule = "|" + "".join("---|" if column < one.left else "---:|" for column in range(len(one.heads)))
    return "\n".join([f"**{one.title}**", "", line(one.heads), rule, *map(line, one.rows)])


def with_error(values: Sequence[float], digits: int) -> str:
    """A mean with its standard error in brackets where there is one.

    >>> with_error([1.0, 2.0, 3.0], 2), with_error([1.0], 2), with_error([], 2)
    ('2.00 (0.58)', '1.00', '-')
    """
    if not values:
        return NOTHING
    error = f" ({stdev(values) / math.sqrt(len(values)):.{digits}f})" if len(values) > 1 else ""
    return f"{fmean(values):.{digits}f}{error}"


def seconds(value: float) -> str:
    """A time as the papers print it.

    >>> [seconds(value) for value in (0.0123, 4.21, 75.0, 4000.0, 40000.0)]
    ['0.012 s', '4.2 s', '75 s', '67 min', '11 h']
    """
    if not math.isfinite(value):
        return NOTHING
    if value < 1.0:
        return f"{value:.2g} s"
    if value < 10.0:
        return f"{value:.1f} s"
    if value < 120.0:
        return f"{value:.0f} s"
    return f"{value / 60:.0f} min" if value < 7200.0 else f"{value / 3600:.0f} h"
