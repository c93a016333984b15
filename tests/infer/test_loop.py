"""The loop's promises: monotone, deterministic, honest about how it ended."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import klimb
from klimb import latents, methods, sites, steps
from klimb.infer import Status
from klimb.infer.newton import _scaled_products

RNG = np.random.default_rng(1)
X = RNG.standard_normal((50, 3))
Y = (RNG.random(50) < 0.5) * 1


def fit(**options):
    return klimb.infer(latents.Weights(X), sites.Logistic(), Y, **options)


def test_history_tells_what_happened():
    result = fit()
    history = result.history
    assert len(history) == result.n_iter + 1
    assert history.rule[0] == "start"
    assert history.bound[-1] == result.bound
    assert history.stationarity[-1] <= 1e-6
    assert (np.diff(history.seconds) >= 0).all()
    assert (history.n_factor >= 1).all()
    assert (history.n_oracle >= 1).all()
    assert (history.step > 0).all()
    assert history[0].number == 0
    assert "CONVERGED" in repr(result)


def test_reaching_max_iter_is_a_status_with_advice():
    result = fit(max_iter=1)
    assert result.status is Status.MAX_ITER
    assert not result.converged
    assert result.n_iter == 1
    assert "max_iter" in result.status.advice


def test_callback_sees_every_iteration_and_can_stop():
    seen = []
    full = fit(callback=seen.append)
    assert [row.number for row in seen] == list(range(full.n_iter))  # all but the one that converged
    stopped = fit(callback=lambda row: row.number < 2)
    assert stopped.status is Status.STOPPED
    assert stopped.n_iter == 2


def test_results_are_deterministic():
    one, other = fit(), fit()
    np.testing.assert_array_equal(one.posterior.a, other.posterior.a)
    np.testing.assert_array_equal(one.history.bound, other.history.bound)


def test_infer_is_a_function_and_a_package():
    assert "latent" in inspect.signature(klimb.infer).parameters
    assert "Fit the Gaussian q" in klimb.infer.__doc__
    from klimb.infer.loop import infer

    assert infer(latents.Weights(X), sites.Logistic(), Y).bound == fit().bound


def test_every_status_has_advice():
    for status in Status:
        assert len(status.advice) > 20


@given(st.integers(0, 10_000), st.sampled_from(sorted(sites.SITES)), st.floats(-3, 4), st.booleans())
def test_the_bound_never_falls_and_convergence_is_true(seed, name, log_variance, kernel):
    """Random problems for every site that needs no parameters beyond small ones."""
    rng = np.random.default_rng(seed)
    site, y = _random_data(name, rng, 12)
    Z = rng.standard_normal((12, 3))
    variance = 10.0**log_variance
    latent = latents.Kernel(variance * Z @ Z.T) if kernel else latents.Weights(Z, cov=variance)
    result = klimb.infer(latent, site, y, max_iter=200)
    bounds = result.history.bound
    assert np.diff(bounds).min(initial=0.0) >= -1e-9 * (1 + np.abs(bounds).max())
    if result.converged:
        e = site.expect(y, result.posterior.m, result.posterior.v)
        sd = np.sqrt(result.posterior.v)
        assert (sd * np.abs(result.posterior.a + e.alpha)).max() <= 1e-5
        assert (result.posterior.v * np.abs(result.posterior.gamma - e.gamma)).max() <= 1e-5
    else:
        assert not site.log_concave or result.history.stationarity[-1] < 1e-2, (result, result.history.rule)


def _random_data(name, rng, n):
    cls = sites.SITES[name]
    count = rng.poisson(3.0, n).astype(float)
    made = {
        "Logistic": lambda: (cls(), rng.integers(0, 2, n)),
        "Probit": lambda: (cls(), rng.integers(0, 2, n)),
        "CLogLog": lambda: (cls(), rng.integers(0, 2, n)),
        "Binomial": lambda: (cls(10), rng.integers(0, 11, n)),
        "Poisson": lambda: (cls(), count),
        "NegativeBinomial": lambda: (cls(2.0), count),
        "Exponential": lambda: (cls(), rng.exponential(size=n)),
        "Gamma": lambda: (cls(2.0), rng.gamma(2.0, size=n)),
        "Weibull": lambda: (cls(1.5), rng.weibull(1.5, n)),
        "Gaussian": lambda: (cls(0.5), rng.standard_normal(n)),
        "Laplace": lambda: (cls(0.5), rng.standard_normal(n)),
        "StudentT": lambda: (cls(3.0, 0.5), rng.standard_t(2, n)),
        "ExponentialPower": lambda: (cls(0.5, 1.3), rng.standard_normal(n)),
        "Sech2": lambda: (cls(0.3), rng.standard_normal(n)),
        "StochasticVolatility": lambda: (cls(), rng.standard_normal(n)),
        "Ordinal": lambda: (cls([-1.0, 0.0, 1.5]), rng.integers(0, 4, n)),
        "Beta": lambda: (cls(5.0), rng.beta(2.0, 3.0, n)),
    }
    return made[name]()


def test_literal_rules_say_how_they_fail():
    wide = latents.Weights(3 * X)
    counts = np.arange(50.0) % 4
    poisson = klimb.infer(wide, sites.Poisson(), counts, step=steps.Proximal(0.25))
    assert poisson.status is Status.DIVERGED
    assert "Natural" in poisson.status.advice
    assert klimb.infer(wide, sites.Poisson(), counts).converged
    noise = np.random.default_rng(0).standard_t(2, 50)
    latent, site, y = latents.Weights(X, cov=100.0), sites.StudentT(3.0, 0.1), X @ [1, -1, 1.0] + 0.5 * noise
    student = klimb.infer(latent, site, y, step=steps.FullNatural())
    assert student.status in (Status.IMPROPER, Status.DIVERGED)
    assert klimb.infer(latent, site, y).converged


def test_where_the_operator_alternates_the_certificate_stays_open():
    """One zero count, prior variance 25: T(V) jumps between two values for ever, V* between them ([S] Theorem 1)."""
    latent = latents.Weights(np.ones((1, 1)), cov=25.0)
    result = klimb.infer(latent, sites.Poisson(), [0.0], tol=1e-10)
    found = methods.certificate(result, sites.Poisson(), [0.0], max_iter=400)
    assert found.lower[0] < 0.1 * result.posterior.v[0]
    assert found.upper[0] > 2.0 * result.posterior.v[0]
    assert found.gap > 0.9
    assert found.n_iter < 400  # nothing moves any more


@pytest.mark.parametrize("variance", [0.01, 0.3, 1.0, 9.0])
def test_certificate_encloses_the_best_variances(variance):
    rng = np.random.default_rng(4)
    Z = rng.standard_normal((20, 3))
    y = rng.poisson(np.exp(0.3 * Z[:, 0])).astype(float)
    latent = latents.Weights(Z, cov=variance)
    result = klimb.infer(latent, sites.Poisson(), y, tol=1e-10)
    found = methods.certificate(result, sites.Poisson(), y)
    v = result.posterior.v
    assert (found.lower <= v * (1 + 1e-8)).all()
    assert (v <= found.upper * (1 + 1e-8)).all()
    if variance <= 0.3:
        assert found.gap < 1e-6


@pytest.mark.parametrize(("site", "y", "variance"), [
    (sites.Poisson(), [0.0], 9.0), (sites.Laplace(0.1), [5.0, 1.3, 2.0], 4.0), (sites.Logistic(), [1, 1, 1], 100.0)])
def test_a_cycle_of_two_is_named(site, y, variance):
    """From the prior the natural step of length 1 may jump between two states for ever."""
    latent = latents.Weights(np.ones((len(y), 1)), cov=variance)
    result = klimb.infer(latent, site, y, step=steps.FullNatural())
    assert result.status is Status.CYCLE, result
    assert "Natural" in result.status.advice
    assert klimb.infer(latent, site, y).converged


def test_batch_fixed_point_notes_a_cycle_of_the_operator_and_leaves_it():
    """At a fixed mean T(V) alternates; the step of the mean gets it out of that ([S] section 4)."""
    latent = latents.Weights(np.ones((1, 1)), cov=25.0)
    result = klimb.infer(latent, sites.Poisson(), [3.0], step=steps.FixedPoint(batch=True))
    assert result.converged
    assert any("cycle of two" in note for note in result.notes)
    assert abs(result.bound - klimb.infer(latent, sites.Poisson(), [3.0]).bound) < 1e-6


def test_clipping_changes_the_fixed_point_and_says_so():
    rng = np.random.default_rng(9)
    y = X @ [1.0, -1.0, 0.5] + 0.1 * rng.standard_normal(50)
    y[:5] += 3.0
    latent, site = latents.Weights(X), sites.StudentT(3.0, 0.1)
    free = klimb.infer(latent, site, y)
    clipped = klimb.infer(latent, site, y, step=steps.FixedPoint(negative="clip", start="data"), max_iter=300)
    assert clipped.bound < free.bound
    assert any("zero" in note for note in clipped.notes)
    assert not clipped.converged
    graded = klimb.infer(latent, site, y, step=steps.FixedPoint(negative="gradient"), max_iter=300)
    assert graded.converged
    assert abs(graded.bound - free.bound) < 1e-8
    assert any("gradient steps" in note for note in graded.notes)


def test_the_literal_rules_do_not_drift():
    """From a prior under which e^f averages 1e9, a loses digits; K a must be m - mu again at the end."""
    rng = np.random.default_rng(2)
    Z = np.column_stack([np.ones(400), 2.5 * rng.standard_normal((400, 3))])
    y = rng.poisson(np.exp(Z @ [1.5, 0.3, -0.2, 0.1])).astype(float)
    latent = latents.Weights(Z, cov=0.7)
    best = klimb.infer(latent, sites.Poisson(), y, tol=1e-8)
    for step in (steps.FixedPoint(), steps.FixedPoint(batch=True), steps.FullNatural()):
        result = klimb.infer(latent, sites.Poisson(), y, step=step, max_iter=2000)
        assert result.converged, (step, result)
        assert abs(result.bound - best.bound) < 1e-7
        np.testing.assert_allclose(latent.mvm(result.posterior.a), result.posterior.m, rtol=1e-6, atol=1e-8)


def test_one_latent_may_serve_several_threads():
    from concurrent.futures import ThreadPoolExecutor

    rng = np.random.default_rng(5)
    Z = rng.standard_normal((120, 6))
    labels = [rng.integers(0, 2, 120) for _ in range(12)]
    for latent in (latents.Weights(Z), latents.Kernel(Z @ Z.T)):
        alone = [klimb.infer(latent, sites.Logistic(), y).bound for y in labels]
        with ThreadPoolExecutor(4) as pool:
            together = list(pool.map(lambda y, latent=latent: klimb.infer(latent, sites.Logistic(), y).bound, labels))
        np.testing.assert_array_equal(alone, together)


@pytest.mark.parametrize(("variance", "seed", "beta"), [(1.0, 4, 1.0), (10.0, 3, 0.25), (100.0, 0, 1.0)])
def test_a_diverging_rule_ends_without_a_warning(variance, seed, beta):
    """The proximal step on Poisson counts runs to infinity; that is a status, no overflow."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((60, 3))
    K = klimb.kernels.RBF(variance=variance).gram(X)
    y = rng.poisson(np.exp(X[:, 0]))
    root = np.linalg.cholesky(K + 1e-9 * np.eye(60))
    for latent in (klimb.latents.Kernel(K), klimb.latents.Weights(root, cov=variance, form="dual")):
        result = klimb.infer(latent, klimb.sites.Poisson(), y, step=klimb.steps.Proximal(beta), max_iter=300)
        assert result.status.name in ("DIVERGED", "IMPROPER", "CYCLE", "MAX_ITER")


def test_products_with_no_site_to_square_say_nothing(capfd):
    root = np.random.default_rng(0).standard_normal((4, 2))
    u = np.arange(8.0)
    product = _scaled_products(latents.Weights(root).factor(np.zeros(4)), np.ones(4), np.zeros(4, dtype=bool))
    found = product(u)
    np.testing.assert_allclose(found, np.concatenate([root @ (root.T @ u[:4]), 0.5 * u[4:]]), rtol=1e-5)
    assert capfd.readouterr() == ("", "")
