"""Rows of tables: mixtures over the points of theta become means, sds and credible intervals here."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import ndtr, ndtri

from klimb.models.components import SCORES, Components, marginal_quantile, share_above
from klimb.numerics.arrays import Array
from klimb.numerics.mixtures import mixture_above, mixture_moments, mixture_quantile
from klimb.priors import PositivePrior
from klimb.report.records import CoefficientRow
from klimb.theta import ParameterBlock, RowKind, Scale, Theta
from klimb.trust.marginals import MOST_SKEWED, standard_cdf, standard_quantile

if TYPE_CHECKING:
    from klimb.latents.weights_posterior import WeightPosterior
    from klimb.models.linear_parts import LinearRows
    from klimb.terms.group import Group

MANY = 200  # points of theta from which their own quantiles are taken
DIFFERENCE = 1e-6  # in theta, for the derivative of what is printed
REACHES = 0.01  # mass below a tenth of the median from which a limit counts as reached; a flat density has 0.05
LAST, MOST_OF = 0.005, 0.3  # mass of the largest values, and the share of a variance from which that rests on them
DRAWS, SHOWS = 10_000, 0.1  # exact draws that would disagree about a mean or sd, and by how many sds
BINS = 12  # of the points below the median, whose density is followed to the end


def mixture_rows(names: Sequence[str], weights: Array, means: Array, sds: Array, tail: float,
                 kind: RowKind, skewness: Callable[[Array], Array] = np.zeros_like) -> list[CoefficientRow]:
    """A row per name; parts along the first axis of ``means`` and ``sds``, ``skewness`` that of the parts by the sds.

    What the skewness of the parts adds to an end is what it adds to that of one distribution with all of the spread.
    """
    if not len(names):
        return []
    mean, variance = mixture_moments(weights, means, sds**2)
    sd = np.sqrt(variance)
    bend = np.clip(skewness(sd), -MOST_SKEWED, MOST_SKEWED)
    low, high = (mixture_quantile(weights, means, sds, p) + sd * (standard_quantile(p, bend) - ndtri(p))
                 for p in (tail, 1.0 - tail))
    zero = -mean / np.where(sd > 0.0, sd, 1.0)
    above = mixture_above(weights, means, sds)
    above = np.where(bend == 0.0, above, np.clip(above + ndtr(zero) - standard_cdf(zero, bend), 1e-16, 1.0 - 1e-16))
    return [CoefficientRow(name, float(mean[j]), float(sd[j]), float(low[j]), float(high[j]), float(above[j]), kind)
            for j, name in enumerate(names)]


def linear_rows(names: Sequence[str], components: Components, rows: Any, tail: float,
                kind: RowKind) -> list[CoefficientRow]:
    """A row for each linear functional of the weights."""
    parts = components.parts
    means, variances = type(parts[0]).at_each(parts, [rows] * len(parts), [0.0] * len(parts))
    skewness = partial(components.skewness, rows)
    return mixture_rows(names, components.weights, means, np.sqrt(variances), tail, kind, skewness)


def parameter_rows(theta: Theta, components: Components, tail: float) -> list[CoefficientRow]:
    """Standard deviations, correlations, lengthscales, dispersions; cut points are the formula's business."""
    rows: list[CoefficientRow] = []
    for block in theta.blocks:
        if block.kind != "cut":
            rows += block_rows(theta, block, components, tail)
    return rows


def block_rows(theta: Theta, block: ParameterBlock, components: Components, tail: float) -> list[CoefficientRow]:
    """The rows of one block."""
    at = theta.slice_of(block)
    points, weights = components.marginal_points
    own = points[:, at]
    values = block.reported(own)
    mean, sd = _moments(block, values, weights)
    if not components.integrated:
        sd = np.sqrt(np.diag(block_covariance(theta, block, components)))
    kind: RowKind = block.kind if block.kind != "cut" else "parameter"
    rows = []
    for j, (name, signed, alone) in enumerate(zip(block.names, block.signed(), block.alone(), strict=True)):
        if alone is not None:
            marginal = components.quantiles[at.start + j]
            low, high = alone(marginal_quantile(marginal, np.array([tail, 1.0 - tail])))
            above = share_above(alone(marginal), 0.0) if signed else None
        else:
            low, high, above = _ends(block.scales()[j], weights, values[:, j], float(sd[j]), tail)
            above = above if signed else None
        rows.append(CoefficientRow(name, float(mean[j]), float(sd[j]), float(low), float(high), above, kind))
    return rows


def limits_reached(theta: Theta, components: Components) -> dict[str, float]:
    """Positive parameters that may be at their simplest model, 0 where the power is positive, infinity where not."""
    points, weights = components.marginal_points
    found: dict[str, float] = {}
    for block in theta.blocks if components.integrated else ():
        values = block.reported(points[:, theta.slice_of(block)])
        lost = [name for name, (_, no_sd) in _without_end(block, values, weights).items() if no_sd]
        found |= {name: power for name, (power, share) in _at_limit(block, values, weights).items() if name in lost
                  or (not -2.0 <= power < 0.0 and share > (REACHES if power > 0.0 else 1.0 / DRAWS))}
    return found


def long_tails(theta: Theta, components: Components) -> list[str]:
    """Positive parameters whose variances rest on the largest values, which have next to none of the mass."""
    points, weights = components.marginal_points
    found = []
    for block in theta.blocks if components.integrated else ():
        values = block.inside(points[:, theta.slice_of(block)])
        powers, priors = block.powers(), block.priors()
        for number, name in enumerate(block.names):
            if name not in priors or (len(powers) == len(block.names) and not powers[number]):
                continue  # what lies between limits has no tail
            own = values[:, number]
            order = np.argsort(own, kind="stable")
            squares = weights[order] * (own[order] - weights @ own) ** 2
            last = np.cumsum(weights[order]) > 1.0 - LAST
            if squares[last].sum() > MOST_OF * squares.sum():
                found.append(name)
    return found


def posterior_means(theta: Theta, components: Components) -> dict[str, float]:
    """Of what is printed of all hyperparameters, by name."""
    points, weights = components.marginal_points
    return {name: float(value) for block in theta.blocks for name, value in zip(
        block.names, _moments(block, block.reported(points[:, theta.slice_of(block)]), weights)[0], strict=True)}


def _moments(block: ParameterBlock, values: Array, weights: Array) -> tuple[Array, Array]:
    """Means and sds of what is printed; NaN where they are infinite.

    With a prior whose value^-k is exponential, E value^r is finite for r < k alone, unless the likelihood vanishes as
    the value grows. That of a size does not: its limit is a simpler family.
    """
    mean = np.asarray(weights @ values)
    sd = np.sqrt(weights @ (values - mean) ** 2)
    for name, lost in _without_end(block, values, weights).items():
        for moments, gone in zip((mean, sd), lost, strict=True):
            if gone:
                moments[block.names.index(name)] = np.nan
    return mean, sd


def _without_end(block: ParameterBlock, values: Array, weights: Array) -> dict[str, tuple[bool, bool]]:
    """Of parameters whose value^power, of negative power, may be 0: whether mean and sd are infinite, and it shows.

    They are where the density of u = value^power is positive at 0, and it shows where one of `DRAWS` draws comes so
    near to 0 that it moves their mean by a tenth of an sd, or their sd by a tenth. Points may end before that: what
    the data say is smooth in u^2, which is 1 / size where u is size^-1/2, and a cubic through the lower half goes on;
    no farther than that half is wide, beyond which it would be made of noise.
    """
    found = {}
    for name, prior in block.priors().items():
        power = float(getattr(prior, "power", 1.0))
        if power >= 0.0 or name not in block.names:
            continue
        u = values[:, block.names.index(name)] ** power
        order = np.argsort(u, kind="stable")
        upto = np.cumsum(weights[order]) / weights.sum()
        low, median, high = u[order][np.searchsorted(upto, [ndtr(-1.0), 0.5, ndtr(1.0)]).clip(max=len(u) - 1)]
        edges = np.linspace(u.min(), median, BINS + 1)
        density = np.histogram(u, edges, weights=weights)[0] / (weights.sum() * max(edges[1] - edges[0], 1e-300))
        middle, some = 0.5 * (edges[1:] + edges[:-1]), density > 0.0
        if some.sum() < BINS // 2 or u.min() > median - u.min():
            continue
        told = np.log(density[some]) + middle[some] / getattr(prior, "mean", np.inf)  # by the data alone
        at_end = np.polynomial.Polynomial.fit(middle[some] ** 2, told, 3)(0.0)
        largest = (DRAWS * np.exp(min(at_end, 100.0))) ** (-1.0 / power)
        sd = 0.5 * (low ** (1.0 / power) - high ** (1.0 / power))
        found[name] = (power >= -1.0 and largest / DRAWS > SHOWS * sd,
                       power >= -2.0 and largest**2 / DRAWS > 2.0 * SHOWS * sd**2)
    return found


def _at_limit(block: ParameterBlock, values: Array, weights: Array) -> dict[str, tuple[float, float]]:
    """Of positive parameters, the power of the prior, and the mass of value^power below a tenth of its median.

    The simplest model is where value^power is 0; where its density is not small there, some of the mass is that low.
    """
    found = {}
    for name, prior in block.priors().items():
        own = values[:, block.names.index(name)] if name in block.names else np.zeros(1)
        if isinstance(prior, PositivePrior) and own.min() > 0.0:  # a uniform prior may be that of a correlation
            power = min(float(getattr(prior, "power", 1.0)), 1.0)
            u = own**power
            order = np.argsort(u, kind="stable")
            middle = u[order[min(int(np.searchsorted(np.cumsum(weights[order]), 0.5)), len(u) - 1)]]
            found[name] = power, float(weights[u < 0.1 * middle].sum())
    return found


def cut_rows(theta: Theta, block: ParameterBlock, components: Components, spread: Components, shift: Any,
             tail: float) -> list[CoefficientRow]:
    """Cut points for columns as they are: the centring of the columns is undone, which moves with the weights.

    ``shift`` is what is added to them, as a row over the weights, ``spread`` has the uncertainty of chosen parameters.
    """
    pairs = [part.at(shift, 0.0) for part in components.parts]
    means, variances = (np.array([pair[k][0] for pair in pairs]) for k in (0, 1))
    weights, cuts = components.weights, block.reported(components.theta[:, theta.slice_of(block)])
    if len(weights) >= MANY:
        sds = np.sqrt(np.broadcast_to(variances[:, None], cuts.shape))
        return mixture_rows(list(block.names), weights, cuts + means[:, None], sds, tail, "parameter")
    # Parts are narrow and few, so a normal stands for their mixture; the cuts themselves are known at many more points.
    plain = block_rows(theta, block, spread, tail)
    moved = means - weights @ means
    mean = np.array([row.mean for row in plain]) + weights @ means
    variance = np.array([row.sd for row in plain]) ** 2 + weights @ (variances + moved**2)
    variance += 2.0 * ((weights * moved) @ (cuts - weights @ cuts))
    return mixture_rows(list(block.names), np.ones(1), mean[None], np.sqrt(variance)[None], tail, "parameter")


def block_covariance(theta: Theta, block: ParameterBlock, components: Components) -> Array:
    """Of what is printed of parameters that were chosen: from the covariance of theta, by the derivative in it."""
    at = theta.slice_of(block)
    if not components.covariance.size:
        return np.zeros((block.size, block.size))
    own, steps = components.theta[0, at], DIFFERENCE * np.eye(block.size)
    slopes = (block.reported(own + steps) - block.reported(own - steps)) / (2.0 * DIFFERENCE)
    return np.asarray(slopes.T @ components.covariance[at, at] @ slopes)


def _ends(scale: Scale, weights: Array, values: Array, sd: float, tail: float) -> tuple[float, float, float]:
    """The ends of an interval and the mass above 0: from many points, or by a normal where values are roughly so."""
    if len(weights) >= MANY:
        order = np.argsort(values, kind="stable")
        upto = np.cumsum(weights[order]) - 0.5 * weights[order]
        low, high = np.interp([tail, 1.0 - tail], upto, values[order])
        return float(low), float(high), float(weights[values > 0.0].sum())
    there, back = scale
    scaled = there(values)
    middle = float(weights @ scaled)
    width = math.sqrt(float(weights @ (scaled - middle) ** 2))
    if len(weights) == 1 and sd > 0.0:
        step = DIFFERENCE * max(abs(float(values[0])), 1.0)
        slope = float((there(values[0] + step) - there(values[0] - step)) / (2.0 * step))
        width = sd * slope
    marginal = back(middle + width * SCORES)
    low, high = marginal_quantile(marginal, np.array([tail, 1.0 - tail]))
    return float(low), float(high), share_above(marginal, 0.0) if width > 0 else float(values[0] > 0)


def level_moments(part: WeightPosterior, place: slice, term: Group) -> tuple[Array, Array]:
    """Means and sds of the coefficients of every level, for the columns as they are written."""
    k, T = len(term.columns), term.uncentred
    mean = part.mean[place].reshape(-1, k) @ T.T
    first = place.start + k * np.arange(term.n_levels)
    variance = np.zeros_like(mean)
    for j in range(k):
        for a, b in zip(*np.nonzero(np.outer(T[j], T[j])), strict=True):
            variance[:, j] += T[j, a] * T[j, b] * part.covariances(first + a, first + b)
    return mean.ravel(), np.sqrt(np.maximum(variance, 0.0)).ravel()


def rows_as_printed(theta: Theta, rows: LinearRows, shift: Array) -> LinearRows:
    """Rows of the f that printed cut points cut, which are for columns as they are; other fits have no other f."""
    if all(block.kind != "cut" for block in theta.blocks):
        return rows
    some = rows.some(slice(None))
    return replace(some, X=some.X + shift[: some.X.shape[1]])


def level_functionals(linear: Any, place: slice, term: Group) -> Any:
    """The same coefficients as rows over the weights."""
    k, n = len(term.columns), term.n_levels
    level, each = np.repeat(np.arange(n), k), np.tile(term.uncentred, (n, 1))
    L = np.zeros((n * k, linear.width))
    if place.start >= linear.width:  # levels that keep their codes
        return linear.rows_over(L, level, each)
    L[np.arange(n * k)[:, None], place.start + k * level[:, None] + np.arange(k)] = each
    return linear.weight_rows(L)


def level_name(term: Group, column: str) -> str:
    """What the draws of the levels of one column are called: "1|g", "x|g"."""
    return f"{'1' if column == 'Intercept' else column}|{term.name}"
