"""Positions of fields over time: gaps of many orders, places next to each other, whole numbers but for rounding."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

import klimb
from klimb.errors import InputError

RNG = np.random.default_rng(1)
PLACES = np.sort(RNG.uniform(0.0, 10.0, 25))
DESIGNS = {
    "plain": PLACES, "far": np.append(PLACES, 1e6), "twice": np.append(PLACES, 1e5 + PLACES),
    "close": np.append(PLACES, PLACES + 1e-3), "logs": 10.0 ** np.linspace(-4.0, 3.0, 25),
}


def walk_covariance(x: Any, order: int) -> Any:
    """Of a walk of sd 1 at its nodes x, by what the string or the sum of steps between them says."""
    h, t, n = np.diff(x), x - x[0], len(x)
    if order == 1:
        G = np.minimum.outer(t, t)
    else:
        B = np.minimum.outer(t, t) * (t[-1] - np.maximum.outer(t, t)) / t[-1]
        G = B @ np.diag(0.5 * (np.append(h, 0.0) + np.append(0.0, h))) @ B
    N = np.linalg.qr(np.column_stack([np.ones(n), t - t.mean()])[:, :order])[0]
    P = np.eye(n) - N @ N.T
    S = P @ G @ P
    return S / np.exp(np.log(np.diag(S)).mean())


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("design", list(DESIGNS))
def test_walks_over_gaps_of_many_orders_have_the_posterior_of_dense_algebra(design: str, order: int) -> None:
    x = np.sort(DESIGNS[design])
    y = np.sin(6.0 * np.arange(len(x)) / len(x)) + 0.3 * np.random.default_rng(2).standard_normal(len(x))
    name = f"rw{order}(x)"
    fit = klimb.fit(f"y ~ {name}", {"x": x, "y": y},
                    priors={"Intercept": "normal(0, 10)", f"sd({name})": "fixed(1)", "sigma": "fixed(0.3)"})
    nodes = fit.linear.terms[1].nodes  # the closest of them are one to a walk of second order
    A = np.array([np.interp(x, nodes, one) for one in np.eye(len(nodes))]).T
    K = A @ walk_covariance(nodes, order) @ A.T + 100.0
    if order == 2:
        line = (x - nodes.mean()) / nodes.std()
        K += fit.linear.terms[1].line_sd ** 2 * np.outer(line, line)
    left = 0.09 * np.linalg.inv(K + 0.09 * np.eye(len(x)))  # y - E[f | y] = left y, which keeps its digits
    found, sd = fit.predict(kind="latent"), np.sqrt(0.09 * np.diag(np.eye(len(x)) - left))
    np.testing.assert_allclose(found["mean"], y - left @ y, atol=2e-3 * sd.min())
    np.testing.assert_allclose(found["sd"], sd, rtol=2e-3)


def test_walks_of_second_order_take_ten_thousand_places_anywhere() -> None:
    x = RNG.uniform(0.0, 10.0, 10_000)
    fit = klimb.fit("y ~ rw2(x)", {"x": x, "y": np.sin(x) + 0.3 * RNG.standard_normal(len(x))})
    assert fit.converged
    assert fit.trust.verdict == "trust"
    there = fit.predict({"x": [2.0, 5.0, 8.0]}, kind="latent")
    assert (np.abs(there["mean"] - np.sin([2.0, 5.0, 8.0])) < 4.0 * there["sd"]).all()
    assert (there["sd"] < 0.03).all()


def test_forecasts_of_uneven_walks_go_on_by_their_last_step() -> None:
    """A gap a million steps ago leaves them alone."""
    y = np.sin(np.arange(20) / 3.0)
    sds = []
    for x in (np.arange(20.0) + 0.5, np.append(np.arange(10.0), 1e6 + np.arange(10.0)) + 0.5):
        fit = klimb.fit("y ~ rw2(x)", {"x": x, "y": y}, priors={"sd(rw2(x))": "fixed(1)", "sigma": "fixed(1e-6)"})
        term, values = fit.linear.terms[1], fit.linear.values[1]
        ahead = fit.predict({"x": x[-1] + np.array([0.0, 1e-9, 0.5, 1.0, 3.0])}, kind="latent")["sd"]
        step = values[0] / np.sqrt(term.innovations.scale * np.diff(term.nodes).mean() ** 3)
        sds.append(ahead / step)
        np.testing.assert_allclose(sds[-1][3:], np.sqrt([1.0, 14.0]), rtol=0.05)
        assert np.isclose(sds[-1][2], np.sqrt(0.5 * 0.25 * 1.5), rtol=0.05)
        assert np.isclose(ahead[0], ahead[1])


@pytest.mark.parametrize("term", ["rw1(t)", "rw2(t)", "ar1(t)", "ar(t, p=2)", "seasonal(t, period=4)"])
def test_whole_numbers_but_for_rounding_are_whole(term: str) -> None:
    t = 10.0 * (0.1 * np.arange(30.0))
    assert (t != np.round(t)).any()
    y = np.random.default_rng(0).standard_normal(30)
    fits = [klimb.fit(f"y ~ {term}", {"t": one, "y": y}, hyper="optimise") for one in (t, np.round(t))]
    assert np.isclose(fits[0].bound, fits[1].bound)
    np.testing.assert_array_equal(fits[0].field(fits[0].linear.terms[1].name)["node"], np.arange(30.0))


def test_times_that_differ_by_rounding_are_one() -> None:
    t = np.append(0.1 * np.arange(30.0) + 0.05, np.nextafter(0.35, 1.0))
    fit = klimb.fit("y ~ ar1(t)", {"t": t, "y": np.append(np.sin(np.arange(30.0)), 0.1)}, hyper="optimise")
    assert fit.linear.terms[1].size == 30
    assert np.isfinite(fit.bound)


def test_times_a_little_apart_keep_their_digits() -> None:
    """The innovation over a gap of 1e-8 has the variance 2e-8 log(1 / rho)."""
    t = np.array([0.0, 0.5, 0.5 + 1e-8, 3.2])
    term = klimb.fit("y ~ ar1(t)", {"t": np.append(t, t), "y": np.arange(8.0)}, hyper="optimise").linear.terms[1]
    assert term.size == 4
    logdet = term.prior([1.0, 0.7]).logdet
    assert np.isclose(logdet, -np.log(-np.expm1(2.0 * np.diff(t) * np.log(0.7))).sum(), rtol=1e-9)


def test_forecasts_far_ahead_of_an_autoregression_are_at_once_there() -> None:
    data = {"t": np.arange(40.0), "y": np.random.default_rng(0).standard_normal(40)}
    fit = klimb.fit("y ~ ar(t, p=2)", data, hyper="optimise")
    began = time.process_time()
    there = fit.predict({"t": [41.0, 1e9]}, kind="latent")
    assert time.process_time() - began < 5.0
    assert np.isclose(there["mean"][1], fit.coefficients["mean"][0])
    with pytest.raises(InputError, match="whole-number times"):
        fit.predict({"t": [2.5]})


@pytest.mark.parametrize(("t", "words"), [(np.append(np.arange(30.0), 1e9), "natural step"),
                                          (3600.0 * np.arange(400.0), "Divide the column by 3,600")])
def test_whole_numbers_far_apart_are_told_in_words(t: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        klimb.fit("y ~ rw1(t)", {"t": t, "y": np.zeros(len(t))})
