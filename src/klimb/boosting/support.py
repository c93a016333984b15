"""Where to begin, and whether the target is a density at all."""

from __future__ import annotations

from typing import Any

import numpy as np

from klimb.boosting.ascent import Climb
from klimb.boosting.gaussians import Gaussians
from klimb.boosting.refine import EvaluatedMixture
from klimb.boosting.target import Target, show
from klimb.boosting.transforms import TransformedBlocks, points
from klimb.errors import InputError
from klimb.numerics.arrays import Array
from klimb.numerics.lowdiscrepancy import normal_draws

FAR, FURTHER, FURTHEST = 1e2, 1e4, 1e6  # standard deviations at which tails are probed
SLOWEST = -1.01  # power of r: a density along a line must fall faster than 1/r
RUNAWAY = 1e9  # times scale: where a climb that has not arrived has no mode to arrive at
EDGE_AT = 1.5  # an edge matters if this many times the nodes' spread crosses it


def starting_points(init: Any, coordinates: TransformedBlocks) -> tuple[Array, Array]:
    """Rows to start from, in free coordinates, and the first of them."""
    if init is None:
        return np.zeros((1, coordinates.n_free)), np.zeros(coordinates.n_free)
    rows = coordinates.to_free(points(init, "init", coordinates.n))
    return rows, rows[0]


def finite_starts(target: Target, starts: Array, spread: Array, seed: int) -> Array:
    """The starts inside the support; where there are none, points around them that are."""
    good = np.isfinite(target.values(starts))
    if good.any():
        return np.asarray(starts[good])
    Z = normal_draws(64, target.dim, seed=seed + 3)
    for size in (0.1, 1.0, 10.0, 100.0):
        around = starts[0] + size * spread * Z
        values = target.values(around, far=True)
        if np.isfinite(values).any():
            return np.asarray(around[[int(np.argmax(values))]])
    raise InputError("log_density must be finite somewhere near init",
                     f"-inf at {show(starts[0])} and 256 points around",
                     "Pass init, a point inside the support (and scale, the size of the region to look in).")


def check_arrived(target: Target, found: Climb, best: int, starts: Array, root: Array) -> None:
    """Raise if the best climb still rises after going further than any scale can be off."""
    gone = np.abs(found.points[best] - starts[best]) / np.sqrt(np.einsum("de,de->d", root, root))
    if found.arrived[best] or gone.max() < RUNAWAY:
        return
    x = target.coordinates.to_user(found.points[best][None])[0][0]
    raise InputError("log_density must have its bulk somewhere", f"one that still rises at {show(x)}",
                     "It has no finite integral, or its scale is far off: check priors, or pass init and scale.")


def check_proper(target: Target, first: Gaussians) -> None:
    """Raise if log p does not fall faster than -log r along some line far out: then it has no finite integral.

    Between FAR and FURTHER standard deviations from the first Gaussian, both ways along its axes and a few other lines;
    where it does not fall there, beyond.
    """
    D = first.dim
    axes = np.concatenate([np.eye(D)[: min(D, 50)], normal_draws(8, D, seed=5)]) @ first.roots[0].T
    axes = np.concatenate([axes, np.diag(first.deviations[0])[: min(D, 50)]])  # and the parameters themselves
    directions = np.concatenate([axes, -axes])
    near = target.values(first.means[0] + FAR * directions, far=True)
    distant = target.values(first.means[0] + FURTHER * directions, far=True)
    with np.errstate(invalid="ignore"):
        slope = (distant - near) / np.log(FURTHER / FAR)
    bad = np.isfinite(distant) & np.isfinite(near) & (slope > SLOWEST) & (distant > -1e12)
    if bad.any():  # far out a line may climb a ridge that falls off further still: a mean beside the log of an sd
        furthest = target.values(first.means[0] + FURTHEST * directions, far=True)
        with np.errstate(invalid="ignore"):
            slope = np.where(np.isfinite(furthest), (furthest - distant) / np.log(FURTHEST / FURTHER), -np.inf)
        bad &= slope > SLOWEST
    if bad.any():
        i = int(np.argmax(bad))
        x = target.coordinates.to_user((first.means[0] + FURTHER * directions[i])[None])[0][0]
        what = "rises" if slope[i] > 0.1 else "is nearly flat"
        raise InputError("log_density must fall off in every direction, or it has no finite integral",
                         f"one that {what} towards {show(x)}",
                         "Check priors (a flat one needs data to bound it); declare constraints by transform.")


def meets_edge(target: Target, fit: EvaluatedMixture) -> bool:
    """Whether the support ends inside the bulk of the first Gaussian."""
    if not np.isfinite(fit.values).all():
        return True
    centre, root = fit.parts.means[0], fit.parts.roots[0]
    wider = centre + EDGE_AT * fit.nodes @ root.T
    return not np.isfinite(target.values(wider)).all()
