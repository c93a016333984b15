"""Models with several latent values per datum: the loop, processes, one against the rest."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse

import klimb
from klimb import kernels, latents, methods, sites, steps
from klimb.errors import InputError
from klimb.infer.minibatch import minibatch
from klimb.kernels.means import ConstantMean
from klimb.models.classes import coupled_covariance, one_vs_rest
from klimb.models.evidence import integrate, optimise
from klimb.models.loo import loo
from klimb.models.search import grid

RNG = np.random.default_rng(0)
N, C = 90, 3
X = np.column_stack([np.ones(N), RNG.standard_normal((N, 2))])
F = X @ np.array([[0.5, 1.5, 0.0], [0.0, -1.0, 1.0], [-0.5, 0.0, -1.0]])
Y = np.argmax(F + RNG.gumbel(size=(N, C)), axis=1)
SITE = sites.Softmax(C)


def shared(cov=4.0, n=C):
    return latents.Outputs.shared(latents.Weights(X, cov=cov), n)


def check(result, latent, site, y):
    """Monotone, converged, and stationary by a fresh call of the oracle."""
    bounds = result.history.bound
    assert result.converged, result
    assert np.diff(bounds).min(initial=0.0) >= -1e-9 * (1 + np.abs(bounds).max())
    q = result.posterior
    e = site.oracle(site.validate(y), q.m, q.v)
    assert (np.sqrt(q.v) * np.abs(q.a + e.alpha)).max() <= 2e-6
    assert (q.v * np.abs(q.gamma - e.gamma)).max() <= 2e-6
    np.testing.assert_allclose(q.m, latent.mean + latent.mvm(q.a), atol=1e-6 * (1 + np.abs(q.m).max()))


@pytest.mark.parametrize("cov", [1e-3, 1.0, 100.0, 1e4, 1e6])
def test_weights_converge_for_every_prior(cov):
    latent = shared(cov)
    result = klimb.infer(latent, SITE, Y)
    check(result, latent, SITE, Y)
    assert result.n_iter <= 12


@pytest.mark.parametrize(("cov", "most"), [(1.0, 15), (1e4, 40), (1e6, 60)])
def test_separable_labels(cov, most):
    latent = shared(cov)
    separable = F.argmax(axis=1)
    result = klimb.infer(latent, SITE, separable)
    check(result, latent, SITE, separable)
    assert result.n_iter <= most


@pytest.mark.parametrize("cov", [1.0, 100.0])
def test_a_class_without_data(cov):
    latent, site = shared(cov, 5), sites.Softmax(5)
    result = klimb.infer(latent, site, Y)
    check(result, latent, site, Y)
    p = site.predict(result.posterior.m, result.posterior.v).probabilities()
    assert p[:, 3:].sum(axis=1).mean() < 0.35
    np.testing.assert_allclose(p[:, 3], p[:, 4], atol=1e-5)


def test_one_row():
    latent = latents.Outputs.shared(latents.Weights(X[:1], cov=1e4), C)
    check(klimb.infer(latent, SITE, [2]), latent, SITE, [2])


@pytest.mark.parametrize(("amplitude", "lengthscale"), [(1.0, 0.1), (1.0, 1.0), (100.0, 1.0), (400.0, 0.3)])
def test_kernels_converge(amplitude, lengthscale):
    K = kernels.RBF(variance=amplitude, lengthscale=lengthscale).gram(X[:, 1:])
    latent = latents.Outputs.shared(latents.Kernel(K), C)
    result = klimb.infer(latent, SITE, Y)
    check(result, latent, SITE, Y)
    assert result.n_iter <= 25


def test_many_classes_take_differences_of_the_oracle():
    rng = np.random.default_rng(4)
    y = rng.integers(0, 30, 40)
    K = kernels.RBF(variance=9.0, lengthscale=0.5).gram(X[:40, 1:])
    latent, site = latents.Outputs.shared(latents.Kernel(K), 30), sites.Softmax(30)
    result = klimb.infer(latent, site, y)
    check(result, latent, site, y)


@pytest.mark.parametrize("make", [
    lambda: latents.MeanField(X, cov=4.0), lambda: latents.Kernel(4.0 * X @ X.T),
    lambda: latents.Weights(scipy.sparse.csr_matrix(X), cov=4.0), lambda: latents.Weights(X, cov=4.0, form="dual"),
    lambda: latents.Markov(np.arange(N) / 10), lambda: latents.Weights(X, mean=0.5, cov=4.0, slack=0.2),
    lambda: latents.Inducing(np.eye(3), X.T, (X**2).sum(axis=1) + 0.1, mean=0.3)],
    ids=["mean field", "kernel", "sparse", "dual", "markov", "slack and mean", "inducing"])
def test_every_latent_can_be_a_part(make):
    latent = latents.Outputs.shared(make(), C)
    check(klimb.infer(latent, SITE, Y), latent, SITE, Y)


def test_designs_kernels_and_the_dual_form_agree():
    bounds = [klimb.infer(latents.Outputs.shared(part, C), SITE, Y).bound
              for part in (latents.Weights(X, cov=4.0), latents.Weights(scipy.sparse.csr_matrix(X), cov=4.0),
                           latents.Weights(X, cov=4.0, form="dual"), latents.Kernel(4.0 * X @ X.T))]
    np.testing.assert_allclose(bounds, bounds[0], atol=1e-7)
    weights = latents.Weights(X, cov=4.0)
    different = latents.Outputs([weights, latents.Kernel(4.0 * X @ X.T), weights])
    assert klimb.infer(different, SITE, Y).bound == pytest.approx(bounds[0], abs=1e-7)


def test_the_optimum_is_that_of_a_general_optimiser_and_of_the_other_rules():
    latent = shared()
    result = klimb.infer(latent, SITE, Y)
    assert methods.cholesky_gradient(latent, SITE, Y).bound == pytest.approx(result.bound, abs=1e-6)
    rule = klimb.infer(latent, SITE, Y, step=steps.FullNatural(start="data"))
    assert rule.bound == pytest.approx(result.bound, abs=1e-6)
    assert klimb.infer(latent, SITE, Y, step=steps.Natural(newton=False)).bound == pytest.approx(result.bound, abs=1e-6)
    assert methods.mean_field(latent, SITE, Y).bound < result.bound


def test_two_classes_beside_logistic():
    """With a baseline it is Logistic. Without, f_1 - f_0 has twice the prior, and independence costs some nats."""
    y = (Y > 0).astype(int)
    logistic = klimb.infer(latents.Weights(X, cov=4.0), sites.Logistic(), y, tol=1e-8)
    baseline = klimb.infer(shared(4.0, 1), sites.Softmax(2, baseline=True), y, tol=1e-8)
    assert baseline.bound == pytest.approx(logistic.bound, abs=1e-8)
    np.testing.assert_allclose(baseline.posterior.v, logistic.posterior.v, atol=1e-6)
    both = klimb.infer(shared(4.0, 2), sites.Softmax(2), y)
    twice = klimb.infer(latents.Weights(X, cov=8.0), sites.Logistic(), y)
    assert twice.bound - 5.0 < both.bound < twice.bound
    first, second = latents.Outputs.split(both.posterior.latent, both.posterior)
    np.testing.assert_allclose(first.mean, -second.mean, atol=1e-6)
    contrast = first.covariance().diagonal() + second.covariance().diagonal()
    exact = twice.posterior.covariance().diagonal()
    assert (contrast > exact).all()
    assert (contrast < 2.1 * exact).all()  # a factor of 2 where data outweigh the prior
    V = coupled_covariance(both.posterior, sites.Softmax(2), y)
    mended = np.diag(V[:3, :3] + V[3:, 3:] - V[:3, 3:] - V[3:, :3])
    np.testing.assert_allclose(mended, exact, rtol=0.08)


def test_weights_of_zero_remove_rows_and_whole_weights_repeat_them():
    some = sites.Weighted(SITE, np.where(np.arange(N) < 60, 1.0, 0.0))
    fewer = klimb.infer(latents.Outputs.shared(latents.Weights(X[:60], cov=4.0), C), SITE, Y[:60])
    assert klimb.infer(shared(), some, Y).bound == pytest.approx(fewer.bound, abs=1e-7)
    doubled = klimb.infer(latents.Outputs.shared(latents.Kernel(np.kron(np.ones((2, 2)), 4.0 * X @ X.T)), C), SITE,
                          np.tile(Y, 2))
    weighted = klimb.infer(latents.Outputs.shared(latents.Kernel(4.0 * X @ X.T), C), sites.Weighted(SITE, 2.0), Y)
    assert weighted.bound == pytest.approx(doubled.bound, abs=1e-6)


def test_many_data_begin_with_a_fit_to_some_of_them():
    rng = np.random.default_rng(3)
    Z = rng.standard_normal((9000, 2))
    y = np.argmax(Z @ rng.standard_normal((2, 3)) + rng.gumbel(size=(9000, 3)), axis=1)
    latent = latents.Outputs.shared(latents.Weights(Z), 3)
    result = klimb.infer(latent, SITE, y)
    assert result.converged
    assert result.history.stationarity[0] < 0.1
    assert result.n_iter <= 8


def test_posteriors_by_class_and_together():
    latent = shared()
    q = klimb.infer(latent, SITE, Y).posterior
    parts = latent.split(q)
    np.testing.assert_array_equal(q.mean, np.concatenate([part.mean for part in parts]))
    V = q.covariance()
    assert V.shape == (9, 9)
    np.testing.assert_array_equal(V[:3, 3:6], 0.0)
    np.testing.assert_allclose(V[3:6, 3:6], parts[1].covariance())
    draws = q.sample(40_000, rng=1)
    np.testing.assert_allclose(np.cov(draws.T), V, atol=0.06 * np.abs(V).max())
    m, v = latent.predict(q, X)
    np.testing.assert_allclose(m.T.ravel(), q.m, atol=1e-8)
    np.testing.assert_allclose(v.T.ravel(), q.v, atol=1e-8)
    q_again = klimb.infer(latent, SITE, Y, start=q)
    assert q_again.n_iter <= 1


def test_the_factor_is_that_of_a_block_diagonal_kernel():
    rng = np.random.default_rng(6)
    A, B = rng.standard_normal((12, 4)), rng.standard_normal((12, 20))
    latent = latents.Outputs([latents.Weights(A, cov=2.0), latents.Kernel(B @ B.T)])
    K, gamma, b = scipy.linalg.block_diag(2.0 * A @ A.T, B @ B.T), rng.gamma(1.0, size=24), rng.standard_normal(24)
    V = np.linalg.solve(np.eye(24) + K * gamma, K)
    factor = latent.factor(gamma)
    np.testing.assert_allclose(factor.variances(), np.diag(V), atol=1e-10)
    np.testing.assert_allclose(factor.smooth(b), V @ b, atol=1e-10)
    np.testing.assert_allclose(factor.solve(b)[0], b - gamma * (V @ b), atol=1e-9)
    assert factor.energy(b) == pytest.approx(b @ V @ b, rel=1e-10)
    assert factor.logdet == pytest.approx(np.linalg.slogdet(np.eye(24) + K * gamma)[1], rel=1e-10)
    np.testing.assert_allclose(latent.mvm(b), K @ b, atol=1e-10)
    np.testing.assert_allclose(latent.prior_variances, np.diag(K))
    Z = latent.design()
    np.testing.assert_allclose(Z @ Z.T, K, atol=1e-7)


def test_products_of_long_designs_are_those_of_their_covariance():
    for X_ in (X, scipy.sparse.csr_matrix(np.where(np.abs(X) < 1, 0.0, X))):
        factor = latents.Weights(X_, cov=4.0).factor(RNG.gamma(1.0, size=N))
        by_V, by_square = factor.products()
        V, b = factor.covariance(), np.linspace(-1.0, 1.0, N)
        np.testing.assert_allclose(by_V(b), V @ b, atol=1e-10)
        np.testing.assert_allclose(by_square(b), V**2 @ b, atol=1e-10)
    assert latents.Weights(X[:10]).factor(np.ones(10)).products() is None


def test_leave_one_out_is_close_to_refitting():
    latent = shared()
    left_out = loo(klimb.infer(latent, SITE, Y).posterior, SITE, Y)
    for i in (0, 7, 40):
        keep = np.arange(N) != i
        part = latents.Outputs.shared(latents.Weights(X[keep], cov=4.0), C)
        m, v = part.predict(klimb.infer(part, SITE, Y[keep]).posterior, X[i : i + 1])
        assert left_out.log_density[i] == pytest.approx(SITE.predict(m, v).log_density(Y[i])[0], abs=0.05)
    assert ((left_out.pit() > 0) & (left_out.pit() < 1)).all()


def test_bad_models_say_what_to_do():
    latent = shared()
    for call, words in (
        (lambda: klimb.infer(latents.Weights(X), SITE, Y), "3 outputs; got Weights with 1"),
        (lambda: klimb.infer(shared(n=2), SITE, Y), "3 outputs"),
        (lambda: klimb.infer(latent, SITE, np.tile(Y, 3)), "one entry per site"),
        (lambda: klimb.infer(latent, SITE, Y + 1), "3.0 at index"),
        (lambda: latents.Outputs([]), "at least one"),
        (lambda: latents.Outputs.shared(latents.Weights(X), 0), "at least one"),
        (lambda: latents.Outputs([X]), "ndarray at index 0"),
        (lambda: latents.Outputs([latents.Weights(X), latents.Weights(X[:5])]), "same number of data"),
        (lambda: methods.laplace(latent, SITE, Y), "one latent value"),
        (lambda: methods.ep(latent, SITE, Y), "one latent value"),
        (lambda: klimb.gp([kernels.RBF()], X, SITE), "one for each of 3"),
        (lambda: klimb.gp(kernels.RBF(), X, SITE).moved([0.0]), "2 entries"),
        (lambda: one_vs_rest(latents.Weights(X), Y, site=sites.Poisson()), "binary"),
        (lambda: one_vs_rest(klimb.gp(kernels.RBF(), X, SITE), Y), "binary"),
        (lambda: one_vs_rest(X, Y), "latent or a Gaussian process"),
        (lambda: one_vs_rest(latents.Weights(X), Y, n_classes=2), "2.0 at index"),
    ):
        with pytest.raises(InputError, match=words):
            call()


def test_the_mode_has_no_spread():
    result = methods.map_estimate(shared(), SITE, Y)
    p = SITE.predict(result.posterior.m, np.zeros(C * N)).probabilities()
    gradient = X.T @ (np.eye(C)[Y] - p) - result.posterior.mean.reshape(C, 3).T / 4.0
    np.testing.assert_allclose(gradient, 0.0, atol=1e-4)
    assert result.converged


# -- Gaussian processes

PROCESSES = {
    "shared": lambda: klimb.gp(kernels.RBF(lengthscale=[1.0, 1.4], variance=2.0), X[:50, 1:], SITE),
    "baseline": lambda: klimb.gp(kernels.Matern32(variance=2.0), X[:50, 1:], sites.Softmax(C, baseline=True)),
    "inducing": lambda: klimb.gp(kernels.RBF(variance=2.0), X[:50, 1:], SITE, inducing=12),
    "each": lambda: klimb.gp([kernels.RBF(), kernels.Matern52(lengthscale=2.0), kernels.RBF(variance=0.5)],
                             X[:50, 1:], SITE),
    "mean": lambda: klimb.gp(kernels.RBF(), X[:50, 1:], SITE, mean=ConstantMean(0.3)),
}


@pytest.mark.parametrize("name", PROCESSES)
def test_gradient_in_the_hyperparameters(name):
    model, y = PROCESSES[name](), Y[:50]
    fit = model.fit(y, hyper="fixed", tol=1e-9)
    gradient = model.gradient(fit.posterior, fit.data)
    for j in range(model.theta.size):
        step = np.zeros(model.theta.size)
        step[j] = 1e-4
        sides = [model.moved(model.at + sign * step).fit(y, hyper="fixed", tol=1e-9, start=fit.posterior).bound
                 for sign in (1, -1)]
        assert gradient[j] == pytest.approx((sides[0] - sides[1]) / 2e-4, abs=2e-6)


def test_optimise_grid_and_predict():
    model = PROCESSES["shared"]()
    best = optimise(model, Y[:50])
    assert best.converged
    assert best.bound > model.fit(Y[:50], hyper="fixed").bound
    table = grid(best.model, Y[:50], {"variance": best.model.at[0] + np.array([-1.0, 0.0, 1.0])})
    assert table.bound.argmax() == 1
    m, v = best.latents(X[:50, 1:]).moments()
    np.testing.assert_allclose(m, best.posterior.m, atol=1e-6)
    np.testing.assert_allclose(v, best.posterior.v, atol=1e-6)
    new = X[50:55, 1:]
    p = np.column_stack(list(best.predict(new).values()))
    f = best.sample(4000, new, seed=0).reshape(4000, C, 5).swapaxes(1, 2)
    assert f.shape == (4000, 5, C)
    e = np.exp(f - f.max(axis=2, keepdims=True))
    np.testing.assert_allclose((e / e.sum(axis=2, keepdims=True)).mean(axis=0), p, atol=0.02)
    y = best.simulate(400, new, seed=0)
    assert set(np.unique(y)) <= {0.0, 1.0, 2.0}
    assert y.shape == (400, 5)


def test_each_kernel_may_differ_and_equal_ones_are_the_shared_model():
    one = kernels.RBF(variance=2.0)
    apart, together = klimb.gp([one] * C, X[:, 1:], SITE), klimb.gp(one, X[:, 1:], SITE)
    assert apart.names[:2] == ("0: variance", "0: lengthscale")
    one_each, one_for_all = apart.fit(Y, hyper="fixed"), together.fit(Y, hyper="fixed")
    assert one_each.bound == pytest.approx(one_for_all.bound, abs=1e-8)
    new = X[:4, 1:]
    for found, expected in zip(one_each.latents(new).moments(), one_for_all.latents(new).moments(), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-6)


def test_what_several_classes_can_not_do_is_said():
    from klimb.infer.minibatch import minibatch
    from klimb.models.inducing import enough_inducing, optimise_inducing

    model = PROCESSES["inducing"]()
    fit = model.fit(Y[:50], hyper="fixed")
    for call in (
        lambda: fit.update(X[50:55, 1:], Y[50:55]), lambda: enough_inducing(model, Y[:50]),
        lambda: optimise_inducing(model, Y[:50]), lambda: minibatch(model.latent, SITE, Y[:50]),
        lambda: klimb.series(kernels.Matern32(), np.arange(50.0), SITE),
    ):
        with pytest.raises(InputError):
            call()
    averaged = integrate(klimb.gp(kernels.RBF(variance=2.0), X[:30, 1:], SITE), Y[:30])  # this they can
    assert averaged.latents(X[:4, 1:]).moments()[0].shape == (4 * C,)
    assert averaged.log_density(Y[:4], X[:4, 1:]).shape == (4,)


def test_one_vs_rest_is_normalised_and_close_to_softmax():
    latent = latents.Weights(X, cov=4.0)
    rest = one_vs_rest(latent, Y)
    assert rest.converged
    p = rest.probabilities(X)
    np.testing.assert_allclose(p.sum(axis=1), 1.0, rtol=1e-12)
    np.testing.assert_allclose(rest.log_density(Y, X), np.log(p[np.arange(N), Y]), atol=1e-12)
    binary = klimb.infer(latent, sites.Logistic(), Y == 1)
    np.testing.assert_allclose(rest.predict(X)[0][:, 1], binary.posterior.m, atol=1e-6)
    m, v = shared().predict(klimb.infer(shared(), SITE, Y).posterior, X)
    assert np.abs(SITE.predict(m, v).probabilities() - p).mean() < 0.05
    process = one_vs_rest(klimb.gp(kernels.RBF(), X[:40, 1:], sites.Probit()), Y[:40])
    assert process.probabilities(X[:3, 1:]).shape == (3, C)
    assert len({fit.model.at[0] for fit in process.fits}) == C
    far = rest.probabilities(np.array([[1.0, 300.0, 300.0]]))  # every class may be improbable there
    assert np.isfinite(far).all()


def test_stacked_rows_are_outputs_that_may_share_weights():
    """Rows of both classes in one design, each with weights of its own: the model of `Outputs`, in every answer."""
    rng = np.random.default_rng(4)
    X, codes, y = rng.standard_normal((60, 3)), rng.integers(0, 4, 60), rng.integers(0, 2, 60)
    nothing = np.zeros_like(X)
    stacked = klimb.latents.Weights(np.block([[X, nothing], [nothing, X]]), cov=2.0, n_outputs=2)
    apart = klimb.latents.Outputs.shared(klimb.latents.Weights(X, cov=2.0), 2)
    levels = np.zeros((60, 4))
    levels[np.arange(60), codes] = 1.0
    wide = np.hstack([X, levels])
    cov = np.array([2.0] * 3 + [0.5] * 4)
    grouped = klimb.latents.Mixed(np.block([[X, nothing], [nothing, X]]), np.concatenate([codes, codes + 4]), cov=2.0,
                                  group_cov=0.5, n_outputs=2)
    with_levels = klimb.latents.Outputs.shared(klimb.latents.Weights(wide, cov=cov), 2)
    order = np.concatenate([np.arange(3), 7 + np.arange(3), 3 + np.arange(4), 10 + np.arange(4)])
    site = klimb.sites.Softmax(2)
    for one, other, place in ((stacked, apart, np.arange(6)), (grouped, with_levels, order)):
        found, expected = (klimb.infer(latent, site, y, tol=1e-10) for latent in (one, other))
        assert found.bound == pytest.approx(expected.bound, abs=1e-10)
        np.testing.assert_allclose(found.posterior.mean, expected.posterior.mean[place], atol=1e-8)
        np.testing.assert_allclose(found.posterior.covariance(), expected.posterior.covariance()[np.ix_(place, place)],
                                   atol=1e-8)
        if one is stacked:  # in the same coordinates, by the same draws
            assert found.trust.log_evidence == pytest.approx(expected.trust.log_evidence, abs=1e-6)
        assert klimb.methods.mean_field(one, site, y).converged
        thinned = one.thin(np.array([3, 5, 59]))
        np.testing.assert_allclose(thinned.design(), one.design()[[3, 5, 59, 63, 65, 119]])
        assert thinned.n_outputs == 2
    with pytest.raises(InputError, match="n_outputs must divide"):
        klimb.latents.Weights(X, n_outputs=7)
    with pytest.raises(InputError, match="one output"):
        klimb.latents.Outputs([stacked])
    with pytest.raises(InputError, match="few weights"):
        minibatch(stacked, site, y)


def test_many_stacked_rows_form_no_matrix_over_all_sites():
    """A coarse start thins by data; Newton directions go by products, as they do for outputs that are kept apart."""
    rng = np.random.default_rng(5)
    n = 8000
    X = rng.standard_normal((n, 3))
    y = np.argmax(X[:, :2] + rng.gumbel(size=(n, 2)), axis=1)
    whole = np.kron(np.eye(2), X)
    stacked = klimb.infer(klimb.latents.Weights(whole, n_outputs=2), klimb.sites.Softmax(2), y)
    apart = klimb.infer(klimb.latents.Outputs.shared(klimb.latents.Weights(X), 2), klimb.sites.Softmax(2), y)
    assert stacked.converged
    assert stacked.bound == pytest.approx(apart.bound, abs=1e-5)
    codes = np.tile(np.arange(n) % 5, 2) + 5 * np.repeat(np.arange(2), n)
    grouped = klimb.infer(klimb.latents.Mixed(whole, codes, n_outputs=2), klimb.sites.Softmax(2), y)
    assert grouped.converged
    assert grouped.posterior.factorised().covariance() is None
    few = klimb.latents.Weights(np.kron(np.eye(3), rng.standard_normal((60, 5))), n_outputs=3)
    factor = few.factor(rng.gamma(2.0, size=180))
    V, b = factor.covariance(), rng.standard_normal(180)
    for product, matrix in zip(factor.products(), (V, V**2), strict=True):
        np.testing.assert_allclose(product(b), matrix @ b, atol=1e-10)
    assert klimb.latents.Weights(few.X).factor(factor.gamma).products() is None


def test_a_site_per_row_sees_stacked_rows_as_data():
    """With one latent value per datum the sites are the data, whatever the latent says of outputs."""
    X = np.random.default_rng(6).standard_normal((9000, 2))
    latent = klimb.latents.Outputs.shared(klimb.latents.Weights(X), 2)
    y = np.concatenate([X[:, 0] > 0, X[:, 1] > 0])
    assert klimb.infer(latent, klimb.sites.Logistic(), y).converged
