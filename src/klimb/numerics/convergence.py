"""Whether chains of draws agree, and how many independent draws they are worth.

Vehtari, Gelman, Simpson, Carpenter and Bürkner (2021), Rank-normalization, folding, and localization: an improved R-hat
for assessing convergence of MCMC. Chains are split in halves; draws are (chains, draws, quantities).
"""

from __future__ import annotations

import numpy as np
from scipy.special import ndtri
from scipy.stats import rankdata

from klimb.numerics.arrays import Array


def rhat(draws: Array) -> Array:
    """Rank-normalised split R-hat of each quantity: near 1 where the chains agree, in place and in spread.

    The larger one of that of the draws and that of their distances from the median.
    """
    halves = split(draws)
    folded = np.abs(halves - np.median(halves, axis=(0, 1)))
    return np.maximum(_plain_rhat(normal_scores(halves)), _plain_rhat(normal_scores(folded)))


def bulk_ess(draws: Array) -> Array:
    """Effective number of draws for the middle of each quantity: that of the rank-normalised halves of the chains."""
    return effective(normal_scores(split(draws)))


def split(draws: Array) -> Array:
    """Each chain as two, the odd draw in the middle left out."""
    half = draws.shape[1] // 2
    return np.concatenate([draws[:, :half], draws[:, draws.shape[1] - half :]])


def normal_scores(draws: Array) -> Array:
    """Normal quantiles of the ranks among all chains, ties sharing their mean rank."""
    flat = draws.reshape(-1, draws.shape[2])
    return np.asarray(ndtri((rankdata(flat, axis=0) - 0.375) / (len(flat) + 0.25)).reshape(draws.shape))


def effective(draws: Array) -> Array:
    """Effective number of draws for the mean of each quantity, by Geyer's initial monotone sequence.

    With rho_t the autocorrelations over all chains, tau = -1 + 2 sum_k P_k of the pairs P_k = rho_2k + rho_2k+1, as
    long as these are positive, each no larger than the one before.
    """
    chains, n, _ = draws.shape
    covariances = _autocovariances(draws).mean(axis=0)
    within = covariances[0] * n / (n - 1.0)
    total = covariances[0] + (draws.mean(axis=1).var(axis=0, ddof=1) if chains > 1 else 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        rho = 1.0 - (within - covariances) / total
    rho[0] = 1.0
    pairs = rho[: 2 * (n // 2)].reshape(n // 2, 2, -1).sum(axis=1)
    kept = np.minimum.accumulate(pairs > 0.0, axis=0)
    monotone = np.minimum.accumulate(np.where(kept, pairs, np.inf), axis=0)
    tau = -1.0 + 2.0 * np.where(kept, monotone, 0.0).sum(axis=0)
    end = np.minimum(kept.sum(axis=0), n // 2 - 1)  # the first pair that is left out: its first half may be positive
    tau += np.maximum(np.take_along_axis(rho[::2][: n // 2], end[None], axis=0)[0], 0.0)
    return np.where(total > 0.0, chains * n / np.maximum(tau, 1.0 / np.log10(chains * n)), float(chains * n))


def _plain_rhat(draws: Array) -> Array:
    n = draws.shape[1]
    within = draws.var(axis=1, ddof=1).mean(axis=0)
    between = draws.mean(axis=1).var(axis=0, ddof=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.sqrt((n - 1.0) / n + between / within)
    return np.where(within > 0.0, ratio, np.where(between > 0.0, np.inf, 1.0))


def _autocovariances(draws: Array) -> Array:
    """(chains, lags, quantities), each sum over n."""
    n = draws.shape[1]
    power = np.abs(np.fft.rfft(draws - draws.mean(axis=1, keepdims=True), 2 * n, axis=1)) ** 2
    return np.asarray(np.fft.irfft(power, 2 * n, axis=1)[:, :n] / n)
