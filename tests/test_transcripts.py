"""What the first pages show is what comes out; after a change, ``python -m tests.transcripts`` writes it anew."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.transcripts import PAGES, corrected, same, workplace


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_outputs_are_true(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    with workplace():
        found = corrected(text)
    if not same(found, text):
        assert found == text  # shows where


def test_only_last_digits_may_differ() -> None:
    assert same("bound -231.668 (se 10)", "bound -231.669 (se 10)")
    assert same("0.7008484261058539,x", "0.7008484261058541,x")
    assert not same("bound -231.668", "bound -231.768")
    assert not same("bound -231.668 (se 10)", "bound -231.668 (se 11)")
    assert not same("0.7008484,x", "0.7009484,x")
    assert not same("wind 1.0", "days 1.0")


def test_a_false_output_is_noticed() -> None:
    text = "```python\nprint(1 + 1)\n```\n\n```text\n3\n```\n"
    assert corrected(text) == text.replace("3", "2")
    with workplace():
        found = corrected("```console\n$ head -1 summit.csv | tr a-z A-Z\nnonsense\n```\n")
    assert found == "```console\n$ head -1 summit.csv | tr a-z A-Z\nSUMMIT,WIND,DAYS,PARTY,START,ROUTE,GUIDE\n```\n"
