"""Cases on which plain iterations fail: each must reach the optimum with default settings."""

from __future__ import annotations

import numpy as np
import pytest

import klimb
from klimb import latents, methods, sites

RNG = np.random.default_rng(11)
X = RNG.standard_normal((100, 3))
SEPARABLE = np.sign(X[:, 0] + 0.1 * X[:, 1])
LABELS = np.where(RNG.random(100) < 1 / (1 + np.exp(-X @ [1, -1, 0.5])), 1, 0)
COUNTS = RNG.poisson(np.exp(X @ [0.5, 0.2, 0.1]))
INPUTS = np.tile(RNG.random(50) * 5, 2)  # every input twice
K = np.exp(-0.5 * (INPUTS[:, None] - INPUTS) ** 2)
OUTLIERS = X @ [1, -1, 0.5] + 0.1 * RNG.standard_normal(100)
OUTLIERS[:10] += 3.0  # 30 sd
WAVE = np.where(np.sin(3 * INPUTS) > 0, 1, 0)

HARD = {
    "five zero counts": (lambda: latents.Weights(np.ones((5, 1)), cov=25.0), sites.Poisson(), np.zeros(5)),
    "one count of 1e6": (lambda: latents.Weights(np.ones((1, 1)), cov=25.0), sites.Poisson(), [1e6]),
    "one count of 1e6, narrow prior": (lambda: latents.Weights(np.ones((1, 1)), cov=0.01), sites.Poisson(), [1e6]),
    "separable, variance 100": (lambda: latents.Weights(X, cov=100.0), sites.Logistic(), SEPARABLE),
    "separable, variance 1e8": (lambda: latents.Weights(X, cov=1e8), sites.Logistic(), SEPARABLE),
    "separable, variance 1e8, dual": (lambda: latents.Weights(X, cov=1e8, form="dual"), sites.Logistic(), SEPARABLE),
    "single class": (lambda: latents.Weights(X, cov=100.0), sites.Logistic(), np.ones(100)),
    "single class, intercept, 1e6": (
        lambda: latents.Weights(np.c_[np.ones(100), X], cov=1e6), sites.Logistic(), np.zeros(100)),
    "columns scaled by 1e8 and 1e-8": (lambda: latents.Weights(X * [1e8, 1e-8, 1.0]), sites.Logistic(), LABELS),
    "scaled columns, counts": (lambda: latents.Weights(X * [1e8, 1e-8, 1.0]), sites.Poisson(), COUNTS),
    "duplicate and zero columns": (
        lambda: latents.Weights(np.c_[X, X[:, 0], np.zeros(100)], cov=1e6), sites.Logistic(), LABELS),
    "outliers at 30 sd": (lambda: latents.Weights(X, cov=10.0), sites.StudentT(3.0, 0.1), OUTLIERS),
    "outliers, kernel": (lambda: latents.Kernel(10 * X @ X.T), sites.StudentT(3.0, 0.1), OUTLIERS),
    "GP with duplicate inputs": (lambda: latents.Kernel(100 * K), sites.Logistic(), WAVE),
    "GP, duplicates that disagree": (
        lambda: latents.Kernel(4 * K), sites.StudentT(3.0, 0.1), np.sin(INPUTS) + 5 * (np.arange(100) >= 50)),
    "wide Poisson GP": (lambda: latents.Kernel(400 * K), sites.Poisson(), RNG.poisson(np.exp(2 * np.sin(INPUTS)))),
    "very wide Poisson GP": (lambda: latents.Kernel(1e4 * K), sites.Poisson(), RNG.poisson(np.exp(np.sin(INPUTS)))),
    "sharp Laplace GP": (lambda: latents.Kernel(100 * K), sites.Laplace(0.01), np.sin(INPUTS) + 0.1 * X[:, 0]),
    "one row": (lambda: latents.Weights([[2.0]]), sites.Logistic(), [1]),
    "one weight held": (lambda: latents.Weights(X, mean=1.0, cov=[0.0, 1.0, 1.0]), sites.Logistic(), LABELS),
    "all weights held": (lambda: latents.Weights(X, mean=1.0, cov=0.0), sites.Logistic(), LABELS),
    "far more weights than data": (
        lambda: latents.Weights(np.random.default_rng(0).standard_normal((30, 2000)), cov=10.0), sites.Logistic(),
        LABELS[:30]),
    "an empty row": (lambda: latents.Weights(np.where(np.arange(100)[:, None] == 3, 0.0, X), cov=1e4), sites.Logistic(),
                     SEPARABLE),
    "a known site of a kernel": (
        lambda: latents.Kernel(100 * K * np.outer(np.arange(100) != 3, np.arange(100) != 3)), sites.Logistic(), WAVE),
    "tiny variance": (lambda: latents.Weights(X, cov=1e-12), sites.Logistic(), LABELS),
    "prior mean far off": (lambda: latents.Weights(np.ones((3, 1)), mean=30.0), sites.Poisson(), [1, 2, 3]),
}


@pytest.mark.parametrize("name", HARD)
def test_converges_by_itself_and_never_goes_down(name):
    build, site, y = HARD[name]
    result = klimb.infer(build(), site, y)
    assert result.converged, result
    assert result.history.stationarity[-1] <= 1e-6
    rounding = 1e-10 * (1 + np.abs(result.history.bound).max())
    assert np.diff(result.history.bound).min(initial=0.0) >= -rounding
    assert (result.posterior.v >= 0).all()
    assert result.history.n_factor.sum() <= 100


# Where L-BFGS on (mean, Cholesky factor) can get there at all, it finds the same optimum.
@pytest.mark.parametrize("name", [
    "five zero counts", "one count of 1e6, narrow prior", "separable, variance 100", "single class",
    "outliers at 30 sd", "duplicate and zero columns", "one row", "prior mean far off"])
def test_agrees_with_an_independent_optimiser(name):
    build, site, y = HARD[name]
    result = klimb.infer(build(), site, y, tol=1e-9)
    baseline = methods.cholesky_gradient(build(), site, y, tol=1e-5)
    assert baseline.history[-2].bound <= result.bound + 1e-7 * (1 + abs(result.bound))
    assert baseline.history[-2].bound >= result.bound - 1e-4 * (1 + abs(result.bound))


def test_one_weight_cases_against_a_grid_search():
    """Five zero counts with prior N(0, 25): the bound in (m, log v) on a fine grid and then by a simplex."""
    from scipy.optimize import minimize

    result = klimb.infer(latents.Weights(np.ones((5, 1)), cov=25.0), sites.Poisson(), np.zeros(5), tol=1e-10)

    def negative(theta):
        m, v = theta[0], np.exp(theta[1])
        return 5 * np.exp(m + v / 2) + 0.5 * (v / 25 + m**2 / 25 - 1 + np.log(25) - theta[1])

    grid = min((negative((m, u)), m, u) for m in np.linspace(-15, 3, 73) for u in np.linspace(-4, 4, 65))
    options = {"xatol": 1e-10, "fatol": 1e-13, "maxiter": 2000}
    found = minimize(negative, grid[1:], method="Nelder-Mead", options=options)
    assert abs(result.bound + found.fun) < 1e-9


def test_conflicting_clusters_choose_a_side():
    """Between two clusters there is a poor stationary point; the optimum believes one of them."""
    y = np.r_[np.full(20, -5.0), np.full(20, 5.0)] + 0.1 * RNG.standard_normal(40)
    latent = latents.Weights(np.ones((40, 1)), cov=100.0)
    result = klimb.infer(latent, sites.StudentT(3.0, 0.1), y)
    assert result.converged
    assert abs(abs(result.posterior.mean[0]) - 5.0) < 0.2
    assert result.posterior.gamma.min() < 0  # the other cluster's sites
    # no better one on a grid of (m, sd)
    site = sites.StudentT(3.0, 0.1)
    best = max(
        site.expect(y, np.full(40, m), np.full(40, s * s)).value.sum()
        - 0.5 * (s * s / 100 + m * m / 100 - 1 + np.log(100) - 2 * np.log(s))
        for m in np.linspace(-8, 8, 81) for s in 10.0 ** np.linspace(-3, 1, 25))
    assert result.bound >= best


@pytest.mark.parametrize("name", ["sonar", "ionosphere"])
@pytest.mark.parametrize("log_lengthscale", [-1.0, 2.0])
def test_widest_kernels_of_the_papers_grid(load_data, name, log_lengthscale):
    data = load_data(name)
    sd = data.X.std(0)
    Z = (data.X - data.X.mean(0)) / np.where(sd > 0, sd, 1.0)
    distance = np.maximum((Z**2).sum(1)[:, None] + (Z**2).sum(1) - 2 * Z @ Z.T, 0.0)
    kernel = np.exp(12.0 - 0.5 * distance / np.exp(2 * log_lengthscale))
    result = klimb.infer(latents.Kernel((kernel + kernel.T) / 2), sites.Logistic(), data.y)
    assert result.converged
    assert result.history.n_factor.sum() <= 60


def test_wide_random_kernels_take_few_factorisations():
    """The same without data: amplitudes from 1 to e^12, lengthscales from short to long."""
    rng = np.random.default_rng(2)
    Z = rng.standard_normal((80, 5))
    y = np.where(Z[:, 0] * Z[:, 1] + 0.5 * rng.standard_normal(80) > 0, 1, 0)
    distance = ((Z[:, None] - Z) ** 2).sum(-1)
    worst = 0
    for log_l in (-1.0, 0.0, 1.0, 2.0, 4.0, 6.0):
        for log_s in (0.0, 3.0, 6.0):
            kernel = np.exp(2 * log_s - 0.5 * distance / np.exp(2 * log_l))
            result = klimb.infer(latents.Kernel(kernel), sites.Logistic(), y)
            assert result.converged
            worst = max(worst, int(result.history.n_factor.sum()))
    assert worst <= 30


@pytest.mark.parametrize("seed", range(4))
def test_nearly_constant_wide_kernels_converge_at_the_edge_of_rounding(seed):
    """Amplitude e^12 and lengthscale e^6: K a cancels to eleven digits, and the line search must know that."""
    rng = np.random.default_rng(seed)
    Z = rng.standard_normal((120, 20))
    y = np.where(Z[:, 0] + Z[:, 1] ** 2 - 1 + 0.5 * rng.standard_normal(120) > 0, 1, 0)
    distance = np.maximum((Z**2).sum(1)[:, None] + (Z**2).sum(1) - 2 * Z @ Z.T, 0.0)
    for log_l in (5.0, 5.5, 6.0):
        K = np.exp(12.0 - 0.5 * distance / np.exp(2 * log_l))
        result = klimb.infer(latents.Kernel((K + K.T) / 2), sites.Logistic(), y)
        assert result.converged, (log_l, result)


def test_a_very_wide_rough_poisson_process_stays_honest():
    """Slow, and perhaps not there in time; but the bound only rises, and it is one: below the evidence of any q."""
    rng = np.random.default_rng(0)
    t = np.sort(rng.random(80) * 3)
    y = rng.poisson(np.exp(np.sin(t)))
    scaled = np.sqrt(3) * np.abs(t[:, None] - t) / 0.1
    result = klimb.infer(latents.Kernel(1e4 * (1 + scaled) * np.exp(-scaled)), sites.Poisson(), y, max_iter=60)
    assert result.bound < 0  # probabilities of counts
    assert np.diff(result.history.bound).min() >= -1e-8
    assert result.converged or result.status.name in ("MAX_ITER", "STALLED")


def test_correlations_that_are_none_are_zero_and_change_nothing() -> None:
    """Products of numbers around 1e-200 are subnormal: a factorisation of them took thirty times as long."""
    rng = np.random.default_rng(3)
    x = rng.uniform(0.0, 30.0, 60)
    K = 4.0 * np.exp(-0.5 * (x[:, None] - x) ** 2 / 0.6**2)
    given, latent = K.copy(), klimb.latents.Kernel(K)
    faint = (K > 0) & (K < 4e-50)  # correlations below 1e-50
    assert faint.any()
    assert not latent.K[faint].any()
    np.testing.assert_array_equal(latent.K[~faint], K[~faint])
    np.testing.assert_array_equal(K, given)  # the user's matrix is theirs
    whole = klimb.latents.Kernel(np.where(faint, 0.0, K))
    plain = np.exp(-np.abs(x[:, None] - x))
    assert klimb.latents.Kernel(plain).K is plain  # nothing to do, nothing copied
    gamma = rng.gamma(1.0, size=60) * 1e6
    exact = np.linalg.inv(np.linalg.inv(K + 1e-9 * np.eye(60)) + np.diag(gamma))
    found = klimb.latents.Kernel(K + 1e-9 * np.eye(60)).factor(gamma).variances()
    assert found == pytest.approx(np.diagonal(exact), rel=1e-6)
    y = rng.random(60) < 0.5
    assert klimb.infer(latent, klimb.sites.Logistic(), y).bound == klimb.infer(whole, klimb.sites.Logistic(), y).bound


def test_a_start_far_from_the_data_is_left_for_a_better_one() -> None:
    """Sites of a fit to another shape: t^shape e^f overflows under them, and a climb from there lost all digits."""
    times = 100.0 + 2.0 * X[:, 0] + 0.1 * np.arange(100) % 3
    latent = latents.Weights(np.c_[np.ones(100), X], cov=np.array([1e6, 1.0, 1.0, 1.0]))
    other = klimb.infer(latent, sites.Weibull(33.0), times).posterior
    cold, warm = (klimb.infer(latent, sites.Weibull(150.0), times, start=start) for start in (None, other))
    assert warm.converged
    assert warm.n_iter <= cold.n_iter + 1
    assert warm.bound == pytest.approx(cold.bound, abs=1e-6)
    assert warm.posterior.kl > 0.0
