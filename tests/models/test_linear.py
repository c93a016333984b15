"""The linear model behind a formula: every derivative by finite differences, proper priors, dense references."""

from __future__ import annotations

import math

import numpy as np
import pytest

from klimb import latents, priors, sites
from klimb.infer.loop import infer
from klimb.likelihoods import likelihood
from klimb.models.setup import build
from klimb.terms.encoder import encode
from klimb.theta import Cutpoints, GroupCovariance, PositiveParameter, correlation_root

RNG = np.random.default_rng(7)
N = 60
X1, X2 = RNG.standard_normal(N), 3 + 2 * RNG.standard_normal(N)
G, H = RNG.integers(0, 8, N), RNG.integers(0, 5, N)
F = 0.4 + 0.7 * X1 - 0.3 * (X2 - 3) + 0.8 * RNG.standard_normal(8)[G] + 0.4 * RNG.standard_normal(5)[H]


def data_for(family, f=F):
    rng = np.random.default_rng(1)
    mean = np.exp(f)
    return {
        "gaussian": f + 0.5 * rng.standard_normal(N), "laplace": f + 0.5 * rng.laplace(size=N),
        "student_t": f + 0.5 * rng.standard_t(4, N), "bernoulli": (rng.random(N) < 1 / (1 + np.exp(-f))) * 1.0,
        "poisson": rng.poisson(mean) * 1.0, "negative_binomial": rng.negative_binomial(2.0, 2.0 / (2.0 + mean)) * 1.0,
        "gamma": rng.gamma(3.0, mean / 3.0), "exponential": rng.exponential(mean),
        "beta": rng.beta(5 / (1 + np.exp(-f)), 5 / (1 + np.exp(f))),
        "ordinal": np.digitize(f + rng.logistic(size=N), [-1.0, 0.5, 2.0]) * 1.0,
        "categorical": np.digitize(f + rng.logistic(size=N), [-0.5, 1.0]) * 1.0,
        "stochastic_volatility": np.exp(f / 2) * rng.standard_normal(N),
    }[family]


def make(family="gaussian", terms="", weights=None):
    """The model of a formula with two covariates, and its data."""
    kind = likelihood(family)
    frame = {"y": data_for(kind.name), "x1": X1, "x2": X2, "g": G.astype(str), "h": H.astype(str)}
    encoder, encoded = encode(f"y ~ x1 + x2{terms}", frame, weights=weights)
    model, _, observed, _ = build(encoder, encoded, kind, None)
    return model, observed


MODELS = {
    "intercepts": ("bernoulli", " + (1 | g)"),
    "slopes": ("poisson", " + (1 + x1 | g)"),
    "slopes apart": ("poisson", " + (1 + x1 || g)"),
    "three correlated": ("gaussian", " + (1 + x1 + x2 | g)"),
    "crossed": ("bernoulli", " + (1 | g) + (1 | h)"),
    "crossed slopes": ("gaussian", " + (1 + x1 | h) + (1 + x1 | g)"),
    "smooth": ("gamma", " + s(x1, k=8)"),
    "gp": ("gaussian", " + gp(x1)"),
    "gp of two": ("bernoulli", " + gp(x1, x2, kernel=rbf)"),
    "everything": ("negative_binomial", " + (1 + x1 | g) + (1 | h) + s(x1, k=6) + gp(x1, kernel=matern32)"),
    "ordinal": ("ordinal", " + (1 | g)"),
    "ordinal probit": ({"name": "ordinal", "link": "probit"}, ""),
    "categorical": ("categorical", " + (1 | g)"),
    "student": ("student_t", " + (1 | g)"),
    "laplace": ("laplace", ""),
    "beta": ("beta", ""),
    "weights and offset": ("negative_binomial", " + (1 | g) + offset(x1)", np.linspace(0.0, 2.0, N)),
    "few points": ("gaussian", " + gp(x1, kernel=rbf, points=9) + (1 | g)"),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_gradient_is_that_of_the_bound(name):
    model, data = make(*MODELS[name])
    model = model.moved(model.at + 0.1 * np.random.default_rng(3).standard_normal(len(model.at)))
    result = model.infer(data, tol=1e-10)
    assert result.converged
    found = model.gradient(result.posterior, data)
    step = 1e-4
    for j in range(len(model.at)):
        ends = [model.moved(model.at + sign * step * np.eye(len(model.at))[j]).infer(
            data, start=result.posterior, tol=1e-10).bound for sign in (1, -1)]
        assert found[j] == pytest.approx((ends[0] - ends[1]) / (2 * step), abs=2e-5, rel=2e-5), model.names[j]


@pytest.mark.parametrize("name", MODELS)
def test_the_slope_of_the_hyperprior(name):
    model, _ = make(*MODELS[name])
    model = model.moved(model.at + 0.1)
    _, slope = model.log_prior()
    for j in range(len(model.at)):
        e = 1e-6 * np.eye(len(model.at))[j]
        ends = [model.moved(model.at + sign * e).log_prior()[0] for sign in (1, -1)]
        assert slope[j] == pytest.approx((ends[0] - ends[1]) / 2e-6, abs=1e-6)


@pytest.mark.parametrize("prior", [priors.exponential(0.7), priors.exponential(2.0, -0.5), priors.half_normal(1.3),
                                   priors.log_normal(2.0, 0.6), priors.gamma(2.0, 0.1)])
def test_positive_priors_are_densities(prior):
    theta = np.linspace(-45, 60, 10_001)
    log_p = np.array([PositiveParameter("sd", prior).log_prior(np.array([t]))[0] for t in theta])
    assert np.trapezoid(np.exp(log_p), theta) == pytest.approx(1.0, abs=1e-6)


def correlations(k, eta):
    """Correlations of k columns, whose sds are held."""
    sds = tuple(PositiveParameter(f"sd{i}", priors.fixed(1.0)) for i in range(k))
    return GroupCovariance(sds, tuple(f"c{i}{j}" for i in range(1, k) for j in range(i)), priors.lkj(eta))


def test_lkj_is_a_density_and_the_root_has_unit_rows():
    theta = np.linspace(-18, 18, 20_001)
    for block in (correlations(2, 1.5),):
        p = [block.log_prior(np.array([t]))[0] for t in theta]
        assert np.trapezoid(np.exp(p), theta) == pytest.approx(1.0, abs=1e-8)
    values = np.array([0.3, -0.8, 0.5, 1.2, -0.1, 0.4])
    L, d = correlation_root(values, 4)
    np.testing.assert_allclose(np.diag(L @ L.T), 1.0, atol=1e-15)
    for j in range(6):
        e = 1e-6 * np.eye(6)[j]
        slope = (correlation_root(values + e, 4)[0] - correlation_root(values - e, 4)[0]) / 2e-6
        np.testing.assert_allclose(d[j], slope, atol=1e-9)
    # LKJ by its definition: the density of the matrix in theta is det^(eta - 1) times the Jacobian.
    eta, k = 2.0, 3
    for values in (np.zeros(3), np.array([0.4, -0.7, 0.9])):
        def entries(t):
            root = correlation_root(t, k)[0]
            return (root @ root.T)[np.tril_indices(k, -1)]
        J = np.column_stack([(entries(values + 1e-6 * e) - entries(values - 1e-6 * e)) / 2e-6 for e in np.eye(3)])
        by_definition = (eta - 1) * 2 * np.log(np.diag(correlation_root(values, k)[0])).sum()
        by_definition += np.linalg.slogdet(J)[1]
        ours = correlations(k, eta).log_prior(values)[0]
        if not values.any():
            constant = ours - by_definition
        else:
            assert ours - by_definition == pytest.approx(constant, abs=1e-6)


@pytest.mark.parametrize("link", ["logit", "probit"])
def test_cut_points_have_a_density(link):
    cuts = np.array([-0.7, 0.2, 1.9])
    block = Cutpoints(("a", "b", "c"), priors.dirichlet(1.4), link, cuts)
    np.testing.assert_allclose(block.value(block.start), cuts)
    two = Cutpoints(("a", "b"), priors.dirichlet(1.4), link, cuts[:2])
    a, b = np.meshgrid(np.linspace(-9, 7, 65), np.linspace(-9, 3, 61), indexing="ij")
    p = np.array([math.exp(two.log_prior(np.array(t))[0])
                  for t in zip(a.ravel(), b.ravel(), strict=True)]).reshape(a.shape)
    assert np.trapezoid(np.trapezoid(p, b[0], axis=1), a[:, 0]) == pytest.approx(1.0, abs=0.01)


def test_crossed_slopes_are_the_model_written_out():
    model, data = make(*MODELS["crossed slopes"])
    y = data.y
    model = model.moved(np.array([-0.3, 0.2, 0.6, 0.1, -0.5, -0.4, -0.6]))
    mine = model.infer(data, tol=1e-10)
    design = np.zeros((N, 3 + 2 * 5 + 2 * 8))
    design[:, 0], design[:, 1], design[:, 2] = 1.0, X1 - X1.mean(), X2 - X2.mean()
    cov = np.zeros((29, 29))
    cov[:3, :3] = np.diag(model.terms[0].sd**2)
    for codes, first, root in ((H, 3, model.values[1][0]), (G, 13, model.values[2][0])):
        for level in range(codes.max() + 1):
            at = slice(first + 2 * level, first + 2 * level + 2)
            cov[at, at] = root @ root.T
        design[np.arange(N), first + 2 * codes], design[np.arange(N), first + 2 * codes + 1] = 1.0, X1 - X1.mean()
    mean = np.zeros(29)
    mean[0] = y.mean()
    sigma = float(np.exp(model.at[-1]))
    by_hand = infer(latents.Weights(design, mean=mean, cov=cov), sites.Gaussian(sigma), y, tol=1e-10)
    assert mine.bound == pytest.approx(by_hand.bound, abs=1e-8)
    # And without any of this code: the marginal density of a Gaussian model.
    K = design @ cov @ design.T + sigma**2 * np.eye(N)
    rest = y - design @ mean
    exact = -0.5 * (rest @ np.linalg.solve(K, rest) + np.linalg.slogdet(2 * np.pi * K)[1])
    assert mine.bound == pytest.approx(exact, abs=1e-8)


def test_a_gp_with_all_points_is_the_dense_gp():
    model, data = make(*MODELS["gp"])
    y = data.y
    mine = model.infer(data, tol=1e-10)
    mean, cov = model.prior_moments()
    X = model.rows.X[:, :3]
    inputs = model.rows.blocks[1].inputs
    kernel = model.terms[1].kernel(model.values[1])
    K = X @ np.diag(cov[:3]) @ X.T + kernel.gram(inputs) + np.exp(2 * model.at[-1]) * np.eye(N)
    rest = y - X @ mean[:3]
    exact = -0.5 * (rest @ np.linalg.solve(K, rest) + np.linalg.slogdet(2 * np.pi * K)[1])
    assert mine.bound == pytest.approx(exact, abs=2e-5)  # a little noise on the points
    assert mine.bound < exact + 1e-9
