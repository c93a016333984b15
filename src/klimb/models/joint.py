"""The weights of a formula fit together: covariance, draws, log odds between classes, densities of a response."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from klimb.errors import InputError
from klimb.models.tabulate import block_covariance, level_name, mixture_rows
from klimb.numerics.arrays import Array
from klimb.numerics.dense import threads_for
from klimb.report.records import CoefficientRow
from klimb.rows.frames import Frame

if TYPE_CHECKING:
    from klimb.models.formula_fit import FormulaFit


def joint_moments(fit: FormulaFit) -> tuple[list[str], int, list[tuple[Array, Array]]]:
    """Names of all that `coefficients` has, how many are no cut points, and their moments under each point of theta."""
    theta, components, size = fit.model.theta, fit.components, fit._n_weights_of_field
    fields, names = len(fit.model.likelihood.fields), list[str]()
    rows: list[list[Array]] = [[] for _ in range(fields)]
    for own, number, at, T, _ in fit._reported():
        L = np.zeros((len(own), size))
        L[:, at] = T
        rows[number].append(L)
        names += own
    cuts = [block for block in theta.blocks if block.kind == "cut"]
    known = len(names)
    for block in cuts:
        rows[0].append(np.tile(fit._level_shift, (block.size, 1)))
        names += block.names
    if not names:
        return names, 0, [(np.zeros(0), np.zeros((0, 0)))] * len(components.weights)
    every = tuple(fit.linear.weight_rows(np.vstack(own)) for own in rows)
    pairs = [part.joint(every if fields > 1 else every[0], 0.0) for part in components.parts]
    for block in cuts:
        for (mean, _), at in zip(pairs, components.theta, strict=True):
            mean[known:] += block.reported(at[None, theta.slice_of(block)])[0]
    return names, known, pairs


def joint_covariance(fit: FormulaFit) -> tuple[list[str], Array]:
    """E[V] + Cov[m] over the points of theta, of all that `coefficients` has, cut points included."""
    (names, known, pairs), components = joint_moments(fit), fit.components
    total = _covariance(np.array([mean for mean, _ in pairs]), components.weights)
    for weight, (_, V) in zip(components.weights, pairs, strict=True):
        total += weight * V
    if known < len(names):
        theta = fit.model.theta
        cut = next(block for block in theta.blocks if block.kind == "cut")
        total[known:, known:] += block_covariance(theta, cut, fit._spread)
        if components.integrated:  # the cuts themselves are known at many more points than the weights are
            at = theta.slice_of(cut)
            points, shares = components.marginal_points
            total[known:, known:] += _covariance(cut.reported(points[:, at]), shares)
            total[known:, known:] -= _covariance(cut.reported(components.theta[:, at]), components.weights)
    return names, np.asarray(total)


def _covariance(values: Array, weights: Array) -> Array:
    away = values - weights @ values
    return np.asarray((weights * away.T) @ away)


def log_odds_rows(fit: FormulaFit, against: str, tail: float) -> list[CoefficientRow]:
    """Differences of the coefficients of every other class and those of one."""
    classes = fit.model.likelihood.fields if fit.model.likelihood.response == "classes" else ()
    if len(classes) < 2 or against not in classes:
        raise InputError("log_odds needs a class of a categorical response", repr(against),
                         f"Pass one of {', '.join(map(repr, classes))}." if len(classes) > 1
                         else "Coefficients of other families are those of the link already.")
    fit = replace(fit, components=fit.components.split)  # differences of classes may lean to one side
    names, _, pairs = joint_moments(fit)
    each, reference = len(names) // len(classes), classes.index(against)
    others = [number for number in range(len(classes)) if number != reference]
    T = np.zeros((each * len(others), len(names)))
    for place, number in enumerate(others):
        own = np.arange(each)
        T[place * each + own, number * each + own] = 1.0
        T[place * each + own, reference * each + own] = -1.0
    means = np.array([T @ mean for mean, _ in pairs])
    sds = np.sqrt([np.einsum("ij,jk,ik->i", T, V, T) for _, V in pairs])
    own_names = [names[number * each + j] for number in others for j in range(each)]
    return mixture_rows(own_names, fit.components.weights, means, sds, tail, "fixed")


@threads_for(0)
def named_draws(fit: FormulaFit, theta: Array, w: Array) -> dict[str, Array]:
    """Draws of theta and of the weights, one a row, as coefficients, hyperparameters and levels by name."""
    out: dict[str, Array] = {}
    size = fit._n_weights_of_field
    for names, number, at, T, _ in fit._reported():
        own = w[:, number * size + at] @ T.T
        out |= {name: own[:, j] for j, name in enumerate(names)}
    shift = w[:, :size] @ fit._level_shift
    for block in fit.model.theta.blocks:
        values = block.reported(theta[:, fit.model.theta.slice_of(block)])
        values = values + shift[:, None] if block.kind == "cut" else values
        out |= {name: values[:, j] for j, name in enumerate(block.names)}
    for term in fit.groups:
        place = fit.linear.places[fit.linear.terms.index(term)]
        for number, prefix in enumerate(fit._field_prefixes):
            at = slice(number * size + place.start, number * size + place.stop)
            own = w[:, at].reshape(len(w), term.n_levels, len(term.columns)) @ term.uncentred.T
            out |= {prefix + level_name(term, column): own[:, :, j] for j, column in enumerate(term.columns)}
    return out


def response_log_density(fit: FormulaFit, frame: Frame, y: Any = None) -> Array:
    """Log predictive density of a frame's response, or of ``y`` in its place; NaN in rows with a missing value."""
    response, likelihood = fit.encoder.response, fit.model.likelihood
    if response is not None and y is not None:
        frame = frame.with_columns({response.columns[0]: y})
    encoded = fit.encoder.encode(frame, response=True, missing="drop")
    assert encoded.left is not None
    if likelihood.response in ("ordered", "classes"):
        likelihood = replace(likelihood, levels=fit._levels)
    out, data = np.full(frame.n, np.nan), likelihood.read(encoded.left)
    f = fit.components.at(fit.model, fit.linear.arranged(encoded.blocks))
    out[encoded.rows] = f.log_density(data.y, data.aux)
    return out
