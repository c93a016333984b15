"""Predictions of a fit: of f, of the mean of y, and of y itself, averaged over the parameters behind them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, final

import numpy as np

from klimb.errors import InputError
from klimb.frontend.design import Rows
from klimb.frontend.mixtures import mixture_moments, mixture_quantile
from klimb.frontend.model import FormulaModel, Shared
from klimb.latents.mixed import ArrowPosterior, predict_rows
from klimb.numerics.arrays import Array
from klimb.sites.base import Site
from klimb.sites.prediction import predictive_cdf

PredictionKind: TypeAlias = Literal["mean", "latent", "response", "all"]
NODES = 48  # of Gauss-Hermite quadrature over f, for the sd of the mean of y


@final
@dataclass(frozen=True, eq=False)
class Component:
    """The posterior of the weights at one value ``full`` of the parameters behind them, and how likely that is."""

    weight: float
    full: Array
    q: ArrowPosterior


@final
@dataclass(frozen=True, eq=False)
class Latents:
    """f at some rows: one row of ``m`` and ``v`` per component. Offsets are included."""

    weights: Array
    m: Array
    v: Array
    sites: tuple[Site, ...]  # of each component, without offset and weights

    def moments(self) -> tuple[Array, Array]:
        return mixture_moments(self.weights, self.m, self.v)

    def quantile(self, p: float) -> Array:
        return mixture_quantile(self.weights, self.m, np.sqrt(self.v), p)


def predict_latents(shared: Shared, components: tuple[Component, ...], rows: Rows, trials: Array | None = None,
                    *, new_levels: bool = True) -> Latents:
    """f at ``rows``; a level never seen has its prior variance, or none where ``new_levels`` is False."""
    m, v, sites = [], [], []
    constants = {} if "trials" not in shared.constants else {"trials": 1.0 if trials is None else trials}
    for part in components:
        model = FormulaModel(shared, part.full)
        X, slack = model.with_features(rows) if shared.layout.processes else (rows.X, np.zeros(rows.n))
        mean, variance = predict_rows(part.q, X, rows.values, rows.codes)
        variance += slack
        for number, values in rows.unseen if new_levels else ():
            t = values @ model.group_roots[number]
            variance += np.einsum("ij,ij->i", t, t)
        m.append(mean + rows.offset)
        v.append(variance)
        sites.append(model.plain_site(constants))
    weights = np.array([part.weight for part in components])
    return Latents(weights, np.array(m), np.array(v), tuple(sites))


def latent_columns(f: Latents, tail: float) -> dict[str, Array]:
    """f: its mean, sd and quantiles."""
    mean, variance = f.moments()
    return {"mean": mean, "sd": np.sqrt(variance), "lower": f.quantile(tail), "upper": f.quantile(1.0 - tail)}


def mean_columns(f: Latents, shared: Shared, tail: float) -> dict[str, Array]:
    """The mean of y given f, as f is uncertain: its mean, sd and the transformed quantiles of f."""
    inverse = shared.family.link.inverse
    nodes, mass = np.polynomial.hermite_e.hermegauss(NODES)
    mass = mass / mass.sum()
    first, second = np.zeros(f.m.shape[1]), np.zeros(f.m.shape[1])
    for weight, m, v in zip(f.weights, f.m, f.v, strict=True):
        if shared.family.link.name == "identity":
            mean, square = m, m**2 + v
        elif shared.family.link.name == "log":
            with np.errstate(over="ignore"):
                mean, square = np.exp(m + 0.5 * v), np.exp(2.0 * (m + v))
        else:
            values = inverse(m + np.sqrt(v) * nodes[:, None])
            mean, square = mass @ values, mass @ values**2
        first += weight * mean
        second += weight * square
    with np.errstate(invalid="ignore"):
        sd = np.sqrt(np.maximum(second - first**2, 0.0))
    ends = inverse(f.quantile(tail)), inverse(f.quantile(1.0 - tail))
    return {"mean": first, "sd": np.nan_to_num(sd, nan=np.inf), "lower": ends[0], "upper": ends[1]}


def level_columns(f: Latents, levels: tuple[str, ...]) -> dict[str, Array]:
    """The chance of every level of an ordered response."""
    chances = sum(w * site.class_probabilities(m, v)
                  for w, site, m, v in zip(f.weights, f.sites, f.m, f.v, strict=True))
    return {f"P({level})": np.asarray(chances)[:, k] for k, level in enumerate(levels)}


def response_columns(f: Latents, tail: float) -> dict[str, Array]:
    """y itself: mean, sd and quantiles of the predictive distribution."""
    moments = [site.response_moments(m, v) for site, m, v in zip(f.sites, f.m, f.v, strict=True)]
    mean, variance = mixture_moments(f.weights, np.array([a for a, _ in moments]), np.array([b for _, b in moments]))
    return {"mean": mean, "sd": np.sqrt(variance), "lower": response_quantile(f, tail),
            "upper": response_quantile(f, 1.0 - tail)}


def response_quantile(f: Latents, p: float) -> Array:
    """The p-quantile of y under the mixture: between those of the parts, by the mixture's distribution function."""
    sites = f.sites
    if sites[0].response == "classes":
        chances = sum(w * s.class_probabilities(m, v) for w, s, m, v in zip(f.weights, sites, f.m, f.v, strict=True))
        upto = np.cumsum(np.asarray(chances), axis=1)
        return np.asarray(np.argmax(upto >= min(p, 1.0 - 1e-12), axis=1), dtype=np.float64)
    parts = np.array([site.predict(m, v).quantile(p) for site, m, v in zip(sites, f.m, f.v, strict=True)])
    if len(parts) == 1:
        return np.asarray(parts[0])

    def below(rows: Any, y: Array) -> Array:
        total = sum(w * predictive_cdf(site.rows(rows), y, m[rows], v[rows])
                    for w, site, m, v in zip(f.weights, sites, f.m, f.v, strict=True))
        return np.asarray(total)

    low, high = parts.min(axis=0), parts.max(axis=0)
    if sites[0].discrete:
        return _smallest_between(below, low, high, p)
    for _ in range(30):
        open_rows = np.flatnonzero(high - low > 1e-9 * np.maximum(np.abs(low), np.abs(high)))
        if not open_rows.size:
            break
        middle = 0.5 * (low[open_rows] + high[open_rows])
        short = below(open_rows, middle) < p
        low[open_rows] = np.where(short, middle, low[open_rows])
        high[open_rows] = np.where(short, high[open_rows], middle)
    return np.asarray(0.5 * (low + high))


def _smallest_between(below: Any, low: Array, high: Array, p: float) -> Array:
    """The smallest whole number with P(Y <= y) >= p, between two that enclose it."""
    low, high = low.copy() - 1.0, high.copy()  # P(Y <= low) < p <= P(Y <= high)
    while True:
        rows = np.flatnonzero(high - low > 1.0)
        if not rows.size:
            return np.asarray(high)
        middle = np.floor(0.5 * (low[rows] + high[rows]))
        enough = below(rows, middle) >= p
        high[rows], low[rows] = np.where(enough, middle, high[rows]), np.where(enough, low[rows], middle)


def checked_interval(interval: Any) -> float:
    """Half of what is left outside a central interval."""
    if not isinstance(interval, int | float) or isinstance(interval, bool) or not 0.0 < interval < 1.0:
        raise InputError("interval must be between 0 and 1", repr(interval), "0.9 is the default: from 5% to 95%.")
    return 0.5 * (1.0 - float(interval))
