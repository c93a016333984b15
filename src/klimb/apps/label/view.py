"""An item as it is shown: its text in pieces, each with how far its words push the prediction, and its columns.

The pieces are plain texts and small numbers. The page puts them on the screen as text, never as markup, so that nothing
an item says can do anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from klimb.apps.label.items import LabelItems
from klimb.numerics.arrays import Array

Pushes: TypeAlias = Mapping[int, float]  # feature -> what it adds to the log odds of the label it is about
LONGEST = 12_000  # characters that are shown before somebody asks for more
STRENGTHS = ((0.04, 0.15), (0.12, 0.35), (0.3, 0.7))  # faint, clear, strong: log odds, and share of the largest push


def levels(pushes: Array, largest: float) -> npt.NDArray[np.intp]:
    """-3 to 3: towards or away from the label, and how strongly, in itself and beside the largest push of the item."""
    sizes = np.zeros(len(pushes), dtype=np.intp)
    for least, share in STRENGTHS:
        sizes += np.abs(pushes) >= max(least, share * largest)
    return np.where(pushes > 0.0, sizes, -sizes)


def segments(items: LabelItems, row: int, pushes: Pushes, longest: int | None = LONGEST,
             ) -> tuple[list[tuple[str, int]], bool]:
    """Pieces of the text with the strength of their push, and whether there is more of it."""
    text = items.texts[row]
    more = longest is not None and len(text) > longest
    text = text[:longest]
    if not text:
        return [], False
    if not pushes or items.vocabulary is None:
        return [(text, 0)], more
    # A character may belong to two words (pairs of Chinese characters overlap): it takes the sum of its shares.
    pushed = np.zeros(len(text))
    for column, start, end in items.vocabulary.columns_of(text):
        pushed[start:end] += pushes.get(column, 0.0)
    pieces, start = [], 0
    for level, run in groupby(levels(pushed, _largest(pushes)).tolist()):
        end = start + sum(1 for _ in run)
        pieces.append((text[start:end], level))
        start = end
    return pieces, more


def columns_shown(items: LabelItems, row: int, pushes: Pushes) -> list[tuple[str, str, int]]:
    """Name, value and push of the columns beside the text."""
    words = len(items.vocabulary.words) if items.vocabulary else 0
    known = {items.names[column]: push for column, push in pushes.items() if column >= words}
    sizes = levels(np.array([known.get(name, 0.0) for name in items.shown]), _largest(pushes)).tolist()
    return [(name, cells[row], size) for (name, cells), size in zip(items.shown.items(), sizes, strict=True)]


def _largest(pushes: Pushes) -> float:
    return max(map(abs, pushes.values()), default=0.0)


def preview(items: LabelItems, row: int, longest: int = 160) -> str:
    """The beginning of an item on one line."""
    text = items.texts[row] or ", ".join(f"{name} {cells[row]}" for name, cells in items.shown.items())
    line = " ".join(text[: 4 * longest].split())
    return line if len(line) <= longest else line[: longest - 1] + "…"
