"""The model behind a formula: every derivative by finite differences, proper priors, dense references."""

from __future__ import annotations

import math

import numpy as np
import pytest

from klimb import latents, priors, sites
from klimb.infer.loop import infer
from klimb.likelihoods.families import resolve_family
from klimb.likelihoods.outcomes import read_response
from klimb.models.hyper import Hyper, correlation_root, cut_prior, cut_theta, cutpoints
from klimb.models.setup import build
from klimb.terms.encoded import Encoded, FixedBlock, GroupBlock, ProcessBlock, SmoothBlock

RNG = np.random.default_rng(7)
N = 60
X1, X2 = RNG.standard_normal(N), 3 + 2 * RNG.standard_normal(N)
G, H = RNG.integers(0, 8, N), RNG.integers(0, 5, N)
F = 0.4 + 0.7 * X1 - 0.3 * (X2 - 3) + 0.8 * RNG.standard_normal(8)[G] + 0.4 * RNG.standard_normal(5)[H]


def group(name, codes, *columns, correlated=True):
    values = np.column_stack([np.ones(N), *columns]) if columns else np.ones((N, 1))
    names = ("Intercept", *(f"x{i + 1}" for i in range(len(columns))))
    levels = tuple(str(i) for i in range(codes.max() + 1))
    return GroupBlock(name, names, levels, codes.astype(np.intp), values, correlated)


def smooth():
    knots = np.linspace(-2, 2, 6)
    return SmoothBlock("s(x1)", np.abs(X1[:, None] - knots) ** 3 / 10, tuple(f"b{i}" for i in range(6)))


def process(kernel="matern52", d=1):
    inputs = np.column_stack([X1, (X2 - 3) / 2])[:, :d]
    return ProcessBlock("gp(x1)" if d == 1 else "gp(x1, x2)", inputs, kernel, ("x1", "x2")[:d], {})


def encoded(y, groups=(), smooths=(), processes=(), offset=None):
    fixed = FixedBlock(np.column_stack([np.ones(N), X1, X2]), ("Intercept", "x1", "x2"))
    offset = np.zeros(N) if offset is None else offset
    return Encoded(y, fixed, tuple(groups), tuple(smooths), tuple(processes), offset, np.arange(N), 0)


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
        "stochastic_volatility": np.exp(f / 2) * rng.standard_normal(N),
    }[family]


def make(family="gaussian", **blocks):
    resolved = resolve_family(family)
    y = data_for(resolved.name)
    weights, chosen = blocks.pop("weights", None), blocks.pop("priors", None)
    e = encoded(y, **blocks)
    return build(e, read_response(y, resolved, e.rows), resolved, priors=chosen, weights=weights)


MODELS = {
    "intercepts": lambda: make("bernoulli", groups=[group("g", G)]),
    "slopes": lambda: make("poisson", groups=[group("g", G, X1)]),
    "slopes apart": lambda: make("poisson", groups=[group("g", G, X1, correlated=False)]),
    "three correlated": lambda: make("gaussian", groups=[group("g", G, X1, X2)]),
    "crossed": lambda: make("bernoulli", groups=[group("g", G), group("h", H)]),
    "crossed slopes": lambda: make("gaussian", groups=[group("h", H, X1), group("g", G, X1)]),
    "smooth": lambda: make("gamma", smooths=[smooth()]),
    "process": lambda: make("gaussian", processes=[process()]),
    "process of two": lambda: make("bernoulli", processes=[process("rbf", 2)]),
    "everything": lambda: make("negative_binomial", groups=[group("g", G, X1), group("h", H)], smooths=[smooth()],
                               processes=[process("matern32")]),
    "ordinal": lambda: make("ordinal", groups=[group("g", G)]),
    "ordinal probit": lambda: make({"name": "ordinal", "link": "probit"}),
    "student": lambda: make("student_t", groups=[group("g", G)]),
    "laplace": lambda: make("laplace"),
    "beta": lambda: make("beta"),
    "weights and offset": lambda: make("negative_binomial", groups=[group("g", G)], offset=0.3 * X1,
                                       weights=np.linspace(0.0, 2.0, N)),
    "few points": lambda: make("gaussian", processes=[
        ProcessBlock("gp(x1)", X1[:, None], "rbf", ("x1",), {"points": 9})], groups=[group("g", G)]),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_gradient_is_that_of_the_bound(name):
    setup = MODELS[name]()
    model, y = setup.model, setup.y
    model = model.with_theta(model.theta + 0.1 * np.random.default_rng(3).standard_normal(len(model.theta)))
    result = model.fit(y, tol=1e-10)
    assert result.converged
    found = model.gradient(result.posterior, y)
    step = 1e-4
    for j in range(len(model.theta)):
        ends = [model.with_theta(model.theta + sign * step * np.eye(len(model.theta))[j]).fit(
            y, start=result.posterior, tol=1e-10).bound for sign in (1, -1)]
        assert found[j] == pytest.approx((ends[0] - ends[1]) / (2 * step), abs=2e-5, rel=2e-5), model.names[j]


@pytest.mark.parametrize("name", MODELS)
def test_the_slope_of_the_hyperprior(name):
    model = MODELS[name]().model
    model = model.with_theta(model.theta + 0.1)
    _, slope = model.log_prior()
    for j in range(len(model.theta)):
        e = 1e-6 * np.eye(len(model.theta))[j]
        ends = [model.with_theta(model.theta + sign * e).log_prior()[0] for sign in (1, -1)]
        assert slope[j] == pytest.approx((ends[0] - ends[1]) / 2e-6, abs=1e-6)


@pytest.mark.parametrize("prior", [priors.exponential(0.7), priors.exponential(2.0, -0.5), priors.half_normal(1.3),
                                   priors.log_normal(2.0, 0.6), priors.gamma(2.0, 0.1)])
def test_positive_priors_are_densities(prior):
    theta = np.linspace(-45, 60, 10_001)
    log_p = np.array([Hyper("sd", "positive", prior, 0.0).log_prior(t)[0] for t in theta])
    assert np.trapezoid(np.exp(log_p), theta) == pytest.approx(1.0, abs=1e-6)


def test_lkj_is_a_density_and_the_root_has_unit_rows():
    theta = np.linspace(-18, 18, 20_001)
    for depth in (0.0, 0.5):
        p = [Hyper("c", "correlation", priors.lkj(1.5), 0.0, depth=depth).log_prior(t)[0] for t in theta]
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
        depths = [0.5, 0.5, 0.0]  # columns 0, 0, 1 of rows 1, 2, 2
        ours = sum(Hyper("c", "correlation", priors.lkj(eta), 0.0, depth=b).log_prior(t)[0]
                   for b, t in zip(depths, values, strict=True))
        if not values.any():
            constant = ours - by_definition
        else:
            assert ours - by_definition == pytest.approx(constant, abs=1e-6)


@pytest.mark.parametrize("link", ["logit", "probit"])
def test_cut_points_have_a_density(link):
    cuts = np.array([-0.7, 0.2, 1.9])
    np.testing.assert_allclose(cutpoints(cut_theta(cuts)), cuts)
    a, b = np.meshgrid(np.linspace(-9, 7, 65), np.linspace(-9, 3, 61), indexing="ij")
    p = np.array([math.exp(cut_prior(np.array(t), priors.dirichlet(1.4), link)[0])
                  for t in zip(a.ravel(), b.ravel(), strict=True)]).reshape(a.shape)
    assert np.trapezoid(np.trapezoid(p, b[0], axis=1), a[:, 0]) == pytest.approx(1.0, abs=0.01)


def test_crossed_slopes_are_the_model_written_out():
    setup = MODELS["crossed slopes"]()
    model = setup.model.with_theta(np.array([-0.3, 0.2, 0.6, 0.1, -0.5, -0.4, -0.6]))
    mine = model.fit(setup.y, tol=1e-10)
    design = np.zeros((N, 3 + 2 * 5 + 2 * 8))
    design[:, 0], design[:, 1], design[:, 2] = 1.0, X1 - X1.mean(), X2 - X2.mean()
    cov = np.zeros((29, 29))
    cov[:3, :3] = np.diag(model.shared.sd[:3] ** 2)
    for codes, first, root in ((H, 3, model.group_roots[0]), (G, 13, model.group_roots[1])):
        for level in range(codes.max() + 1):
            at = slice(first + 2 * level, first + 2 * level + 2)
            cov[at, at] = root @ root.T
        design[np.arange(N), first + 2 * codes], design[np.arange(N), first + 2 * codes + 1] = 1.0, X1
    mean = np.zeros(29)
    mean[0] = setup.y.mean()
    sigma = float(np.exp(model.full[-1]))
    by_hand = infer(latents.Weights(design, mean=mean, cov=cov), sites.Gaussian(sigma), setup.y, tol=1e-10)
    assert mine.bound == pytest.approx(by_hand.bound, abs=1e-8)
    # And without any of this code: the marginal density of a Gaussian model.
    K = design @ cov @ design.T + sigma**2 * np.eye(N)
    rest = setup.y - design @ mean
    exact = -0.5 * (rest @ np.linalg.solve(K, rest) + np.linalg.slogdet(2 * np.pi * K)[1])
    assert mine.bound == pytest.approx(exact, abs=1e-8)


def test_a_process_with_all_points_is_the_dense_process():
    setup = MODELS["process"]()
    model = setup.model
    mine = model.fit(setup.y, tol=1e-10)
    mean, cov = model.prior_moments()
    X = model.shared.rows.X[:, :3]
    K = X @ np.diag(cov[:3]) @ X.T + model.kernels[0].gram(X1[:, None]) + np.exp(2 * model.full[-1]) * np.eye(N)
    rest = setup.y - X @ mean[:3]
    exact = -0.5 * (rest @ np.linalg.solve(K, rest) + np.linalg.slogdet(2 * np.pi * K)[1])
    assert mine.bound == pytest.approx(exact, abs=2e-5)  # a little noise on the points
    assert mine.bound < exact + 1e-9
