"""Whole commands on real files: fit, predict, report, compare, info, demo."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import klimb
from klimb.cli import run
from klimb.demo import load_summit

FORMULA = "summit ~ wind + days + route + (1 | guide)"


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory, root: Path) -> Path:
    """A directory with the bundled table and two fits of it."""
    folder = tmp_path_factory.mktemp("work")
    (folder / "summit.csv").write_bytes((root / "src" / "klimb" / "demo" / "summit.csv").read_bytes())
    data = str(folder / "summit.csv")
    assert run(["fit", FORMULA, data, "--family", "bernoulli", "-o", str(folder / "mixed.klimb"), "-q"]) == 0
    assert run(["fit", "summit ~ wind", data, "--family", "bernoulli", "-o", str(folder / "plain.klimb"), "-q"]) == 0
    return folder


@pytest.fixture(scope="module")
def mixed() -> Any:
    return klimb.fit(FORMULA, load_summit(), family="bernoulli")


def said(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> str:
    capsys.readouterr()
    assert run([str(argument) for argument in arguments]) == code
    return capsys.readouterr().out


def shell(*arguments: object, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "klimb", *map(str, arguments)], capture_output=True, text=True,
                          timeout=60, check=False, **more)


# -- fit --------------------------------------------------------------------------------------------------------------


def test_fit_prints_what_python_prints(work: Path, mixed: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "fit", FORMULA, work / "summit.csv", "--family", "bernoulli").rstrip() == str(mixed)


def test_fit_as_json(work: Path, mixed: Any, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(said(capsys, "fit", FORMULA, work / "summit.csv", "--family", "bernoulli", "--json"))
    assert set(found) == {"schema", "klimb", "formula", "family", "interval", "rows", "dropped", "coefficients",
                          "parameters", "priors", "bound", "converged", "status", "advice", "loo", "trust", "checks",
                          "notes"}
    assert found["schema"] == "klimb.fit/1"
    assert (found["rows"], found["dropped"], found["converged"]) == (396, 4, True)
    assert set(found["coefficients"][0]) == {"name", "mean", "sd", "lower", "upper", "positive", "kind"}
    np.testing.assert_array_equal([row["mean"] for row in found["coefficients"]],
                                  [row.mean for row in mixed.coefficient_rows()])
    assert found["parameters"][0]["name"] == "sd(guide)"
    assert found["parameters"][0]["positive"] is None
    assert found["trust"]["verdict"] == "trust"
    assert found["loo"]["elpd"] == mixed.loo().elpd


def test_messages_stay_off_standard_output(work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["fit", "summit ~ wind", work / "summit.csv", "--family", "bernoulli", "--json"]
    done = shell(*command, "-o", tmp_path / "m.klimb", "--report", tmp_path / "r.html")
    assert done.returncode == 0
    json.loads(done.stdout)
    assert done.stderr == f"saved: {tmp_path / 'm.klimb'}\nreport: {tmp_path / 'r.html'}\n"
    assert sorted(os.listdir(tmp_path)) == ["m.klimb", "r.html"]
    assert run([*map(str, command), "-q", "-o", str(tmp_path / "m.klimb")]) == 0
    assert capsys.readouterr().err == ""


def test_standard_input(work: Path) -> None:
    text = (work / "summit.csv").read_text()
    done = shell("fit", "summit ~ wind", "-", "--family", "bernoulli", input=text)
    assert done.returncode == 0
    assert "396 rows, 4 dropped" in done.stdout


def test_a_reader_that_leaves_early_is_no_error(work: Path, tmp_path: Path) -> None:
    kept = tmp_path / "m.klimb"
    with subprocess.Popen([sys.executable, "-m", "klimb", "fit", "summit ~ wind", str(work / "summit.csv"), "--family",
                           "bernoulli", "-o", str(kept)], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == f"saved: {kept}\n".encode()
    assert process.returncode == 0
    assert kept.exists()


def test_doubt_is_three(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """So many classes that they are shown as independent, which they are not: a common shift is known by the prior."""
    rows = "".join(f"{'abcdefghijklmnopqrst'[k % 20]},{'ABCDEFGHIJKLMNO'[k % 15]}\n" for k in range(120))
    (tmp_path / "y.csv").write_text("y,x\n" + rows)
    out = said(capsys, "fit", "y ~ x", tmp_path / "y.csv", "--family", "categorical", code=3)
    assert "in doubt" in out


def test_checks_look_at_columns_that_the_formula_leaves_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    x, z = rng.standard_normal((2, 200))
    rows = [f"{a},{b},{c}" for a, b, c in zip(x + 2.0 * z + rng.standard_normal(200), x, z, strict=True)]
    (tmp_path / "left.csv").write_text("\n".join(["y,x,left_out", *rows]) + "\n")
    assert "left_out" in said(capsys, "fit", "y ~ x", tmp_path / "left.csv", "--strict", code=4)
    rows[150] = "1.0,2.0,word"  # a stray word in a column that is not needed
    (tmp_path / "stray.csv").write_text("\n".join(["y,x,left_out", *rows]) + "\n")
    assert "left_out" not in said(capsys, "fit", "y ~ x", tmp_path / "stray.csv")


def test_ugly_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["antwort größe", 'a "quoted" name', "<script>", "高さ"]
    rng = np.random.default_rng(0)
    with (tmp_path / "ugly.csv").open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(names)
        writer.writerows(rng.standard_normal((30, 4)).tolist())
    formula = "`antwort größe` ~ `a \"quoted\" name` + `<script>` + 高さ"
    files = ["-o", tmp_path / "u.klimb", "--report", tmp_path / "u.html"]
    out = said(capsys, "fit", formula, tmp_path / "ugly.csv", *files)
    assert "高さ" in out
    page = (tmp_path / "u.html").read_text(encoding="utf-8")
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    rows = list(csv.reader(io.StringIO(said(capsys, "predict", tmp_path / "u.klimb", tmp_path / "ugly.csv", "--keep",
                                            "高さ"))))
    assert rows[0] == ["高さ", "mean", "sd", "lower", "upper"]
    assert len(rows) == 31


def test_a_terminal_that_can_not_show_a_name(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("y,高さ\n" + "".join(f"{i % 5},{i}\n" for i in range(20)), encoding="utf-8")
    plain = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = shell("fit", "y ~ 高さ", tmp_path / "a.csv", env=plain)
    assert done.returncode == 0
    assert "\\u9ad8" in done.stdout


@pytest.mark.parametrize(("arguments", "words"), [
    (["summit ~ wnd"], "Did you mean 'wind'?"),
    (["summit ~ wind + (1 | guide"], "^"),
    (["summit ~ wind", "--weights", "wieght"], "a column of the data"),
    (["summit ~ wind", "--prior", "wnd=normal(0, 1)"], "wind"),
    (["summit ~ wind", "--prior", "wind=nrmal(0, 1)"], "normal"),
    (["summit ~ wind", "--family", "poison"], "poisson"),
    (["summit ~ wind", "--family", "bernoulli", "--on-missing", "error"], "missing"),
    (["guide ~ wind", "--family", "bernoulli"], "two values"),
    (["wind ~ days", "--family", "poisson"], "Rows are counted from 0"),
])
def test_user_errors_are_one_and_say_what_to_do(work: Path, arguments: list[str], words: str,
                                                capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["fit", arguments[0], str(work / "summit.csv"), *arguments[1:]]) == 1
    out, err = capsys.readouterr()
    assert words in err
    assert err.startswith("klimb: ")
    assert "Traceback" not in err
    assert out == ""


def test_priors_and_weights_reach_the_model(work: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = said(capsys, "fit", "summit ~ wind", work / "summit.csv", "--family", "bernoulli", "--prior",
               "wind=normal(0, 0.001)", "--interval", "0.5")
    assert "normal(0, 0.001)" in out
    assert "25%" in out
    (tmp_path / "w.csv").write_text("y,x,w\n1,0,2\n2,1,1\n4,2,0\n3,3,1\n")
    weighed = json.loads(said(capsys, "fit", "y ~ x", tmp_path / "w.csv", "--weights", "w", "--json", "-q"))
    data = {"y": [1.0, 2.0, 4.0, 3.0], "x": [0.0, 1.0, 2.0, 3.0], "w": [2.0, 1.0, 0.0, 1.0]}
    expected = klimb.fit("y ~ x", data, weights="w")
    assert weighed["bound"] == expected.bound


def test_npz_and_parquet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(1)
    X = rng.standard_normal((40, 2))
    y = rng.poisson(np.exp(0.5 * X[:, 0]))
    np.savez(tmp_path / "a.npz", y=y, X=X)
    one = json.loads(said(capsys, "fit", "y ~ .", tmp_path / "a.npz", "--family", "poisson", "--json"))
    assert [row["name"] for row in one["coefficients"]] == ["Intercept", "X1", "X2"]
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pa.table({"y": y, "X1": X[:, 0], "X2": X[:, 1]}), tmp_path / "a.parquet")
    other = json.loads(said(capsys, "fit", "y ~ X1 + X2", tmp_path / "a.parquet", "--family", "poisson", "--json"))
    assert other["bound"] == one["bound"]


def test_predictions_are_no_text_under_the_name_of_something_else(tmp_path: Path, work: Path,
                                                                  capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("p.xlsx", "p.csv.gz"):
        assert run(["predict", "absent.klimb", str(work / "summit.csv"), "-o", str(tmp_path / name)]) == 1
        assert "a file of predictions ends in .csv, .jsonl, .npz or .parquet; got" in capsys.readouterr().err
        assert not (tmp_path / name).exists()


def test_targets_are_checked_before_the_work(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = str(work / "summit.csv")
    assert run(["fit", "nonsense", data, "-o", str(work / "absent" / "m.klimb")]) == 1
    assert "absent, which does not exist" in capsys.readouterr().err
    before = (work / "summit.csv").read_bytes()
    assert run(["fit", "summit ~ wind", data, "-o", data]) == 1
    assert run(["predict", str(work / "mixed.klimb"), data, "-o", data]) == 1
    assert run(["predict", str(work / "mixed.klimb"), data, "-o", str(work / "mixed.klimb")]) == 1
    assert run(["report", str(work / "mixed.klimb"), "-o", str(work / "mixed.klimb")]) == 1
    assert capsys.readouterr().err.count("another file") == 4 * 2
    assert (work / "summit.csv").read_bytes() == before


def test_advice_speaks_of_options(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["fit", "wind ~ days", str(work / "summit.csv"), "--family", "poisson"]) == 1
    message = capsys.readouterr().err
    assert "--family gamma" in message
    assert "family=" not in message


# -- predict ----------------------------------------------------------------------------------------------------------


def test_predict_gives_what_python_gives(work: Path, mixed: Any, capsys: pytest.CaptureFixture[str]) -> None:
    rows = list(csv.DictReader(io.StringIO(said(capsys, "predict", work / "mixed.klimb", work / "summit.csv"))))
    expected = mixed.predict(load_summit())
    assert len(rows) == 400
    for name in ("mean", "sd", "lower", "upper"):
        found = np.array([float(row[name]) if row[name] else np.nan for row in rows])
        np.testing.assert_allclose(found, expected[name], rtol=1e-12)
    assert sum(row["mean"] == "" for row in rows) == 4  # wind was missing


def test_predict_without_random_effects(work: Path, mixed: Any, capsys: pytest.CaptureFixture[str]) -> None:
    (work / "bare.csv").write_text("wind,days,route\n5,10,ridge\n12,3,ridge\n")
    text = said(capsys, "predict", work / "mixed.klimb", work / "bare.csv", "--re", "none")
    rows = list(csv.DictReader(io.StringIO(text)))
    expected = mixed.predict({"wind": [5.0, 12.0], "days": [10, 3], "route": ["ridge"] * 2}, re=False)["mean"]
    assert [float(row["mean"]) for row in rows] == pytest.approx(expected.tolist(), rel=1e-6)


def test_predict_in_pieces_is_predict_at_once(work: Path) -> None:
    from klimb.cli.saved import predicted
    from klimb.cli.tables.read import ReadOptions

    fit = klimb.load(work / "mixed.klimb")
    data = str(work / "summit.csv")
    (whole,) = predicted(fit, data, ReadOptions(), "all", 0.8, ("guide",), False)
    parts = list(predicted(fit, data, ReadOptions(cells=1), "all", 0.8, ("guide",), False))
    assert len(parts) == 2
    for name, expected in whole[1].items():
        found = np.concatenate([columns[name] for _, columns in parts])
        np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-9)
    assert np.concatenate([kept["guide"] for kept, _ in parts]).tolist() == whole[0]["guide"].tolist()


def test_kept_columns_come_as_they_were(work: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = said(capsys, "predict", work / "mixed.klimb", work / "summit.csv", "--keep-all")
    stored = list(csv.reader(io.StringIO((work / "summit.csv").read_text())))
    found = list(csv.reader(io.StringIO(out)))
    assert found[0] == [*stored[0], "mean", "sd", "lower", "upper"]
    assert [row[:7] for row in found[1:]] == [["" if cell == "NA" else cell for cell in row] for row in stored[1:]]
    (tmp_path / "new.csv").write_text("wind,days,route,guide,mean\n1,2,ridge,Ama,x\n")
    out = said(capsys, "predict", work / "mixed.klimb", tmp_path / "new.csv", "--keep", "mean")
    assert out.startswith("data_mean,mean,sd,lower,upper\nx,0.")


def test_predict_json_lines_and_intervals(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    both = ["predict", work / "mixed.klimb", work / "summit.csv", "--json"]
    lines = said(capsys, *both, "--keep", "guide", "--interval", "0.5").splitlines()
    found = [json.loads(line) for line in lines]
    assert list(found[0]) == ["guide", "mean", "sd", "lower", "upper"]
    assert any(row["mean"] is None for row in found)
    wide = [json.loads(line) for line in said(capsys, *both).splitlines()]
    assert all(a["mean"] is None or (b["lower"] < a["lower"] < a["upper"] < b["upper"])
               for a, b in zip(found, wide, strict=True))


@pytest.mark.parametrize("name", ["p.csv", "p.jsonl", "p.npz", "p.parquet"])
def test_predict_to_files(work: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    both = ["predict", work / "mixed.klimb", work / "summit.csv"]
    assert said(capsys, *both, "--keep", "route", "-o", tmp_path / name) == ""
    assert os.listdir(tmp_path) == [name]
    if name.endswith("jsonl"):
        assert len((tmp_path / name).read_text().splitlines()) == 400
    else:
        from klimb.cli.tables.read import read_table

        table = read_table(str(tmp_path / name))
        assert table.n == 400
        assert table.header == ("route", "mean", "sd", "lower", "upper")


def test_levels_that_look_like_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """"007" at the fit is "007" at prediction, even where all new values look like numbers."""
    rows = "".join(f"{i % 7},{code}\n" for i, code in enumerate(["007", "010", "x"] * 10))
    (tmp_path / "a.csv").write_text("y,g\n" + rows)
    (tmp_path / "new.csv").write_text("g\n007\n010\n")
    said(capsys, "fit", "y ~ g", tmp_path / "a.csv", "-o", tmp_path / "m.klimb")
    assert len(said(capsys, "predict", tmp_path / "m.klimb", tmp_path / "new.csv").splitlines()) == 3
    (tmp_path / "b.csv").write_text("y,g\n" + "".join(f"{i % 7},{code}\n" for i, code in enumerate([1, 2, 3] * 10)))
    (tmp_path / "other.csv").write_text("g\n1.0\n2\n")
    said(capsys, "fit", "y ~ C(g)", tmp_path / "b.csv", "-o", tmp_path / "n.klimb")
    assert len(said(capsys, "predict", tmp_path / "n.klimb", tmp_path / "other.csv").splitlines()) == 3


@pytest.mark.parametrize(("text", "words"), [
    ("winds,days,route,guide\n1,2,ridge,Ama\n", "Did you mean 'winds'?"),
    ("wind,days,route,guide\n1,2,glacier,Ama\n", "glacier"),
    ("wind,days,route,guide\nstrong,2,ridge,Ama\n", "wind"),
])
def test_predict_says_what_new_rows_lack(work: Path, tmp_path: Path, text: str, words: str,
                                         capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "new.csv").write_text(text)
    assert run(["predict", str(work / "mixed.klimb"), str(tmp_path / "new.csv"), "-o", str(tmp_path / "p.csv")]) == 1
    assert words in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["new.csv"]


def test_no_rows_to_predict(work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "new.csv").write_text("wind,days,route,guide\n")
    assert said(capsys, "predict", work / "mixed.klimb", tmp_path / "new.csv").strip() == ""


# -- report, compare, info, demo --------------------------------------------------------------------------------------


def test_report_of_a_saved_fit(work: Path, tmp_path: Path, mixed: Any, capsys: pytest.CaptureFixture[str]) -> None:
    said(capsys, "report", work / "mixed.klimb", "-o", tmp_path / "r.html", "--title", "A & B")
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    for part in ("A &amp; B", "Trust.", "sd(guide)", "<h2>Effects", "<h2>Predictions", "<h2>Convergence", "normal(0, "):
        assert part in text, part
    assert len(text) < 300_000
    assert said(capsys, "report", work / "mixed.klimb", "-o", "-").startswith("<!doctype html>")
    assert run(["report", str(work / "mixed.klimb"), "-o", str(tmp_path / "absent" / "r.html")]) == 1
    assert "absent/r.html" in capsys.readouterr().err


def test_compare(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = said(capsys, "compare", work / "plain.klimb", work / "mixed.klimb")
    assert [line.split()[0] for line in out.splitlines()] == ["model", "mixed", "plain"]
    found = json.loads(said(capsys, "compare", work / "plain.klimb", work / "mixed.klimb", "--json"))
    assert found["schema"] == "klimb.compare/1"
    assert [row["name"] for row in found["models"]] == ["mixed", "plain"]
    assert found["models"][1]["difference"] < 0 < found["models"][1]["difference_se"]


def test_info(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = said(capsys, "info", work / "mixed.klimb")
    assert FORMULA in out
    assert "holds data  the response" in out
    facts = json.loads(said(capsys, "info", work / "mixed.klimb", "--json"))
    assert facts["kind"] == "fit"
    assert {"name", "shape", "dtype", "bytes"} == set(facts["arrays"][0])


def test_calibrate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = "".join(f"{int(i % 3 == 0)},{i % 10}\n" for i in range(30))
    (tmp_path / "a.csv").write_text("y,x\n" + rows)
    command = ["calibrate", "y ~ x", tmp_path / "a.csv", "--family", "bernoulli", "-n", "20"]
    found = json.loads(said(capsys, *command, "--prior", "x=normal(0, 1)", "--json"))
    assert (found["schema"], found["n"], found["calibrated"]) == ("klimb.calibrate/1", 20, True)
    assert said(capsys, *command, "--prior", "x=normal(0, 1)").endswith("calibrated\n")


def test_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = said(capsys, "demo", "-o", tmp_path / "new" / "folder")
    assert "trust it" in out
    assert sorted(os.listdir(tmp_path / "new" / "folder")) == ["effects.svg", "report.html", "summit.csv"]


# -- exact, check -----------------------------------------------------------------------------------------------------


def test_exact_draws_and_their_verdict(work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("stanli", reason="exact draws are made by stanli, of the extra exact")
    kept = tmp_path / "exact.klimb"
    page = tmp_path / "exact.html"
    out = said(capsys, "fit", "summit ~ wind", work / "summit.csv", "--family", "bernoulli", "--exact", "-o", kept,
               "--report", page)
    assert "verified by 4,000 exact draws: largest error of an sd" in out
    assert "--exact" in page.read_text(encoding="utf-8")
    checked = said(capsys, "check", kept)
    assert checked.startswith("verified by 4,000 exact draws")
    assert "largest rhat" in checked


def test_check_says_what_the_file_knows(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(said(capsys, "check", work / "mixed.klimb", "--json", code=4))
    assert found["trust"]["verdict"] == klimb.load(work / "mixed.klimb").trust_summary.verdict
    assert said(capsys, "check", work / "mixed.klimb", code=4).startswith(found["trust"]["verdict"])
    assert "start" in found["checks"]["findings"][0]["sentence"]  # a column that the formula leaves out
