"""Leave-one-out predictions in closed form: take a datum's own site out of its marginal and ask the site again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np

from klimb.latents.base import Posterior
from klimb.numerics.arrays import Array
from klimb.numerics.dense import row_blocks
from klimb.sites.base import Site

NODES = 64


@final
@dataclass(frozen=True, eq=False)
class LeaveOneOut:
    """Predictions of each datum from all the others, as far as one Gaussian q can say.

    ``m`` and ``v`` are the marginals of f without the datum's own site (output by output where a datum has several f),
    ``log_density`` is log p(y_i | others). A datum whose site cannot be taken out (an improper cavity, possible with
    negative gamma) has NaN.
    """

    m: Array
    v: Array
    log_density: Array
    site: Site
    y: Array

    @property
    def score(self) -> float:
        """Sum of the log densities: larger is better."""
        return float(self.log_density.sum())

    def pit(self) -> Array:
        """P(y_new <= y_i | others): uniform where the model is calibrated. For counts the mid-point of the jump."""
        below, at = self.pit_ends()
        return 0.5 * (below + at)

    def pit_ends(self) -> tuple[Array, Array]:
        """P(y_new < y_i | others) and P(y_new <= y_i | others): equal where y is continuous."""
        below, at = np.full((2, len(self.y)), np.nan)
        rows = _proper_data(np.isfinite(self.v), self.site)
        places = _places(rows, self.site, len(self.y))
        site, y, m, v = self.site.rows(rows), self.y[rows], self.m[places], self.v[places]
        if site.response == "classes":
            upto = np.cumsum(site.class_probabilities(m, v), axis=1)
            place = np.searchsorted(site.labels(), y)
            at[rows] = upto[np.arange(len(y)), place]
            below[rows] = np.where(place > 0, upto[np.arange(len(y)), np.maximum(place - 1, 0)], 0.0)
        else:
            at[rows] = _predictive_cdf(site, y, m, v)
            below[rows] = _predictive_cdf(site, y - 1.0, m, v) if site.discrete else at[rows]
        return below, at


def loo(posterior: Posterior, site: Site, y: Any) -> LeaveOneOut:
    """Leave-one-out predictive densities of a converged fit, without refitting.

    Without its own site a datum's marginal is the cavity: 1/v_c = 1/V_ii - gamma_i, m_c = m_i - v_c a_i. Exact for
    Gaussian sites.

    Examples
    --------
    >>> import numpy as np, klimb
    >>> from klimb.infer.loo import loo
    >>> X, y = np.ones((4, 1)), np.array([1.0, 2.0, 3.0, 2.0])
    >>> result = klimb.infer(klimb.latents.Weights(X), klimb.sites.Gaussian(1.0), y)
    >>> loo(result.posterior, klimb.sites.Gaussian(1.0), y).m.round(3)
    array([1.75, 1.5 , 1.25, 1.5 ])
    """
    clean = site.validate(y)
    slack = posterior.latent.slack
    with np.errstate(divide="ignore", invalid="ignore"):
        cavity = 1.0 / (1.0 / (posterior.v - slack) - posterior.gamma)
    proper = np.isfinite(cavity) & (cavity >= 0)
    v = np.where(proper, cavity + slack, np.nan)
    m = np.where(proper, posterior.m - cavity * posterior.a, np.nan)
    density = np.full(len(clean), np.nan)
    rows = _proper_data(proper, site)
    places = _places(rows, site, len(clean))
    density[rows] = site.rows(rows).log_predictive(clean[rows], m[places], v[places])
    return LeaveOneOut(m, v, density, site, clean)


def _proper_data(proper: Any, site: Site) -> Any:
    """The data all of whose latent values have a proper cavity."""
    return np.flatnonzero(proper.reshape(site.n_outputs, -1).all(axis=0))


def _places(rows: Any, site: Site, n: int) -> Any:
    """Where the latent values of these data are: output by output."""
    return (np.arange(site.n_outputs)[:, None] * n + rows).ravel()


def _predictive_cdf(site: Site, y: Array, m: Array, v: Array) -> Array:
    """P(Y <= y) where f ~ N(m, v), by Gauss-Hermite over f: a diagnostic, for which a few digits are enough."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
    out = np.empty_like(m)
    for block in row_blocks(len(m), NODES):
        f = m[block] + np.sqrt(v[block]) * nodes[:, None]
        out[block] = weights @ site.rows(np.arange(len(m))[block]).cdf(y[block], f) / weights.sum()
    return out
