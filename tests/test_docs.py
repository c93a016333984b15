"""Links of the README and the documentation lead somewhere, pictures are light, and every page can be found."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.links import anchors, broken, links, outside
from tests.transcripts import PAGES, ROOT

PICTURES = sorted([*(ROOT / "docs").rglob("*.png"), *(ROOT / "docs").rglob("*.svg")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert list(broken(page)) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_out_are_secure_and_whole(page: Path) -> None:
    assert [link for link in links(page) if outside(link) and not re.match(r"https://[\w.-]+\.\w+(/|$)", link)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pictures_have_words(page: Path) -> None:
    """Those who cannot see a picture are told what is on it."""
    assert re.findall(r"!\[\s*\]", page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.name)
def test_pictures_are_light(picture: Path) -> None:
    """Those of the papers have many panels and may weigh a little more."""
    assert picture.stat().st_size <= (300_000 if picture.parent.name == "papers" else 150_000)


SCRIPT = re.compile(r"python(?:3)?\s+(?:-m\s+([\w.]+)|(docs/[\w/.]+\.py|tests/[\w/.]+\.py))")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_scripts_that_are_named_exist(page: Path) -> None:
    """Figures come with the script that measured them; a script that was renamed takes its pages along."""
    missing = []
    for module, path in SCRIPT.findall(page.read_text(encoding="utf-8")):
        if module.startswith(("benchmarks.", "tests.", "klimb")):
            place = ROOT / ("src" if module.startswith("klimb") else "") / module.replace(".", "/")
            if not (place.with_suffix(".py").exists() or (place / "__init__.py").exists()):
                missing.append(module)
        elif path and not (ROOT / path).exists():
            missing.append(path)
    assert missing == []


def test_a_broken_link_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A *title*, twice\n\n## A `code` title\n\n[a](#a-title-twice) [b](#a-code-title) [c](#none) "
                    "[d](other.md) ![e](none.png) <img src=\"gone.png\"> [f](https://example.org/) `[g](code.md)`\n\n"
                    "```python\nx = [h](not.md)\n# no heading\n```\n")
    assert anchors(page) == {"a-title-twice", "a-code-title"}
    assert list(broken(page)) == ["#none", "other.md", "none.png", "gone.png"]
