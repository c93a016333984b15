"""The site (mkdocs.yml, docs/theme/hooks.py): its navigation, and the rules by which pages are shown."""

from __future__ import annotations

import importlib.util
import re
from types import ModuleType

import pytest
from tests.transcripts import ROOT

SETTINGS = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    pytest.importorskip("mkdocs", reason="the builder of the site is an extra: pip install 'klimb[docs]'")
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "docs" / "theme" / "hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_navigation_names_pages_that_exist() -> None:
    named = re.findall(r"^\s+- (?:[^:\n]+: )?([\w/-]+\.md)$", SETTINGS, re.MULTILINE)
    assert "quickstart.md" in named
    assert [page for page in named if not (ROOT / "docs" / page).exists()] == []


def test_every_tutorial_is_in_the_navigation() -> None:
    pages = [f"tutorials/{page.name}" for page in (ROOT / "docs" / "tutorials").glob("*.md")]
    assert [page for page in pages if page not in SETTINGS] == []


def test_nothing_is_fetched_from_elsewhere() -> None:
    assert re.findall(r"https?://", SETTINGS) == []
    assert re.findall(r"url\(|@import|https?://", (ROOT / "docs" / "theme" / "extra.css").read_text()) == []
    assert "http" not in (ROOT / "docs" / "theme" / "iframe-worker.js").read_text()


def test_stars_stand_for_what_is_not_named(hooks: ModuleType) -> None:
    nav = [{"A": ["a/one.md", "a/*.md"]}, "b.md"]
    filled = hooks.fill(nav, ["a/two.md", "a/deep/three.md", "c.md"])
    assert filled == [{"A": ["a/one.md", "a/two.md"]}, "b.md"]
    assert list(hooks.pages_of(filled)) == ["a/one.md", "a/two.md", "b.md"]


def test_a_false_line_is_found_and_more_output_is_allowed(hooks: ModuleType) -> None:
    page = "a\n\nx 1.00\nb\n"
    assert hooks.first_false(page, "a\n\nx 1.00\nmore\nb\n") is None
    assert hooks.first_false(page, "a\n\nx 1.01\nb\n") is None  # the last digit
    assert hooks.first_false(page, "a\n\nx 1.50\nb\n") == 3


def test_bars_in_tables_are_shown_without_backslash(hooks: ModuleType) -> None:
    shown = hooks.for_the_site("| `(1 \\| g)` | a \\| b |\n\n`x \\| y`\n")
    assert shown == "| `(1 | g)` | a \\| b |\n\n`x \\| y`\n"  # elsewhere it is what the author wrote


@pytest.mark.parametrize(("html", "found"), [
    ('<script src="https://host.example/a.js"></script>', True),
    ('<link rel="stylesheet" href="//host.example/a.css">', True),
    ('<img src="https://host.example/a.png">', True),
    ('<script src="assets/a.js"></script><img src="a.png">', False),
    ('<a href="https://host.example/">a link is fine</a>', False),
])
def test_resources_of_other_hosts_are_noticed(hooks: ModuleType, html: str, found: bool) -> None:
    assert bool(hooks.OUTSIDE.search(html)) is found


def test_every_public_name_has_an_entry(hooks: ModuleType) -> None:
    import klimb

    pages = hooks.api_pages()
    assert set(pages) >= {"klimb", "sites", "latents", "kernels", "sklearn"}
    text = "\n".join(pages.values())
    for module in ("sites", "latents", "kernels"):
        for name in getattr(klimb, module).__all__:
            assert re.search(rf"\b{name}\b", text), name
    entries = re.findall(r"^::: (\S+)$", text, re.MULTILINE)
    assert len(entries) == len(set(entries))  # nothing is described twice
