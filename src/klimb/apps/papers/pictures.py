"""How tables and pictures look: numbers as they stand in cells, a palette that colour-blind readers can tell apart."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

from klimb._files import draft_of

NOTHING = "-"  # a cell without a figure
# Okabe and Ito's colours (2008), told apart under every common form of colour blindness; markers differ as well.
INK, ORANGE, SKY, GREEN, YELLOW, BLUE, RED, PINK = (
    "#1a1a1a", "#e69f00", "#56b4e9", "#009e73", "#f0e442", "#0072b2", "#d55e00", "#cc79a7")
GREY = "#8a8a8a"
STYLE: Any = {"font.size": 10.0, "axes.titlesize": 11.0, "axes.labelsize": 10.0, "legend.fontsize": 9.0,
         "xtick.labelsize": 9.0, "ytick.labelsize": 9.0, "axes.spines.top": False, "axes.spines.right": False,
         "legend.frameon": False, "lines.linewidth": 1.6, "savefig.facecolor": "white", "figure.facecolor": "white"}
DPI = 120
NEEDS_MATPLOTLIB = ("no picture: matplotlib is not installed. Run python -m pip install 'klimb[plot]' and the same"
                    " command again; nothing is computed twice.")


class PaperTable(NamedTuple):
    """Cells ready to be shown; the first ``left`` columns are text."""
    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: int = 1


def as_markdown(one: PaperTable) -> str:
    """A table in Markdown."""
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    rule = "|" + "".join("---|" if column < one.left else "---:|" for column in range(len(one.heads)))
    return "\n".join([f"**{one.title}**", "", line(one.heads), rule, *map(line, one.rows)])


def with_error(values: Sequence[float], digits: int) -> str:
    """A mean with its standard error in brackets where there is one."""
    if not values:
        return NOTHING
    error = f" ({stdev(values) / math.sqrt(len(values)):.{digits}f})" if len(values) > 1 else ""
    return f"{fmean(values):.{digits}f}{error}"


def seconds(value: float) -> str:
    """A time as the papers print it."""
    if not math.isfinite(value):
        return NOTHING
    if value < 1.0:
        return f"{value:.2g} s"
    if value < 10.0:
        return f"{value:.1f} s"
    if value < 120.0:
        return f"{value:.0f} s"
    return f"{value / 60:.0f} min" if value < 7200.0 else f"{value / 3600:.0f} h"


def can_draw() -> bool:
    """Is matplotlib there? It is imported only when a picture is made."""
    return find_spec("matplotlib") is not None


@contextmanager
def panels(path: Path, rows: int, columns: int, size: tuple[float, float], **more: Any) -> Iterator[tuple[Any, Any]]:
    """A figure and its axes (a two-dimensional array), written to ``path`` at the end, whole or not at all."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    with rc_context(STYLE):
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False, **more)
        yield figure, axes
        with draft_of(path) as draft:
            figure.savefig(draft, format="png", dpi=DPI, metadata={"Software": None})


def letter(ax: Any, index: int, title: str) -> None:
    """A title with the letter of its panel."""
    ax.set_title(f"({chr(ord('a') + index)}) {title}", loc="left")
