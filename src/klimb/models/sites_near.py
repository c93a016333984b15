"""Sites at another theta, predicted by those of fits near by."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from klimb.infer.problem import BLOCK
from klimb.infer.start import sites_of_fit, start_at
from klimb.latents.base import Posterior
from klimb.numerics.arrays import Array, finite_sum, rounded, slices
from klimb.numerics.surrogate import quadratics

REMEMBERED, MOST_REMEMBERED = 24, 4e7  # fits whose sites predict those of the next, and numbers kept of them
ENOUGH = 1e6  # of these numbers: with more, hardly more fits are kept than a quadratic goes through
FARTHEST = (8.0, 4.0)  # sum of the shares of these fits, by quadratics and straight, up to which that is not wild
NEARBY = 0.01  # squared distance of a fit, in spreads of all of them, below which it counts no more


class SitesNear:
    """Sites of earlier fits, from which those at another theta are predicted by moving least squares.

    A quadratic in theta through the fits, the nearest counting most, is off by third order in the distance, where the
    sites of a neighbour are off by first. Fits too few for that, or in a row, predict by a straight line.

    Of all fits but the last only steps to the next are kept.
    """

    def __init__(self) -> None:
        self.last: Callable[[], Posterior] | None = None  # what makes the sites of the last fit
        self._last: list[Any] = []  # its slopes and gammas
        self._thetas: list[Array] = []
        self._steps: list[tuple[float, Any]] = []  # units, and slopes and gammas in them, from each fit to the next

    def add(self, theta: Array, posterior: Posterior) -> None:
        """Remember a fit; the oldest are forgotten."""
        sites, n = sites_of_fit(posterior, None), len(posterior.a)
        if not (posterior.spread and finite_sum(sites.a) and finite_sum(sites.gamma)):
            return
        kind, step = (np.float32, np.float16) if n > BLOCK else (np.float64, np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            before, self._last = self._last, [values.astype(kind) for values in (sites.a, sites.gamma)]
            if not before or len(before[0]) != n:  # rows that stand for others: those are no sites
                self._thetas.clear()
            elif self._thetas:
                steps = np.empty((2, n))
                for own, new, old in zip(steps, self._last, before, strict=True):
                    np.subtract(new, old, out=own)
                self._steps.append(rounded(steps, step))
        self.last = partial(_whole, *self._last)
        self._thetas.append(theta)
        fewest = quadratics(theta[None]).size + 2
        kept = int(np.clip(ENOUGH / (2 * n), fewest, min(REMEMBERED, 4 * len(theta) + 12)))
        kept = kept if 2 * n * kept <= MOST_REMEMBERED else 1
        del self._thetas[:-kept], self._steps[: max(len(self._steps) + 1 - len(self._thetas), 0)]

    def at(self, theta: Array) -> Callable[[], Posterior] | None:
        """What makes a start by the nearest fits; None where they do not surround theta well enough to say."""
        if len(self._thetas) <= len(theta):
            return None
        points = np.array(self._thetas)
        own = points - points.mean(axis=0)
        spread, axes = np.linalg.eigh(own.T @ own / (len(own) - 1))
        if not spread[0] > 1e-8 * spread[-1]:
            return None
        away = (points - theta) @ (axes / np.sqrt(spread))
        distance = (away**2).sum(axis=1)
        nearest = int(distance.argmin())
        for monomials, farthest in zip((quadratics(away), np.column_stack([np.ones(len(away)), away])), FARTHEST,
                                       strict=True):
            system = monomials / (distance + NEARBY)[:, None]
            half, _, rank, _ = np.linalg.lstsq(system.T, np.eye(system.shape[1])[0], rcond=1e-6)
            shares = half / (distance + NEARBY)
            if rank == system.shape[1] and np.abs(shares).sum() <= farthest:
                break
        else:
            return None
        return partial(_summed, self._last, list(self._steps), shares, nearest)


def _whole(slope: Any, gamma: Any) -> Posterior:
    return start_at(None, slope.astype(np.float64), gamma.astype(np.float64))


def _summed(last: list[Any], steps: list[tuple[float, Any]], shares: Array, nearest: int) -> Posterior:
    """Sites that are a sum of those of fits, no gamma far below that of the nearest."""
    sites, total = [np.empty(len(values)) for values in last], shares.sum()
    units = np.array([unit for unit, _ in steps])
    weights = np.cumsum(shares)[:-1] * units
    for rows in slices(len(sites[0]), BLOCK // len(steps) + 1):
        # sum_k c_k x_k = sum c x - sum_j (c_1 + ... + c_j) s_j, x the last
        own = np.array([step[:, rows] for _, step in steps], dtype=np.float64)
        slope, gamma = (values[rows].astype(np.float64) for values in last)
        least = 0.2 * (gamma - units[nearest:] @ own[nearest:, 1])
        away = np.tensordot(weights, own, axes=1)
        gamma = total * gamma - away[1]
        sites[0][rows] = total * slope - away[0]
        sites[1][rows] = np.where(least > 0.0, np.maximum(gamma, least), gamma)
    return start_at(None, *sites)
