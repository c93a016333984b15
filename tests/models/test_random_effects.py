"""Predictions with the random effects of the rows' own levels, without any, and with those of new levels."""

from __future__ import annotations

import numpy as np
import pytest

import klimb
from klimb.errors import InputError

RNG = np.random.default_rng(11)
N = 240
G = RNG.integers(0, 12, N)
H = RNG.integers(0, 5, N)
X = RNG.standard_normal(N)
LEVELS, SLOPES, OTHERS = (RNG.standard_normal(12) for _ in range(3))
ETA = 0.3 + 0.8 * X + LEVELS[G] + 0.5 * SLOPES[G] * X + 0.4 * OTHERS[H]
DATA = {"y": RNG.random(N) < 1.0 / (1.0 + np.exp(-ETA)), "x": X, "g": [f"g{k}" for k in G], "h": [f"h{k}" for k in H]}
NEW = {"x": [-1.0, 0.0, 2.0], "g": ["g0", "g1", "nobody"], "h": ["h0", None, "h2"]}


@pytest.fixture(scope="module")
def fit():
    return klimb.fit("y ~ x + (1 + x | g) + (1 | h)", DATA, family="bernoulli")


def expit(f):
    return 1.0 / (1.0 + np.exp(-f))


def test_without_random_effects_the_fixed_part_is_left(fit):
    draws = fit.draws(40_000)
    f = draws["Intercept"] + np.array(NEW["x"])[:, None] * draws["x"]
    found = fit.predict(NEW, re=False, kind="latent")
    np.testing.assert_allclose(found["mean"], f.mean(axis=1), atol=0.03 * f.std())
    np.testing.assert_allclose(found["sd"], f.std(axis=1), rtol=0.03)
    np.testing.assert_allclose(fit.predict(NEW, re=False)["mean"], expit(f).mean(axis=1), atol=0.005)


def test_new_levels_are_integrated_out(fit):
    """Beside draws of the levels from the prior of each draw's hyperparameters."""
    rng, draws = np.random.default_rng(0), fit.draws(40_000)
    n = len(draws["x"])
    first, second, third = rng.standard_normal((3, n))
    rho = draws["cor(Intercept, x | g)"]
    slope = draws["sd(x | g)"] * (rho * first + np.sqrt(1.0 - rho**2) * second)
    level = draws["sd(g)"] * first + draws["sd(h)"] * third
    f = draws["Intercept"] + level + np.array(NEW["x"])[:, None] * (draws["x"] + slope)
    found = fit.predict(NEW, re="new", kind="latent")
    np.testing.assert_allclose(found["sd"], f.std(axis=1), rtol=0.05)
    np.testing.assert_allclose(fit.predict(NEW, re="new")["mean"], expit(f).mean(axis=1), atol=0.01)


@pytest.mark.parametrize("re", [False, "new"])
def test_columns_of_grouping_factors_need_not_be_there(fit, re):
    found = fit.predict({"x": NEW["x"]}, re=re)
    for name, values in fit.predict(NEW, re=re).items():
        np.testing.assert_array_equal(found[name], values)


def test_a_level_never_seen_is_a_new_one(fit):
    new = {"x": [0.5], "g": ["nobody"], "h": ["nobody"]}
    for name, values in fit.predict(new).items():
        np.testing.assert_allclose(fit.predict(new, re="new")[name], values, rtol=1e-12)


def test_a_grouping_factor_that_is_a_covariate_as_well_stays_a_covariate():
    fit = klimb.fit("y ~ x + h + (1 | h)", DATA, family="bernoulli")
    apart = fit.predict({"x": [0.0] * 5, "h": [f"h{k}" for k in range(5)]}, re=False)["mean"]
    assert np.ptp(apart) > 0.01


def test_rows_of_the_fit(fit):
    alone = fit.predict(re=False, kind="latent")["mean"]
    assert np.unique(alone.round(9)).size == np.unique(X).size
    np.testing.assert_allclose(fit.predict(re=True)["mean"], fit.predict()["mean"])


def test_other_words_are_refused(fit):
    with pytest.raises(InputError, match="re must be True, False or \"new\"; got 'none'"):
        fit.predict(NEW, re="none")


def heavy_slopes() -> dict[str, np.ndarray]:
    """Slopes of twelve levels of six rows, beside noise of one degree of freedom."""
    rng = np.random.default_rng(1)
    g, x = np.repeat(np.arange(12), 6), np.tile(np.arange(6.0), 12)
    a, b = 2.0 * rng.standard_normal(12), rng.standard_normal(12)
    return {"y": 5.0 + 0.5 * x + a[g] + b[g] * x + rng.standard_t(1.0, 72), "x": x, "g": g}


def test_rows_with_improper_cavities_are_left_out_of_their_levels() -> None:
    data = heavy_slopes()
    fit = klimb.fit("y ~ x + (1 + x | g)", data, "student_t")
    left_out = fit.loo()
    assert left_out.failed == 0  # two rows were
    without = klimb.fit("y ~ x + (1 + x | g)", {name: np.delete(own, 23) for name, own in data.items()}, "student_t")
    row = {name: own[[23]] for name, own in data.items()}
    assert left_out.log_density[23] == pytest.approx(float(np.asarray(without.log_density(None, row))[0]), abs=0.4)


def test_a_note_says_that_levels_have_peaks() -> None:
    rng = np.random.default_rng(2)
    g = np.repeat(np.arange(60), 3)
    y = 3.0 * rng.standard_normal(60)[g] + 0.1 * rng.standard_t(0.7, 180)
    peaked, plain = (klimb.fit("y ~ 1 + (1 | g)", {"y": y, "g": g}, family)
                     for family in ("student_t(df=0.7, scale=0.1)", "student_t(df=10, scale=1)"))
    assert any("narrow peak" in note for note in peaked.notes)
    assert not any("narrow peak" in note for note in plain.notes)
