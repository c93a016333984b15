"""The other direction: KL(p || q), lowered by importance-weighted expectation maximisation from an exclusive fit."""

from __future__ import annotations

import numpy as np

from klimb.boosting.gaussians import Gaussians, log_mixture
from klimb.boosting.nodes import nodes
from klimb.boosting.target import Target
from klimb.numerics.arrays import Array
from klimb.numerics.pareto import smooth_log_weights

DRAWS, ROUNDS, SWEEPS = 2048, 4, 10
PRIOR = 0.02  # share of a component's present covariance that stays: few draws must not make it collapse


def inclusive_refined(target: Target, weights: Array, parts: Gaussians, seed: int) -> tuple[Array, Gaussians]:
    """A mixture with a lower KL(p || q), as far as smoothed importance weights can tell.

    Each round draws from the present mixture, a little widened so that tails are seen, weighs the draws by p over that,
    and runs EM; it is kept if fresh draws agree that E_p log q has risen.
    """
    best = current = (weights, parts)
    for round_ in range(ROUNDS + 1):
        X, share = _draws(target, *current, seed + 7 * round_)
        score = float(share @ log_mixture(current[0], current[1].log_densities(X)))
        previous = float(share @ log_mixture(best[0], best[1].log_densities(X)))
        if round_ == 0 or score >= previous:
            best = current
        if round_ < ROUNDS:
            current = _em(*best, X, share)
    return best


def _draws(target: Target, weights: Array, parts: Gaussians, seed: int) -> tuple[Array, Array]:
    wide = Gaussians(parts.means, 1.3 * parts.roots)
    Z = nodes(max(DRAWS // len(parts), 64), parts.dim, seed)
    X = wide.at(Z).reshape(-1, parts.dim)
    proposal = log_mixture(weights, wide.log_densities(X))
    with np.errstate(divide="ignore"):
        ratio = target.values(X) - proposal + np.repeat(np.log(weights / len(Z)), len(Z))
    return X, smooth_log_weights(ratio).normalised


def _em(weights: Array, parts: Gaussians, X: Array, share: Array) -> tuple[Array, Gaussians]:
    floor = PRIOR * parts.covariances
    for _ in range(SWEEPS):
        terms = parts.log_densities(X)
        with np.errstate(divide="ignore"):
            r = share * np.exp(terms + np.log(weights)[:, None] - log_mixture(weights, terms))
        mass = r.sum(axis=1)
        keep = mass > 1e-6
        r, mass, floor = r[keep], mass[keep], floor[keep]
        means = r @ X / mass[:, None]
        centred = X[None] - means[:, None]
        covariances = np.matmul((r[:, :, None] * centred).transpose(0, 2, 1), centred) / mass[:, None, None]
        weights = mass / mass.sum()
        parts = Gaussians(means, np.linalg.cholesky((1.0 - PRIOR) * covariances + floor))
    return weights, parts
