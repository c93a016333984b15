"""Sds of predicted means that rest on far tails of f: right, or NaN with a note, against sums over grids."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit, gammaln

import klimb
from klimb.latents.weights_posterior import DenseWeights
from klimb.models.densities import Densities


def grid(log_density, steps=(0.6, 0.3, 0.15)) -> tuple[np.ndarray, np.ndarray]:
    """Points of two weights and the mass at each; every grid says where the next one should lie."""
    top = minimize(lambda w: -log_density(w[None])[0], np.zeros(2))
    centre, root = top.x, np.linalg.cholesky(top.hess_inv)
    for step in steps:
        line = np.arange(-9.0, 9.0 + step, step)
        w = centre + np.stack(np.meshgrid(line, line, indexing="ij"), -1).reshape(-1, 2) @ root.T
        logs = np.concatenate([log_density(some) for some in np.array_split(w, 40)])
        kept = logs > logs.max() - 36.0
        w, p = w[kept], np.exp(logs[kept] - logs.max())
        p /= p.sum()
        centre = p @ w
        root = np.linalg.cholesky((w - centre).T @ (p[:, None] * (w - centre)))
    return w, p


def moments(values: np.ndarray, p: np.ndarray) -> tuple[float, float, float, float]:
    mean = float(p @ values)
    order = np.argsort(values)
    ends = values[order][np.searchsorted(np.cumsum(p[order]), [0.05, 0.95])]
    return mean, float(np.sqrt(p @ (values - mean) ** 2)), float(ends[0]), float(ends[1])


def labels(rng: np.random.Generator, n: int, strength: float) -> tuple[np.ndarray, np.ndarray]:
    """x and labels that it separates but for one row near the border."""
    x = rng.standard_normal(n)
    f = strength * x + 1.0
    y = (f > 0.0).astype(float)
    flipped = np.argsort(np.abs(f))[1]
    y[flipped] = 1.0 - y[flipped]
    return x, y


def logistic(x: np.ndarray, y: np.ndarray, sd: float):
    return lambda w: (-np.logaddexp(0.0, np.where(y > 0, -1.0, 1.0) * (w[:, :1] + w[:, 1:] * x)).sum(axis=1)
                      - 0.5 * (w**2).sum(axis=1) / sd**2)


def compare(found: dict, row: int, f: np.ndarray, p: np.ndarray) -> None:
    """Chances at one row, and the ends of their log odds, with those of the values ``f`` that these have."""
    (mean, sd, _, _), (_, spread, low, high) = moments(expit(f), p), moments(f, p)
    assert abs(found["mean"][row] - mean) < 0.04 * sd
    assert np.isnan(found["sd"][row]) or abs(found["sd"][row] / sd - 1.0) < 0.15
    assert max(abs(found["f_lower"][row] - low), abs(found["f_upper"][row] - high)) < 0.1 * spread


def test_twelve_weights_of_six_nearly_separated_levels_have_the_sds_of_a_grid_each() -> None:
    """Levels know nothing of each other, so that each pair of weights is summed over by itself."""
    rng, g = np.random.default_rng(3), np.repeat(np.arange(6), 16)
    pairs = [labels(rng, 16, 3.0) for _ in range(6)]
    x, y = (np.concatenate(own) for own in zip(*pairs, strict=True))
    data = {"y": y, "x": x, "g": np.char.add("g", g.astype(str))}
    fit = klimb.fit("y ~ 0 + g + g:x", data, "bernoulli", priors={"fixed": "normal(0, 4)"})
    assert len(fit.coefficients["name"]) == 12
    new = {"x": np.concatenate([x, 1.5 * x[::4]]), "g": np.concatenate([data["g"], data["g"][::4]])}
    found, told = fit.predict(new, kind="all"), 0
    for level, own in enumerate(pairs):
        w, p = grid(logistic(*own, 4.0))
        for row in np.flatnonzero(new["g"] == f"g{level}"):
            compare(found, row, w[:, 0] + w[:, 1] * new["x"][row], p)
            told += not np.isnan(found["sd"][row])
    assert told > 0.7 * len(found["sd"])  # third moments alone: up to 60% off
    np.testing.assert_allclose(found["y_mean"], found["mean"], atol=0.01 * np.nanmax(found["sd"]))


def test_chances_of_two_thousand_rows_have_the_sds_of_a_grid() -> None:
    rng = np.random.default_rng(1)
    x, y = labels(rng, 2000, 8.0)
    fit = klimb.fit("y ~ x", {"y": y, "x": x}, "bernoulli", priors={"Intercept": "normal(0, 30)", "x": "normal(0, 30)"})
    w, p = grid(logistic(x - x.mean(), y, 30.0))
    new = np.linspace(-0.35, 0.1, 31)
    found = fit.predict({"x": new}, kind="all")
    for row, value in enumerate(new):
        compare(found, row, w[:, 0] + w[:, 1] * (value - x.mean()), p)
    assert np.isnan(found["sd"]).sum() < 5


@pytest.mark.parametrize(("family", "n"), [("poisson", 30), ("exponential", 60), ("exponential", 100)])
def test_means_far_from_the_data_have_the_sds_of_a_grid_or_none(family: str, n: int) -> None:
    rng = np.random.default_rng(n)
    x = rng.standard_normal(n)
    x -= x.mean()
    mean = np.exp(0.2 + 0.5 * x)
    y = rng.poisson(mean).astype(float) if family == "poisson" else rng.exponential(mean)
    fit = klimb.fit("y ~ x", {"y": y, "x": x}, family,
                    priors={"Intercept": "normal(0, 5)", "x": "normal(0, 2.5)"})

    def log_density(w: np.ndarray) -> np.ndarray:
        f = w[:, :1] + w[:, 1:] * x
        each = y * f - np.exp(f) if family == "poisson" else -f - y * np.exp(-f)
        return each.sum(axis=1) - 0.5 * (w[:, 0] / 5.0) ** 2 - 0.5 * (w[:, 1] / 2.5) ** 2

    w, p = grid(log_density)
    new = np.array([-30.0, -12.0, -8.0, -4.0, -2.0, 0.0, 2.0, 4.0, 8.0, 12.0, 30.0])
    found, true = fit.predict({"x": new})["sd"], []
    for value in new:
        true.append(moments(np.exp(w[:, 0] + w[:, 1] * value), p)[1])
    shown = ~np.isnan(found)
    assert np.abs(found[shown] / np.array(true)[shown] - 1.0).max() < 0.06  # up to 14% where f has an sd of 1.2
    assert shown[2:9].all()
    assert not shown[[0, -1]].any()  # there 96 times too large, or a third


def test_mean_times_have_an_sd_where_a_hundredth_of_the_mass_carries_it() -> None:
    """It is infinite under any prior that is not zero near shape = 0; what is shown leaves 1e-5 of the mass out."""
    rng, new = np.random.default_rng(4), np.array([-6.0, -3.0, -1.5, 0.0, 1.5, 3.0, 6.0])
    x = rng.standard_normal(40)
    x -= x.mean()
    time = rng.weibull(1.0, 40) * np.exp(-0.5 * x)
    last = np.quantile(time, 0.5)
    status, time = (time <= last).astype(float), np.minimum(time, last)
    fit = klimb.fit("Surv(t, s) ~ x", {"t": time, "s": status, "x": x}, "weibull",
                    priors={"Intercept": "normal(0, 5)", "x": "normal(0, 2.5)", "shape": "log_normal(1, 1)"})
    found = fit.predict({"x": new})
    means = np.empty((0, len(new)))
    logs = np.empty(0)
    for log_shape in np.linspace(-1.5, 1.2, 55):
        shape = np.exp(log_shape)

        def log_density(w: np.ndarray, shape: float = shape) -> np.ndarray:
            f = w[:, :1] + w[:, 1:] * x
            each = status * (f + np.log(shape) + (shape - 1.0) * np.log(time)) - np.exp(f) * time**shape
            return each.sum(axis=1) - 0.5 * (w[:, 0] / 5.0) ** 2 - 0.5 * (w[:, 1] / 2.5) ** 2

        w, _ = grid(log_density, steps=(0.6, 0.25))
        volume = np.log(np.linalg.norm(w[1] - w[0])) * 2.0
        means = np.vstack([means, np.exp(gammaln(1.0 + 1.0 / shape) - (w[:, :1] + w[:, 1:] * new) / shape)])
        logs = np.append(logs, log_density(w) + volume - 0.5 * log_shape**2)
    p = np.exp(logs - logs.max())
    p /= p.sum()
    for row, values in enumerate(means.T):
        order = np.argsort(-values)
        kept = order[np.cumsum(p[order]) > 1e-5]
        true = moments(values[kept], p[kept] / p[kept].sum())[1]
        assert np.isnan(found["sd"][row]) or abs(found["sd"][row] / true - 1.0) < 0.08
    assert np.isnan(found["sd"][[0, 1]]).all()
    assert not np.isnan(found["sd"][[2, 3, 4, 5]]).any()
    assert (found["lower"] < found["upper"]).all()


def test_densities_by_slopes_are_those_of_a_mixture() -> None:
    """Draws of another distribution with weights: a density with two bends, from slopes with noise."""
    rng = np.random.default_rng(0)
    f = 2.0 * rng.standard_normal((4000, 1))
    p = np.exp(-0.5 * (f + 1.0) ** 2) + 0.3 * np.exp(-0.5 * (f - 1.5) ** 2)
    slope = (-(f + 1.0) * np.exp(-0.5 * (f + 1.0) ** 2) - 0.3 * (f - 1.5) * np.exp(-0.5 * (f - 1.5) ** 2)) / p
    shares = (p * np.exp(0.125 * f**2))[:, 0]
    shares /= shares.sum()
    noisy = slope + 0.3 * rng.standard_normal(slope.shape)
    model = klimb.fit("y ~ 1", {"y": [0.0, 1.0, 1.0, 0.0]}, "bernoulli").model
    found = Densities.of(f, noisy / (shares @ noisy**2), shares, model.new_site(None), model.likelihood)
    mean, variance = found.moments()
    true = (-1.0 + 0.3 * 1.5) / 1.3
    assert abs(mean[0] - true) < 0.03
    assert abs(variance[0] - (1.0 + (1.0 + 0.3 * 2.25) / 1.3 - true**2)) < 0.08
    pieces, m, v = found.pieces()
    np.testing.assert_allclose(pieces @ m, mean, atol=1e-3)
    np.testing.assert_allclose(pieces @ (v + (m - mean) ** 2), variance, rtol=1e-3)


def test_weights_with_points_are_stored_with_the_mean_apart(tmp_path) -> None:
    rng = np.random.default_rng(2)
    x, y = labels(rng, 40, 4.0)
    data = {"y": y, "x": x + 1e6}  # of a mean in 32 bits nothing would be left
    fit = klimb.fit("y ~ x", data, "bernoulli", priors={"x": "normal(0, 4)"})
    part = fit.components.parts[0]
    assert part.points.dtype == part.drifts.dtype == np.float32
    assert not isinstance(part, DenseWeights)
    fit.save(tmp_path / "m.klimb")
    again, found = klimb.load(tmp_path / "m.klimb").predict(data), fit.predict(data)
    for name in ("mean", "sd", "lower", "upper"):
        np.testing.assert_allclose(again[name], found[name])
    near = klimb.fit("y ~ x", {"y": y, "x": x}, "bernoulli", priors={"x": "normal(0, 4)"}).predict({"x": x})
    np.testing.assert_allclose(found["mean"], near["mean"], atol=2e-3)
