"""The tables of docs/fit.md say what the code says."""

from __future__ import annotations

from pathlib import Path

from klimb.likelihoods import LIKELIHOODS

TEXT = (Path(__file__).parents[2] / "docs" / "fit.md").read_text(encoding="utf-8")


def test_the_table_of_families_is_that_of_the_code():
    for kind in LIKELIHOODS.values():
        estimated = ", ".join(f"`{p.name}`" for p in kind.site_parameters)
        aliases = ", ".join(f"`{name}`" for name in kind.aliases)
        row = f"| `{kind.name}` | {kind.about} | {', '.join(kind.links)} | {estimated} | {aliases} |"
        assert row.replace("|  |", "| |").replace("|  |", "| |") in TEXT, row
    rows = [line for line in TEXT.split("## Families")[1].split("##")[0].splitlines() if line.startswith("| `")]
    assert len(rows) == len(LIKELIHOODS)
