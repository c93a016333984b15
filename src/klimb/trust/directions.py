"""k-hat along the few directions that matter most, for latents too large for weights over all of them.

In hundreds of dimensions many small misfits add up, and importance weights over all of them are useless although every
marginal may be fine. Along the directions u in which log w varies most (leading eigenvectors of E grad grad') the
weights are those of the marginal, bounded from below by Jensen's inequality with the rest integrated under q:

    log w(u) = E_q [ log w | u ] = sum_i E log p(y_i | f_i) under N(m_i + c_i'u, v_i - |c_i|^2) + ...

which is the site's own oracle at the conditional marginals. Where sites are so many that each moves little, its third
and fourth derivatives say it: E log p_i = ... + l_3i He_3(c_i'u) / 6 + l_4i He_4(c_i'u) / 24, Hermite's polynomials of
variance |c_i|^2, whose sums over the sites are tensors of the few directions.
"""

import numpy as np

from klimb.numerics.arrays import Array, slices
from klimb.numerics.lowdiscrepancy import matched_draws
from klimb.numerics.pareto import smooth_deeper
from klimb.trust.importance import Sample
from klimb.trust.weights import LogWeights, expected

DIRECTIONS = 4
DRAWS, FEWEST = 1200, 64
HARMLESS = 0.9  # effective draws over draws from which a tail does no harm
AHEAD = 0.3  # step of differences of gamma, in sds of f


def direction_khat(log_weights: LogWeights, sample: Sample, allowed: int | None, seed: int = 0) -> float | None:
    """k-hat along the leading directions, None without any.

    By the sites' own oracle, or by their derivatives where fewer draws of that are ``allowed`` than say something. At
    most 0 where nearly all draws are effective: the tail carries next to nothing then.
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
