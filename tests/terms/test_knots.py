"""Curves with many knots: bands and columns are two forms of one curve."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import klimb
from klimb.formula.errors import FormulaError
from klimb.terms.knots import ManyKnots, bands_pay

RNG = np.random.default_rng(0)
N = 300
DATA: dict[str, Any] = {"x": RNG.uniform(-3.0, 7.0, N), "g": RNG.choice(list("ab"), N), "v": RNG.random(N)}
DATA["y"] = np.sin(DATA["x"]) * (1.0 + DATA["v"]) + 0.3 * RNG.standard_normal(N)
NEW = {"x": np.array([-5.0, 0.0, 3.3, 9.0]), "g": ["a", "b", "a", "b"], "v": [0.1, 0.5, 0.9, 0.2]}


@pytest.mark.parametrize("term", ["s(x, k=12{})", "s(x, k=60, by=g{})", "s(x, k=40, by=v{}) + (1 | g)",
                                  "s(x, knots=[-2, 0, 0.1, 5]{})"])
def test_both_forms_are_the_same_model(term: str) -> None:
    columns, bands = (klimb.fit(f"y ~ {term.format(f', sparse={form}')}", DATA) for form in (False, True))
    assert any(isinstance(one, ManyKnots) for one in bands.model.terms)
    assert bands.bound == pytest.approx(columns.bound, abs=1e-3)
    for one, other in zip(columns.table_rows(), bands.table_rows(), strict=True):
        assert one.name == other.name
        assert abs(one.mean - other.mean) < 2e-3 * one.sd, one.name
        assert other.sd == pytest.approx(one.sd, rel=2e-3)
    one, other = (fit.predict(NEW, kind="latent") for fit in (columns, bands))  # beyond the knots as well
    assert (np.abs(one["mean"] - other["mean"]) < 2e-3 * one["sd"]).all()
    np.testing.assert_allclose(one["sd"], other["sd"], rtol=2e-3)


def test_bands_are_chosen_where_columns_are_expensive() -> None:
    assert not bands_pay(1_000_000, 10)
    assert not bands_pay(300, 60)
    assert bands_pay(20_000, 200)
    x = np.linspace(0.0, 1.0, 4_000)
    fit = klimb.fit("y ~ s(x, k=250)", {"x": x, "y": np.sin(60.0 * x) + 0.1 * RNG.standard_normal(4_000)},
                    hyper="optimise")
    assert any(isinstance(one, ManyKnots) for one in fit.model.terms)
    assert np.abs(fit.predict(kind="latent")["mean"] - np.sin(60.0 * x)).max() < 0.12


def test_a_flag_is_true_or_false() -> None:
    with pytest.raises(FormulaError, match="sparse"):
        klimb.fit("y ~ s(x, sparse=3)", DATA)
