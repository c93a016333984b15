"""q of the weights without its data or its factor: what predictions, draws, contrasts, files and gradients need.

A latent makes one of a fitted posterior by ``detach``. What ``L`` is depends on the kind: rows of the design for
`DenseWeights` and `WideWeights`, `ArrowRows` for `ArrowWeights`, covariances with the sites for `KernelWeights`, times
for `ChainWeights`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, TypeVar

import numpy as np

from klimb._stored import stored
from klimb.errors import InputError
from klimb.latents.base import Posterior, draws_from
from klimb.linalg.matrix import DesignMatrix, as_design
from klimb.linalg.operators import as_operator
from klimb.numerics.arrays import Array, Index
from klimb.numerics.dense import row_blocks, threads_for
from klimb.numerics.lazy import scipy_sparse

MOST_STACKED = 1_000_000  # numbers, of rows times roots of several posteriors


class WeightPosterior(ABC):
    """A Gaussian over weights; its fields are arrays, so that it can be stored.

    ``L w + N(0, rest)`` are the functionals it is asked for; their prior means, where they have any beside L w, are the
    caller's to add.
    """

    kind: ClassVar[str]
    couples: ClassVar[bool] = False  # whether outputs that a site takes for independent are correlated
    lends: ClassVar[bool] = False  # whether what was added to it can be added to another, see `lent`
    by_levels: ClassVar[bool] = False  # whether some of the weights belong to levels, each to one
    cubes: Array = np.zeros((0, 0))  # its third central moments, if they are known: see `third_moments`
    points: Array = np.zeros((0, 0))  # draws of it with weights, if those are known: see `CutWeights`
    point_shares: Array = np.zeros(0)
    drifts: Array = np.zeros((0, 0))
    mean: Array

    @property
    def size(self) -> int:
        """How many weights there are."""
        return len(self.mean)

    def sd(self) -> Array:
        """Standard deviations of the weights."""
        every = np.arange(self.size)
        return np.sqrt(np.maximum(self.covariances(every, every), 0.0))

    def moments(self, at: slice) -> Moments:
        """Second moments of consecutive weights, those of one term."""
        return Moments(self, at)

    @abstractmethod
    def covariances(self, rows: Index, columns: Index) -> Array:
        """Cov(w_i, w_j) for pairs of indices i, j."""

    def block_covariance(self, at: slice, k: int) -> Array:
        """The sum over consecutive blocks of k weights of their covariances, (k, k)."""
        first, last, _ = at.indices(self.size)
        total = np.empty((k, k))
        for i, j in np.ndindex(k, k):
            total[i, j] = self.covariances(np.arange(first + i, last, k), np.arange(first + j, last, k)).sum()
        return total

    @abstractmethod
    def at(self, L: Any, rest: Any = 0.0) -> tuple[Array, Array]:
        """Means and variances of L w + N(0, rest), in bounded memory."""

    @classmethod
    def at_each(cls, parts: Sequence[Any], L: Sequence[Any], rest: Sequence[Any]) -> tuple[Array, Array]:
        """The same under each of several, each with functionals of its own, which may be the same object."""
        pairs = [part.at(own, other) for part, own, other in zip(parts, L, rest, strict=True)]
        return np.array([m for m, _ in pairs]), np.array([v for _, v in pairs])

    def within(self, L: Any, rest: Any = 0.0) -> Array:
        """The covariances (n, C, C) of the C outputs in each row."""
        return self.at(L, rest)[1][:, None, None]

    @abstractmethod
    def joint(self, L: Any, rest: Any = 0.0) -> tuple[Array, Array]:
        """Their mean and covariance matrix; ``rest`` is a vector (n,) of variances or a covariance (n, n)."""

    @abstractmethod
    def sample(self, n: int, rng: np.random.Generator) -> Array:
        """``n`` draws of the weights, one a row."""

    @classmethod
    def pooled(cls, parts: Sequence[Any], weights: Array) -> WeightPosterior | None:
        """One q with the means and covariances of a mixture, between weights that meet in a row; None without any."""
        del parts, weights
        return None

    def split(self) -> tuple[tuple[float, WeightPosterior], ...]:
        """Pieces with their shares, where tails are not those of one Gaussian; itself elsewhere."""
        return ((1.0, self),)

    def widened(self, rows: Array, cubes: Array) -> WeightPosterior:
        """With rows'rows added to the covariance, and with third moments."""
        from klimb.latents.corrected_weights import WidenedWeights

        return WidenedWeights(self.mean, self, rows, cubes)

    def lent(self, other: WeightPosterior) -> WeightPosterior:
        """``other`` with what was added here to a q that is much like it, in units of its sds; itself without any."""
        return other

    def without_prior(self) -> WeightPosterior:
        """Without what a model that knows its prior can make again; itself where that is nothing."""
        return self

    def with_prior_of(self, other: WeightPosterior) -> WeightPosterior:
        """With as much of the prior as a posterior under the same one has; itself where that is nothing."""
        del other
        return self

    def covariance_with(self, L: Any, at: slice) -> Array:
        """Cov(L w, w[at]), (n, size of at): what moves with the columns of some weights."""
        raise InputError("covariances of rows with weights need weights of a design", type(self).__name__,
                         "Use a model with explicit columns.")

    def push(self, L: Any, weights: Array) -> Array:
        """L w for draws of the weights, one a row."""
        return functionals(L, self.size).times(np.ascontiguousarray(weights.T)).T


Kind = TypeVar("Kind", bound=type[WeightPosterior])
WEIGHT_POSTERIORS: dict[str, type[WeightPosterior]] = {}


def register(cls: Kind) -> Kind:
    """Let files find a class of weights by its ``kind``."""
    WEIGHT_POSTERIORS[cls.kind] = cls
    return stored(f"weights.{cls.kind}")(cls)


@dataclass(frozen=True, eq=False)
class Moments:
    """Moments of the weights ``at`` under ``posterior``.

    ``explained``, where it is known, gives the sum over sites of gamma_i Cov(f_i, what these weights add to f_i) for
    some of them, as a slice. With Q their prior precision it is their number, less constraints, less tr(Q V).
    """

    posterior: WeightPosterior
    at: slice
    explained: Callable[[slice], float] | None = None

    @property
    def mean(self) -> Array:
        return self.posterior.mean[self.at]

    def variances(self) -> Array:
        """Var(w_i)."""
        every = np.arange(*self.at.indices(self.posterior.size))
        return self.posterior.covariances(every, every)

    def blocks(self, k: int, centre: Any = 0.0) -> Array:
        """The sum over blocks b of k consecutive weights of E[(b - c)(b - c)'], (k, k).

        ``centre`` holds c, (k,) where it is the same for all blocks, or one number for each of these weights.
        """
        mean = self.mean
        if k < 1 or len(mean) % k:
            raise InputError("k must divide the number of weights", f"{k} and {len(mean)}", "Take the term's own k.")
        away = mean.reshape(-1, k) - (np.reshape(centre, (-1, k)) if np.ndim(centre) else centre)
        return np.asarray(self.posterior.block_covariance(self.at, k) + away.T @ away)

    def pattern(self, rows: Index, columns: Index) -> Array:
        """E[w_i w_j] for pairs of indices, counted from the first of these weights."""
        first, mean = self.at.indices(self.posterior.size)[0], self.mean
        return np.asarray(self.posterior.covariances(rows + first, columns + first) + mean[rows] * mean[columns])


def with_rest(covariance: Array, rest: Any) -> Array:
    """``covariance`` plus a matrix, or plus variances on its diagonal; in place."""
    if np.ndim(rest) == 2:
        covariance += rest
    else:
        covariance.flat[:: len(covariance) + 1] += rest
    return covariance


def functionals(L: Any, n_weights: int) -> DesignMatrix:
    """Rows of a design, checked against the number of weights."""
    design = as_design(L, "L")
    if design.shape[1] != n_weights:
        raise InputError(f"L must have {n_weights} columns", f"shape {design.shape}", "There is one per weight.")
    return design


def pooled_root(means: Sequence[Array], roots: Sequence[Array], weights: Array) -> tuple[Array, Array]:
    """The mean of a mixture of Gaussians, and an upper triangular root of its covariance."""
    mean = np.asarray(weights @ np.array(means))
    pieces = [np.sqrt(weight) * np.column_stack([root, own - mean])
              for weight, own, root in zip(weights, means, roots, strict=True)]
    upper = np.asarray(np.linalg.qr(np.hstack(pieces)[::-1].T, mode="r"))
    return mean, np.ascontiguousarray(upper.T[::-1, ::-1])


def root_covariances(root: Array, rows: Index, columns: Index) -> Array:
    """Entries of root root' at pairs of indices, in bounded memory; a vector is a diagonal root."""
    if root.ndim == 1:
        return np.where(rows == columns, root[rows] ** 2, 0.0)
    out = np.empty(len(rows))
    for some in row_blocks(len(rows), 2 * root.shape[1]):
        out[some] = np.einsum("ij,ij->i", root[rows[some]], root[columns[some]])
    return out


def root_block_covariance(root: Array, k: int) -> Array:
    """The sum of R_b R_b' over blocks R_b of k consecutive rows of ``root``."""
    if root.ndim == 1:
        return np.diag((root.reshape(-1, k) ** 2).sum(axis=0))
    blocks = np.swapaxes(root.reshape(-1, k, root.shape[1]), 0, 1).reshape(k, -1)
    return np.asarray(blocks @ blocks.T)


@register
@dataclass(frozen=True, eq=False)
class DenseWeights(WeightPosterior):
    """N(mean, root root'), with a root of D x R, or of D numbers where it is diagonal."""

    kind: ClassVar[str] = "dense"
    mean: Array
    root: Array
    cubes: Array = field(default_factory=lambda: np.zeros((0, 0)))

    def __post_init__(self) -> None:
        # The order in which files hold it: products of another order round differently on some processors.
        object.__setattr__(self, "root", np.ascontiguousarray(self.root))

    @cached_property
    def _upper(self) -> bool:
        return self.root.shape == (self.size, self.size) and not np.tril(self.root, -1).any()

    def covariances(self, rows: Index, columns: Index) -> Array:
        return root_covariances(self.root, rows, columns)

    def block_covariance(self, at: slice, k: int) -> Array:
        return root_block_covariance(self.root[at], k)

    def at(self, L: Any, rest: Any = 0.0) -> tuple[Array, Array]:
        design = functionals(L, self.size)
        with threads_for(self.size):
            v, m = design.row_norms_squared(self.root, upper=self._upper, times=self.mean)
            return m, v + rest

    @classmethod
    def at_each(cls, parts: Sequence[Any], L: Sequence[Any], rest: Sequence[Any]) -> tuple[Array, Array]:
        one, shapes = L[0], {part.root.shape if type(part) is cls else () for part in parts}
        same = isinstance(one, np.ndarray) and all(own is one for own in L) and shapes == {(one.shape[1],) * 2}
        if not same or len(parts) * one.size > MOST_STACKED:
            return super().at_each(parts, L, rest)
        scaled = one @ np.array([part.root for part in parts])
        return (np.array([part.mean for part in parts]) @ one.T,
                np.einsum("kij,kij->ki", scaled, scaled) + np.array([np.broadcast_to(own, len(one)) for own in rest]))

    def joint(self, L: Any, rest: Any = 0.0) -> tuple[Array, Array]:
        design = functionals(L, self.size)
        with threads_for(self.size):
            rows = np.concatenate([block for _, block in design.scaled_blocks(self.root)])
            return design.times(self.mean), with_rest(np.asarray(rows @ rows.T), rest)

    def covariance_with(self, L: Any, at: slice) -> Array:
        return np.asarray((L @ self.root) @ self.root[at].T)

    @classmethod
    def pooled(cls, parts: Sequence[Any], weights: Array) -> WeightPosterior | None:
        if any(part.root.ndim == 1 for part in parts):
            return None
        mean, root = pooled_root([part.mean for part in parts], [part.root for part in parts], weights)
        return DenseWeights(mean, root)

    def widened(self, rows: Array, cubes: Array) -> WeightPosterior:
        root = np.diag(self.root) if self.root.ndim == 1 else self.root
        return DenseWeights(self.mean, np.asarray(np.linalg.qr(np.vstack([root.T, rows]), mode="r")).T, cubes)

    def sample(self, n: int, rng: np.random.Generator) -> Array:
        if self.root.ndim == 1:
            return np.asarray(self.mean + rng.standard_normal((n, self.size)) * self.root)
        return draws_from(self.mean, self.root, n, rng)


@register
@dataclass(frozen=True, eq=False)
class WideWeights(WeightPosterior):
    """More weights than data: V = S (I - down'down + up'up) S', with a row of ``down`` for every datum.

    ``root`` is S, a vector where the prior is diagonal; ``up`` has rows only where some gamma is negative. Differences
    are as exact as the prior is large. ``down`` and ``up`` cost as much as some steps of a fit, and are computed when
    they are first needed.
    """

    kind: ClassVar[str] = "wide"
    mean: Array
    root: Array
    down: Array
    up: Array

    @classmethod
    def later(cls, mean: Array, root: Array, made: Callable[[], tuple[Array, Array]]) -> WideWeights:
        """Whose ``down`` and ``up`` are ``made`` at need."""
        found = cls.__new__(cls)
        found.__dict__.update(mean=mean, root=root, _made=made)
        return found

    def __getattr__(self, name: str) -> Any:
        if name not in ("down", "up") or "_made" not in self.__dict__:
            raise AttributeError(name)
        down, up = map(np.ascontiguousarray, self.__dict__.pop("_made")())  # as files have them, for the same bits
        self.__dict__.update(down=down, up=up)
        return self.__dict__[name]

    def _rows(self, design: DesignMatrix) -> Iterator[tuple[slice, Array, Array, Array]]:
        """Blocks of L S with what data take from them and what negative sites give back."""
        for rows, block in design.scaled_blocks(self.root):
            yield rows, block, block @ self.down.T, block @ self.up.T

    def covariances(self, rows: Index, columns: Index) -> Array:
        total = root_covariances(self.root, rows, columns)
        for part, sign in ((self.down, -1.0), (self.up, 1.0)):
            pushed = self.root[:, None] * part.T if self.root.ndim == 1 else self.root @ part.T
            total = total + sign * root_covariances(pushed, rows, columns)
        return np.asarray(total)

    def at(self, L: Any, rest: Any = 0.0) -> tuple[Array, Array]:
        design = functionals(L, self.size)
        v = np.empty(design.shape[0])
        with threads_for(len(self.down)):
            for rows, own, taken, given in self._rows(design):
                v[rows] = np.einsum("ij,ij->i", own, own) - np.einsum("ij,ij->i", taken, taken)
                v[rows] += np.einsum("ij,ij->i", given, given)
            return design.times(self.mean), np.maximum(v, 0.0) + rest

    def joint(self, L: Any, rest: Any = 0.0) -> tuple[Array, Array]:
        design = functionals(L, self.size)
        with threads_for(len(self.down)):
            parts = list(self._rows(design))
            own, taken, given = (np.concatenate([part[i] for part in parts]) for i in (1, 2, 3))
            return design.times(self.mean), with_rest(own @ own.T - taken @ taken.T + given @ given.T, rest)

    def covariance_with(self, L: Any, at: slice) -> Array:
        own = L * self.root if self.root.ndim == 1 else L @ self.root
        right = np.diag(self.root)[at] if self.root.ndim == 1 else self.root[at]
        total = own @ right.T
        for part, sign in ((self.down, -1.0), (self.up, 1.0)):
            total = total + sign * (own @ part.T) @ (part @ right.T)
        return np.asarray(total)

    def sample(self, n: int, rng: np.random.Generator) -> Array:
        """z - Q (1 - sqrt(1 - lambda)) Q'z has covariance I - Q lambda Q', which is all that data change."""
        rows = np.vstack([self.down, self.up])
        signs = np.concatenate([np.ones(len(self.down)), -np.ones(len(self.up))])
        Q, R = np.linalg.qr(rows.T)
        values, vectors = np.linalg.eigh((R * signs) @ R.T)
        Q = Q @ vectors
        shrink = 1.0 - np.sqrt(np.maximum(1.0 - values, 0.0))
        z = rng.standard_normal((n, rows.shape[1]))
        z -= ((z @ Q) * shrink) @ Q.T
        return np.asarray(self.mean + (z * self.root if self.root.ndim == 1 else z @ self.root.T))


@dataclass(frozen=True, eq=False)
class AttachedWeights(WeightPosterior):
    """The weights of a posterior that is kept, with its data. Variances that are estimated aim at ``accuracy``.

    ``L`` are rows of a design, stored or known by their products.
    """

    kind: ClassVar[str] = "attached"
    unstored: ClassVar[str] = "weights that are known by products with their data alone"
    posterior: Posterior
    accuracy: float = 0.01

    @cached_property
    def mean(self) -> Array:  # type: ignore[override]
        return self.posterior.mean

    def covariances(self, rows: Index, columns: Index) -> Array:
        if not np.array_equal(rows, columns):
            raise self._too_many("covariances between weights")
        count = len(rows)
        return self.at(scipy_sparse.csr_array((np.ones(count), (np.arange(count), rows)), shape=(count, self.size)))[1]

    def at(self, L: Any, rest: Any = 0.0) -> tuple[Array, Array]:
        latent: Any = self.posterior.latent
        m, v = latent.predict(self.posterior, L, *([self.accuracy] if latent.by_products else []))
        return m, v + rest

    def joint(self, L: Any, rest: Any = 0.0) -> tuple[Array, Array]:
        raise self._too_many("joint covariances")

    def sample(self, n: int, rng: np.random.Generator) -> Array:
        return self.posterior.sample(n, rng)

    def push(self, L: Any, weights: Array) -> Array:
        if isinstance(L, DesignMatrix):
            return super().push(L, weights)
        return np.asarray(as_operator(L, "L").times(np.ascontiguousarray(weights.T)).T)

    def _too_many(self, what: str) -> InputError:
        return InputError(f"{what} need the covariance of all weights", f"{self.size:,} weights, fitted without it",
                          "Ask for variances or draws, or fit fewer columns.")
