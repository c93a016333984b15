"""q of a Gaussian process without its data: at the sites of a kernel, or along a chain over time."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np

from klimb.errors import InputError, require
from klimb.latents.base import Posterior, draws_from
from klimb.latents.kernel import DenseFactor, kernel_factor
from klimb.latents.markov import Markov
from klimb.latents.weights_posterior import WeightPosterior, register, with_rest
from klimb.numerics.arrays import Array, Index, as_float
from klimb.numerics.dense import psd_square_root, row_blocks, symmetric_from_lower, threads_for


@dataclass(frozen=True, eq=False)
class CrossCovariances:
    """k(X_new, X) of ``n`` new inputs, made block by block of rows, and what factorises k(X, X)."""

    n: int
    width: int  # sites
    rows: Callable[[slice], Array]
    factor: Callable[[Array], DenseFactor]

    def blocks(self) -> Iterator[tuple[slice, Array]]:
        """All rows in blocks of some 16 MB."""
        for block in row_blocks(self.n, max(self.width // 16, 1)):
            yield block, self.rows(block)

    def dense(self) -> Array:
        return self.rows(slice(0, self.n))


@register
@dataclass(frozen=True, eq=False)
class KernelWeights(WeightPosterior):
    """f at n sites with prior covariance K: its posterior mean, and (a, gamma).

    ``L`` is k(X_new, X), ``rest`` the prior variances there, for ``joint`` k(X_new, X_new). Without K, which a model
    can make again, ``L`` must be `CrossCovariances`.
    """

    kind: ClassVar[str] = "kernel"
    mean: Array
    a: Array
    gamma: Array
    K: Array | None
    v: Array  # variances at the sites
    turned: Array = field(default_factory=lambda: np.zeros((0, 0)))  # (n, r): (k'turned)^2 corrects variances,
    signs: Array = field(default_factory=lambda: np.zeros(0))  # (r,): with these signs

    def moved(self, rows: Array, back: Array, centre: Array, root: Array) -> Self:
        """Where f moves by ``rows`` e at the sites, by k'``back`` e elsewhere, and e ~ N(centre, root root')."""
        values, vectors = np.linalg.eigh(root @ root.T - np.eye(len(root)))
        change = np.sign(values)
        turned, here = (one @ (vectors * np.sqrt(np.abs(values))) for one in (back, rows))
        return replace(self, mean=self.mean + rows @ centre, a=self.a + back @ centre, turned=turned, signs=change,
                       v=np.maximum(self.v + here**2 @ change, 0.0))

    @cached_property
    def _factor(self) -> DenseFactor:
        if self.K is None:
            raise InputError("this needs the prior covariance of the sites", "weights that were detached without it",
                             "Ask the model's latent, or predict at the inputs of the fit.")
        with threads_for(self.size):
            return kernel_factor(self.K, self.gamma)

    def without_prior(self) -> Self:
        return replace(self, K=None)

    def with_prior_of(self, other: WeightPosterior) -> Self:
        return replace(self, K=getattr(other, "K", None))

    def covariance(self) -> Array:
        """The n x n covariance of f at the sites."""
        with threads_for(self.size):
            V = symmetric_from_lower(self._factor.covariance())
        assert self.K is not None
        added = self._added(self.K)
        return V if added is None else np.asarray(V + added * self.signs @ added.T)

    def _added(self, cross: Array) -> Array | None:
        """Rows whose squares, with their signs, are what a correction adds to variances; None without one."""
        return cross @ self.turned if self.signs.size else None

    def covariances(self, rows: Index, columns: Index) -> Array:
        return self.v[rows] if np.array_equal(rows, columns) else self.covariance()[rows, columns]

    def _cross(self, L: Any) -> CrossCovariances:
        if isinstance(L, CrossCovariances):
            return L
        cross = as_float(L, "L", ndim=2)
        require(cross.shape[1] == self.size, f"L must have one column per site ({self.size})", f"shape {cross.shape}",
                "Pass k(X_new, X).")
        return CrossCovariances(len(cross), self.size, cross.__getitem__, lambda _: self._factor)

    def at(self, L: Any, rest: Any = 0.0) -> tuple[Array, Array]:
        cross = self._cross(L)
        m, explained = np.empty(cross.n), np.empty(cross.n)
        with threads_for(self.size):
            factor = cross.factor(self.gamma)
            for outer, block in cross.blocks():
                m[outer] = block @ self.a
                for rows in row_blocks(len(block), self.size):
                    explained[outer][rows] = factor.explained(block[rows])
                if (added := self._added(block)) is not None:
                    explained[outer] -= added**2 @ self.signs
            return m, np.maximum(rest - explained, 0.0)

    def joint(self, L: Any, rest: Any = 0.0) -> tuple[Array, Array]:
        cross = self._cross(L)
        if np.shape(rest) != (cross.n, cross.n):
            raise InputError(f"rest must be the {cross.n} x {cross.n} prior covariance of the new f",
                             f"shape {np.shape(rest)}", "Pass k(X_new, X_new).")
        with threads_for(self.size):
            dense = cross.dense()
            V, added = np.asarray(rest - cross.factor(self.gamma).explained_matrix(dense)), self._added(dense)
            return dense @ self.a, V if added is None else V + added * self.signs @ added.T

    def sample(self, n: int, rng: np.random.Generator) -> Array:
        return draws_from(self.mean, psd_square_root(self.covariance(), "the posterior covariance"), n, rng)


@register
@dataclass(frozen=True, eq=False)
class ChainWeights(WeightPosterior):
    """f at n times under a sum of Matern kernels: all in time linear in n. ``L`` are new times, in any order."""

    kind: ClassVar[str] = "chain"
    mean: Array
    a: Array
    gamma: Array
    times: Array
    variance: Array
    lengthscale: Array
    smoothness: Array

    @cached_property
    def _posterior(self) -> Posterior:
        latent = self._latent(self.times)
        factor = latent.factor(self.gamma)
        return Posterior(latent, self.a, self.gamma, self.mean, factor.variances(), np.nan, factor=factor)

    def _latent(self, times: Array) -> Markov:
        return Markov(times, self.variance, self.lengthscale, self.smoothness)

    def covariances(self, rows: Index, columns: Index) -> Array:
        if np.array_equal(rows, columns):
            return self._posterior.v[rows]
        return self._posterior.covariance()[rows, columns]

    def at(self, L: Any, rest: Any = 0.0) -> tuple[Array, Array]:
        q = self._posterior
        assert isinstance(q.latent, Markov)
        m, v = q.latent.predict(q, L)
        return m, v + rest

    def joint(self, L: Any, rest: Any = 0.0) -> tuple[Array, Array]:
        """By one chain through all times, on which the new ones have no sites."""
        new = as_float(L, "L").ravel()
        n = self.size
        both = self._latent(np.concatenate([self.times, new]))
        factor = both.factor(np.concatenate([self.gamma, np.zeros(len(new))]))
        unit = np.zeros((n + len(new), len(new)))
        unit[n:] = np.eye(len(new))
        V = factor.smooth(unit)[n:]
        return self.at(new)[0], with_rest(0.5 * (V + V.T), rest)

    def sample(self, n: int, rng: np.random.Generator) -> Array:
        return self._posterior.sample(n, rng)
