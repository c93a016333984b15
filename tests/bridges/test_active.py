"""klimb's scores within scikit-learn, modAL and scikit-activeml; the last two for real where they are installed."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp

from klimb.bridges.active import ModalStrategy, choose
from klimb.errors import InputError
from klimb.sklearn import ActiveLearner


def problem() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((120, 3))
    return X, np.where(X[:, 0] - X[:, 1] > 0, "yes", "no")


def test_the_estimator_learns_by_asking() -> None:
    X, answer = problem()
    for pool in (X, sp.csr_matrix(X)):
        learner = ActiveLearner(classes=["no", "yes"], random_state=1).fit(pool)
        assert learner.fit_state is None
        for _ in range(8):
            rows = learner.query(3)
            learner.teach(rows, answer[rows])
        assert learner.score(pool, answer) > 0.9
        assert learner.predict_proba(pool[:4]).shape == (4, 2)
        assert learner.coef_.shape == (1, 3)
        assert learner.intercept_.shape == (1,)
        assert set(learner.predict(pool)) == {"no", "yes"}


def test_known_labels_come_with_the_pool() -> None:
    X, answer = problem()
    y = np.full(120, None, dtype=object)
    y[:20] = answer[:20]
    learner = ActiveLearner().fit(X, y)
    assert learner.classes_.tolist() == ["no", "yes"]
    assert not set(learner.query(10)) & set(range(20))
    numbers = np.full(120, np.nan)
    numbers[:20] = answer[:20] == "yes"
    again = ActiveLearner().fit(X, numbers)
    assert again.query(10).tolist() == learner.query(10).tolist()
    everything = ActiveLearner().fit(X, answer)
    assert everything.score(X, answer) > 0.95


def test_random_states_as_scikit_learn_has_them() -> None:
    X, answer = problem()

    def first(random_state: object) -> list[int]:
        return ActiveLearner(classes=["no", "yes"], random_state=random_state).fit(X).query(5).tolist()

    assert first(3) == first(np.int64(3)) != first(4)
    assert first(np.random.RandomState(3)) == first(np.random.RandomState(3))
    assert len(set(first(None))) == 5
    for bad in (-1, 1.5, "a"):
        with pytest.raises(InputError, match="random_state must be a non-negative integer"):
            ActiveLearner(random_state=bad).fit(X, answer)


def test_it_is_a_scikit_learn_estimator() -> None:
    from sklearn.base import clone
    from sklearn.model_selection import cross_val_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    X, answer = problem()
    learner = clone(ActiveLearner(strategy="ig", cov=2.0))
    assert learner.get_params()["strategy"] == "ig"
    assert cross_val_score(make_pipeline(StandardScaler(), learner), X, answer, cv=3).min() > 0.85


@pytest.mark.filterwarnings("ignore")
def test_scikit_learns_own_checks_pass() -> None:
    from sklearn.utils.estimator_checks import check_estimator

    found = check_estimator(ActiveLearner(), on_fail=None)
    assert [check["check_name"] for check in found if check["status"] == "failed"] == []
    assert sum(check["status"] == "passed" for check in found) > 45


def test_messages() -> None:
    X, answer = problem()
    with pytest.raises(InputError, match="two classes"):
        ActiveLearner().fit(X)
    with pytest.raises(InputError, match="two classes"):
        ActiveLearner().fit(X, np.arange(120) % 3)
    with pytest.raises(InputError, match="one entry per row"):
        ActiveLearner().fit(X, answer[:5])
    with pytest.raises(InputError, match="'maybe' at index 1"):
        ActiveLearner(classes=["no", "yes"]).fit(X).teach([0, 1], ["no", "maybe"])
    with pytest.raises(InputError, match="two classes"):
        choose(X[:3], ["a", "b", "c"], X)
    with pytest.raises(InputError, match="among the classes"):
        choose(X[:3], ["a", "b", "c"], X, classes=["a", "b"])


def test_modals_callable() -> None:
    X, answer = problem()
    learner = SimpleNamespace(X_training=X[:10], y_training=answer[:10])
    rows = ModalStrategy()(learner, X[10:], n_instances=4)
    assert len(set(rows.tolist())) == 4
    assert rows.min() >= 0
    sparse = ModalStrategy()(SimpleNamespace(X_training=sp.csr_matrix(X[:10]), y_training=answer[:10]),
                             sp.csr_matrix(X[10:]), n_instances=4)
    assert sparse.tolist() == rows.tolist()
    assert ModalStrategy()(SimpleNamespace(), X, n_instances=2).size == 2
    one_class = SimpleNamespace(X_training=X[:2], y_training=["yes", "yes"])
    assert ModalStrategy(classes=["no", "yes"])(one_class, X[2:]).size == 1


def test_within_modal() -> None:
    models = pytest.importorskip("modAL.models", reason="modAL is not installed")
    from sklearn.linear_model import LogisticRegression

    X, answer = problem()
    first = np.r_[np.flatnonzero(answer == "yes")[:3], np.flatnonzero(answer == "no")[:3]]
    known = first
    for _ in range(6):  # a new learner each time: modAL 0.4.2's teach fails with scikit-learn 1.8 and later
        learner = models.ActiveLearner(LogisticRegression(), ModalStrategy(), X[known], answer[known])
        rest = np.setdiff1d(np.arange(120), known)
        rows, chosen = learner.query(X[rest], n_instances=3)
        assert np.array_equal(chosen, X[rest][rows])
        known = np.concatenate([known, rest[rows]])
    assert LogisticRegression().fit(X[known], answer[known]).score(X, answer) > 0.9


def test_within_scikit_activeml() -> None:
    pytest.importorskip("skactiveml", reason="scikit-activeml is not installed")
    from sklearn.base import clone

    from klimb.bridges.skactiveml import PosteriorSampling

    X, answer = problem()
    truth = (answer == "yes").astype(float)
    y = np.full(120, np.nan)
    strategy = clone(PosteriorSampling(classes=[0.0, 1.0], random_state=0))
    for _ in range(8):
        rows = strategy.query(X, y, batch_size=3)
        assert np.all(np.isnan(y[rows]))
        y[rows] = truth[rows]
    rows, utilities = strategy.query(X, y, batch_size=2, return_utilities=True)
    assert utilities.shape == (2, 120)
    assert rows[0] == np.nanargmax(utilities[0])
    assert np.isnan(utilities[1, rows[0]])
    free = np.flatnonzero(np.isnan(y))[-3:]
    assert strategy.query(X, y, candidates=free).item() in free
    assert strategy.query(X, y, candidates=X[5:8] + 0.1).item() in (0, 1, 2)


def test_importing_the_bridge_needs_nothing_and_using_it_says_what() -> None:
    code = "import klimb.bridges.skactiveml as bridge; bridge.PosteriorSampling"
    if importlib.util.find_spec("skactiveml") is not None:
        pytest.skip("scikit-activeml is installed")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install scikit-activeml" in done.stderr
