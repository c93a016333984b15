"""The leading order of log evidence - bound, against the sum over pairs of sites and against importance weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import klimb
from klimb.trust.gap import evidence_gap

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


@pytest.mark.parametrize("name", CASES)
def test_draws_give_the_sum_over_pairs_and_nearly_the_exact_gap(name: str) -> None:
    site, y = CASES[name]
    result = klimb.infer(klimb.latents.Kernel(K + 1e-6 * np.eye(80)), site, y, tol=1e-8)
    gap = evidence_gap(result.problem, result.posterior)
    assert abs(gap / by_pairs(result) - 1.0) < 0.15
    full = result.trust.full(20_000)
    assert abs(gap - (full.log_evidence - full.bound)) < 0.2 * gap + 3.0 * full.log_evidence_error


def test_a_gaussian_posterior_has_no_gap() -> None:
    result = klimb.infer(klimb.latents.Kernel(K), klimb.sites.Gaussian(0.5), np.sin(X))
    assert abs(evidence_gap(result.problem, result.posterior)) < 1e-12


def test_three_hyperparameters_of_a_field_are_weighed_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gap grows where tails are heavy; with the same gap everywhere, as if there were none, they seem lighter."""
    t = np.arange(60)
    data = {"t": t, "y": np.sin(t / 9.0) + 0.3 * np.random.default_rng(3).standard_t(4, 60)}
    found = []
    for gap in (evidence_gap, lambda problem, posterior: 0.02):
        monkeypatch.setattr("klimb.models.correction.evidence_gap", gap)
        fit = klimb.fit("y ~ rw1(t)", data, family="student_t")
        found.append({row.name: row for row in fit.table_rows()})
    weighed, plain = found
    assert weighed["df"].mean < plain["df"].mean - 0.03 * plain["df"].sd
    assert weighed["scale"].mean < plain["scale"].mean - 0.03 * plain["scale"].sd
