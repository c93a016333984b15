"""Fixed points for a Poisson factorisation, and inside batches: the future work of [S]."""

from __future__ import annotations

import numpy as np
import pytest

import klimb
from klimb.conjugate.models import poisson_factorisation
from klimb.conjugate.models.factorisation import _Side, _tilted
from klimb.errors import InputError
from klimb.infer.minibatch import minibatch


def test_the_expectation_and_its_derivatives():
    """E e^(u'v) by a product rule, its derivatives by differences."""
    m, V = np.array([[0.3, -0.2]]), np.array([[[0.2, 0.05], [0.05, 0.1]]])
    b, B = np.array([[0.5, 0.4]]), np.array([[[0.3, -0.1], [-0.1, 0.2]]])
    nodes, shares = np.polynomial.hermite_e.hermegauss(40)
    shares = shares / shares.sum()
    grid = np.stack(np.meshgrid(nodes, nodes), axis=-1).reshape(-1, 2)
    weight = np.outer(shares, shares).ravel()
    u = m[0] + grid @ np.linalg.cholesky(V[0]).T

    log_e, g, H = _tilted(_Side(m, V), b, B)
    given_u = np.exp(u @ b[0] + 0.5 * np.einsum("ni,ij,nj->n", u, B[0], u))  # v integrated out
    e = weight @ given_u
    assert np.exp(log_e[0]) == pytest.approx(e, rel=1e-9)
    slopes = b[0] + u @ B[0]
    np.testing.assert_allclose(e * g[0], (weight * given_u) @ slopes, rtol=1e-8)
    second = np.einsum("n,ni,nj->ij", weight * given_u, slopes, slopes) + e * B[0]
    np.testing.assert_allclose(e * H[0], second, rtol=1e-7)
    wide = _tilted(_Side(m, 5.0 * np.eye(2)[None]), b, B)
    assert wide[0][0] == np.inf


def test_one_entry_is_the_best_product_of_gaussians():
    """A 1 x 1 matrix of rank 1: four numbers, found again by a general optimiser; and below the log evidence."""
    from scipy.optimize import minimize
    from scipy.special import gammaln

    y, variance = 4.0, 0.8
    found = poisson_factorisation([0], [0], [y], 1, variance=variance, tol=1e-12, max_iter=3000)

    def negative(theta):
        m, v, b, w = theta[0], np.exp(theta[1]), theta[2], np.exp(theta[3])
        if v * w >= 1:
            return 1e6
        log_e = 0.5 * ((m / v + b) ** 2 / (1 / v - w) - m * m / v - np.log(1 - v * w))
        kl = sum(0.5 * ((s + a * a) / variance - 1 + np.log(variance / s)) for a, s in ((m, v), (b, w)))
        return -(y * m * b - np.exp(log_e) - gammaln(y + 1) - kl)

    start = [found.row_means[0, 0], np.log(found.row_covariances[0, 0, 0]), found.column_means[0, 0],
             np.log(found.column_covariances[0, 0, 0])]
    best = minimize(negative, np.array(start) + 0.05, method="Nelder-Mead",
                    options={"xatol": 1e-9, "fatol": 1e-12, "maxiter": 20_000, "maxfev": 20_000})
    assert negative(start) == pytest.approx(-found.bound, abs=1e-9)
    assert found.bound == pytest.approx(-best.fun, abs=1e-7)
    x = np.linspace(-6, 6, 1201) * np.sqrt(variance)
    prior = np.exp(-0.5 * x**2 / variance)
    prior /= prior.sum()
    f = np.outer(x, x)
    with np.errstate(over="ignore"):
        evidence = np.log(np.einsum("i,ij,j->", prior, np.exp(y * f - np.exp(f) - gammaln(y + 1)), prior))
    assert found.bound < evidence


def test_rates_are_found_and_the_fixed_point_is_one():
    rng = np.random.default_rng(0)
    U, W = 0.7 * rng.standard_normal((30, 2)), 0.7 * rng.standard_normal((20, 2))
    i, j = np.divmod(np.arange(600), 20)
    rate = np.exp((U[i] * W[j]).sum(axis=1))
    found = poisson_factorisation(i, j, rng.poisson(rate), 2, variance=0.5, tol=1e-10, max_iter=2000)
    assert found.converged
    assert (np.diff(found.bounds) > -1e-8).all()
    assert np.corrcoef(found.predict(i, j), rate)[0, 1] > 0.85
    mine = i == 7
    one = _Side(np.repeat(found.row_means[7:8], 20, axis=0), np.repeat(found.row_covariances[7:8], 20, axis=0))
    log_e, _, H = _tilted(one, found.column_means[j[mine]], found.column_covariances[j[mine]])
    T = np.linalg.inv(np.eye(2) / 0.5 + np.einsum("e,ekl->kl", np.exp(log_e), H))
    np.testing.assert_allclose(found.row_covariances[7], T, rtol=1e-3)


def test_batches_end_at_the_fixed_point_of_all_data():
    """V = T(V) over all data, although every visit has seen a part of them only."""
    rng = np.random.default_rng(1)
    X = rng.standard_normal((900, 4))
    y = rng.poisson(np.exp(0.4 * X[:, 0])).astype(float)
    q = minibatch(klimb.latents.Weights(X), klimb.sites.Poisson(), y, batch=150, tol=1e-8).posterior
    V = q.covariance()
    gamma = np.exp(X @ q.mean + 0.5 * np.einsum("ij,jk,ik->i", X, V, X))
    np.testing.assert_allclose(V, np.linalg.inv(np.eye(4) + X.T @ (gamma[:, None] * X)), rtol=1e-6, atol=1e-10)


@pytest.mark.parametrize(("arguments", "words"), [
    (([0], [0, 1], [1.0], 1), "vectors of one length"), (([0], [0], [-1.0], 1), "whole and not negative"),
    (([0], [0], [1.5], 1), "whole and not negative"), (([0], [0], [1.0], 0), "rank must be at least 1")])
def test_bad_input(arguments, words):
    with pytest.raises(InputError, match=words):
        poisson_factorisation(*arguments)
