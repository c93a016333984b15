"""What becomes of a doubt: more draws and particles put right what they can, and the advice that remains works."""

import json
from dataclasses import replace

import numpy as np
import pytest

import klimb
from benchmarks import doubts
from klimb.infer.result import Status
from klimb.models.exact import exact_refused


def test_separable_labels_are_put_right_by_more_draws() -> None:
    rng = np.random.default_rng(0)
    rng.standard_normal(19)
    X = rng.standard_normal((60, 8))
    y = (X.sum(axis=1) > 0.0).astype(float)
    names = "abcdefgh"
    fit = klimb.fit("y ~ " + " + ".join(names), {"y": y, **dict(zip(names, X.T, strict=True))}, "bernoulli",
                    priors=dict.fromkeys(("Intercept", *names), "normal(0, 10)"))
    assert fit.trust.verdict == "corrected"
    # Truth by many random walks from klimb's own mean, with the exact joint density.
    centred, signs = np.column_stack([np.ones(60), X - X.mean(axis=0)]), 2.0 * y - 1.0
    rows = {row.name: row for row in fit.table_rows()}
    covariance = np.column_stack([fit.covariance[name] for name in ("Intercept", *names)]).astype(float)
    start = np.array([rows[name].mean for name in ("Intercept", *names)])
    lower = np.linalg.cholesky(covariance) * 2.0 / 3.0

    def log_density(w: np.ndarray) -> np.ndarray:  # the intercept's prior acts where the columns are at their means
        b = np.column_stack([w[:, 0] + w[:, 1:] @ X.mean(axis=0), w[:, 1:]])
        return -np.logaddexp(0.0, -(b @ centred.T) * signs).sum(axis=1) - 0.005 * (b**2).sum(axis=1)

    chains = 400
    w = start + rng.standard_normal((chains, 9)) @ lower.T
    now, total, square, count = log_density(w), np.zeros(9), np.zeros(9), 0
    for step in range(3000):
        other = w + rng.standard_normal((chains, 9)) @ lower.T
        value = log_density(other)
        taken = np.log(rng.random(chains)) < value - now
        w, now = np.where(taken[:, None], other, w), np.where(taken, value, now)
        if step >= 600:
            total, square, count = total + w.sum(axis=0), square + (w**2).sum(axis=0), count + chains
    mean, sd = total / count, np.sqrt(square / count - (total / count) ** 2)
    for k, name in enumerate(("Intercept", *names)):
        assert rows[name].mean == pytest.approx(mean[k], abs=0.12 * sd[k]), name
        assert rows[name].sd == pytest.approx(sd[k], rel=0.07), name


@pytest.mark.parametrize("name", ["5 columns, sd 50", "12 columns", "8 columns and groups", "two modes, one rare"])
def test_fits_far_from_gaussian_are_put_right(name: str) -> None:
    """Against the truth that is stored with the bench: all were in doubt, or wrong, by importance weights."""
    found = doubts.compared(name, json.loads(doubts.STORED.read_text())[name], advice=False)
    assert found["verdict"] == "corrected"
    assert found["mean_error"] < 0.15
    assert found["sd_error"] < 0.1


def test_two_modes_are_shown_as_two() -> None:
    fit = doubts.CASES["two modes, close"]()
    b = np.linspace(-14.0, 14.0, 28_001)
    logs = -0.5 * (b / 10.0) ** 2 - sum(np.log1p(((y - b) / 0.5) ** 2) for y in doubts.CLOSE)
    p = np.exp(logs - logs.max())
    p /= p.sum()
    mean = float(p @ b)
    sd = float(np.sqrt(p @ (b - mean) ** 2))
    (row,) = fit.table_rows()
    assert fit.trust.verdict == "corrected"
    assert row.mean == pytest.approx(mean, abs=0.12 * sd)
    assert row.sd == pytest.approx(sd, rel=0.05)
    assert [row.lower, row.upper] == pytest.approx(list(np.interp([0.05, 0.95], np.cumsum(p), b)), abs=0.12 * sd)
    (plain,) = fit.uncorrected.table_rows()
    assert plain.sd < 0.5 * sd
    draws = fit.draws(4000, seed=0)["Intercept"]
    assert float(np.mean(np.abs(draws) < 0.5)) == pytest.approx(float(p[np.abs(b) < 0.5].sum()), abs=0.05)


def test_the_advice_over_a_doubt_can_be_pasted() -> None:
    fit = replace(doubts.CASES["gp of labels"](), status=Status.STALLED)
    assert fit.trust.verdict == "doubt"
    assert "fit.result.trust.sampled()" in doubts.followed(fit)
    whole = klimb.fit("y ~ x", {"x": [1.0, 2.0, 3.0, 4.0], "y": [0.0, 1.0, 0.0, 1.0]}, "bernoulli")
    stopped = replace(whole, status=Status.STALLED)
    assert stopped.trust.verdict == "doubt"
    pytest.importorskip("stanli")
    assert doubts.followed(stopped) == "fit.exact(draws=4000)"


def test_a_fit_that_cannot_be_sampled_says_why() -> None:
    x = np.linspace(0.0, 1.0, 12)
    fit = klimb.gp(klimb.kernels.RBF(lengthscale=1.0), x[:, None], klimb.sites.Logistic()).fit(x > 0.4)
    refused = exact_refused(fit)
    assert refused is not None
    assert "formula" in str(refused)
