"""The parts of the benchmarks that need neither data nor rivals: they must not rot."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import engine, floors, measure, problems


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
