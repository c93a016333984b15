"""The exact posterior in few pieces, each close to Gaussian, from weighted draws.

One Gaussian with the right mean and covariance has the wrong tails where a posterior is skewed: under labels that a
column separates it gives chances of a hundredth where they are one of ten thousand. So the draws are cut in two again
and again, each time across the direction in which those at hand are most skewed, and each piece gets their moments.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from klimb.latents.corrected_weights import CutWeights
from klimb.latents.shocks import ShockMoments, Shocks
from klimb.latents.weights_posterior import WeightPosterior
from klimb.numerics.arrays import Array
from klimb.trust.collapsed import CollapsedDraws

MOST_NUMBERS = 131_072  # of draws that are kept: half a megabyte, and as much for what drifts at them
ROUND = 0.2  # skewness across the first cut up to which one piece is enough
EFFECTIVE = 6  # draws of a piece that are effective for each of its directions, at least


def cut_posterior(draws: CollapsedDraws, weights: Array, moments: ShockMoments, shocks: Shocks,
                  most: int, reached: tuple[CollapsedDraws, Any] | None = None) -> WeightPosterior:
    """The posterior with ``moments``, in up to ``most`` pieces where it is skewed; with tails where ``reached``."""
    whole = shocks.matched(moments)
    if most < 2:
        return whole
    centre, root, z = _whitened(draws.e, weights)
    places = _pieces(z, weights, most) if reached or _lean(z, weights) >= ROUND else []
    if len(places) <= 1 and not reached:
        return whole
    # Draws have noise that the moments are free of: what is left of it in the pieces together is taken out.
    turn = np.linalg.cholesky(moments.spread + 1e-9 * np.eye(len(root))) @ np.linalg.inv(root)
    shares, pieces = [], []
    for place in places:
        own = np.zeros(len(weights))
        own[place] = weights[place]
        found = draws.moments(own / own.sum(), stein=False)
        found = replace(found, centre=moments.centre + turn @ (found.centre - centre),
                        spread=turn @ found.spread @ turn.T, with_shared=found.with_shared @ turn.T)
        shares.append(float(own.sum()))
        pieces.append(shocks.matched(found))
    cut = CutWeights(whole, np.array(shares), tuple(pieces))
    if reached is None:
        return cut
    tails, share = reached[0], reached[1].normalised
    slopes = tails.gradient - tails.e
    drifts = np.linalg.solve(slopes.T @ (share[:, None] * slopes), slopes.T).T
    kept = slice(None, None, -(-tails.e.size // MOST_NUMBERS))
    both: list[Any] = [(own[kept] @ shocks.q.root.T).astype(np.float32) for own in (tails.e - moments.centre, drifts)]
    return replace(cut, points=both[0], drifts=both[1], point_shares=share[kept] / share[kept].sum())


def skewness(e: Array, weights: Array) -> float:
    """Of weighted points, across the first cut."""
    return _lean(_whitened(e, weights)[2], weights)


def _whitened(e: Array, weights: Array) -> tuple[Array, Array, Array]:
    """Mean, root of the covariance and standard coordinates of weighted points."""
    centre = weights @ e
    away = e - centre
    root = np.linalg.cholesky(away.T @ (weights[:, None] * away) + 1e-9 * np.eye(away.shape[1]))
    return centre, np.asarray(root), np.asarray(np.linalg.solve(root, away.T).T)


def _lean(z: Array, weights: Array) -> float:
    return float(weights @ (z @ _reach(z, weights)) ** 3)


def _pieces(z: Array, weights: Array, most: int) -> list[Any]:
    """Places of the draws of each piece; the one that is widest for its weight is cut next, at its mean."""
    least, open_ones, done = EFFECTIVE * (z.shape[1] + 1), [np.arange(len(z))], list[Any]()
    while open_ones and len(open_ones) + len(done) < most:
        widest = int(np.argmax([weights[own] @ ((z[own] - _mean(z, weights, own)) ** 2).sum(axis=1)
                                for own in open_ones]))
        own = open_ones.pop(widest)
        away = z[own] - _mean(z, weights, own)
        beyond = away @ _reach(away, weights[own] / weights[own].sum()) > 0.0
        halves = own[~beyond], own[beyond]
        if min(weights[half].sum() ** 2 / max((weights[half] ** 2).sum(), 1e-300) for half in halves) < least:
            done.append(own)
        else:
            open_ones += halves
    return open_ones + done


def _mean(z: Array, weights: Array, own: Any) -> Array:
    return np.asarray(weights[own] @ z[own] / weights[own].sum())


def _reach(away: Array, weights: Array) -> Array:
    """The unit vector along which draws reach farther to one side than to the other: that of E |z|^2 z."""
    third = (weights * (away**2).sum(axis=1)) @ away
    return np.asarray(third / max(float(np.linalg.norm(third)), 1e-300))
