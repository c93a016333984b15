"""What fits hold of every row, at most."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import klimb
from klimb.models import streamed


@pytest.fixture(autouse=True)
def tracing() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


def test_nothing_of_all_rows_is_held_while_they_are_passed_over(tmp_path, monkeypatch):
    n, held = 400_000, list[float]()
    rng = np.random.default_rng(0)
    x = rng.standard_normal(n)
    data = {"x": x, "y": (rng.random(n) < 1 / (1 + np.exp(-x))).astype(float)}
    before = tracemalloc.get_traced_memory()[0]

    def watched(*given: Any) -> Any:
        held.append((tracemalloc.get_traced_memory()[0] - before) / n)
        return solve(*given)

    solve = streamed.solve_on_sums
    monkeypatch.setattr(streamed, "solve_on_sums", watched)
    klimb.fit("y ~ x", data, family="bernoulli", checkpoint=tmp_path)
    assert held[0] < 8  # a sample of the rows


def peak_of(call: Callable[[], Any]) -> int:
    """Bytes at the peak of a second run, beyond what was there."""
    call()
    tracemalloc.clear_traces()
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    call()
    return tracemalloc.get_traced_memory()[1] - before


def test_mixed_fits_hold_200_bytes_of_each_row():
    n, levels = 200_000, 4_000
    rng = np.random.default_rng(0)
    g, x = rng.integers(0, levels, n), rng.standard_normal(n)
    y = (rng.random(n) < 1 / (1 + np.exp(-x - rng.standard_normal(levels)[g]))).astype(float)
    assert peak_of(lambda: klimb.fit("y ~ x + (1 | g)", {"y": y, "x": x, "g": g}, family="bernoulli")) < 200 * n


def test_series_hold_a_quarter_of_a_kilobyte_of_each_time():
    n = 50_000  # of 100,000 times it is 197 bytes: recursions and blocks take as much of shorter ones
    t = np.arange(float(n))
    y = np.random.default_rng(0).poisson(np.exp(0.5 * np.sin(t / 300.0)))
    model = klimb.series(klimb.kernels.Matern32(lengthscale=100.0), t, klimb.sites.Poisson())
    assert peak_of(lambda: model.fit(y)) < 250 * n


def test_factors_with_negative_precisions_hold_no_product_with_all_of_the_kernel():
    n, rng = 800, np.random.default_rng(0)
    X = rng.standard_normal((n, 3))
    y = 2.0 * np.sin(X[:, 0]) + 0.3 * rng.standard_t(4, n)
    kernel = klimb.kernels.RBF(lengthscale=1.0, variance=4.0)
    model = klimb.gp(kernel, X, klimb.sites.StudentT(df=4.0, scale=0.3))
    assert peak_of(lambda: model.fit(y, hyper="fixed")) < 3.0 * 8 * n**2  # beyond the kernel
