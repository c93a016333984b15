"""Rows of the tables of a fit: coefficients, parameters behind them, levels of groups; mixtures become numbers here."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from scipy.special import ndtr, ndtri

from klimb.models.explore import SCORES
from klimb.models.formula_model import Shared
from klimb.models.hyper import correlation_root, cutpoints
from klimb.models.mixtures import mixture_above, mixture_moments, mixture_quantile
from klimb.models.predict import Component
from klimb.numerics.arrays import Array
from klimb.report.records import CoefficientRow, RowKind
from klimb.terms.design import INTERCEPT, GroupTerm


def mixture_rows(names: Sequence[str], weights: Array, means: Array, sds: Array, tail: float,
                 kind: RowKind) -> list[CoefficientRow]:
    """A row per name; parts along the first axis of ``means`` and ``sds``."""
    if not len(names):
        return []
    mean, variance = mixture_moments(weights, means, sds**2)
    low, high = (mixture_quantile(weights, means, sds, p) for p in (tail, 1.0 - tail))
    above = mixture_above(weights, means, sds)
    return [CoefficientRow(name, float(mean[j]), float(math.sqrt(variance[j])), float(low[j]), float(high[j]),
                           float(above[j]), kind) for j, name in enumerate(names)]


def _weights(components: Sequence[Component]) -> Array:
    return np.array([part.weight for part in components])


def fixed_map(shared: Shared) -> Array:
    """From the weights of centred columns to the coefficients of the columns as they are."""
    p = len(shared.layout.fixed)
    T = np.eye(p, max(shared.layout.width, 1))
    at = shared.layout.intercept
    if at is not None:
        T[at, :p] -= shared.layout.centre
    return T


def fixed_rows(shared: Shared, components: Sequence[Component], tail: float) -> list[CoefficientRow]:
    """The coefficients, the intercept where all columns are 0."""
    T = fixed_map(shared)
    means = np.array([T @ part.q.mean for part in components])
    sds = np.array([np.sqrt(((T @ part.q.root) ** 2).sum(axis=1)) for part in components])
    return mixture_rows(shared.layout.fixed, _weights(components), means, sds, tail, "fixed")


def cut_rows(shared: Shared, components: Sequence[Component], tail: float, covariance: Array) -> list[CoefficientRow]:
    """Cut points of an ordinal response for columns as they are."""
    places = list(shared.parts.cuts)
    if not places:
        return []
    p = len(shared.layout.fixed)
    shift = np.append(shared.layout.centre, np.zeros(max(shared.layout.width, 1) - p))
    means = np.array([cutpoints(part.full[places]) + shift @ part.q.mean for part in components])
    sds = np.array([np.full(len(places), np.linalg.norm(shift @ part.q.root)) for part in components])
    if len(components) == 1:  # chosen, not averaged over: their own curvature, as far as it goes
        at = np.searchsorted(shared.free, places)
        slopes = np.append(1.0, np.exp(components[0].full[places[1:]]))  # of the first, and of log gaps
        J = np.tril(np.ones((len(places), len(places)))) * slopes
        sds = np.hypot(sds, np.sqrt(np.diagonal(J @ covariance[np.ix_(at, at)] @ J.T)))
    # Parts are narrow and few: their mixture would be a comb, so a normal with its moments stands for it.
    mean, variance = mixture_moments(_weights(components), means, sds**2)
    names = [shared.hypers[i].name for i in places]
    return mixture_rows(names, np.ones(1), mean[None], np.sqrt(variance)[None], tail, "parameter")


def hyper_rows(shared: Shared, components: Sequence[Component], tail: float, quantiles: Array) -> list[CoefficientRow]:
    """Standard deviations, correlations, lengthscales, dispersions; ``quantiles`` are those of free theta."""
    weights = _weights(components)
    theta = np.array([part.full for part in components]).reshape(len(components), -1)
    rows: list[CoefficientRow] = []
    kinds = _kinds(shared)
    for i, own in zip(shared.free, quantiles, strict=True):
        hyper = shared.hypers[i]
        if hyper.shape == "cut":
            continue
        back: Callable[[Array], Array] = np.exp if hyper.shape == "positive" else np.tanh
        if hyper.shape == "correlation" and hyper.depth != _first_depth(shared, int(i)):
            own = _normal_scores(weights, np.arctanh(_correlations(shared, theta, int(i))), own)
        values = back(theta[:, i]) if hyper.shape == "positive" else _correlations(shared, theta, int(i))
        mean = float(weights @ values)
        deviation = math.sqrt(float(weights @ (values - mean) ** 2))
        if len(components) == 1:  # chosen: the sd that the curvature gives, by the slope of the transformation
            slope = values[0] if hyper.shape == "positive" else 1.0 - values[0] ** 2
            deviation = float(slope * (own[-1] - own[0]) / (SCORES[-1] - SCORES[0]))
        ends = back(np.interp(ndtri([tail, 1.0 - tail]), SCORES, own))
        above = 1.0 - float(ndtr(np.interp(0.0, own, SCORES))) if hyper.shape == "correlation" else None
        rows.append(CoefficientRow(hyper.name, mean, deviation, float(ends[0]), float(ends[1]), above, kinds[int(i)]))
    return rows


def _first_depth(shared: Shared, place: int) -> float:
    """Of the partial correlations that are correlations: those with the first column."""
    return next(0.5 * (len(sds) - 2) for sds, correlations in shared.parts.groups if place in correlations)


def _normal_scores(weights: Array, values: Array, own: Array) -> Array:
    """Quantiles of a normal with the moments of ``values``, or the width of ``own`` around a single one."""
    middle = float(weights @ values)
    sd = math.sqrt(float(weights @ (values - middle) ** 2))
    if len(weights) == 1:
        sd = float((own[-1] - own[0]) / (SCORES[-1] - SCORES[0]))
    return middle + sd * SCORES


def _kinds(shared: Shared) -> dict[int, RowKind]:
    found: dict[int, RowKind] = {}
    for sds, correlations in shared.parts.groups:
        found.update(dict.fromkeys((*sds, *correlations), "group"))
    found.update(dict.fromkeys(shared.parts.smooths, "smooth"))
    for places in shared.parts.processes:
        found.update(dict.fromkeys(places.values(), "process"))
    return {i: found.get(i, "parameter") for i in range(len(shared.hypers))}


def _correlations(shared: Shared, theta: Array, place: int) -> Array:
    """The correlation (not the partial one) that entry ``place`` is named after, for every row of theta."""
    for sds, correlations in shared.parts.groups:
        if place in correlations:
            k = len(sds)
            i, j = np.tril_indices(k, -1)
            at = correlations.index(place)
            roots = [correlation_root(row[list(correlations)], k)[0] for row in theta]
            return np.array([np.clip((L @ L.T)[i[at], j[at]], -1 + 1e-12, 1 - 1e-12) for L in roots])
    raise AssertionError("no such correlation")


def level_rows(shared: Shared, components: Sequence[Component], term: GroupTerm, tail: float) -> list[CoefficientRow]:
    """Deviations of the levels of a group, one row per level and column."""
    means, sds = [], []
    for part in components:
        q = part.q
        if term.begin < 0:
            means.append(q.level_mean.ravel())
            own = np.diagonal(q.level_cov, axis1=1, axis2=2)
            sds.append(np.sqrt(own + (q.pull**2).sum(axis=2)).ravel())
        else:
            at = slice(term.begin, term.begin + term.size * len(term.levels))
            means.append(q.mean[at])
            sds.append(np.sqrt((q.root[at] ** 2).sum(axis=1)))
    names = [f"{level}" if column == INTERCEPT else f"{level}, {column}"
             for level in term.levels for column in term.columns]
    return mixture_rows(names, _weights(components), np.array(means), np.array(sds), tail, "level")
