"""Pareto-smoothed importance weights, against closed forms and an independent implementation."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from klimb.errors import InputError
from klimb.numerics.pareto import (
    fit_generalised_pareto,
    khat_threshold,
    pareto_quantile,
    smooth_log_weights,
)

STORED = json.loads((Path(__file__).parent.parent / "references" / "psis.json").read_text(encoding="utf-8"))


def exponential_ratios(n: int, rate: float) -> np.ndarray:
    """Log weights of Exp(1) against draws of Exp(rate): their tail has k = 1 - 1/rate, an example of the PSIS paper."""
    x = np.random.default_rng(1).exponential(1.0 / rate, n)
    return np.asarray((rate - 1.0) * x - np.log(rate))


@pytest.mark.parametrize("shape", [-0.4, 0.0, 0.3, 0.7, 1.1])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_recovers_shape_and_scale(shape: float, scale: float) -> None:
    u = (np.arange(4000) + 0.5) / 4000
    k, sigma = fit_generalised_pareto(pareto_quantile(u, shape, scale))
    assert k == pytest.approx(shape, abs=0.02)
    assert sigma == pytest.approx(scale, rel=0.03)


@pytest.mark.parametrize("case", STORED, ids=lambda case: case["name"])
def test_agrees_with_stored_values(case: dict[str, object]) -> None:
    """khat, smoothed weights and effective size as ArviZ computes them (tests/references/make_psis.py)."""
    rng = np.random.default_rng(case["seed"])
    raw = float(str(case["factor"])) * rng.standard_normal(int(str(case["n"]))) ** int(str(case["power"]))
    found = smooth_log_weights(raw)
    assert found.khat == pytest.approx(case["khat"], abs=1e-8)
    mine = np.sort(np.log(found.normalised))[::-1][:20]
    assert np.allclose(mine, case["largest"], atol=1e-8)


@pytest.mark.parametrize(("rate", "k"), [(1.25, 0.2), (2.0, 0.5), (3.0, 2 / 3), (10.0, 0.9)])
def test_published_exponential_example(rate: float, k: float) -> None:
    assert smooth_log_weights(exponential_ratios(200_000, rate)).khat == pytest.approx(k, abs=0.06)


def test_mean_weight_and_its_error() -> None:
    """E w = 1 for normalised densities; smoothing keeps it, and the error says how far off it may be."""
    found = smooth_log_weights(exponential_ratios(20_000, 1.5))
    assert abs(found.log_mean) < 4 * found.log_mean_error
    assert 0 < found.log_mean_error < 0.02
    assert found.normalised.sum() == pytest.approx(1.0)
    assert 1 < found.effective < 20_000


def test_scale_of_the_weights_does_not_matter() -> None:
    raw = exponential_ratios(3000, 2.0)
    one, other = smooth_log_weights(raw), smooth_log_weights(raw - 1e4)
    assert one.khat == pytest.approx(other.khat, abs=1e-6)
    assert np.allclose(one.normalised, other.normalised, rtol=1e-6)


def test_equal_and_few_weights() -> None:
    assert smooth_log_weights(np.full(100, 3.0)).khat == -np.inf
    assert smooth_log_weights(np.array([0.0, 1.0])).khat == np.inf
    assert smooth_log_weights(np.array([2.0])).normalised.tolist() == [1.0]
    some_zero = smooth_log_weights(np.where(np.arange(200) % 2, -np.inf, 0.0))
    assert np.isfinite(some_zero.normalised).all()


def test_one_weight_takes_all() -> None:
    raw = np.zeros(400)
    raw[7] = 5000.0
    found = smooth_log_weights(raw)
    assert found.khat > 0.7
    assert found.effective == pytest.approx(1.0, abs=0.2)


@pytest.mark.parametrize("bad", [[np.nan, 0.0], [np.inf, 0.0], [-np.inf, -np.inf], [], [[1.0]]])
def test_refuses_what_is_no_log_weight(bad: list[float]) -> None:
    with pytest.raises(InputError):
        smooth_log_weights(np.array(bad))


def test_threshold_grows_with_draws() -> None:
    assert khat_threshold(100) == pytest.approx(0.5)
    assert khat_threshold(10**6) == 0.7
