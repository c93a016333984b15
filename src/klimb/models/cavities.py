"""What is known of f of each datum without its own site, under one Gaussian q."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from klimb.latents.outputs import independent_variances
from klimb.models.averages import log_predictive, place_of
from klimb.numerics.arrays import Array
from klimb.numerics.dense import row_blocks
from klimb.sites.base import Site
from klimb.sites.prediction import class_chances
from klimb.sites.wrappers import Censored


@dataclass(frozen=True, eq=False)
class Cavities:
    """f of each datum without its own site, output by output, under one Gaussian q; NaN where it is improper."""

    m: Array
    v: Array
    log_density: Array
    site: Site
    y: Array

    def moments(self, rows: Any) -> tuple[Array, Array, Array, Array]:
        """Mean, variance, P(Y < y) and P(Y <= y) of some data before they were seen."""
        places = places_among(rows, self.site, len(self.y))
        site, y, m, v = self.site.rows(rows), self.y[rows], self.m[places], self.v[places]
        if site.response == "classes" and len(site.labels()) == 2:
            own, up = np.exp(self.log_density[rows]), y == site.labels()[1]
            mean = np.where(up, own, 1.0 - own)
            return mean, own * (1.0 - own), np.where(up, 1.0 - own, 0.0), np.where(up, 1.0, own)
        if site.response == "classes":
            chances, classes = class_chances(site, m, v), np.arange(len(site.labels()), dtype=float)
            mean, upto = chances @ classes, np.cumsum(chances, axis=1)
            place, number = np.searchsorted(site.labels(), y), np.arange(len(y))
            below = np.where(place > 0, upto[number, np.maximum(place - 1, 0)], 0.0)
            variance = np.einsum("nk,nk->n", chances, (classes - mean[:, None]) ** 2)
            return mean, variance, below, np.minimum(upto[number, place], 1.0)
        mean, variance = site.response_moments(m, v)
        at = place_of(site, y, m, v)
        below = np.maximum(at - np.exp(self.log_density[rows]), 0.0) if site.discrete else at
        if isinstance(site, Censored):  # all that is larger is possible
            at = np.where(np.asarray(site.status) > 0.0, at, 1.0)
        return mean, variance, below, at


def cavities(site: Site, y: Array, m: Array, v: Array, slack: Array, a: Array, gamma: Array,
             counts: Array | None = None) -> Cavities:
    """The cavities of clean data from their marginals and their own sites (a, gamma), how often they count if known."""
    with np.errstate(divide="ignore", invalid="ignore"):
        cavity = 1.0 / (1.0 / (v - slack) - gamma)
    proper = np.isfinite(cavity) & (cavity >= 0)
    v_out = np.where(proper, cavity + slack, np.nan)
    m_out = np.where(proper, m - cavity * a, np.nan)
    density = np.full(len(y), np.nan)
    rows: Any = slice(None) if proper.all() else np.flatnonzero(proper.reshape(site.n_outputs, -1).all(axis=0))
    places = rows if proper.all() else places_among(rows, site, len(y))
    known = None if counts is None or np.any(slack) else ((gamma * v)[places], counts[places])
    density[rows] = log_predictive(site.rows(rows), y[rows], m_out[places], v_out[places], m[places], v[places], known)
    return Cavities(m_out, v_out, density, site, y)


def coupled_cavities(site: Site, y: Array, m: Array, S: Array) -> Cavities:
    """The same where the latent values of a datum have the covariances S: (S^-1 - W)^-1 with W = E[diag(p) - p p'].

    W, like all that a site of classes says, depends on differences of latent values alone.
    """
    n, classes = S.shape[:2]
    m_out, v_out, density = m.reshape(classes, n).T.copy(), np.empty((n, classes)), np.empty(n)
    for rows in row_blocks(n, (2 * classes) ** 2):
        own, mean, v = site.rows(rows), m_out[rows].T.ravel(), independent_variances(S[rows]).T.ravel()
        W, alpha = own.couplings(y[rows], mean, v), own.oracle(y[rows], mean, v).alpha.reshape(classes, -1).T
        assert W is not None
        cavity = np.asarray(np.linalg.solve(np.eye(classes) - S[rows] @ W[:, :classes, :classes], S[rows]), dtype=float)
        m_out[rows] += np.einsum("icd,id->ic", cavity, alpha)
        v_out[rows] = independent_variances(cavity)
        density[rows] = own.log_predictive(y[rows], m_out[rows].T.ravel(), v_out[rows].T.ravel())
    return Cavities(m_out.T.ravel(), v_out.T.ravel(), density, site, y)


def places_among(rows: Any, site: Site, n: int) -> Any:
    """Where the latent values of these data are: output by output."""
    return (np.arange(site.n_outputs)[:, None] * n + rows).ravel()
