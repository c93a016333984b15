"""Weighted, Offset, Point, Cavity and Stack: what they are made of, how they nest, what they refuse."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

import klimb.sites as sites
from klimb.errors import InputError
from klimb.sites import Binomial, Cavity, Gaussian, Laplace, Logistic, Offset, Point, Poisson, Stack, StudentT, Weighted

M, V = np.array([-1.0, 0.2, 1.4]), np.array([0.5, 2.0, 1e-3])
EVERY = [
    (Logistic(), [1.0, -1.0, 1.0]), (sites.Probit(), [1.0, -1.0, 1.0]), (sites.CLogLog(), [1.0, -1.0, 1.0]),
    (Binomial([3.0, 4.0, 9.0]), [0.0, 4.0, 5.0]), (Poisson([1.0, 2.0, 0.5]), [0.0, 3.0, 8.0]),
    (sites.NegativeBinomial(1.5), [0.0, 3.0, 8.0]), (sites.Exponential(), [0.1, 1.0, 4.0]),
    (sites.Gamma([1.0, 2.0, 3.0]), [0.1, 1.0, 4.0]), (sites.Weibull([1.0, 2.0, 0.5]), [0.1, 1.0, 4.0]),
    (sites.Censored(sites.Weibull(1.5), [1.0, 0.0, 0.0]), [0.1, 1.0, 4.0]),
    (sites.Censored(Gaussian(0.8), [1.0, 0.0, 0.0]), [0.1, 1.0, 4.0]), (Gaussian([1.0, 0.1, 2.0]), [0.1, 1.0, 4.0]),
    (Laplace(0.5), [0.1, 1.0, -4.0]), (StudentT(3.0, [1.0, 0.2, 4.0]), [0.1, 1.0, -4.0]),
    (sites.ExponentialPower(0.5, [1.5, 0.7, 1.0]), [0.1, 1.0, -4.0]), (sites.Sech2([0.5, 1.0, 2.0]), [0.1, 1.0, -4.0]),
    (sites.StochasticVolatility(), [0.1, 1.0, -4.0]), (sites.Ordinal([-1.0, 1.0]), [0.0, 1.0, 2.0]),
    (sites.Beta(3.0), [0.1, 0.5, 0.9]),
]
every_site = pytest.mark.parametrize(("site", "y"), EVERY, ids=[type(site).__name__ for site, _ in EVERY])
PARTS = ("value", "alpha", "gamma")


def same(found, expected, **tolerance):
    for part in PARTS:
        assert_allclose(getattr(found, part), getattr(expected, part), **({"rtol": 1e-13} | tolerance), err_msg=part)


def repeated(site, counts):
    """The site of rows that are repeated ``counts`` times."""
    return site.rows(np.repeat(np.arange(3), counts))


@every_site
def test_integer_weights_repeat_rows(site, y):
    y, counts = site.validate(y), np.array([2, 0, 3])
    index = np.repeat(np.arange(3), counts)
    once = Weighted(site, counts.astype(float)).expect(y, M, V)
    many = repeated(site, counts).expect(y[index], M[index], V[index])
    for part in PARTS:
        sums = np.bincount(index, getattr(many, part), minlength=3)
        assert_allclose(getattr(once, part), sums, rtol=1e-13, err_msg=part)
    slope, gamma = Weighted(site, counts.astype(float)).start(y)
    plain_slope, plain_gamma = site.start(y)
    assert_allclose(slope, counts * plain_slope)
    assert_allclose(gamma, counts * plain_gamma)
    point = Weighted(site, counts.astype(float)).point(y, np.stack([M, M + 1.0]))
    assert point.value.shape == (2, 3)
    assert_allclose(point.value[:, 1], 0.0)


@every_site
def test_an_offset_shifts(site, y):
    shift = np.array([0.3, -1.0, 2.0])
    shifted, y = Offset(site, shift), site.validate(y)
    same(shifted.expect(y, M, V), site.expect(y, M + shift, V))
    same(shifted.point(y, M), site.point(y, M + shift))
    a, b = shifted.predict(M, V), site.predict(M + shift, V)
    assert_allclose(a.log_density(y), b.log_density(y), rtol=1e-13)
    assert_allclose(a.mean, b.mean, rtol=1e-13)
    assert_allclose(a.quantile(0.3), b.quantile(0.3), rtol=1e-10)
    # the first site, as a function of f: -gamma/2 (f + shift)^2 + slope (f + shift) up to a constant
    (slope, gamma), (plain_slope, plain_gamma) = shifted.start(y), site.start(y)
    assert_allclose(gamma, plain_gamma)
    assert_allclose(slope, plain_slope - plain_gamma * shift)


@every_site
def test_a_point_is_the_oracle_without_spread(site, y):
    if isinstance(site, Laplace):
        pytest.skip("a kink has no curvature at a point")
    y = site.validate(y)
    same(Point(site).expect(y, M, V), site.expect(y, M, 1e-14 * np.ones(3)), rtol=1e-9)
    same(Point(site).expect(y, M, V), Point(site).expect(y, M, 100.0 * V))


@every_site
def test_a_cavity_differentiates_the_log_evidence(site, y):
    y, step = site.validate(y), 1e-3
    at = {k: Cavity(site).expect(y, M + k * step, np.array([0.5, 2.0, 0.1])) for k in (-2, -1, 0, 1, 2)}
    assert_allclose(at[0].value, site.predict(M, [0.5, 2.0, 0.1]).log_density(y), rtol=1e-12)

    def slope_of(part):
        f = {k: getattr(e, part) for k, e in at.items()}
        return (8.0 * (f[1] - f[-1]) - (f[2] - f[-2])) / (12.0 * step)

    assert_allclose(at[0].alpha, -slope_of("value"), rtol=1e-8, atol=1e-10)
    assert_allclose(at[0].gamma, slope_of("alpha"), rtol=1e-7, atol=1e-9)


@every_site
def test_weights_enter_the_cavity_as_powers(site, y):
    y = site.validate(y)
    squared = Cavity(Weighted(site, 2.0)).oracle(y, M, V)
    # E p^2 = E p E_t p with E_t the tilted average; by the trapezoidal rule in 401 nodes
    z = np.linspace(-12.0, 12.0, 4001)[:, None]
    log_p2 = 2.0 * site.point(y, M + np.sqrt(V) * z).value - 0.5 * z * z
    top = log_p2.max(axis=0)
    direct = top + np.log(np.exp(log_p2 - top).sum(axis=0) * (z[1, 0] - z[0, 0]) / np.sqrt(2.0 * np.pi))
    # the rule itself is that good beside a kink and beside a cusp
    rtol = {"Laplace": 1e-5, "ExponentialPower": 1e-4}.get(type(site).__name__, 1e-10)
    assert_allclose(squared.value, direct, rtol=rtol, atol=1e-9)


def test_a_stack_concatenates():
    parts = [(Logistic(), [1.0, 0.0]), (Poisson([1.0, 2.0, 3.0]), [4.0, 0.0, 1.0]), (Gaussian(0.5), [0.3])]
    stack = Stack([(site, len(y)) for site, y in parts])
    m, v = np.linspace(-1.0, 2.0, 6), np.linspace(0.1, 3.0, 6)
    whole = stack.expect(np.concatenate([y for _, y in parts]), m, v)
    same(whole, stack.expect([y for _, y in parts], m, v))
    begin = 0
    prediction = stack.predict(m, v)
    y_all = np.concatenate([y for _, y in parts])
    for site, y in parts:
        piece = slice(begin, begin + len(y))
        begin += len(y)
        same(sites.Expectation(*(getattr(whole, part)[piece] for part in PARTS)), site.expect(y, m[piece], v[piece]))
        alone = site.predict(m[piece], v[piece])
        assert_allclose(prediction.mean[piece], alone.mean)
        assert_allclose(prediction.var[piece], alone.var)
        assert_allclose(prediction.log_density(y_all)[piece], alone.log_density(y))
        assert_allclose(prediction.quantile([0.2, 0.8])[piece], alone.quantile([0.2, 0.8]))
    assert stack.log_concave
    assert not stack.discrete
    assert stack.response == "mixed"
    assert stack.gamma_trend == "mixed"
    point = stack.point(stack.validate(y_all), np.stack([m, 2.0 * m]))
    assert point.value.shape == (2, 6)


def test_rows_of_a_stack_in_any_order():
    stack = Stack([(Logistic(), 2), (Poisson([1.0, 2.0, 3.0]), 3)])
    y, m, v = stack.validate([1.0, 0.0, 4.0, 0.0, 1.0]), np.linspace(-1.0, 2.0, 5), np.linspace(0.1, 3.0, 5)
    whole = stack.oracle(y, m, v)
    for rows in (np.array([4, 0, 3, 3, 1]), np.array([0, 0, 2]), slice(1, 4), np.array([2])):
        part = stack.rows(rows).oracle(y[rows], m[rows], v[rows])
        same(part, sites.Expectation(*(getattr(whole, name)[rows] for name in PARTS)))


def test_a_stack_of_classes():
    stack = Stack([(Logistic(), 1), (sites.Probit(), 2)])
    table = stack.predict([0.3, 0.3, -1.0], 1.0).probabilities()
    assert table.shape == (3, 2)
    assert_allclose(table[1:], sites.Probit().predict([0.3, -1.0], 1.0).probabilities())
    with pytest.raises(InputError, match="same classes"):
        Stack([(Logistic(), 1), (sites.Ordinal([0.0]), 1)]).predict([0.0, 0.0], 1.0).probabilities()


def test_wrappers_nest_in_any_order():
    weights, shift = np.array([2.0, 0.5, 1.0, 3.0]), np.array([0.1, -0.4, 1.0, 0.0])
    inner = Stack([(Logistic(), 2), (StudentT(4.0), 2)])
    y, m, v = [1.0, 0.0, 3.0, -2.0], np.array([0.2, 1.0, 0.0, 0.5]), np.array([1.0, 0.1, 2.0, 4.0])
    one = Weighted(Offset(inner, shift), weights)
    other = Offset(Weighted(inner, weights), shift)
    pieces = Stack([(Weighted(Offset(Logistic(), shift[:2]), weights[:2]), 2),
                    (Offset(Weighted(StudentT(4.0), weights[2:]), shift[2:]), 2)])
    for make in (lambda site: site, Point, Cavity):
        expected = make(one).expect(y, m, v)
        same(make(other).expect(y, m, v), expected)
        same(make(pieces).expect(y, m, v), expected)
        rows = np.array([1, 2, 2])
        clean = inner.validate(y)
        same(make(one).rows(rows).oracle(clean[rows], m[rows], v[rows]),
             sites.Expectation(*(getattr(make(one).oracle(clean, m, v), part)[rows] for part in PARTS)))
    assert not one.log_concave
    assert not one.discrete
    assert_allclose(one.predict(m, v).log_density(y), inner.predict(m + shift, v).log_density(y), rtol=1e-13)


def test_facts_are_those_of_the_inside():
    for wrapper in (Weighted(Logistic(), 2.0), Offset(Logistic(), 1.0), Point(Logistic()), Cavity(Logistic())):
        assert wrapper.log_concave
        assert wrapper.discrete
        assert wrapper.support == Logistic.support
    assert not Weighted(StudentT(3.0), 1.0).log_concave
    assert Weighted(Laplace(1.0), 2.0).super_gaussian
    assert Offset(Laplace(1.0), 2.0).super_gaussian
    assert Point(Poisson()).gamma_trend == "constant"


def test_a_removed_datum_may_be_impossible():
    e = Weighted(Poisson(), [0.0, 1.0]).expect([0, 1], m=[800.0, 0.0], v=[1.0, 1.0])
    assert e.value[0] == 0.0
    assert e.alpha[0] == 0.0
    assert e.gamma[0] == 0.0


@pytest.mark.parametrize(("make", "message"), [
    (lambda: Weighted(Logistic(), [1.0, -2.0]), r"Weighted needs weights >= 0; got -2.0 at index 1 .*removes a datum"),
    (lambda: Weighted("logistic", 1.0), r"Weighted needs a site to wrap; got str. Pass an instance"),
    (lambda: Weighted(Logistic(), [1.0, 2.0]).validate([1, 0, 1]), r"one weights per datum.*2 entries; got 3"),
    (lambda: Offset(Logistic(), [np.nan]), r"offset must be finite; got nan at index 0"),
    (lambda: Offset(Logistic(), [0.0, 1.0]).expect([1, 0, 1], 0.0, 1.0), r"2 entries; got 3"),
    (lambda: Stack([]), r"at least one \(site, count\) pair; got none"),
    (lambda: Stack([(Logistic(), 0)]), r"count >= 1; got \(Logistic\(\), 0\) at index 0"),
    (lambda: Stack([Logistic()]), r"pairs with count >= 1; got Logistic\(\) at index 0"),
    (lambda: Stack([(Logistic(), 2)]).validate([1, 0, 1]), r"parts of \[2\] data, so y must have 2 entries; got 3"),
    (lambda: Stack([(Logistic(), 2), (Poisson(), 1)]).validate([[1, 0], [1, 2]]),
     r"parts of \[2, 1\] data; got \[2, 2\]"),
    (lambda: Stack([(Logistic(), 1), (Poisson(), 2)]).validate([1, 2, -1]), r"Poisson needs y in"),
    (lambda: Stack([(Binomial([1.0, 2.0]), 3)]), r"one trials per datum"),
])
def test_bad_input(make, message):
    with pytest.raises(InputError, match=message):
        make()
