"""What fits by passes hold of every row."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
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
