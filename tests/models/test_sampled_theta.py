"""Points of theta and the surrogate between them, against densities whose moments are known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy.special import polygamma

from klimb.models.sampled_theta import SampledTheta, mixture_log_density
from klimb.numerics.pareto import smooth_log_weights
from klimb.numerics.proposals import HalfLines, SplitStudent


def sampled(n: int) -> SampledTheta:
    """Of logs of three gamma variables of shape 3: sum_j 3 (z_j - e^z_j), with a long lower tail in every direction."""
    proposal = SplitStudent(np.zeros(3), np.eye(3), np.array([[0.7, 0.5]] * 3))
    theta = proposal.draws(n, seed=1)
    values = 3.0 * (theta - np.exp(theta) + 1.0).sum(axis=1)
    log_w = values - mixture_log_density(theta, [(n, proposal)])
    smoothed = smooth_log_weights(log_w)
    coordinates = HalfLines(np.full(3, np.nan), np.ones(3))
    return SampledTheta(coordinates, theta, values, 3.0 * (1.0 - np.exp(theta)), np.zeros(n), np.arange(n), log_w,
                        smoothed.khat, smoothed.effective, ((n, proposal),))


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
