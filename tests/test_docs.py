"""Every Python block of the README and the documentation runs, and every relative link leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.transcripts import PAGES as TRANSCRIPTS

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", [page for page in PAGES if page not in TRANSCRIPTS
                                  and BLOCK.search(page.read_text(encoding="utf-8"))], ids=name)
def test_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of a page run in order and share their names; those of the first pages in test_transcripts.py."""
    monkeypatch.chdir(tmp_path)
    text = page.read_text(encoding="utf-8")
    names: dict[str, object] = {"__name__": "__docs__"}
    for block in BLOCK.finditer(text):
        first = text[: block.start(1)].count("\n")
        exec(compile("\n" * first + block.group(1), name(page), "exec"), names)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    broken = [link for link in LINK.findall(text) if "://" not in link and not (page.parent / link).exists()]
    assert broken == []
