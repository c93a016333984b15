"""How much precision a label is expected to add to its latent value, whatever it will be."""

from __future__ import annotations

import numpy as np

from klimb.active.inclusion import include
from klimb.active.responses import response_nodes
from klimb.numerics.arrays import Array
from klimb.sites.base import Site

SCORE_TOL = 1e-6  # of the new sites behind a score, whose error is then smaller still


def expected_gamma(site: Site, m: Array, v: Array) -> Array:
    """E gamma over the predictive distribution of the label, one per marginal N(m, v).

    >>> from klimb.sites import Gaussian
    >>> expected_gamma(Gaussian(scale=0.5), np.zeros(1), np.ones(1)).round(9).tolist()
    [4.0]
    """
    total = np.zeros_like(m)
    for weight, y in response_nodes(site, m, v):
        total += weight * np.nan_to_num(include(site, y, m, v, tol=SCORE_TOL).gamma, nan=0.0)
    return total
