"""What a fit shows is the exact posterior's: small groups of yes and no, against brute force."""

import numpy as np
import pytest
from scipy.special import log_expit, logsumexp
from tests.trust.test_collapsed import clusters

import klimb
from klimb.models.correction import Correction, pooled
from klimb.models.correctors import corrector_of

PRIORS = {"Intercept": "normal(0, 3)", "x": "normal(0, 2)", "sd(g)": "exponential(2)"}


def brute_force(data: dict[str, np.ndarray]) -> dict[str, tuple[float, float]]:
    """Means and sds of slope and sd(g) on a grid of (intercept, slope, log sd), every level on its own."""
    u = np.linspace(-6.0, 6.0, 49)
    log_u = -0.5 * u**2 + np.log(u[1] - u[0])
    centred = data["x"] - data["x"].mean()
    signs, levels = 2.0 * data["y"] - 1.0, int(data["g"].max()) + 1
    axes = [np.linspace(-3.0, 3.5, 19), np.linspace(-1.0, 4.0, 21), np.linspace(-2.5, 2.6, 27)]
    points = np.array(np.meshgrid(*axes, indexing="ij")).reshape(3, -1).T
    logs = np.empty(len(points))
    for k, (a, b, t) in enumerate(points):
        per_level = np.zeros((levels, len(u)))
        np.add.at(per_level, data["g"], log_expit(signs[:, None] * ((a + b * centred)[:, None] + np.exp(t) * u)))
        logs[k] = logsumexp(per_level + log_u, axis=1).sum()
        logs[k] += -0.5 * (a / 3.0) ** 2 - 0.5 * (b / 2.0) ** 2 - np.exp(t) / 2.0 + t
    w = np.exp(logs - logsumexp(logs))
    found = {}
    for name, values in (("x", points[:, 1]), ("sd(g)", np.exp(points[:, 2]))):
        mean = float(w @ values)
        found[name] = mean, float(np.sqrt(w @ (values - mean) ** 2))
    return found


@pytest.fixture(scope="module")
def small():
    data = clusters(levels=30, size=4, sd=2.5, seed=2)
    return data, klimb.fit("y ~ x + (1 | g)", data, "bernoulli", priors=PRIORS)


def test_small_groups_of_yes_and_no_are_right(small) -> None:
    data, fit = small
    rows = {row.name: row for row in fit.table_rows()}
    plain = {row.name: row for row in fit.uncorrected.table_rows()}
    for name, (mean, sd) in brute_force(data).items():
        assert rows[name].mean == pytest.approx(mean, abs=0.04 * sd)
        assert rows[name].sd == pytest.approx(sd, rel=0.03)
    mean, sd = brute_force(data)["sd(g)"]
    assert abs(plain["sd(g)"].mean - mean) > 0.1 * sd  # by the bound alone it is not
    assert fit.trust.verdict == "corrected"
    assert "corrected" in str(fit)
    assert fit.trust.number < 0.05


def test_what_is_shown_survives_a_file(small, tmp_path) -> None:
    _, fit = small
    fit.save(tmp_path / "m.klimb")
    loaded = klimb.load(tmp_path / "m.klimb")
    for before, after in zip(fit.table_rows(), loaded.table_rows(), strict=True):
        assert (before.mean, before.sd) == (after.mean, after.sd)
    for before, after in zip(fit.uncorrected.table_rows(), loaded.uncorrected.table_rows(), strict=True):
        assert before.mean == after.mean
    assert loaded.trust.verdict == "corrected"
    assert loaded.trust.advice == fit.trust.advice


def test_predictions_and_draws_are_corrected_with_the_table(small) -> None:
    _, fit = small
    new = {"x": np.array([0.0, 1.0]), "g": np.array([0, 1])}
    f, plain = fit.predict(new, kind="latent"), fit.uncorrected.predict(new, kind="latent")
    assert np.abs(f["mean"] - plain["mean"]).max() > 0.01
    draws = fit.draws(20_000, seed=1)
    rows = {row.name: row for row in fit.table_rows()}
    assert draws["x"].std() == pytest.approx(rows["x"].sd, rel=0.03)
    samples = fit.sample(20_000, new, seed=1)
    np.testing.assert_allclose(samples.mean(axis=0), f["mean"], atol=0.05)
    np.testing.assert_allclose(samples.std(axis=0), f["sd"], rtol=0.05)


def test_gaussian_responses_and_large_data_need_no_correction() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal(3000)
    exact = klimb.fit("y ~ x", {"x": x, "y": x + rng.standard_normal(3000)})
    assert exact.uncorrected is exact
    assert exact.trust.verdict == "trust"
    counts = klimb.fit("y ~ x", {"x": x, "y": rng.poisson(np.exp(1.0 + 0.2 * x))}, "poisson")
    assert counts.uncorrected is counts
    assert counts.trust.verdict == "trust"


def test_a_few_counts_are_corrected() -> None:
    """One intercept: the exact posterior on a grid."""
    y = np.array([0, 1, 0, 0, 2, 0])
    fit = klimb.fit("y ~ 1", {"y": y}, "poisson", priors={"Intercept": "normal(0, 3)"})
    f = np.linspace(-8.0, 4.0, 4001)
    log_p = y.sum() * f - len(y) * np.exp(f) - 0.5 * (f / 3.0) ** 2
    p = np.exp(log_p - logsumexp(log_p))
    mean = float(p @ f)
    row = fit.coefficient_rows()[0]
    assert row.mean == pytest.approx(mean, abs=0.01)
    assert row.sd == pytest.approx(float(np.sqrt(p @ (f - mean) ** 2)), rel=0.02)
    assert fit.uncorrected.coefficient_rows()[0].sd < 0.97 * row.sd


@pytest.mark.parametrize("others", [1, 24])
@pytest.mark.parametrize("events", [1, 2])
def test_the_tail_of_a_rate_of_few_events_is_reached(events: int, others: int) -> None:
    rows, b = 40, np.linspace(-16.0, 3.0, 4001)
    X = np.repeat(np.eye(1 + others), rows, axis=0)
    y = np.concatenate([np.arange(rows) < events, np.tile([2.0, 0.0], others * rows // 2)])
    result = klimb.infer(klimb.latents.Weights(X, cov=100.0), klimb.sites.Poisson(), y)
    corrector, parts = corrector_of(result), []
    for _ in range(8):  # as at each of many hyperparameters, whose draws differ
        correction = corrector(result)
        assert correction is not None
        parts.append(correction.parts[0][1])
    logs = events * b - rows * np.exp(b) - 0.005 * b**2
    p = np.exp(logs - logsumexp(logs))
    mean = float(p @ b)
    sd = float(np.sqrt(p @ (b - mean) ** 2))
    assert np.mean([part.mean[0] for part in parts]) == pytest.approx(mean, abs=0.02 * sd)
    assert np.mean([part.sd()[0] for part in parts]) == pytest.approx(sd, rel=0.025)


def test_chosen_hyperparameters_are_said_to_be_chosen() -> None:
    data = clusters(levels=30, size=4, sd=1.0, seed=5)
    fit = klimb.fit("y ~ x + (1 | g)", data, "bernoulli", hyper="optimise", priors=PRIORS)
    assert "best value" in fit.trust.advice


def test_ends_of_intervals_know_of_skewness() -> None:
    # No event in ten rows: the posterior of the log rate goes down as far as the prior lets it, and falls off above.
    fit = klimb.fit("y ~ 1", {"y": np.zeros(10)}, "poisson", priors={"Intercept": "normal(0, 10)"}, interval=0.9)
    b = np.linspace(-60.0, 5.0, 20_001)
    cdf = np.cumsum(np.exp(-10.0 * np.exp(b) - 0.005 * b**2))
    low, high = np.interp([0.05, 0.95], cdf / cdf[-1], b)
    (row,) = fit.table_rows()
    (plain,) = fit.uncorrected.table_rows()
    assert [row.lower, row.upper] == pytest.approx([low, high], abs=0.1 * row.sd)
    assert max(abs(plain.lower - low), abs(plain.upper - high)) > 0.3 * row.sd
    assert row.positive == pytest.approx(1.0 - np.interp(0.0, b, cdf / cdf[-1]), abs=0.01)


@pytest.mark.parametrize(("share", "doubt"), [(0.014, False), (0.1, True)])
def test_particles_that_disagree_count_by_what_their_point_adds(share: float, doubt: bool) -> None:
    """With a standard error of 0.23 at a point of 1.4% of the mass 0.003 of what is shown is open."""
    good, wrong = Correction(0.1, (), np.zeros(0), 0.9, error=0.05), Correction(0.1, (), np.zeros(0), 0.0, error=0.23)
    found = pooled([good, wrong], np.array([1.0 - share, share]))
    assert (found["efficiency"] < 0.15) is doubt
    assert found["error"] == pytest.approx(np.hypot(0.05 * (1.0 - share), 0.23 * share))
