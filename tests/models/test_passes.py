"""Passes while q is far take one variance for many rows; those that end the fit do not."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

import klimb
from klimb.models import passes


class Told:
    """Notes which passes over sites are rough."""

    def __init__(self) -> None:
        self.rough: list[bool] = []

    def map(self, function: Callable[[Any], Any], some: Iterable[Any], /) -> Iterable[Any]:
        work: Any = function
        if work.func is passes.site_sums:
            self.rough.append(work.args[3])
        return map(function, some)


@pytest.mark.parametrize("family", ["bernoulli", "poisson"])
def test_few_passes_know_every_variance(family: str) -> None:
    rng = np.random.default_rng(0)
    n = 60_000
    X = rng.standard_normal((n, 3))
    f = 0.5 + X @ [1.0, -0.7, 0.4]
    y = rng.random(n) < 1.0 / (1.0 + np.exp(-f)) if family == "bernoulli" else rng.poisson(np.exp(f))
    data = {**{f"x{j}": X[:, j] for j in range(3)}, "y": y.astype(float)}
    memory = klimb.fit("y ~ x0 + x1 + x2", data, family, tol=1e-12, progress=False, cells=False)
    for tol, most, near in ((1e-6, 3, 1e-5), (1e-12, 5, 1e-8)):
        told = Told()
        fit = klimb.fit("y ~ x0 + x1 + x2", data, family, engine=told, tol=tol, progress=False, cells=False)
        assert told.rough == sorted(told.rough, reverse=True)  # first those that are
        assert sum(told.rough) >= 2
        assert len(told.rough) - sum(told.rough) <= most
        q, exact = fit.components.parts[0], memory.components.parts[0]
        np.testing.assert_allclose((q.mean - exact.mean) / exact.sd(), 0.0, atol=near)
        np.testing.assert_allclose(q.sd() / exact.sd(), 1.0, atol=near)
        assert fit.bound == pytest.approx(memory.bound, abs=1e-6)
        assert (np.diff(fit.result.history.bound) >= -1e-9 * abs(fit.bound)).all()


def test_a_rough_pass_knows_the_bound_to_second_order() -> None:
    rng = np.random.default_rng(3)
    data = {"x": rng.standard_normal(4000), "z": rng.standard_normal(4000)}
    data["y"] = rng.poisson(np.exp(0.5 + 0.4 * data["x"])).astype(float)
    values: dict[bool, float] = {}

    class Both:
        def map(self, function: Any, some: Any, /) -> Any:
            blocks = list(some)
            if function.func is passes.site_sums and function.args[1] is not None and not values:
                for rough in (False, True):
                    work = passes.site_sums, *function.args[:3], rough
                    values[rough] = sum(work[0](*work[1:], block).value for block in blocks)
            return map(function, blocks)

    klimb.fit("y ~ x + z", data, "poisson", engine=Both(), progress=False)
    assert 0.0 < abs(values[True] - values[False]) < 1e-4  # tr(V G) itself is near 3
