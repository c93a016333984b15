"""The active learner: pools of every kind, batches, blocks, undoing and resuming, bad input."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

import klimb
from klimb.active import SCORES, ActiveLearner
from klimb.active.pool import as_pool
from klimb.errors import InputError
from klimb.latents import Weights
from klimb.sites import Gaussian, Logistic, Poisson, SuperGaussian


def problem(n: int = 300, d: int = 4, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    return X, np.where(rng.random(n) < 1.0 / (1.0 + np.exp(-2.0 * X[:, 0] + X[:, 1])), 1.0, -1.0)


def taught(X, y, rows, **more) -> ActiveLearner:
    learner = ActiveLearner(X, **more)
    learner.teach(rows, y[rows])
    return learner


def test_the_fit_is_infers() -> None:
    X, y = problem()
    rows = np.array([5, 1, 200, 33, 7, 90, 120, 250])
    for shape in (X, sp.csr_matrix(X), np.asfortranarray(X)):
        learner = taught(shape, y, rows, cov=2.0, tol=1e-10)
        latent = Weights(np.column_stack([X[rows], np.ones(len(rows))]), cov=[2.0] * 4 + [25.0])
        own = klimb.infer(latent, Logistic(), y[rows], tol=1e-10)
        assert learner.fit_state.bound == pytest.approx(own.bound, rel=1e-10)
        m, v = latent.predict(own.posterior, np.column_stack([X, np.ones(len(X))]))
        found_m, found_v = learner.marginals()
        assert found_m == pytest.approx(m, abs=1e-8)
        assert found_v == pytest.approx(v, rel=1e-8)
        assert learner.predict_proba() == pytest.approx(Logistic().predict(m, v).probabilities(), abs=1e-8)
        assert learner.weights == pytest.approx(own.posterior.mean[:-1], abs=1e-8)
        assert learner.intercept == pytest.approx(own.posterior.mean[-1], abs=1e-8)


def test_dense_sparse_and_mapped_pools_ask_the_same(tmp_path: Path) -> None:
    X, y = problem(n=500, d=30)
    X = np.where(np.abs(X) > 1.2, X, 0.0)
    mapped = np.memmap(tmp_path / "pool", dtype=np.float32, mode="w+", shape=X.shape)
    mapped[:] = X
    X = np.array(mapped, dtype=np.float64)
    fortran = np.asfortranarray(X)
    queries = []
    for pool in (X, sp.csr_matrix(X), sp.coo_matrix(X), mapped, fortran, X[:, ::1]):
        learner = ActiveLearner(pool, seed=1)
        for _ in range(4):
            rows = learner.query(6)
            learner.teach(rows, y[rows])
        queries.append(learner.labelled.tolist())
    assert all(query == queries[0] for query in queries)


def test_wide_pools_are_exact_too() -> None:
    """More columns than labels: the dual form, with its kept products, against a dense covariance of the weights."""
    X, y = problem(n=60, d=200)
    rows = np.arange(12)
    learner = taught(sp.csr_matrix(X), y, rows, cov=0.5, intercept=False, tol=1e-10)
    q = learner.fit_state.posterior
    V = np.linalg.inv(2.0 * np.eye(200) + X[rows].T @ (q.gamma[:, None] * X[rows]))
    assert learner.marginals()[1] == pytest.approx(np.einsum("ij,jk,ik->i", X, V, X), rel=1e-10)
    assert learner.marginals(X[:7])[1] == pytest.approx(np.einsum("ij,jk,ik->i", X[:7], V, X[:7]), rel=1e-10)
    several = np.random.default_rng(0).standard_normal((200, 3))
    assert learner.belief.times(several) == pytest.approx(V @ several, rel=1e-8, abs=1e-10)
    assert learner.belief.times(several[:, 0]) == pytest.approx(V @ several[:, 0], rel=1e-8, abs=1e-10)


def test_every_score_learns_and_beats_nothing_less_than_chance() -> None:
    X, y = problem(n=150, d=3)
    for score in SCORES:
        learner = ActiveLearner(X, score=score, seed=2)
        for _ in range(4):
            rows = learner.query(6)
            assert not set(rows) & set(learner.labelled)
            assert len(set(rows)) == 6
            learner.teach(rows, y[rows])
        assert np.all(np.isfinite(learner.scores()[learner.unlabelled]))
        assert np.all(learner.scores()[learner.labelled] == -np.inf)
        right = np.mean((learner.predict_proba()[:, 1] > 0.5) == (y > 0))
        assert right > 0.6, score


def test_a_batch_passes_over_duplicates() -> None:
    """Five copies of the most informative row: the best five by score alone are one row, the batch takes one copy."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 5))
    X[10:15] = 4.0 * np.eye(5)[0]
    y = np.where(X[:, 1] > 0, 1.0, -1.0)
    for score in ("bald", "ig", "variance"):
        learner = taught(X, y, np.arange(100, 130), score=score, cov=4.0, initial=0)
        alone = np.argsort(-learner.scores(), kind="stable")[:5]
        together = learner.query(5)
        copies = set(range(10, 15))
        if score != "variance":
            assert len(copies & set(alone.tolist())) >= 4
        assert len(copies & set(together.tolist())) <= 2 < 5
        assert together[0] == learner.query(1)[0]


def test_variances_after_a_batch_are_those_of_the_joint_posterior() -> None:
    """The rank-one updates of a batch, against one dense inverse with all its expected precisions."""
    from klimb.active.batch import _pending_label

    X, y = problem(n=80, d=6)
    learner = taught(X, y, np.arange(20), intercept=False, tol=1e-10)
    now = learner._now(SCORES["bald"])
    q = learner.fit_state.posterior
    A = np.eye(6) + X[:20].T @ (q.gamma[:, None] * X[:20])
    for pick in (30, 41, 41, 30, 77):
        before = now.v[pick]
        now = _pending_label(now, pick)
        gamma = (before / now.v[pick] - 1.0) / before
        A += gamma * np.outer(X[pick], X[pick])
        assert now.v == pytest.approx(np.einsum("ij,jk,ik->i", X, np.linalg.inv(A), X), rel=1e-9)


def test_one_class_one_row_one_column() -> None:
    X, _ = problem(n=30)
    learner = taught(X, np.ones(30), np.array([3, 4]))
    assert learner.fit_state.converged
    assert learner.predict_proba()[:, 1].min() > 0.0
    assert len(learner.query(3)) == 3
    tiny = ActiveLearner([[2.0]])
    assert tiny.query().tolist() == [0]
    tiny.teach([0], [1])
    assert tiny.uncertainty() == 0.0
    with pytest.raises(InputError, match="whole pool"):
        tiny.query()


@pytest.mark.parametrize("scale", [1e-12, 1e-3, 1e6])
def test_scales_of_the_columns(scale: float) -> None:
    X, y = problem(n=60)
    learner = ActiveLearner(scale * X, cov=scale**-2, seed=0)
    plain = ActiveLearner(X, cov=1.0, seed=0)
    for one in (learner, plain):
        for _ in range(3):
            rows = one.query(5)
            one.teach(rows, y[rows])
    assert learner.labelled.tolist() == plain.labelled.tolist()
    assert np.all(np.isfinite(learner.scores()[learner.unlabelled]))


def test_duplicate_and_constant_columns_are_ordinary() -> None:
    X, y = problem(n=60)
    learner = ActiveLearner(np.column_stack([X, X, np.ones(60), np.zeros(60)]))
    for _ in range(4):
        rows = learner.query(5)
        learner.teach(rows, y[rows])
    assert learner.fit_state.converged


def test_before_the_first_label_rows_come_in_the_order_of_the_seed() -> None:
    X, _ = problem()
    first = ActiveLearner(X, seed=4).query(5)
    assert first.tolist() == ActiveLearner(X, seed=4).query(5).tolist()
    assert first.tolist() != ActiveLearner(X, seed=5).query(5).tolist()
    assert ActiveLearner(X, seed=4, initial=0).query(2).size == 2  # the prior has scores as well
    assert ActiveLearner(X, seed=4).fit_state is None
    assert ActiveLearner(X, seed=4, initial=3).query(5)[:3].tolist() == first[:3].tolist()


def test_random_goes_on_in_its_order_and_a_strategy_can_be_named() -> None:
    X, y = problem()
    learner = ActiveLearner(X, score="random", seed=1)
    everything = ActiveLearner(X, score="random", seed=1).query(20)
    for k in range(4):
        rows = learner.query(5)
        assert rows.tolist() == everything[5 * k : 5 * k + 5].tolist()
        learner.teach(rows, y[rows])
    assert learner.query(3, strategy="cu").tolist() != everything[:3].tolist()


def test_labels_can_be_taken_back() -> None:
    X, y = problem()
    learner = taught(X, y, np.arange(10))
    before = learner.query(4).tolist(), learner.fit_state.bound
    learner.teach([50, 60], [1.0, 0.0])
    learner.forget([60, 50])
    assert (learner.query(4).tolist(), learner.fit_state.bound) == before
    assert learner.labelled.tolist() == list(range(10))
    learner.forget(learner.labelled)
    assert learner.fit_state is None


@pytest.mark.parametrize("warm", [False, True])
def test_resuming_asks_the_same(tmp_path: Path, warm: bool) -> None:
    X, y = problem(n=400)
    learner = ActiveLearner(X, warm=warm, seed=3)
    for _ in range(5):
        rows = learner.query(4)
        learner.teach(rows, y[rows])
        learner.fit_state
    learner.save(tmp_path / "state.json")
    again = ActiveLearner(X, warm=warm, seed=3).load(tmp_path / "state.json")
    assert again.labelled.tolist() == learner.labelled.tolist()
    assert again.query(5).tolist() == learner.query(5).tolist()
    json.dumps(learner.state_dict())
    with pytest.raises(InputError, match="pool"):
        ActiveLearner(X[:-1], warm=warm, seed=3).load(tmp_path / "state.json")
    with pytest.raises(InputError, match="seed"):
        ActiveLearner(X, warm=warm, seed=4).load(tmp_path / "state.json")


def test_a_fit_does_not_depend_on_how_labels_were_grouped() -> None:
    X, y = problem()
    one, many = ActiveLearner(X), ActiveLearner(X)
    one.teach(np.arange(12), y[:12])
    for row in range(12):
        many.teach([row], [y[row]])
        many.query(1)
    assert one.query(6).tolist() == many.query(6).tolist()
    assert one.scores() == pytest.approx(many.scores(), rel=0, abs=0, nan_ok=False)


def test_blocks_learn_like_the_paper_says() -> None:
    X, y = problem(n=500, d=6)
    asked: list[int] = []

    def ask(row: int) -> float:
        asked.append(row)
        return y[row]

    for prior in ("gaussian", "laplace"):
        learner = ActiveLearner(X, prior=prior, scale=0.5, warm=True, initial=10, intercept=False)
        learner.block(10, ask)
        for _ in range(5):
            rows = learner.block(3, ask)
            assert asked[-3:] == rows.tolist()
        cold = taught(X, y, learner.labelled, prior=prior, scale=0.5, intercept=False)
        assert learner.fit_state.bound == pytest.approx(cold.fit_state.bound, abs=1e-5)
        assert learner.marginals()[0] == pytest.approx(cold.marginals()[0], abs=1e-3)


def test_a_laplace_prior_is_the_stack_it_stands_for() -> None:
    X, y = problem(n=200, d=5)
    learner = taught(X, y, np.arange(60), prior="laplace", scale=0.3, intercept=False, tol=1e-9)
    draws = np.random.default_rng(0).laplace(scale=0.3, size=(60_000, 5))
    log_weight = -np.logaddexp(0.0, -y[:60, None] * (X[:60] @ draws.T)).sum(axis=0)
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()
    mean = weight @ draws
    sd = np.sqrt(weight @ (draws - mean) ** 2)
    assert np.all(np.abs(learner.weights - mean) < 0.4 * sd)


def test_other_sites() -> None:
    X, _ = problem(n=120, d=2)
    few = X[:24]
    rng = np.random.default_rng(0)
    counts = rng.poisson(np.exp(0.5 * few[:, 0])).astype(float)
    learner = ActiveLearner(few, site=Poisson(), cov=0.05, intercept=False)
    for _ in range(2):
        rows = learner.query(5)
        learner.teach(rows, counts[rows])
    assert learner.query(1).size == 1
    assert learner.uncertainty() > 0.0
    assert learner.predict().mean.shape == (24,)
    scale = np.where(np.arange(120) < 60, 0.1, 10.0)  # half of the pool is worth little
    gauss = ActiveLearner(X, site=Gaussian(scale=scale), initial=0)
    rows = gauss.query(8)
    assert np.all(rows < 60)
    gauss.teach(rows, X[rows, 0])
    assert gauss.fit_state.converged
    local = ActiveLearner(X, site=SuperGaussian(Logistic()), score="ig")
    local.teach([0, 1, 2, 3, 4, 5], [1, 0, 1, 1, 0, 0])
    assert local.query(3).size == 3
    assert local.predict_proba(X[:2]).shape == (2, 2)


def test_messages() -> None:
    X, _ = problem(n=20)
    learner = ActiveLearner(X)
    cases = [
        (lambda: learner.teach([20], [1]), "from 0 to 19"),
        (lambda: learner.teach([-1], [1]), "from 0 to 19"),
        (lambda: learner.teach([1, 1], [1, 1]), "distinct"),
        (lambda: learner.teach([1.5], [1]), "row numbers"),
        (lambda: learner.teach([], []), "empty list"),
        (lambda: learner.teach([1], [2]), "Logistic needs y"),
        (lambda: learner.teach([1], ["spam"]), "numbers"),
        (lambda: learner.teach([1, 2], [1]), "one label per row"),
        (lambda: learner.teach([1], [np.nan]), "finite"),
        (lambda: learner.forget([3]), "must be labelled"),
        (lambda: learner.query(0), "whole number from 1"),
        (lambda: learner.query(2.0), "whole number from 1"),
        (lambda: learner.query(True), "whole number from 1"),
        (lambda: learner.query(21), "rows to choose from"),
        (lambda: learner.query(strategy="best"), "bald"),
        (lambda: learner.marginals(np.ones((2, 3))), "4 columns"),
        (lambda: ActiveLearner(np.empty((0, 3))), "at least one row"),
        (lambda: ActiveLearner(sp.csr_matrix((0, 3))), "at least one row"),
        (lambda: ActiveLearner([1.0, 2.0]), "at least one row"),
        (lambda: ActiveLearner([["a"]]), "numbers"),
        (lambda: ActiveLearner(np.where(np.eye(3) > 0, np.nan, 0.0)), r"nan at index \(0, 0\)"),
        (lambda: ActiveLearner(sp.csr_matrix([[np.inf]])), "finite"),
        (lambda: ActiveLearner(X, cov=-1.0), "negative"),
        (lambda: ActiveLearner(X, cov=np.ones(3)), "shape"),
        (lambda: ActiveLearner(X, prior="cauchy"), "gaussian"),
        (lambda: ActiveLearner(X, prior="laplace", scale=0.0), "positive"),
        (lambda: ActiveLearner(X, score="best"), "bald"),
        (lambda: ActiveLearner(X, site="logistic"), "klimb site"),
        (lambda: ActiveLearner(X, initial=-1), "whole number from 0"),
        (lambda: ActiveLearner(X, site=Poisson(exposure=np.ones(3))), "exposure"),
        (lambda: ActiveLearner(X, targets=np.ones((2, 3))), "targets must have 4 columns"),
    ]
    for call, message in cases:
        with pytest.raises(InputError, match=message):
            call()
    learner.teach([1], [1])
    with pytest.raises(InputError, match="row 1 at index 0"):
        learner.teach([1], [0])
    assert learner.labelled.tolist() == [1]
    assert "20 rows, 1 labelled" in repr(learner)


def test_pools_too_large_to_keep_products_of_are_read_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same variances with kept products, without them (sparse and dense), and by Lanczos over several blocks."""
    from klimb.active import belief

    rng = np.random.default_rng(0)
    P = sp.random(300, 3000, density=0.01, random_state=1, format="csr")
    y = np.where(rng.random(300) < 0.5, 1.0, -1.0)
    rows = np.arange(9)
    kept = taught(P, y, rows, cov=3.0, tol=1e-10).marginals()
    monkeypatch.setattr(belief, "MOST_KEPT", 100)
    for pool in (P, P.toarray()):
        learner = taught(pool, y, rows, cov=3.0, tol=1e-10)
        assert learner.marginals()[1] == pytest.approx(kept[1], rel=1e-9)
        assert learner.query(3).size == 3
    # Estimates from below, over several blocks of the pool.
    lanczos = taught(P, y, rows, cov=3.0, tol=1e-10, n_lanczos=300)
    assert np.all(lanczos.marginals()[1] <= kept[1] * (1.0 + 1e-8))
    assert lanczos.belief.n_pool_products == 300


@pytest.mark.parametrize("warm", [False, True])
def test_labels_between_fits_enter_by_the_inclusion_algebra(tmp_path: Path, warm: bool) -> None:
    X, y = problem(n=200, d=5)
    learner = ActiveLearner(X, refit=8, warm=warm, initial=4)
    for _ in range(7):
        rows = learner.query(3)
        learner.teach(rows, y[rows])
    rows = learner.labelled
    assert len(learner.fit_state.posterior.a) == 16  # of 21 labels
    base = taught(X, y, rows[:16], tol=1e-10)
    now = base._now(SCORES["bald"])
    for row in rows[16:]:
        now, _ = now.include(int(row), y[row])
    m, v = learner.marginals()
    assert m == pytest.approx(now.m, abs=2e-4)
    assert v == pytest.approx(now.v, rel=2e-4)
    assert learner.weights == pytest.approx(now.weights[:-1], abs=2e-4)
    again_m, again_v = learner.marginals(X)  # as new rows
    assert again_m == pytest.approx(m, rel=1e-9, abs=1e-12)
    assert again_v == pytest.approx(v, rel=1e-9)
    assert learner.query(2, strategy="epig").size == 2
    whole = taught(X, y, rows)
    assert learner.marginals()[0] == pytest.approx(whole.marginals()[0], abs=0.6)  # close to the fit of all
    learner.save(tmp_path / "state")
    assert ActiveLearner(X, refit=8, warm=warm, initial=4).load(tmp_path / "state").query(4).tolist() == learner.query(
        4).tolist()
    if not warm:
        at_once = ActiveLearner(X, refit=8, initial=4)
        at_once.teach(rows, y[rows])
        assert at_once.query(5).tolist() == learner.query(5).tolist()
    learner.teach(learner.query(3), [1, 0, 1])
    assert len(learner.fit_state.posterior.a) == 24
    learner.forget(learner.labelled[-2:])
    assert len(learner.fit_state.posterior.a) == 16
    with pytest.raises(InputError, match="refit=1"):
        learner.block(2, lambda row: y[row])
    with pytest.raises(InputError, match="whole number from 1"):
        ActiveLearner(X, refit=0)


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("kind", [np.float64, np.float32, np.int16, np.bool_])
@pytest.mark.parametrize("shape", [(1, 1), (3, 2), (5000, 60)])
def test_the_ones_behind_a_dense_pool_are_as_good_as_stored(shape, kind, intercept) -> None:
    rng = np.random.default_rng(1)
    for stored in (lambda X: X, np.asfortranarray, lambda X: np.repeat(X, 2, axis=0)[::2]):
        X = stored((3.0 * rng.standard_normal(shape)).astype(kind))
        whole = np.column_stack([X, np.ones(len(X))]).astype(float) if intercept else X.astype(float)
        D = whole.shape[1]
        pool, vector, root = as_pool(X, intercept=intercept), rng.standard_normal(D), rng.standard_normal((D, D))
        np.testing.assert_allclose(pool.times(vector), whole @ vector, rtol=1e-12, atol=1e-12)
        np.testing.assert_array_equal(pool.dense_rows(slice(0, 2)), whole[:2])
        for S, upper in ((np.triu(root), True), (root, False), (root[0], False)):
            expected = np.sum((whole * S if S.ndim == 1 else whole @ S) ** 2, axis=1)
            for times in (vector, None):
                norms, product = pool.row_norms_squared(S, upper=upper, times=times)
                np.testing.assert_allclose(norms, expected, rtol=1e-11)
                np.testing.assert_allclose(product, 0.0 if times is None else whole @ vector, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("name", "value"), [("initial", "a"), ("initial", 2.5), ("initial", -1), ("refit", None),
                                             ("refit", 0), ("refit", True), ("seed", None), ("seed", -1), ("tol", 0.0),
                                             ("tol", float("nan")), ("tol", "small"), ("n_lanczos", 1.5)])
def test_settings_that_can_not_be_used_are_named(name: str, value: object) -> None:
    with pytest.raises(InputError, match=rf"^{name} must be .*; got {re.escape(repr(value))}"):
        ActiveLearner(np.eye(3), **{name: value})


def test_a_warm_fit_starts_from_the_sites_of_a_laplace_prior_too(tmp_path: Path) -> None:
    rng = np.random.default_rng(6)
    X = rng.standard_normal((120, 9))
    y = np.where(X @ [3.0, -2.0, 0, 0, 0, 0, 0, 0, 0] + rng.logistic(size=120) > 0, 1.0, -1.0)
    learner = ActiveLearner(X, prior="laplace", scale=0.3, warm=True, initial=0)
    learner.teach(np.arange(60), y[:60])
    cold = learner.fit_state
    learner.teach([60], y[60:61])
    first = learner.fit_state.history[0]
    assert first.stationarity < 0.3  # of an order that one label of 61 can move, not that of a prior that is missing
    assert learner.fit_state.n_iter < cold.n_iter
    learner.save(tmp_path / "state")
    again = ActiveLearner(X, prior="laplace", scale=0.3, warm=True, initial=0).load(tmp_path / "state")
    assert again.fit_state.history[0].stationarity < 1e-5
    fresh = ActiveLearner(X, prior="laplace", scale=0.3, initial=0, tol=1e-9)
    fresh.teach(np.arange(61), y[:61])
    assert learner.weights == pytest.approx(fresh.weights, abs=1e-5)


def test_a_laplace_prior_on_many_columns_is_the_local_bound_of_a_dense_solver() -> None:
    """Past 4,000 columns the prior's sites are Gaussians whose precision follows the weights."""
    rng = np.random.default_rng(0)
    X = sp.random(80, 4100, 0.01, "csr", rng=rng)
    used = np.flatnonzero(X[:30].getnnz(axis=0))
    truth = np.zeros(4100)
    truth[used[:8]] = 6.0 * rng.choice([-1.0, 1.0], 8)
    y = np.where(X @ truth + 0.1 * rng.standard_normal(80) > 0, 1.0, -1.0)
    rows = np.arange(30)
    learner = taught(X, y, rows, prior="laplace", scale=1.5, tol=1e-9, warm=True)
    dense = np.column_stack([X[:, used].toarray(), np.ones(80)])
    D = len(used)
    below = np.concatenate([dense[:30], np.eye(D, D + 1)])
    site = klimb.sites.Stack([(Logistic(), 30), (SuperGaussian(klimb.sites.Laplace(1.5)), D)])
    latent = Weights(below, cov=np.append(np.full(D, 1e12), 25.0), form="primal")
    own = klimb.infer(latent, site, np.concatenate([y[rows], np.zeros(D)]), tol=1e-9)
    assert learner.weights[used] == pytest.approx(own.posterior.mean[:-1], abs=1e-3)
    assert not np.delete(learner.weights, used).any()
    m, v = learner.marginals()
    unseen = np.asarray((X.power(2)).sum(axis=1)).ravel() - (dense[:, :-1] ** 2).sum(axis=1)
    want_m, want_v = latent.predict(own.posterior, dense)
    assert m == pytest.approx(want_m, abs=2e-3)
    assert v == pytest.approx(want_v + 1.5**2 * unseen, rel=2e-3)
    # warm starts and the inclusion algebra go on from there
    again = taught(X, y, np.arange(33), prior="laplace", scale=1.5, tol=1e-9)
    learner.block(3, lambda row: y[row], strategy="random")
    assert len(learner.labelled) == 33
    learner.forget(learner.labelled[30:])
    learner.teach([30, 31, 32], y[30:33])
    assert learner.weights == pytest.approx(again.weights, abs=1e-3)
    picked = learner.query(2, strategy="bald")
    assert not set(picked.tolist()) & set(range(33))
