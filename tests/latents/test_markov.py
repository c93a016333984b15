"""Matern processes over time: equal to the dense kernel, exact at extreme steps, linear in the number of sites."""

from __future__ import annotations

import tracemalloc
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import klimb
from klimb import kernels, latents, sites
from klimb.errors import InputError, NotPositiveDefiniteError
from klimb.infer.problem import Problem
from klimb.latents.markov import LARGEST_DENSE
from klimb.linalg import chains, matern

RNG = np.random.default_rng(11)
N = 60
CLASSES = {0.5: kernels.Matern12, 1.5: kernels.Matern32, 2.5: kernels.Matern52}
# name -> variance, lengthscale, smoothness
PROCESSES = {
    "matern12": (2.0, 1.0, 0.5),
    "matern32": (1.3, 0.8, 1.5),
    "matern52": (0.7, 1.5, 2.5),
    "rough last": ((1.0, 0.5), (2.0, 0.3), (2.5, 0.5)),
    "two of a kind": ((1.0, 2.0), (0.5, 3.0), (2.5, 2.5)),
    "three": ((1.0, 0.2, 2.0), (0.5, 0.1, 3.0), (1.5, 0.5, 2.5)),
}
# unsorted, with repeated times
TIMES = RNG.permutation(np.concatenate([RNG.random(N - 9) * 6, np.repeat(RNG.random(3) * 6, 3)]))
NEW = np.concatenate([[-3.0, 9.0, 50.0, -3.0], TIMES[:6], RNG.random(20) * 6])
GAMMAS = {
    "positive": RNG.gamma(1.0, size=N),
    "with zeros": np.where(np.arange(N) % 3 == 0, 0.0, RNG.gamma(1.0, size=N)),
    "all zero": np.zeros(N),
    "signed": np.where(np.arange(N) % 7 == 0, -0.05, RNG.gamma(2.0, size=N)),
    "uneven": 10.0 ** np.linspace(-14, 6, N),
}
F = np.sin(TIMES)
SITES = {
    "logistic": (sites.Logistic(), (F + 0.5 * RNG.standard_normal(N) > 0).astype(int)),
    "poisson": (sites.Poisson(), RNG.poisson(np.exp(F))),
    "gaussian": (sites.Gaussian(0.2), F + 0.2 * RNG.standard_normal(N)),
    "student-t": (sites.StudentT(4.0, 0.1), F + 0.1 * RNG.standard_t(1.5, N)),
}


def gram(process, times):
    arguments = zip(*(np.broadcast_arrays(*map(np.atleast_1d, process))), strict=True)
    return sum(CLASSES[nu](variance=v, lengthscale=l).gram(times[:, None]) for v, l, nu in arguments)


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("process", PROCESSES)
def test_factor_against_dense_algebra(process, gamma):
    latent, K, g = latents.Markov(TIMES, *PROCESSES[process]), gram(PROCESSES[process], TIMES), GAMMAS[gamma]
    V = np.linalg.solve(np.eye(N) + K * g, K)
    factor = latent.factor(g)
    # Precise sites (1e6) condition the dense algebra as well.
    atol = 1e-8 if gamma == "uneven" else 1e-12
    np.testing.assert_allclose(factor.variances(), np.diag(V), atol=atol)
    np.testing.assert_allclose(factor.logdet, np.linalg.slogdet(np.eye(N) + K * g)[1], atol=10 * atol)
    b = np.random.default_rng(0).standard_normal(N)
    np.testing.assert_allclose(factor.smooth(b), V @ b, atol=10 * atol)
    np.testing.assert_allclose(factor.energy(b), b @ V @ b, atol=10 * atol)
    np.testing.assert_allclose(factor.covariance(), V, atol=atol)
    x, Kx = factor.solve(b)
    np.testing.assert_allclose(x + g * (K @ x), b, atol=1e-12 + 1e-13 * g.max())
    np.testing.assert_allclose(Kx, K @ x, atol=1e-11)
    np.testing.assert_allclose(latent.mvm(b), K @ b, atol=1e-12)
    np.testing.assert_allclose(latent.prior_variances, np.diag(K), atol=1e-14)
    np.testing.assert_allclose(latent.gram(), K, atol=1e-13)
    Z = latent.design()
    np.testing.assert_allclose(Z @ Z.T, K, atol=1e-7)


@pytest.mark.parametrize("site", SITES)
@pytest.mark.parametrize("process", PROCESSES)
def test_fit_and_prediction_equal_the_dense_kernel(process, site):
    K = gram(PROCESSES[process], np.concatenate([TIMES, NEW]))
    markov, dense = latents.Markov(TIMES, *PROCESSES[process], mean=0.3), latents.Kernel(K[:N, :N], mean=0.3)
    one, other = (klimb.infer(latent, *SITES[site], tol=1e-9) for latent in (markov, dense))
    assert one.converged
    assert other.converged
    np.testing.assert_allclose(one.bound, other.bound, atol=1e-8)
    for name in ("a", "gamma", "m", "v", "kl", "mean"):
        np.testing.assert_allclose(getattr(one.posterior, name), getattr(other.posterior, name), atol=1e-8)
    np.testing.assert_allclose(one.posterior.covariance(), other.posterior.covariance(), atol=1e-8)
    found = markov.predict(one.posterior, NEW, mean=0.3)
    wanted = dense.predict(other.posterior, K[N:, :N], np.diag(K)[N:], mean=0.3)
    np.testing.assert_allclose(found, wanted, atol=1e-8)
    np.testing.assert_allclose(found[1][4:10], one.posterior.v[:6], rtol=1e-11)  # new times at sites


def test_signed_sites_that_only_later_ones_make_proper():
    """A site of negative precision that outweighs the prior, before a precise one that mends it."""
    times, gamma = np.array([0.0, 0.1, 0.2]), np.array([-3.0, 20.0, 5.0])
    for smoothness in (0.5, 1.5, 2.5):
        latent = latents.Markov(times, 1.0, 1.0, smoothness)
        K = latent.gram()
        V = np.linalg.inv(np.linalg.inv(K) + np.diag(gamma))
        assert (np.linalg.eigvalsh(V) > 0).all()
        factor = latent.factor(gamma)
        np.testing.assert_allclose(factor.variances(), np.diag(V), rtol=1e-10)
        np.testing.assert_allclose(factor.logdet, np.linalg.slogdet(np.eye(3) + K * gamma)[1], rtol=1e-10)
        with pytest.raises(NotPositiveDefiniteError):
            latent.factor(np.array([-30.0, 20.0, 5.0]))


@given(st.integers(0, 10**6))
def test_improper_posteriors_are_told_from_proper_ones(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 12))
    times = rng.choice([0.0, 0.1, 0.11, 0.5, 2.0, 2.1, 9.0], n)
    latent = latents.Markov(times, 1.0, float(rng.choice([0.1, 1.0, 10.0])), float(rng.choice([0.5, 1.5, 2.5])))
    gamma = rng.standard_normal(n) * rng.choice([0.3, 1.0, 10.0])
    K = latent.gram()
    values, vectors = np.linalg.eigh(K)
    half = vectors * np.sqrt(np.maximum(values, 0.0))
    smallest = np.linalg.eigvalsh(np.eye(n) + half.T @ (gamma[:, None] * half)).min()
    if abs(smallest) < 1e-6:
        return
    if smallest < 0:
        with pytest.raises(NotPositiveDefiniteError):
            latent.factor(gamma)
    else:
        V = half @ np.linalg.solve(np.eye(n) + half.T @ (gamma[:, None] * half), half.T)
        np.testing.assert_allclose(latent.factor(gamma).variances(), np.diag(V), rtol=1e-6, atol=1e-9)


STEPS = {
    "dense": np.arange(16) * 1e-3,
    "tiny": np.arange(16) * 1e-9,
    "huge gaps": np.cumsum(10.0 ** np.linspace(-3, 6, 16)),
    "all scales": np.cumsum(10.0 ** RNG.uniform(-9, 1, 16)),
    "near pairs": np.repeat(np.arange(8) * 0.3, 2) + np.tile([0.0, 1e-7], 8),
    "equal": np.zeros(16),
}


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("process", ["matern12", "matern32", "matern52", "rough last"])
def test_digits_at_every_step_length(process, steps):
    """Against 50 digits: variances to 1e-12 of their size, where dense algebra has 1e-6 to 1e-12."""
    times = STEPS[steps]
    latent = latents.Markov(times, *PROCESSES[process])
    n = len(times)
    with mpmath.workdps(50):
        K = mpmath.matrix(n, n)
        for sigma2, scale, nu in zip(latent.variance, latent.lengthscale, latent.smoothness, strict=True):
            for i in range(n):
                for j in range(n):
                    s = mpmath.sqrt(2 * nu) * abs(mpmath.mpf(times[i]) - mpmath.mpf(times[j])) / scale
                    K[i, j] += sigma2 * mpmath.exp(-s) * {0.5: 1, 1.5: 1 + s, 2.5: 1 + s + s * s / 3}[nu]
        for gamma in (np.full(n, 1.0), np.full(n, 1e4), np.where(np.arange(n) % 5 == 0, -0.01, 1.0)):
            B = mpmath.eye(n) + K * mpmath.diag(list(map(float, gamma)))
            V = B**-1 * K
            v, logdet = np.array([float(V[i, i]) for i in range(n)]), float(mpmath.log(abs(mpmath.det(B))))
            factor = latent.factor(gamma)
            np.testing.assert_allclose(factor.variances(), v, rtol=1e-12)
            np.testing.assert_allclose(factor.logdet, logdet, atol=2e-11)


@pytest.mark.parametrize("states", [1, 2, 3])
def test_noise_of_a_step_keeps_its_digits(states):
    x = np.array([1e-12, 1e-9, 1e-4, 0.01, 0.3, 1.0, 5.0, 40.0])
    found = matern.noise(states, x)
    with mpmath.workdps(80):
        F = mpmath.matrix(states, states)
        for j in range(states):
            F[states - 1, j] = -mpmath.binomial(states, j)
            if j:
                F[j - 1, j] = 1
        third = mpmath.mpf(1) / 3
        stationary = {1: [[1]], 2: [[1, 0], [0, 1]], 3: [[1, 0, -third], [0, third, 0], [-third, 0, 1]]}
        P = mpmath.matrix(stationary[states])
        for n, step in enumerate(x):
            A = mpmath.expm(F * mpmath.mpf(float(step)), method="taylor")
            Q = P - A * P * A.T
            for i in range(states):
                for j in range(states):
                    assert abs(found[i, j, n] - Q[i, j]) <= 2e-14 * mpmath.sqrt(Q[i, i] * Q[j, j])
    assert (matern.noise(states, np.zeros(1)) == 0).all()
    np.testing.assert_array_equal(matern.transition(states, np.zeros(1))[..., 0], np.eye(states))
    np.testing.assert_array_equal(matern.transition(states, np.array([1e6, 1e300])), 0.0)


@pytest.mark.parametrize("lengthscale", [1e-8, 1e8])
def test_extreme_lengthscales_have_the_right_limits(lengthscale):
    y = SITES["poisson"][1]
    result = klimb.infer(latents.Markov(np.arange(N), 1.0, lengthscale, 2.5), sites.Poisson(), y)
    if lengthscale < 1:
        limit = klimb.infer(latents.Weights(np.eye(N)), sites.Poisson(), y)
    else:
        limit = klimb.infer(latents.Weights(np.ones((N, 1))), sites.Poisson(), y)
    assert result.converged
    np.testing.assert_allclose(result.bound, limit.bound, rtol=1e-6)
    np.testing.assert_allclose(result.posterior.v, limit.posterior.v, rtol=1e-6)


@pytest.mark.parametrize("site", SITES)
@pytest.mark.parametrize("process", PROCESSES)
def test_gradient_against_refits(process, site):
    variance, lengthscale, smoothness = (np.atleast_1d(x).astype(float) for x in PROCESSES[process])

    def fit(theta, start=None):
        scales = np.exp(theta)
        latent = latents.Markov(TIMES, variance * scales[:, 0], lengthscale * scales[:, 1], smoothness)
        return klimb.infer(latent, *SITES[site], tol=1e-10, start=start)

    zero = np.zeros((len(variance), 2))
    here = fit(zero).posterior
    gradient = here.latent.bound_gradient(here)
    for place in np.ndindex(zero.shape):
        step = np.zeros_like(zero)
        step[place] = 1e-4
        slope = (fit(step, here).bound - fit(-step, here).bound) / 2e-4
        np.testing.assert_allclose(gradient[place], slope, atol=1e-5)


def test_samples_have_the_posterior_covariance():
    latent = latents.Markov(TIMES, *PROCESSES["rough last"])
    posterior = klimb.infer(latent, *SITES["student-t"]).posterior
    draws = posterior.sample(20_000, rng=0)
    scale = np.sqrt(posterior.v.max())
    np.testing.assert_allclose(draws.mean(axis=0), posterior.m, atol=0.05 * scale)
    np.testing.assert_allclose(np.cov(draws.T), posterior.covariance(), atol=0.1 * scale**2)
    assert posterior.sample(0).shape == (0, N)


def test_point_estimates_have_no_spread():
    latent = latents.Markov(TIMES)
    posterior = klimb.methods.map_estimate(latent, *SITES["poisson"]).posterior
    assert (latent.predict(posterior, NEW)[1] == 0).all()
    assert (posterior.covariance() == 0).all()
    np.testing.assert_array_equal(posterior.sample(2), [posterior.m] * 2)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_few_sites(n):
    latent = latents.Markov(np.arange(n), 2.0, 1.5, 2.5)
    dense = latents.Kernel(latent.gram())
    one, other = (klimb.infer(each, sites.Poisson(), np.arange(n)) for each in (latent, dense))
    np.testing.assert_allclose(one.bound, other.bound, atol=1e-9)
    m, v = latent.predict(one.posterior, [])
    assert m.shape == v.shape == (0,)
    if n == 1:
        assert latent.bound_gradient(one.posterior).shape == (1, 2)


def test_the_order_of_sites_does_not_matter():
    order = np.argsort(TIMES, kind="stable")
    site, y = SITES["student-t"]
    one = klimb.infer(latents.Markov(TIMES), site, y).posterior
    other = klimb.infer(latents.Markov(TIMES[order][:, None]), site, y[order]).posterior
    np.testing.assert_allclose(one.m[order], other.m, atol=1e-12)
    np.testing.assert_allclose(one.v[order], other.v, rtol=1e-12)


def test_many_sites_in_bounded_memory():
    n = 20_000
    times = np.sort(np.random.default_rng(0).random(n)) * 200
    y = np.random.default_rng(1).poisson(np.exp(np.sin(times)))
    latent = latents.Markov(times, 1.0, 1.0, 2.5)
    result = klimb.infer(latent, sites.Poisson(), y)
    assert result.converged
    assert result.posterior.factorised().covariance() is None
    m, v = latent.predict(result.posterior, times[::100])
    np.testing.assert_allclose(m, result.posterior.m[::100], atol=1e-9)
    np.testing.assert_allclose(v, result.posterior.v[::100], rtol=1e-9)
    assert result.posterior.sample(3, rng=0).shape == (3, n)
    with pytest.raises(InputError, match=f"at most {LARGEST_DENSE} sites.*20000 sites.*predict or sample"):
        result.posterior.covariance()
    with pytest.raises(InputError, match="dense K"):
        latent.design()


def test_coal_mining_disasters(load_data):
    data = load_data("coal")
    latent = latents.Markov(data.X, 1.0, 30.0, 1.5, mean=np.log(data.y.mean()))
    result = klimb.infer(latent, sites.Poisson(), data.y)
    assert result.converged
    rate = np.exp(result.posterior.m)
    assert rate[data.X[:, 0] < 1880].min() > 2 * rate[data.X[:, 0] > 1900].max()  # safety rules of the 1880s
    # 191 dates in 333 bins are the same story
    finer = latents.Markov(data.more["bin_centres"], 1.0, 30.0, 1.5, mean=np.log(191 / 333))
    again = klimb.infer(finer, sites.Poisson(), data.more["bin_counts"])
    assert again.converged
    m, _ = finer.predict(again.posterior, data.X, mean=np.log(191 / 333))
    np.testing.assert_allclose(np.exp(m) * 333 / 112, rate, rtol=0.15)


def test_pound_against_dollar(load_data):
    data = load_data("gbpusd")
    latent = latents.Markov(data.X, 1.0, 60.0, 0.5, mean=np.log(np.var(data.y)))
    result = klimb.infer(latent, sites.StochasticVolatility(), data.y)
    assert result.converged
    volatile = np.exp(0.5 * result.posterior.m)
    assert np.corrcoef(volatile, np.abs(data.y))[0, 1] > 0.3
    dense = klimb.infer(latents.Kernel(latent.gram(), mean=latent.mean), sites.StochasticVolatility(), data.y)
    np.testing.assert_allclose(result.bound, dense.bound, atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (([],), "times must have at least one entry.*Pass one time per site"),
        (([0.0, np.nan],), "times must be finite.*index 1"),
        ((np.zeros((3, 2)),), r"one dimension.*\(3, 2\).*Kernel"),
        (("a",), "array of numbers"),
        (([0.0], 0.0), "variance must be positive.*0 at index 0"),
        (([0.0], [1.0, 2.0], [1.0, -1.0]), "lengthscale must be positive.*-1 at index 1"),
        (([0.0], 1.0, 1.0, 2.0), "smoothness must be 0.5, 1.5 or 2.5; got 2 at index 0"),
        (([0.0], [1.0, 2.0], [1.0, 2.0, 3.0]), "sequences of one length"),
        (([0.0], 1.0, 1.0, 1.5, [0.0, 1.0]), "mean must be a number"),
    ],
)
def test_bad_input(arguments, words):
    with pytest.raises(InputError, match=words):
        latents.Markov(*arguments)


def test_problem_counts_are_those_of_any_latent():
    problem = Problem(latents.Markov(TIMES), *SITES["poisson"])
    problem.factor(np.ones(N))
    assert problem.n_factor == 1
    with pytest.raises(InputError, match="times_new must have one dimension"):
        latents.Markov(TIMES).predict(klimb.infer(latents.Markov(TIMES), *SITES["poisson"]).posterior, np.zeros((2, 2)))


KERNEL = kernels.Matern12(variance=0.5, lengthscale=0.4) + kernels.Matern52(variance=1.0, lengthscale=2.0)
PARTLY_FIXED = KERNEL.fixed("0.variance", "1.lengthscale")


@pytest.mark.parametrize("site", SITES)
@pytest.mark.parametrize("kernel", [kernels.Matern32(variance=2.0), KERNEL, PARTLY_FIXED])
def test_series_is_the_dense_gaussian_process(kernel, site):
    likelihood, y = SITES[site]
    learn = ("scale",) if site in ("gaussian", "student-t") else ()
    series, dense = (make(kernel, TIMES, likelihood, mean=kernels.means.ConstantMean(0.2), learn=learn)
                     for make in (klimb.series, klimb.gp))
    fit = series.fit(y, hyper="fixed", tol=1e-9)
    found, expected = series.infer(fit.data, tol=1e-9), dense.infer(fit.data, tol=1e-9)
    np.testing.assert_allclose(found.bound, expected.bound, atol=1e-8)
    one, other = series.gradient(found.posterior, fit.data), dense.gradient(expected.posterior, fit.data)
    np.testing.assert_allclose(one, other, atol=1e-6)
    assert series.names == dense.names
    at_new = dense.functionals(dense.prepare(NEW))
    mean, variance = dense.detach(expected.posterior).at(at_new.L, at_new.rest)
    by_chain = series.functionals(series.prepare(NEW))
    m, v = series.detach(found.posterior).at(by_chain.L, by_chain.rest)
    np.testing.assert_allclose((m + by_chain.shift, v), (mean + at_new.shift, variance), atol=1e-8)
    shown, same = fit.predict(NEW, kind="all"), dense.fit(y, hyper="fixed", tol=1e-9).predict(NEW, kind="all")
    for name, values in shown.items():  # what is shown of few times is corrected at both doors
        np.testing.assert_allclose(values, same[name], rtol=1e-6, atol=1e-8)
    assert series.moved(series.at + 0.1).at == pytest.approx(series.at + 0.1)


def test_series_learns_what_made_the_data():
    rng = np.random.default_rng(5)
    times = np.sort(rng.random(3000)) * 300
    truth = latents.Markov(times, 2.0, 5.0, 1.5)
    f = truth.chain.run(np.einsum("ijn,nj->ni", truth.chain.root, rng.standard_normal((3000, 2))))[:, 0]
    model = klimb.series(kernels.Matern32(), times, sites.Poisson(), mean=kernels.means.ConstantMean())
    best = klimb.optimise(model, rng.poisson(np.exp(f - 0.5)))
    assert best.converged
    np.testing.assert_allclose(best.model.at[:2], np.log([2.0, 5.0]), atol=0.5)


def test_series_refuses_what_is_not_a_chain():
    with pytest.raises(InputError, match=r"Matern12, Matern32, Matern52 or a sum.*RBF.*klimb\.gp"):
        klimb.series(kernels.RBF(), TIMES)
    with pytest.raises(InputError, match=r"or a sum.*White"):
        klimb.series(KERNEL + kernels.White(0.1), TIMES)
    with pytest.raises(InputError, match="times must have one dimension"):
        klimb.series(KERNEL, np.zeros((4, 2)))


@pytest.mark.parametrize("process", PROCESSES)
def test_products_with_the_covariance_and_its_square(process):
    times = np.concatenate([TIMES, TIMES[:50] + 0.05])
    factor = latents.Markov(times, *PROCESSES[process]).factor(np.where(np.arange(N + 50) % 9 == 0, -0.02, 1.0))
    V, b = factor.dense(), np.random.default_rng(3).standard_normal(N + 50)
    by_V, by_square = factor.products()
    np.testing.assert_allclose(by_V(b), V @ b, atol=1e-12)
    np.testing.assert_allclose(by_square(b), (V * V) @ b, atol=1e-12)


def test_products_with_squares_of_long_chains_have_the_digits_that_directions_need(monkeypatch):
    times = np.linspace(0.0, 40.0, 6000)
    factor = latents.Markov(times, 1.0, 2.0, 1.5).factor(np.full(6000, 0.7))
    b = np.random.default_rng(3).standard_normal(6000)
    exact = factor.products()[1](b)
    monkeypatch.setattr(chains, "LONG", 1000)
    tracemalloc.start()
    product = factor.products()[1]
    kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert kept < 60 * 6000  # 9 + 3 numbers a time, of 4 bytes
    assert np.abs(product(b) - exact).max() < 1e-5 * np.abs(exact).max()


def test_wide_rough_priors_converge_by_newton_directions():
    """Without them Poisson counts under a rough prior of variance 400 stall after some 300 iterations."""
    rng = np.random.default_rng(0)
    times = np.sort(rng.random(2000)) * 20
    y = rng.poisson(np.exp(np.sin(times)))
    result = klimb.infer(latents.Markov(times, 400.0, 0.01, 0.5), sites.Poisson(), y)
    assert result.converged
    assert "newton" in result.history.rule
    assert result.n_iter < 100


def test_even_times_need_their_steps_once_and_give_the_same_posterior() -> None:
    n, rng = 21_000, np.random.default_rng(0)
    even = klimb.latents.Markov(np.linspace(0.0, 50.0, n), variance=1.3, lengthscale=0.4, smoothness=1.5)
    times = np.linspace(0.0, 50.0, n)
    times[-1] += 1e-3  # one gap is another
    uneven = klimb.latents.Markov(times, variance=1.3, lengthscale=0.4, smoothness=1.5)
    assert not isinstance(even.chain.noise, np.ndarray)
    assert isinstance(uneven.chain.noise, np.ndarray)
    gamma, b = rng.uniform(0.0, 3.0, n), rng.standard_normal(n)
    found, expected = even.factor(gamma), uneven.factor(gamma)
    np.testing.assert_allclose(found.variances()[:-1000], expected.variances()[:-1000], rtol=1e-9)
    np.testing.assert_allclose(found.smooth(b)[:-1000], expected.smooth(b)[:-1000], atol=1e-9)
    np.testing.assert_allclose(found.energy(b), b @ found.smooth(b), rtol=1e-10)
    x, Kx = found.solve(b)
    np.testing.assert_allclose(x + gamma * even.mvm(x), b, atol=1e-10)
    np.testing.assert_array_equal(Kx, even.mvm(x))
    _, by_square = found.products()
    squares = np.array([found.smooth(np.eye(1, n, k)[0])[777] ** 2 for k in (700, 777, 800)])
    np.testing.assert_allclose([by_square(np.eye(1, n, k)[0])[777] for k in (700, 777, 800)], squares, rtol=1e-3)


@pytest.mark.parametrize("smoothness", [[1.5], [0.5, 2.5]])
def test_gradients_over_even_times_are_those_of_differences(smoothness: list[float]) -> None:
    n, rng = 9_000, np.random.default_rng(1)
    t = np.arange(float(n))
    y = rng.poisson(np.exp(np.sin(t / 300.0)))

    def fitted(log_theta: np.ndarray) -> Any:
        variance, scale = np.exp(log_theta.reshape(2, -1))
        return klimb.infer(klimb.latents.Markov(t, variance, scale, smoothness), klimb.sites.Poisson(), y, tol=1e-8)

    k = len(smoothness)
    at = np.concatenate([np.full(k, -1.0), np.linspace(3.0, 4.0, k)])
    q = fitted(at).posterior
    slopes = q.latent.bound_gradient(q).T.ravel()
    for j in range(2 * k):
        step = 1e-3 * np.eye(2 * k)[j]
        difference = (fitted(at + step).bound - fitted(at - step).bound) / 2e-3
        np.testing.assert_allclose(slopes[j], difference, rtol=1e-4, atol=1e-3)
