"""Predictions of a fit: of f, of the mean of y, and of y itself, averaged over the parameters behind them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, final

import numpy as np

from klimb.errors import InputError
from klimb.latents.mixed import ArrowPosterior, predict_rows
from klimb.models.formula_model import FormulaModel, Shared
from klimb.models.mixtures import mixture_moments, mixture_quantile
from klimb.numerics.arrays import Array
from klimb.sites.base import Site
from klimb.sites.custom import Custom
from klimb.sites.prediction import predictive_cdf
from klimb.terms.design import Rows

PredictionKind: TypeAlias = Literal["mean", "latent", "response", "all"]
SECANT_STEPS, SECANT_TOL = 15, 1e-6  # on the distribution function of y; the last step leaves less
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


def has_moments(f: Latents) -> bool:
    """Whether the likelihood can say more of y than its density: one of the user's own may not."""
    site = f.sites[0]
    return not isinstance(site, Custom) or (site.moments is not None and site.conditional_cdf is not None)


def response_columns(f: Latents, tail: float) -> dict[str, Array]:
    """y itself: mean, sd and quantiles of the predictive distribution."""
    moments = [site.response_moments(m, v) for site, m, v in zip(f.sites, f.m, f.v, strict=True)]
    mean, variance = mixture_moments(f.weights, np.array([a for a, _ in moments]), np.array([b for _, b in moments]))
    return {"mean": mean, "sd": np.sqrt(variance), "lower": response_quantile(f, tail),
            "upper": response_quantile(f, 1.0 - tail)}


def response_quantile(f: Latents, p: float) -> Array:
    """The p-quantile of y under the mixture.

    From that of one normal f with the moments of all, secant steps on the mixture's own distribution function; steps
    to neighbouring numbers where y is a count.
    """
    sites = f.sites
    if sites[0].response == "classes":
        chances = sum(w * s.class_probabilities(m, v) for w, s, m, v in zip(f.weights, sites, f.m, f.v, strict=True))
        upto = np.cumsum(np.asarray(chances), axis=1)
        return np.asarray(np.argmax(upto >= min(p, 1.0 - 1e-12), axis=1), dtype=np.float64)
    y = sites[int(np.argmax(f.weights))].predict(*f.moments()).quantile(p)
    if len(sites) == 1:
        return np.asarray(y)
    parts = list(zip(f.weights, sites, f.m, f.v, strict=True))

    def below(rows: Any, at: Array) -> Array:
        return np.asarray(sum(w * predictive_cdf(site.rows(rows), at, m[rows], v[rows]) for w, site, m, v in parts))

    if sites[0].discrete:
        return _whole_quantile(below, y, p)
    if sites[0].response in ("positive", "unit"):  # a quantile may round to an end that has no density
        y = np.clip(y, np.finfo(float).tiny, None if sites[0].response == "positive" else 1.0 - 2.0**-53)
    with np.errstate(under="ignore", over="ignore"):
        slope = np.exp(sites[int(np.argmax(f.weights))].predict(*f.moments()).log_density(y))
    return _secant_quantile(below, slope, y, p, sites[0].response)


def _secant_quantile(below: Any, slope: Array, y: Array, p: float, support: str) -> Array:
    """Where the distribution function is p, from a close guess ``y`` and the density there."""
    rows = np.arange(len(y))
    gap = below(rows, y) - p
    for _ in range(SECANT_STEPS):
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            step = np.clip(-gap / slope, -0.2 / slope, 0.2 / slope)  # over a fifth of the mass at this density
        step = np.where(np.isfinite(step), step, 0.0)
        moved = y[rows] + step
        if support in ("positive", "unit"):  # stay inside
            moved = np.where(moved <= 0, 0.5 * y[rows], moved)
        if support == "unit":
            moved = np.where(moved >= 1, 0.5 * (1.0 + y[rows]), moved)
        step, y[rows] = moved - y[rows], moved
        found = np.abs(gap) <= SECANT_TOL
        if found.all():
            break
        rows, gap, slope, step = (part[~found] for part in (rows, gap, slope, step))
        new_gap = below(rows, y[rows]) - p
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            secant = (new_gap - gap) / step
            usable = np.isfinite(secant) & (secant > 0.1 * slope) & (secant < 10.0 * slope)
        slope = np.where(usable, secant, slope)
        gap = new_gap
    return y


def _whole_quantile(below: Any, y: Array, p: float) -> Array:
    """The smallest whole number with P(Y <= y) >= p, from a guess: ever longer steps, then halves of the last one."""
    rows = np.arange(len(y))
    enough = below(rows, y) >= p
    low, high = np.where(enough, -1.0, y), np.where(enough, y, np.inf)
    stride = np.ones(len(y))
    while True:  # until P(Y <= low) < p <= P(Y <= high) are neighbours; P(Y <= -1) = 0
        rows = np.flatnonzero(high - low > 1.0)
        if not rows.size:
            return np.asarray(high)
        known = np.isfinite(high[rows])
        down = np.maximum(high[rows] - stride[rows], np.floor(0.5 * (low[rows] + high[rows])), where=known,
                          out=np.zeros(len(rows)))
        trial = np.where(known, np.maximum(down, low[rows] + 1.0), low[rows] + stride[rows])
        enough = below(rows, trial) >= p
        high[rows], low[rows] = np.where(enough, trial, high[rows]), np.where(enough, low[rows], trial)
        stride[rows] *= 2.0


def checked_interval(interval: Any) -> float:
    """Half of what is left outside a central interval."""
    if not isinstance(interval, int | float) or isinstance(interval, bool) or not 0.0 < interval < 1.0:
        raise InputError("interval must be between 0 and 1", repr(interval), "0.9 is the default: from 5% to 95%.")
    return 0.5 * (1.0 - float(interval))
