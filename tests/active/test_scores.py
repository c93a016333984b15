"""Scores of candidates against references of high precision, brute force and closed forms."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from klimb.active import (
    SCORES,
    Candidates,
    bald,
    classifier_uncertainty,
    epig,
    include,
    information_gain,
    variance_reduction,
)
from klimb.active.batch import GRID, Box, Shortlist
from klimb.errors import InputError
from klimb.sites import (
    CLogLog,
    Custom,
    Gaussian,
    Laplace,
    Logistic,
    NegativeBinomial,
    Ordinal,
    Poisson,
    Probit,
    StudentT,
    SuperGaussian,
)

REFERENCES = json.loads((Path(__file__).parent.parent / "references" / "design_bald.json").read_text())


@pytest.mark.parametrize("link", ["logistic", "probit"])
def test_bald_has_eight_digits(link: str) -> None:
    """Of variances from 1e-12 to 1e6 and in the tails, against 60 digits (tests/references)."""
    rows = [row for row in REFERENCES if row["link"] == link]
    m, v, expected = (np.array([float(row[name]) for row in rows]) for name in ("m", "v", "bald"))
    found = bald({"logistic": Logistic(), "probit": Probit()}[link], m, v)
    assert len(rows) >= 6
    assert found == pytest.approx(expected, rel=1e-8)


def test_bald_of_a_certain_value_is_zero_and_wide_ones_reach_one_bit() -> None:
    assert bald(Logistic(), np.array([0.3, 0.3]), np.array([0.0, 1.0]))[0] == 0.0
    assert bald(Probit(), np.zeros(1), np.array([1e12]))[0] == pytest.approx(np.log(2.0), rel=1e-5)


@pytest.mark.parametrize(("m", "v"), [(0.0, 1e-6), (1.0, 0.5), (3.0, 0.2), (-5.0, 1.0)])
def test_bald_of_counts_by_brute_force(m: float, v: float) -> None:
    from scipy.stats import poisson

    z = np.linspace(-9.0, 9.0, 2001)
    weight = np.exp(-0.5 * z * z)
    weight /= weight.sum()
    rate = np.exp(m + np.sqrt(v) * z)
    P = poisson.pmf(np.arange(int(rate.max() + 12 * np.sqrt(rate.max())) + 30)[:, None], rate)
    q = (P @ weight)[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(P > 0, P * np.log(P / q) - P + q, q)
    assert bald(Poisson(), np.array([m]), np.array([v]))[0] == pytest.approx(terms.sum(axis=0) @ weight, rel=1e-7)


def test_counts_with_an_uncertain_rate() -> None:
    """Each count has a narrow peak in s then; against sums over 3,000 counts and an integral beyond on 4,001 nodes."""
    found = bald(Poisson(), np.array([2.916041367, 3.148816558]), np.array([2.786413411, 2.312554064]))
    assert found == pytest.approx([2.0092868, 2.0248434], rel=1e-6)


def test_many_counts_are_as_good_as_gaussian() -> None:
    """Counts of e^14 with relative noise e^-7: I = log(1 + e^14 v) / 2 but for O(e^-14)."""
    assert bald(Poisson(), np.array([14.0]), np.array([1e-6]))[0] == pytest.approx(0.5 * np.log1p(np.exp(14) * 1e-6),
                                                                                  rel=1e-6)


def test_bald_of_numbers() -> None:
    v = np.array([0.1, 1.0])
    assert bald(Gaussian(scale=2.0), np.zeros(2), v) == pytest.approx(0.5 * np.log1p(v / 4.0), rel=1e-14)
    assert bald(StudentT(df=1e6, scale=1.0), np.zeros(2), v) == pytest.approx(0.5 * np.log1p(v), rel=0.02)
    grades = Ordinal(cutpoints=[-1.0, 1.0])
    assert 0.0 < bald(grades, np.zeros(1), np.ones(1))[0] < np.log(3.0)


def test_user_sites_take_the_generic_path() -> None:
    """A Gaussian likelihood written by hand, with its distribution function."""
    from scipy.special import ndtr

    mine = Custom(lambda y, f: -0.5 * (y - f) ** 2 - 0.5 * np.log(2.0 * np.pi), cdf=lambda y, f: ndtr(y - f))
    m, v = np.array([0.3, -1.0]), np.array([0.5, 2.0])
    assert bald(mine, m, v) == pytest.approx(0.5 * np.log1p(v), rel=0.02)
    assert information_gain(mine, m, v) == pytest.approx(0.5 * np.log1p(v), rel=2e-3)  # 33 quantiles


def own_bound(site, y, m, v, new_m, new_v):
    with np.errstate(over="ignore"):
        value = site.oracle(y, new_m, new_v).value
    return value - 0.5 * (new_v / v - 1.0 - np.log(new_v / v) + (new_m - m) ** 2 / v)


@pytest.mark.parametrize("site", [Logistic(), Probit(), Poisson(), CLogLog(), NegativeBinomial(2.0), Laplace(1.0),
                                  StudentT(3.0, 1.0), SuperGaussian(Logistic()), SuperGaussian(Laplace(0.5))],
                         ids=lambda site: repr(site)[:24])
@pytest.mark.parametrize("v", [1e-10, 1e-2, 1.0, 100.0])
def test_a_new_site_is_at_its_optimum(site, v: float) -> None:
    """No small step in mean or variance raises the bound of the datum."""
    m = np.array([-3.0, 0.0, 2.0])
    y = site.validate(np.ones(3))
    variance = np.full(3, v)
    new = include(site, y, m, variance)
    top = own_bound(site, y, m, variance, new.m, new.v)
    assert new.v == pytest.approx(variance / (1.0 + new.gamma * variance), rel=1e-12)
    assert np.all(np.isfinite(top))
    for step in (1e-3, 1e-2, 0.3):
        for d_m, d_v in ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, 1)):
            moved = own_bound(site, y, m, variance, new.m + d_m * step * np.sqrt(new.v), new.v * np.exp(d_v * step))
            assert np.all(moved <= top + 1e-12 * (1.0 + np.abs(top)))


def test_information_gain_is_the_papers_formula() -> None:
    """[N] appendix, in the paper's own symbols (sigma = 1): phi_i minimised on a grid, D[Q' || Q] at its minimum."""
    mu, rho = 0.7, 2.3
    gamma = np.exp(np.linspace(np.log(4.0 + 1e-9), np.log(4e3), 400_001))  # below gamma_0 = 4, h is constant
    x = np.exp(np.linspace(-14.0, 12.0, 400_001))
    # h(gamma) = -min_x x/gamma + 2 g(x), from its minimiser: gamma(x) = -1/(2 g'(x))
    root = np.sqrt(x)
    gamma_of_x = 2.0 * root / np.tanh(0.5 * root)
    h = np.interp(gamma, gamma_of_x, -x / gamma_of_x + 2.0 * np.log(2.0 * np.cosh(0.5 * root)))
    total = 0.0
    p = Logistic().predict([mu], [rho]).probabilities()[0]
    for c, q in zip((-1.0, 1.0), p, strict=True):
        beta = 0.5 * c
        kappa = 1.0 + rho / gamma
        phi = h + np.log(kappa) - (mu + rho * beta) ** 2 / (rho * kappa)
        best = int(phi.argmin())
        g, k = gamma[best], kappa[best]
        total += q * 0.5 * (np.log(k) + rho / k * ((beta - mu / g) ** 2 / k - 1.0 / g))
    found = information_gain(SuperGaussian(Logistic()), np.array([mu]), np.array([rho]))[0]
    assert found == pytest.approx(total, rel=1e-5)  # the grid's error


def test_information_gain_of_gaussian_data_is_mutual_information() -> None:
    v = np.array([1e-8, 0.5, 30.0])
    found = information_gain(Gaussian(scale=1.0), np.zeros(3), v)
    assert found == pytest.approx(0.5 * np.log1p(v), rel=0.01)  # the mean of y^2 by 33 quantiles


def density(site, y, s):
    label = np.full(s.shape[-1], y)
    return np.exp(site.point(label, s).value + site.constant(label))


def test_epig_by_brute_force() -> None:
    z = np.linspace(-9.0, 9.0, 401)
    w = np.exp(-0.5 * z * z)
    w /= w.sum()
    for site in (Logistic(), Probit(), Ordinal(cutpoints=[-1.0, 1.0])):
        for r, v, t in ((0.3, 1.0, 2.0), (-0.9, 4.0, 0.5), (0.999, 1.0, 1.0)):
            m, m_t = 0.5, -1.0
            s_t = m_t + np.sqrt(t) * z
            s = m + np.sqrt(v) * (r * z[:, None] + np.sqrt(1 - r * r) * z)
            labels = site.labels()
            P = np.array([[w @ ((density(site, a, s) @ w) * density(site, b, s_t)) for b in labels] for a in labels])
            assert P.sum() == pytest.approx(1.0, abs=1e-9)
            expected = float(np.sum(P * np.log(P / np.outer(P.sum(axis=1), P.sum(axis=0)))))
            one = np.ones(1)
            found = epig(site, m * one, v * one, m_t * one, t * one, np.array([[r * np.sqrt(v * t)]]))[0]
            assert found == pytest.approx(expected, rel=1e-6)


def test_epig_of_gaussian_data_is_closed_form_and_zero_without_correlation() -> None:
    v, t, c = np.array([1.0, 2.0]), np.array([0.5]), np.array([[0.3], [0.0]])
    found = epig(Gaussian(scale=0.5), np.zeros(2), v, np.zeros(1), t, c)
    expected = -0.5 * np.log1p(-0.3**2 / ((1.0 + 0.25) * (0.5 + 0.25)))
    assert found == pytest.approx([expected, 0.0], rel=1e-9)


def test_variance_reduction_is_what_gaussian_data_do() -> None:
    v, c = np.array([2.0]), np.array([[0.4, -0.6]])
    assert variance_reduction(Gaussian(scale=1.0), np.zeros(1), v, np.zeros(2), np.ones(2), c)[0] == pytest.approx(
        np.mean(c**2) / (1.0 + 2.0), rel=1e-9)


def test_shortlists_find_the_winner_of_all() -> None:
    rng = np.random.default_rng(3)
    for score in (SCORES["bald"], SCORES["ig"]):
        shortlist, computed = Shortlist(), []

        def counted(site, m, v, rule=score.rule, computed=computed):
            computed.append(m.size)
            return rule(site, m, v)

        watched = replace(score, rule=counted)
        for shrink in (1.0, 0.7):
            some = Candidates(Logistic(), 2.0 * rng.standard_normal(7000), shrink * rng.gamma(0.7, 1.0, 7000))
            found, exact = shortlist.scores(watched, some), score.of(some)
            assert found.argmax() == exact.argmax()
            assert found.max() == pytest.approx(exact.max(), rel=1e-9)
        assert sum(computed) < 7000  # of 14,000, grid and probes included


@pytest.mark.parametrize("jagged", [False, True])
def test_no_spline_exceeds_its_bounds(jagged) -> None:
    rng = np.random.default_rng(4)
    x = np.linspace(-1.0, 1.0, GRID)
    coefficients = rng.standard_normal((GRID, GRID)) * 50.0 if jagged else -((x[:, None] - 0.3) ** 2) + x
    box = Box(SCORES["bald"], Logistic(), (-3.0, -1.0), (4.0, 2.0), coefficients)
    m, log_v = rng.uniform(-3.0, 4.0, 20_000), rng.uniform(-1.0, 2.0, 20_000)
    m[:4], log_v[:4] = [-3.0, -3.0, 4.0, 4.0], [-1.0, 2.0, -1.0, 2.0]
    room = box.bounds(m, log_v) - box.at(m, log_v)
    assert room.min() >= 0.0
    assert jagged or room.max() < 0.08  # two cells of 2/188 at the steepest slope, 3.6


@pytest.mark.parametrize("score", [SCORES["bald"], SCORES["ig"]])
def test_shortlists_are_those_of_the_spline_at_every_candidate(score, monkeypatch) -> None:
    rng = np.random.default_rng(5)
    for spread in (0.01, 1.0, 30.0):
        some = Candidates(Logistic(), spread * rng.standard_normal(8000), spread * rng.gamma(0.7, 1.0, 8000))
        found = Shortlist().scores(score, some)
        with monkeypatch.context() as patch:
            patch.setattr(Box, "bounds", lambda box, m, log_v: np.full(m.size, np.inf))  # rules nobody out
            np.testing.assert_array_equal(found, Shortlist().scores(score, some))


def test_messages() -> None:
    with pytest.raises(InputError, match="classes"):
        classifier_uncertainty(Poisson(), np.zeros(1), np.ones(1))
    with pytest.raises(InputError, match="target rows"):
        SCORES["epig"].of(Candidates(Logistic(), np.zeros(1), np.ones(1)))
    with pytest.raises(InputError, match="same parameters"):
        epig(Gaussian(scale=np.array([1.0, 2.0])), np.zeros(2), np.ones(2), np.zeros(1), np.ones(1), np.zeros((2, 1)))


def test_the_information_gain_of_gaussian_data_is_their_mutual_information() -> None:
    v = np.array([1e-8, 1e-3, 1.0, 1e6])
    found = information_gain(Gaussian(scale=0.5), np.linspace(-3.0, 3.0, 4), v)
    assert found == pytest.approx(0.5 * np.log1p(v / 0.25), rel=1e-12)


def test_lists_are_numbers_and_bad_ones_are_refused() -> None:
    assert bald(Logistic(), [0.0, 1.0], [1.0, 1.0]).shape == (2,)  # type: ignore[arg-type]
    for m, v in (([0.0], [-1.0]), ([0.0, 1.0], [1.0])):
        with pytest.raises(InputError, match="m and v must be as many means and variances"):
            bald(Logistic(), np.array(m), np.array(v))
