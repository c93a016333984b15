"""The code in the documentation runs and prints what is shown; ``python -m tests.transcripts`` writes it anew."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.registries import as_before
from tests.transcripts import COMMANDS, PAGES, ROOT, corrected, runs, same, workplace


@pytest.mark.parametrize("page", [page for page in PAGES if runs(page)], ids=lambda page: str(page.relative_to(ROOT)))
def test_blocks_run_and_outputs_are_true(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    with workplace(), as_before():
        found = corrected(text, commands_too=page in COMMANDS, name=str(page))
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


def test_a_block_that_prints_nothing_may_not_show_anything() -> None:
    text = "```python\nx = 1\n```\n\n```text\n1\n```\n"
    assert corrected(text) == text.replace("text\n1\n", "text\n")


def test_only_what_follows_at_once_is_an_output() -> None:
    apart = "```python\nprint(2)\n```\n\nA file looks like this:\n\n```text\n3\n```\n"
    assert corrected(apart) == apart


def test_outputs_that_a_page_leaves_out_can_be_shown() -> None:
    text = "```python\nprint(2)\n```\n\nMore.\n\n```python\nx = 1\n```\n"
    assert corrected(text, show=True) == text.replace("print(2)\n```\n", "print(2)\n```\n\n```text\n2\n```\n")
    assert corrected(text) == text


def test_an_error_names_page_and_line() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        corrected("# Title\n\n```python\n1 / 0\n```\n", name="broken.md")
    where = caught.traceback[-1]
    assert (Path(where.path).name, where.lineno + 1) == ("broken.md", 4)
