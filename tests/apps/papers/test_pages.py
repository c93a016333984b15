"""The pages about the papers say what the records beside them say."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tools.papers_pages import BLOCK, filled

from klimb.apps.papers import EXPERIMENTS
from klimb.apps.papers.experiment import SCHEMA
from klimb.errors import InputError


def test_pages_are_up_to_date(root: Path) -> None:
    """``python -m tools.papers_pages docs/papers`` writes them."""
    folder = root / "docs" / "papers"
    shown = set()
    for page in sorted(folder.glob("*.md")):
        if re.match(r"[A-Z]-", page.name):  # left by a run into this folder; not a page of the documentation
            continue
        text = page.read_text(encoding="utf-8")
        assert filled(text, folder) == text, page.name
        shown |= {block[2] for block in BLOCK.finditer(text)}
    assert shown <= set(EXPERIMENTS)


def test_committed_records_are_records(root: Path) -> None:
    for path in sorted((root / "docs" / "papers").glob("[A-Z]-*.json")):
        stored = json.loads(path.read_text(encoding="utf-8"))
        assert stored["schema"] == SCHEMA
        assert stored["experiment"] == path.stem.removesuffix("-quick")
        assert stored["experiment"] in EXPERIMENTS
        assert path.stat().st_size < 400_000, path.name


def test_blocks(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="klimb reproduce G-figure1 --quick --out"):
        filled("<!-- klimb reproduce G-figure1 --quick -->\nold\n<!-- end -->", tmp_path)
    assert filled("no blocks", tmp_path) == "no blocks"
