"""Passes while q is far take one variance for many rows; those that end the fit do not, in the precision they need."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

import klimb
from klimb.models import passes


class Told:
    """Notes which passes over sites are rough, and which are in single precision."""

    def __init__(self) -> None:
        self.rough: list[bool] = []
        self.rounded: list[bool] = []

    def map(self, function: Callable[[Any], Any], some: Iterable[Any], /) -> Iterable[Any]:
        work: Any = function
        if work.func is passes.site_sums:
            self.rough.append(work.args[3])
            self.rounded.append(work.args[4])
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
        assert told.rounded == [tol == 1e-6 or rough for rough in told.rough]
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
                    work = passes.site_sums, *function.args[:3], rough, False
                    values[rough] = sum(work[0](*work[1:], block).value for block in blocks)
            return map(function, blocks)

    klimb.fit("y ~ x + z", data, "poisson", engine=Both(), progress=False)
    assert 0.0 < abs(values[True] - values[False]) < 1e-4  # tr(V G) itself is near 3


def fitted(data: dict[str, np.ndarray], formula: str, **options: Any) -> tuple[Any, list[bool]]:
    told = Told()
    fit = klimb.fit(formula, data, "poisson", engine=told, progress=False, cells=False, **options)
    return fit, [rounded for rounded, rough in zip(told.rounded, told.rough, strict=True) if not rough]


def test_columns_that_are_nearly_others_are_not_rounded() -> None:
    rng = np.random.default_rng(5)
    x = rng.standard_normal(20_000)
    data = {"x": x, "z": x + 1e-3 * rng.standard_normal(len(x)), "y": rng.poisson(np.exp(0.3 + 0.5 * x)).astype(float)}
    fit, rounded = fitted(data, "y ~ x + z")
    exact, never = fitted(data, "y ~ x + z", tol=1e-12)
    assert not any(rounded + never)
    np.testing.assert_allclose(fit.components.parts[0].sd() / exact.components.parts[0].sd(), 1.0, atol=1e-5)


@pytest.mark.parametrize("unit", [1e-30, 1e-9, 1e9, 1e30])
def test_columns_of_any_unit_have_the_same_fit(unit: float) -> None:
    rng = np.random.default_rng(6)
    x = rng.standard_normal(20_000)
    y = rng.poisson(np.exp(0.3 + 0.5 * x)).astype(float)
    plain, rounded = fitted({"x": x, "y": y}, "y ~ x")
    scaled, far = fitted({"x": unit * x, "y": y}, "y ~ x")
    assert all(rounded)
    assert all(far) == (1e-12 < unit < 1e12)  # squares of the others are no numbers in single precision
    one, other = (fit.components.parts[0] for fit in (plain, scaled))
    np.testing.assert_allclose(other.mean * [1.0, unit], one.mean, rtol=1e-7)
    np.testing.assert_allclose(other.sd() * [1.0, unit], one.sd(), rtol=1e-6)
