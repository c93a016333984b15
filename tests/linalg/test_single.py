"""Designs in single precision against their own in double, and where they are not to be had."""

import numpy as np
import pytest
from scipy.sparse import csr_matrix

import klimb
from klimb.latents.weights import PrimalFactor
from klimb.linalg.matrix import DenseDesign, as_design
from klimb.linalg.single import SingleDesign
from klimb.models import plain_steps
from klimb.sklearn import GLMClassifier

N, D = 5000, 30
RNG = np.random.default_rng(3)
X = RNG.standard_normal((N, D)) * np.geomspace(0.1, 10.0, D)
EXACT = DenseDesign(X)
SINGLE = EXACT.single()


def close(found, wanted):
    return np.abs(found - wanted).max() <= 1e-5 * np.abs(wanted).max()


@pytest.mark.parametrize("sign", [0.0, -0.5])
def test_weighted_gram(sign):
    gamma = RNG.random(N) + sign
    assert SINGLE.weighted_gram(gamma).dtype == float
    assert close(SINGLE.weighted_gram(gamma), EXACT.weighted_gram(gamma))


@pytest.mark.parametrize("root", [RNG.random(D), np.triu(RNG.standard_normal((D, D)))], ids=["vector", "matrix"])
def test_row_norms_and_products(root):
    w, b = RNG.standard_normal(D), RNG.standard_normal(N)
    (norms, moved), (exact, wanted) = (one.row_norms_squared(root, times=w) for one in (SINGLE, EXACT))
    assert close(norms, exact)
    assert close(moved, wanted)
    assert close(SINGLE.times(w), X @ w)
    assert close(SINGLE.transpose_times(b), b @ X)


def test_small_designs_and_large_entries_stay_as_they_are():
    few = DenseDesign(X[:100])
    assert few.single() is few
    large = DenseDesign(1e14 * X)
    assert large.single() is large
    sparse = as_design(csr_matrix(np.where(X > 25.0, X, 0.0)), "X")
    assert sparse.single() is sparse
    assert SINGLE.exact is EXACT


@pytest.mark.parametrize("alike", [False, True])
def test_factors_that_would_lose_too_much_are_exact(alike):
    """Of columns that are all but equal, under a wide prior, single precision has no digits that tell them apart."""
    gamma = np.full(N, 0.2)
    exact = DenseDesign(np.column_stack([X, X[:, -1] + 1e-5 * RNG.standard_normal(N)])) if alike else EXACT
    prior = klimb.latents.Weights(exact.values, cov=1e6).prior
    own, wanted = (PrimalFactor(one, prior, gamma) for one in (exact.single(), exact))
    assert own.logdet == pytest.approx(wanted.logdet, rel=1e-5)
    assert (own._X is exact) == alike
    np.testing.assert_allclose(own.variances(), wanted.variances(), rtol=1e-12 if alike else 1e-4)


def test_only_what_is_far_from_the_optimum_is_in_single_precision(monkeypatch):
    y = (X @ RNG.standard_normal(D) / 3.0 + RNG.logistic(size=N) > 0.0).astype(int)
    counts = {}
    for cls in (DenseDesign, SingleDesign):
        def counted(self, gamma, cls=cls, own=cls.weighted_gram):
            counts[cls] = counts.get(cls, 0) + 1
            return own(self, gamma)

        monkeypatch.setattr(cls, "weighted_gram", counted)
    fit = GLMClassifier().fit(X, y).fit_
    assert counts[SingleDesign] >= counts[DenseDesign]
    assert not fit.model.loose
    assert fit.result.posterior.latent.X.exact is fit.result.posterior.latent.X
    assert "single" not in fit.model.kept
    monkeypatch.setattr(DenseDesign, "single", lambda self: self)
    exact = GLMClassifier().fit(X, y).fit_
    assert fit.bound == pytest.approx(exact.bound, abs=2e-6)
    sd = exact.components.parts[0].sd()
    assert np.abs(fit.components.parts[0].mean - exact.components.parts[0].mean).max() <= 1e-3 * sd.min()


def test_a_step_that_single_precision_refuses_goes_on_in_double(monkeypatch):
    y = (X @ RNG.standard_normal(D) / 3.0 + RNG.logistic(size=N) > 0.0).astype(int)
    wanted = GLMClassifier().fit(X, y).bound_
    monkeypatch.setattr(plain_steps, "LAST_SINGLE", 0.0)  # never by itself
    monkeypatch.setattr(SingleDesign, "lost", lambda self, a, root: 0.0)
    assert GLMClassifier().fit(X, y).bound_ == pytest.approx(wanted, abs=2e-6)
