"""Averages over f by few nodes, beside quadrature by many."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from klimb import sites
from klimb.models.averages import SURE, log_predictive, place_of

Z, MASS = np.polynomial.hermite_e.hermegauss(120)
MASS = MASS / MASS.sum()


def left_out(site: Any, y: Any, f: Any, v: Any) -> tuple[Any, Any, Any, Any]:
    """q = N(m, v) of each datum and what is left of it without the datum's own site."""
    e = site.oracle(y, f, v)
    out = v / (1.0 - e.gamma * v)
    return f, v, f + out * e.alpha, out


@pytest.mark.parametrize("site", [sites.Logistic(), sites.Poisson(), sites.Binomial(9.0), sites.NegativeBinomial(3.0)],
                         ids=lambda site: type(site).__name__)
@pytest.mark.parametrize("width", [1e-3, 0.02, 0.1, 0.7])  # one node, three, five, and as many as it takes
def test_densities_of_rows_left_out_are_integrals(site: Any, width: float) -> None:
    rng = np.random.default_rng(1)
    n, f = 300, rng.standard_normal(300)
    raw = {"Logistic": rng.random(n) < 0.5, "Binomial": rng.integers(0, 10, n)}
    y = site.validate(np.asarray(raw.get(type(site).__name__, rng.poisson(np.exp(f))), dtype=float))
    v = width * rng.uniform(0.5, 1.0, n)
    v = np.minimum(v, 0.5 / site.oracle(y, f, v).gamma)
    m, v, m_out, v_out = left_out(site, y, f, v)
    found = log_predictive(site, y, m_out, v_out, m, v, (site.oracle(y, m, v).gamma * v, np.ones(n)))
    logs = site.point(y, m_out + np.sqrt(v_out) * Z[:, None]).value + site.constant(y)
    exact = np.log(MASS @ np.exp(logs))
    assert np.abs(found - exact).max() < 2e-4
    assert abs(float((found - exact).sum())) < max(2.0 * SURE, 1e-4 * n * (width > 0.5))


@pytest.mark.parametrize("width", [1e-3, 0.05, 1.0])
def test_places_are_right_to_a_share_of_their_tail(width: float) -> None:
    rng = np.random.default_rng(2)
    m, v = rng.normal(0.5, 1.0, 3000), width * rng.uniform(0.2, 1.0, 3000)
    y = rng.poisson(np.exp(m + np.sqrt(v) * rng.standard_normal(3000))).astype(float)
    exact = MASS @ stats.poisson.cdf(y, np.exp(m + np.sqrt(v) * Z[:, None]))
    apart = np.abs(place_of(sites.Poisson(), y, m, v) - exact) / np.maximum(np.minimum(exact, 1.0 - exact), 1e-12)
    assert np.quantile(apart, 0.995) < 3e-4
