"""What becomes of a doubt: more draws put right what they can, and the advice that remains works on the very fit."""

import numpy as np
import pytest

import klimb
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


def test_another_mode_beside_the_mass_is_a_doubt_and_the_advice_can_be_followed() -> None:
    y = np.array([-5.0, -5.1, -4.9, -5.05, 5.0, 5.1, 4.9, 5.0])
    fit = klimb.fit("y ~ 1", {"y": y}, "student_t",
                    priors={"Intercept": "normal(0, 10)", "df": "gamma(2, 1)", "scale": "exponential(1)"})
    assert fit.trust.verdict == "doubt"
    assert fit.trust.advice.endswith("fit.exact(draws=4000) samples it.")
    assert exact_refused(fit) is None
    pytest.importorskip("stanli")
    assert fit.exact(draws=400).table_rows()


def test_a_fit_that_cannot_be_sampled_says_why() -> None:
    x = np.linspace(0.0, 1.0, 12)
    fit = klimb.gp(klimb.kernels.RBF(lengthscale=1.0), x[:, None], klimb.sites.Logistic()).fit(x > 0.4)
    refused = exact_refused(fit)
    assert refused is not None
    assert "formula" in str(refused)
