"""What draws are worth: Pareto-smoothed importance weights, and whether chains agree.

Importance weights with a heavy right tail make averages that look settled and are not. The tail of the largest weights
is fitted by a generalised Pareto distribution; its shape k says how many moments the weights have (the 1/k-th is the
last), and replacing the tail by the fit's quantiles tames its noise. Up to k of about 0.7 averages can be relied on.

References: Zhang and Stephens, Technometrics 51 (2009), for the fit; Vehtari, Simpson, Gelman, Yao and Gabry, JMLR 25
(2024), for the smoothing, the number of tail weights and the thresholds. Chains are split in halves, with draws as
(chains, draws, quantities): Vehtari, Gelman, Simpson, Carpenter and Bürkner (2021), Rank-normalization, folding, and
localization: an improved R-hat for assessing convergence of MCMC.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from klimb.errors import InputError
from klimb.numerics.arrays import Array

RELIABLE = 0.7  # k up to which averages can be relied on, whatever the number of draws
FEWEST_TAIL = 5  # weights that a fit of the tail needs
DEEP_ENOUGH = 100  # tail weights of which a quarter is enough for a fit of its own
PRIOR_SIZE, PRIOR_SHAPE = 10, 0.5  # the weakly informative prior of k: ten draws' worth of 1/2
SPREAD_GRID = 3.0  # how far Zhang and Stephens' grid of the scale reaches


@dataclass(frozen=True, eq=False)
class SmoothedWeights:
    """Log weights after their tail was smoothed; ``normalised`` sum to one.

    ``khat`` is the shape of the tail: infinite without a usable one, minus infinity where all weights are equal.
    """

    log_weights: Array  # smoothed, on the scale of the input
    khat: float
    n_tail: int

    @property
    def normalised(self) -> Array:
        """The weights, summing to one."""
        weights = np.exp(self.log_weights - self.log_weights.max())
        return np.asarray(weights / weights.sum())

    @property
    def effective(self) -> float:
        """How many equal weights would be as good: 1 / sum w^2."""
        return float(1.0 / (self.normalised**2).sum())

    @property
    def log_mean(self) -> float:
        """log of the mean weight."""
        top = float(self.log_weights.max())
        return top + float(np.log(np.exp(self.log_weights - top).mean()))

    @property
    def log_mean_error(self) -> float:
        """Standard error of ``log_mean``, as if the draws were independent (quasi-random ones do better)."""
        n = len(self.log_weights)
        relative = self.normalised * n  # mean one
        return float(np.sqrt(((relative - 1.0) ** 2).sum() / max(n - 1, 1) / n))


def fit_generalised_pareto(excess: Array) -> tuple[float, float]:
    """Shape k and scale sigma for sorted positive ``excess``: density (1 + k x / sigma)^(-1/k - 1) / sigma.

    Zhang and Stephens' estimator: the posterior mean of theta = -k / sigma under a data-driven prior, on a grid.
    """
    n = len(excess)
    m = 30 + int(np.sqrt(n))
    quarter = excess[int(n / 4 + 0.5) - 1]  # the first quartile
    largest = excess[-1]
    if not (largest > 0 and np.isfinite(largest)):
        return (-np.inf if largest == 0 else np.inf), 0.0
    if quarter <= 0:  # a few weights dwarf the rest beyond what float64 can hold
        return np.inf, 0.0
    theta = 1.0 / largest + (1.0 - np.sqrt(m / (np.arange(1, m + 1) - 0.5))) / (SPREAD_GRID * quarter)
    with np.errstate(divide="ignore", invalid="ignore"):
        shapes = np.mean(np.log1p(-np.outer(theta, excess)), axis=1)  # the k that is best for each theta
        profile = n * (np.log(-theta / shapes) - shapes - 1.0)
    profile = np.where(np.isfinite(profile), profile, -np.inf)
    weight = np.exp(profile - profile.max())
    centre = float(weight @ theta / weight.sum())
    shape = float(np.mean(np.log1p(-centre * excess)))
    return shape, -shape / centre


def smooth_log_weights(log_weights: Array, *, tail_share: float = 1.0) -> SmoothedWeights:
    """Pareto-smoothed importance weights from raw log ratios of target to proposal.

    The largest min(S / 5, 3 sqrt(S)) weights (``tail_share`` of them) are replaced by the quantiles of the fitted tail,
    never beyond the largest raw weight. With fewer than 5 of them, or equal weights, nothing is smoothed.
    """
    raw = np.asarray(log_weights, dtype=np.float64)
    if raw.ndim != 1 or raw.size == 0:
        raise InputError("log weights must be a vector with at least one entry", f"shape {raw.shape}", "Draw more.")
    bad = np.isnan(raw) | (raw == np.inf)
    if bad.any():
        raise InputError("log weights must be below infinity", f"{raw[bad][0]} at index {int(np.argmax(bad))}",
                         "The target's log density must be a number wherever the proposal draws.")
    top = float(raw.max())
    if top == -np.inf:
        raise InputError("some log weight must be above minus infinity", "none", "Target and proposal never overlap.")
    n = len(raw)
    n_tail = int(np.ceil(tail_share * min(n / 5, 3 * np.sqrt(n))))
    if n_tail < FEWEST_TAIL:
        return SmoothedWeights(raw.copy(), np.inf, 0)
    largest = np.sort(np.argpartition(raw, n - n_tail - 1)[n - n_tail - 1 :])
    order = largest[np.argsort(raw[largest], kind="stable")]
    chosen = order[1:]
    threshold = np.exp(max(float(raw[order[0]]) - top, np.log(np.finfo(float).tiny)))
    excess = np.exp(raw[chosen] - top) - threshold
    if excess[-1] <= 4 * np.finfo(float).eps:  # equal to rounding: a perfect proposal
        return SmoothedWeights(raw.copy(), -np.inf, 0)
    shape, scale = fit_generalised_pareto(np.maximum(excess, 0.0))
    if not np.isfinite(shape):
        return SmoothedWeights(raw.copy(), np.inf, 0)
    khat = (shape * n_tail + PRIOR_SHAPE * PRIOR_SIZE) / (n_tail + PRIOR_SIZE)
    smoothed = raw.copy()
    quantiles = threshold + pareto_quantile((np.arange(n_tail) + 0.5) / n_tail, khat, scale)
    smoothed[chosen] = top + np.minimum(np.log(quantiles), 0.0)
    return SmoothedWeights(smoothed, float(khat), n_tail)


def smooth_deeper(log_weights: Array) -> SmoothedWeights:
    """The same; where the tail seems heavy, once more with a quarter of it, and the lighter of the two counts.

    In few dimensions many nearly equal weights may lie just above the threshold, which looks like an enormous k there.
    """
    first = smooth_log_weights(log_weights)
    if not first.khat > RELIABLE or first.n_tail < DEEP_ENOUGH:
        return first
    deeper = smooth_log_weights(log_weights, tail_share=0.25)
    return deeper if deeper.khat < first.khat else first


def pareto_quantile(probability: Array, shape: float, scale: float) -> Array:
    """Quantiles of the generalised Pareto distribution."""
    log_upper = np.log1p(-probability)
    if abs(shape) < 1e-10:
        return np.asarray(-scale * log_upper)
    return np.asarray(scale * np.expm1(-shape * log_upper) / shape)


def khat_threshold(n_draws: int) -> float:
    """The largest k that ``n_draws`` draws can carry: min(1 - 1 / log10(S), 0.7)."""
    return float(min(1.0 - 1.0 / np.log10(max(n_draws, 11)), RELIABLE))


def rhat(draws: Array) -> Array:
    """Rank-normalised split R-hat of draws, or of distances from the median if larger: near 1 where chains agree."""
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
    from scipy.stats import rankdata  # takes long to import

    flat = draws.reshape(-1, draws.shape[2])
    return np.asarray(ndtri((rankdata(flat, axis=0) - 0.375) / (len(flat) + 0.25)).reshape(draws.shape))


def effective(draws: Array) -> Array:
    """Effective number of draws for the mean of each quantity, by Geyer's initial monotone sequence.

    tau = -1 + 2 sum_k P_k of pairs rho_2k + rho_2k+1 of autocorrelations, while positive, none larger than the last.
    """
    chains, n, _ = draws.shape
    power = np.abs(np.fft.rfft(draws - draws.mean(axis=1, keepdims=True), 2 * n, axis=1)) ** 2
    covariances = (np.fft.irfft(power, 2 * n, axis=1)[:, :n] / n).mean(axis=0)  # (lags, quantities), over all chains
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
