"""Estimators on sparse rows too many to factorise: products must say what the exact engines say."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse as sp
from sklearn.base import clone

from klimb.errors import InputError
from klimb.latents import Implicit
from klimb.models import products as large
from klimb.rows import gather
from klimb.rows.scaling import Scaling
from klimb.sklearn import GLMClassifier, GLMRegressor

RNG = np.random.default_rng(0)
X = sp.random(900, 300, density=0.05, random_state=RNG, format="csr")
F = X @ RNG.standard_normal(300)
CLASSES = np.where(F + 0.5 * RNG.logistic(size=900) > 0, "yes", "no")
COUNTS = RNG.poisson(np.exp(np.clip(F, -3.0, 3.0)))
NUMBERS = 3.0 + F + 0.5 * RNG.standard_normal(900)
WEIGHTS = RNG.integers(0, 3, 900).astype(float)

MODELS = {
    "classes": (GLMClassifier, {}, CLASSES, None),
    "classes, no intercept": (GLMClassifier, {"fit_intercept": False, "link": "probit"}, CLASSES, None),
    "classes, weighted, one scale": (GLMClassifier, {"standardize": False}, CLASSES, WEIGHTS),
    "classes, given scale": (GLMClassifier, {"prior_scale": 0.2}, CLASSES, None),
    "counts": (GLMRegressor, {"family": "poisson"}, COUNTS, None),
    "numbers": (GLMRegressor, {}, NUMBERS, None),
}


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large, "PATIENCE", 0.0)


@pytest.mark.parametrize("name", MODELS)
def test_products_agree_with_factorisations(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, settings, y, weights = MODELS[name]
    exact = make(**{"standardize": True, **settings}).fit(X, y, weights)
    exact.fit_ = exact.fit_.uncorrected  # products give q itself, and do not correct it
    monkeypatch.setattr(large, "PATIENCE", 0.0)
    found = make(**{"standardize": True, **settings}).fit(X, y, weights)
    assert isinstance(found.fit_.posterior.latent, Implicit)
    assert not isinstance(exact.fit_.posterior.latent, Implicit)
    assert found.converged_
    assert found.prior_scale_ == pytest.approx(exact.prior_scale_, rel=0.05)
    assert found.bound_ == pytest.approx(exact.bound_, abs=1.0)
    assert np.abs(found.coef_ - exact.coef_).max() < 0.1 * np.std(exact.coef_)
    assert found.coef_std_ == pytest.approx(exact.coef_std_, rel=0.08)
    assert np.all(np.abs(found.intercept_ - exact.intercept_) < 0.1 * np.maximum(exact.intercept_std_, 0.1))
    assert found.intercept_std_ == pytest.approx(exact.intercept_std_, rel=0.1, abs=1e-9)
    if isinstance(found, GLMRegressor):
        assert found.dispersion_ == pytest.approx(exact.dispersion_, rel=0.02)
        for ours, theirs in zip(found.predict(X[:50], return_std=True), exact.predict(X[:50], return_std=True),
                                strict=True):
            assert ours == pytest.approx(theirs, rel=0.05)
    else:
        assert found.predict_proba(X[:50]) == pytest.approx(exact.predict_proba(X[:50]), abs=0.01)


@pytest.mark.parametrize("patience", [0.0, 60.0])
def test_the_better_bound_decides_whether_columns_are_standardised(patience: float,
                                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large, "PATIENCE", patience)
    frequent = X.multiply(np.linspace(0.05, 3.0, 300)).tocsr()  # coefficients of one size, columns that are not
    for rows, winner in ((frequent, False), (X, None)):
        y = np.where(rows @ RNG.standard_normal(300) + 0.3 * RNG.logistic(size=900) > 0, 1, 0)
        both = {each: GLMClassifier(standardize=each).fit(rows, y).bound_ for each in (True, False)}
        found = GLMClassifier().fit(rows, y)
        assert found.bound_ == pytest.approx(max(both.values()), abs=2.0)
        if winner is not None:
            assert both[winner] == max(both.values())
        assert np.ptp(found.fit_.model.inputs.scale) == 0.0 or both[True] >= both[False] - 2.0
    dense = GLMClassifier().fit(X[:60, :4].toarray(), CLASSES[:60])
    assert dense.bound_ == GLMClassifier(standardize=True).fit(X[:60, :4].toarray(), CLASSES[:60]).bound_


def test_what_is_fitted_can_be_used_like_any_other(impatient: None) -> None:
    several = np.digitize(F, [-0.5, 0.5])
    model = GLMClassifier(multi_class="ovr", standardize=True).fit(X, several)
    assert model.coef_.shape == (3, 300)
    assert np.mean(model.predict(X) == several) > 0.7
    assert model.predict_proba(X.toarray()[:5]) == pytest.approx(model.predict_proba(X[:5]), rel=1e-9)
    again = pickle.loads(pickle.dumps(model))
    assert again.predict_proba(X[:5]) == pytest.approx(model.predict_proba(X[:5]), rel=1e-9)
    two = GLMClassifier(standardize=True).fit(X, CLASSES)
    np.testing.assert_array_equal(two.predict(X), two.classes_[(two.decision_function(X) > 0.0).astype(int)])
    with pytest.raises(InputError, match="partial_fit"):
        two.partial_fit(X[:5], CLASSES[:5])


def test_what_products_can_not_do_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="standardize"):
        GLMClassifier(standardize="yes").fit(X, CLASSES)
    monkeypatch.setattr(large, "MEMORY", 1e6)
    with pytest.raises(InputError, match=r'3 classes in one model must fit into 1\.0 MB.*Use multi_class="ovr"'):
        GLMClassifier().fit(X, np.digitize(F, [-0.5, 0.5]))
    with pytest.raises(InputError, match="student_t, which is not log-concave"):
        GLMRegressor(family="student_t").fit(X, NUMBERS)
    dense = GLMClassifier().fit(X[:60, :4].toarray(), CLASSES[:60])  # dense rows are in memory already
    assert not isinstance(dense.fit_.posterior.latent, Implicit)


def test_one_scale_for_all_columns() -> None:
    Z = RNG.standard_normal((200, 3)) * [1.0, 2.0, 0.0]
    found = Scaling.of(Z, None, each=False)
    assert found.scale == pytest.approx(np.sqrt(np.mean(Z[:, :2].var(axis=0))) * np.ones(3))
    assert Scaling.of(sp.csr_matrix(Z), None, each=False).scale == pytest.approx(found.scale)
    assert Scaling.of(np.zeros((4, 2)), None, each=False).scale == pytest.approx([1.0, 1.0])
    model = GLMRegressor(standardize=False).fit(Z[:, :2], Z[:, 0])
    assert model.coef_ == pytest.approx([1.0, 0.0], abs=0.01)


def test_a_constant_column_is_constant_whatever_rounding_says(impatient: None) -> None:
    ones = sp.hstack([X, sp.csr_array(np.full((900, 1), 0.1))], format="csr")
    assert Scaling.of(ones, None).scale[-1] == 1.0
    assert Scaling.of(ones.toarray(), None).scale[-1] == 1.0
    without, within = (GLMClassifier(standardize=True).fit(rows, CLASSES) for rows in (X, ones))
    assert within.bound_ == pytest.approx(without.bound_, abs=1.0)
    assert within.predict_proba(ones[:5]) == pytest.approx(without.predict_proba(X[:5]), abs=0.01)


@pytest.mark.parametrize("top", [-3.0, 0.2, 0.9, 5.0])
def test_the_top_of_a_smooth_function_is_found(top: float) -> None:
    asked = []

    def height(x: float) -> float:
        asked.append(x)
        return -float(np.cosh(x - top))

    assert large.top_of(height, 0.0, 0.7, 0.02) == pytest.approx(top, abs=0.02)
    assert len(asked) <= 16
    assert large.top_of(lambda x: 0.0, 0.0, 0.7, 0.02, most=6) in (0.0, 0.7, -0.7, 1.4, 0.35)


@pytest.mark.parametrize("streamed", [False, True])
def test_tables_that_are_not_in_memory(streamed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """y is the name of a column; the fit is that of the matrix of the others."""
    rng = np.random.default_rng(4)
    X = 5.0 + rng.standard_normal((3000, 3)) * [1.0, 2.0, 3.0]
    f = X @ [0.5, -0.3, 0.1] - 1.0
    responses = {"text": np.where(rng.random(3000) < 1 / (1 + np.exp(-f)), "yes", "no"), "flag": rng.random(3000) < 0.3,
                 "count": rng.poisson(np.exp(0.3 * f)), "real": f + rng.standard_normal(3000)}
    if streamed:
        for name in ("LEAST", "SAMPLE", "MOST_READ"):
            monkeypatch.setattr(gather, name, 100)
    for name, y in responses.items():
        numeric = GLMRegressor("poisson" if name == "count" else "gaussian")
        model = numeric if name in ("count", "real") else GLMClassifier()
        pl.DataFrame({"a": X[:, 0], "b": X[:, 1], "c": X[:, 2], "y": y}).write_parquet(tmp_path / f"{name}.parquet")
        one = clone(model).fit(tmp_path / f"{name}.parquet", "y")
        other = clone(model).fit(X, y)
        np.testing.assert_allclose(one.coef_, other.coef_, atol=2e-3 * np.max(other.coef_std_))
        np.testing.assert_allclose(one.coef_std_, other.coef_std_, rtol=1e-3)
        assert one.bound_ == pytest.approx(other.bound_, abs=1e-3)
        new = pd.DataFrame(X[:5], columns=["a", "b", "c"])
        np.testing.assert_array_equal(one.predict(new).dtype, other.predict(X[:5]).dtype)
        if name in ("text", "flag"):
            np.testing.assert_array_equal(one.classes_, other.classes_)
            np.testing.assert_allclose(one.predict_proba(new), other.predict_proba(X[:5]), atol=1e-4)
    with pytest.raises(InputError, match="fitted with prior_scale='auto'"):
        GLMClassifier(prior_scale=1.0).fit(tmp_path / "text.parquet", "y")
    with pytest.raises(InputError, match="columns of numbers beside y"):
        GLMRegressor().fit({"y": [1.0, 2.0, 3.0, 5.0], "g": ["a", "b", "a", "b"]}, "y")
