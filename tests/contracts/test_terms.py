"""Everything in TERMS fits, predicts at new data, draws, is judged, is saved and loaded, prints, and is documented."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import klimb
from klimb.formula.functions import FUNCTIONS
from klimb.terms import TERMS

RNG = np.random.default_rng(6)
N = 80
DATA = {"x": RNG.standard_normal(N), "z": RNG.uniform(0.0, 5.0, N), "g": RNG.choice(list("abcdef"), N)}
DATA["t"] = np.arange(N) % 20
DATA["h"] = DATA["t"] // 5
DATA["y"] = RNG.poisson(np.exp(0.3 + 0.4 * DATA["x"] + 0.5 * np.sin(DATA["z"])))
NEW = {"x": [0.0, 1.0], "z": [0.5, 4.0], "g": ["a", "never seen"], "t": [3, 22], "h": [1, 5]}
GRAPHS = {"G": [("a", "b"), ("b", "c"), ("c", "d"), ("d", "e"), ("e", "f"), ("f", "a")]}
MATRICES = {"M": np.eye(6) + 0.2}
PLAIN = {"fixed": "x + C(g):x", "group": "(1 + x | g)", "walk": "rw1(t)", "areas": "bym2(g, graph=G)",
         "autoregression": "ar1(t)", "seasonal": "seasonal(t, period=5)", "spde": "spde(x, z, spacing=0.5)",
         "curve": "spde(z)", "generic": "generic(g, Q=M)", "knots": "s(z, k=20, sparse=True)",
         "product": "ar1(h):car(g, graph=G)"}  # the others are called with a column
DOCS = (Path(__file__).parents[2] / "docs" / "formula.md").read_text(encoding="utf-8")


def written(kind: str) -> str:
    """A term of this kind, as a formula has it."""
    return PLAIN[kind] if kind in PLAIN else f"{TERMS[kind].functions[0].name}(z)"


@pytest.fixture(scope="module", params=list(TERMS))
def fit(request: pytest.FixtureRequest) -> Any:
    return klimb.fit(f"y ~ {written(request.param)}", DATA, family="poisson", hyper="optimise", graphs=GRAPHS,
                     matrices=MATRICES)


def known(fit: Any) -> dict[str, Any]:
    """New rows, without the level that fixed factors refuse."""
    return NEW if fit.groups else {**NEW, "g": ["a", "b"]}


def test_fits_prints_and_reports(fit: Any) -> None:
    assert fit.converged
    assert fit.formula in str(fit)
    names = [row.name for row in fit.table_rows()]
    assert len(names) == len(set(names))
    for term in fit.model.terms:
        assert all(name in fit.prior_words() for block in term.parameters for name in block.names)
        assert all(name in names for block in term.parameters for name in block.names)
    assert fit.report().formula == fit.formula


def test_predicts_and_draws_at_new_data(fit: Any) -> None:
    for kind in ("mean", "latent", "response"):
        found = fit.predict(known(fit), kind=kind)
        assert all(np.isfinite(values).all() and len(values) == 2 for values in found.values())
    f = fit.predict(known(fit), kind="latent")
    draws = fit.sample(4000, known(fit), seed=2)
    np.testing.assert_allclose(draws.mean(axis=0), f["mean"], atol=0.1 * f["sd"].max())
    np.testing.assert_allclose(draws.std(axis=0), f["sd"], rtol=0.1)
    assert fit.draws(7)["Intercept"].shape == (7,)


def test_rows_of_the_fit_are_new_rows_too(fit: Any) -> None:
    np.testing.assert_allclose(fit.predict(DATA)["mean"], fit.predict()["mean"], rtol=1e-12)


def test_is_judged(fit: Any) -> None:
    assert fit.trust.verdict in ("trust", "corrected", "doubt")
    report = klimb.trust(fit, draws=2000)
    assert report.verdict in ("trust", "corrected", "doubt")
    assert len(report.facts) > len(fit.trust.facts)


def test_is_saved_and_loaded_to_the_same_bits(fit: Any, tmp_path: Path) -> None:
    fit.save(tmp_path / "m.klimb")
    back = klimb.load(tmp_path / "m.klimb")
    assert str(back) == str(fit)
    one, two = fit.predict(known(fit), kind="all"), back.predict(known(fit), kind="all")
    assert all(np.array_equal(one[name], two[name]) for name in one)
    one, two = fit.draws(5), back.draws(5)
    assert all(np.array_equal(one[name], two[name]) for name in one)


def test_is_documented(fit: Any) -> None:
    for term in fit.model.terms:
        for function in type(term).functions:
            assert FUNCTIONS[function.name] is function
            assert f"`{function.name}(" in DOCS
