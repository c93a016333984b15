"""Chances near 0 and 1 under posteriors that are skewed at fixed hyperparameters, against sums over grids."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy.special import expit

import klimb
from klimb.models.adaptive import calibrated

X = np.linspace(-2.0, 2.0, 14)
Y = (X > 0.0).astype(float)  # x separates them
PRIORS = {"Intercept": "normal(0, 5)", "x": "normal(0, 5)"}
NEW = np.array([-4.0, -2.0, -0.5, 0.5, 2.0, 4.0])


def chances() -> np.ndarray:
    """P(y = 1) at new rows by a sum over intercept and slope; x has mean 0, so both priors act on what is printed."""
    a, b = np.meshgrid(np.linspace(-25, 25, 501), np.linspace(-15, 35, 501), indexing="ij")
    f = a[..., None] + b[..., None] * X
    logs = -0.5 * (a / 5.0) ** 2 - 0.5 * (b / 5.0) ** 2 - np.logaddexp(0.0, np.where(Y > 0, -f, f)).sum(axis=-1)
    p = np.exp(logs - logs.max())
    return np.array([(p * expit(a + b * x)).sum() / p.sum() for x in NEW])


def test_chances_of_separated_labels_are_those_of_a_grid():
    fit = klimb.fit("y ~ x", {"y": Y, "x": X}, "bernoulli", priors=PRIORS)
    true = chances()
    found = fit.predict({"x": NEW})["mean"]
    whole = replace(fit.components, parts=(fit.components.parts[0].whole,))
    gaussian = replace(fit, components=whole).predict({"x": NEW})["mean"]
    rare = np.minimum(true, 1.0 - true)
    assert np.abs(np.minimum(found, 1.0 - found) / rare - 1.0).max() < 0.4
    assert np.abs(np.minimum(gaussian, 1.0 - gaussian) / rare - 1.0).max() > 50.0  # what one Gaussian has there
    assert np.abs(fit.predict({"x": NEW}, kind="response")["sd"] / np.sqrt(true * (1.0 - true)) - 1.0).max() < 0.2


def test_draws_and_files_know_of_it_too(tmp_path):
    fit = klimb.fit("y ~ x", {"y": Y, "x": X}, "bernoulli", priors=PRIORS)
    drawn, named = fit.sample(40_000, {"x": NEW[:1]}, seed=1), fit.draws(40_000, seed=2)
    by_weights = expit(named["Intercept"] + NEW[0] * named["x"])
    assert chances()[0] / 3.0 < expit(drawn).mean() < 3.0 * chances()[0]  # by a Gaussian: a hundred times as much
    assert chances()[0] / 3.0 < by_weights.mean() < 3.0 * chances()[0]
    fit.save(tmp_path / "m.klimb")
    again = klimb.load(tmp_path / "m.klimb").predict({"x": NEW})["mean"]
    np.testing.assert_allclose(again, fit.predict({"x": NEW})["mean"])


def test_pieces_have_the_mean_and_covariance_of_the_whole():
    rng = np.random.default_rng(8)
    x = rng.standard_normal(60)
    answers = {"y": x > 0.0, "x": x, "g": np.arange(60) % 30}
    fit = klimb.fit("y ~ x + (1 | g)", answers, "bernoulli", priors={**PRIORS, "sd(g)": 1.0})
    parts = fit.components.split
    assert len(parts.parts) > len(fit.components.parts)
    every = np.arange(32)
    mean = sum(w * part.mean for w, part in zip(parts.weights, parts.parts, strict=True))
    variance = sum(w * (part.covariances(every, every) + (part.mean - mean) ** 2)
                   for w, part in zip(parts.weights, parts.parts, strict=True))
    whole = fit.components.parts[0]
    assert np.abs((mean - whole.mean) / whole.sd()).max() < 0.02
    np.testing.assert_allclose(np.sqrt(variance), whole.sd(), rtol=0.03)
    np.testing.assert_allclose(variance[0], whole.sd()[0] ** 2, rtol=1e-6)  # shared weights: exactly


def test_few_points_get_the_second_moments_of_many():
    rng = np.random.default_rng(5)
    few, many = rng.standard_normal((63, 9)), rng.standard_normal((4000, 9))
    w = calibrated(few, np.full(63, 1.0 / 63), many, np.full(4000, 1.0 / 4000))
    sd = np.sqrt(w @ (few - w @ few) ** 2)
    assert np.abs(sd / many.std(axis=0) - 1.0).max() < 0.05  # products of nine are more than 63 points can carry
