"""The bundled example: its data come from its script, and it finds, prints and writes what it promises."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
from tools.make_summit import GUIDE_SD, as_csv

from klimb.demo import load_summit
from klimb.demo.run import fit_summit, run


def test_the_file_is_what_the_script_makes(root: Path) -> None:
    stored = (root / "src" / "klimb" / "demo" / "summit.csv").read_text(encoding="utf-8")
    assert stored == as_csv()
    assert len(stored) < 16_384


def test_the_command_line_reads_the_same_table(root: Path) -> None:
    from klimb.cli.tables.read import read_table

    read = read_table(str(root / "src" / "klimb" / "demo" / "summit.csv")).columns
    own = load_summit()
    assert list(read) == list(own)
    for name, values in own.items():
        np.testing.assert_array_equal(read[name], values)


def test_demo_finds_what_the_script_put_in() -> None:
    """The script's coefficients lie within four of their posterior standard deviations, and signs are resolved."""
    fit = fit_summit()
    rows = {row.name: row for row in [*fit.coefficient_rows(), *fit.parameter_rows()]}
    truth = {"wind": -0.20, "days": 0.18, "party": 0.03, "start": -0.40, "route[T.north face]": -0.7,
             "route[T.ridge]": 0.7, "sd(guide)": GUIDE_SD}
    for name, value in truth.items():
        assert abs(rows[name].mean - value) < 4 * rows[name].sd, name
    signs = {name: np.sign(rows[name].lower) + np.sign(rows[name].upper) for name in ("wind", "days", "party", "start")}
    assert signs == {"wind": -2, "days": 2, "party": 0, "start": -2}
    assert fit.observed.dropped == 4
    assert fit.converged
    assert fit.trust_summary.verdict == "trust"


def test_demo_prints_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path)
    printed = capsys.readouterr().out
    for word in ("sd(guide)", "P(>0)", "prior", "bound", "converged", "trust", "someone new", "90% interval",
                 str(tmp_path / "report.html"), str(tmp_path / "effects.svg")):
        assert word in printed, word
    assert (tmp_path / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert (tmp_path / "summit.csv").read_text(encoding="utf-8") == as_csv()
    picture = ElementTree.parse(tmp_path / "effects.svg").getroot()
    assert len(picture.findall("{http://www.w3.org/2000/svg}svg")) == 5  # wind, days, party, start, route
