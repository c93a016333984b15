"""Mixtures of log densities by few evaluations and a surrogate."""

import numpy as np
import pytest

import klimb
from klimb.boosting import Positive, Real
from klimb.errors import InputError
from klimb.numerics.surrogate import fit_surrogate, quadratics


class Counted:
    """A log density that counts the points it was asked for."""

    def __init__(self, function):
        self.function, self.points = function, 0

    def __call__(self, x):
        self.points += len(x) if np.ndim(x) == 2 else 1
        return self.function(x)


def skewed(x):
    """The log of a Gamma(3) variable, a Gaussian whose mean follows it, and one of its own."""
    a, b, c = np.moveaxis(np.asarray(x), -1, 0)
    return 3.0 * a - np.exp(a) - 0.5 * (b - 0.5 * a) ** 2 / 0.25 - 0.5 * c**2


LOG_EVIDENCE = np.log(2.0) + np.log(2.0 * np.pi) + np.log(0.5)
MEAN, SD = np.array([0.92278, 0.46139, 0.0]), np.array([0.62845, np.sqrt(0.25 + 0.62845**2 / 4), 1.0])


@pytest.mark.parametrize("batches", [True, False])
def test_few_evaluations_give_moments_and_the_bound(batches: bool) -> None:
    target = Counted(skewed if batches else lambda x: float(skewed(x)) if np.ndim(x) == 1 else 1 / 0)
    q = klimb.boost(target, 3, init=[2.0, -1.0, 1.0], scale=1.5, max_evaluations=90)
    assert target.points == q.n_values <= 90
    assert (np.abs(q.mean - MEAN) / SD).max() < 0.1
    assert np.abs(np.log(q.sd / SD)).max() < 0.1
    assert q.surrogate is not None
    assert q.surrogate.error < 0.2
    assert abs(q.bound - LOG_EVIDENCE) < 4.0 * q.bound_error + 0.05
    assert q.ended.name == "EVALUATIONS"
    assert q.trust.verdict == "doubt"  # the budget ended before three rounds were predicted
    assert "Raise max_evaluations" in q.trust.advice
    assert "surrogate off by" in str(q.trust)
    assert target.points <= 90  # the verdict asks for nothing more


def test_a_surrogate_that_predicts_is_trusted() -> None:
    q = klimb.boost(lambda x: -0.5 * (x**2).sum(-1) - 0.02 * x[..., 0] ** 4, 3, max_evaluations=120)
    assert q.ended.name == "PREDICTED"
    assert q.n_values < 120
    assert q.trust.verdict == "trust"


def test_the_same_call_gives_the_same_mixture() -> None:
    one, two = (klimb.boost(skewed, 3, max_evaluations=60) for _ in range(2))
    np.testing.assert_array_equal(one.means, two.means)


def test_too_few_evaluations_are_doubted() -> None:
    rng = np.random.default_rng(1)
    A = rng.standard_normal((6, 6)) + 2.0 * np.eye(6)
    q = klimb.boost(lambda x: -0.5 * (((x - 3.0) @ A) ** 2).sum(-1) - 0.3 * np.cosh(x[..., 0]), 6, scale=3.0,
                    max_evaluations=56)
    off = np.abs(q.mean - q.corrected.mean).max()
    assert q.trust.verdict == "doubt"
    assert np.isfinite(off)


def test_a_far_start_walks_to_the_bulk() -> None:
    q = klimb.boost(lambda x: -0.5 * ((x - 60.0) ** 2).sum(-1), 2, init=[0.0, 0.0], max_evaluations=120)
    assert np.abs(q.mean - 60.0).max() < 0.1
    assert q.trust.verdict == "trust"


def test_walls_are_met_in_words() -> None:
    def half(x):
        return np.where(x[..., 0] > 0.0, -0.5 * (x**2).sum(-1), -np.inf)

    q = klimb.boost(half, 2, init=[1.0, 0.0], max_evaluations=80)
    assert q.trust.verdict == "doubt"
    assert "transform" in q.trust.advice
    free = klimb.boost(half, 2, init=[1.0, 0.0], transform=[Positive(), Real()], max_evaluations=80)
    assert abs(free.mean[0] - np.sqrt(2.0 / np.pi)) < 0.1
    assert (free.sample(100)[:, 0] > 0.0).all()


def test_what_does_not_work_is_refused() -> None:
    with pytest.raises(InputError, match="8 free parameters"):
        klimb.boost(lambda x: -0.5 * (x**2).sum(-1), 9, max_evaluations=500)
    with pytest.raises(InputError, match="at least"):
        klimb.boost(skewed, 3, max_evaluations=20)
    with pytest.raises(InputError, match="finite somewhere"):
        klimb.boost(lambda x: np.full(np.shape(x)[:-1], -np.inf), 2, max_evaluations=60)


def test_variances_are_those_of_kriging() -> None:
    rng = np.random.default_rng(0)
    z, new, more = rng.standard_normal((30, 2)), rng.standard_normal((7, 2)), rng.standard_normal((2, 2))
    y = -0.5 * (z**2).sum(1) + 0.1 * np.sin(2 * z[:, 0])
    found = fit_surrogate(z, y, np.ones(30), ridge=1e-2)
    assert found is not None
    noise = np.linalg.inv(found.half.T @ found.half) - np.exp(-0.5 * ((z[:, None] - z) ** 2).sum(2) / found.length**2)

    def covariance(a, b):  # of trend and Gaussian process together
        k = np.exp(-0.5 * ((a[:, None] - b) ** 2).sum(2) / found.length**2)
        return k + quadratics(a) @ quadratics(b).T / 1e-2

    for known in (more[:0], more):
        at = np.vstack([z, known])
        K = covariance(at, at)
        K[:30, :30] += noise
        K[30:, 30:] += 1e-6 * np.eye(len(known))
        cross = covariance(new, at)
        exact = np.diag(covariance(new, new) - cross @ np.linalg.solve(K, cross.T))
        np.testing.assert_allclose(found.variances(new, known), found.amplitude * exact, rtol=1e-3,
                                   atol=1e-6 * found.amplitude)
