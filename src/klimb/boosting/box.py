"""Edges that the user did not declare, where they are parallel to the axes: found, and then declared.

A standard deviation that must be positive, a probability between 0 and 1: most edges are of this kind. -inf beyond them
is enough to find them, by bisection along every axis. In the coordinates of `Above`, `Below` and `Interval` there is no
edge left, and boosting goes on as if they had been declared.
"""

from __future__ import annotations

import numpy as np

from klimb.boosting.refine import EvaluatedMixture
from klimb.boosting.target import Target, show
from klimb.boosting.transforms import Above, Below, Interval, Real, Transform, TransformedBlocks
from klimb.errors import InputError
from klimb.numerics.arrays import Array
from klimb.numerics.lowdiscrepancy import normal_draws

REACHES = 2.0 ** np.arange(-2, 11)  # how far an axis is looked along, in standard deviations (quarter to a thousand)
HALVINGS = 80  # of the bracket around an edge: to the last bit
PROBES = 256  # points at which the box must hold
NEAR_EDGE = 0.02  # shares of the box's width in which half of them lie


def box_coordinates(target: Target, fit: EvaluatedMixture, spread: Array, seed: int
                    ) -> tuple[TransformedBlocks, Array] | None:
    """Coordinates without edges and a point inside; None where the support is not a box as far as probes can tell."""
    if not target.coordinates.plain:
        return None
    best = np.unravel_index(int(np.argmax(fit.values)), fit.values.shape)
    centre = fit.points[best] if not np.isfinite(target.values(fit.parts.means[:1])[0]) else fit.parts.means[0]
    scale = np.maximum(fit.parts.deviations[0], 1e-3 * spread)
    low, high = (_edges(target, centre, scale, sign) for sign in (-1.0, 1.0))
    if not (np.isfinite(low).any() or np.isfinite(high).any()):
        return None
    thin = np.flatnonzero(high - low <= 1e-12 * np.maximum(np.abs(centre), scale))
    if len(thin):
        raise InputError("the support of log_density must have an inside",
                         f"-inf on both sides of {show(centre)} along coordinate {thin[0]}",
                         "Leave out parameters that others determine.")
    if not _holds(target, centre, scale, low, high, seed):
        return None
    return TransformedBlocks([_block(a, b) for a, b in zip(low, high, strict=True)]), centre


def _block(low: float, high: float) -> Transform:
    if np.isfinite(low) and np.isfinite(high):
        return Interval(float(low), float(high))
    if np.isfinite(low):
        return Above(float(low))
    return Below(float(high)) if np.isfinite(high) else Real()


def _edges(target: Target, centre: Array, scale: Array, sign: float) -> Array:
    """Per axis, the last point inside the support in the direction ``sign``; infinite where there is no edge."""
    D = len(centre)
    steps = sign * REACHES[:, None] * scale  # K x D
    X = centre + steps[:, :, None] * np.eye(D)
    inside = np.isfinite(target.values(X.reshape(-1, D), far=True)).reshape(len(REACHES), D)
    found = np.full(D, sign * np.inf)
    meets = np.flatnonzero(~inside.all(axis=0))
    if len(meets) == 0:
        return found
    first = np.argmin(inside[:, meets], axis=0)  # the first reach that is outside
    outer = sign * REACHES[first] * scale[meets]
    inner = np.where(first > 0, sign * REACHES[np.maximum(first - 1, 0)] * scale[meets], 0.0)
    for _ in range(HALVINGS):
        middle = 0.5 * (inner + outer)
        points = np.tile(centre, (len(meets), 1))
        points[np.arange(len(meets)), meets] += middle
        ok = np.isfinite(target.values(points, far=True))
        inner, outer = np.where(ok, middle, inner), np.where(ok, outer, middle)
        if np.all(np.abs(outer - inner) <= 2e-16 * np.abs(centre[meets] + inner)):
            break
    found[meets] = centre[meets] + inner
    return found


def _holds(target: Target, centre: Array, scale: Array, low: Array, high: Array, seed: int) -> bool:
    """Whether points inside the box have finite values and points outside have none, near its faces and elsewhere."""
    D = len(centre)
    far = centre + 3.0 * scale * normal_draws(PROBES // 2, D, seed=seed + 23)
    width = np.where(np.isfinite(low) & np.isfinite(high), high - low, scale)
    near = centre + 3.0 * scale * normal_draws(PROBES // 2, D, seed=seed + 29)
    offset = NEAR_EDGE * width * np.random.default_rng(seed).uniform(-1.0, 1.0, near.shape)
    for j in range(D):  # each probe sits near a face, inside or outside of it, along the axes that have one
        faces = [edge for edge in (low[j], high[j]) if np.isfinite(edge)]
        if faces:
            chosen = np.arange(len(near)) % (2 * D) // 2 == j
            near[chosen, j] = np.resize(faces, int(chosen.sum())) + offset[chosen, j]
    probes = np.concatenate([far, near])
    predicted = ((probes > low) & (probes < high)).all(axis=1)
    return bool((np.isfinite(target.values(probes, far=True)) == predicted).all())
