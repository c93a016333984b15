"""The other direction: KL(p || q), lowered by importance-weighted expectation maximisation from an exclusive fit.

KL(p || q) asks that q be somewhere wherever p is. So the draws come from q and from wider mixtures around it, and where
the target has mass that q has less than a third of, q gets a component of its own.
"""

from __future__ import annotations

import numpy as np

from klimb.boosting.gaussians import Gaussians, log_mixture, moments, one_gaussian, spread_draws, widened
from klimb.boosting.target import Target
from klimb.numerics.arrays import Array
from klimb.numerics.pareto import smooth_log_weights

DRAWS, ROUNDS, SWEEPS = 2048, 5, 10
AROUND = ((0.0, 0.5), (2.0, 0.25), (6.0, 0.25))  # how far outside q draws go, and how many of them
PRIOR = 0.02  # share of a component's present covariance that stays: few draws must not make it collapse
THIN, LEAST_MISSING = 3.0, 1e-3  # more than this share of p, where p is so many times q, gets a component


def inclusive_refined(target: Target, weights: Array, parts: Gaussians, seed: int, *, draws: int = DRAWS,
                      rounds: int = ROUNDS, n_components: int | None = None) -> tuple[Array, Gaussians]:
    """A mixture with a lower KL(p || q), as far as smoothed importance weights can tell.

    Each round draws around the present mixture, adds a component where mass is missing (unless there are
    ``n_components``), and runs EM; the result is kept if the draws around it, which its fit has not seen, agree that
    E_p log q has risen.
    """
    best = current = (weights, parts)
    for round_ in range(rounds + 1):
        X, log_w = _draws(target, *current, seed + 7 * round_, draws)
        share = smooth_log_weights(log_w).normalised
        if round_ == 0 or share @ _log_q(current, X) >= share @ _log_q(best, X):
            best = current
        if round_ < rounds:
            full = n_components is not None and len(best[0]) >= n_components
            current = _em(*(best if full else _with_missing(best, X, log_w)), X, share)
    return best


def _log_q(mixture: tuple[Array, Gaussians], X: Array) -> Array:
    return log_mixture(mixture[0], mixture[1].log_densities(X))


def _draws(target: Target, weights: Array, parts: Gaussians, seed: int, n: int) -> tuple[Array, Array]:
    """Points of the mixture and around it, with the log of p over the density of all of them."""
    wide = [widened(parts, far) for far, _ in AROUND]
    X = np.concatenate([spread_draws(weights, one, int(share * n), seed + j)
                        for j, (one, (_, share)) in enumerate(zip(wide, AROUND, strict=True))])
    terms = [np.log(share) + log_mixture(weights, one.log_densities(X))
             for one, (_, share) in zip(wide, AROUND, strict=True)]
    return X, target.values(X, far=True) - np.logaddexp.reduce(terms, axis=0)


def _with_missing(mixture: tuple[Array, Gaussians], X: Array, log_w: Array) -> tuple[Array, Gaussians]:
    """``mixture`` with a component at the moments of the mass it lacks, if that is worth one."""
    weights, parts = mixture
    smoothed = smooth_log_weights(log_w)
    share = smoothed.normalised
    log_r = np.logaddexp.reduce([np.log(a) + log_mixture(weights, widened(parts, far).log_densities(X))
                                 for far, a in AROUND], axis=0)
    lacking = np.where(log_w + log_r - _log_q(mixture, X) - smoothed.log_mean > np.log(THIN), share, 0.0)
    missing = float(lacking.sum())
    if missing < LEAST_MISSING or np.count_nonzero(lacking) < 2 * (parts.dim + 1):
        return mixture
    mean, cov = moments(lacking / missing, X)
    floor = parts.covariances[int(np.argmax(parts.log_densities(mean[None])[:, 0]))]
    new = one_gaussian(mean, np.asarray(np.linalg.cholesky((1.0 - PRIOR) * cov + PRIOR * floor)))
    return np.append((1.0 - missing) * weights, missing), parts.joined(new)


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
