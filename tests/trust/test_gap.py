"""log evidence - bound: to leading order against sums over pairs of sites, by chains against quadrature."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_matrix

import klimb
from klimb.latents.coordinates import coordinates_of
from klimb.trust.bridge import bridged_gap, covariance_of_sites, exact_variances
from klimb.trust.gap import EvidenceGaps, leading_error, leading_gap
from klimb.trust.orders import Orders
from klimb.trust.weights import LogWeights, bends

X = np.linspace(0.0, 6.0, 80)
K = 2.0 * np.exp(-0.5 * (X[:, None] - X) ** 2 / 0.3)
RATE = np.exp(np.sin(X))
CASES = {
    "poisson": (klimb.sites.Poisson(), np.random.default_rng(0).poisson(RATE)),
    "logistic": (klimb.sites.Logistic(), np.random.default_rng(1).random(80) < RATE / (1.0 + RATE)),
}


def by_pairs(result: Any) -> float:
    """sum_ij c3_i c3_j V_ij^3 / 12 + c4_i c4_j V_ij^4 / 48 with the mean third and fourth derivatives of log p."""
    q, site, y = result.posterior, result.problem.site, result.problem.y
    lower = q.factorised().covariance()
    V = np.tril(lower) + np.tril(lower, -1).T
    h, k = 1e-3 * np.sqrt(q.v), 1e-3 * q.v
    third = -(site.oracle(y, q.m + h, q.v).gamma - site.oracle(y, q.m - h, q.v).gamma) / (2.0 * h)
    fourth = -2.0 * (site.oracle(y, q.m, q.v + k).gamma - site.oracle(y, q.m, q.v - k).gamma) / (2.0 * k)
    return float(third @ V**3 @ third / 12.0 + fourth @ V**4 @ fourth / 48.0)


def leading(result: Any) -> float:
    return leading_gap(LogWeights(result.problem, result.posterior, coordinates_of(result.posterior)))


@pytest.mark.parametrize(("sd", "error", "too_large"), [(1.5, 0.04, 1.1), (3.0, 0.04, 1.5), (6.0, 0.04, 4.0)])
def test_large_gaps_are_those_of_quadrature(sd: float, error: float, too_large: float) -> None:
    """Few counts under a wide prior, each f by itself: leading order is up to ten times the gap."""
    y, f = np.repeat([0, 1, 3], [20, 7, 3]), np.linspace(-12.0 * sd, 8.0 + 2.0 * sd, 20_001)
    log_p = np.outer(y, f) - np.exp(f) - 0.5 * (f / sd) ** 2 - np.log(sd * np.sqrt(2.0 * np.pi))
    evidence = np.log(np.exp(log_p).sum(axis=1) * (f[1] - f[0])) - np.array([0.0, 0.0, 0.0, np.log(6.0)])[y]
    result = klimb.infer(klimb.latents.Kernel(sd**2 * np.eye(30)), klimb.sites.Poisson(), y, tol=1e-8)
    gap = evidence.sum() - result.bound
    assert abs(EvidenceGaps()(result.problem, result.posterior) / gap - 1.0) < error
    assert leading(result) > too_large * gap


def test_gaps_of_two_sds_are_those_of_quadrature_whichever_is_large() -> None:
    """Ratios to leading order by its size alone, or by one of the sds, were up to 47% and 2.2 nats off."""
    y, f, gaps = np.tile(np.repeat([0, 1, 3], [20, 7, 3]), 2), np.linspace(-60.0, 20.0, 40_001), EvidenceGaps()
    log_p = {sd: np.outer([0, 1, 3], f) - np.exp(f) - 0.5 * (f / sd) ** 2 - np.log(sd * np.sqrt(2.0 * np.pi))
             for sd in (0.4, 1.0, 1.8, 3.0, 5.0)}
    each = {sd: np.log(np.exp(own).sum(axis=1) * (f[1] - f[0])) - [0.0, 0.0, np.log(6.0)] for sd, own in log_p.items()}
    for first in (1.0, 1.8, 3.0, 5.0):
        for second in (0.4, 1.0, 1.8, 3.0, 5.0):
            prior = klimb.latents.Kernel(np.diag(np.repeat([first, second], 30) ** 2))
            result = klimb.infer(prior, klimb.sites.Poisson(), y, tol=1e-8)
            gap = np.array([20, 7, 3]) @ (each[first] + each[second]) - result.bound
            assert abs(gaps(result.problem, result.posterior) / gap - 1.0) < 0.06


SINGLES = {"poisson": (klimb.sites.Poisson(), np.repeat([0, 1, 3], [20, 7, 3])),
           "logistic": (klimb.sites.Logistic(), np.repeat([0, 1], [22, 8]))}


@pytest.mark.parametrize(("name", "sd", "error"), [
    ("poisson", 0.4, 0.01), ("poisson", 1.0, 0.01), ("poisson", 1.5, 0.02), ("poisson", 3.0, 0.04),
    ("poisson", 6.0, 0.05), ("logistic", 1.0, 0.04), ("logistic", 3.0, 0.03), ("logistic", 8.0, 0.08)])
def test_the_order_after_the_leading_one_tells_gaps_without_chains(name: str, sd: float, error: float) -> None:
    """Each f by itself, beside quadrature; half the variance of log weights is up to 4.2 times the gap."""
    (site, y), f = SINGLES[name], np.linspace(-12.0 * sd, 12.0 * sd, 20_001)
    data = np.outer(y, f) - np.exp(f) if name == "poisson" else -np.logaddexp(0.0, np.outer(1.0 - 2.0 * y, f))
    log_p = data - 0.5 * (f / sd) ** 2 - np.log(sd * np.sqrt(2.0 * np.pi))
    constant = np.log([1.0, 1.0, 2.0, 6.0])[y]
    evidence = (np.log(np.exp(log_p).sum(axis=1) * (f[1] - f[0])) - constant).sum()
    result = klimb.infer(klimb.latents.Kernel(sd**2 * np.eye(30)), site, y, tol=1e-8)
    orders = Orders.of(result.problem, result.posterior)
    assert orders is not None
    assert abs(orders.summed() / (evidence - result.bound) - 1.0) < error


@pytest.mark.parametrize("name", CASES)
def test_sums_over_pairs_are_those_over_all_sites(name: str) -> None:
    site, y = CASES[name]
    result = klimb.infer(klimb.latents.Kernel(K + 1e-6 * np.eye(80)), site, y, tol=1e-8)
    orders, q = Orders.of(result.problem, result.posterior), result.posterior
    assert orders is not None
    assert orders.leading == pytest.approx(by_pairs(result), rel=3e-3)  # derivatives by other steps
    V, (c, k) = covariance_of_sites(q, np.zeros((80, 0))), bends(result.problem.site, result.problem.y, q)
    mixed = np.einsum("i,j,k,ij,ik,jk->", c, c, k, V, V**2, V**2, optimize=True) / 8.0
    ring = np.einsum("i,j,k,l,ij,jk,kl,li->", c, c, c, c, V**2, V, V**2, V, optimize=True) / 16.0
    first, after = c @ V**3 @ c / 12.0, k @ V**4 @ k / 48.0 + mixed + 5.0 / 3.0 * ring
    expected = first**2 / (first - after) if after < 0.0 else first + after
    assert orders.summed() == pytest.approx(expected, rel=1e-4)
    result = klimb.infer(klimb.latents.Kernel(K), klimb.sites.Gaussian(0.5), np.sin(X))
    flat = Orders.of(result.problem, result.posterior)
    assert flat is not None
    assert flat.summed() == flat.leading == 0.0


def test_modes_of_a_log_density_that_is_not_concave_are_left_to_chains() -> None:
    """Its gap may be three times that of both orders."""
    result = klimb.infer(klimb.latents.Kernel(K), klimb.sites.StudentT(df=3.0, scale=0.5), np.sin(X))
    assert Orders.of(result.problem, result.posterior) is None


def test_chains_are_few_once_the_order_after_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Crossed groups of counts at nine pairs of sds; a gap that nothing hangs on has none."""
    rng, n, asked = np.random.default_rng(5), 120, list[float]()
    columns = csr_matrix((np.ones(n), (np.arange(n), rng.integers(0, 40, n))), shape=(n, 40))
    first, gaps = rng.integers(0, 60, n), EvidenceGaps()
    y = rng.poisson(np.exp(rng.standard_normal(60)[first]))
    monkeypatch.setattr("klimb.trust.gap.bridged_gap", lambda weights: asked.append(own := bridged_gap(weights)) or own)
    for one in (0.7, 1.0, 1.5):
        for other in (0.7, 1.0, 1.5):
            latent = klimb.latents.Crossed(np.ones((n, 1)), columns, first, roots=[(one, 40)], group_cov=other**2)
            result, before = klimb.infer(latent, klimb.sites.Poisson(), y), len(asked)
            assert EvidenceGaps()(result.problem, result.posterior, None, 1e6) > 0.0
            assert len(asked) == before
            found = gaps(result.problem, result.posterior)
            weights = LogWeights(result.problem, result.posterior, coordinates_of(result.posterior))
            assert found == pytest.approx(bridged_gap(weights, seed=7), rel=0.06)
    assert 1 <= len(asked) <= 3


def test_errors_of_leading_order_are_those_of_quadrature() -> None:
    """Variances by chains, and what leading order lacks of them: each f by itself under a wide prior."""
    y, f, sd = np.repeat([0, 1, 3], [20, 7, 3]), np.linspace(-40.0, 20.0, 40_001), 3.5
    p = np.exp(np.outer([0, 1, 3], f) - np.exp(f) - 0.5 * (f / sd) ** 2)
    p /= p.sum(axis=1, keepdims=True)
    exact = np.repeat(p @ f**2 - (p @ f) ** 2, [20, 7, 3])
    result = klimb.infer(klimb.latents.Kernel(sd**2 * np.eye(30)), klimb.sites.Poisson(), y, tol=1e-8)
    weights = LogWeights(result.problem, result.posterior, coordinates_of(result.posterior))
    found, noise = exact_variances(weights)
    assert np.abs((found - exact) / noise).max() < 4.0
    assert (noise / exact).max() < 0.12  # of chains, which other rounding sends elsewhere
    c = -np.exp(result.posterior.m + 0.5 * result.posterior.v)  # the third derivative of log p, on average
    v, more = result.posterior.v, 0.5 * c**2 * result.posterior.v**4
    error = np.abs(np.sqrt((v + more / (1.0 + 1.8 * np.mean(more / v))) / exact) - 1.0).max()
    assert leading_error(result.problem, result.posterior) == pytest.approx(error, abs=0.03)
    assert error > 0.06


@pytest.mark.parametrize("name", CASES)
def test_draws_give_the_sum_over_pairs_and_nearly_the_exact_gap(name: str) -> None:
    site, y = CASES[name]
    result = klimb.infer(klimb.latents.Kernel(K + 1e-6 * np.eye(80)), site, y, tol=1e-8)
    gap = leading(result)
    assert abs(gap / by_pairs(result) - 1.0) < 0.15
    full = result.trust.full(20_000)
    assert abs(gap - (full.log_evidence - full.bound)) < 0.2 * gap + 3.0 * full.log_evidence_error


def test_a_gaussian_posterior_has_no_gap() -> None:
    result = klimb.infer(klimb.latents.Kernel(K), klimb.sites.Gaussian(0.5), np.sin(X))
    assert abs(leading(result)) < 1e-12


def test_three_hyperparameters_of_a_field_are_weighed_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gap grows where tails are heavy; with the same gap everywhere, as if there were none, they seem lighter."""
    t = np.arange(60)
    data = {"t": t, "y": np.sin(t / 9.0) + 0.3 * np.random.default_rng(3).standard_t(4, 60)}
    found = []
    for gaps in (EvidenceGaps, lambda: lambda *_: 0.02):
        monkeypatch.setattr("klimb.models.correctors.EvidenceGaps", gaps)
        fit = klimb.fit("y ~ rw1(t)", data, family="student_t")
        found.append({row.name: row for row in fit.table_rows()})
    weighed, plain = found
    assert weighed["df"].mean < plain["df"].mean - 0.03 * plain["df"].sd
    assert weighed["scale"].mean < plain["scale"].mean - 0.03 * plain["scale"].sd


def test_covariances_of_sites_come_from_the_factor_that_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of nested groups: no product of a matrix of sites by all weights."""
    n = 90
    group, nest = np.arange(n) % 45, csr_matrix((np.ones(n), (np.arange(n), np.arange(n) % 15)))
    latent = klimb.latents.Crossed(np.ones((n, 1)), nest, group, group_cov=0.5)
    y = np.random.default_rng(3).poisson(2.0, n)
    posterior = klimb.infer(latent, klimb.sites.Poisson(), y).posterior
    root = coordinates_of(posterior).pull(np.eye(n))
    np.testing.assert_allclose(covariance_of_sites(posterior, root), root @ root.T, atol=1e-12)
    np.testing.assert_allclose(covariance_of_sites(posterior, 0.0 * root), root @ root.T, atol=1e-12)
    monkeypatch.setattr(type(posterior.factorised()), "covariance", lambda factor: None)
    np.testing.assert_array_equal(covariance_of_sites(posterior, root), root @ root.T)
