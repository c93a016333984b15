"""Far beyond the everyday: parameters, data and moments over many orders of magnitude give numbers, not NaN."""

from __future__ import annotations

import numpy as np
import pytest

from klimb import sites
from klimb.sites.base import Site

N = 600
RNG = np.random.default_rng(7)


def powers(low: float, high: float) -> np.ndarray:
    return 10.0 ** RNG.uniform(low, high, N)


V = powers(-14, 8)
V[::17] = 0.0
NEAR, FAR, SPREAD = RNG.normal(size=N) * 5.0, RNG.uniform(-1e3, 1e3, N), RNG.normal(size=N) * np.sqrt(V)
M = np.choose(RNG.integers(0, 3, N), (NEAR, FAR, SPREAD))
M[:30] = 0.0
LABELS = RNG.integers(0, 2, N)
TRIALS = np.floor(powers(0, 8))
CUTS = [-1e3, -5.0, -4.999999, 0.0, 50.0, 1e4]

CASES: dict[str, tuple[Site, np.ndarray]] = {
    "Logistic": (sites.Logistic(), LABELS),
    "Probit": (sites.Probit(), LABELS),
    "CLogLog": (sites.CLogLog(), LABELS),
    "Binomial": (sites.Binomial(TRIALS), np.floor(TRIALS * RNG.uniform(size=N))),
    "Poisson": (sites.Poisson(powers(-10, 10)), np.floor(powers(-1, 9))),
    "NegativeBinomial": (sites.NegativeBinomial(powers(-4, 8)), np.floor(powers(-1, 8))),
    "Exponential": (sites.Exponential(), np.where(LABELS, powers(-300, 300), 0.0)),
    "Exponential mean": (sites.Exponential(mean=True), powers(-10, 10)),
    "Gamma": (sites.Gamma(powers(-4, 8)), powers(-12, 12)),
    "Gaussian": (sites.Gaussian(powers(-5, 5)), RNG.normal(size=N) * 1e3),
    "Laplace": (sites.Laplace(powers(-5, 5)), np.where(LABELS, M, RNG.normal(size=N) * 1e3)),
    "StudentT": (sites.StudentT(powers(-1, 6), powers(-5, 5)), RNG.normal(size=N) * 1e3),
    "StudentT scalar": (sites.StudentT(3.0, 0.1), M + RNG.normal(size=N)),
    "StochasticVolatility": (sites.StochasticVolatility(), RNG.normal(size=N) * powers(-10, 10)),
    "Ordinal": (sites.Ordinal(CUTS), RNG.integers(0, 7, N)),
    "Ordinal probit": (sites.Ordinal(CUTS, link="probit"), RNG.integers(0, 7, N)),
    "Beta": (sites.Beta(powers(-4, 7)), np.where(LABELS, powers(-300, -0.01), 1.0 - powers(-15, -0.01))),
}


@pytest.mark.parametrize("name", CASES)
def test_numbers_come_out(name: str) -> None:
    site, y = CASES[name]
    e = site.expect(y, M, V)
    assert not np.isnan(np.stack((e.value, e.alpha, e.gamma))).any()
    assert not np.isnan(site.log_density(y, M)).any()
    if site.log_concave:
        assert (e.gamma >= 0.0).all()
    slope, gamma = site.start(site.validate(y))
    assert np.isfinite(slope).all()
    assert np.isfinite(gamma).all()


@pytest.mark.parametrize("name", [name for name, (site, _) in CASES.items() if site.per_datum])
def test_overflow_is_infinite_only_where_the_mean_of_exp_f_overflows(name: str) -> None:
    site, y = CASES[name]
    e = site.expect(y, M, V)
    finite = np.abs(M) + 0.5 * V < 600.0
    assert np.isfinite(np.stack((e.value, e.alpha, e.gamma))[:, finite]).all()


def test_no_data_at_all_is_an_empty_answer() -> None:
    nothing = np.empty(0)
    for site in (sites.Logistic(), sites.Probit(), sites.CLogLog(), sites.StudentT(3.0), sites.Beta(2.0),
                 sites.Ordinal([0.0, 1.0], link="probit")):
        assert site.oracle(nothing, nothing, nothing).gamma.shape == (0,)
