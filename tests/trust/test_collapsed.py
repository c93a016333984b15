"""Levels integrated out by quadrature, against brute force over a fine grid of every level's coefficient."""

import numpy as np
import pytest
from scipy.special import log_expit, logsumexp

import klimb
from klimb.numerics.lowdiscrepancy import matched_draws
from klimb.trust.collapsed import CollapsedWeights
from klimb.trust.levels import NODES, level_moments, level_skew, quadrature


def clusters(levels: int = 40, size: int = 3, sd: float = 2.0, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    g = np.repeat(np.arange(levels), size)
    x = rng.standard_normal(len(g))
    f = 0.3 + x + sd * rng.standard_normal(levels)[g]
    return {"g": g, "x": x, "y": (rng.random(len(g)) < 1.0 / (1.0 + np.exp(-f))).astype(float)}


def exact_evidence(data: dict[str, np.ndarray], sd: float) -> tuple[float, np.ndarray, np.ndarray]:
    """log p(y), E w and Var w of intercept and slope: every level on a grid of its own, the weights on another."""
    u, prior_sd = np.linspace(-7.0, 7.0, 141), 3.0
    log_u = -0.5 * u**2 - 0.5 * np.log(2.0 * np.pi) + np.log(u[1] - u[0])
    signs, levels = 2.0 * data["y"] - 1.0, int(data["g"].max()) + 1
    a, b = np.meshgrid(np.linspace(-3.0, 4.0, 57), np.linspace(-1.5, 4.5, 57), indexing="ij")
    cell = (a[1, 0] - a[0, 0]) * (b[0, 1] - b[0, 0])
    logs = np.empty(a.size)
    for k, (first, second) in enumerate(zip(a.ravel(), b.ravel(), strict=True)):
        eta = first + second * data["x"]
        per_level = np.zeros((levels, len(u)))
        np.add.at(per_level, data["g"], log_expit(signs[:, None] * (eta[:, None] + sd * u)))
        logs[k] = logsumexp(per_level + log_u, axis=1).sum()
    logs += -0.5 * (a.ravel() ** 2 + b.ravel() ** 2) / prior_sd**2 - np.log(2.0 * np.pi * prior_sd**2) + np.log(cell)
    total = float(logsumexp(logs))
    w = np.exp(logs - total)
    points = np.stack([a.ravel(), b.ravel()])
    mean = points @ w
    return total, mean, ((points - mean[:, None]) ** 2) @ w


@pytest.mark.parametrize("sd", [0.5, 2.0, 4.0])
def test_evidence_and_moments_are_those_of_brute_force(sd: float) -> None:
    data = clusters()
    X = np.column_stack([np.ones(len(data["x"])), data["x"]])
    latent = klimb.latents.Mixed(X, data["g"], cov=9.0, group_cov=sd**2)
    result = klimb.infer(latent, klimb.sites.Logistic(), data["y"])
    weights = CollapsedWeights(result.problem, result.posterior, latent.shocks(result.posterior))
    assert weights.bound == pytest.approx(result.bound, abs=1e-8)
    draws = weights(matched_draws(256, 2))
    w = np.exp(draws.log_weights - draws.log_weights.max())
    evidence = float(np.log(w.mean()) + draws.log_weights.max())
    total, mean, variance = exact_evidence(data, sd)
    assert evidence == pytest.approx(total, abs=0.02 + 0.01 * (total - result.bound))
    assert total > result.bound
    part = weights.shocks.matched(draws.moments(w / w.sum()))
    np.testing.assert_allclose(part.mean[:2], mean, atol=0.02 * np.sqrt(variance).max())
    np.testing.assert_allclose(part.sd()[:2], np.sqrt(variance), rtol=0.015)
    plain = np.sqrt(np.diag(result.posterior.covariance())[:2])
    if sd >= 4.0:  # q alone is too narrow by more than that
        assert (plain < 0.96 * np.sqrt(variance)).any()


def test_moments_of_a_level_are_those_of_its_own_grid() -> None:
    data, sd = clusters(levels=25, seed=3), 3.0
    latent = klimb.latents.Mixed(np.ones((len(data["g"]), 1)), data["g"], cov=1e-6, group_cov=sd**2)  # f = b
    result = klimb.infer(latent, klimb.sites.Logistic(), data["y"])
    weights = CollapsedWeights(result.problem, result.posterior, latent.shocks(result.posterior))
    draws = weights(matched_draws(16, 1))
    part = weights.shocks.matched(draws.moments(np.full(16, 1.0 / 16.0)))
    b = np.linspace(-25.0, 25.0, 4001)
    signs = 2.0 * data["y"] - 1.0
    for level in range(25):
        own = data["g"] == level
        log_p = log_expit(signs[own][:, None] * b).sum(axis=0) - 0.5 * (b / sd) ** 2
        p = np.exp(log_p - logsumexp(log_p))
        mean = float(p @ b)
        assert part.mean[1 + level] == pytest.approx(mean, abs=0.02 * sd)
        assert part.sd()[1 + level] == pytest.approx(float(np.sqrt(p @ (b - mean) ** 2)), rel=0.02)


def test_gradients_are_those_of_the_weights() -> None:
    data = clusters(levels=15)
    X = np.column_stack([np.ones(len(data["x"])), data["x"]])
    values = np.column_stack([np.ones(len(data["x"])), data["x"]])
    latent = klimb.latents.Mixed(X, data["g"], values, cov=4.0, group_cov=[2.0, 1.0])
    result = klimb.infer(latent, klimb.sites.Logistic(), data["y"])
    weights = CollapsedWeights(result.problem, result.posterior, latent.shocks(result.posterior))
    e = np.array([[0.4, -0.7]])
    for j, step in enumerate(1e-5 * np.eye(2)):
        up, down = weights.evidence(e + step), weights.evidence(e - step)
        assert weights(e).gradient[0, j] == pytest.approx(float((up - down)[0]) / 2e-5, rel=1e-5, abs=1e-7)


def test_some_levels_stand_for_all() -> None:
    data = clusters(levels=400, size=4, sd=2.0)
    latent = klimb.latents.Mixed(np.ones((1600, 1)), data["g"], cov=9.0, group_cov=4.0)
    result = klimb.infer(latent, klimb.sites.Logistic(), data["y"])
    shocks, z = latent.shocks(result.posterior), matched_draws(16, 1)
    every = CollapsedWeights(result.problem, result.posterior, shocks)
    some = CollapsedWeights(result.problem, result.posterior, shocks, most=every.work / 4)
    assert some.scale == 4.0
    gains = [np.log(np.mean(np.exp(w.evidence(z) - w.bound))) for w in (every, some)]
    assert gains[1] == pytest.approx(gains[0], abs=0.02)
    origin = np.zeros((1, 1))
    whole, part = every(origin), some(origin)
    assert part.log_weights == pytest.approx(whole.log_weights, abs=1e-9)
    one = np.ones(1)
    for name in ("mean", "covariance"):  # of all levels
        np.testing.assert_allclose(getattr(part.moments(one), name), getattr(whole.moments(one), name), atol=1e-12)
    known = CollapsedWeights(result.problem, result.posterior, shocks, most=every.work / 4, bound=result.bound)
    np.testing.assert_allclose(known.evidence(z), some.evidence(z), rtol=1e-12)


def test_levels_that_others_stand_for_have_the_moments_of_brute_force() -> None:
    data, sd = clusters(levels=12, size=4, sd=1.5, seed=0), 1.5
    X = np.column_stack([np.ones(48), data["x"]])
    latent = klimb.latents.Mixed(X, data["g"], cov=9.0, group_cov=sd**2)
    result = klimb.infer(latent, klimb.sites.Logistic(), data["y"])
    shocks = latent.shocks(result.posterior)
    every = CollapsedWeights(result.problem, result.posterior, shocks)
    weights = CollapsedWeights(result.problem, result.posterior, shocks, most=every.work / 2)
    draws = weights(matched_draws(512, 2))
    w = np.exp(draws.log_weights - draws.log_weights.max())
    part = shocks.matched(draws.moments(w / w.sum()))
    found, spread = np.asarray(part.mean[2:]), np.asarray(part.sd()[2:])
    mean, variance = exact_levels(data, sd)
    others = np.setdiff1d(np.arange(12), weights.shocks.present)
    assert len(others) == 6
    np.testing.assert_allclose(found[others], mean[others], atol=0.01 * np.sqrt(variance).max())
    np.testing.assert_allclose(spread[others], np.sqrt(variance[others]), rtol=0.015)


def exact_levels(data: dict[str, np.ndarray], sd: float) -> tuple[np.ndarray, np.ndarray]:
    """Means and variances of the levels' coefficients, by sums over the shared weights and each level's own."""
    b, signs = np.linspace(-6.0, 6.0, 41) * sd, 2.0 * data["y"] - 1.0
    first, second = (one.ravel() for one in np.meshgrid(np.linspace(-5.0, 5.0, 31), np.linspace(-3.0, 6.0, 31)))
    eta = first[:, None] + second[:, None] * data["x"]
    log_p = log_expit(signs[:, None] * (eta[..., None] + b)).reshape(len(eta), -1, 4, len(b)).sum(axis=2)
    log_p -= 0.5 * (b / sd) ** 2
    totals = logsumexp(log_p, axis=2)
    shares = np.exp(log_p - totals[..., None])
    logs = totals.sum(axis=1) - 0.5 * (first**2 + second**2) / 9.0
    w = np.exp(logs - logsumexp(logs))
    mean = w @ (shares @ b)
    return mean, w @ (shares @ b**2) - mean**2


def test_without_a_group_the_weights_are_those_of_the_engine() -> None:
    from klimb.latents.coordinates import coordinates_of
    from klimb.trust.weights import LogWeights

    rng = np.random.default_rng(1)
    X = np.column_stack([np.ones(30), rng.standard_normal((30, 2))])
    result = klimb.infer(klimb.latents.Weights(X, cov=4.0), klimb.sites.Poisson(), rng.poisson(1.0, 30))
    latent = result.posterior.latent
    weights = CollapsedWeights(result.problem, result.posterior, latent.shocks(result.posterior))
    engine = LogWeights(result.problem, result.posterior, coordinates_of(result.posterior))
    z = matched_draws(64, 3)
    values, gradient = engine(z)
    draws = weights(z)
    np.testing.assert_allclose(draws.log_weights, values, atol=1e-9)
    np.testing.assert_allclose(draws.gradient, gradient, atol=1e-8)


@pytest.mark.parametrize(("k", "count"), [(k, count) for k, counts in NODES.items() for count in counts])
def test_rules_average_polynomials_exactly(k: int, count: int) -> None:
    nodes, log_weights = quadrature(k, count)
    w = np.exp(log_weights)
    assert nodes.shape == (count**k, k)
    assert w.sum() == pytest.approx(1.0)
    if k:
        np.testing.assert_allclose(nodes.T @ (w[:, None] * nodes), np.eye(k), atol=1e-12)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_third_moments_of_levels_are_those_about_their_means(k: int) -> None:
    nodes, _ = quadrature(k, 5)
    share = np.random.default_rng(k).dirichlet(np.full(len(nodes), 0.2), (3, 4)).swapaxes(1, 2)
    mean, covariance = level_moments(share, nodes)
    found = level_skew(share, nodes, mean, covariance)
    for s in range(3):
        for level in range(4):
            away = nodes - share[s, :, level] @ nodes
            cubes = away[:, :, None, None] * away[:, None, :, None] * away[:, None, None, :]
            np.testing.assert_allclose(found[s, level], np.tensordot(share[s, :, level], cubes, axes=1), atol=1e-11)


def test_levels_with_several_modes_have_the_moments_of_their_own_grids() -> None:
    """Slopes of levels of few rows with heavy tails: nodes that reach one mode agree among themselves."""
    rng = np.random.default_rng(31)
    g, x = np.repeat(np.arange(25), 5), np.tile(np.arange(5.0), 25)
    y = 5.0 + 2.0 * rng.standard_normal(25)[g] + (0.5 + rng.standard_normal(25)[g]) * x + 0.4 * rng.standard_t(0.8, 125)
    ones = np.ones((125, 1))
    latent = klimb.latents.Mixed(ones, g, np.column_stack([ones, x]), cov=1e-8, group_cov=[6.0, 1.5], mean=5.0)
    site = klimb.sites.StudentT(df=0.8, scale=0.4)
    result = klimb.infer(latent, site, y)
    z = matched_draws(16, 1)
    weights = CollapsedWeights(result.problem, result.posterior, latent.shocks(result.posterior)).settled(z[:1])
    draws = weights(z)
    part = weights.shocks.matched(draws.moments(np.full(16, 1.0 / 16.0)))
    a, b = np.meshgrid(np.linspace(-12.0, 12.0, 401), np.linspace(-6.0, 6.0, 401), indexing="ij")
    means, sds = np.asarray(part.mean)[1:].reshape(25, 2), np.asarray(part.sd())[1:].reshape(25, 2)
    for level in range(25):
        log_p = -0.5 * (a**2 / 6.0 + b**2 / 1.5)
        for i in np.flatnonzero(g == level):
            log_p = log_p + site.value(np.full(1, y[i]), (5.0 + a + b * x[i]).ravel()).reshape(a.shape)
        p = np.exp(log_p - log_p.max())
        p /= p.sum()
        for k, own in enumerate((a, b)):
            mean = float((p * own).sum())
            sd = float(np.sqrt((p * (own - mean) ** 2).sum()))
            assert means[level, k] == pytest.approx(mean, abs=0.03 * sd)
            assert sds[level, k] == pytest.approx(sd, rel=0.05)
        first = np.flatnonzero(g == level)[0]  # f is the level's intercept there
        away = a - float((p * a).sum())
        kurtosis = float((p * away**4).sum() / (p * away**2).sum() ** 2)
        assert weights.peaks()[first] + 3.0 == pytest.approx(kurtosis, rel=0.3)
