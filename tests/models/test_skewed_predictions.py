"""Chances near 0 and 1 under posteriors that are skewed at fixed hyperparameters, against sums over grids."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit, gammaln

import klimb
from klimb.models.components import NO_THIRD
from klimb.models.prediction import columns_of
from klimb.models.sampled_theta import calibrated

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
    whole = replace(fit.components, parts=(fit.components.parts[0].whole,), third=NO_THIRD)
    gaussian = replace(fit, components=whole).predict({"x": NEW})["mean"]
    rare = np.minimum(true, 1.0 - true)
    assert np.abs(np.minimum(found, 1.0 - found) / rare - 1.0).max() < 0.4
    assert np.abs(np.minimum(gaussian, 1.0 - gaussian) / rare - 1.0).max() > 50.0  # what one Gaussian has there
    assert np.abs(fit.predict({"x": NEW}, kind="response")["sd"] / np.sqrt(true * (1.0 - true)) - 1.0).max() < 0.2


def lattice(D: np.ndarray, y: np.ndarray, sd: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weights of a logistic regression on a cubic lattice in standard coordinates, and the mass at each."""
    def log_density(w: np.ndarray) -> np.ndarray:
        return -np.logaddexp(0.0, np.where(y > 0, -1.0, 1.0) * (w @ D.T)).sum(axis=-1) - 0.5 * ((w / sd) ** 2).sum(-1)

    top = minimize(lambda w: -log_density(w), np.zeros(len(sd)))
    centre, root = top.x, np.linalg.cholesky(top.hess_inv)
    for step in (0.6, 0.5, 0.4, 0.3):  # each lattice says where the next one should lie
        line = np.arange(-7.0, 7.0 + step, step)
        turn = np.linalg.qr(np.arange(1.0, 1.0 + len(sd) ** 2).reshape(len(sd), -1) ** 0.5)[0]
        w = centre + np.stack(np.meshgrid(*[line] * len(sd), indexing="ij"), -1).reshape(-1, len(sd)) @ (root @ turn).T
        logs = np.concatenate([log_density(some) for some in np.array_split(w, 50)])
        w, p = w[logs > logs.max() - 25.0], np.exp(logs[logs > logs.max() - 25.0] - logs.max())
        p /= p.sum()
        centre = p @ w
        root = np.linalg.cholesky((w - centre).T @ (p[:, None] * (w - centre)))
    return w, p


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_chances_that_a_column_nearly_separates_have_the_sds_and_ends_of_a_lattice(seed):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((40, 2))
    x -= x.mean(axis=0)
    f = 5.0 * x[:, 0] + x[:, 1]
    y = (f > 0.0).astype(float)
    y[np.argsort(np.abs(f))[2]] = 1.0 - y[np.argsort(np.abs(f))[2]]  # but for one row
    priors = {"Intercept": "normal(0, 10)", "a": "normal(0, 5)", "b": "normal(0, 5)"}
    fit = klimb.fit("y ~ a + b", {"y": y, "a": x[:, 0], "b": x[:, 1]}, "bernoulli", priors=priors)
    D = np.column_stack([np.ones(50), np.vstack([x, 1.5 * x[:10]])])
    found = fit.predict({"a": D[:, 1], "b": D[:, 2]})
    w, p = lattice(D[:40], y, np.array([10.0, 5.0, 5.0]))
    for row, (mean, sd, lower, upper) in zip(D, zip(*(found[name] for name in ("mean", "sd", "lower", "upper")),
                                                    strict=True), strict=True):
        chance = expit(w @ row)
        order = np.argsort(chance)
        true = p @ chance
        spread = np.sqrt(p @ (chance - true) ** 2)
        ends = chance[order][np.searchsorted(np.cumsum(p[order]), [0.05, 0.95])]
        assert abs(mean - true) < 0.02 * spread
        squares = np.cumsum((p * (chance - true) ** 2)[np.argsort(-np.abs(chance - true))])
        carried = np.cumsum(p[np.argsort(-np.abs(chance - true))])[np.searchsorted(squares, 0.5 * squares[-1])]
        # By sixteen Gaussians up to ten times as much, where half of the variance has little of the mass, too.
        assert abs(sd / spread - 1.0) < 0.1 or (np.isnan(sd) and carried < 1e-3)
        assert np.abs(np.array([lower, upper]) - ends).max() < 0.2 * spread
    untold = np.isnan(found["sd"][:40]).sum()
    assert untold < 8
    assert any("order of magnitude" in note for note in fit.notes) == (untold > 0)


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
    w = calibrated(few, many, np.full(63, 1.0 / 63), np.full(4000, 1.0 / 4000))
    sd = np.sqrt(w @ (few - w @ few) ** 2)
    assert np.abs(sd / many.std(axis=0) - 1.0).max() < 0.05  # products of nine are more than 63 points can carry


def summary(values: np.ndarray, p: np.ndarray) -> tuple[float, float, float, float]:
    """Mean, sd and the 5% and 95% quantiles of values with weights."""
    order = np.argsort(values, axis=None)
    values, p = values.ravel()[order], p.ravel()[order] / p.sum()
    mean = float(p @ values)
    ends = np.interp([0.05, 0.95], np.cumsum(p), values)
    return mean, float(np.sqrt(p @ (values - mean) ** 2)), float(ends[0]), float(ends[1])


def test_chances_of_levels_with_few_or_no_successes_are_those_of_sums():
    """Seven levels that know nothing of each other: each is skewed in a direction of its own."""
    k, n = np.array([0, 5, 3, 20, 0, 7, 1]), np.array([5, 5, 9, 20, 50, 8, 100])
    data = {"k": k, "n": n, "h": list("abcdefg")}
    fit = klimb.fit("p(k, n) ~ 0 + h", data, "binomial", priors={f"h[{h}]": "normal(0, 3)" for h in "abcdefg"})
    found = fit.predict(data, interval=0.9)
    f = np.linspace(-25, 25, 20_001)
    for j in range(7):
        p = np.exp(-0.5 * (f / 3.0) ** 2 + k[j] * f - n[j] * np.logaddexp(0.0, f))
        mean, sd, low, high = summary(expit(f), p)
        assert abs(found["mean"][j] - mean) < 0.1 * sd
        assert abs(found["sd"][j] / sd - 1.0) < 0.1  # by a Gaussian: 50% too large for 0 of 50
        assert abs(found["lower"][j] - low) < 0.15 * sd
        assert abs(found["upper"][j] - high) < 0.15 * sd


def test_pairs_of_labels_have_the_levels_and_chances_of_a_sum():
    """Groups of two: what a level is given its two labels leans to one side, in predictions and random effects."""
    y = np.array([[1, 1]] * 14 + [[0, 0]] * 11 + [[1, 0]] * 5)
    data = {"y": y.ravel(), "g": np.repeat(np.arange(30), 2)}
    priors = {"Intercept": "normal(0, 2)", "sd(g)": 3.0}
    fit = klimb.fit("y ~ 1 + (1 | g)", data, "bernoulli", priors=priors)
    b, u = np.linspace(-8, 8, 161)[:, None], np.linspace(-20, 20, 801)
    level = np.exp(-0.5 * (u / 3.0) ** 2)
    kinds = [level * expit(b + u) ** ones * expit(-b - u) ** (2 - ones) for ones in (2, 0, 1)]
    whole = np.exp(-0.5 * (b[:, 0] / 2.0) ** 2)
    for own, count in zip(kinds, (14, 11, 5), strict=True):
        whole = whole * own.sum(axis=1) ** count
    chances, levels = fit.predict(data, interval=0.9), fit.random_effects("g", interval=0.9)
    for first, own in zip((0, 14, 25), kinds, strict=True):
        p = own * (whole / own.sum(axis=1))[:, None]
        at = 2 * first
        for found, row, values in ((chances, at, expit(b + u)), (levels, first, np.broadcast_to(u, p.shape))):
            mean, sd, low, high = summary(values, p)
            assert abs(found["mean"][row] - mean) < 0.1 * sd
            assert abs(found["sd"][row] / sd - 1.0) < 0.1  # chances by a Gaussian: a third too large
            assert abs(found["lower"][row] - low) < 0.15 * sd  # and their ends a whole sd off
            assert abs(found["upper"][row] - high) < 0.15 * sd


def test_rows_in_pieces_are_those_that_need_them() -> None:
    rng = np.random.default_rng(5)
    g = np.concatenate([np.repeat(np.arange(40), 8), np.full(60, 40)])
    x = rng.standard_normal(len(g))
    y = (rng.random(len(g)) < 1.0 / (1.0 + np.exp(-0.5 * x - 0.7 * rng.standard_normal(41)[g]))).astype(int)
    y[g == 40] = 0  # one level of many rows without a success has a long tail
    fit = klimb.fit("y ~ x + (1 | g)", {"y": y, "x": x, "g": np.char.add("g", g.astype(str))}, "bernoulli")
    f, skewness = fit.components.parted.straight(fit.components.parted.models(fit.model), fit.model.prepare(None))
    assert skewness is not None
    shows = f.skewed(skewness) > 0.0
    assert 0 < shows.sum() < len(shows)
    for kind in ("mean", "latent", "response"):
        found, whole = fit.predict(kind=kind), columns_of(f.bent(skewness), kind, 0.05, (), None)
        for name, values in whole.items():
            np.testing.assert_allclose(np.asarray(found[name]), values, rtol=1e-6, atol=1e-9)


def test_mean_times_lean_as_far_as_a_grid_says_though_the_shape_spreads_f() -> None:
    """The shape of Weibull times moves f far more than f is uncertain at each shape, but not the mean time."""
    time = np.array([60.0, 110, 150, 270, 330, 360, 450, 480, 560, 640])
    status = np.array([1.0, 1, 1, 1, 0, 1, 0, 0, 1, 0])
    priors = {"Intercept": "normal(-6, 6)", "shape": "log_normal(1, 1)"}
    fit = klimb.fit("Surv(t, s) ~ 1", {"t": time, "s": status}, "weibull", priors=priors)
    shape = np.exp(np.linspace(-2.5, 2.5, 601))[:, None]
    f = np.linspace(-6.0, 5.0, 1101) - shape * np.log(500.0)
    logs = -0.5 * ((f + 6.0) / 6.0) ** 2 - 0.5 * np.log(shape) ** 2 + np.sum(status) * (f + np.log(shape))
    logs = logs + (shape - 1.0) * np.sum(status * np.log(time)) - np.exp(f) * (time**shape).sum(axis=1, keepdims=True)
    _, _, low, high = summary(np.exp(gammaln(1.0 + 1.0 / shape) - f / shape), np.exp(logs - logs.max()))
    found = fit.predict({"t": [1.0], "s": [1.0]}, kind="mean", interval=0.9)
    assert abs(found["lower"][0] - low) < 0.005 * (high - low)  # without third moments 0.010 too low
    assert abs(found["upper"][0] - high) < 0.02 * (high - low)  # 0.025


def test_chances_in_empty_cells_beside_others_agree_with_quadrature():
    # Cells are independent, so that each is a sum over a line. Pieces of all six weights gave sds 24 and 35% too large.
    counts, trials, f = np.array([0, 0, 3, 8, 12, 5]), 16, np.linspace(-40.0, 30.0, 20001)
    data = {"k": counts, "n": np.full(6, trials), "cell": np.arange(6)}
    fit = klimb.fit("p(k, n) ~ 0 + C(cell)", data, "binomial", priors={"fixed": "normal(0, 4)"}, interval=0.9)
    shown, chance = fit.predict(), 1.0 / (1.0 + np.exp(-f))
    log_density = counts[:, None] * f - trials * np.logaddexp(0.0, f) - 0.5 * (f / 4.0) ** 2
    mass = np.exp(log_density - log_density.max(axis=1, keepdims=True))
    mass /= mass.sum(axis=1, keepdims=True)
    mean = mass @ chance
    sd = np.sqrt(mass @ chance**2 - mean**2)
    upper = np.array([chance[np.searchsorted(np.cumsum(own), 0.95)] for own in mass])
    assert (np.abs(shown["mean"] - mean) < 0.03 * sd).all()
    assert np.abs(shown["sd"] / sd - 1.0).max() < 0.06
    assert (np.abs(shown["upper"] - upper) < 0.2 * sd).all()
