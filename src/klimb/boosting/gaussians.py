"""Mixtures of Gaussians, their nodes, and what a run writes down after every accepted step."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, TypeAlias

import numpy as np

from klimb.boosting.target import Target
from klimb.numerics.arrays import Array
from klimb.numerics.lowdiscrepancy import normal_draws

LOG_2PI = float(np.log(2.0 * np.pi))
CHUNK = 1 << 22  # numbers in one block of work


@dataclass(frozen=True, eq=False)
class Gaussians:
    """q = sum_k weights[k] N(means[k], roots[k] roots[k]'); a root is any invertible square matrix."""
    means: Array  # K x D
    roots: Array  # K x D x D
    weights: Any = None  # K, equal unless given; may be zero

    def __post_init__(self) -> None:
        if self.weights is None:
            object.__setattr__(self, "weights", np.full(len(self), 1.0 / max(len(self), 1)))

    def __len__(self) -> int:
        return len(self.means)

    @property
    def dim(self) -> int:
        return int(self.means.shape[1])

    @cached_property
    def inverse_roots(self) -> Array:
        return np.asarray(np.linalg.inv(self.roots))

    @cached_property
    def log_peaks(self) -> Array:
        """Log densities at the means."""
        return np.asarray(-np.linalg.slogdet(self.roots)[1] - 0.5 * self.dim * LOG_2PI)

    @property
    def covariances(self) -> Array:
        return np.asarray(self.roots @ self.roots.transpose(0, 2, 1))

    @property
    def deviations(self) -> Array:
        """Standard deviations, K x D."""
        return np.asarray(np.sqrt(np.einsum("kde,kde->kd", self.roots, self.roots)))

    def whitened(self, X: Array) -> Array:
        """roots[k]^-1 (x_n - means[k]), K x N x D."""
        return np.asarray(np.matmul(X[None] - self.means[:, None], self.inverse_roots.transpose(0, 2, 1)))

    def log_densities(self, X: Array) -> Array:
        """log N_k(x_n), K x N."""
        step = max(1, CHUNK // max(1, len(self) * self.dim))
        parts = []
        for begin in range(0, len(X), step):
            white = self.whitened(X[begin : begin + step])
            parts.append(self.log_peaks[:, None] - 0.5 * np.einsum("knd,knd->kn", white, white))
        return np.concatenate(parts, axis=1) if parts else np.zeros((len(self), 0))

    def log_density(self, X: Array) -> Array:
        """log q(x_n)."""
        return log_mixture(self.weights, self.log_densities(X))

    def with_slopes(self, X: Array) -> tuple[Array, Array]:
        """log q and its gradient at the rows of ``X``."""
        white = self.whitened(X)
        terms = self.log_peaks[:, None] - 0.5 * np.einsum("knd,knd->kn", white, white)
        log_q = log_mixture(self.weights, terms)
        share = self.weights[:, None] * np.exp(np.minimum(terms - log_q, 50.0))
        return log_q, -np.matmul(share[:, :, None] * white, self.inverse_roots).sum(axis=0)

    def moments(self) -> tuple[Array, Array]:
        """Mean and covariance of q."""
        mean, between = moments(self.weights, self.means)
        return mean, np.einsum("k,kde->de", self.weights, self.covariances) + between

    def at(self, Z: Array) -> Array:
        """means[k] + roots[k] z_s, K x S x D."""
        return np.asarray(self.means[:, None] + np.matmul(Z, self.roots.transpose(0, 2, 1)))

    def draws(self, n: int, seed: int) -> Array:
        """``n`` evenly spread draws, about as many of each component as its weight says."""
        owner = np.searchsorted(np.cumsum(self.weights)[:-1], (np.arange(n) + 0.5) / n)
        z = normal_draws(n, self.dim, seed=seed)
        mixed = np.argsort((np.arange(n) * 0.6180339887498949) % 1.0, kind="stable")  # z and owner in unlike orders
        out = self.means[owner]
        for k, root in enumerate(self.roots):
            own = owner == k
            out[own] += z[mixed[own]] @ root.T
        return np.asarray(out)

    def weighted(self, weights: Array) -> "Gaussians":
        return Gaussians(self.means, self.roots, weights)

    def take(self, index: Any) -> "Gaussians":
        """The components ``index``, their weights normalised."""
        weights = self.weights[index]
        total = weights.sum()
        return Gaussians(self.means[index], self.roots[index], weights / total if total > 0.0 else None)

    def joined(self, other: "Gaussians", share: float = 0.5) -> "Gaussians":
        """(1 - share) of this and ``share`` of ``other``."""
        return Gaussians(np.concatenate([self.means, other.means]), np.concatenate([self.roots, other.roots]),
                         np.concatenate([(1.0 - share) * self.weights, share * other.weights]))

    def moved(self, a: Array, T: Array, weights: Array | None = None) -> "Gaussians":
        """Means moved by roots[k] a[k], roots turned and stretched to roots[k] T[k]."""
        return Gaussians(self.means + np.einsum("kde,ke->kd", self.roots, a), np.matmul(self.roots, T),
                         self.weights if weights is None else weights)

    def widened(self, far: float) -> "Gaussians":
        """The same, wide enough that their mass lies ``far`` standard deviations outside its shell of sqrt(D)."""
        return Gaussians(self.means, (1.0 + far / np.sqrt(self.dim)) * self.roots, self.weights)


def one_gaussian(mean: Array, root: Array) -> Gaussians:
    """N(mean, root root')."""
    return Gaussians(mean[None], root[None])


def log_mixture(weights: Array, log_densities: Array) -> Array:
    """log sum_k w_k N_k from K x N log densities; weights may be zero."""
    with np.errstate(divide="ignore"):
        terms = log_densities + np.log(weights)[:, None]
    top = terms.max(axis=0)
    safe = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(divide="ignore"):
        return np.asarray(safe + np.log(np.exp(terms - safe).sum(axis=0)))


def moments(share: Array, X: Array) -> tuple[Array, Array]:
    """Mean and covariance of points with these shares."""
    mean = share @ X
    centred = X - mean
    return mean, (centred * share[:, None]).T @ centred


def divergence(new: Gaussians, old: Gaussians) -> Array:
    """KL(new_k || old_k), one per pair."""
    T = np.matmul(old.inverse_roots, new.roots)
    shift = np.einsum("kde,ke->kd", old.inverse_roots, new.means - old.means)
    spread = np.einsum("kde,kde->k", T, T) - new.dim - 2 * np.linalg.slogdet(T)[1]
    return np.asarray(0.5 * (spread + (shift**2).sum(axis=1)))


@lru_cache(maxsize=64)
def nodes(n: int, dim: int, seed: int = 0) -> Array:
    """``n`` nodes (rounded up to an even number above 2 ``dim``), whose average z is 0 and average zz' is I exactly."""
    n = max(n, 2 * dim + 2)
    n += n % 2
    z = normal_draws(n, dim, seed=seed)
    z = np.linalg.solve(np.linalg.cholesky(z.T @ z / n), z.T).T
    z.setflags(write=False)
    return z


def node_set(dim: int, seed: int, times: int = 1) -> Array:
    """The nodes of a component: enough to see more than a quadratic, few enough to be cheap; or ``times`` as many."""
    return nodes(times * (max(32, 16 * dim) if dim <= 6 else max(96, 2 * dim + 40)), dim, seed)


@dataclass(frozen=True, eq=False)
class BoostStep:
    """The mixture after a step: its size, weights, bound with standard error, and the evaluations used so far.

    ``gap`` estimates KL(q || p) and ``duality_gap`` is the bound on it that Frank-Wolfe algorithms stop by (Locatello
    et al. 2018): the largest log p - log q less its average, at the points the step had.
    """

    n_components: int
    weights: Array
    bound: float
    bound_error: float
    n_values: int
    n_gradients: int
    gap: float
    duality_gap: float
    parts: Gaussians = field(repr=False)


Watch: TypeAlias = Callable[[BoostStep], None]


def gaps(residual: Array, share: Array) -> tuple[float, float]:
    """log E e^r - E r and max r - E r of the residuals r = log p - log q: an estimate of KL(q || p), and its bound."""
    inside = np.isfinite(residual) & (share > 0)
    r, w = residual[inside], share[inside] / share[inside].sum()
    top, average = float(r.max()), float(w @ r)
    return top + float(np.log(w @ np.exp(r - top))) - average, top - average


def recorded(target: Target, parts: Gaussians, bound: float, error: float, residual: Array, share: Array,
             watch: Watch) -> BoostStep:
    """The record of a mixture by its residuals log p - log q at points with these shares, told to who watches."""
    step = BoostStep(len(parts), parts.weights, bound, error, target.n_values, target.n_gradients,
                     *gaps(residual, share), parts)
    watch(step)
    return step


def step_of(target: Target, parts: Gaussians, Z: Array, watch: Watch = lambda _: None,
            values: Array | None = None) -> BoostStep:
    """The same by log p at the nodes ``Z`` of the components, K x S ``values`` where they are known."""
    X, shape, weights = parts.at(Z).reshape(-1, parts.dim), (len(parts), len(Z)), parts.weights
    values = target.values(X).reshape(shape) if values is None else values
    residual = values - parts.log_density(X).reshape(shape)
    used, bound, error = weights > 0, -np.inf, np.inf
    if np.isfinite(residual[used]).all():
        bound = float(weights[used] @ residual[used].mean(axis=1))
        error = float(np.sqrt(weights[used] ** 2 @ residual[used].var(axis=1) / len(Z)))
    share = np.repeat(weights / len(Z), len(Z))
    return recorded(target, parts, bound, error, residual.ravel(), share, watch)
