"""The inclusion algebra of [N] section 3 against refitting from scratch; the Lanczos engine against exact answers."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

import klimb
from klimb.active import ActiveLearner, Marginals
from klimb.active.belief import belief_of, krylov_belief
from klimb.active.pool import as_pool
from klimb.latents import Weights
from klimb.sites import Gaussian, Logistic, SuperGaussian


def data(n: int = 90, d: int = 7) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    X = rng.standard_normal((n, d))
    return X, np.where(rng.random(n) < 1.0 / (1.0 + np.exp(-X[:, 0])), 1.0, -1.0)


@pytest.mark.parametrize("form", ["primal", "dual"])
@pytest.mark.parametrize("site", [Logistic(), SuperGaussian(Logistic())], ids=["KL bound", "local bound"])
def test_everything_after_ten_inclusions_is_that_of_one_big_system(form: str, site) -> None:
    X, y = data()
    rows = np.arange(20)
    q = klimb.infer(Weights(X[rows], cov=2.0, form=form), site, y[rows]).posterior
    now = Marginals.of(as_pool(X), site, belief_of(q))
    A = 0.5 * np.eye(7) + X[rows].T @ (q.gamma[:, None] * X[rows])
    pull = X[rows].T @ (q.a + q.gamma * q.m)
    log_det = np.linalg.slogdet(A)[1]
    for pick in (33, 40, 41, 33, 89, 20, 21, 22, 60, 61):
        now, new = now.include(pick, y[pick])
        A += new.gamma[0] * np.outer(X[pick], X[pick])
        pull += new.slope[0] * X[pick]
    V = np.linalg.inv(A)
    assert now.weights == pytest.approx(V @ pull, rel=1e-8, abs=1e-10)
    assert now.m == pytest.approx(X @ V @ pull, rel=1e-8, abs=1e-10)
    assert now.v == pytest.approx(np.einsum("ij,jk,ik->i", X, V, X), rel=1e-8)
    assert now.log_det == pytest.approx(np.linalg.slogdet(A)[1] - log_det, rel=1e-8)
    assert (now.counts.products, now.counts.solves, now.counts.recomputed) == (10, 10, 0)


def test_gaussian_labels_make_it_the_fit_itself() -> None:
    """Where sites do not change with the posterior, inclusion and refitting from scratch are one."""
    X, _ = data()
    y = X @ np.arange(7.0) + 0.1 * np.random.default_rng(0).standard_normal(90)
    site = Gaussian(scale=0.5)
    now = Marginals.of(as_pool(X), site, belief_of(klimb.infer(Weights(X[:10]), site, y[:10]).posterior))
    for pick in range(10, 30):
        now, _ = now.include(pick, y[pick])
    latent = Weights(X[:30])
    q = klimb.infer(latent, site, y[:30]).posterior
    m, v = latent.predict(q, X)
    assert now.m == pytest.approx(m, rel=1e-8)
    assert now.v == pytest.approx(v, rel=1e-8)
    assert now.weights == pytest.approx(q.mean, rel=1e-8)


def test_lanczos_bounds_from_below_and_is_exact_with_enough_vectors() -> None:
    X, y = data(n=60, d=25)
    rows = np.arange(10)
    learner = ActiveLearner(sp.csr_matrix(X), intercept=False, tol=1e-10)
    learner.teach(rows, y[rows])
    _, exact = learner.marginals()
    q = learner.fit_state.posterior
    pool = as_pool(X)
    last = np.zeros(60)
    for k in (1, 3, 6, 25):
        v = krylov_belief(q, rows, k).variances(pool)
        assert np.all(v >= last - 1e-12)  # more vectors, larger bounds: [N] section 2.3
        assert np.all(v <= exact * (1.0 + 1e-9))
        last = v
    assert last == pytest.approx(exact, rel=1e-8)
    belief = krylov_belief(q, rows, 5)
    b = np.random.default_rng(1).standard_normal((25, 3))
    assert belief.times(b) == pytest.approx(learner.belief.times(b), rel=1e-8, abs=1e-10)
    assert belief.matrix.n_products > 0


def test_lanczos_errors_are_corrected_by_the_solve_and_negative_variances_solved_for() -> None:
    """Far too few vectors: the pick's own site is still exact, and no variance is lost or negative."""
    X, y = data(n=60, d=25)
    rows = np.arange(10)
    exact, rough = (ActiveLearner(X, intercept=False, n_lanczos=k, tol=1e-10) for k in (None, 2))
    for learner in (exact, rough):
        learner.teach(rows, y[rows])
    now, near = (Marginals.of(learner._pool, Logistic(), learner.belief) for learner in (exact, rough))
    assert np.median(near.v / now.v) < 0.5  # rough indeed
    recomputed = 0
    for pick in range(30, 45):
        now, right = now.include(pick, y[pick])
        near, found = near.include(pick, y[pick])
        assert found.gamma == pytest.approx(right.gamma, rel=1e-7)
        assert found.slope == pytest.approx(right.slope, rel=1e-7)
        assert np.all(near.v >= 0.0)
        recomputed = near.counts.recomputed
    assert near.m == pytest.approx(now.m, rel=1e-6, abs=1e-8)  # means never were estimates
    assert recomputed > 0
    assert near.counts.solves == 15 + recomputed
    assert near.v[30] == pytest.approx(now.v[30], rel=1e-6)  # the first pick's variance went below zero at once


def test_a_learner_on_lanczos_asks_what_an_exact_one_asks() -> None:
    X, y = data(n=200, d=12)
    queries = []
    for k in (None, 12):
        learner = ActiveLearner(X, n_lanczos=k, intercept=False, initial=8, seed=2)
        for _ in range(3):
            picks = learner.query(4)
            learner.teach(picks, y[picks])
        queries.append(learner.labelled.tolist())
    assert queries[0] == queries[1]
    sparse_prior = ActiveLearner(X, prior="laplace", scale=0.4, n_lanczos=13, tol=1e-9)
    plain = ActiveLearner(X, prior="laplace", scale=0.4, tol=1e-9)
    for learner in (sparse_prior, plain):
        learner.teach(np.arange(30), y[:30])
    assert sparse_prior.marginals()[1] == pytest.approx(plain.marginals()[1], rel=1e-6)
    with pytest.raises(klimb.errors.InputError, match="n_lanczos"):
        ActiveLearner(X, n_lanczos=0)
