"""[A] Eq. (3): the natural gradient up to a divergence, and the proximal step that it equals."""

from __future__ import annotations

import numpy as np
import pytest

import klimb
from klimb import latents, sites, steps
from klimb.infer.literal import _at_radius, begin, symmetric_divergence
from klimb.infer.loop import Move
from klimb.infer.natural import _natural
from klimb.infer.problem import Problem

RNG = np.random.default_rng(3)
X = RNG.standard_normal((30, 3))
COUNTS = RNG.poisson(np.exp(0.4 * X[:, 0])).astype(float)


def kl(m1, V1, m0, V0):
    gap = m1 - m0
    logs = np.linalg.slogdet(V0)[1] - np.linalg.slogdet(V1)[1]
    return 0.5 * (np.trace(np.linalg.solve(V0, V1)) + gap @ np.linalg.solve(V0, gap) - len(gap) + logs)


def states(step, n, latent, site, y):
    problem = Problem(latent, site, y)
    walk: list[Move] = []
    for move in step.moves(problem, []):
        walk.append(move)
        if len(walk) > n:
            break
    return problem, walk


@pytest.mark.parametrize("epsilon", [1e-3, 0.1, 2.0])
def test_steps_have_the_symmetric_divergence_that_was_asked_for(epsilon):
    latent = latents.Weights(X, cov=2.0)
    problem, walk = states(steps.TrustRegion(epsilon), 4, latent, sites.Poisson(), COUNTS)
    for before, after in zip(walk, walk[1:], strict=False):
        q0, q1 = (problem.posterior(move.state) for move in (before, after))
        direct = (kl(q1.mean, q1.covariance(), q0.mean, q0.covariance())
                  + kl(q0.mean, q0.covariance(), q1.mean, q1.covariance()))
        assert symmetric_divergence(after.state, before.state) == pytest.approx(direct, rel=1e-6)
        assert direct <= epsilon * (1 + 1e-9)
        if after.step < 1.0:
            assert direct >= 0.99 * epsilon or after.state.objective > before.state.objective


def test_it_is_the_proximal_step_at_the_matching_beta():
    """[A] Theorem 1 with a Gaussian likelihood: argmax of bound - KL(q || q_k) / beta, found by a general optimiser."""
    from scipy.optimize import minimize

    y, noise, prior = np.array([1.0, 2.5, 0.2]), 0.7, 4.0
    latent, site = latents.Weights(np.ones((3, 1)), cov=prior), sites.Gaussian(noise)
    problem, walk = states(steps.TrustRegion(0.4), 1, latent, site, y)
    t = walk[1].step
    assert 0 < t < 1
    beta, (m0, v0) = t / (1 - t), (0.0, prior)

    def negative(theta):
        m, v = theta[0], np.exp(theta[1])
        expected = -0.5 * ((y - m) ** 2 + v).sum() / noise**2
        to_prior = 0.5 * (v / prior + m**2 / prior - 1 + np.log(prior / v))
        to_last = 0.5 * (v / v0 + (m - m0) ** 2 / v0 - 1 + np.log(v0 / v))
        return -(expected - to_prior - to_last / beta)

    found = minimize(negative, [0.5, 0.0], method="BFGS", options={"gtol": 1e-9})
    q = problem.posterior(walk[1].state)
    assert q.mean[0] == pytest.approx(found.x[0], abs=1e-5)
    assert q.covariance()[0, 0] == pytest.approx(np.exp(found.x[1]), rel=1e-5)


def test_a_shortened_step_of_the_default_is_one_of_a_smaller_radius():
    """So the line search of the default is a trust region already, down to radii of its smallest step."""
    problem = Problem(latents.Weights(np.ones((1, 1)), cov=9.0), sites.Poisson(), np.zeros(1))
    state = begin(problem, "prior")
    while (move := _natural(problem, state, [])).step == 1.0:  # full steps would go on to a cycle
        state = move.state
    found, length = _at_radius(problem, state, symmetric_divergence(move.state, state) * (1 + 1e-3), 0.5)
    assert length == pytest.approx(move.step, rel=1e-2)
    np.testing.assert_allclose(found.gamma, move.state.gamma, rtol=1e-2)
    np.testing.assert_allclose(found.m, move.state.m, rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize(("site", "y"), [(sites.Poisson(), COUNTS), (sites.StudentT(3.0, 0.3), X[:, 0] + COUNTS)])
def test_it_arrives_and_never_falls(site, y):
    latent = latents.Weights(3 * X, cov=9.0)
    best = klimb.infer(latent, site, y, tol=1e-8)
    found = klimb.infer(latent, site, y, step=steps.TrustRegion(1.0, start="data"), max_iter=2000)
    assert found.converged, found
    assert abs(found.bound - best.bound) < 1e-6
    assert (np.diff(found.history.bound) > -1e-6 * np.abs(found.history.bound[1:])).all()


def test_a_in_place_of_b_is_another_path_to_the_same_point():
    """[A] below Eq. (19): the mean moves with the precision of the last V; one factorisation fewer an iteration."""
    site, y, beta = sites.Logistic(), (COUNTS > 0).astype(float), 0.7
    latent = latents.Weights(X, cov=2.0, form="dual")
    exact, short = (klimb.infer(latent, site, y, step=steps.Proximal(beta, shortcut=cut), tol=1e-9, max_iter=2000)
                    for cut in (False, True))
    assert exact.converged
    assert short.converged
    assert abs(exact.bound - short.bound) < 1e-9
    np.testing.assert_allclose(short.posterior.m, exact.posterior.m, atol=1e-6)
    assert abs(exact.history.bound[2] - short.history.bound[2]) > 1e-4
    assert short.history.n_factor[1:].max() == 1
    assert exact.history.n_factor[1:].min() == 2
    r, inverse = 1 / (1 + beta), 0.5 * np.eye(3)
    m, V = np.zeros(3), 2.0 * np.eye(3)
    for _ in range(2):  # the equations with dense matrices
        e = site.expect(y, X @ m, np.einsum("ij,jk,ik->i", X, V, X))
        m = m - (1 - r) * V @ (X.T @ e.alpha + inverse @ m)
        V = np.linalg.inv(r * np.linalg.inv(V) + (1 - r) * (inverse + X.T @ (e.gamma[:, None] * X)))
    two = klimb.infer(latent, site, y, step=steps.Proximal(beta, shortcut=True), max_iter=2)
    np.testing.assert_allclose(two.posterior.mean, m, atol=1e-10)
    np.testing.assert_allclose(two.posterior.covariance(), V, atol=1e-10)
