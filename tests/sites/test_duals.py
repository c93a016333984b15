"""Duals of super-Gaussian sites: digits against references, Legendre duality, Theorems 1 and 2 of [N]."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from klimb import sites
from klimb.errors import InputError
from klimb.numerics.arrays import Array
from klimb.numerics.search import monotone_root
from klimb.sites import local as duals
from klimb.sites.base import Expectation, Site, clean_data, even_part_of_point

REFERENCES = json.loads((Path(__file__).parent.parent / "references" / "dual_references.json").read_text())
DIGITS = 1e-12

EVERY: list[tuple[Site, float]] = [
    (sites.Logistic(), 1.0), (sites.Binomial(9.0), 7.0), (sites.NegativeBinomial(1.7), 4.0), (sites.Laplace(0.4), 0.25),
    (sites.StudentT(3.0, 0.7), -1.0), (sites.ExponentialPower(0.8, 1.5), 0.25),
    (sites.ExponentialPower(0.8, 0.5), 0.25),
    (sites.Sech2(0.3), 0.5), (sites.Weighted(sites.Logistic(), 2.5), 1.0), (sites.Offset(sites.Laplace(0.4), 0.3), 0.1),
]
each_site = pytest.mark.parametrize(("site", "y"), EVERY, ids=[type(s).__name__ + str(i) for i, (s, _) in
                                                               enumerate(EVERY)])
each_reference = pytest.mark.parametrize("name", REFERENCES)


def site_of(entry) -> Site:
    return getattr(sites, entry["site"])(*entry["parameters"])


def close(found: Array, expected: Array, scale: Array | float = 0.0, digits: float = DIGITS) -> None:
    error = np.abs(found - expected) / np.maximum(np.maximum(np.abs(expected), scale), 1e-300)
    assert error.max() <= digits, f"{error.max():.1e} at {np.argmax(error)}"


# -- digits


@each_reference
def test_even_parts(name):
    entry = REFERENCES[name]
    x, value, slope, curvature = np.array(entry["even"]).T
    found = site_of(entry).even_part(np.full(x.size, entry["y"]), x)
    close(found.value, value)
    close(found.slope, slope)
    close(found.curvature, curvature, digits=1e-11)
    close(found.bend, -(2 * slope + 4 * x * curvature), scale=np.abs(slope))


@each_reference
@pytest.mark.parametrize("closed", [True, False])
def test_heights(name, closed, monkeypatch):
    entry = REFERENCES[name]
    site = site_of(entry)
    if not closed:  # the search, where a site would know the answer
        monkeypatch.setattr(type(site), "touching", Site.touching)
    variance, value, slope, curvature = np.array(entry["heights"]).T
    found = duals.height(site, np.full(variance.size, entry["y"]), variance)
    close(found.value, value, scale=slope * variance)
    # Just above the threshold x_* is proportional to variance - gamma_0, a difference of nearly equal numbers.
    edge = duals.threshold(site, np.array([entry["y"]]))
    loss = np.where(variance > edge.variance, variance / np.maximum(variance - edge.variance, 1e-300), 1.0)
    assert (np.abs(found.slope - slope) <= 1e-13 * loss * slope).all()
    assert (np.abs(found.curvature - curvature) <= 1e-12 * loss * np.abs(curvature) + 1e-300).all()


def penalty_by_minimisation(site, y, s, z, *, start=None):
    """h* as the paper defines it: a search for the variance, inside it one for x_*; ``start`` are variances."""
    slope, centre = site.symmetry(y)
    error = s - centre
    total = error * error + z

    def excess(rows, t):
        """log x_*(variance) - log(z + s^2) at t = log variance: gamma^2 k_gamma = 0 at the root."""
        square = duals.height(site.rows(rows), y[rows], np.exp(t)).square
        return np.log(square) - np.log(total[rows])

    guess = np.log(total) if start is None else np.log(start)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        variance = np.exp(monotone_root(excess, guess, np.ones_like(guess)))
    found = duals.height(site, y, variance)
    # [N] Appendix: (h*)' = s / gamma - b and (h*)'' = (1 - 2x / (gamma^3 k_gamma,gamma)) / gamma
    bent = 2.0 * total + variance**3 * found.curvature
    return duals.Penalty(0.5 * (total / variance + found.value) - slope * error, error / variance - slope,
                         (1.0 - 2.0 * error * error / bent) / variance, variance)


@each_reference
@pytest.mark.parametrize("way", [duals.penalty, penalty_by_minimisation])
def test_penalties(name, way):
    entry = REFERENCES[name]
    site, (s, z, value, slope, curvature) = site_of(entry), np.array(entry["penalties"]).T
    found = way(site, np.full(s.size, entry["y"]), s + entry["centre"], z)
    exact = way is duals.penalty
    odd = abs(float(site.symmetry(np.array([entry["y"]]))[0][0]))
    close(found.value, value, scale=odd * np.abs(s) + 1e-3 * (way is not duals.penalty))
    # s + centre is rounded to a double, which moves s by up to 1e-14 of 200; far out the search has as many digits
    moved = 2e-16 * (np.abs(s) + abs(entry["centre"])) / np.maximum(np.abs(s), 1e-300) * (s != 0)
    assert (np.abs(found.slope - slope) <= (1e-12 + moved) * (np.abs(slope) + odd)).all()
    gamma = 1.0 / found.variance
    assert (np.abs(found.curvature - curvature) <= (1e-11 if exact else 1e-8) * np.abs(curvature)
            + 2e-15 * gamma * (1.0 if exact else 1e3)).all()


# -- duality


@each_site
def test_legendre_round_trip(site, y):
    """x -> variance -> x: where the Gaussian that touches at x touches."""
    x = np.geomspace(1e-6, 1e6, 60)
    clean = np.full(x.size, site.validate([y])[0])
    even = site.even_part(clean, x)
    variance = 1.0 / even.gamma
    found = duals.height(site, clean, variance)
    edge = duals.threshold(site, clean)
    loss = variance / (variance - edge.variance)
    assert (np.abs(found.square - x) <= 1e-13 * loss * x).all()
    assert_allclose(-0.5 * (x / variance + found.value), even.value, rtol=1e-12)  # the bound touches


@each_site
def test_gaussians_lie_below(site, y):
    clean = np.full(400, site.validate([y])[0])
    s = np.linspace(-30.0, 30.0, 400)
    slope, centre = site.symmetry(clean)
    log_p = site.point(clean, centre + s).value
    for variance in (1e-3, 0.1, 1.0, 30.0, 1e4):
        h = duals.height(site, clean, np.full(400, variance)).value
        below = slope * s - 0.5 * s * s / variance - 0.5 * h
        assert (below <= log_p + 1e-12 * np.abs(log_p)).all()


@each_site
def test_penalty_is_the_minimum(site, y):
    """h* against brute force over a grid of variances."""
    clean = np.full(2000, site.validate([y])[0])
    variance = np.geomspace(1e-5, 1e7, 2000)
    h = duals.height(site, clean, variance).value
    slope, centre = (part[0] for part in site.symmetry(clean))
    for s, z in [(0.0, 0.5), (0.7, 0.01), (-3.0, 4.0), (20.0, 300.0)]:
        brute = (0.5 * ((z + s * s) / variance + h)).min() - slope * s
        found = duals.penalty(site, clean[:1], np.array([centre + s]), np.array([z]))
        assert found.value[0] <= brute + 1e-12 * abs(brute)
        assert found.value[0] == pytest.approx(brute, rel=1e-4, abs=1e-4)


@each_site
def test_the_oracle_is_the_penalty(site, y):
    rng = np.random.default_rng(1)
    m, v = 3.0 * rng.standard_normal(50), np.exp(3.0 * rng.standard_normal(50))
    clean, local = np.full(50, site.validate([y])[0]), sites.SuperGaussian(site)
    e, found = local.oracle(clean, m, v), duals.penalty(site, clean, m, v)
    assert_allclose(e.value, -found.value, rtol=1e-14, atol=1e-14)
    assert_allclose(e.alpha, found.slope, rtol=1e-14, atol=1e-14)
    assert_allclose(e.gamma, 1.0 / found.variance, rtol=1e-14)
    step = 1e-4 * np.sqrt(v)
    slope = (local.oracle(clean, m + step, v).alpha - local.oracle(clean, m - step, v).alpha) / (2 * step)
    assert_allclose(local.curvature(clean, m, v), slope, rtol=1e-6, atol=1e-7)


def test_curvature_of_other_oracles_is_gamma():
    y, m, v = np.array([1.0, -1.0]), np.array([0.3, 2.0]), np.array([1.0, 4.0])
    site = sites.Logistic()
    assert_allclose(site.curvature(y, m, v), site.oracle(y, m, v).gamma)
    stack = sites.Stack([(sites.SuperGaussian(site), 1), (site, 1)])
    assert_allclose(stack.curvature(y, m, v)[1], site.oracle(y, m, v).gamma[1])
    assert_allclose(sites.SuperGaussian(sites.Stack([(site, 2)])).curvature(y, m, v),
                    sites.SuperGaussian(site).curvature(y, m, v))


@pytest.mark.parametrize("start", ["none", "exact", "far"])
def test_warm_starts_lead_to_the_same_place(start):
    variance = np.geomspace(4.001, 1e6, 40)
    y = np.ones(40)
    cold = duals.height(sites.Logistic(), y, variance)
    guess = {"none": None, "exact": cold.square, "far": np.full(40, 1e-9)}[start]
    again = duals.height(sites.Logistic(), y, variance, start=guess)
    assert_allclose(again.square, cold.square, rtol=1e-11)
    assert_allclose(again.value, cold.value, rtol=1e-13)


# -- thresholds


def test_thresholds_of_the_paper():
    for weight, site in ((1.0, sites.Logistic()), (3.0, sites.Weighted(sites.Logistic(), 3.0))):
        found = sites.SuperGaussian(site).threshold([1])
        assert_allclose(found.variance, 4.0 / weight)  # gamma_0 = 1/(2C), xi_0 = 3/(2C) with C = 1/8
        assert_allclose(found.rate, 12.0)
    found = sites.SuperGaussian(sites.StudentT(3.0, 0.7)).threshold([0.0])
    assert_allclose(found.variance, 3.0 * 0.49 / 4.0)
    assert_allclose(found.rate, 3.0 * 0.49)
    assert sites.SuperGaussian(sites.Laplace(1.0)).threshold([0.0]).variance == 0.0


def test_close_to_the_threshold():
    """x_* = xi_0 log(gamma / gamma_0) to first order, and the search joins it without a jump."""
    above = 4.0 * (1.0 + np.array([1e-12, 1e-10, 0.9e-8, 1.1e-8, 1e-7, 1e-5]))
    found = duals.height(sites.Logistic(), np.ones(6), above)
    assert_allclose(found.square, 12.0 * np.log(above / 4.0), rtol=2e-5)
    assert (np.diff(found.square) > 0.0).all()
    below = duals.height(sites.Logistic(), np.ones(3), np.array([1e-6, 3.0, 4.0]))
    assert_allclose(below.value, 2.0 * np.log(2.0))
    assert not below.slope.any()
    assert not below.curvature.any()


# -- the theorems


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(0, 2**31 - 1), st.integers(1, 6), st.integers(1, 8), st.floats(-4.0, 4.0))
def test_theorem_1(seed, n, q, level):
    """log|X'X + B' diag(1/gamma) B| is convex in the variances gamma: Hessians and segments."""
    rng = np.random.default_rng(seed)
    X, B = rng.standard_normal((rng.integers(0, n + 1), n)), rng.standard_normal((q, n))
    ridge = 1e-3 * np.eye(n)

    def log_det(gamma):
        return np.linalg.slogdet(ridge + X.T @ X + (B.T / gamma) @ B)[1]

    gamma = np.exp(level + rng.standard_normal(q))
    S = B @ np.linalg.solve(ridge + X.T @ X + (B.T / gamma) @ B, B.T)
    hessian = np.diag(2.0 * np.diag(S) / gamma**3) - S**2 / np.outer(gamma, gamma) ** 2
    scale = np.sqrt(np.diag(hessian))
    assert np.linalg.eigvalsh(hessian / np.outer(scale, scale)).min() > -1e-9
    other = np.exp(level + rng.standard_normal(q))
    ends = 0.5 * (log_det(gamma) + log_det(other))
    assert log_det(0.5 * (gamma + other)) <= ends + 1e-9 * max(abs(ends), 1.0)


def test_theorem_1_fails_for_precisions():
    """The same determinant is concave in the precisions: the test above can fail."""
    rng = np.random.default_rng(0)
    B = rng.standard_normal((4, 3))
    a, b = np.exp(rng.standard_normal(4)), np.exp(rng.standard_normal(4))
    f = [np.linalg.slogdet(np.eye(3) + (B.T * g) @ B)[1] for g in (a, 0.5 * (a + b), b)]
    assert f[1] > 0.5 * (f[0] + f[2])


@each_site
def test_theorem_2(site, y):
    """h is convex if and only if the site is log-concave."""
    variance = np.geomspace(1e-3, 1e5, 3000)
    clean = np.full(variance.size, site.validate([y])[0])
    found = duals.height(site, clean, variance)
    if site.log_concave:
        assert (found.curvature >= 0.0).all()
    else:
        assert (found.curvature < 0.0).any()
    # and h'' is the derivative of h'
    step = 1e-5 * variance
    up, down = (duals.height(site, clean, variance + k * step).slope for k in (1.0, -1.0))
    inner = found.square > 1e-2
    size = found.slope / variance
    assert (np.abs((up - down) / (2.0 * step) - found.curvature)[inner] <= 1e-5 * size[inner]).all()


@each_site
def test_curvature_is_not_negative(site, y):
    s = np.tile(np.concatenate([[0.0], np.geomspace(1e-12, 1e6, 60), -np.geomspace(1e-12, 1e6, 60)]), 5)
    z = np.repeat([0.0, 1e-12, 1e-3, 1.0, 1e6], 121)
    clean = np.full(s.size, site.validate([y])[0])
    found = duals.penalty(site, clean, site.symmetry(clean)[1] + s, z)
    for part in (found.value, found.slope, found.curvature, found.variance):
        assert not np.isnan(part).any()
    if site.log_concave:
        assert (found.curvature >= 0.0).all()
    else:
        assert (found.curvature < 0.0).any()


# -- a user's own site


@dataclass(frozen=True, eq=False)
class Cosh(Site):
    """log p = y f - weight log cosh f, known by ``point`` and ``symmetry`` alone."""

    weight: float

    log_concave, gamma_trend, super_gaussian, discrete = True, "mixed", True, False
    support, response = "the real numbers", "real"

    def validate(self, y):
        return clean_data(self, y, np.isfinite, "")

    def constant(self, y):
        return np.zeros(())

    def oracle(self, y, m, v):
        raise NotImplementedError

    def point(self, y, f):
        size = np.abs(f)
        value = size + np.log1p(np.exp(-2.0 * size)) - np.log(2.0)
        return Expectation(y * f - self.weight * value, self.weight * np.tanh(f) - y,
                           self.weight * (1.0 - np.tanh(f) ** 2))

    def symmetry(self, y):
        return y, np.zeros_like(y)

    def start(self, y):
        return y, np.ones_like(y)


def test_a_users_site_has_duals():
    """Only ``point`` is given; the answer is a logistic site in other units: 2 softplus(2f) - 2f = 2 log 2 cosh f."""
    own, known = sites.SuperGaussian(Cosh(2.0)), sites.SuperGaussian(sites.Binomial(2.0))
    y, x = np.full(46, 0.3), np.concatenate([[0.0], np.geomspace(1e-13, 300.0, 45)])
    found = own.site.even_part(y, x)
    expected = known.site.even_part(np.full(46, 1.0), 4.0 * x)
    assert_allclose(found.value, expected.value + 2.0 * np.log(2.0), rtol=1e-12, atol=1e-15)
    assert_allclose(found.slope, 4.0 * expected.slope, rtol=1e-12)
    assert_allclose(found.curvature, 16.0 * expected.curvature, rtol=1e-10)
    h = own.height([0.3] * 4, [0.2, 0.6, 3.0, 1e4])
    g = known.height([1.0] * 4, [0.8, 2.4, 12.0, 4e4])
    assert_allclose(h.square, g.square / 4.0, rtol=1e-11)
    assert_allclose(h.value, g.value - 4.0 * np.log(2.0), rtol=1e-11, atol=1e-13)
    assert_allclose(own.threshold([0.3]).rate, 3.0, rtol=1e-11)


@pytest.mark.parametrize("site", [sites.Logistic(), sites.StudentT(3.0, 0.7), sites.Sech2(0.3)])
def test_even_parts_from_points(site):
    """The general way has nearly all digits of the closed forms, also at the centre."""
    x = np.concatenate([[0.0], np.geomspace(1e-14, 1e4, 80)])
    y = np.ones_like(x)
    found, closed = even_part_of_point(site, y, x), site.even_part(y, x)
    assert_allclose(found.slope, closed.slope, rtol=1e-11)
    assert_allclose(found.curvature, closed.curvature, rtol=1e-9)


# -- bad input


def test_refused():
    local = sites.SuperGaussian(sites.Laplace(1.0))
    with pytest.raises(InputError, match="positive"):
        local.height([0.0], [0.0])
    with pytest.raises(InputError, match="at least 0"):
        local.height([0.0], [-1.0])
    with pytest.raises(InputError, match="finite"):
        local.penalty([0.0], [np.nan], [1.0])
    with pytest.raises(InputError, match="super-Gaussian"):
        sites.SuperGaussian(sites.Poisson())
    with pytest.raises(InputError, match="super-Gaussian"):
        sites.Poisson().symmetry(np.ones(1))


@pytest.mark.parametrize("site", [
    sites.Logistic(), sites.Laplace(1e-12), sites.Laplace(1e6), sites.StudentT(1e-3, 1e-9), sites.StudentT(1e8, 1e6),
    sites.ExponentialPower(1e-9, 0.01), sites.ExponentialPower(1e6, 1.999), sites.ExponentialPower(1.0, 0.1),
    sites.Sech2(1e-9), sites.Sech2(1e6), sites.Binomial(1e6), sites.NegativeBinomial(1e-6),
    sites.Weighted(sites.Laplace(1.0), 0.0),
], ids=str)
def test_extremes_give_no_nan_and_no_warning(site):
    means, variances = [0.0, 1e-300, 1e-12, 1.0, 1e6, 1e150, -1e6], [0.0, 1e-300, 1e-12, 1e-3, 1.0, 1e12, 1e200]
    m, v = (part.ravel() for part in np.meshgrid(means, variances))
    y = site.validate(np.zeros(m.size))
    local = sites.SuperGaussian(site)
    e, p, h = local.oracle(y, m, v), duals.penalty(site, y, m, v), local.height(y[0], np.geomspace(1e-30, 1e30, 61))
    parts = (e.value, e.alpha, e.gamma, local.curvature(y, m, v), p.value, p.variance, h.value, h.slope, h.curvature)
    for part in parts:
        assert not np.isnan(part).any()
    assert np.isfinite(e.gamma).all()
    assert (e.gamma >= 0.0).all()
