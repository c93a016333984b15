"""`klimb.latents.Precision` against dense algebra: intrinsic priors, constraints, signed sites, draws, files."""

from __future__ import annotations

from typing import Any

import mpmath
import numpy as np
import pytest
import scipy.sparse
from scipy.linalg import null_space

import klimb
from klimb.errors import InputError, NotPositiveDefiniteError
from klimb.latents import Precision
from klimb.latents.base import Posterior
from klimb.latents.coordinates import default_coordinates

N = 30
CASES = {
    "intrinsic": {"constraints": 1},
    "two constraints": {"constraints": 2},
    "proper": {"constraints": 0, "ridge": 0.3},
    "proper, constrained": {"constraints": 1, "ridge": 0.3},
    "no shared column": {"constraints": 2, "ridge": 0.3, "shared": 0},
}
GAMMAS = {
    "positive": np.random.default_rng(1).gamma(1.0, size=N),
    "signed": np.where(np.arange(N) % 7 == 0, -0.02, np.random.default_rng(2).gamma(2.0, size=N)),
    "some without": np.where(np.arange(N) < 20, 0.0, 1.0),
    "none": np.zeros(N),
}


def made(constraints: int, ridge: float = 0.0, shared: int = 2, n: int = 12) -> tuple[Any, Any, Any, Any, Any]:
    """Q, A, C, the prior mean and the dense prior covariance on the surface of the constraints."""
    rng = np.random.default_rng(0)
    D = scipy.sparse.diags_array([-np.ones(n - 1), np.ones(n - 1)], offsets=[0, 1], shape=(n - 1, n))
    R = 3.0 * (D.T @ D) + ridge * scipy.sparse.eye_array(n)
    Q = scipy.sparse.block_diag([R, scipy.sparse.diags_array(rng.uniform(0.5, 2.0, shared))]) if shared else R
    rows, columns = np.repeat(np.arange(N), 2), rng.integers(0, n, 2 * N)
    field = scipy.sparse.csr_array((rng.uniform(0.5, 1.5, 2 * N), (rows, columns)), shape=(N, n))
    A = scipy.sparse.hstack([field, rng.standard_normal((N, shared))]).tocsr()
    C = np.zeros((constraints, n + shared))
    C[:1, :n] = n**-0.5
    C[1:, :n] = np.arange(n) - 3.0
    E = null_space(C) if constraints else np.eye(n + shared)
    prior = E @ np.linalg.inv(E.T @ Q.toarray() @ E) @ E.T
    return Q, A, C if constraints else None, rng.standard_normal(n + shared), prior


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("case", CASES)
def test_factor_and_weights_are_those_of_dense_algebra(case: str, gamma: str) -> None:
    Q, A, C, mean, prior = made(**CASES[case])
    latent, g = Precision(Q, A, C, mean=mean), GAMMAS[gamma]
    K = A @ prior @ A.T
    V = np.linalg.solve(np.eye(N) + K * g, K)
    factor = latent.factor(g)
    np.testing.assert_allclose(factor.variances(), np.diag(V), atol=1e-11)
    np.testing.assert_allclose(factor.logdet, np.linalg.slogdet(np.eye(N) + K * g)[1], atol=1e-11)
    b = np.random.default_rng(5).standard_normal(N)
    np.testing.assert_allclose(factor.smooth(b), V @ b, atol=1e-11)
    np.testing.assert_allclose(factor.covariance(), V, atol=1e-11)
    a = 0.1 * b
    q = latent.detach(Posterior(latent, a, g, latent.mean + K @ a, np.diag(V), 0.0, True, factor))
    V_w = prior - prior @ A.T @ np.linalg.solve(np.eye(N) + g[:, None] * K, g[:, None] * (A @ prior))
    D = q.size
    np.testing.assert_allclose(q.mean, mean + prior @ (A.T @ a), atol=1e-11)
    pairs = np.indices((D, D)).reshape(2, -1)
    np.testing.assert_allclose(q.covariances(*pairs).reshape(D, D), V_w, atol=1e-11)
    np.testing.assert_allclose(q.joint(np.eye(D))[1], V_w, atol=1e-11)
    np.testing.assert_allclose(q.at(np.eye(D), 0.5)[1], np.diag(V_w) + 0.5, atol=1e-11)
    np.testing.assert_allclose(q.covariance_with(A, slice(2, 6)), A @ V_w[:, 2:6], atol=1e-11)
    root = q.from_root(np.eye(q.dim))
    np.testing.assert_allclose(root @ root.T, V_w, atol=1e-11)
    np.testing.assert_allclose(q.to_root(np.eye(D)), root.T, atol=1e-12)
    if C is not None:
        np.testing.assert_allclose(q.sample(5, np.random.default_rng(0)) @ C.T, np.tile(C @ mean, (5, 1)), atol=1e-9)


@pytest.mark.parametrize("case", CASES)
def test_prior_is_that_of_dense_algebra(case: str) -> None:
    Q, A, C, mean, prior = made(**CASES[case])
    latent = Precision(Q, A, C, mean=mean)
    K = A @ prior @ A.T
    np.testing.assert_allclose(latent.prior_variances, np.diag(K), atol=1e-11)
    np.testing.assert_allclose(latent.mvm(np.ones(N)), K @ np.ones(N), atol=1e-11)
    Z = latent.design()
    np.testing.assert_allclose(Z @ Z.T, K, atol=1e-10)
    reported_mean, root, rows = latent.reported_prior()
    np.testing.assert_allclose(root @ root.T, prior, atol=1e-10)
    assert rows is not None
    assert rows.shape == A.shape
    draws = np.array([latent.draw(np.random.default_rng(k))[0] for k in range(4000)])
    np.testing.assert_allclose(draws.mean(axis=0), reported_mean, atol=6 * np.sqrt(np.diag(prior).max() / 4000))
    np.testing.assert_allclose(np.cov(draws.T), prior, atol=0.12 * np.abs(prior).max())


@pytest.mark.parametrize("case", CASES)
def test_fits_are_those_of_a_dense_kernel(case: str) -> None:
    Q, A, C, mean, prior = made(**CASES[case])
    y = np.random.default_rng(3).poisson(1.5, N)
    K = A @ prior @ A.T
    one = klimb.infer(Precision(Q, A, C, mean=mean), klimb.sites.Poisson(), y, tol=1e-10)
    two = klimb.infer(klimb.latents.Kernel(0.5 * (K + K.T), mean=A @ mean), klimb.sites.Poisson(), y, tol=1e-10)
    assert abs(one.bound - two.bound) < 1e-8
    np.testing.assert_allclose(one.posterior.m, two.posterior.m, atol=1e-7)
    np.testing.assert_allclose(one.posterior.v, two.posterior.v, atol=1e-7)
    assert one.trust.verdict in ("trust", "corrected")


def test_log_determinant_of_an_intrinsic_prior_is_that_of_its_other_eigenvalues() -> None:
    Q, _, _, _, _ = made(1, shared=0)
    values = np.linalg.eigvalsh(Q.toarray())[1:]
    assert abs(Precision(Q, None, np.full((1, 12), 12**-0.5)).prior_logdet - np.log(values).sum()) < 1e-10


def test_large_coordinates_are_those_of_the_dense_root() -> None:
    Q, A, C, mean, _ = made(1)
    latent = Precision(Q, A, C, mean=mean)
    posterior = klimb.infer(latent, klimb.sites.Logistic(), np.arange(N) % 2).posterior
    wide, dense = latent.coordinates(posterior), default_coordinates(posterior)
    z = np.eye(wide.dim)
    Z = wide.deviations(z).T
    other = dense.deviations(np.eye(dense.dim)).T
    np.testing.assert_allclose(Z @ Z.T, other @ other.T, atol=1e-3)  # the dense root stops at 1e-4 of a variance
    np.testing.assert_allclose(np.einsum("ij,ij->i", Z, Z), posterior.v, rtol=1e-9)
    slopes = np.random.default_rng(0).standard_normal((3, N))
    np.testing.assert_allclose(wide.pull(slopes), slopes @ Z, atol=1e-10)
    R = wide.report(z, slice(None)).T
    np.testing.assert_allclose(np.sqrt(np.einsum("ij,ij->i", R, R)), wide.sd, rtol=1e-8)


def test_improper_posteriors_are_refused() -> None:
    Q, A, C, _, _ = made(1)
    with pytest.raises(NotPositiveDefiniteError):
        Precision(Q, A, C).factor(np.full(N, -50.0))


@pytest.mark.parametrize(("change", "words"), [
    ({"Q": np.ones((2, 3))}, "square"),
    ({"Q": np.array([[1.0, 0.5], [0.0, 1.0]])}, "symmetric"),
    ({"Q": np.array([[np.nan, 0.0], [0.0, 1.0]])}, "finite"),
    ({"Q": np.eye(2), "A": np.ones((4, 3))}, "2 columns"),
    ({"Q": np.eye(2), "A": np.full((4, 2), np.inf)}, "finite"),
    ({"Q": np.eye(3), "constraints": np.ones((2, 3))}, "independent"),
    ({"Q": np.eye(3), "constraints": np.ones((1, 2))}, "3 columns"),
    ({"Q": np.array([[1.0, -1.0], [-1.0, 1.0]])}, "positive definite where the constraints hold"),
])
def test_bad_input_is_told_in_words(change: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        Precision(**change)


def test_newton_directions_are_left_alone_beside_a_sparse_factor() -> None:
    """All covariances of a thousand sites cost more than many factors."""
    for n in (40, 400):
        D = scipy.sparse.diags_array([-np.ones(n - 1), np.ones(n - 1)], offsets=[0, 1], shape=(n - 1, n))
        latent = klimb.latents.Precision(D.T @ D + 0.1 * scipy.sparse.eye_array(n))
        assert (latent.factor(np.ones(n)).covariance() is None) == (n == 400)


def test_what_rounding_leaves_of_a_log_determinant_is_known() -> None:
    """A bound that is known to 1e-5 nats has no sixth digit to wait for (a curve, two of whose places are close)."""
    rng = np.random.default_rng(0)
    for size, close, most in ((30, 1e-1, 1e-8), (30, 1e-4, 1e-5), (40, 1e-6, 1e-1)):
        times = np.sort(rng.random(size))
        times[1::4] = times[::4][: len(times[1::4])] + close
        gaps = np.diff(np.sort(times))
        D = scipy.sparse.diags_array([1 / gaps[:-1], -1 / gaps[:-1] - 1 / gaps[1:], 1 / gaps[1:]], offsets=[0, 1, 2],
                                     shape=(size - 2, size))
        Q = scipy.sparse.csr_array(D.T @ D + scipy.sparse.eye_array(size))
        factor = Precision(Q, scipy.sparse.eye_array(size, format="csr")).factor(np.zeros(size))
        with mpmath.workdps(60):
            exact = float(mpmath.log(mpmath.det(mpmath.matrix(Q.toarray().tolist()))))
        assert abs(factor.absolute_logdet - exact) <= factor.log_det_rounding + 1e-15 * abs(exact)
        assert factor.log_det_rounding < most


def test_rounding_in_weights_that_all_rows_share_is_known() -> None:
    """A straight line that the inner weights leave open: its own precision is what is left of far larger numbers."""
    rng = np.random.default_rng(1)
    times = np.sort(rng.random(30))
    times[1::4] = times[::4][: len(times[1::4])] + 1e-3
    gaps, line = np.diff(times), np.column_stack([np.ones(30), times])
    D = scipy.sparse.diags_array([1 / gaps[:-1], -1 / gaps[:-1] - 1 / gaps[1:], 1 / gaps[1:]], offsets=[0, 1, 2],
                                 shape=(28, 30)).toarray()
    fall, rows = np.hstack([D, 0.5 * D @ line**2]), np.hstack([np.eye(30), 0.1 * line])  # two columns of all rows
    prior = fall.T @ fall + 1e-4 * np.eye(32)
    latent = Precision(scipy.sparse.csr_array(prior), scipy.sparse.csr_array(rows))
    assert len(latent.layouts.free.border) == 2
    for gamma in (np.ones(30), 100.0 * rng.random(30)):
        factor = latent.factor(gamma)
        with mpmath.workdps(60):
            A, Q, G = (mpmath.matrix(one.tolist()) for one in (rows, prior, np.diag(gamma)))
            exact = float(mpmath.log(mpmath.det(Q + A.T * G * A)))
        assert abs(factor.absolute_logdet - exact) <= factor.log_det_rounding + 1e-15 * abs(exact)
