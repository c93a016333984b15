"""The bundled example: its data come from its script, its summary and its report hold what they promise."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest

from klimb.demo import load_summit
from klimb.demo.make_data import as_csv
from klimb.demo.report import climb_plot, interval_plot, page
from klimb.demo.summary import Summary, summarise


@pytest.fixture
def summary() -> Summary:
    return summarise(("intercept", "a < b"), np.array([0.5, -2.0]), np.diag([0.04, 0.25]), bound=-12.5, n_iter=4,
                     status="converged", advice="Nothing to do.", bounds=(-20.0, -13.0, -12.6, -12.5))


def test_the_file_is_what_the_script_makes(root: Path) -> None:
    stored = (root / "src" / "klimb" / "demo" / "summit.csv").read_text(encoding="utf-8")
    assert stored == as_csv()
    assert len(stored) < 4096


def test_design_is_standardised() -> None:
    names, design = load_summit().design()
    assert names[0] == "intercept"
    np.testing.assert_allclose(design[:, 1:].mean(axis=0), 0.0, atol=1e-12)
    np.testing.assert_allclose(design[:, 1:].std(axis=0), 1.0, rtol=1e-12)


def test_interval_covers_ninety_percent(summary: Summary) -> None:
    np.testing.assert_allclose((summary.upper - summary.lower) / summary.sd, 2 * 1.6448536269514722)


def test_plots_are_well_formed(summary: Summary) -> None:
    drawing = ElementTree.fromstring(interval_plot(summary))
    assert len(drawing.findall("circle")) == 2
    assert "polyline" in climb_plot(summary)


def test_report_stands_alone_and_escapes(summary: Summary) -> None:
    text = page("Title & more", "A story.", summary)
    assert "a &lt; b" in text
    assert "a < b" not in text
    assert "Title &amp; more" in text
    assert "http" not in text
    assert "src=" not in text


def test_demo_prints_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from klimb.demo.__main__ import main

    target = tmp_path / "report.html"
    main(["--report", str(target)])
    printed = capsys.readouterr().out
    for word in ("intercept", "wind", "acclimatised", "party", "start", "bound", "iterations", "status      converged"):
        assert word in printed
    assert target.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_demo_finds_what_the_script_put_in() -> None:
    from klimb.demo.__main__ import fit_summit

    fit = fit_summit()
    sign = dict(zip(fit.names, np.sign(fit.lower) + np.sign(fit.upper), strict=True))
    # Wind and a late start keep parties from the top, acclimatisation helps, the size of the party is not resolved.
    assert (sign["wind"], sign["start"], sign["acclimatised"], sign["party"]) == (-2, -2, 2, 0)
