"""The observations a candidate may have, as values with probabilities: exact for classes, a rule for all others."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from klimb.numerics.arrays import Array
from klimb.sites.base import Site
from klimb.sites.local import SuperGaussian

LEVELS = 33  # quantiles of the predictive distribution that stand for counts and numbers


def plain_site(site: Site) -> Site:
    """The likelihood itself, where the site is its local bound."""
    return site.site if isinstance(site, SuperGaussian) else site


def response_nodes(site: Site, m: Array, v: Array) -> Iterator[tuple[Array, Array]]:
    """Pairs (weight, y), each one per candidate; weights of a candidate sum to 1.

    Classes are listed with their probabilities. Of counts and numbers the predictive quantiles at the nodes of a
    Gauss-Legendre rule are taken: means of smooth functions of y under the predictive distribution.
    """
    plain = plain_site(site)
    if plain.response == "classes":
        p = plain.class_probabilities(m, v)
        for k, label in enumerate(plain.labels()):
            yield p[:, k], np.full_like(m, label)
        return
    node, weight = np.polynomial.legendre.leggauss(LEVELS)
    values = np.stack([plain.response_quantile(float(level), m, v) for level in 0.5 * (node + 1.0)])
    finite = np.isfinite(values)  # counts beyond the largest float are left out
    shares = np.where(finite, weight[:, None], 0.0)
    shares /= np.maximum(shares.sum(axis=0), 1e-300)
    yield from zip(shares, np.where(finite, values, 0.0), strict=True)
