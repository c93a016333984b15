"""klimb.fit against answers worked out another way: sums over dense grids of exact marginal likelihoods."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import logsumexp

import klimb


def grid_moments(log_p, *axes):
    """Normalised weights on a grid, and the log of the integral."""
    cell = np.prod([axis[1] - axis[0] for axis in axes])
    total = logsumexp(log_p)
    return np.exp(log_p - total), total + np.log(cell)


def quantiles(weights, axis, levels=(0.05, 0.95)):
    cdf = np.cumsum(weights) - 0.5 * weights
    return np.interp(levels, cdf, axis)


def prior_of(fit):
    """Prior means and sds of the fixed columns."""
    mean, variances = fit.model.prior_moments()
    return mean, np.sqrt(variances)


@pytest.mark.parametrize("sd", [0.8, 0.0])
def test_random_intercepts_with_normal_noise(sd):
    """The marginal density is normal for given (sd, sigma); those two are summed over a fine grid."""
    n, levels = 60, 6
    rng = np.random.default_rng(3)
    x, g = rng.standard_normal(n), np.arange(n) % levels
    y = 1 + 0.5 * x + sd * rng.standard_normal(levels)[g] + 0.7 * rng.standard_normal(n)
    fit = klimb.fit("y ~ x + (1 | g)", {"y": y, "x": x, "g": g.astype(str)})
    scale = np.std(y)
    X = np.column_stack([np.ones(n), x - x.mean()])
    mean, width = prior_of(fit)
    assert mean[0] == pytest.approx(y.mean())
    assert width == pytest.approx([2.5 * scale, 2.5 * scale / np.std(x)])
    log_sd = np.linspace(np.log(scale) - 9, np.log(scale) + 2.5, 101)
    log_sigma = np.linspace(np.log(scale) - 1.5, np.log(scale) + 0.7, 51)
    same = (g[:, None] == g).astype(float)
    rest = y - X @ mean
    log_p, slope, variance = np.empty((101, 51)), np.empty((101, 51)), np.empty((101, 51))
    for i, a in enumerate(log_sd):
        values, vectors = np.linalg.eigh((X * width**2) @ X.T + np.exp(2 * a) * same)
        turned, towards = vectors.T @ rest, vectors.T @ (X[:, 1] * width[1] ** 2)
        for j, b in enumerate(log_sigma):
            spread = values + np.exp(2 * b)
            log_p[i, j] = -0.5 * (np.sum(turned**2 / spread) + np.sum(np.log(2 * np.pi * spread)))
            slope[i, j] = towards @ (turned / spread)
            variance[i, j] = width[1] ** 2 - np.sum(towards**2 / spread)
            log_p[i, j] += a + b - (np.exp(a) + np.exp(b)) / scale - 2 * np.log(scale)  # exponential priors
    w, evidence = grid_moments(log_p, log_sd, log_sigma)
    assert fit.bound == pytest.approx(evidence, abs=0.01)
    row = fit.coefficient_rows()[1]
    assert row.mean == pytest.approx(np.sum(w * slope), abs=1e-3)
    exact_sd = np.sqrt(np.sum(w * (variance + slope**2)) - np.sum(w * slope) ** 2)
    assert row.sd == pytest.approx(exact_sd, rel=2e-3)
    for row, axis, own in zip(fit.parameter_rows(), (log_sd, log_sigma), (w.sum(1), w.sum(0)), strict=True):
        middle = own @ np.exp(axis)
        assert row.mean == pytest.approx(middle, rel=5e-3)
        assert row.sd == pytest.approx(np.sqrt(own @ (np.exp(axis) - middle) ** 2), rel=0.03)
        low, high = np.exp(quantiles(own, axis))
        assert row.lower == pytest.approx(low, rel=0.03)
        assert row.upper == pytest.approx(high, rel=0.02)


def test_random_intercepts_of_labels():
    """A logistic mixed model by sums over grids of everything: nothing is taken for Gaussian."""
    n, levels = 240, 12
    rng = np.random.default_rng(5)
    x, g = rng.standard_normal(n), np.arange(n) % levels
    y = rng.random(n) < 1 / (1 + np.exp(-(0.3 + 0.8 * x + 0.9 * rng.standard_normal(levels)[g])))
    fit = klimb.fit("y ~ x + (1 | g)", {"y": y, "x": x, "g": g.astype(str)}, family="bernoulli")
    sign = np.where(y, 1.0, -1.0)
    centred = x - x.mean()
    rows = fit.coefficient_rows()
    a = np.linspace(-2.5, 3.1, 57)  # intercept at the mean of x
    b = np.linspace(rows[1].mean - 5 * rows[1].sd, rows[1].mean + 5 * rows[1].sd, 41)
    log_sd = np.linspace(-5.0, 2.0, 71)
    # The likelihood of a level depends on its own intercept s = a + deviation alone: tabulate it, then average over s.
    s = np.linspace(-14.0, 14.0, 281)
    spread = np.exp(log_sd)[:, None, None]
    density = np.exp(-0.5 * ((s - a[:, None]) / spread) ** 2)
    density /= density.sum(axis=2, keepdims=True)  # where sd is below the spacing, all of it stands next to a
    log_p = np.zeros((len(log_sd), len(a), len(b)))
    for level in range(levels):
        own = np.flatnonzero(g == level)
        f = s[:, None, None] + b[:, None] * centred[own]
        value = -np.logaddexp(0.0, -sign[own] * f).sum(axis=2)
        log_p += np.log(density @ np.exp(value - value.max())) + value.max()
    log_p += (log_sd - np.exp(log_sd))[:, None, None]
    prior_mean, prior_sd = prior_of(fit)
    log_p += -0.5 * ((a - prior_mean[0]) / prior_sd[0])[:, None] ** 2
    log_p += -0.5 * (b / prior_sd[1]) ** 2
    log_p += -np.log(2 * np.pi * prior_sd[0] * prior_sd[1])
    w, evidence = grid_moments(log_p, log_sd, a, b)
    slope = w.sum(axis=(0, 1))
    mean = slope @ b
    assert rows[1].mean == pytest.approx(mean, abs=0.05 * rows[1].sd)
    assert rows[1].sd == pytest.approx(np.sqrt(slope @ (b - mean) ** 2), rel=0.03)
    low, high = quantiles(slope, b)
    assert rows[1].lower == pytest.approx(low, abs=0.1 * rows[1].sd)
    assert rows[1].upper == pytest.approx(high, abs=0.1 * rows[1].sd)
    own = w.sum(axis=(1, 2))
    sd = fit.parameter_rows()[0]
    assert sd.mean == pytest.approx(own @ np.exp(log_sd), rel=0.05)
    assert sd.upper == pytest.approx(np.exp(quantiles(own, log_sd))[1], rel=0.06)
    assert evidence - 0.3 < fit.bound < evidence + 0.01  # a bound, and a close one


def test_a_conjugate_poisson_rate():
    """Many counts: the posterior of a log rate is that of a gamma density seen through a wide prior."""
    y = np.random.default_rng(0).poisson(3.0, 400)
    fit = klimb.fit("y ~ 1", {"y": y}, family="poisson", priors={"Intercept": "normal(1, 50)"})
    row = fit.coefficient_rows()[0]
    assert np.exp(row.mean + 0.5 * row.sd**2) == pytest.approx(y.sum() / 400, rel=1e-5)
    assert row.sd == pytest.approx(y.sum() ** -0.5, rel=1e-3)


def test_smooth_and_process_find_a_curve():
    rng = np.random.default_rng(1)
    x = np.sort(rng.uniform(0, 10, 150))
    truth = np.sin(x)
    y = truth + 0.3 * rng.standard_normal(150)
    for term in ("s(x, k=20)", "gp(x)", "gp(x, kernel=\"rbf\")"):
        fit = klimb.fit(f"y ~ {term}", {"x": x, "y": y})
        found = fit.predict()
        assert np.sqrt(np.mean((found["mean"] - truth) ** 2)) < 0.12, term
        inside = (found["lower"] < truth) & (truth < found["upper"])
        assert inside.mean() > 0.8, term
        sigma = next(row for row in fit.parameter_rows() if row.name == "sigma")
        assert sigma.lower < 0.3 < sigma.upper


def test_a_process_by_formula_is_klimb_gp():
    rng = np.random.default_rng(1)
    x = rng.uniform(0, 10, 60)
    y = rng.poisson(np.exp(np.sin(x)))
    fit = klimb.fit("y ~ gp(x, kernel=\"rbf\")", {"x": x, "y": y}, family="poisson", hyper="optimise",
                    priors={"Intercept": "normal(0, 2)"})
    standard = (x - x.mean()) / np.std(x, ddof=0)
    theta = fit.model.at
    inputs = fit.model.rows.blocks[1].inputs[:, 0]
    assert np.corrcoef(standard, inputs)[0, 1] == pytest.approx(1.0)
    kernel = klimb.kernels.RBF(lengthscale=np.exp(theta[1]), variance=np.exp(2 * theta[0]))
    kernel = kernel + klimb.kernels.Constant(4.0)
    by_hand = klimb.gp(kernel, inputs, klimb.sites.Poisson()).fit(y, hyper="fixed")
    assert fit.bound == pytest.approx(by_hand.bound, abs=1e-4)
    np.testing.assert_allclose(fit.posterior.m, by_hand.posterior.m, atol=1e-4)
    np.testing.assert_allclose(fit.posterior.v, by_hand.posterior.v, atol=1e-4)
