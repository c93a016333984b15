"""k-hat along the few directions that matter most, for latents too large for weights over all of them.

In hundreds of dimensions many small misfits add up, and importance weights over all of them are useless although every
marginal may be fine. Along the directions u in which log w varies most (leading eigenvectors of E grad grad') the
weights are those of the marginal, bounded from below by Jensen's inequality with the rest integrated under q:

    log w(u) = E_q [ log w | u ] = sum_i E log p(y_i | f_i) under N(m_i + c_i'u, v_i - |c_i|^2) + ...

which is the site's own oracle at the conditional marginals.
"""

from __future__ import annotations

import numpy as np

from klimb.numerics.arrays import Array
from klimb.numerics.lowdiscrepancy import matched_draws
from klimb.numerics.pareto import smooth_deeper
from klimb.trust.importance import Sample
from klimb.trust.weights import LogWeights

DIRECTIONS = 4
DRAWS, FEWEST = 1200, 64


def direction_khat(log_weights: LogWeights, sample: Sample, allowed: int | None, seed: int = 0) -> float | None:
    """k-hat along the leading directions; None where it would cost more than ``allowed`` draws."""
    n = DRAWS if allowed is None else min(DRAWS, allowed)
    if n < FEWEST or sample.z.shape[1] == 0 or log_weights.coordinates.excess(sample.z[:1]) is not None:
        return None
    C = leading_directions(log_weights, sample, DIRECTIONS)
    q, site, y = log_weights.posterior, log_weights.site, log_weights.y
    rest = np.maximum(q.v - np.einsum("ij,ij->i", C, C), 0.0)
    u = matched_draws(n, C.shape[1], seed=seed)
    values = np.empty(len(u))
    for k, d in enumerate(u @ C.T):
        with np.errstate(over="ignore", invalid="ignore"):
            expected = float(site.oracle(y, q.m + d, rest).value.sum())
            values[k] = expected - float(q.a @ d) + 0.5 * float(q.gamma @ (d * d))
    values = np.where(np.isfinite(values), values, -np.inf)
    return smooth_deeper(values).khat


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
