"""An item as it is shown: its text in pieces, each with how far its words push the prediction, and its columns.

The pieces are plain texts and small numbers. The page puts them on the screen as text, never as markup, so that nothing
an item says can do anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import TypeAlias

import numpy as np

from klimb.label.items import Items

Pushes: TypeAlias = Mapping[int, float]  # feature -> what it adds to the log odds of the label it is about
LONGEST = 12_000  # characters that are shown before somebody asks for more
STRENGTHS = (0.04, 0.12, 0.3)  # log odds from which a push is shown as faint, clear, strong


def strength(push: float) -> int:
    """-3 to 3: towards or away from the label, and how strongly.

    >>> [strength(push) for push in (0.0, 0.05, -0.2, 2.0)]
    [0, 1, -2, 3]
    """
    size = sum(abs(push) >= least for least in STRENGTHS)
    return size if push > 0.0 else -size


def segments(items: Items, row: int, pushes: Pushes, longest: int | None = LONGEST,
             ) -> tuple[list[tuple[str, int]], bool]:
    """Pieces of the text with the strength of their push, and whether there is more of it."""
    text = items.texts[row]
    more = longest is not None and len(text) > longest
    text = text[:longest]
    if not text:
        return [], False
    strong = {column: push for column, push in pushes.items() if strength(push)} if items.vocabulary else {}
    if not strong or items.vocabulary is None:
        return [(text, 0)], more
    # A character may belong to two words (pairs of Chinese characters overlap): it takes the sum of its shares.
    pushed = np.zeros(len(text))
    for column, start, end in items.vocabulary.columns_of(text):
        push = strong.get(column)
        if push is not None:
            pushed[start:end] += push
    levels = np.zeros(len(text), dtype=np.int64)
    for least in STRENGTHS:
        levels += np.where(np.abs(pushed) >= least, np.sign(pushed), 0.0).astype(np.int64)
    pieces, start = [], 0
    for level, run in groupby(levels.tolist()):
        end = start + sum(1 for _ in run)
        pieces.append((text[start:end], level))
        start = end
    return pieces, more


def columns_shown(items: Items, row: int, pushes: Pushes) -> list[tuple[str, str, int]]:
    """Name, value and push of the columns beside the text."""
    words = len(items.vocabulary.words) if items.vocabulary else 0
    known = {items.names[column]: push for column, push in pushes.items() if column >= words}
    return [(name, cells[row], strength(known.get(name, 0.0))) for name, cells in items.shown.items()]


def preview(items: Items, row: int, longest: int = 70) -> str:
    """The beginning of an item on one line."""
    text = items.texts[row] or ", ".join(f"{name} {cells[row]}" for name, cells in items.shown.items())
    line = " ".join(text[: 4 * longest].split())
    return line if len(line) <= longest else line[: longest - 1] + "…"
