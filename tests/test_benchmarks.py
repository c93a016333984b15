"""The parts of the benchmarks that need neither data nor rivals: they must not rot."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import bench, engine, floors, measure, problems


def test_squared_distances_are_exact_on_the_diagonal_and_symmetric() -> None:
    X = np.random.default_rng(0).standard_normal((20, 3))
    d2 = problems.squared_distances(X)
    np.testing.assert_array_equal(d2, d2.T)
    np.testing.assert_array_equal(np.diag(d2), 0.0)
    np.testing.assert_allclose(d2, ((X[:, None] - X[None]) ** 2).sum(axis=2), atol=1e-12)


def test_rbf_has_the_amplitude_on_its_diagonal() -> None:
    K = problems.rbf(np.array([[0.0, 4.0], [4.0, 0.0]]), log_lengthscale=np.log(2.0), log_amplitude=np.log(3.0))
    np.testing.assert_allclose(K, [[9.0, 9.0 * np.exp(-0.5)], [9.0 * np.exp(-0.5), 9.0]])


def test_constant_columns_survive_standardisation() -> None:
    np.testing.assert_array_equal(problems.standardised(np.array([[1.0, 0.0], [1.0, 2.0]])), [[0.0, -1.0], [0.0, 1.0]])


def test_floors_run() -> None:
    assert floors.weights_floor(200, 5, repeats=1) >= 0.0
    assert floors.kernel_floor(30, repeats=1) >= 0.0


def test_results_are_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measure.table("title", ["name", "number"], [("one", 1.0), ("two", 2)])
    assert "title" in capsys.readouterr().out
    path = measure.save("x", {"array": np.arange(3), "scalar": np.float64(0.5)}, tmp_path / "x.json")
    assert json.loads(path.read_text())["array"] == [0, 1, 2]


def test_counts_come_from_the_history() -> None:
    import klimb

    data = problems.synthetic(300, 3)
    result = klimb.infer(klimb.latents.Weights(data.X), klimb.sites.Logistic(), data.y)
    found = engine.counts(result)
    assert found["status"] == "converged"
    assert found["n_factor"] >= found["n_iter"] >= 1
    assert found["stationarity"] <= 1e-6
    assert set(engine.step_seconds(klimb.latents.Weights(data.X), data.y)) <= {"natural", "anderson", "newton", "local"}


def test_startup_sees_what_is_imported_and_weighed(tmp_path: Path) -> None:
    from benchmarks import startup

    assert startup.imported("import csv") == []
    assert startup.imported("import scipy.stats")[0] == "scipy.stats"
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "a.py").write_bytes(b"x" * 30)
    (tmp_path / "b.py").write_bytes(b"x" * 5)
    assert startup.weigh(tmp_path) == {"package": 30, "b.py": 5}


def test_a_case_is_run_in_a_process_of_its_own_and_judged() -> None:
    name, size = "formula, 50 columns", 600
    found = bench.launched(name, size, "klimb", sys.executable)
    assert "error" not in found
    assert found["cpu"] > 0.0
    assert found["floor"] > 0.0
    case = bench.cases()[name]
    assert case.judge(case.make(size), {"klimb": found["answer"]}) == {"klimb": 0.0}
    assert "error" in bench.launched(name, size, "nobody", sys.executable)


def test_packages_that_are_not_there_are_said_to_be_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KLIMB_RIVALS", raising=False)
    known: dict[str, str | None] = {}
    assert bench.interpreter("klimb", known) == sys.executable
    assert bench.interpreter("a package of no name", known) is None
    named = {solver for case in bench.cases().values() for solver in case.solvers}
    assert all(any(solver.startswith(name) for name in (*bench.IMPORTS, *bench.IN_R)) for solver in named)


def test_the_page_says_where_klimb_loses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    common = {"case": "mixed, gaussian", "wall": 1.0, "first": 2.0, "memory": 10.0, "floor": 0.5, "commit": "abc"}
    records = [{**common, "size": size, "package": who, "cpu": cpu * size, "quality": quality}
               for size in (100, 1000) for who, cpu, quality in (("klimb", 2.0, 0.01), ("lme4", 1.0, 0.01))]
    records.append({**common, "size": 100, "package": "glmm", "error": "not installed"})
    path, page = tmp_path / "bench.jsonl", tmp_path / "page.md"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    page.write_text("before\n" + "old\n".join(bench.MARKS) + "after\n")
    monkeypatch.setattr(bench, "RESULTS", path)
    monkeypatch.setattr(bench, "PAGE", page)
    bench.page()
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert "mixed, gaussian, 100: lme4 is 2.0 times faster" in text
    assert "| 100 | glmm | not installed |" in text
    assert "klimb 1.00, lme4 1.00" in text  # both grow in proportion to the size
