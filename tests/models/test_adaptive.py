"""Three and more hyperparameters integrated out, one of them an sd that may be zero: against a grid."""

import numpy as np
import pytest
from scipy.stats import multivariate_t

import klimb
from klimb.numerics.proposals import HalfLines, StudentMixture
from klimb.priors import beta, exponential, pc_correlation, pc_range, uniform
from klimb.theta import BoundedParameter, GroupCovariance, PositiveParameter, Theta

PRIORS = {"Intercept": "normal(0, 5)", "sd(g)": "exponential(2)", "sd(h)": "exponential(2)", "sigma": "exponential(2)"}


def crossed(seed: int) -> dict[str, np.ndarray]:
    """Two grouping factors, the second without an effect."""
    rng = np.random.default_rng(seed)
    g, h = np.repeat(np.arange(10), 6), np.tile(np.arange(6), 10)
    return {"y": 1.5 * rng.standard_normal(10)[g] + rng.standard_normal(60), "g": g, "h": h}


def brute_force(data: dict[str, np.ndarray]) -> dict[str, tuple[float, float]]:
    """Means and sds on a grid of sds: y is Gaussian given these."""
    ones = {name: (data[name][:, None] == data[name]).astype(float) for name in "gh"}
    n = len(data["y"])
    # The design is balanced, so that the covariances commute: eigenvalues add up.
    _, vectors = np.linalg.eigh(ones["g"] + np.sqrt(2.0) * ones["h"] + 25.0 * np.sqrt(3.0) / n)
    along = {name: np.einsum("in,ij,jn->n", vectors, ones[name], vectors) for name in "gh"}
    constant, square = (vectors.sum(axis=0)) ** 2, (vectors.T @ data["y"]) ** 2
    axes = np.linspace(0.02, 7, 60), np.linspace(0.005, 4, 160), np.linspace(0.6, 1.8, 40)
    a, b, s = (one.ravel() for one in np.meshgrid(*axes, indexing="ij"))
    spread = (a**2)[:, None] * along["g"] + (b**2)[:, None] * along["h"] + (s**2)[:, None] + 25.0 * constant
    logs = -0.5 * (np.log(spread) + square / spread).sum(axis=1) - (a + b + s) / 2.0
    w = np.exp(logs - logs.max())
    w /= w.sum()
    means = {"sd(g)": w @ a, "sd(h)": w @ b, "sigma": w @ s}
    return {name: (means[name], float(np.sqrt(w @ (x - means[name]) ** 2)))
            for name, x in (("sd(g)", a), ("sd(h)", b), ("sigma", s))}


def test_an_sd_that_may_be_zero_is_integrated_out_to_zero_and_named() -> None:
    data = crossed(1)
    fit = klimb.fit("y ~ (1 | g) + (1 | h)", data, priors=PRIORS)
    rows = {row.name: row for row in fit.table_rows()}
    for name, (mean, sd) in brute_force(data).items():
        assert rows[name].mean == pytest.approx(mean, abs=0.05 * sd), name
        assert rows[name].sd == pytest.approx(sd, rel=0.04), name
    facts = {fact.label: fact.value for fact in fit.trust.facts}
    assert facts["sds that may be zero"] == "sd(h)"
    assert fit.trust.verdict == "trust"
    assert 0.0 < fit.components.error < 0.06


@pytest.mark.parametrize("power", [1.0, -0.5])
def test_half_lines_keep_all_mass(power: float) -> None:
    lines = HalfLines(np.array([np.nan, 0.3]), np.array([1.0, power]), np.zeros(2))
    theta = np.array([[0.4, -7.0], [0.1, 2.0]])
    assert lines.theta(lines.place(theta)) == pytest.approx(theta)
    # d theta / d u against differences, and the mass of a folded t.
    u, h = np.array([0.2, 0.7]), 1e-6
    change = (lines.theta(u + [0.0, h]) - lines.theta(u - [0.0, h]))[1] / (2.0 * h)
    assert float(lines.log_volume(u)) == pytest.approx(np.log(np.abs(change)), rel=1e-6)
    folded = lines.folded(StudentMixture(np.ones(1), np.array([[0.0, 0.5]]), 0.4 * np.eye(2)[None]))
    x, y = np.linspace(-8, 8, 401), np.linspace(0, 8, 401)
    grid = np.array(np.meshgrid(x, y, indexing="ij")).reshape(2, -1).T
    trapezoid = np.where(grid[:, 1] == 0.0, 0.5, 1.0)
    mass = float(trapezoid @ np.exp(folded.log_density(grid))) * (x[1] - x[0]) * (y[1] - y[0])
    assert mass == pytest.approx(1.0, abs=0.01)
    assert (folded.draws(200, seed=1)[:, 1] >= 0.0).all()


def test_ends_of_half_lines_where_a_density_vanishes() -> None:
    """k log tanh x and its derivative; what is no half line has none."""
    lines = HalfLines(np.array([0.3, np.nan]), np.array([-1.0, 1.0]), np.array([1.5, 0.0]))
    x, h = np.array([[0.4, -2.0], [1e-3, 5.0]]), 1e-7
    value, slope = lines.log_vanishing(x)
    assert value == pytest.approx(1.5 * np.log(np.tanh(x[:, 0])))
    change = (lines.log_vanishing(x + [h, 0.0])[0] - lines.log_vanishing(x - [h, 0.0])[0]) / (2.0 * h)
    assert slope == pytest.approx(np.column_stack([change, np.zeros(2)]), rel=1e-5)


def test_half_lines_are_for_logarithms_alone() -> None:
    """A correlation of ar1 lies between limits, those of random slopes are inverse tangents: neither may be zero."""
    sds = (PositiveParameter("sd(g)", exponential(1.0)), PositiveParameter("sd(x | g)", exponential(1.0)))
    blocks = (PositiveParameter("range", pc_range(1.0)), BoundedParameter("rho", pc_correlation(), -1.0, 1.0),
              PositiveParameter("share", uniform(0.0, 2.0)), GroupCovariance(sds, ("cor",)))
    assert Theta.of(blocks).powers.tolist() == [-1.0, 0.0, 0.0, 1.0, 1.0, 0.0]


def test_the_cusp_of_a_prior_is_known_beside_a_surrogate() -> None:
    block = BoundedParameter("rho", pc_correlation(), -1.0, 1.0)
    theta = np.array([[-2.3], [-0.01], [0.02], [1.7]])
    assert block.sharp_prior(theta) == pytest.approx([block.log_density(one) for one in theta], abs=3e-5)
    assert BoundedParameter("phi", beta(1.0, 1.0), 0.0, 1.0).sharp_prior(theta) is None


def test_the_evidence_is_that_of_many_draws() -> None:
    """Few points have the noise of few; importance weights of many draws of theta have next to none."""
    rng = np.random.default_rng(3)
    g, x = np.repeat(np.arange(12), 10), rng.standard_normal(120)
    y = 1.0 + x + (0.8 * rng.standard_normal(12))[g] + (0.5 * rng.standard_normal(12))[g] * x + rng.standard_normal(120)
    fit = klimb.fit("y ~ x + (1 + x | g)", {"y": y, "x": x, "g": g})
    points, weights = fit.components.marginal_points
    mean = weights @ points
    spread = 1.5 * ((weights * (points - mean).T) @ (points - mean))
    proposal = multivariate_t(mean, spread, df=6, seed=4)
    theta = proposal.rvs(3000)
    data = fit.observed
    few = fit.linear.reduced(data)
    model, seen = (fit.linear, data) if few is None else few
    values = np.array([here.infer(seen).bound + here.theta.log_density(here.at)
                       for here in (model.moved(one) for one in theta)])
    log_w = values - proposal.logpdf(theta)
    truth = float(np.logaddexp.reduce(log_w)) - np.log(len(log_w))
    assert np.exp(2 * np.logaddexp.reduce(log_w) - np.logaddexp.reduce(2 * log_w)) > 600  # effective draws
    assert fit.bound == pytest.approx(truth, abs=0.06)
