"""The trust report: against exact integrals, for every method, on planted bad fits, with what it prints and draws."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import klimb
from benchmarks.trust import planted_funnels, planted_problems, random_problem
from klimb.errors import InputError
from klimb.trust import sign_map, trust_report

X = np.column_stack([np.ones(40), np.linspace(-1, 1, 40)])
Y = np.arange(40) % 3 > 0


def logistic(cov: float = 4.0) -> Any:
    return klimb.infer(klimb.latents.Weights(X, cov=cov), klimb.sites.Logistic(), Y)


def exact_moments(latent: Any, site: Any, y: Any, grid: np.ndarray, sd: float) -> tuple[float, float, float, float]:
    """Log evidence, mean, sd and skewness of the one weight of a model with design of ones, by the trapezoidal rule."""
    f = np.repeat(grid[:, None], len(y), axis=1)
    log_joint = site.log_density(y, f).sum(1) - 0.5 * (grid / sd) ** 2 - np.log(sd * np.sqrt(2 * np.pi))
    top, step = log_joint.max(), grid[1] - grid[0]
    p = np.exp(log_joint - top)
    total = p.sum()
    p = p / total
    mean = p @ grid
    spread = np.sqrt(p @ (grid - mean) ** 2)
    return float(np.log(total * step) + top), float(mean), float(spread), float(p @ ((grid - mean) / spread) ** 3)


ONE_WEIGHT = {
    "poisson, few counts": (klimb.sites.Poisson(), [0, 0, 1, 0, 0, 0, 0], 2.0, (-12.0, 6.0)),
    "poisson, none": (klimb.sites.Poisson(), [0] * 5, 3.0, (-25.0, 8.0)),
    "logistic": (klimb.sites.Logistic(), [1, 1, 1, 0, 1], 2.0, (-12.0, 12.0)),
    "one class": (klimb.sites.Logistic(), [1] * 8, 4.0, (-10.0, 40.0)),
    "laplace": (klimb.sites.Laplace(0.5), [0.0, 1.0, 1.2, 5.0], 3.0, (-10.0, 15.0)),
    "exponential": (klimb.sites.Exponential(), [0.1, 2.0], 1.5, (-10.0, 10.0)),
}


@pytest.mark.parametrize("name", ONE_WEIGHT)
def test_one_weight_against_quadrature(name: str) -> None:
    site, y, sd, (low, high) = ONE_WEIGHT[name]
    latent = klimb.latents.Weights(np.ones((len(y), 1)), cov=sd**2)
    result = klimb.infer(latent, site, y)
    evidence, mean, spread, skewness = exact_moments(latent, site, y, np.linspace(low, high, 40001), sd)
    report = klimb.trust(result)
    exact = report.corrected
    assert report.log_evidence == pytest.approx(evidence, abs=max(4 * report.log_evidence_error, 2e-3))
    assert result.bound <= evidence
    assert exact.mean[0] == pytest.approx(mean, abs=0.01 * spread)
    assert exact.sd[0] == pytest.approx(spread, rel=0.01)
    assert exact.skewness[0] == pytest.approx(skewness, abs=0.05)
    # and what a default report says, from fewer draws
    assert result.corrected.sd[0] == pytest.approx(spread, rel=0.03)


def test_gaussian_sites_are_exact() -> None:
    y = np.sin(3 * X[:, 1])
    result = klimb.infer(klimb.latents.Weights(X), klimb.sites.Gaussian(0.3), y)
    report = result.trust
    assert report.verdict == "trust"
    assert report.efficiency == pytest.approx(1.0)
    assert report.log_evidence == pytest.approx(result.bound, abs=1e-8)
    assert np.allclose(report.corrected.sd, np.sqrt(np.diag(result.posterior.covariance())))
    assert json.loads(json.dumps(report.to_dict(), allow_nan=False))["verdict"] == "trust"


@pytest.mark.parametrize("seed", range(16))
def test_ladder_is_ordered(seed: int) -> None:
    """local bound <= bound <= log evidence; a violated order would be a bug."""
    _, latent, site, y = random_problem(seed)
    result = klimb.infer(latent, site, y)
    report = result.trust
    ladder = report.ladder
    assert ladder.ordered, str(ladder)
    assert ladder.bound == pytest.approx(result.bound, abs=1e-9)
    if ladder.local is not None:
        assert ladder.local <= ladder.bound + 1e-6
    assert ladder.bound <= ladder.evidence
    # The average of the log weights is the bound itself: importance sampling and the fit speak of the same model.
    own = report.context.own
    assert own.log_weights.mean() == pytest.approx(result.bound, abs=5 * own.log_weights.std() / 40 + 1e-9)


def test_ladder_notices_a_wrong_order() -> None:
    from dataclasses import replace

    ladder = logistic().trust.ladder
    assert ladder.ordered
    assert not replace(ladder, local=ladder.bound + 0.1).ordered
    assert not replace(ladder, evidence=ladder.bound - 0.1, evidence_error=0.01).ordered
    assert [name for name, _, _ in ladder.rows()] == ["local bound", "bound", "log evidence", "Laplace", "EP"]


def test_no_false_alarms() -> None:
    """At most 5% of random log-concave problems; `python -m benchmarks.trust alarms` counts over 500."""
    words = []
    for seed in range(64):
        _, latent, site, y = random_problem(seed)
        words.append(klimb.infer(latent, site, y).trust.verdict)
    assert words.count("doubt") <= 3
    assert words.count("trust") >= 48


@pytest.mark.parametrize(("label", "latent", "site", "y"), [pytest.param(*p, id=f"{i} {p[0]}")
                                                            for i, p in enumerate(planted_problems())])
def test_planted_bad_fits_are_flagged(label: str, latent: Any, site: Any, y: np.ndarray) -> None:
    report = klimb.infer(latent, site, y).trust
    assert report.verdict == "doubt"
    assert report.number > 0
    assert "sampl" in report.advice


@pytest.mark.parametrize(("label", "model", "y"), [pytest.param(*p, id=p[0]) for p in planted_funnels()])
def test_planted_funnels_are_flagged(label: str, model: Any, y: np.ndarray) -> None:
    best = model.fit(y)
    assert best.trust.verdict == "trust"  # nothing in the fit at the mode can show it
    report = klimb.trust(best)
    assert report.verdict == "doubt"
    assert json.loads(json.dumps(report.to_dict(), allow_nan=False))["verdict"] == "doubt"
    assert str(report).startswith("doubt")


def test_well_determined_hyperparameters_are_fine() -> None:
    x = np.linspace(0, 6, 80)
    y = np.sin(2 * x) + 0.2 * np.random.default_rng(0).standard_normal(80)
    report = klimb.trust(klimb.gp(klimb.kernels.RBF(), x).fit(y))
    assert report.verdict != "doubt"
    facts = {fact.label: fact.value for fact in report.facts}
    assert float(facts["sd of f over that at the best hyperparameters"].split()[-1]) < 1.2


def test_second_mode_has_its_mass() -> None:
    """The odds that bounds give agree with the mass on a grid."""
    noise = 0.3 * np.random.default_rng(3).standard_normal(9)
    y = np.concatenate([noise[:8], 6.0 + 0.8 * noise[:8], [3.0]])
    site, latent = klimb.sites.StudentT(df=2.0, scale=0.3), klimb.latents.Weights(np.ones((17, 1)), cov=100.0)
    report = klimb.infer(latent, site, y).trust
    grid = np.linspace(-5, 11, 40001)
    log_joint = site.log_density(y, np.repeat(grid[:, None], 17, axis=1)).sum(1) - 0.005 * grid**2
    p = np.exp(log_joint - log_joint.max())
    shares = [p[grid < 3].sum() / p.sum(), p[grid > 3].sum() / p.sum()]
    minor = shares[int(report.context.posterior.mean[0] < 3)]  # the one that the fit did not choose
    assert len(report.modes) == 1
    assert report.modes[0].odds / (1 + report.modes[0].odds) == pytest.approx(minor, rel=0.15)
    assert "Another mode" in report.advice
    assert "result.trust.sampled()" in report.advice
    sd = np.sqrt(p @ (grid - p @ grid / p.sum()) ** 2 / p.sum())
    assert report.sampled().sd[0] == pytest.approx(float(sd), rel=0.1)


def test_many_directions_need_second_order_theory() -> None:
    """Weights over 60 directions are useless, marginals are not: more weights than data."""
    rng = np.random.default_rng(21)
    Z = rng.standard_normal((50, 60))
    y = Z @ rng.standard_normal(60) > 0
    report = klimb.infer(klimb.latents.Weights(Z), klimb.sites.Logistic(), y).trust
    assert report.method == "second order"
    assert report.direction_khat is not None
    assert report.verdict in ("trust", "corrected")
    assert 1.02 < report.marginals.ratio.max() < 1.1  # NUTS says 1.063


# -- other methods


@pytest.mark.parametrize("method", ["laplace", "ep", "cholesky_gradient"])
def test_other_methods_have_trust_too(method: str) -> None:
    """Posteriors that are no optimum of the bound: one log evidence, one set of corrected marginals for all."""
    latent = klimb.latents.Weights(X, cov=4.0)
    best = klimb.trust(logistic())
    other = klimb.trust(getattr(klimb.methods, method)(latent, klimb.sites.Logistic(), Y))
    assert other.log_evidence == pytest.approx(best.log_evidence, abs=0.01)
    assert np.allclose(other.corrected.mean, best.corrected.mean, atol=0.02 * best.corrected.sd.max())
    assert np.allclose(other.corrected.sd, best.corrected.sd, rtol=0.02)


def test_mean_field_is_corrected() -> None:
    """A diagonal q for correlated weights: sds far too small, and the weights say by how much."""
    Z = np.column_stack([np.ones(60), 1.0 + 0.5 * np.random.default_rng(0).standard_normal(60)])
    y = np.random.default_rng(1).random(60) < 0.5
    full = klimb.infer(klimb.latents.Weights(Z, cov=4.0), klimb.sites.Logistic(), y)
    diagonal = klimb.methods.mean_field(klimb.latents.Weights(Z, cov=4.0), klimb.sites.Logistic(), y)
    report = klimb.trust(diagonal)
    assert report.verdict == "corrected"
    assert "treats the weights as independent" in report.advice
    q_sd = np.sqrt(np.diag(diagonal.posterior.covariance()))
    assert np.all(klimb.trust(full).corrected.sd > 1.5 * q_sd)
    assert report.log_evidence > diagonal.bound


def test_a_point_has_no_trust() -> None:
    result = klimb.methods.map_estimate(klimb.latents.Weights(X), klimb.sites.Logistic(), Y)
    with pytest.raises(InputError, match="point estimate"):
        _ = result.trust


def test_a_stopped_fit_is_in_doubt() -> None:
    result = klimb.infer(klimb.latents.Weights(5 * X, cov=1e4), klimb.sites.Poisson(), np.arange(40), max_iter=0)
    assert not result.converged
    assert result.trust.verdict == "doubt"
    assert "converge" in result.trust.advice


# -- what it says


def test_same_report_every_time() -> None:
    one, two = logistic().trust, logistic().trust
    assert str(one) == str(two)
    assert one.to_dict() == two.to_dict()


def test_text_and_record() -> None:
    report = logistic().trust
    lines = str(report).splitlines()
    assert lines[0].startswith("verdict       trust: ")
    assert [line.split()[0] for line in lines] == ["verdict", "k-hat", "log", "marginals"]
    record = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert record["verdict"] == report.verdict
    assert record["largest_sd_ratio"] == pytest.approx(report.marginals.ratio.max())
    assert {"number", "measures", "advice", "khat", "log_evidence", "modes"} <= set(record)


def test_full_report_has_more_draws() -> None:
    report = logistic().trust
    full = report.full(8192)
    assert full.n_draws == 8192
    assert full.log_evidence_error < report.log_evidence_error
    assert full.direction_khat is not None


def test_advice_of_a_correction_counts() -> None:
    result = klimb.infer(klimb.latents.Weights(np.ones((6, 1)), cov=25.0), klimb.sites.Poisson(), [0] * 6)
    report = result.trust
    assert report.verdict == "corrected"
    assert report.advice.startswith("sd of 1 weight understated by up to ")
    assert "result.corrected" in report.advice
    assert report.measures == "relative error of an sd"


def test_corrected_marginals_are_distributions() -> None:
    latent = klimb.latents.Weights(np.ones((6, 1)), cov=9.0)
    exact = klimb.infer(latent, klimb.sites.Poisson(), [0, 0, 1, 0, 0, 0]).corrected
    x = np.linspace(exact.mean[0] - 12 * exact.sd[0], exact.mean[0] + 12 * exact.sd[0], 20001)
    density = exact.density(0, x)
    step = x[1] - x[0]
    mean = step * density @ x
    sd = np.sqrt(step * density @ (x - mean) ** 2)
    assert step * density.sum() == pytest.approx(1.0, abs=1e-6)
    assert mean == pytest.approx(exact.mean[0], abs=1e-5)
    assert sd == pytest.approx(exact.sd[0], rel=1e-4)
    assert step * density @ ((x - mean) / sd) ** 3 == pytest.approx(exact.skewness[0], abs=1e-3)
    for p in (0.01, 0.3, 0.9):
        assert exact.cdf(exact.quantile(p))[0] == pytest.approx(p, abs=1e-9)
    assert exact.quantile([0.1, 0.5, 0.9]).shape == (3, 1)
    low, high = exact.interval(0.8)
    assert exact.cdf(high)[0] - exact.cdf(low)[0] == pytest.approx(0.8)
    with pytest.raises(InputError):
        exact.quantile(1.0)
    with pytest.raises(InputError):
        exact.interval(0.0)


@pytest.mark.parametrize("skewness", [-2.5, -0.3, -1e-4, 0.0, 1e-6, 0.999e-3, 1.001e-3, 0.5, 1.8])
def test_shifted_gamma_at_every_skewness(skewness: float) -> None:
    from klimb.trust.marginals import Corrected

    one = Corrected("weight", np.array([2.0]), np.array([3.0]), np.array([skewness]), "importance", 0.0)
    for p in (1e-3, 0.2, 0.5, 0.97):
        assert one.cdf(one.quantile(p))[0] == pytest.approx(p, abs=1e-6)
    grid = np.linspace(2 - 40, 2 + 40, 800001)
    density = one.density(0, grid)
    assert np.trapezoid(density, grid) == pytest.approx(1.0, abs=5e-3)
    # continuous across the change to the Gaussian's neighbourhood
    near = Corrected("weight", np.zeros(2), np.ones(2), np.array([0.999e-3, 1.001e-3]), "importance", 0.0)
    assert abs(np.diff(near.quantile(0.9))[0]) < 1e-6


def test_site_report() -> None:
    rng = np.random.default_rng(0)
    y = np.append(0.1 * rng.standard_normal(20), 8.0)  # the last is an outlier
    result = klimb.infer(klimb.latents.Weights(np.ones((21, 1))), klimb.sites.StudentT(3.0, 0.2), y)
    sites = result.trust.sites
    assert 20 in sites.negative
    assert len(sites.table(3)) == 3
    assert sites.table(1)[0]["index"] == int(sites.worst(1)[0])
    assert all(np.isfinite(getattr(sites, name)).all() for name in ("skewness", "misfit", "pull_change"))


def test_site_report_has_the_third_derivative() -> None:
    """For Poisson, E d^3 log p/df^3 = -exp(m + v/2)."""
    result = klimb.infer(klimb.latents.Weights(np.ones((3, 1))), klimb.sites.Poisson(), [1, 0, 2])
    sites = result.trust.sites
    assert np.allclose(sites.skewness, -np.exp(sites.m + sites.v / 2) * sites.v**1.5, rtol=1e-3)


def test_sign_map() -> None:
    """gamma of a Poisson site rises with v everywhere; of a logistic one it falls near m = 0 and rises far off."""
    m, v = np.linspace(-4, 4, 9), np.array([0.1, 1.0])
    assert np.all(sign_map(klimb.sites.Poisson(), 2.0, m, v).sign == 1)
    found = sign_map(klimb.sites.Logistic(), 1.0, m, v).sign
    assert found[0, 4] == -1
    assert found[0, 0] == 1
    assert np.all(sign_map(klimb.sites.Gaussian(1.0), 0.0, m, v).sign == 0)


def test_certificate() -> None:
    counts = klimb.infer(klimb.latents.Weights(X), klimb.sites.Poisson(), Y.astype(float))
    found = counts.trust.certificate
    assert found is not None
    assert np.all(found.lower <= counts.posterior.v * (1 + 1e-5))
    labels = logistic().trust.certificate
    assert labels is not None
    assert np.all(labels.upper >= logistic().posterior.v * (1 - 1e-5))
    robust = klimb.infer(klimb.latents.Weights(X), klimb.sites.StudentT(3.0, 0.5), Y.astype(float))
    assert robust.trust.certificate is None


def test_plots() -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    report = logistic().trust
    assert report.plot_signs() is not None
    assert report.plot_marginals(which=[0, 1], names=["a", "b"]) is not None
    assert report.ladder.plot() is not None
    real = klimb.infer(klimb.latents.Weights(X), klimb.sites.StudentT(3.0), np.linspace(-1, 1, 40))
    assert real.trust.plot_signs() is not None
    plt.close("all")


# -- extremes


@pytest.mark.parametrize("scale", [1e-12, 1e-6, 1.0, 1e6])
def test_scale_of_the_design_does_not_matter(scale: float) -> None:
    result = klimb.infer(klimb.latents.Weights(X * scale, cov=4.0 / scale**2), klimb.sites.Logistic(), Y)
    assert result.trust.verdict == "trust"
    assert result.trust.log_evidence == pytest.approx(logistic().trust.log_evidence, abs=1e-4)


@pytest.mark.parametrize("case", ["one row", "duplicate columns", "no variance", "zero design", "many zero counts"])
def test_odd_problems(case: str) -> None:
    site: Any = klimb.sites.Logistic()
    if case == "one row":
        latent, y = klimb.latents.Weights([[1.0]]), [1]
    elif case == "duplicate columns":
        latent, y = klimb.latents.Weights(np.column_stack([X, X])), Y
    elif case == "no variance":
        latent, y = klimb.latents.Weights(X, cov=0.0), Y
    elif case == "zero design":
        latent, y = klimb.latents.Weights(np.zeros((5, 2))), [0, 1, 0, 1, 1]
    else:
        latent, y, site = klimb.latents.Weights(np.ones((200, 1))), np.zeros(200), klimb.sites.Poisson()
    result = klimb.infer(latent, site, y)
    report = result.trust
    assert report.verdict in ("trust", "corrected")
    assert np.isfinite(report.corrected.mean).all()
    assert np.isfinite(report.corrected.sd).all()
    assert np.isfinite(report.log_evidence)
    assert str(report)
    json.dumps(report.to_dict(), allow_nan=False)


def test_bad_input() -> None:
    with pytest.raises(InputError, match="Result or a fit"):
        klimb.trust("fit")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="draws"):
        trust_report(logistic(), draws=1)
    from dataclasses import replace

    with pytest.raises(InputError, match="likelihood and the data"):
        _ = replace(logistic(), problem=None).trust


def test_several_outputs() -> None:
    latent = klimb.latents.Outputs.shared(klimb.latents.Weights(X, cov=1.0), 3)
    result = klimb.infer(latent, klimb.sites.Softmax(3), np.arange(40) % 3)
    report = result.trust
    assert report.log_evidence >= result.bound
    assert report.verdict == "corrected"
    assert "classes as independent" in report.advice
    assert len(report.corrected.mean) == 6
    assert report.sites.y.shape == (120,)
    assert report.ladder.ordered
    with pytest.raises(InputError, match="one latent value"):
        report.plot_signs()
