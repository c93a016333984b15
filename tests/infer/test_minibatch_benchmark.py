"""The benchmark of inducing points runs on small problems: it must not rot."""

from __future__ import annotations

import numpy as np

from benchmarks import inducing


def test_problem_and_clock():
    data = inducing.problem(600, 20)
    assert data.X.shape == (600, 4)
    assert set(np.unique(data.y)) == {0.0, 1.0}
    rows, close, whole, result = inducing.timed_fit(data)
    assert 0 <= rows <= close <= whole
    assert result.converged


def test_rows_on_demand():
    found = inducing.million(500, 10)
    assert found["status"] == "CONVERGED"
    assert found["peak MiB"] >= found["data MiB"] > 0
