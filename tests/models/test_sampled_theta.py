"""Points of theta and the surrogate between them, against densities whose moments are known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import polygamma

import klimb
from klimb.models import linear, sampled_theta
from klimb.models.sampled_theta import SampledTheta, SmoothedTheta, kept_points, mixture_log_density, smoothed_points
from klimb.numerics.pareto import smooth_log_weights
from klimb.numerics.proposals import HalfLines, SplitStudent


def sampled(n: int) -> SampledTheta:
    """Of logs of three gamma variables of shape 3: sum_j 3 (z_j - e^z_j), with a long lower tail in every direction."""
    proposal = SplitStudent(np.zeros(3), np.eye(3), np.array([[0.7, 0.5]] * 3))
    theta = proposal.draws(n, seed=1)
    values = 3.0 * (theta - np.exp(theta) + 1.0).sum(axis=1)
    log_w = values - mixture_log_density(theta, [(n, proposal)])
    smoothed = smooth_log_weights(log_w)
    coordinates = HalfLines(np.full(3, np.nan), np.ones(3), np.zeros(3))
    return SampledTheta(coordinates, theta, values, 3.0 * (1.0 - np.exp(theta)), np.zeros(n), np.zeros(n),
                        np.zeros((n, 3)), lambda place: np.zeros(len(place)), np.arange(n), log_w, smoothed.khat,
                        smoothed.effective, ((n, proposal),))


def test_a_sharp_prior_is_taken_as_it_is_between_fits() -> None:
    """A prior with a kink in theta: the surrogate of the rest meets it, that of the whole does not."""
    def kinked(theta: np.ndarray) -> np.ndarray:
        return np.asarray(-4.0 * np.log(np.cosh(12.0 * theta[:, 0])) / 12.0)

    plain = sampled(64)
    prior, slopes = kinked(plain.theta), np.zeros_like(plain.theta)
    slopes[:, 0] = -4.0 * np.tanh(12.0 * plain.theta[:, 0])
    whole = replace(plain, values=plain.values + prior, slopes=plain.slopes + slopes,
                    log_weights=plain.log_weights + prior, made={})
    apart = replace(whole, sharp=prior, sharp_slopes=slopes, sharp_part=kinked, made={})
    x = np.linspace(-6.0, 3.0, 20_001)
    density = np.exp(3.0 * (x - np.exp(x)) + kinked(x[:, None]))
    density /= density.sum()
    mean = float(density @ x)
    truth = float(np.sqrt(density @ (x - mean) ** 2))
    found = smoothed_points(apart)
    assert found is not None
    own = found.weights @ found.theta[:, 0]
    assert np.sqrt(found.weights @ (found.theta[:, 0] - own) ** 2) == pytest.approx(truth, rel=0.03)
    assert own == pytest.approx(mean, abs=0.03 * truth)

    def error(smoothed: SmoothedTheta) -> float:
        """The weighted mean of what the surrogate is off."""
        exact = 3.0 * (smoothed.theta - np.exp(smoothed.theta) + 1.0).sum(axis=1) + kinked(smoothed.theta)
        return float(smoothed.weights @ np.abs(smoothed.heights - exact))

    rough = smoothed_points(whole)
    assert rough is None or error(rough) > 5.0 * error(found)


def test_what_a_surrogate_was_tested_for_it_is_believed_for() -> None:
    """Tails beyond the farthest of few fits carry some of the sds: cut off there they are too small."""
    found, truth = sampled(64), float(np.sqrt(polygamma(1, 3)))
    errors = []
    for one in (found, replace(found, error=0.01)):
        smoothed = one.smoothed
        assert smoothed is not None
        away = smoothed.theta - smoothed.weights @ smoothed.theta
        errors.append(np.abs(np.sqrt(smoothed.weights @ away**2) / truth - 1.0).max())
        assert smoothed.beyond.any() == (one is not found)
    assert errors[1] < 0.7 * errors[0]


def test_a_surrogate_is_made_once_for_the_same_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fit asks four times or more for what a surrogate says: only new fits make it another one."""
    made, asked = list[int](), list[int]()
    fit_surrogate, smoothed_points = sampled_theta.fit_surrogate, sampled_theta.smoothed_points
    monkeypatch.setattr(sampled_theta, "fit_surrogate", lambda z, *rest, **more: (
        made.append(len(z)), fit_surrogate(z, *rest, **more))[1])
    for module in ("sampled_theta", "adaptive"):
        monkeypatch.setattr(f"klimb.models.{module}.smoothed_points", lambda found, *how: (
            asked.append(len(found.theta)), smoothed_points(found, *how))[1])
    rng = np.random.default_rng(1)
    g, x = np.repeat(np.arange(18), 10), np.tile(np.arange(10.0), 18)
    y = 250.0 + 10.0 * x + (25.0 + 6.0 * x) * rng.standard_normal(18)[g] + 25.0 * rng.standard_normal(180)
    fit = klimb.fit("y ~ x + (1 + x | g)", {"y": y, "x": x, "g": g}, progress=False)
    assert fit.trust.verdict == "trust"
    assert len(asked) >= 4
    assert len(set(made)) == len(set(asked)) < len(asked)


def test_points_by_bounds_are_those_with_the_evidence_weighed_again() -> None:
    """Their heights are exact for two normals, so that weights, means and the integral are known."""
    many = np.random.default_rng(1).standard_normal((4000, 1)) * 2.0
    log_q = -0.125 * many[:, 0] ** 2 - np.log(2.0 * np.sqrt(2.0 * np.pi))
    lower, heights = -0.5 * many[:, 0] ** 2, -0.5 * (many[:, 0] - 0.7) ** 2 + 0.3
    lower[0] = heights[0] = -np.inf  # what nobody knows
    found = sampled_theta.SmoothedTheta.of(many, heights, lower, log_q, many[:, 0] > 3.0)
    for one, mean, log_mean in ((found, 0.7, 0.3), (found.by_bounds(), 0.0, 0.0)):
        assert abs(float(one.weights @ one.theta[:, 0]) - mean) < 0.08
        assert abs(one.log_mean - log_mean - 0.5 * np.log(2.0 * np.pi)) < 0.05
        assert len(one.beyond) == len(one.theta) < len(many)


def test_leaving_rows_out_makes_few_latents(monkeypatch: pytest.MonkeyPatch) -> None:
    """One at the heaviest point of theta and one to either side: levels are integrated out there alone."""
    rng = np.random.default_rng(2)
    g = np.repeat(np.arange(12), 8)
    y = rng.poisson(np.exp(1.0 + 0.5 * rng.standard_normal(12)[g]))
    fit = klimb.fit("y ~ (1 | g)", {"y": y, "g": g}, family="poisson", progress=False)
    made, make = list[int](), linear.LinearModel.latent.func
    monkeypatch.setattr(linear.LinearModel, "latent", property(lambda model: made.append(1) or make(model)))
    assert np.isfinite(fit.loo().log_density).all()
    assert len(made) <= 3 < len(fit.components.weights)


def test_where_fits_are_too_low_to_count_nothing_is_claimed() -> None:
    """A wall: the surrogate through the fits before it goes on beyond it, where fits have shown that there is nothing.
    """
    found = sampled(128)
    wall = found.theta[:, 0] > 0.2
    values, log_w = (np.where(wall, -60.0, own) for own in (found.values, found.log_weights))
    smoothed = replace(found, values=values, log_weights=log_w).smoothed
    assert smoothed is not None
    assert smoothed.weights[smoothed.theta[:, 0] > 0.5].sum() < 0.01


def test_kept_points_stand_for_tails_and_bulk() -> None:
    """Of 400 points of a density with a long tail 32 have its moments, and those of what grows along the tail."""
    rng = np.random.default_rng(4)
    theta = np.column_stack([rng.exponential(1.0, 400), rng.standard_normal((400, 2))])
    weights = np.full(400, 1.0 / 400)
    kept, own = kept_points(theta, weights, np.eye(3), 32)
    assert own.sum() == pytest.approx(1.0)
    assert 1.0 / (own @ own) > 16.0  # as they were, eight points had the weight of all
    for values in (theta[:, 0], theta[:, 0] ** 2, np.exp(0.5 * theta[:, 0])):
        assert own @ values[kept] == pytest.approx(values.mean(), rel=0.1)


RING = [(i, (i + k) % 25) for k in (1, 3) for i in range(25)]


@pytest.mark.parametrize(("seed", "truth"), [(1, 0.188), (8, 0.293)])
def test_an_intercept_whose_variance_is_in_a_tail_of_theta(seed: int, truth: float) -> None:
    """Where rho is near 1 it is known to 2, elsewhere to 0.2; ``truth`` is by sums over 2,000 points of theta."""
    rng = np.random.default_rng(seed)
    region = rng.integers(0, 25, 120)
    counts = rng.negative_binomial(3, 3.0 / (3.0 + np.exp(1.0 + 0.4 * np.sin(region / 2.0))))
    fit = klimb.fit("y ~ car(r, graph=G)", {"r": region, "y": counts}, "negative_binomial", graphs={"G": RING})
    assert fit.coefficients["sd"][0] == pytest.approx(truth, rel=0.08)  # was 0.37 and 0.48
