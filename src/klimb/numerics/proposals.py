"""Proposals for importance sampling: a t split at its mode, mixtures of t's fitted to weighted points, half lines."""

from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np
from scipy.special import chdtri, gammaln, ndtr, ndtri

from klimb.numerics.arrays import Array
from klimb.numerics.lowdiscrepancy import normal_draws
from klimb.numerics.surrogate import quadratics

DEGREES = 5.0  # of freedom: tails heavy enough for a posterior's, light enough not to waste points
SWEEPS = 30  # of EM
SHRINK = 0.1  # share of the covariance of all points that every component's covariance keeps


def student_log_density(squares: Array, d: int, log_det_root: float | Array, nu: float = DEGREES) -> Array:
    """Of a multivariate t from squared distances in units of its scale."""
    constant = gammaln(0.5 * (nu + d)) - gammaln(0.5 * nu) - 0.5 * d * np.log(nu * np.pi)
    return np.asarray(constant - log_det_root - 0.5 * (nu + d) * np.log1p(squares / nu))


@lru_cache(maxsize=8)  # one fit asks for the same draws again and again
def _student_draws(n: int, d: int, seed: int) -> tuple[Array, Array]:
    """Normal draws and the factors that make them a t, evenly spread together; not to be written into."""
    z = normal_draws(n, d + 1, seed=seed, symmetric=False)
    return z[:, 1:], np.sqrt(DEGREES / chdtri(DEGREES, ndtr(-z[:, 0])))


def split_normal(z: Array, widths: Array) -> Array:
    """Standard normal draws as those of axes with widths (a, b) to the left and right: a / (a + b) of them lie left."""
    a, b = widths[:, 0], widths[:, 1]
    p, share = ndtr(z), a / (a + b)
    left = a * ndtri(np.clip(0.5 * p / share, 1e-14, 0.5))
    right = b * ndtri(np.clip(1.0 - 0.5 * (1.0 - p) / (1.0 - share), 0.5, 1.0 - 1e-14))
    return np.where(p < share, left, right)


@dataclass(frozen=True, eq=False)
class SplitStudent:
    """theta = mode + A x, x a t whose axes have one width to the left and another to the right."""

    mode: Array
    axes: Array  # A
    widths: Array  # (d, 2)

    def draws(self, n: int, seed: int) -> Array:
        z, factor = _student_draws(n, len(self.mode), seed)
        return np.asarray(self.mode + (split_normal(z, self.widths) * factor[:, None]) @ self.axes.T)

    def log_density(self, theta: Array) -> Array:
        x = np.linalg.solve(self.axes, (theta - self.mode).T).T
        width = np.where(x < 0.0, self.widths[:, 0], self.widths[:, 1])
        volume = float(np.linalg.slogdet(self.axes)[1]) + float(np.log(0.5 * self.widths.sum(axis=1)).sum())
        return student_log_density(((x / width) ** 2).sum(axis=1), len(self.mode), volume)


@dataclass(frozen=True, eq=False)
class StudentMixture:
    """Multivariate t's with weights."""

    weights: Array  # (K,)
    means: Array  # (K, d)
    roots: Array  # (K, d, d), lower

    def draws(self, n: int, seed: int) -> Array:
        z, factor = _student_draws(n, self.means.shape[1], seed)
        # Points take turns by the weights, so that each component has its share to within one.
        edges = np.cumsum(self.weights)
        which = np.minimum(np.searchsorted(edges, (np.arange(n) + 0.5) / n), len(edges) - 1)
        which = np.random.default_rng(seed).permutation(which)
        return np.asarray(self.means[which] + factor[:, None] * np.einsum("nij,nj->ni", self.roots[which], z))

    def log_density(self, theta: Array) -> Array:
        x = (theta - self.means[:, None]) @ np.swapaxes(np.linalg.inv(self.roots), 1, 2)
        volumes = np.log(np.diagonal(self.roots, axis1=1, axis2=2)).sum(axis=1)[:, None]
        logs = student_log_density(np.einsum("knd,knd->kn", x, x), theta.shape[1], volumes)
        return np.asarray(np.logaddexp.reduce(np.log(self.weights)[:, None] + logs, axis=0))


def students_at(means: Array, root: Array) -> StudentMixture:
    """Equally likely t's of one shape."""
    return StudentMixture(np.full(len(means), 1.0 / len(means)), means, np.tile(root, (len(means), 1, 1)))


def fit_students(theta: Array, weights: Array, count: int, floor: Array) -> StudentMixture:
    """Up to ``count`` t's for weighted points, by EM from fixed parts; ``floor`` (d, d) keeps covariances off zero."""
    n, d = theta.shape
    w = weights / weights.sum()
    centre = w @ theta
    whole = (theta - centre).T @ (w[:, None] * (theta - centre)) + floor
    order = np.argsort((theta - centre) @ np.linalg.eigh(whole)[1][:, -1], kind="stable")
    part = np.empty(n, dtype=np.intp)
    part[order] = np.minimum((np.cumsum(w[order]) * count).astype(np.intp), count - 1)
    share = np.zeros((count, n))
    share[part, np.arange(n)] = 1.0
    scale = np.ones((count, n))
    # Where all points together have a covariance of one, sums of their squares give covariances and distances.
    unit = np.linalg.cholesky(whole)
    back, (i, j) = np.linalg.inv(unit), np.triu_indices(d)
    products, floor = quadratics((theta - centre) @ back.T).T, back @ floor @ back.T
    for _ in range(SWEEPS):
        mass = share @ w
        kept = mass > 1e-3
        share, scale, mass = share[kept], scale[kept], mass[kept]
        sums = (share * scale * w) @ products.T
        means, second = sums[:, 1 : d + 1] / sums[:, :1], np.empty((len(mass), d, d))
        second[:, i, j] = second[:, j, i] = sums[:, d + 1 :]
        own = (second - means[:, :, None] * sums[:, None, 1 : d + 1]) / mass[:, None, None]
        roots = np.linalg.cholesky(own * (1.0 - SHRINK) + SHRINK * np.eye(d) / len(means) + 0.1 * floor)
        half = np.linalg.inv(roots)
        P = np.swapaxes(half, 1, 2) @ half
        pull = np.einsum("kij,kj->ki", P, means)
        form = np.column_stack([(pull * means).sum(axis=1), -2.0 * pull, np.where(i == j, 1.0, 2.0) * P[:, i, j]])
        squares = np.maximum(form @ products, 0.0)
        volumes = np.log(np.diagonal(roots, axis1=1, axis2=2)).sum(axis=1)
        logs = np.log(mass / mass.sum())[:, None] + student_log_density(squares, d, volumes[:, None])
        share = np.exp(logs - logs.max(axis=0))
        share /= share.sum(axis=0)
        scale = (DEGREES + d) / (DEGREES + squares)
    return StudentMixture(mass / mass.sum(), centre + means @ unit.T, unit @ roots)


@dataclass(frozen=True, eq=False)
class HalfLines:
    """Coordinates x >= 0 of logs of scales that may be zero, power theta = centre + log sinh x; NaN: entry as it is.

    A scale near zero means the same as zero, so that its density, even in x, is smooth where log scales have a tail
    without an end. With a negative power it is the reciprocal that may be zero: a size that may be infinite. Where the
    density of x at zero is x^k, ``vanishing`` has k.
    """

    centre: Array
    power: Array
    vanishing: Array

    def _wherever(self, values: Array, transform: Any, otherwise: Array) -> Array:
        """``transform`` of the half lines' entries, with their centres and powers, ``otherwise`` elsewhere."""
        own = ~np.isnan(self.centre)
        out = np.array(otherwise, dtype=float)
        out[..., own] = transform(values[..., own], self.centre[own], self.power[own])
        return out

    def theta(self, x: Array) -> Array:
        return self._wherever(x, lambda x, c, p: (c + np.log(np.sinh(np.maximum(x, 1e-9)))) / p, x)

    def place(self, theta: Array) -> Array:
        return self._wherever(theta, lambda t, c, p: np.arcsinh(np.exp(p * t - c)), theta)

    def inside(self, x: Array) -> Array:
        """Reflected at zero."""
        return self._wherever(x, lambda x, c, p: np.abs(x), x)

    def slopes(self, x: Array) -> Array:
        """dx / dtheta."""
        return self._wherever(x, lambda x, c, p: p * np.tanh(np.maximum(x, 1e-9)), np.ones_like(x))

    def log_volume(self, x: Array) -> Array:
        """log |dtheta / dx|."""
        return np.asarray(-np.log(np.abs(self.slopes(x))).sum(axis=-1))

    def log_volume_slopes(self, x: Array) -> Array:
        """Its derivatives in x."""
        return self._wherever(x, lambda x, c, p: -2.0 / np.sinh(2.0 * np.maximum(x, 1e-9)), np.zeros_like(x))

    def log_vanishing(self, x: Array) -> tuple[Array, Array]:
        """The sum of k log tanh x, and its derivatives in x."""
        x = np.maximum(np.where(np.isnan(self.centre), np.inf, x), 1e-9)
        return np.log(np.tanh(x)) @ self.vanishing, 2.0 * self.vanishing / np.sinh(2.0 * np.minimum(x, 300.0))

    def folded(self, proposal: Any) -> Any:
        """A proposal on the whole space, reflected."""
        return FoldedProposal(proposal, self) if (~np.isnan(self.centre)).any() else proposal


@dataclass(frozen=True, eq=False)
class FoldedProposal:
    """Draws of a proposal, reflected at zero of half lines."""

    proposal: Any
    lines: HalfLines

    def draws(self, n: int, seed: int) -> Array:
        return self.lines.inside(self.proposal.draws(n, seed))

    def log_density(self, u: Array) -> Array:
        signs = product(*((1.0,) if np.isnan(c) else (1.0, -1.0) for c in self.lines.centre))
        return np.asarray(np.logaddexp.reduce([self.proposal.log_density(u * np.array(sign)) for sign in signs]))
