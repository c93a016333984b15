"""Where to begin: climbs of log p from several points at once, scouts for far modes, and whether p is a density."""

from typing import NamedTuple

import numpy as np

from klimb.boosting.gaussians import Gaussians
from klimb.boosting.refine import EvaluatedMixture
from klimb.boosting.target import Target, show
from klimb.errors import InputError
from klimb.numerics.arrays import Array
from klimb.numerics.lowdiscrepancy import normal_draws

FLAT = 1e-4  # nats still to be gained, by the quadratic model, at which a climb has arrived
LONGEST = 8.0  # first step of a climb, in units of its scale; may double at every step
RADII = (4.0, 12.0, 50.0)  # of the scouts, in standard deviations per coordinate of the first Gaussian
SCOUTS = 8  # per radius
FAR, FURTHER, FURTHEST = 1e2, 1e4, 1e6  # standard deviations at which tails are probed
SLOWEST = -1.01  # power of r: a density along a line must fall faster than 1/r
RUNAWAY = 1e9  # times scale: where a climb that has not arrived has no mode to arrive at
EDGE_AT = 1.5  # an edge matters if this many times the nodes' spread crosses it


class Climb(NamedTuple):
    """Where the climbs ended (rows), log p there, inverse Hessians, whether they arrived, and the first one's path."""
    points: Array
    values: Array
    inverses: Array
    arrived: np.ndarray[tuple[int], np.dtype[np.bool_]]
    path: tuple[tuple[Array, Array], ...]


def climb(target: Target, starts: Array, root: Array, *, iterations: int = 60, far: bool = False,
          within: Gaussians | None = None) -> Climb:
    """BFGS with backtracking from every row of ``starts`` with a finite log p, whitened by ``root``, all at a time."""
    n, D = starts.shape
    scale = np.sqrt(np.einsum("de,de->d", root, root))
    x = starts.copy()
    f, g = target.with_slopes(x, scale, far=far)
    g = g @ root
    B = np.tile(np.eye(D), (n, 1, 1))  # inverse Hessians of -log p in whitened coordinates
    fresh = np.ones(n, dtype=bool)
    step, longest = np.ones(n), np.full(n, LONGEST * np.sqrt(D))
    arrived = np.zeros(n, dtype=bool)
    active = np.isfinite(f)
    path = [(x[0].copy(), np.eye(D))]
    for _ in range(iterations):
        i = np.flatnonzero(active)
        if len(i) == 0:
            break
        if within is not None:
            home = np.linalg.norm(within.whitened(x[i])[0], axis=1) < 2.0 + np.sqrt(D)
            active[i[home]] = False
            i = i[~home]
        d = np.einsum("nde,ne->nd", B[i], g[i])
        slope = np.einsum("nd,nd->n", g[i], d)
        done = 0.5 * slope < FLAT
        arrived[i[done]] = True
        active[i[done]] = False
        i, d, slope = i[~done], d[~done], slope[~done]
        t = step[i] * np.minimum(1.0, longest[i] / np.linalg.norm(d, axis=1))
        tried = x[i] + (t[:, None] * d) @ root.T
        f_new, g_new = target.with_slopes(tried, scale, far=far)
        g_new = g_new @ root
        good = f_new > f[i] + 1e-4 * t * slope - 1e-13 * np.abs(f[i])  # to rounding
        _update(B, fresh, i[good], t[good, None] * d[good], g[i[good]] - g_new[good])
        x[i[good]], f[i[good]], g[i[good]] = tried[good], f_new[good], g_new[good]
        step[i[good]] = 1.0
        longest[i[good]] *= 2.0
        poor = i[~good]
        step[poor] *= 0.2
        stuck = poor[step[poor] < 1e-9]
        arrived[stuck] = True  # a kink or rounding: no step goes up
        active[stuck] = False
        if good.any() and i[good][0] == 0:
            path.append((x[0].copy(), B[0].copy()))
    inverses = np.matmul(np.matmul(root, B), root.T)
    return Climb(x, f, inverses, arrived, tuple((point, root @ inverse @ root.T) for point, inverse in path))


def _update(B: Array, fresh: np.ndarray[tuple[int], np.dtype[np.bool_]], index: Array, s: Array, y: Array) -> None:
    """The BFGS update of the inverse Hessians ``index``, skipped where curvature is not positive."""
    sy = np.einsum("nd,nd->n", s, y)
    yy = np.einsum("nd,nd->n", y, y)
    ok = sy > 1e-10 * np.sqrt(yy * np.einsum("nd,nd->n", s, s))
    index, s, y, sy, yy = index[ok], s[ok], y[ok], sy[ok], yy[ok]
    first = fresh[index]
    B[index[first]] *= (sy[first] / yy[first])[:, None, None]
    fresh[index] = False
    By = np.einsum("nde,ne->nd", B[index], y)
    yBy = np.einsum("nd,nd->n", y, By)
    outer = np.einsum("nd,ne->nde", By, s)
    B[index] += (1.0 + yBy / sy)[:, None, None] * np.einsum("nd,ne->nde", s, s) / sy[:, None, None] \
        - (outer + outer.transpose(0, 2, 1)) / sy[:, None, None]


def scouted_modes(target: Target, first: Gaussians, seed: int) -> tuple[Array, Array]:
    """Modes found by climbing from points far outside ``first``: points and inverse Hessians, new ones only."""
    D = first.dim
    directions = normal_draws(SCOUTS, D, seed=seed + 11)  # in pairs, so that every half-space is looked into
    directions *= np.sqrt(D) / np.linalg.norm(directions, axis=1, keepdims=True)
    if D == 1:
        directions = np.array([[1.0], [-1.0]])
    starts = np.concatenate([first.means[0] + radius * directions @ first.roots[0].T for radius in RADII])
    found = climb(target, starts, first.roots[0], iterations=30, far=True, within=first)
    usable = found.arrived & np.isfinite(found.values)
    order = np.flatnonzero(usable)[np.argsort(-found.values[usable], kind="stable")]
    kept: list[int] = []
    for i in order:
        near_first = np.linalg.norm(first.whitened(found.points[i : i + 1])[0, 0]) < 2.0 + np.sqrt(D)
        if not near_first and not any(_same(found, i, j) for j in kept):
            kept.append(int(i))
    return found.points[kept], found.inverses[kept]


def _same(found: Climb, i: int, j: int) -> bool:
    """Whether two ends are one mode: closer than 1 in the metric of either."""
    gap = found.points[i] - found.points[j]
    return any(float(gap @ np.linalg.lstsq(found.inverses[k], gap, rcond=None)[0]) < 1.0 for k in (i, j))


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
    """Raise unless log p falls faster than -log r along axes of the first Gaussian and other lines, far out."""
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
    return not np.isfinite(target.values(centre + EDGE_AT * fit.nodes @ root.T)).all()
