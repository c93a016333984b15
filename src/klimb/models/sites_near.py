"""Sites at another theta, predicted by those of fits near by."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from klimb.infer.problem import BLOCK
from klimb.infer.start import start_at
from klimb.latents.base import Posterior
from klimb.numerics.arrays import Array, slices
from klimb.numerics.surrogate import quadratics

REMEMBERED, MOST_REMEMBERED = 24, 4e7  # fits whose sites predict those of the next, and numbers kept of them
ENOUGH = 1e6  # of these numbers: with more, hardly more fits are kept than a quadratic goes through
FARTHEST = (8.0, 4.0)  # sum of the shares of these fits, by quadratics and straight, up to which that is not wild
NEARBY = 0.01  # squared distance of a fit, in spreads of all of them, below which it counts no more


class SitesNear:
    """Sites of earlier fits, from which those at another theta are predicted by moving least squares.

    A quadratic in theta through the fits, the nearest counting most, is off by third order in the distance, where the
    sites of a neighbour are off by first. Fits too few for that, or in a row, predict by a straight line.
    """

    def __init__(self) -> None:
        self._known: list[tuple[Array, Any, Any]] = []  # sites in single precision: they only predict

    def add(self, theta: Array, posterior: Posterior) -> None:
        """Remember a fit; the oldest are forgotten."""
        fewest = quadratics(theta[None]).size + 2
        kept = int(np.clip(ENOUGH / (2 * len(posterior.a)), fewest, min(REMEMBERED, 4 * len(theta) + 12)))
        if not posterior.spread or 2 * len(posterior.a) * kept > MOST_REMEMBERED:
            return
        with np.errstate(over="ignore"):
            sites = [np.asarray(values, dtype=np.float32)
                     for values in (posterior.a + posterior.gamma * posterior.m, posterior.gamma)]
        if self._known and len(self._known[-1][2]) != len(sites[1]):  # rows that stand for others: those are no sites
            self._known.clear()
        if all(np.isfinite(values).all() for values in sites):
            self._known.append((theta, sites[0], sites[1]))
        del self._known[:-kept]

    def at(self, theta: Array) -> Callable[[], Posterior] | None:
        """What makes a start by the nearest fits; None where they do not surround theta well enough to say."""
        if len(self._known) <= len(theta):
            return None
        points = np.array([known[0] for known in self._known])
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
        return partial(_summed, list(self._known), shares, self._known[nearest][2])


def _summed(known: list[tuple[Array, Any, Any]], shares: Array, nearest: Any) -> Posterior:
    """Sites that are a sum of those of fits, no gamma far below that of the nearest."""
    slope, gamma = np.empty(len(nearest)), np.empty(len(nearest))
    for rows in slices(len(nearest), BLOCK // len(known) + 1):
        slope[rows] = shares @ np.array([own[rows] for _, own, _ in known], dtype=np.float64)
        gamma[rows] = shares @ np.array([own[rows] for _, _, own in known], dtype=np.float64)
        least = 0.2 * nearest[rows].astype(np.float64)
        gamma[rows] = np.where(least > 0.0, np.maximum(gamma[rows], least), gamma[rows])
    return start_at(None, slope, gamma)
