"""The estimators as scikit-learn sees them: its own checks, pipelines, searches, copies, and plain misuse."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import klimb
from klimb.errors import InputError
from klimb.sklearn import GLMClassifier, GLMRegressor, GPClassifier, GPRegressor, SparseLinearRegressor

ALL: list[Any] = [GLMClassifier(), GLMRegressor(), GPClassifier(), GPRegressor(), SparseLinearRegressor()]
CLASSIFIERS = [one for one in ALL if hasattr(one, "predict_proba")]
REGRESSORS = [one for one in ALL if not hasattr(one, "predict_proba")]


# Known hyperparameters and few inducing points keep this to seconds. The defaults pass as well: see the docs.
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@parametrize_with_checks([
    GLMClassifier(prior_scale=1.0), GLMRegressor(max_iter=3),
    SparseLinearRegressor("laplace", prior_scale=0.1, max_iter=1),
    GPClassifier(variance=4.0, lengthscale=2.0, inducing=15), GPRegressor(max_iter=1, inducing=15),
])
def test_scikit_learn_checks(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.fixture(scope="module")
def data() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 3))
    y = 2.0 * X[:, 0] - X[:, 1] + 0.3 * rng.standard_normal(60)
    return X, y, np.where(y > 0.5, "high", "low")


def target_of(estimator: Any, data: tuple[np.ndarray, np.ndarray, np.ndarray]) -> np.ndarray:
    return data[2] if hasattr(estimator, "predict_proba") else data[1]


@pytest.mark.parametrize("estimator", ALL, ids=lambda one: type(one).__name__)
def test_life_in_scikit_learn(estimator: Any, data: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    X, target = pd.DataFrame(data[0], columns=["a", "b", "c"]), target_of(estimator, data)
    pipeline = make_pipeline(StandardScaler(), clone(estimator)).set_output(transform="pandas").fit(X, target)
    assert pipeline[-1].feature_names_in_.tolist() == ["a", "b", "c"]
    assert pipeline[-1].n_features_in_ == 3
    assert cross_val_score(clone(estimator), X, target, cv=2).mean() > 0.8
    columns = make_column_transformer((StandardScaler(), ["a", "b"]), remainder="drop")
    assert make_pipeline(columns, clone(estimator)).fit(X, target).score(X, target) > 0.8
    copy = pickle.loads(pickle.dumps(pipeline))
    assert np.array_equal(copy.predict(X), pipeline.predict(X))
    scaled = pipeline[0].transform(X).to_numpy()
    other = clone(estimator).fit(sp.csc_matrix(scaled), target)
    assert other.bound_ == pytest.approx(pipeline[-1].bound_, abs=1e-3)


@pytest.mark.filterwarnings("ignore:GPClassifier did not converge:sklearn.exceptions.ConvergenceWarning")
def test_grid_search(data: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    search = GridSearchCV(GLMRegressor(), {"family": ["gaussian", "laplace"], "prior_scale": ["auto", 1.0]}, cv=2)
    search.fit(data[0], data[1])
    assert search.best_score_ > 0.9
    assert GridSearchCV(GPClassifier(max_iter=2), {"kernel": ["RBF", klimb.kernels.Matern32()]}, cv=2).fit(
        data[0], data[2]).best_score_ > 0.8


@pytest.mark.parametrize("estimator", ALL, ids=lambda one: type(one).__name__)
def test_same_answer_every_time_whatever_the_order(estimator: Any, data: Any) -> None:
    X, target = data[0], target_of(estimator, data)
    order = np.random.default_rng(1).permutation(len(X))
    first, second = clone(estimator).fit(X, target), clone(estimator).fit(X[order], target[order])
    assert first.bound_ == second.bound_
    if hasattr(first, "coef_"):
        assert np.array_equal(first.coef_, second.coef_)


@pytest.mark.parametrize("estimator", ALL, ids=lambda one: type(one).__name__)
def test_weights_count_rows(estimator: Any, data: Any) -> None:
    X, target = data[0][:30], target_of(estimator, data)[:30]
    counts = np.random.default_rng(2).integers(0, 4, 30)
    weighted = clone(estimator).fit(X, target, sample_weight=counts)
    repeated = clone(estimator).fit(np.repeat(X, counts, axis=0), np.repeat(target, counts))
    assert weighted.bound_ == repeated.bound_


@pytest.mark.parametrize("estimator", ALL, ids=lambda one: type(one).__name__)
def test_units_do_not_matter(estimator: Any, data: Any) -> None:
    X, target = data[0], target_of(estimator, data)
    plain = clone(estimator).fit(X, target)
    for scale, shift in ((1e-12, 0.0), (1e150, 0.0), (1.0, 1e7)):
        other = clone(estimator).fit(scale * X + shift, target)
        assert other.bound_ == pytest.approx(plain.bound_, rel=1e-4)
    if hasattr(estimator, "predict_proba"):
        return
    for scale in (1e-12, 1e40 if isinstance(plain, GPRegressor) else 1e150):  # kernels have variances up to 1e100
        other = clone(estimator).fit(X, scale * target + 3.0 * scale)
        mean, sd = other.predict(X[:5], return_std=True)
        expected, expected_sd = plain.predict(X[:5], return_std=True)
        assert np.allclose(mean / scale - 3.0, expected, atol=1e-4)
        assert np.allclose(sd / scale, expected_sd, rtol=1e-4)
        assert other.bound_ == pytest.approx(plain.bound_ - 60 * np.log(scale), abs=1e-3)


HARD = {
    "one row": (np.array([[1.0, 2.0]]), np.array([3.0])),
    "constant y": (np.arange(12.0).reshape(6, 2), np.full(6, 5.0)),
    "constant columns": (np.full((6, 2), 1e9), np.arange(6.0)),
    "repeated columns": (np.repeat(np.arange(8.0)[:, None], 4, axis=1), np.arange(8.0) ** 2),
    "no noise": (np.arange(20.0)[:, None], 3.0 * np.arange(20.0) - 1.0),
    "more columns than rows": (np.random.default_rng(0).standard_normal((5, 40)), np.arange(5.0)),
    "an outlier": (np.r_[np.arange(9.0), 1e6][:, None], np.r_[np.arange(9.0), -1e9]),
    "integers": (np.arange(10)[:, None], np.arange(10)),
}


@pytest.mark.parametrize("estimator", REGRESSORS, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("case", HARD)
def test_hard_regressions(estimator: Any, case: str) -> None:
    X, y = HARD[case]
    model = clone(estimator).fit(X, y)
    mean, sd = model.predict(X, return_std=True)
    assert model.converged_
    assert np.isfinite(mean).all()
    assert np.all(sd > 0.0)
    assert np.isfinite(model.bound_)
    assert np.isfinite(model.predict_quantiles(X)).all()


@pytest.mark.parametrize("estimator", CLASSIFIERS, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("y", [[0, 1] * 10, [0] * 10 + [1] * 10, [0] * 19 + [1]], ids=["noise", "separable", "rare"])
def test_hard_classifications(estimator: Any, y: list[int]) -> None:
    X = np.linspace(-1.0, 1.0, 20)[:, None]
    model = clone(estimator).fit(X, y)
    p = model.predict_proba(np.r_[X, [[1e3]]])
    assert model.converged_
    assert np.all((p > 0.0) & (p < 1.0))
    assert np.allclose(p.sum(axis=1), 1.0, rtol=1e-12)


@pytest.mark.parametrize(("make", "part"), [
    (lambda: GLMClassifier(link="cauchit"), "link"), (lambda: GLMClassifier(multi_class="all"), "multi_class"),
    (lambda: GLMClassifier(prior_scale=-1.0), "prior_scale"), (lambda: GPClassifier(kernel="Mattern"), "Matern52"),
    (lambda: GPClassifier(lengthscale=[1.0]), "lengthscale"), (lambda: GPClassifier(inducing="many"), "inducing"),
    (lambda: GLMRegressor("gausian"), "gaussian"), (lambda: GLMRegressor("bernoulli"), "GLMClassifier"),
    (lambda: GLMRegressor("poisson", dispersion=2.0), "dispersion"),
    (lambda: GLMRegressor("poisson"), "poisson needs whole numbers"),
    (lambda: GLMRegressor(dispersion="big"), "dispersion"), (lambda: SparseLinearRegressor("spike"), "prior"),
    (lambda: GLMRegressor(klimb.sites.Gaussian(np.ones(60))), "scalar"),
])
def test_settings_that_do_not_exist(make: Any, part: str, data: Any) -> None:
    estimator = make()
    with pytest.raises(InputError) as caught:
        estimator.fit(data[0], target_of(estimator, data))
    assert part in str(caught.value)
    assert "; got " in str(caught.value)


def test_data_that_can_not_be_used(data: Any) -> None:
    X, y, labels = data
    with pytest.raises(InputError, match="at least two classes"):
        GLMClassifier().fit(X, np.zeros(60))
    with pytest.raises(ValueError, match=r"[Nn]egative"):
        GLMRegressor().fit(X, y, sample_weight=-np.ones(60))
    with pytest.raises(ValueError, match="zero"):
        GLMRegressor().fit(X, y, sample_weight=np.zeros(60))
    with pytest.raises(InputError, match=r"'new' at index 1"):
        GLMClassifier().partial_fit(X, labels).partial_fit(X[:2], ["low", "new"])
    with pytest.raises(ValueError, match="NaN"):
        GPRegressor().fit(np.where(X > 2, np.nan, X), y)
    with pytest.raises(InputError, match="1 GiB"):
        GPRegressor().fit(sp.csr_array((3, 10**8)), y[:3])


def test_without_scikit_learn_it_says_so() -> None:
    code = "import sys; sys.modules['sklearn'] = None\ntry: import klimb.sklearn\nexcept ImportError as e: print(e)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'klimb[sklearn]'" in done.stdout


@pytest.mark.parametrize("model", [SparseLinearRegressor(max_iter=1), GPRegressor(max_iter=1)])
def test_what_did_not_converge_warns(model: Any) -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 4))
    y = rng.poisson(np.exp(2.0 * X[:, 0]))
    with pytest.warns(ConvergenceWarning, match="did not converge: The iteration limit was reached"):
        model.fit(X, y)
    assert not model.converged_


@pytest.mark.parametrize("model", ALL, ids=lambda model: type(model).__name__)
def test_a_tolerance_below_0_is_refused(model: Any) -> None:
    with pytest.raises(InputError, match="tol must be positive; got -1"):
        clone(model).set_params(tol=-1).fit(np.arange(6.0)[:, None], [0, 1, 0, 1, 1, 0])
