"""The table of the papers' items names code, tests and pages that are there."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def table(root: Path) -> Any:
    spec = importlib.util.spec_from_file_location("papers_coverage", root / "tools" / "papers_coverage.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["papers_coverage"] = module
    spec.loader.exec_module(module)
    return module


def test_all_items_are_there(table: Any) -> None:
    wanted = [f"{letter}{n}" for letter, most in (("P", 24), ("F", 20), ("C", 16), ("B", 13))
              for n in range(1, most + 1)]
    assert [item.key for item in table.ITEMS] == wanted
    assert len(wanted) == 73


def test_names_are_alive(table: Any, root: Path) -> None:
    for item in table.ITEMS:
        module, _, name = item.code.partition(":")
        assert hasattr(importlib.import_module(module), name), item
        path, _, test = item.test.partition("::")
        assert re.search(rf"^def {test}\(", (root / path).read_text(encoding="utf-8"), re.MULTILINE), item
        assert (root / "docs" / item.page).is_file(), item


def test_the_page_is_up_to_date(table: Any) -> None:
    """``python tools/papers_coverage.py`` writes it."""
    assert table.PAGE.read_text(encoding="utf-8") == table.page()
