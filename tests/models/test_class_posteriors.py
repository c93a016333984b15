"""Several classes: the joint posterior of all classes is shown, beside computations without klimb's own code."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import log_softmax, logsumexp, softmax

import klimb
from klimb.errors import InputError
from klimb.latents.outputs import independent_variances

N, PRIOR = 90, 2.0


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(5)
    x = rng.standard_normal(N)
    f = np.column_stack([np.zeros(N), 0.4 + x, -0.5 - 0.8 * x])
    y = np.array([rng.choice(3, p=softmax(row)) for row in f])
    return {"x": x - x.mean(), "kind": np.array(["a", "b", "c"])[y]}, y


@pytest.fixture(scope="module")
def fit(data):
    return klimb.fit("kind ~ x", data[0], family="categorical", priors={"Intercept": f"normal(0, {PRIOR})",
                                                                        "x": f"normal(0, {PRIOR})"})


@pytest.fixture(scope="module")
def truth(data):
    return weighed(data[0]["x"], data[1])


def weighed(x, y):
    """Weighted draws of the six coefficients from a t around the mode, by importance sampling."""
    X = np.column_stack([np.ones(len(x)), x])

    def log_joint(w):
        f = np.einsum("ij,scj->sic", X, w.reshape(-1, 3, 2))
        return log_softmax(f, axis=2)[:, np.arange(len(x)), y].sum(axis=1) - 0.5 * (w**2).sum(axis=1) / PRIOR**2

    mode = minimize(lambda w: -log_joint(w[None])[0], np.zeros(6)).x
    p = softmax(X @ mode.reshape(3, 2).T, axis=1)
    H = np.eye(6) / PRIOR**2
    for c in range(3):
        for d in range(3):
            own = p[:, c] * ((c == d) - p[:, d])
            H[2 * c : 2 * c + 2, 2 * d : 2 * d + 2] += X.T @ (own[:, None] * X)
    rng, df = np.random.default_rng(0), 10
    root = np.linalg.cholesky(np.linalg.inv(H)) * 1.1
    z = rng.standard_normal((100_000, 6)) / np.sqrt(rng.chisquare(df, 100_000) / df)[:, None]
    w = mode + z @ root.T
    log_w = np.concatenate([log_joint(part) for part in np.split(w, 20)])
    log_w += 0.5 * (df + 6) * np.log1p((z**2).sum(axis=1) / df)
    weights = np.exp(log_w - logsumexp(log_w))
    assert 1.0 / (weights**2).sum() > 50_000
    return w, weights, X, y


def test_coefficients_have_the_joint_posterior(fit, truth):
    w, weights, _, _ = truth
    mean = weights @ w
    V = (weights * (w - mean).T) @ (w - mean)
    sd = np.sqrt(np.diag(V))
    assert np.abs(np.array(fit.coefficients["mean"]) - mean).max() < 0.02 * sd.max()
    np.testing.assert_allclose(np.array(fit.coefficients["sd"]), sd, rtol=0.02)
    found = np.column_stack([fit.covariance[name] for name in fit.coefficients["name"]])
    assert np.abs(found - V).max() < 0.02 * V.max()
    assert fit.trust.verdict == "corrected"
    assert fit.trust.number < 0.02
    assert fit.uncorrected.coefficients["sd"][0] < 0.5 * sd[0]  # a q of independent classes is no use here


def test_what_classes_share_keeps_its_prior(fit):
    """A shift of all classes is not in the data: sd of the sum of three weights with sd s is s sqrt(3)."""
    V = np.column_stack([fit.covariance[name] for name in fit.coefficients["name"]])
    slopes = np.array([0.0, 1.0] * 3)
    assert np.sqrt(slopes @ V @ slopes) == pytest.approx(PRIOR * np.sqrt(3.0), rel=1e-3)


def test_log_odds_are_differences_of_classes(fit, truth):
    w, weights, _, _ = truth
    odds = fit.log_odds("a")
    assert list(odds["name"]) == ["b: Intercept", "b: x", "c: Intercept", "c: x"]
    differences = np.hstack([w[:, 2:4] - w[:, :2], w[:, 4:] - w[:, :2]])
    mean = weights @ differences
    sd = np.sqrt(weights @ (differences - mean) ** 2)
    assert (np.abs(np.array(odds["mean"]) - mean) < 0.05 * sd).all()
    np.testing.assert_allclose(np.array(odds["sd"]), sd, rtol=0.03)
    with pytest.raises(InputError, match="a class of a categorical response"):
        fit.log_odds("d")


def test_odds_and_chances_of_a_class_that_x_separates_lean_as_its_posterior_does():
    """All of "a" lie below all others: the data give its slope no limit on one side."""
    x = np.linspace(-1.5, 1.5, 24)
    y = np.where(x < -0.4, 0, np.arange(24) % 2 + 1)
    priors = {"Intercept": f"normal(0, {PRIOR})", "x": f"normal(0, {PRIOR})"}
    fit = klimb.fit("kind ~ x", {"x": x, "kind": np.array(["a", "b", "c"])[y]}, family="categorical", priors=priors)
    w, weights, _, _ = weighed(x, y)

    def ends(values):
        order = np.argsort(values)
        return np.interp([0.05, 0.95], np.cumsum(weights[order]), values[order])

    odds, (low, high) = fit.log_odds("a", interval=0.9), ends(w[:, 3] - w[:, 1])
    assert abs(odds["lower"][1] - low) < 0.02 * (high - low)  # by one Gaussian: 0.04
    assert abs(odds["upper"][1] - high) < 0.02 * (high - low)
    curve = fit.effects("x")[0]
    for k in range(0, len(curve.x), 6):
        chance = softmax(w.reshape(-1, 3, 2) @ [1.0, curve.x[k]], axis=1)[:, 0]
        low, high = ends(chance)
        assert abs(curve.center[k] - weights @ chance) < 0.02 * (high - low) + 1e-4
        assert abs(curve.lower[k] - low) < 0.06 * (high - low) + 1e-4
        assert abs(curve.upper[k] - high) < 0.06 * (high - low) + 1e-4


def test_chances_and_leave_one_out(fit, truth):
    w, weights, X, y = truth
    log_p = log_softmax(np.einsum("ij,scj->sic", X, w.reshape(-1, 3, 2)), axis=2)
    chances = np.einsum("s,sic->ic", weights, np.exp(log_p))
    found = fit.predict()
    np.testing.assert_allclose(np.column_stack([found[f"P({level})"] for level in "abc"]), chances, atol=0.003)
    without = -logsumexp(np.log(weights)[:, None] - log_p[:, np.arange(N), y], axis=0)
    assert fit.loo().elpd == pytest.approx(without.sum(), abs=0.1)
    np.testing.assert_allclose(fit.loo().log_density, without, atol=0.06)


def test_draws_and_files_keep_it(fit, tmp_path):
    draws = fit.draws(4000, seed=1)
    assert np.std(draws["b: x"] - draws["a: x"]) == pytest.approx(fit.log_odds("a")["sd"][1], rel=0.05)
    assert np.std(draws["b: x"]) == pytest.approx(fit.coefficients["sd"][3], rel=0.05)
    fit.save(tmp_path / "kinds.klimb")
    again = klimb.load(tmp_path / "kinds.klimb")
    new = {"x": np.array([-1.0, 0.3])}
    for name, values in fit.predict(new).items():
        np.testing.assert_array_equal(again.predict(new)[name], values)
    np.testing.assert_array_equal(again.log_odds("b")["sd"], fit.log_odds("b")["sd"])


def test_two_classes_are_a_logistic_regression():
    """f_b - f_a has twice the prior variance: with a group too, where the other fit integrates levels by quadrature."""
    rng = np.random.default_rng(3)
    x, g = rng.standard_normal(240), rng.integers(0, 12, 240)
    f = 0.3 + x + rng.standard_normal(12)[g]
    kind = np.where(rng.random(240) < 1.0 / (1.0 + np.exp(-f)), "b", "a")
    frame = {"x": x, "g": np.array(list("abcdefghijkl"))[g], "kind": kind}
    both = klimb.fit("kind ~ x + (1 | g)", frame, family="categorical",
                     priors={"Intercept": "normal(0, 2)", "x": "normal(0, 2)", "sd(g)": "exponential(1)"})
    wide, scale = f"normal(0, {2.0 * np.sqrt(2.0)})", np.sqrt(2.0)
    one = klimb.fit("kind ~ x + (1 | g)", frame, family="bernoulli",
                    priors={"Intercept": wide, "x": wide, "sd(g)": f"exponential({scale})"})
    odds, sds = both.log_odds("a"), np.array(one.coefficients["sd"])
    assert (np.abs(np.array(odds["mean"]) - np.array(one.coefficients["mean"])) < 0.05 * sds).all()
    np.testing.assert_allclose(np.array(odds["sd"]), sds, rtol=0.03)
    pair, single = both.summary(), one.summary()
    assert abs(scale * pair["mean"][-1] - single["mean"][-1]) < 0.1 * single["sd"][-1]
    assert scale * pair["sd"][-1] == pytest.approx(single["sd"][-1], rel=0.06)
    np.testing.assert_allclose(both.predict()["P(b)"], one.predict()["mean"], atol=0.005)
    assert both.loo().elpd == pytest.approx(one.loo().elpd, abs=0.5)
    effects = both.random_effects("g")
    assert list(effects["column"][:1]) + list(effects["column"][-1:]) == ["a: Intercept", "b: Intercept"]
    assert len(effects["mean"]) == 24


def test_independent_values_have_the_same_differences():
    A = np.random.default_rng(1).standard_normal((5, 3, 4)) + 3.0  # a large common part
    S = A @ np.swapaxes(A, 1, 2)
    v = independent_variances(S)
    for c, d in ((0, 1), (0, 2), (1, 2)):
        own = S[:, c, c] + S[:, d, d] - 2.0 * S[:, c, d]
        kept = v.min(axis=1) > 0.0
        np.testing.assert_allclose((v[:, c] + v[:, d])[kept], own[kept])
    assert kept.any()


def test_the_prior_of_every_class_is_the_users_and_so_is_the_evidence():
    """Against a sum over a grid: the mean of a user's prior was replaced by the log frequency of each class."""
    y = np.array(list("aaabbbbbcc"))
    fit = klimb.fit("y ~ 1", {"y": y}, "categorical", priors={"Intercept": "normal(0.5, 2)"})
    line = np.linspace(-9.0, 10.0, 128)
    a, b, c = np.meshgrid(line, line, line, indexing="ij")
    logs = 3 * a + 5 * b + 2 * c - 10 * np.logaddexp(np.logaddexp(a, b), c)
    logs -= sum(0.5 * ((w - 0.5) / 2.0) ** 2 for w in (a, b, c)) + 1.5 * np.log(2.0 * np.pi * 4.0)
    p = np.exp(logs) * (line[1] - line[0]) ** 3
    for row, w in zip(fit.table_rows(), (a, b, c), strict=True):
        mean = float((p * w).sum() / p.sum())
        sd = float(np.sqrt((p * (w - mean) ** 2).sum() / p.sum()))
        assert row.mean == pytest.approx(mean, abs=0.05 * sd), row.name
        assert row.sd == pytest.approx(sd, rel=0.03), row.name
    evidence = {fact.label: fact.value for fact in fit.trust.facts}["log evidence"]
    assert float(evidence) == pytest.approx(float(np.log(p.sum())), abs=0.03)
    assert fit.bound < np.log(p.sum()) - 0.4
    assert "normal(0.5, 2)" in str(fit)
    assert "log frequency of each class" in str(klimb.fit("y ~ 1", {"y": y}, "categorical"))


def test_levels_in_order_cost_no_more_to_predict_than_their_chances(monkeypatch):
    """Mean, sd and ends of the number of a level come from one set of chances; they took three, and quadrature."""
    rng = np.random.default_rng(4)
    x = rng.standard_normal(60)
    data = {"x": x, "k": np.digitize(x + rng.logistic(size=60), [-1.0, 0.0, 1.5])}
    fit, calls = klimb.fit("k ~ x", data, family="ordinal"), []
    chances = klimb.sites.Ordinal.class_probabilities
    monkeypatch.setattr(klimb.sites.Ordinal, "class_probabilities", lambda *a: calls.append(1) or chances(*a))
    mean = fit.predict(data)
    once = len(calls)
    found = fit.predict(data, kind="response", interval=0.9)
    assert len(calls) == 2 * once
    p = np.column_stack([mean[f"P({k})"] for k in range(4)])
    np.testing.assert_allclose(found["mean"], p @ np.arange(4.0))
    np.testing.assert_allclose(found["sd"] ** 2, p @ np.arange(4.0) ** 2 - (p @ np.arange(4.0)) ** 2)
    np.testing.assert_array_equal(found["upper"], (np.cumsum(p, axis=1) < 0.95).sum(axis=1))


def test_each_of_many_draws_is_looked_at_a_fixed_number_of_times(fit, monkeypatch):
    """Whether outputs are coupled was asked of all draws for each of them: minutes for 40,000 exact draws."""
    asked = []
    part = fit.components.parts[0]
    kind = type(part)
    monkeypatch.setattr(kind, "couples", property(lambda self: asked.append(1) or True))
    many = replace(fit.components, weights=np.full(50, 0.02), theta=np.tile(fit.components.theta, (50, 1)),
                   parts=(part,) * 50)
    many.at(fit.model, fit.model.prepare(None))
    assert len(asked) <= 100
