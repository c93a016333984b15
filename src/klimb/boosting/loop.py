"""The default algorithm: a first Gaussian, scouts for other modes, then add, refine together, check, prune, stop.

A root D Q with D diagonal and Q orthogonal, of which only the first r axes are refined, has the covariance
D^2 + D Q_r (T T' - I) Q_r' D: diagonal plus rank r. The axes are those in which the slope of log p - log q varies most.
"""

import numpy as np

from klimb.boosting.ascent import check_arrived, climb, scouted_modes
from klimb.boosting.divergences import inclusive_refined
from klimb.boosting.gaussians import BoostStep, Gaussians, Watch, node_set, nodes, one_gaussian, recorded
from klimb.boosting.proposals import Outlook, Pool, best_share, candidates, looked_out, steepest
from klimb.boosting.refine import EvaluatedMixture, at_nodes, evaluated, improve
from klimb.boosting.target import Target
from klimb.numerics.arrays import Array

FIRST_ROUNDS, ROUNDS, LAST_ROUNDS = 25, 6, 5  # evaluations of all nodes in a refinement
POLISHES = 6  # refinements after the last component
NEGLIGIBLE = 1e-5  # weights below this are dropped
FREE_BELOW = 3  # up to this dimension components move along every axis; beyond, along those that matter
MOST_NODES = 4  # times the nodes at the start
TRIED = 2  # candidates evaluated beside the one at the largest weight
BEYOND_TOL = 2.0  # times tol: what may remain once points outside q are counted too
LEAST_MISSING = 3e-3  # share of p outside q from which covering it is tried
COVERED, COVERS = 16, 3  # draws of that, in nodes of a component, and rounds
LEAST_SHARE = 0.01  # with which a new component begins
RANK = 20  # axes that are refined at a time
TURNS = 4  # times that they are chosen anew


class Booster:
    """One run: the target, the nodes, the current mixture and the record of how it grew."""

    def __init__(self, target: Target, first: EvaluatedMixture, tol: float, seed: int,
                 watch: Watch, *, joint: bool = True, max_evaluations: int = 1 << 62) -> None:
        self.joint, self.max_evaluations = joint, max_evaluations
        self.target, self.tol, self.seed, self.watch = target, tol, seed, watch
        self.factor = 1  # of the number of nodes
        self.fit = first
        self.outlook: Outlook | None = None
        self.seen = self._checked(first)  # what the bound is judged by
        self.steps: list[BoostStep] = []
        self._record()

    def _checked(self, fit: EvaluatedMixture, known: EvaluatedMixture | None = None) -> EvaluatedMixture:
        """``fit`` at nodes that it has not seen; components that are among those ``known`` there keep their values."""
        Z = node_set(self.target.dim, self.seed + 1, 2 * self.factor)
        K, S = len(fit.parts), len(Z)
        values, fresh = np.empty((K, S)), np.ones(K, dtype=bool)
        if known is not None:
            same = ((known.parts.means[:, None] == fit.parts.means).all(axis=2)
                    & (known.parts.roots[:, None] == fit.parts.roots).all(axis=(2, 3)))  # those of before, those of now
            fresh = ~same.any(axis=0)
            values[~fresh] = known.values[same.argmax(axis=0)[~fresh]]
        if fresh.any():
            X = fit.parts.take(fresh).at(Z).reshape(-1, fit.parts.dim)
            values[fresh] = self.target.values(X).reshape(-1, S)
        return EvaluatedMixture(fit.parts, values, np.zeros((K, S, 0)), Z, fit.rho)

    def _record(self) -> None:
        pool = Pool.of(self.seen)
        spread = float(np.sqrt(pool.share @ (pool.residual - pool.share @ pool.residual) ** 2 / len(pool.residual)))
        self.steps.append(recorded(self.target, self.fit.parts, self.seen.bound, spread, pool.residual, pool.share,
                                   self.watch))

    def accept(self, grown: EvaluatedMixture, least: float = 0.0) -> float:
        """Take ``grown`` if the check says it is better (by ``least``); return what it won."""
        grown = pruned(grown)
        seen = self._checked(grown, self.seen)
        won = seen.bound - self.seen.bound
        if won > least:
            self.fit, self.seen = grown, seen
            self._record()
        return won

    def more_nodes(self) -> bool:
        """Twice the nodes, and the mixture refined at them; False if there are enough."""
        if self.factor >= MOST_NODES:
            return False
        self.factor *= 2
        self.seen = self._checked(self.fit)
        self.fit = evaluated(self.target, self.fit.parts, node_set(self.target.dim, self.seed, self.factor))
        self.accept(improve(self.target, self.fit, rounds=2, gain=0.1 * self.tol, free=self.free()))
        return True

    def free(self) -> int:
        """Along how many axes the components may move together."""
        fit = self.fit
        if not self.joint:
            return 0
        return fit.parts.dim if len(fit.parts) == 1 else max(free_axes(fit, k) for k in range(len(fit.parts)))

    def grow(self, n_components: int) -> str:
        """Add components until there are enough, or until they stop being worth it; returns why it ended."""
        failures, won = 0, 0.0
        looked_at: EvaluatedMixture | None = None  # the mixture around which the last outlook was
        while len(self.fit.parts) < n_components:
            if self.target.n_values > self.max_evaluations:
                return "evaluations"
            pool, beyond = Pool.of(self.fit, self.seen), Pool.of(self.fit, self.seen, outlook=self.outlook)
            small = pool.remaining < self.tol and won < 10 * self.tol
            if looked_at is self.fit and small and beyond.remaining < BEYOND_TOL * self.tol:
                return "gap"
            if looked_at is not self.fit and (small or failures == 2):
                self.outlook, looked_at = looked_out(self.target, self.fit, self.seed + 17), self.fit
                continue
            if small or beyond.remaining > BEYOND_TOL * pool.remaining:
                pool = beyond  # more is missing outside q than within
            if failures == 2:
                if not self.more_nodes():
                    return "gain"
                failures, won = 0, 0.0
                continue
            add = split if failures == 1 else added
            won = self.accept(add(self.target, self.fit, pool, self.tol, self.joint))
            failures = 0 if won > max(0.5 * self.tol, 0.05 * pool.remaining) else failures + 1
        return "components"

    def polish(self) -> None:
        """Refine all components until that gains less than a tenth of the tolerance."""
        for _ in range(POLISHES):
            if len(self.fit.parts) == 1 or self.target.n_values > self.max_evaluations:
                return
            better = improve(self.target, self.fit, rounds=LAST_ROUNDS, gain=0.05 * self.tol, free=self.free())
            if self.accept(better) < 0.25 * self.tol:
                return

    def cover(self, n_components: int) -> None:
        """Where mass is missing outside q (and no transform makes that enormous), try the inclusive direction."""
        if self.outlook is None or not self.target.coordinates.plain:
            return
        if Pool.of(self.fit, self.seen, outlook=self.outlook).missing < LEAST_MISSING:
            return
        draws = max(COVERED * self.fit.values.shape[1], 1024)
        q = inclusive_refined(self.target, self.fit.parts, self.seed + 41, draws=draws, rounds=COVERS,
                              n_components=n_components)
        if q is not self.fit.parts:
            self.accept(evaluated(self.target, q, self.fit.nodes), least=0.25 * self.tol)


def first_gaussian(target: Target, starts: Array, root: Array, tol: float, seed: int) -> EvaluatedMixture:
    """The best single Gaussian: from the highest mode that the climbs find, or from a point along the climb."""
    Z = node_set(target.dim, seed)
    found = climb(target, starts, root)
    best = int(np.argmax(np.where(np.isfinite(found.values), found.values, -np.inf)))
    check_arrived(target, found, best, starts, root)
    options = [(found.points[best], found.inverses[best])]
    if not found.arrived[best]:  # a density may rise without end and still be one: then a mode says nothing
        options += [found.path[i] for i in sorted({0, len(found.path) // 4, len(found.path) // 2})]
    fits = [inside(target, mean, inverse, Z) for mean, inverse in options]
    return improve(target, max(fits, key=lambda one: one.bound), rounds=FIRST_ROUNDS, gain=0.1 * tol)


def inside(target: Target, mean: Array, cov: Array, Z: Array) -> EvaluatedMixture:
    """N(mean, cov), shrunk until every node has a finite value (or nearly to a point)."""
    root = np.linalg.cholesky(cov + 1e-14 * np.trace(cov) / len(cov) * np.eye(len(cov)))
    for _ in range(12):
        fit = evaluated(target, one_gaussian(mean, root), Z)
        if np.isfinite(fit.values).all():
            break
        root = 0.5 * root
    return fit


def with_modes(target: Target, fit: EvaluatedMixture, n_components: int, tol: float, seed: int) -> EvaluatedMixture:
    """``fit`` with a Gaussian at every mode that scouts find and that raises the bound."""
    joined = fit
    for point, inverse in zip(*scouted_modes(target, fit.parts, seed), strict=True):
        one = inside(target, point, inverse, fit.nodes)
        if len(joined.parts) >= n_components or not np.isfinite(one.values).all():
            continue
        one = improve(target, one, rounds=ROUNDS, gain=tol)
        share, gain = best_share(joined, one)
        if gain > tol:
            joined = joined.joined(one, share)
    if joined is fit:
        return fit
    free = fit.parts.dim if fit.parts.dim <= FREE_BELOW else 0  # modes apart need no more than their weights
    return pruned(improve(target, joined, rounds=ROUNDS, gain=0.1 * tol, free=free))


def added(target: Target, fit: EvaluatedMixture, pool: Pool, tol: float, joint: bool) -> EvaluatedMixture:
    """``fit`` with the best of a few candidates, all refined together."""
    options, parents = candidates(fit, pool, TRIED)
    trials = evaluated(target, options, fit.nodes)
    gains = []
    for j in range(len(options)):
        one = trials.take(np.array([j]))
        gains.append(best_share(fit, one) if np.isfinite(one.values).all() else (0.0, -np.inf))
    best = int(np.argmax([gain for _, gain in gains]))
    if not np.isfinite(gains[best][1]):
        return fit
    parent = int(parents[best])
    free = free_axes(fit, parent) if joint else 0
    joined = turned(target, fit, parent, free).joined(trials.take(np.array([best])), max(gains[best][0], LEAST_SHARE))
    return improve(target, joined, rounds=ROUNDS, gain=0.1 * tol, free=free)


def split(target: Target, fit: EvaluatedMixture, pool: Pool, tol: float, joint: bool) -> EvaluatedMixture:
    """``fit`` with the component that fits worst made two, along the direction in which it fits worst."""
    k = int(np.argmax(fit.parts.weights * fit.residual.var(axis=1)))
    free = free_axes(fit, k) if joint else 0
    half = fit.parts.roots[k] @ steepest(fit, k)[0]
    step = 0.6 * half[:, 0]
    half[:, 0] *= 0.8  # 0.8^2 + 0.6^2 = 1: mean and covariance of the pair are those of the one
    twins = Gaussians(fit.parts.means[k] + np.stack([step, -step]), np.stack([half, half]))
    pair = evaluated(target, twins, fit.nodes)
    if not np.isfinite(pair.values).all():
        return fit
    rest = np.flatnonzero(np.arange(len(fit.parts)) != k)
    joined = pair if len(rest) == 0 else fit.take(rest).joined(pair, float(fit.parts.weights[k]))
    return improve(target, joined, rounds=ROUNDS, gain=0.1 * tol, free=free)


def free_axes(fit: EvaluatedMixture, k: int) -> int:
    """Along how many of its axes component k may move together with others."""
    return fit.parts.dim if fit.parts.dim <= FREE_BELOW else steepest(fit, k)[1]


def turned(target: Target, fit: EvaluatedMixture, k: int, free: int) -> EvaluatedMixture:
    """``fit`` with the nodes of component k turned so that their first axes are those along which it fits worst."""
    if free == fit.parts.dim:
        return fit
    roots = fit.parts.roots.copy()
    roots[k] = fit.parts.roots[k] @ steepest(fit, k)[0]
    new, only = Gaussians(fit.parts.means, roots, fit.parts.weights), np.array([k])
    values, slopes = at_nodes(target, new.take(only), fit.nodes)
    return fit.moved(new, only, values, slopes) if np.isfinite(values).all() else fit


def pruned(fit: EvaluatedMixture) -> EvaluatedMixture:
    """``fit`` without components of negligible weight."""
    keep = np.flatnonzero(fit.parts.weights > NEGLIGIBLE)
    return fit if len(keep) == len(fit.parts) else fit.take(keep)


def low_rank_gaussian(target: Target, starts: Array, root: Array, tol: float, seed: int) -> EvaluatedMixture:
    """The best Gaussian of that form, from the highest mode that the climbs find."""
    D = target.dim
    Z = nodes(2 * D + 20, D, seed)
    found = climb(target, starts, root, iterations=200)
    best = int(np.argmax(np.where(np.isfinite(found.values), found.values, -np.inf)))
    mean = found.points[best]
    fit = inside(target, mean, np.diag(np.diag(found.inverses[best])), Z)
    # Conditional scales from Stein's identity, coordinate by coordinate.
    deviations = np.diag(fit.parts.roots[0]) / np.sqrt(np.clip(-(fit.slopes[0] * Z).mean(axis=0), 0.01, 100.0))
    scaled = evaluated(target, one_gaussian(mean, np.diag(deviations)), Z)
    fit = scaled if scaled.bound > fit.bound else fit
    for _ in range(TURNS):
        before = fit.bound
        turned = one_gaussian(fit.parts.means[0], fit.parts.roots[0] @ steepest(fit, 0)[0])
        fit = improve(target, evaluated(target, turned, Z), rounds=8, gain=0.1 * tol, free=min(RANK, D))
        if fit.bound - before < tol:
            break
    return fit
