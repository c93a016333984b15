"""Examples in docstrings as code: klimb writes doctests anywhere in a docstring, Markdown would quote them."""

from __future__ import annotations

import re
from typing import Any

import griffe

RUN = re.compile(r"^>>>.*(?:\n(?!\s*$).*)*", re.MULTILINE)  # up to the next blank line, as doctest reads it
SECTION = re.compile(r"^Examples\n-+$", re.MULTILINE)       # there griffe sees to it


class Doctests(griffe.Extension):
    """Puts a fence around every run of prompts and what they print."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Called for every object once its members are known."""
        text = obj.docstring
        if text is not None and ">>>" in text.value and not SECTION.search(text.value):
            text.value = RUN.sub(lambda run: f"\n```pycon\n{run.group()}\n```\n", text.value)
