"""Where the next component might go: many candidates, screened at points that are already paid for.

The points come from q, so that reweighting them by h/q gives the bound of (1 - alpha) q + alpha h for a candidate h.
"""

from typing import NamedTuple, TypeAlias

import numpy as np

from klimb.boosting.gaussians import Gaussians, gaps, log_mixture, moments
from klimb.boosting.refine import EvaluatedMixture
from klimb.boosting.target import Target
from klimb.numerics.arrays import Array
from klimb.numerics.lazy import scipy_optimize
from klimb.numerics.lowdiscrepancy import normal_draws

SHARES = np.exp(np.linspace(np.log(1e-3), np.log(0.6), 14))  # weights tried in the screening
# Candidates along a direction u of a component: centre moved by s L u, spread along u scaled by c.
ALONG = ((0.0, 2.5), (0.0, 0.4), (1.0, 0.6), (-1.0, 0.6), (2.0, 0.7), (-2.0, 0.7), (1.5, 1.2), (-1.5, 1.2))
SMALL = 0.5  # root of a candidate at a node, relative to the component that the node belongs to
MATTERS = 0.04  # share of the steepest direction's variance from which another direction matters
FLOOR = 0.05  # least variance of a candidate fitted to the excess, relative to that component
BEYOND = (2.0, 6.0)  # how far outside a component's shell an outlook goes, in its standard deviations
OUTLOOK = 4  # points of an outlook, in nodes of a component (at least LOOKS per component)
LOOKS = 8
LOGITS = (-14.0, 8.0)  # of the share of what is new
THIN = 3.0  # q counts as missing what is more than this many times as dense under the target
Option: TypeAlias = tuple[Array, Array, int]  # mean and root of a candidate, and the component that it came from


class Outlook(NamedTuple):
    """Points with log p, ``per_part`` of each of some ``parts`` that are wider than a mixture: what it never sees."""
    parts: Gaussians
    per_part: int
    X: Array
    values: Array


def looked_out(target: Target, fit: EvaluatedMixture, seed: int) -> Outlook:
    """Points around every component, two and six standard deviations outside the shell that holds its mass."""
    K, D = len(fit.parts), fit.parts.dim
    per_part = max(LOOKS, OUTLOOK * fit.values.shape[1] // (K * len(BEYOND)))
    wide = fit.parts.widened(BEYOND[0]).joined(fit.parts.widened(BEYOND[1]))
    X = wide.at(normal_draws(per_part, D, seed=seed)).reshape(-1, D)
    return Outlook(wide, per_part, X, target.values(X, far=True))


class Pool(NamedTuple):
    """Points drawn from q: probability of each, owner, log p - log q and log q."""
    X: Array
    share: Array
    owner: Array
    residual: Array
    log_q: Array

    @classmethod
    def of(cls, *fits: EvaluatedMixture, outlook: Outlook | None = None) -> "Pool":
        """The nodes of several evaluations of one mixture, and the points of an outlook."""
        q = fits[0].parts
        X = np.concatenate([fit.points.reshape(-1, q.dim) for fit in fits])
        owner = np.concatenate([np.repeat(np.arange(len(q)), fit.values.shape[1]) for fit in fits])
        residual = np.concatenate([fit.residual.ravel() for fit in fits])
        log_q = np.concatenate([fit.log_q.ravel() for fit in fits])
        share = q.weights[owner] / np.bincount(owner)[owner]
        if outlook is not None:
            X = np.concatenate([X, outlook.X])
            terms = q.log_densities(X)
            log_q = log_mixture(q.weights, terms)
            residual = np.concatenate([residual, outlook.values - log_q[len(residual) :]])
            owner = np.append(owner, np.argmax(terms[:, len(owner) :], axis=0))
            counts = np.concatenate([np.full(len(terms), sum(fit.values.shape[1] for fit in fits)),
                                     np.full(len(outlook.parts), outlook.per_part)])
            drawn = log_mixture(counts.astype(float), np.concatenate([terms, outlook.parts.log_densities(X)]))
            share = np.exp(log_q - drawn)
        inside = np.isfinite(residual)
        return cls(X[inside], share[inside] / share[inside].sum(), owner[inside], residual[inside], log_q[inside])

    @property
    def remaining(self) -> float:
        """An estimate of KL(q || p). Blind to what no point has seen."""
        return gaps(self.residual, self.share)[0]

    @property
    def missing(self) -> float:
        """The share of p where q has less than a third of it."""
        weight = self.target_share
        return float(weight[weight > THIN * self.share].sum())

    @property
    def excess(self) -> Array:
        """(p/q - 1)+ times q, as shares: where q has too little mass."""
        return np.asarray(np.maximum(self.target_share - self.share, 0.0))

    @property
    def target_share(self) -> Array:
        """The probability of each point under p."""
        weight = self.share * np.exp(self.residual - self.residual.max())
        return np.asarray(weight / weight.sum())


def candidates(fit: EvaluatedMixture, pool: Pool, n: int) -> tuple[Gaussians, Array]:
    """The ``n`` most promising of many candidates and one where p/q has most mass; the component each came from."""
    options = _around_nodes(fit, pool)
    for k in np.argsort(-(fit.parts.weights * fit.residual.var(axis=1)))[:3]:
        options += _along_directions(fit, int(k))
    means, roots, parents = zip(*options, strict=True)
    parts = Gaussians(np.stack(means), np.stack(roots))
    gains = screened(pool, parts)
    # The first is evaluated whatever the screening says: the pool is thin where it sits.
    kept = [0, *[i for i in np.argsort(-gains) if i > 0][:n]]
    return parts.take(kept), np.array(parents)[kept]


def screened(pool: Pool, parts: Gaussians) -> Array:
    """For each candidate the estimated gain of the bound at its best weight, less its standard error."""
    values = pool.residual + pool.log_q
    current = float(pool.share @ pool.residual)
    found = np.empty(len(parts))
    for j, log_h in enumerate(parts.log_densities(pool.X)):
        ratio = pool.share * np.exp(np.minimum(log_h - pool.log_q, 600.0))
        total = ratio.sum()
        if not total > 0:
            found[j] = -np.inf
            continue
        ratio = ratio / total
        best = -np.inf
        for a in SHARES:
            log_mixed = np.logaddexp(np.log1p(-a) + pool.log_q, np.log(a) + log_h)
            weight = (1.0 - a) * pool.share + a * ratio
            term = values - log_mixed
            centre = float(weight @ term)
            # what the self-normalised part adds to the error of the average
            best = max(best, centre - current - a * float(np.sqrt(np.sum((ratio * (term - centre)) ** 2))))
        found[j] = best
    return found


def _around_nodes(fit: EvaluatedMixture, pool: Pool) -> list[Option]:
    """Small ones at the two points that carry most of the importance weight, and the moments of the excess there."""
    D = fit.parts.dim
    with np.errstate(divide="ignore"):
        mass = np.log(pool.share) + pool.residual
    excess = pool.excess
    left = np.ones(len(pool.X), dtype=bool)
    nodes, moments = list[Option](), list[Option]()
    for _ in range(2):
        if not left.any():
            break
        top = int(np.flatnonzero(left)[np.argmax(mass[left])])
        owner = int(pool.owner[top])
        near = fit.parts.take([owner])
        white = np.linalg.norm((pool.X - pool.X[top]) @ near.inverse_roots[0].T, axis=1)
        nodes.append((pool.X[top], SMALL ** (1.0 if D <= 4 else 4.0 / D) * near.roots[0], owner))
        for reach in (1.0, 0.5):
            pull = excess * np.exp(-0.5 * (white / reach) ** 2 / max(1.0, 0.5 * D))
            if pull.sum() > 0:
                moments.append((*_moments(pool.X, pull / pull.sum(), near.roots[0]), owner))
        left &= white > 1.5 * np.sqrt(D)
    return nodes + moments


def _moments(X: Array, share: Array, root: Array) -> tuple[Array, Array]:
    mean, cov = moments(share, X)
    # Few points carry the excess: shrink towards the owner's covariance by what they are worth.
    worth = 1.0 / float(share @ share)
    trust = worth / (worth + X.shape[1] + 1.0)
    return mean, np.linalg.cholesky(trust * cov + ((1.0 - trust) * 0.5 + FLOOR) * root @ root.T)


def _along_directions(fit: EvaluatedMixture, k: int) -> list[Option]:
    """Component k moved and stretched along the directions in which the slope of log p - log q varies most."""
    mean, root = fit.parts.means[k], fit.parts.roots[k]
    basis = steepest(fit, k)[0]
    found = []
    for first in ([0], [1])[: len(mean)]:
        turned = root @ np.concatenate([basis[:, first], np.delete(basis, first, axis=1)], axis=1)
        for shift, stretch in ALONG:
            stretched = turned.copy()
            stretched[:, 0] *= stretch
            found.append((mean + shift * turned[:, 0], stretched, k))
    D = len(mean)
    return [*found, *((mean, factor ** (1.0 if D <= 4 else 4.0 / D) * root, k) for factor in (2.0, 0.5))]


def steepest(fit: EvaluatedMixture, k: int) -> tuple[Array, int]:
    """Whitened directions of component k, as columns, by how much the slope of log p - log q varies along them.

    And how many of them matter: along the others p/q is constant, and no mixture is needed.
    """
    slope = fit.slopes[k] - fit.parts.with_slopes(fit.points[k])[1] @ fit.parts.roots[k]
    variances, basis = np.linalg.eigh(slope.T @ slope)
    return np.asarray(basis[:, ::-1]), int(np.count_nonzero(variances > MATTERS * variances[-1]))


def best_share(fit: EvaluatedMixture, new: EvaluatedMixture) -> tuple[float, float]:
    """The share alpha of ``new`` with the best bound of (1 - alpha) fit + alpha new ([G] Eq. (7)), and the gain."""
    at_old, at_new = (one.points.reshape(-1, fit.parts.dim) for one in (fit, new))
    q_old, q_new = fit.log_q.ravel(), fit.parts.log_density(at_new)
    h_old, h_new = new.parts.log_density(at_old), new.log_q.ravel()
    weight_old, weight_new = (np.repeat(one.parts.weights / one.values.shape[1], one.values.shape[1])
                              for one in (fit, new))
    values_old, values_new = fit.values.ravel(), new.values.ravel()

    def bound(logit: float) -> float:
        log_a, log_b = -np.logaddexp(0.0, -logit), -np.logaddexp(0.0, logit)
        a = float(np.exp(log_a))
        old = values_old - np.logaddexp(log_b + q_old, log_a + h_old)
        fresh = values_new - np.logaddexp(log_b + q_new, log_a + h_new)
        return (1.0 - a) * float(weight_old @ old) + a * float(weight_new @ fresh)

    found = scipy_optimize.minimize_scalar(lambda logit: -bound(logit), bounds=LOGITS, method="bounded",
                                           options={"xatol": 1e-4})
    logit = round(float(found.x), 3)  # rounding errors end here
    return float(1.0 / (1.0 + np.exp(-logit))), bound(logit) - fit.bound
