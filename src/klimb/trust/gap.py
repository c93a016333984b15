"""What q leaves out to leading order, for posteriors with too many directions for importance weights.

At the optimum of the bound g = log w - bound has no part of first or second order in the standard coordinates of q: it
is a sum of Hermite polynomials of order three, four, ...

**Evidence.** log evidence - bound is Var_q(g) / 2 to leading order. A polynomial of order k has E|grad g|^2 = k Var(g),
and gradients average over all directions, so that a few pairs of draws (z, -z) are enough where the weights themselves
would need thousands:

    gap = Var(g_3) / 2 + Var(g_4) / 2,        Var(g_3) = E|G_odd|^2 / 3,        Var(g_4) = E|G_even|^2 / 4

with G_odd = (grad g(z) + grad g(-z)) / 2 the gradient of the odd part and G_even that of the even one.

**Third moments.** g_3 = sum_i c_i He_3(d_i) / 6 with c_i = E_q d^3 log p / df_i^3 and d = f - m, so that those of the
weights are T = sum_i c_i (V x_i)^(3), cubes of V x_i = Cov_q(w, f_i). Few of the cubes may serve: cubes have the inner
products V_ij^3, and some of them interpolate sum_i c_i V_ij^3, the third moment of each f_j.

**Covariances** grow by sum_ij c_i c_j V_ij^2 (V x_i) (V x_j)' / 2, of second order in what q leaves out. The order
after it takes some of that back: where variances of f grow by the share g on average, 1 / (1 + 1.8 g) of it is left,
and 1 / (1 + 0.3 g) of third moments. Both are fitted to long chains on five fields and crossed groups, each at two
theta, with g from 0.02 to 0.57 (whose cumulants along a direction are E g', 1 + E g'' + Var g' and E g''' + 3 Cov(g',
g'') + k_3(g')): sds of f are right to 2% for g < 0.1 and to 4% for g < 0.4, skewness to 0.1 and 0.2.

**Means** move by V times the mean slope that this gives each site: c_i / 2 times the growth of Var f_i, plus c4_i / 6
(the fourth derivative) times its third moment, both to leading order, and as much of that is left as of covariances.
It is little for each f, but may add up in an intercept.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from klimb.infer.problem import Problem
from klimb.latents.base import Posterior
from klimb.latents.coordinates import Coordinates, coordinates_of, pivoted_root
from klimb.latents.weights_posterior import WeightPosterior
from klimb.numerics.arrays import Array, Index, pieces
from klimb.numerics.lowdiscrepancy import normal_draws
from klimb.trust.bridge import bridged_gap, covariance_of_sites, exact_variances
from klimb.trust.orders import Orders
from klimb.trust.weights import LogWeights, bends, exact_site

AT_ONCE = 2**18  # numbers of unit vectors that are pulled together
VALUES = 8e4  # of log p that a gap may cost: many sites are many directions to average over
FEWEST, MOST = 3, 64  # pairs of draws
PER_SITE, SMALL = 0.0025, (0.15, 1.5)  # gap of a site, on average, and of all, that leading order has to 10%
SURE, SURE_SUMMED = 0.08, 0.04  # nats that a gap may be off by kriging, in its standard error
# Prior sds of the log of a ratio: its height, its slope, what bends it within `REACH` of logs; the noise of chains and
# of sums; how much of these sds is left of the ratio to chains once the order after the leading one is known.
HEIGHT, SLOPE, BEND, REACH, CHAINED, SUMMED, LEFT = 1.0, 0.5, 0.5, 1.2, 0.02, 1e-3, 0.05
POSSIBLE = (1e-3, 1.2)  # ratios; noise may bring one above 1
MOST_CHAINED = 5000  # sites: of more, gaps are sums of many small ones, and chains take long
MOST_SITES = 1000  # that covariances grow by, and whose third moments are asked for
MOST_VALUES = 300_000  # of covariances between those and all sites
PROBED, FLAT = 16, 0.05  # sites that are looked at first, and a skewness that they may all have to leave q as it is
MOST_FEW, MOST_CUBES = 64, 600_000  # cubes that may stand for those of all sites, and numbers that cubes may take
MOST_ROWS = 300_000  # numbers that covariances may grow by
NEXT_ORDER, NEXT_THIRD = 1.8, 0.3  # see above
ROUND = 0.003  # skewness of f at a site that cubes may leave out: ends of intervals right to a thousandth of an sd


class EvidenceGaps:
    """log evidence - bound of optimal q's of one model, at several hyperparameters.

    To leading order, with the same draws for all, so that differences hold better than the gap itself. Large gaps are
    far smaller than that: their ratio to it comes from chains (`klimb.trust.bridge`), and between those from kriging
    in logs of the leading gap, of the mean variance of f and of its mean share that data take, which tell apart
    hyperparameters whose leading gaps are the same. Chains go where that is not sure to `SURE` nats. For few sites with
    a concave log p the order after the leading one (`klimb.trust.orders`) comes between: its ratio to that is kriged
    first, and chains have to tell no more than their ratio to both, which is close to 1 and hardly changes.
    """

    def __init__(self) -> None:
        self._after, self._chained = Kriged(SUMMED), Kriged(CHAINED)

    def __call__(self, problem: Problem, posterior: Posterior, leading: float | None = None,
                 least: float = 0.0) -> float:
        """``leading`` is the gap to leading order, where that is known; of gaps below ``least`` nobody needs digits."""
        log_weights, orders = None, None if leading is not None else Orders.of(problem, posterior)
        if orders is not None:
            leading = orders.leading
        elif leading is None:
            log_weights = LogWeights(problem, posterior, coordinates_of(posterior))
            leading = leading_gap(log_weights)
        if not 0.0 < leading < np.inf or len(posterior.m) > MOST_CHAINED:
            return leading
        v = posterior.v
        place = np.log(np.maximum([leading, v.mean(), (np.abs(posterior.gamma) * v).mean()], 1e-300))
        if orders is not None:
            log, sd = self._after(place)
            if not leading * sd < SURE_SUMMED:
                self._after.add(place, float(np.log(max(orders.summed() / leading, POSSIBLE[0]))))
                log, _ = self._after(place)
            leading *= float(np.exp(log))
        share = 1.0 if orders is None else LEFT
        log, sd = self._chained(place, share)
        large = leading > max(float(np.clip(PER_SITE * len(posterior.m), *SMALL)), least)
        if large and not leading * min(np.exp(log), 1.0) * sd < SURE:
            log_weights = log_weights or LogWeights(problem, posterior, coordinates_of(posterior))
            if not log_weights.plain:
                return leading
            self._chained.add(place, float(np.log(np.clip(bridged_gap(log_weights) / leading, *POSSIBLE))))
            log, _ = self._chained(place, share)
        return leading * float(np.exp(log)) if large or orders is not None else leading


class Kriged:
    """The log of a ratio by what it was at other places, each with this ``noise``."""

    def __init__(self, noise: float) -> None:
        self._noise, self._places, self._logs = noise, list[Array](), list[float]()
        self._inverses: dict[float, Array] = {}  # of what is known, by share

    def add(self, place: Array, log: float) -> None:
        self._places.append(place)
        self._logs.append(log)
        self._inverses.clear()

    def _covariances(self, one: Array, other: Array, share: float) -> Array:
        apart = ((one[:, None] - other) ** 2).sum(axis=2)
        sloped = SLOPE**2 * (one - self._places[0]) @ (other - self._places[0]).T
        return np.asarray(share**2 * (HEIGHT**2 + sloped + BEND**2 * np.exp(-0.5 * apart / REACH**2)))

    def __call__(self, place: Array, share: float = 1.0) -> tuple[float, float]:
        """With its standard error: a plane of unknown height and slope, and what bends it, that much of each."""
        if not self._places:
            return 0.0, np.inf if share == 1.0 else share * HEIGHT
        known, here = np.array(self._places), place[None]
        if share not in self._inverses:
            noisy = self._covariances(known, known, share) + self._noise**2 * np.eye(len(known))
            self._inverses[share] = np.asarray(np.linalg.inv(noisy), dtype=float)
        near = self._covariances(known, here, share)[:, 0]
        pull, own = self._inverses[share] @ near, float(self._covariances(here, here, share)[0, 0])
        return float(pull @ self._logs), float(np.sqrt(max(own - float(pull @ near), 0.0)))


def leading_gap(log_weights: LogWeights) -> float:
    """log evidence - bound of an optimal q, to leading order."""
    coordinates = log_weights.coordinates
    pairs = int(np.clip(VALUES / (2 * coordinates.n_sites), FEWEST, MOST))
    z = normal_draws(pairs, coordinates.dim, symmetric=False)
    _, forward = log_weights(z)
    _, backward = log_weights(-z)
    odd, even = 0.5 * (forward + backward), 0.5 * (forward - backward)
    third = np.einsum("ij,ij->i", odd, odd) / 3.0
    fourth = np.einsum("ij,ij->i", even, even) / 4.0
    return 0.5 * float(np.mean(third + fourth))


def leading_moments(problem: Problem, posterior: Posterior, *,
                    whether: bool = False) -> tuple[WeightPosterior | None, float]:
    """The posterior with its means, covariances and third moments to leading order, and the largest growth of an sd.

    None where it is as good as Gaussian; ``whether`` asks for no more than that. Its third moments are rows of (c, a)
    that stand for sums of c (l'a)^3, see `klimb.latents.arrow.third_moments`.
    """
    coordinates, q = coordinates_of(posterior), posterior.latent.detach(posterior)
    c, fourth = bends(exact_site(problem.site), problem.y, posterior)
    order = np.argsort(-np.abs(c) * posterior.v**1.5, kind="stable")
    largest = min(MOST_SITES, MOST_VALUES // len(c), len(c))
    for most in (PROBED, largest) if largest < len(c) or (whether and largest > PROBED) else (largest,):
        half = most // 2  # where it matters most by itself, and the rest evenly: sums of others may matter more
        sites = np.sort(np.append(order[:half], order[half :: -(-max(len(c) - half, 1) // (most - half))]))
        rows, V, wanted = _third_moments(coordinates, posterior, sites, c)
        v = np.diagonal(V)
        if (np.abs(wanted) <= FLAT * v**1.5).all():
            return None, 1.0
        if whether:
            return q.widened(np.zeros((0, q.size)), np.zeros((0, 0))), 1.0
    room, every = max(MOST_CUBES // (1 + q.size), 1), len(sites) == len(c)
    few, scale = _few_cubes(V**2 * V, wanted, min(MOST_FEW, room))
    if len(few) == MOST_FEW and every and len(c) <= room:
        few, scale = list(range(len(c))), c
    cross, (grown, more, share) = coordinates.report(rows, slice(None)), _grown(V, c[sites])
    root = pivoted_root(grown, np.ones(len(v)))[:, : max(MOST_ROWS // q.size, 1)]
    left, sd = 1.0 / (1.0 + NEXT_ORDER * share), np.maximum(q.sd(), 1e-150)
    among = (cross / np.sqrt(v)[:, None] / sd).astype(np.float32)
    added = np.sqrt(left) * (root.T.astype(np.float32) @ among)
    growth, added = np.sqrt(1.0 + np.einsum("ij,ij->j", added, added)), added * sd
    wider = q.widened(added, np.column_stack([scale / (1.0 + NEXT_THIRD * share), cross[few]]))
    if every:
        shift = left * (0.5 * c * more + fourth * wanted / 6.0) @ cross
        wider = replace(wider, mean=q.mean + shift)  # type: ignore[type-var]
    return wider, float(growth.max())


def leading_error(problem: Problem, posterior: Posterior) -> float:
    """The largest relative error of an sd of f by `leading_moments`, beside chains, less twice the error of these.

    NaN where chains cannot tell.
    """
    n, coordinates = len(posterior.m), coordinates_of(posterior)
    log_weights = LogWeights(problem, posterior, coordinates)
    if n > MOST_SITES or not log_weights.plain:
        return float("nan")
    V = covariance_of_sites(posterior, coordinates.pull(np.eye(n)))
    _, more, share = _grown(V, bends(log_weights.site, problem.y, posterior)[0])
    exact, noise = exact_variances(log_weights)
    error = np.abs(np.sqrt((posterior.v + more / (1.0 + NEXT_ORDER * share)) / exact) - 1.0)
    return float(np.maximum(error - noise / exact, 0.0).max())


def _grown(V: Array, c: Array) -> tuple[Array, Array, float]:
    """What sites add to each other's covariances, in units of their sds, to variances there, and their mean share.

    Of variances in single precision, which is enough.
    """
    v = np.diagonal(V)
    sd = np.sqrt(v)
    third, R = c * v * sd, V / sd / sd[:, None]
    grown, R = 0.5 * np.outer(third, third) * R**2, R.astype(np.float32)
    share = np.einsum("ij,ij->i", R @ grown.astype(np.float32), R)
    return grown, v * share, float(np.mean(share))


def _third_moments(coordinates: Coordinates, posterior: Posterior, sites: Index,
                   c: Array) -> tuple[Array, Array, Array]:
    """Z' at some ``sites``, V there, and sum_i c_i V_ij^3 over all sites: block by block, as these may be many."""
    wanted = np.zeros(len(sites))

    def cubed(rows: slice, d: Array) -> Array:
        wanted[:] += (d**2 * d) @ c[rows]  # a power of three takes ten times as long
        return np.zeros_like(d)

    found = np.concatenate([coordinates.pull(np.equal.outer(some, np.arange(len(c))).astype(np.float64))
                            for some in pieces(sites, max(AT_ONCE // len(c), 1))])
    if len(sites) == len(c):
        V = covariance_of_sites(posterior, found)
        return found, V, (V**2 * V) @ c
    V = np.asarray(found @ found.T)
    coordinates.sweep(found, cubed)
    return found, V, wanted


def _few_cubes(cubes: Array, wanted: Array, most: int) -> tuple[list[int], Array]:
    """Some of the sites, and factors of their cubes, that interpolate the third moments ``wanted`` of all.

    The next one is always where those are farthest off yet, in units of the sd of f there.
    """
    unit = np.sqrt(np.maximum(np.diagonal(cubes), 1e-300))
    left, basis, few = wanted.copy(), np.empty((len(cubes), min(most, len(cubes)))), list[int]()
    while len(few) < basis.shape[1]:
        place, k = int(np.argmax(np.abs(left) / unit)), len(few)
        column = cubes[:, place] - basis[:, :k] @ basis[place, :k]
        if not abs(left[place]) > ROUND * unit[place] or not column[place] > 1e-9 * unit[place] ** 2:
            break
        basis[:, k] = column / np.sqrt(column[place])
        left -= basis[:, k] * (left[place] / basis[place, k])
        few.append(place)
    return few, np.asarray(np.linalg.solve(cubes[np.ix_(few, few)], wanted[few])) if few else np.zeros(0)
