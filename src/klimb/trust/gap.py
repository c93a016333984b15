"""log evidence - bound to leading order, for posteriors with too many directions for importance weights.

With g = log w - bound the gap is Var_q(g) / 2 to leading order, and at the optimum of the bound g has no part of first
or second order in the standard coordinates of q: it is a sum of Hermite polynomials of order three, four, ... A
polynomial of order k has E|grad g|^2 = k Var(g), and gradients average over all directions, so that a few pairs of
draws (z, -z) are enough where the weights themselves would need thousands:

    gap = Var(g_3) / 2 + Var(g_4) / 2,        Var(g_3) = E|G_odd|^2 / 3,        Var(g_4) = E|G_even|^2 / 4

with G_odd = (grad g(z) + grad g(-z)) / 2 the gradient of the odd part and G_even that of the even one.
"""

from __future__ import annotations

import numpy as np

from klimb.infer.problem import Problem
from klimb.latents.base import Posterior
from klimb.latents.coordinates import coordinates_of
from klimb.numerics.lowdiscrepancy import normal_draws
from klimb.trust.weights import LogWeights

VALUES = 8e4  # of log p that a gap may cost: many sites are many directions to average over
FEWEST, MOST = 3, 64  # pairs of draws


def evidence_gap(problem: Problem, posterior: Posterior) -> float:
    """log evidence - bound of an optimal q, to leading order.

    Draws are the same for all hyperparameters, so that differences between these hold better than the gap itself.
    """
    coordinates = coordinates_of(posterior)
    log_weights = LogWeights(problem, posterior, coordinates)
    pairs = int(np.clip(VALUES / (2 * coordinates.n_sites), FEWEST, MOST))
    z = normal_draws(pairs, coordinates.dim, symmetric=False)
    _, forward = log_weights(z)
    _, backward = log_weights(-z)
    odd, even = 0.5 * (forward + backward), 0.5 * (forward - backward)
    third = np.einsum("ij,ij->i", odd, odd) / 3.0
    fourth = np.einsum("ij,ij->i", even, even) / 4.0
    return 0.5 * float(np.mean(third + fourth))
