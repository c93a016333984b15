"""How the pictures look: one palette that colour-blind readers can tell apart, one size of type, no global state."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from klimb._files import draft_of

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
