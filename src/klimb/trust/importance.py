"""Importance sampling of the exact posterior from q, by moments that do not shake.

With p the posterior, q = N(0, I) in coordinates z and g = log w - const, p is q times e^g, and Stein's identity gives

    E_p x = E_p G        E_p x^2 = 1 + E_p x G        E_p x^3 = 2 E_p x + E_p x^2 G        G = r'grad g

for a marginal x = r'z of unit variance. The right-hand sides vanish as q becomes exact, and so does their noise; the
weighted averages of x itself would shake by 1 / sqrt(draws) even for a perfect q. At the optimum of the bound E_q G and
E_q x G are zero, so what the draws say they are is taken off as well.

In hundreds of dimensions many small misfits add up, and importance weights over all of them are useless although every
marginal may be fine. Along the directions u in which log w varies most (leading eigenvectors of E grad grad') the
weights are those of the marginal, bounded from below by Jensen's inequality with the rest integrated under q:

    log w(u) = E_q [ log w | u ] = sum_i E log p(y_i | f_i) under N(m_i + c_i'u, v_i - |c_i|^2) + ...

which is the site's own oracle at the conditional marginals. Where sites are so many that each moves little, its third
and fourth derivatives say it: E log p_i = ... + l_3i He_3(c_i'u) / 6 + l_4i He_4(c_i'u) / 24, Hermite's polynomials of
variance |c_i|^2, whose sums over the sites are tensors of the few directions.
"""

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from scipy.special import chdtri, ndtr

from klimb.latents.coordinates import Coordinates
from klimb.numerics.arrays import Array, slices
from klimb.numerics.lowdiscrepancy import matched_draws, normal_draws
from klimb.numerics.pareto import SmoothedWeights, smooth_deeper, smooth_log_weights
from klimb.numerics.proposals import student_log_density
from klimb.trust.weights import LogWeights, expected

Marginals: TypeAlias = tuple[Array, Array]  # draws x marginals in units of q's sd, and the slopes G along them

FLOPS, SITE_VALUES = 2.6e8, 1.3e6  # of the products with Z, and values of log p: what a default report may cost
MARGINAL_VALUES = 4.0e5  # draws x marginals
MOST_DRAWS, FEWEST_DRAWS = 2048, 40
STATIONARY = 1e-3  # norm up to which q counts as an optimum of the bound
TAIL_DF = 6.0  # degrees of freedom of the wider proposal
WIDER = 1.1  # and its scale, over the sd of the target as first seen
DIRECTIONS = 4
DRAWS, FEWEST = 1200, 64
HARMLESS = 0.9  # effective draws over draws from which a tail does no harm
AHEAD = 0.3  # step of differences of gamma, in sds of f


@dataclass(frozen=True, eq=False)
class WeightedMoments:
    """Of some reported marginals under p, in units of q's standard deviations, with standard errors."""

    shift: Array  # (mean of p - mean of q) / sd of q
    ratio: Array  # sd of p / sd of q
    skewness: Array
    shift_error: Array
    ratio_error: Array


@dataclass(frozen=True, eq=False)
class Sample:
    """Draws, log weights against p and gradients of log p/q; of draws of q ``bound`` is the mean of log weights."""

    z: Array
    log_weights: Array
    gradient: Array
    smoothed: SmoothedWeights
    bound: float | None
    stationary: bool  # the draws are q's and q is an optimum of the bound, so that E_q gradient = 0

    @property
    def n_draws(self) -> int:
        return len(self.z)

    @property
    def variance(self) -> float:
        """Var_q log w: twice the leading term of log evidence - bound, which is KL(q || p)."""
        finite = self.log_weights[np.isfinite(self.log_weights)]
        return float(finite.var())

    @property
    def efficiency(self) -> float:
        """Effective number of draws over their number."""
        return self.smoothed.effective / self.n_draws

    def log_evidence(self) -> tuple[float, float]:
        """log p(y) and its standard error.

        For draws of q: the average of e^g - g >= 1, g = log w - bound, whose expectation is that of e^g because
        E_q g = 0 is known. That is less noisy, and never below the bound.
        """
        if self.bound is None:
            return self.smoothed.log_mean, self.smoothed.log_mean_error
        g, raw = self.smoothed.log_weights - self.bound, self.log_weights - self.bound
        if not (np.isfinite(raw).all() and g.max() < 700.0):
            return self.smoothed.log_mean, self.smoothed.log_mean_error
        terms = np.exp(g) - raw
        mean = max(float(terms.mean()), 1.0)
        return self.bound + float(np.log(mean)), float(_pair_error(terms) / mean)

    def marginals(self, coordinates: Coordinates, which: Any) -> Marginals:
        """Some reported marginals at the draws, and the slopes of log p/q along them."""
        sd = np.where(coordinates.sd[which] > 0, coordinates.sd[which], 1.0)
        both = coordinates.report(np.concatenate([self.z, self.gradient]), which) / sd
        return both[: len(self.z)], both[len(self.z) :]

    def moments(self, marginals: Marginals) -> WeightedMoments:
        """Mean, sd and skewness of marginals by weighting."""
        x, G = marginals
        w, n = self.smoothed.normalised[:, None], self.n_draws
        control = 1.0 / n if self.stationary else 0.0
        product = x * G
        shift = ((w - control) * G).sum(0)
        second = 1.0 + ((w - control) * product).sum(0)
        third = 2.0 * shift + (w * (x * product)).sum(0)
        variance = np.maximum(second - shift**2, 1e-6)
        skewness = (third - 3.0 * shift * second + 2.0 * shift**3) / variance**1.5
        # Errors of the ratios of averages, pair by pair (z, -z).
        scaled = n * (w - control)
        shift_error = _pair_error(scaled * G - n * w * shift)
        second_error = _pair_error(scaled * product - n * w * (second - 1.0))
        ratio = np.sqrt(variance)
        return WeightedMoments(shift, ratio, skewness, shift_error, 0.5 * second_error / ratio)

    def second_order(self, marginals: Marginals) -> WeightedMoments:
        """The same without weights, to second order in log w, for draws of an optimal q: no dimension is too high.

        The variance grows by a = E_q G^2, for which a / (1 + a) is taken; skewness is E_q (x^2 - 1) G; means stay.
        """
        x, G = marginals
        gain = (G * G).mean(0)
        ratio = np.sqrt(1.0 + gain / (1.0 + gain))
        skewness = ((x * x - 1.0) * G).mean(0) / ratio**3
        error = _pair_error(G * G) / (2.0 * ratio * (1.0 + gain) ** 2)
        return WeightedMoments(np.zeros_like(gain), ratio, skewness, np.sqrt(gain / self.n_draws), error)


def _pair_error(terms: Array) -> Any:
    """Standard error of the mean of terms that come in pairs (first half, second half)."""
    half = len(terms) // 2
    pairs = 0.5 * (terms[:half] + terms[half : 2 * half])
    return pairs.std(axis=0) / np.sqrt(max(half, 1))


def default_draws(coordinates: Coordinates) -> int:
    """How many draws a default report takes: products with Z within `FLOPS`, values of log p within `SITE_VALUES`."""
    wanted = min(FLOPS / (4.0 * max(coordinates.work, 1.0)), SITE_VALUES / coordinates.n_sites,
                 MARGINAL_VALUES / max(len(coordinates.mean), 1))
    return 2 * int(np.clip(wanted, FEWEST_DRAWS, MOST_DRAWS) // 2)


def draw(log_weights: LogWeights, n: int, *, seed: int = 0) -> Sample:
    """``n`` draws of q, in pairs z and -z, with their weights."""
    z = matched_draws(n, log_weights.coordinates.dim, seed=seed)
    values, gradient = log_weights(z)
    stationary = log_weights.stationarity <= STATIONARY
    return Sample(z, values, gradient, smooth_deeper(values), log_weights.mean, stationary)


def redraw(log_weights: LogWeights, first: Sample, n: int, *, seed: int = 0) -> Sample:
    """Draws of a wider t with the mean and covariance that ``first`` found for p: their weights are bounded."""
    dim = first.z.shape[1]
    w = first.smoothed.normalised
    centre = w @ first.z
    off = first.z - centre
    covariance = (w[:, None] * off).T @ off
    # Few effective draws say little of a covariance: lean on q's in proportion.
    trust = first.smoothed.effective / (first.smoothed.effective + 2.0 * dim)
    covariance = trust * covariance + (1.0 - trust) * np.eye(dim)
    root = WIDER * np.linalg.cholesky(covariance) * np.sqrt((TAIL_DF - 2.0) / TAIL_DF)
    base = normal_draws(n, dim + 1, seed=seed + 1)
    half = (n + 1) // 2
    level = np.clip(ndtr(base[:half, dim]), 1e-12, 1.0 - 1e-12)
    mixing = np.sqrt(TAIL_DF / chdtri(TAIL_DF, level))
    mixing = np.concatenate([mixing, mixing])[:n]
    t = base[:, :dim] * mixing[:, None]
    z = centre + t @ root.T
    values, gradient = log_weights(z)
    log_q = -0.5 * np.einsum("ij,ij->i", z, z) - 0.5 * dim * np.log(2.0 * np.pi)
    squares, log_det = np.einsum("ij,ij->i", t, t), float(np.log(np.diagonal(root)).sum())
    values = values + log_q - student_log_density(squares, dim, log_det, TAIL_DF)
    return Sample(z, values, gradient, smooth_log_weights(values), None, False)


def direction_khat(log_weights: LogWeights, sample: Sample, allowed: int | None, seed: int = 0) -> float | None:
    """k-hat along the leading directions, None without any; at most 0 where nearly all draws are effective.

    By the sites' own oracle, or by their derivatives where fewer draws of that are ``allowed`` than say something.
    """
    few = allowed is not None and allowed < FEWEST
    n = DRAWS if allowed is None or few else min(DRAWS, allowed)
    if sample.z.shape[1] == 0 or log_weights.coordinates.excess(sample.z[:1]) is not None:
        return None
    C = leading_directions(log_weights, sample, DIRECTIONS)
    u = matched_draws(n, C.shape[1], seed=seed)
    values = _expanded(log_weights, C, u) if few else _by_oracle(log_weights, C, u)
    found = smooth_deeper(np.where(np.isfinite(values), values, -np.inf))
    return min(found.khat, 0.0) if found.effective > HARMLESS * n else found.khat


def _by_oracle(log_weights: LogWeights, C: Array, u: Array) -> Array:
    q, site, y = log_weights.posterior, log_weights.site, log_weights.y
    rest = np.maximum(q.v - np.einsum("ij,ij->i", C, C), 0.0)
    values = np.empty(len(u))
    for some in slices(len(u), FEWEST):
        d = u[some] @ C.T
        with np.errstate(over="ignore", invalid="ignore"):
            value = expected(site, y, q.m + d, rest, slopes=False)[0].sum(axis=1)
            values[some] = value - d @ q.a + 0.5 * (d * d) @ q.gamma
    return values


def _expanded(log_weights: LogWeights, C: Array, u: Array) -> Array:
    q, site, y = log_weights.posterior, log_weights.site, log_weights.y
    step = AHEAD * np.sqrt(np.maximum(q.v, 1e-300))
    up, down = (site.oracle(y, q.m + move, q.v).gamma for move in (step, -step))
    third, fourth = (down - up) / (2.0 * step), (2.0 * log_weights.expectation.gamma - up - down) / step**2
    pairs = (C[:, :, None] * C[:, None, :]).reshape(len(C), -1)
    size = np.einsum("ij,ij->i", C, C)
    squares = (u[:, :, None] * u[:, None, :]).reshape(len(u), -1)
    cubes = np.einsum("si,ij,sj->s", squares, pairs.T @ (third[:, None] * C), u) - 3.0 * u @ (C.T @ (third * size))
    quartic = np.einsum("si,ij,sj->s", squares, pairs.T @ (fourth[:, None] * pairs), squares)
    quartic += 3.0 * float(fourth @ size**2) - 6.0 * squares @ (pairs.T @ (fourth * size))
    return np.asarray(cubes / 6.0 + quartic / 24.0)


def leading_directions(log_weights: LogWeights, sample: Sample, k: int) -> Array:
    """How f at the sites moves along the ``k`` directions in which log w varies most: sites x directions."""
    gradient = sample.gradient
    if gradient.shape[0] > gradient.shape[1]:
        _, vectors = np.linalg.eigh(gradient.T @ gradient)
        basis = vectors[:, ::-1][:, :k].T
    else:
        _, _, rows = np.linalg.svd(gradient, full_matrices=False)
        basis = rows[:k]
    return np.ascontiguousarray(log_weights.coordinates.deviations(basis).T)
