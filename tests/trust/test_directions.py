"""k-hat along leading directions: by the oracle of the sites, and by their third and fourth derivatives."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_matrix

import klimb
import klimb.trust.report as report
from klimb.latents.coordinates import coordinates_of
from klimb.trust import trust_report
from klimb.trust.importance import DIRECTIONS, _by_oracle, _expanded, direction_khat, draw, leading_directions
from klimb.trust.weights import LogWeights

RNG = np.random.default_rng(2)
N, L, S = 8000, 500, 400
ONE, OTHER = RNG.integers(0, L, N), RNG.integers(0, S, N)
F = RNG.standard_normal(L)[ONE] + 0.7 * RNG.standard_normal(S)[OTHER]
Y = RNG.random(N) < 1.0 / (1.0 + np.exp(-F))


@pytest.fixture(scope="module")
def result():
    sparse = csr_matrix((np.ones(N), (np.arange(N), OTHER)), shape=(N, S))
    latent = klimb.latents.Crossed(np.ones((N, 1)), sparse, ONE, n_levels=L, roots=[(0.7, S)])
    return klimb.infer(latent, klimb.sites.Logistic(), Y)


def test_derivatives_say_what_the_oracle_does(result):
    weights = LogWeights(result.problem, result.posterior, coordinates_of(result.posterior))
    sample = draw(weights, 64)
    C, u = leading_directions(weights, sample, DIRECTIONS), RNG.standard_normal((60, DIRECTIONS))
    whole, expanded = (values - values.mean() for values in (_by_oracle(weights, C, u), _expanded(weights, C, u)))
    assert np.abs(whole - expanded).max() < 0.05 * np.abs(whole).max()
    assert direction_khat(weights, sample, 0) <= 0.0  # nearly all draws are effective


def test_a_good_fit_of_many_directions_is_no_doubt(result, monkeypatch):
    """Weights over all of them have a heavy tail, and no draws along a few were allowed for so many sites."""
    monkeypatch.setattr(report, "MOST_SITES", 1)
    monkeypatch.setattr(report, "DIRECTION_VALUES", 0)
    found = trust_report(result, draws=40)
    assert found.method == "second order"
    assert found.khat > 0.7 or found.efficiency < 0.5
    assert found.verdict == "trust"
    assert found.number < 0.03
