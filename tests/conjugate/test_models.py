"""Ready models against scikit-learn, sampling, planted truth and brute force."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from scipy.special import gammaln

from klimb import sites
from klimb.conjugate.families import Categorical, Dirichlet, NormalWishart
from klimb.conjugate.models import (
    gaussian_mixture,
    hidden_markov,
    hierarchical_normal,
    latent_dirichlet,
    matrix_factorisation,
    probabilistic_pca,
    regression,
)
from klimb.errors import InputError


@pytest.fixture(scope="module")
def linear():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 6))
    return X, X @ [2.0, -1.0, 0.5, 0.0, 0.0, 0.0] + 0.7 * rng.normal(size=120)


def test_linear_regression_agrees_with_bayesian_ridge(linear):
    """Type-II maximum likelihood there, gamma posteriors here: the same up to the width of two precisions."""
    from sklearn.linear_model import BayesianRidge

    X, y = linear
    rival = BayesianRidge(fit_intercept=False, tol=1e-10, max_iter=1000).fit(X, y)
    ours = regression(X, y)
    assert ours.fit.converged
    sd = np.sqrt(np.diag(rival.sigma_))
    assert np.abs(ours.weights.mean - rival.coef_).max() < 0.01 * sd.max()
    np.testing.assert_allclose(ours.noise.mean, rival.alpha_, rtol=0.02)
    np.testing.assert_allclose(np.sqrt(ours.weights.variance), sd, rtol=0.02)
    np.testing.assert_allclose(ours.predict(X)[0], rival.predict(X), atol=0.01)
    np.testing.assert_allclose(np.sqrt(ours.predict(X)[1] + 1 / ours.noise.mean), rival.predict(X, return_std=True)[1],
                               rtol=0.02)


def test_automatic_relevance_agrees_with_scikit_learn(linear):
    from sklearn.linear_model import ARDRegression

    X, y = linear
    rival = ARDRegression(fit_intercept=False, threshold_lambda=1e10, tol=1e-10, max_iter=5000).fit(X, y)
    ours = regression(X, y, relevance="each")
    np.testing.assert_allclose(ours.weights.mean[:3], rival.coef_[:3], atol=0.01)
    assert np.abs(ours.weights.mean[3:]).max() < 0.1
    order = np.argsort(ours.relevance.mean)
    assert set(order[:3].tolist()) == {0, 1, 2}


def test_automatic_relevance_for_labels_and_counts():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(400, 5))
    f = X @ [1.5, -1.0, 0.0, 0.0, 0.0]
    labels = (rng.uniform(size=400) < 1 / (1 + np.exp(-f))) * 1.0
    counts = rng.poisson(np.exp(0.5 * f))
    for site, y, truth in ((sites.Logistic(), labels, [1.5, -1.0]), (sites.Poisson(), counts, [0.75, -0.5])):
        model = regression(X, y, site, relevance="each", weight_prior=(1e-3, 1e-3))
        assert model.fit.converged
        assert model.noise is None
        assert np.diff(model.fit.history.bound).min() >= -1e-9 * abs(model.fit.bound)
        sd = np.sqrt(model.weights.variance)
        assert np.all(np.abs(model.weights.mean[:2] - truth) < 3.5 * sd[:2])
        assert np.all(np.abs(model.weights.mean[2:]) < 3 * sd[2:] + 0.02)
        assert model.relevance.mean[2:].min() > model.relevance.mean[:2].max()


def test_unknown_weight_scale_is_the_split_of_the_paper():
    """With the gamma factor held fixed the weights are the engine's at that prior variance."""
    import klimb

    rng = np.random.default_rng(2)
    X = rng.normal(size=(80, 4))
    y = rng.poisson(np.exp(X @ [0.5, 0.0, -0.5, 0.2]))
    model = regression(X, y, sites.Poisson(), weight_prior=(2.0, 1.0), tol=1e-12)
    engine = klimb.infer(klimb.latents.Weights(X, cov=1 / float(model.relevance.mean)), sites.Poisson(), y, tol=1e-10)
    np.testing.assert_allclose(model.weights.mean, engine.posterior.mean, atol=1e-4)
    np.testing.assert_allclose(model.weights.covariance, engine.posterior.covariance(), atol=1e-5)


@pytest.mark.parametrize("covariance", ["full", "tied", "diagonal"])
def test_mixtures_agree_with_scikit_learn(covariance):
    from sklearn.mixture import BayesianGaussianMixture

    rng = np.random.default_rng(0)
    X = np.vstack([rng.normal(size=(150, 2)) @ [[1, 0.3], [0, 0.7]], rng.normal(size=(100, 2)) + [3.0, 2.0],
                   rng.normal(size=(50, 2)) * 0.5 + [-3, 3.0]])
    K, D, spread = 3, 2, np.cov(X.T)
    kind = {"full": "full", "tied": "tied", "diagonal": "diag"}[covariance]
    prior = {"full": D * spread, "tied": D * spread, "diagonal": np.diag(spread) * D}[covariance]
    rival = BayesianGaussianMixture(n_components=K, covariance_type=kind, mean_prior=X.mean(0), random_state=0,
                                    weight_concentration_prior_type="dirichlet_distribution", tol=1e-8,
                                    mean_precision_prior=1.0,
                                    weight_concentration_prior=1.0, degrees_of_freedom_prior=float(D),
                                    covariance_prior=prior, max_iter=5000).fit(X)
    ours = gaussian_mixture(X, K, covariance=covariance, concentration=1.0, tol=1e-12)
    order = np.argsort(-rival.weights_)
    weights = rival.weight_concentration_[order] / rival.weight_concentration_.sum()
    if covariance == "full":  # the others differ in how the libraries count degrees of freedom
        np.testing.assert_allclose(ours.weights, weights, atol=2e-4)
        np.testing.assert_allclose(ours.means, rival.means_[order], atol=2e-3)
    assert (ours.predict(X) == np.argsort(order)[rival.predict(X)]).mean() > 0.98
    np.testing.assert_allclose(ours.shares(X).sum(1), 1.0)


def test_full_mixture_is_never_below_scikit_learns_bound():
    from sklearn.mixture import BayesianGaussianMixture

    from benchmarks.conjugate import mixture_bound

    rng = np.random.default_rng(3)
    X = np.vstack([rng.normal(size=(100, 3)), rng.normal(size=(80, 3)) + 2.5])
    K, D = 2, 3
    rival = BayesianGaussianMixture(n_components=K, mean_prior=X.mean(0), mean_precision_prior=1.0, tol=1e-9,
                                    weight_concentration_prior_type="dirichlet_distribution", max_iter=5000,
                                    weight_concentration_prior=1 / K, degrees_of_freedom_prior=float(D), random_state=0,
                                    covariance_prior=D * np.cov(X.T)).fit(X)
    parts = NormalWishart(rival.means_ - X.mean(0), rival.mean_precision_, rival.degrees_of_freedom_,
                          rival.covariances_ * rival.degrees_of_freedom_[:, None, None])
    theirs = mixture_bound(X, parts, Dirichlet(rival.weight_concentration_), D * np.cov(X.T))
    ours = gaussian_mixture(X, K, tol=1e-12)
    assert ours.fit.bound >= theirs - 1e-4
    np.testing.assert_allclose(ours.fit.bound, theirs, atol=0.01)


def test_unused_components_vanish_and_scale_does_not_matter():
    rng = np.random.default_rng(1)
    X = np.vstack([rng.normal(size=(200, 2)), rng.normal(size=(100, 2)) + 7.0])
    for factor, offset in ((1.0, 0.0), (1e-6, 1e3), (1e6, -1e9)):
        model = gaussian_mixture(X * factor + offset, 8, concentration=1e-3)
        assert (model.weights > 0.01).sum() == 2
        np.testing.assert_allclose(model.weights[:2], [2 / 3, 1 / 3], atol=0.01)
    batched = gaussian_mixture(X, 8, concentration=1e-3, batch=50)
    assert (batched.weights > 0.01).sum() == 2


def test_topics_are_found_and_not_below_scikit_learn():
    from sklearn.decomposition import LatentDirichletAllocation

    from benchmarks.conjugate import topics_bound

    rng = np.random.default_rng(0)
    K, V, D = 4, 40, 80
    words = rng.dirichlet(np.full(V, 0.1), size=K)
    counts = np.stack([rng.multinomial(80, p) for p in rng.dirichlet(np.full(K, 0.3), size=D) @ words])
    rival = LatentDirichletAllocation(K, max_iter=40, random_state=0, learning_method="batch").fit(counts)
    start = np.random.RandomState(0).gamma(100.0, 0.01, (K, V))
    for batch in (None, 50):
        ours = latent_dirichlet(counts, K, start=start, batch=batch, tol=1e-9, max_iter=500)
        height = topics_bound(counts, ours.words, 1 / K)
        assert height >= topics_bound(counts, Dirichlet(rival.components_), 1 / K) - 5.0
        similarity = ours.words.mean @ words.T / np.linalg.norm(words, axis=1) ** 2
        assert similarity.max(0).min() > 0.8
    shares = ours.shares(counts)
    np.testing.assert_allclose(shares.mean.sum(1), 1.0)


def test_factorisation_recovers_the_planted_rank_with_calibrated_intervals():
    rng = np.random.default_rng(0)
    N, D, R = 80, 60, 3
    truth = rng.normal(size=(N, R)) @ rng.normal(size=(R, D)) + rng.normal(size=(N, 1)) + 2.0
    i, j = np.nonzero(rng.uniform(size=(N, D)) < 0.5)
    y = truth[i, j] + 0.3 * rng.normal(size=len(i))
    model = matrix_factorisation(i, j, y, 10, shape=(N, D))
    assert model.fit.converged
    assert model.rank == R
    np.testing.assert_allclose(1 / np.sqrt(model.noise.mean), 0.3, rtol=0.08)
    other = np.nonzero(np.ones((N, D)))
    mean, variance = model.predict(*other)
    error = (truth[other] - mean) / np.sqrt(variance)
    assert 0.8 < np.mean(np.abs(error) < 1.6449) < 0.97
    assert np.sqrt(np.mean((truth[other] - mean) ** 2)) < 0.25


def test_factorisation_of_labels_and_counts():
    rng = np.random.default_rng(1)
    N, D = 60, 50
    f = 2.0 * rng.normal(size=(N, 1)) @ rng.normal(size=(1, D))
    i, j = np.nonzero(rng.uniform(size=(N, D)) < 0.6)
    hidden = np.nonzero(rng.uniform(size=(N, D)) < 0.1)
    labels = (rng.uniform(size=len(i)) < 1 / (1 + np.exp(-f[i, j]))) * 1.0
    counts = rng.poisson(np.exp(0.5 * f[i, j]))
    for site, y in ((sites.Logistic(), labels), (sites.NegativeBinomial(5.0), counts)):
        model = matrix_factorisation(i, j, y, 3, site=site, shape=(N, D), max_iter=60)
        assert np.diff(model.fit.history.bound).min() >= -1e-9 * abs(model.fit.bound)
        mean, variance = model.predict(*hidden)
        assert np.all(variance > 0)
        assert np.corrcoef(mean, f[hidden])[0, 1] > 0.85


def test_principal_components_with_missing_entries_match_the_dense_answer():
    rng = np.random.default_rng(2)
    X = rng.normal(size=(100, 3)) * [3.0, 2.0, 1.0] @ rng.normal(size=(3, 9)) + 0.1 * rng.normal(size=(100, 9)) + 5.0
    whole = probabilistic_pca(X, 6)
    assert whole.rank == 3
    basis = np.linalg.svd(X - X.mean(0), full_matrices=False)[2][:3]
    found = np.linalg.qr(whole.columns.mean[:, np.argsort(-np.square(whole.columns.mean).sum(0))[:3]])[0]
    assert np.linalg.svd(basis @ found)[1].min() > 0.999  # one subspace
    holes = X.copy()
    holes[rng.uniform(size=X.shape) < 0.1] = np.nan
    model = probabilistic_pca(holes, 6)
    i, j = np.nonzero(np.isnan(holes))
    mean, variance = model.predict(i, j)
    assert np.sqrt(np.mean((mean - X[i, j]) ** 2)) < 0.25
    assert np.mean(np.abs(mean - X[i, j]) < 2 * np.sqrt(variance + 1 / model.noise.mean)) > 0.85


@pytest.mark.parametrize("emission", ["normal", "poisson"])
def test_hidden_states_are_found(emission):
    rng = np.random.default_rng(0)
    T = 400
    state = np.zeros(T, dtype=int)
    for t in range(1, T):
        state[t] = (state[t - 1] + (rng.uniform() < 0.05)) % 3
    y = np.array([0.0, 3.0, 6.0])[state] + rng.normal(size=T)
    if emission == "poisson":
        y = rng.poisson(np.array([1, 8, 25])[state]).astype(float)
    y[50] = np.nan
    model = hidden_markov(y, 3, emission=emission)
    assert model.fit.converged
    assert (model.path() == state).mean() > 0.95
    levels = [0, 3, 6] if emission == "normal" else [1, 8, 25]
    np.testing.assert_allclose(model.means[:, 0], levels, rtol=0.15, atol=0.3)
    assert np.diag(model.transition).min() > 0.85
    np.testing.assert_allclose(model.shares.sum(1), 1.0)


def gibbs_hierarchy(y, sd, draws, seed):
    """Exact sampling of the hierarchical model, for the moments that the factorised posterior should have."""
    rng = np.random.default_rng(seed)
    unit, kept, mu, between = y.var(), [], y.mean(), 1 / y.var()
    for step in range(draws):
        precision = 1 / sd**2 + between
        theta = (y / sd**2 + between * mu) / precision + rng.normal(size=len(y)) / np.sqrt(precision)
        precise = len(y) * between + 1e-4 / unit
        mu = (between * theta.sum() + 1e-4 / unit * y.mean()) / precise + rng.normal() / np.sqrt(precise)
        between = rng.gamma(1 + len(y) / 2, 1 / (unit + 0.5 * np.square(theta - mu).sum()))
        if step >= 500:
            kept.append([*theta, mu, between])
    return np.array(kept)


def test_hierarchy_against_gibbs_sampling():
    y = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
    sd = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
    model = hierarchical_normal(y, sd=sd)
    draws = gibbs_hierarchy(y, sd, 12_000, 0)
    spread = draws.std(0)
    assert np.abs(model.groups.mean - draws[:, :8].mean(0)).max() < 0.15 * spread[:8].min()
    assert abs(model.common.mean - draws[:, 8].mean()) < 0.1 * spread[8]
    # the price of independence: the precision between groups and all spreads come out too small
    np.testing.assert_allclose(model.between.mean, draws[:, 9].mean(), rtol=0.25)
    assert np.all(np.sqrt(model.groups.variance) < 1.05 * spread[:8])
    assert np.all(np.sqrt(model.groups.variance) > 0.75 * spread[:8])
    spread = np.exp(gammaln(model.between.shape - 0.5) - gammaln(model.between.shape)) * np.sqrt(model.between.rate)
    np.testing.assert_allclose(spread, (draws[:, 9] ** -0.5).mean(), rtol=0.15)  # E tau^-1/2 of a gamma tau


def test_groups_with_unknown_noise():
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(20), 15)
    truth = 10 + 2.0 * rng.normal(size=20)
    y = truth[group] + rng.normal(size=300)
    model = hierarchical_normal(y, group)
    np.testing.assert_allclose(1 / np.sqrt(model.within.mean), 1.0, rtol=0.1)
    assert np.abs(model.groups.mean - truth).max() < 4 * np.sqrt(model.groups.variance).max()


def test_mixture_posterior_against_gibbs_sampling():
    """One-dimensional mixture, weights and means by a plain Gibbs sampler."""
    rng = np.random.default_rng(0)
    x = np.r_[rng.normal(size=60), rng.normal(size=40) + 6.0]
    model = gaussian_mixture(x[:, None], 2, concentration=1.0, tol=1e-12)
    shift, spread = x.mean(), x.var(ddof=1)
    z, kept = (x > 3).astype(int), []
    for step in range(3000):
        n = np.bincount(z, minlength=2)
        weights = rng.dirichlet(1.0 + n)
        means, precisions = np.empty(2), np.empty(2)
        for k in range(2):
            d = x[z == k] - shift
            kappa = 1.0 + len(d)
            m = d.sum() / kappa
            rate = 0.5 * (spread + np.square(d).sum() - kappa * m * m)
            precisions[k] = rng.gamma(0.5 * (1 + len(d)), 1 / rate)
            means[k] = m + rng.normal() / np.sqrt(kappa * precisions[k])
        log = np.log(weights) + 0.5 * np.log(precisions) - 0.5 * precisions * np.square(x[:, None] - shift - means)
        z = (rng.uniform(size=100) > Categorical.from_natural((log,)).probabilities[:, 0]).astype(int)
        if step >= 300:
            order = np.argsort(means)
            kept.append([*weights[order], *(means[order] + shift)])
    kept = np.array(kept)
    np.testing.assert_allclose(model.weights, kept[:, :2].mean(0), atol=0.01)
    np.testing.assert_allclose(np.sort(model.means[:, 0]), kept[:, 2:].mean(0), atol=0.05)


@pytest.mark.parametrize(("make", "words"), [
    (lambda: regression(np.ones((3, 2)), np.ones(3), relevance="some"), "relevance must be"),
    (lambda: regression(np.ones((3, 2)), np.ones(4)), "broadcast"),
    (lambda: gaussian_mixture(np.ones((3, 2)), 5), "n_components must lie in 1..3"),
    (lambda: gaussian_mixture(np.ones((3, 2)), 2, covariance="round"), "covariance must be"),
    (lambda: gaussian_mixture([[1.0, np.nan]], 1), "X must be finite"),
    (lambda: latent_dirichlet(np.ones((2, 3)), 0), "n_topics must be at least 1"),
    (lambda: latent_dirichlet(-np.ones((2, 3)), 2), "not negative"),
    (lambda: matrix_factorisation([0, 1], [0], [1.0, 2.0], 1), "vectors of one length"),
    (lambda: matrix_factorisation([0, 1], [0, 1], [1.0, 2.0], 5), "rank must lie in 1..2"),
    (lambda: probabilistic_pca(np.full((3, 3), np.nan), 1), "some entries seen"),
    (lambda: hidden_markov(np.ones(5), 9), "n_states must lie in 1..5"),
    (lambda: hidden_markov(np.ones(5), 2, lengths=(2, 2)), "lengths must add up to the 5 rows"),
    (lambda: hidden_markov(np.ones(5), 2, emission="cauchy"), "emission must be"),
    (lambda: hierarchical_normal([1.0, 2.0]), "neither"),
    (lambda: hierarchical_normal([1.0, 2.0], [0]), "one entry per datum"),
])
def test_bad_input(make, words):
    with pytest.raises(InputError, match=words):
        make()


def test_awkward_data_stay_quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same = gaussian_mixture(np.ones((20, 2)), 3)
        assert np.isfinite(same.fit.bound)
        one = regression(np.ones((1, 2)), [3.0])
        assert np.all(np.isfinite(one.weights.mean))
        twice = regression(np.repeat(np.arange(10.0)[:, None], 2, axis=1), np.arange(10.0), relevance="each")
        np.testing.assert_allclose(twice.weights.mean.sum(), 1.0, atol=1e-3)
        empty = latent_dirichlet(np.vstack([np.zeros(4), np.ones(4)]), 2)
        assert np.isfinite(empty.fit.bound)
        flat = hidden_markov(np.zeros(30), 2)
        assert np.isfinite(flat.fit.bound)


def test_centres_among_equal_rows_are_found_without_a_word():
    """Other warnings than those of an empty centre would be errors here."""
    from klimb.conjugate.models.mixtures import kmeans

    nearest = kmeans(np.repeat(np.arange(6.0).reshape(3, 2), 9, axis=0), 5)
    assert [len(set(nearest[k : k + 9])) for k in (0, 9, 18)] == [1, 1, 1]


def test_names_of_rows_are_refused():
    with pytest.raises(InputError, match=r"i must hold whole numbers; got <U1.*np.unique\(i, return_inverse=True\)"):
        matrix_factorisation(["a", "b"], ["x", "y"], [1.0, 2.0], rank=1)
