"""The best row without computing all rows: bounds that hold, and the same choices as with every marginal at hand."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

import klimb
from klimb.active import SCORES, ActiveLearner, Marginals, batch
from klimb.active.batch import Shortlist, box_around
from klimb.active.belief import Belief, PrimalBelief, belief_of
from klimb.active.marginals import Drift
from klimb.active.pool import as_pool
from klimb.latents import Weights
from klimb.sites import Logistic, Probit

ROOM = 1.0 + 1e-9


def dense_pool(n: int = 7000, d: int = 8, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)).astype(np.float32)
    return X, np.where(rng.random(n) < 1.0 / (1.0 + np.exp(-X @ rng.standard_normal(d))), 1.0, -1.0)


def word_pool(n: int = 6500, d: int = 400) -> tuple[sp.csr_matrix, np.ndarray]:
    rng = np.random.default_rng(1)
    X = sp.random(n, d, density=0.03, random_state=rng, format="csr")
    return X, np.where(X @ rng.standard_normal(d) + 0.2 * rng.standard_normal(n) > 0, 1.0, -1.0)


def fitted(X: np.ndarray, y: np.ndarray, n: int, form: str) -> Belief:
    rows = np.arange(n)
    return belief_of(klimb.infer(Weights(X[:n], cov=2.0, form=form), Logistic(), y[:n]).posterior, rows=rows)


@pytest.mark.parametrize("form", ["primal", "dual"])
def test_no_marginal_moves_farther_than_the_drift_says(form: str) -> None:
    X, y = dense_pool(3000)
    pool = as_pool(X.astype(float))
    first = Marginals.of(pool, Logistic(), fitted(pool.dense(), y, 25, form))
    before = first.snapshot

    def check(now: Marginals, tight: float) -> None:
        drift = now.drift()
        m, v = now.at(np.arange(3000))
        moved = np.abs(m - before.m) / np.sqrt(before.v)
        assert moved.max() <= drift.shift * ROOM
        assert moved.max() >= tight * drift.shift  # not far too wide either
        assert np.all(v <= before.v * drift.growth * ROOM)

    for labels in (26, 30):  # fitted again with more labels
        check(Marginals.of(pool, Logistic(), fitted(pool.dense(), y, labels, form), before), 0.5)
    now = first
    for row in range(40, 46):  # included one by one
        now, _ = now.include(row, y[row])
        check(now, 0.5)
    again = now.snapshot
    assert now.m == pytest.approx(pool.times(now.weights), rel=1e-9, abs=1e-11)
    for row in range(50, 54):  # and from marginals in the midst of inclusions
        now, _ = now.include(row, y[row])
        drift = now.drift()
        m, v = now.at(np.arange(3000))
        assert np.all(np.abs(m - again.m) <= drift.shift * np.sqrt(again.v) * ROOM)
        assert np.all(v <= again.v * ROOM)
        assert drift.growth == 1.0
    later = Marginals.of(pool, Logistic(), fitted(pool.dense(), y, 60, form), again)
    drift = later.drift()
    if form == "dual":
        assert np.isinf(drift.shift)  # a fit after that is not compared with it
    else:
        m, v = later.at(np.arange(3000))
        assert np.all(np.abs(m - again.m) <= drift.shift * np.sqrt(again.v) * ROOM)
        assert np.all(v <= again.v * drift.growth * ROOM)


@pytest.mark.parametrize("drift", [Drift(0.0, 1.0), Drift(0.3, 1.05), Drift(2.0, 1.5), Drift(1e3, 1e3)])
def test_the_spline_is_below_its_bounds_wherever_the_drift_may_lead(drift: Drift) -> None:
    rng = np.random.default_rng(2)
    m, log_v = 2.0 * rng.standard_normal(5000), rng.normal(0.0, 0.6, 5000)
    box = box_around(SCORES["bald"], Logistic(), m, log_v)
    bounds = box.bounds_after(drift)[box.cells(m, log_v)]
    for _ in range(5):
        new_m = m + drift.shift * np.exp(0.5 * log_v) * rng.uniform(-1.0, 1.0, m.size)
        new_log_v = log_v + np.log(drift.growth) * rng.random(m.size) - rng.exponential(0.3, m.size)
        inside = box.holds(new_m, new_log_v)
        assert np.all(box.at(new_m[inside], new_log_v[inside]) <= bounds[inside])
        assert np.all(box.bounds(new_m, log_v + np.log(drift.growth), below=True) >= np.where(
            inside, box.at(np.where(inside, new_m, 0.0), np.where(inside, new_log_v, 0.0)), -np.inf))
        leaves = (new_m < box.low[0]) | (new_m >= box.high[0]) | (new_log_v >= box.high[1])
        assert np.all(np.isinf(bounds[leaves]))  # what leaves the box is never ruled out
    assert np.isinf(box.bounds_after(drift)[box.cells(np.array([1e6]), np.array([0.0]))]).all()


SETTINGS = {
    "dense": (dense_pool, {}, 40),
    "dense, no intercept": (dense_pool, {"intercept": False, "cov": 4.0}, 40),
    "dense, included": (dense_pool, {"refit": 10}, 40),
    "dense, warm": (dense_pool, {"warm": True}, 40),
    "dense, information gain": (dense_pool, {"score": "ig", "refit": 5}, 30),
    "dense, Laplace prior": (dense_pool, {"prior": "laplace", "scale": 0.7}, 30),
    "dense, uncertainty": (dense_pool, {"score": "cu"}, 40),
    "dense, uncertainty, included": (dense_pool, {"score": "cu", "refit": 10, "warm": True}, 40),
    "dense, uncertainty, probit": (dense_pool, {"score": "cu", "site": Probit(), "intercept": False}, 40),
    "words, uncertainty": (word_pool, {"score": "cu", "cov": 9.0, "warm": True}, 30),
    "words": (word_pool, {"cov": 9.0, "warm": True}, 30),
    "words, included": (word_pool, {"cov": 9.0, "refit": 10, "warm": True}, 30),
    "full prior covariance": (dense_pool, {"cov": np.eye(8) + 0.3}, 30),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_the_choices_are_those_of_all_marginals(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, settings, start = SETTINGS[name]
    X, y = make()
    looked = []
    learner, plain = (ActiveLearner(X, initial=0, **settings) for _ in range(2))
    for one in (learner, plain):
        one.teach(np.arange(start), y[:start])
    for k in (1, 1, 1, 1, 1, 1, 3, 1, 1, 1, 1, 1):
        rows = learner.query(k)
        looked.append(learner._state.computed)
        with monkeypatch.context() as patch:
            patch.setattr(Shortlist, "after_drift", lambda *_: None)
            patch.setattr(batch, "least_sure", lambda *_: None)
            np.testing.assert_array_equal(rows, plain.query(k))
        for one in (learner, plain):
            one.teach(rows, y[rows])
    assert sum(looked) < len(looked) - 3  # most choices were made without computing all rows
    now, then = learner.marginals(), plain.marginals()
    assert now[0] == pytest.approx(then[0], rel=1e-8, abs=1e-10)
    assert now[1] == pytest.approx(then[1], rel=1e-8)


def test_labels_taken_back_and_rows_left_out_are_respected() -> None:
    X, y = dense_pool()
    learner = ActiveLearner(X, initial=0)
    learner.teach(np.arange(30), y[:30])
    learner.query()
    best = learner.query(1)
    learner.teach(best, y[best])
    second = learner.query(1)
    assert learner.query(1, exclude=second)[0] != second[0]
    learner.forget(best)
    assert learner.query(1)[0] == best[0]  # free again, and again the best


def test_a_coin_flip_for_every_row_is_no_help() -> None:
    """All means equal: the means alone rule nobody out, and the variances decide."""
    X, y = dense_pool(7000)
    X[:, 0] = 0.0
    learner = ActiveLearner(X[:, :1], initial=0, intercept=True, score="cu")
    learner.teach(np.arange(10), y[:10])
    learner.query()
    learner.teach([20], y[20:21])
    assert learner.query()[0] == 10  # the first of the unlabelled
    scores = learner.scores()
    assert np.ptp(scores[np.isfinite(scores)]) < 1e-12


def test_all_rows_are_computed_again_where_too_many_may_be_best() -> None:
    """Duplicates of one another cannot be told apart: every one of them may be the best."""
    X, y = dense_pool(50)
    rows = np.tile(X, (160, 1))
    learner = ActiveLearner(rows, initial=0)
    learner.teach(np.arange(20), y[:20])
    first = learner.query()
    learner.teach(first, y[first % 50])
    again = learner.query()
    assert again[0] == np.flatnonzero(np.isclose(learner.scores(), learner.scores().max(), rtol=1e-9))[0]


def test_without_marginals_to_start_from_nothing_is_ruled_out() -> None:
    nothing = Shortlist().after_drift(SCORES["bald"], Marginals.of(as_pool(np.eye(3)), Logistic(), fitted(
        np.eye(3), np.ones(3), 2, "primal")), np.ones(3, dtype=bool))
    assert nothing is None


def test_candidates_at_the_edge_of_a_box_have_a_cell_in_it() -> None:
    box = box_around(SCORES["bald"], Logistic(), np.array([-1.0, 1.3]), np.array([-0.7, 0.9]))
    m, log_v = np.nextafter(box.high[0], -np.inf), np.nextafter(box.high[1], -np.inf)
    bounds = box.bounds_after(Drift(0.0, 1.0))
    for one in ((m, 0.0), (0.0, log_v), (m, log_v)):
        place = np.array([one[0]]), np.array([one[1]])
        assert box.at(*place)[0] <= bounds[box.cells(*place)[0]] < np.inf


@pytest.mark.parametrize("left", [0.0, 1e-13])
def test_labels_without_noise_leave_no_belief_to_compare_with(left: float) -> None:
    """Next to nothing is left of a variance: I - W C W' is singular, or as good as that."""
    belief = PrimalBelief(np.zeros(2), np.eye(2), upper=True)
    assert belief.after(np.zeros(2), [np.array([1.0, 0.0])], [1.0 - left]) is None
    half = belief.after(np.zeros(2), [np.array([1.0, 0.0])], [0.75])
    assert half is not None
    assert half.distance(np.array([1.0, 1.0])) == pytest.approx(np.sqrt(4.0 + 1.0))
