"""Gaussian processes as users meet them: right limits, bounded memory, draws, and messages for what cannot be."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

import klimb
from klimb import kernels, latents, sites
from klimb.errors import InputError
from klimb.kernels.means import ConstantMean
from klimb.models.inducing import with_points
from klimb.models.kernel import KernelModel

RNG = np.random.default_rng(0)
X = RNG.standard_normal((40, 2))
NEW = np.vstack([X[:3], RNG.standard_normal((3, 2))])
DATA = {
    "logistic": (sites.Logistic(), RNG.integers(0, 2, 40)), "poisson": (sites.Poisson(), RNG.poisson(2.0, 40)),
    "student": (sites.StudentT(4.0, 0.5), RNG.standard_normal(40)),
    "softmax": (sites.Softmax(3), RNG.integers(0, 3, 40)),
}


def latent_moments(fit, new):
    """Mean and variance of f at new inputs, one column per class where there are several."""
    m, v = fit.latents(new).moments()
    fields = fit.model.fields
    return (m, v) if fields == 1 else (m.reshape(fields, -1).T, v.reshape(fields, -1).T)


KERNELS = [kernels.RBF, kernels.Matern12, kernels.Matern52, kernels.RationalQuadratic]


@pytest.mark.parametrize("name", DATA)
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_tiny_lengthscale_leaves_every_datum_alone(name, kernel):
    site, y = DATA[name]
    model = klimb.gp(kernel(lengthscale=1e-8, variance=2.0), X, site)
    fit = model.fit(y, hyper="fixed").uncorrected
    assert fit.converged
    m, v = latent_moments(fit, NEW)
    part = latents.Kernel([[2.0]])
    alone = klimb.infer(part if site.separable else latents.Outputs.shared(part, 3), site, y[:1])
    np.testing.assert_allclose(np.ravel(m[0]), alone.posterior.m, atol=1e-5)
    np.testing.assert_allclose(np.ravel(v[0]), alone.posterior.v, atol=1e-5)
    np.testing.assert_allclose(m[3:], 0.0, atol=1e-10)  # elsewhere the prior
    np.testing.assert_allclose(v[3:], 2.0, rtol=1e-10)
    assert np.isfinite(fit.model.gradient(fit.posterior, fit.data)).all()


@pytest.mark.parametrize("inducing", [None, 10])
@pytest.mark.parametrize("name", DATA)
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_huge_lengthscale_is_a_constant(name, kernel, inducing):
    site, y = DATA[name]
    model = klimb.gp(kernel(lengthscale=1e8, variance=2.0), X, site, inducing=inducing)
    fit = model.fit(y, hyper="fixed")
    level = latents.Weights(np.ones((40, 1)), cov=2.0)
    constant = level if site.separable else latents.Outputs.shared(level, 3)
    expected = klimb.infer(constant, site, y)
    assert fit.converged
    assert fit.bound == pytest.approx(expected.bound, abs=1e-4)
    for found, right in zip(latent_moments(fit, NEW), constant.predict(expected.posterior, np.ones((6, 1))),
                            strict=True):
        np.testing.assert_allclose(found, right, atol=1e-4)
    assert np.isfinite(fit.model.gradient(fit.posterior, fit.data)).all()


@pytest.mark.parametrize("name", DATA)
def test_a_tiny_lengthscale_through_inducing_points_knows_only_them(name):
    site, y = DATA[name]
    model = klimb.gp(kernels.RBF(lengthscale=1e-8, variance=2.0), X, site, inducing=X[:10])
    fit = model.fit(y, hyper="fixed")
    assert fit.converged
    m, v = latent_moments(fit, NEW)
    np.testing.assert_allclose(m[3:], 0.0, atol=1e-6)
    np.testing.assert_allclose(v[3:], 2.0, rtol=1e-6)
    full = klimb.gp(kernels.RBF(lengthscale=1e-8, variance=2.0), X, site).fit(y, hyper="fixed")
    assert fit.bound <= full.bound + 1e-6


def test_what_can_not_be_is_refused():
    fit = klimb.gp(kernels.RBF(), X, sites.Logistic()).fit(DATA["logistic"][1], hyper="fixed")
    several = klimb.gp(kernels.RBF(), X, sites.Softmax(3)).fit(DATA["softmax"][1], hyper="fixed")
    for call, words in (
        (lambda: latents.Kernel(np.eye(3) - np.ones((3, 3))), "positive semi-definite"),
        (lambda: latents.Kernel(np.triu(np.ones((3, 3)))), "symmetric"),
        (lambda: latents.Kernel(np.where(np.eye(3) > 0, np.nan, 0.0)), "nan at index"),
        (lambda: klimb.gp(kernels.RBF(lengthscale=[1.0, 2.0, 3.0]), X), "column"),
        (lambda: klimb.gp(kernels.RBF(), X, sites.Logistic(), inducing=41), "between 1 and 40"),
        (lambda: klimb.gp(kernels.RBF(), X, sites.Logistic(), inducing=np.ones((50, 2))), "at most 40"),
        (lambda: klimb.gp(kernels.RBF(), X, sites.Logistic(), inducing=np.ones((5, 3))), "2 columns"),
        (lambda: klimb.gp(kernels.RBF(), X, 3), "klimb site"),
        (lambda: klimb.gp(kernels.RBF(), X, mean=3.0), "mean function"),
        (lambda: klimb.gp(kernels.RBF(), X, jitter=-1.0), "jitter"),
        (lambda: klimb.gp(kernels.RBF(), X, jitter=np.nan), "jitter"),
        (lambda: fit.predict(np.ones((2, 3))), "X_new must have 2 columns"),
        (lambda: fit.predict([[np.nan, 0.0]]), "finite"),
        (lambda: several.predict(np.ones((2, 3))), "X_new must have 2 columns"),
        (lambda: fit.sample(-1, X), "draws"),
    ):
        with pytest.raises(InputError, match=words):
            call()


@pytest.mark.parametrize("inducing", [None, 8])
@pytest.mark.parametrize("name", ["poisson", "student"])
def test_draws_have_the_moments_of_predictions(name, inducing):
    site, y = DATA[name]
    model = klimb.gp(kernels.RBF(variance=0.5), X, site, inducing=inducing, mean=ConstantMean(0.3))
    fit = model.fit(y, hyper="fixed")
    m, v = latent_moments(fit, NEW)
    f = fit.sample(20_000, NEW, seed=0)
    np.testing.assert_allclose(f.mean(axis=0), m, atol=6 * np.sqrt(v.max() / 20_000))
    np.testing.assert_allclose(f.var(axis=0), v, rtol=0.06)
    twice = fit.sample(500, NEW[[0, 0]], seed=1)  # the same point twice: joint draws agree
    np.testing.assert_allclose(twice[:, 0], twice[:, 1], atol=1e-3)
    draws = fit.simulate(20_000, NEW, seed=0)
    observed = site.predict(m, v)
    np.testing.assert_allclose(draws.mean(axis=0), observed.mean, atol=6 * np.sqrt(observed.var.max() / 20_000))
    alone = observed.sample(20_000, rng=1)
    np.testing.assert_allclose(alone.mean(axis=0), observed.mean, atol=6 * np.sqrt(observed.var.max() / 20_000))
    levels = observed.quantile([0.1, 0.9])
    inside = (draws >= levels[:, 0]) & (draws <= levels[:, 1])
    assert (inside.mean(axis=0) > 0.78).all()


def test_gradients_of_many_data_take_little_memory():
    """The pull-back through M x N covariances goes in blocks: less than one such matrix at a time."""
    rng = np.random.default_rng(1)
    inputs, M = rng.standard_normal((40_000, 2)), 60
    y = (rng.random(40_000) < 0.5) * 1
    model = klimb.gp(kernels.RBF(lengthscale=[1.0, 1.0]), inputs, sites.Logistic(), inducing=inputs[:M])
    data = model.read(y)
    posterior = model.infer(data, tol=1e-2).posterior
    moving = with_points(model, model.Z, free=True)
    whole = M * 40_000 * 8
    tracemalloc.start()
    gradient = moving.gradient(posterior, data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 0.75 * whole
    assert gradient.shape == (3 + M * 2,)


def test_a_search_of_hyperparameters_holds_few_square_matrices():
    """The kernel's, and two factors, or one with the gradient or the correlations of a Newton direction."""
    rng = np.random.default_rng(2)
    n = 1000
    inputs = rng.standard_normal((n, 2))
    y = rng.random(n) < 1 / (1 + np.exp(-3 * np.sin(2 * inputs[:, 0])))
    tracemalloc.start()
    fit = klimb.gp(kernels.RBF(variance=4.0), inputs, sites.Logistic()).fit(y)
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert fit.converged
    assert peak < 3.5 * 8 * n * n
    assert kept < 3.3 * 8 * n * n


def test_a_model_is_printed_in_a_line():
    model = klimb.gp(kernels.RBF(), X, sites.Logistic(), inducing=5)
    assert repr(model) == ("KernelModel(RBF(variance=1.0, lengthscale=1.0), Logistic, logit link, 40 x 2 inputs, "
                           "5 inducing points)")
    assert isinstance(model, KernelModel)


def test_flat_priors_that_the_data_do_not_bound_are_a_doubt():
    """The mean of such a variance depends on the limits of the search, which nobody chose."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-3.0, 3.0, (40, 1))
    y = rng.poisson(np.exp(0.5 + np.sin(2.0 * X[:, 0])))
    shape = kernels.RBF(lengthscale=0.8).fixed()
    flat = klimb.gp(shape + kernels.Constant(), X, sites.Poisson()).fit(y, hyper="integrate")
    assert flat.trust.verdict == "doubt"
    assert "1.variance" in flat.trust.advice
    proper = kernels.Constant().with_priors(variance=klimb.priors.exponential(1.0))
    assert klimb.gp(shape + proper, X, sites.Poisson()).fit(y, hyper="integrate").trust.verdict != "doubt"


def test_a_noise_free_parabola_is_not_blamed_for_tails_that_it_does_not_have():
    """Heavy tails of few residuals are no share of 0.0% beyond 3 sd; one column is no "1 columns"."""
    x = np.linspace(0.0, 5.0, 40)
    fit = klimb.gp(kernels.RBF(), x, sites.Gaussian(0.1), learn=("scale",)).fit(x**2)
    assert not any("0.0% of the residuals" in finding.sentence for finding in fit.checks.findings)
    with pytest.raises(InputError, match="must have 1 column; got"):
        fit.predict(np.zeros((2, 3)))


def test_the_exact_posterior_of_few_labels():
    """Against a sum over a grid of f: q is too narrow where labels are all that is known of a wide process."""
    x, y, new = np.array([0.0, 1.0, 2.5]), np.array([1, 1, 0]), np.array([0.5, 1.7, 4.0])
    kernel = kernels.RBF(variance=30.0, lengthscale=1.2)
    fit = klimb.gp(kernel, x, sites.Logistic()).fit(y, hyper="fixed")
    K, cross, own = (30.0 * np.exp(-0.5 * (a[:, None] - b) ** 2 / 1.2**2) for a, b in ((x, x), (new, x), (new, new)))
    line = np.linspace(-30.0, 30.0, 121)
    f = np.stack(np.meshgrid(line, line, line, indexing="ij"), axis=-1).reshape(-1, 3)
    logs = -0.5 * np.einsum("ij,jk,ik->i", f, np.linalg.inv(K), f) - np.logaddexp(0.0, (1 - 2 * y) * f).sum(axis=1)
    p = np.exp(logs - logs.max())
    p /= p.sum()
    centre = p @ f
    V = (f - centre).T @ (p[:, None] * (f - centre))
    back = cross @ np.linalg.inv(K)
    there = own - back @ (K - V) @ back.T
    assert fit.trust.verdict == "corrected"
    for inputs, mean, covariance in ((x, centre, V), (None, centre, V), (new, back @ centre, there)):
        found = fit.predict(inputs, kind="latent")
        sd = np.sqrt(np.diagonal(covariance))
        np.testing.assert_allclose(found["mean"], mean, atol=0.04 * sd.min())
        np.testing.assert_allclose(found["sd"], sd, rtol=0.03)
    assert (fit.uncorrected.predict(x, kind="latent")["sd"] < 0.95 * np.sqrt(np.diagonal(V))).all()
    draws = fit.sample(40_000, new, seed=0)
    np.testing.assert_allclose(np.cov(draws.T), there, atol=0.08 * there.max())
    np.testing.assert_allclose(fit.predict(x)["mean"], p @ (1.0 / (1.0 + np.exp(-f))), atol=0.01)


def test_corrections_in_the_directions_that_labels_see():
    """More sites than directions: the same as all of them, and nothing is lost in a file."""
    rng = np.random.default_rng(3)
    inputs = np.sort(rng.uniform(0.0, 10.0, 90))
    y = np.sin(inputs) + 0.3 * rng.standard_normal(90) > 0.0
    fit = klimb.gp(kernels.RBF(variance=9.0, lengthscale=1.5), inputs, sites.Logistic()).fit(y, hyper="fixed")
    shocks = fit.result.posterior.latent.shocks(fit.result.posterior)
    assert shocks is not None
    assert shocks.dim < 30
    assert fit.trust.verdict == "corrected"
    exact = fit.result.trust.corrected  # by draws in all directions
    found = fit.predict(None, kind="latent")
    np.testing.assert_allclose(found["mean"], exact.mean, atol=0.12 * exact.sd.max())
    np.testing.assert_allclose(found["sd"], exact.sd, rtol=0.06)


def test_rows_that_count_nothing_change_no_correction():
    x = np.linspace(0.0, 6.0, 30)
    y, weights, new = np.sin(x) > 0.0, (np.arange(30) % 3 > 0).astype(float), np.linspace(-1.0, 7.0, 9)
    model = [klimb.gp(kernels.RBF(variance=9.0), x[keep], sites.Logistic()) for keep in (slice(None), weights > 0.0)]
    fits = [model[0].fit(y, hyper="fixed", weights=weights, tol=1e-10),
            model[1].fit(y[weights > 0.0], hyper="fixed", tol=1e-10)]
    assert fits[0].trust.verdict == fits[1].trust.verdict == "corrected"
    one, other = (fit.predict(new, kind="latent") for fit in fits)
    for name in ("mean", "sd"):
        np.testing.assert_allclose(one[name], other[name], rtol=1e-3, atol=1e-3 * other["sd"].max())


UNITS = [(1e6, 1.0), (100.0, 1.0), (0.1, 1.0), (1e-8, 1.0), (1.0, 1e8), (1.0, 300.0), (1.0, 1e-8), (1e3, 1e3)]


@pytest.mark.parametrize("likelihood", ["gaussian", "student_t(df=4)", "poisson", "categorical"])
def test_answers_do_not_depend_on_the_units_of_inputs_and_values(likelihood):
    # From a lengthscale far below the distances of the inputs, or far above, a climb sees no slope in it: noise alone.
    rng = np.random.default_rng(3)
    inputs = 4.0 * rng.random((60, 2))
    f = 2.0 * np.sin(2.0 * inputs[:, 0])
    noise = rng.standard_normal(60)
    y = {"poisson": rng.poisson(np.exp(f)), "categorical": np.digitize(f + 1.5 * noise, [-1.0, 1.0])}.get(
        likelihood, f + 0.2 * noise)
    usual = klimb.gp(kernels.RBF(), inputs, likelihood).fit(y).uncorrected
    expected = usual.predict(inputs[:5], kind="latent" if usual.model.fields == 1 else "mean")
    for inner, outer in UNITS:
        if outer != 1.0 and likelihood in ("poisson", "categorical"):
            continue
        fit = klimb.gp(kernels.RBF(), inner * inputs, likelihood).fit(outer * y).uncorrected
        assert fit.bound + 60.0 * np.log(outer) == pytest.approx(usual.bound, abs=0.01), (inner, outer)
        found = fit.predict(inner * inputs[:5], kind="latent" if usual.model.fields == 1 else "mean")
        if usual.model.fields == 1:
            assert (np.abs(found["mean"] / outer - expected["mean"]) < 0.05 * expected["sd"]).all(), (inner, outer)
            np.testing.assert_allclose(found["sd"] / outer, expected["sd"], rtol=0.03)
        else:
            np.testing.assert_allclose(found["P(0)"], expected["P(0)"], atol=0.002)


def test_a_level_far_from_zero_leaves_the_curve() -> None:
    """Under a mean of zero values near 1e6 need a variance of 1e11, beyond what a climb from 1 may reach."""
    rng = np.random.default_rng(0)
    inputs = 4.0 * rng.random((60, 2))
    y = np.sin(2.0 * inputs[:, 0]) + 0.2 * rng.standard_normal(60)
    fit = klimb.gp(kernels.RBF(), inputs).fit(y + 1e6)
    assert fit.hyperparameters["sigma"] == pytest.approx(0.2, abs=0.06)


def test_kernels_keep_values_that_are_fixed_or_have_bounds_or_a_prior():
    inputs = 1e3 * np.random.default_rng(4).random((30, 1))
    for kernel in (kernels.RBF().fixed(), kernels.RBF().bounded(variance=(0.1, 9.0), lengthscale=(0.5, 2.0)),
                   kernels.RBF().with_priors(variance=klimb.priors.log_normal(1.0),
                                             lengthscale=klimb.priors.log_normal(1.0))):
        assert kernel.typical(inputs, 1e6) is kernel
    assert kernels.RBF(lengthscale=100.0).typical(inputs, 1.0).lengthscale == 100.0


def test_a_start_that_cannot_be_computed_leaves_the_one_in_the_units_of_the_data():
    rng = np.random.default_rng(5)
    inputs = 4.0 * rng.random((40, 1))
    y = rng.poisson(np.exp(np.sin(inputs[:, 0])))
    kernel = kernels.Matern52() + kernels.Linear()
    usual, fit = (klimb.gp(kernel, scale * inputs, "poisson").fit(y) for scale in (1.0, 1e9))
    assert fit.bound == pytest.approx(usual.bound, abs=0.02)


@pytest.mark.parametrize("inducing", ["auto", 15])
def test_a_kernel_far_too_smooth_for_the_inputs_gets_points_enough(inducing):
    rng = np.random.default_rng(6)
    x = rng.random((200, 1))
    y = rng.random(200) < 1 / (1 + np.exp(-3.0 * np.sin(600.0 * x[:, 0] / 60.0)))
    full = klimb.gp(kernels.RBF(lengthscale=0.2), x, "bernoulli").fit(y)
    fit = klimb.gp(kernels.RBF(lengthscale=0.2), 1e-3 * x, "bernoulli", inducing=inducing).fit(y)
    assert fit.bound == pytest.approx(full.bound, abs=1.0)


def test_far_corners_of_theta_have_moments() -> None:
    """Stein's identity made no covariance from 100 draws at a variance of 1e7, and the fit ended in LinAlgError."""
    x = np.linspace(0.0, 6.0, 40)
    fit = klimb.gp(kernels.RBF(), x, sites.Logistic()).fit(np.sin(x) > 0.0, hyper="integrate")
    assert fit.trust.verdict == "doubt"  # a flat prior of the variance, which separable labels do not bound
    assert fit.predict([1.0])["mean"][0] > 0.95


@pytest.mark.parametrize("days", [np.arange(20).astype("datetime64[D]"), pd.date_range("2020-01-01", periods=20)],
                         ids=["numpy", "pandas"])
def test_dates_are_no_numbers(days: Any) -> None:
    """pandas counts nanoseconds, NumPy whatever it was told: lengthscales meant one or the other."""
    for model in (klimb.gp, klimb.series):
        with pytest.raises(InputError, match="must be an array of numbers; got dates"):
            model(kernels.Matern32(), days)


@pytest.mark.parametrize("kind", [list, np.array, pd.Series, pl.Series, lambda x: pd.array(x, dtype="Float64")])
def test_numbers_of_any_library_are_inputs(kind: Any) -> None:
    x = [0.0, 1.0, 2.0, 4.0]
    fits = [klimb.gp(kernels.RBF(), own(x)).fit(own(np.sin(x).tolist()), hyper="fixed") for own in (list, kind)]
    assert fits[0].bound == pytest.approx(fits[1].bound, rel=1e-12)


@pytest.mark.parametrize(("wide", "high"), [(100.0, 1.0), (1e6, 1.0), (1.0, 1e4), (1e-4, 1e-3), (300.0, 1e-3)])
def test_units_of_inputs_and_outputs_do_not_hide_a_curve(wide: float, high: float) -> None:
    """From a lengthscale below every distance, or a variance far below the noise, no slope leads to the curve."""
    x = np.linspace(0.0, 6.0, 40)
    y = np.sin(x) + 0.1 * np.random.default_rng(0).standard_normal(40)
    plain, other = (klimb.gp(kernels.RBF(), a * x).fit(b * y) for a, b in ((1.0, 1.0), (wide, high)))
    assert other.converged
    assert other.bound + 40 * np.log(high) == pytest.approx(plain.bound, abs=1e-2)
    np.testing.assert_allclose(other.predict(wide * x)["mean"] / high, plain.predict(x)["mean"], atol=0.01)
    for name, unit in (("lengthscale", wide), ("variance", high**2), ("sigma", high)):
        assert other.hyperparameters[name] / unit == pytest.approx(plain.hyperparameters[name], rel=0.05)


@pytest.mark.parametrize("origin", [0.0, 1000.0])
def test_a_period_is_found_from_any_start(origin):
    """A climb over the period ends at the next of many peaks: 36 nats below the best here, under "trust"."""
    rng = np.random.default_rng(10)
    x = rng.uniform(0.0, 5.0, 40)
    y = np.sin(1.5 * x) + 0.3 * rng.standard_normal(40)
    fit = klimb.gp(kernels.Periodic(), x + origin, "gaussian").fit(y)
    near = klimb.gp(kernels.Periodic(period=2.0 * np.pi / 1.5), x + origin, "gaussian").fit(y)
    assert fit.bound > near.bound - 0.01
    assert fit.predict([origin + 2.0])["mean"][0] == pytest.approx(np.sin(3.0), abs=0.3)
