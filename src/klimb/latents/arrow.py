"""q of the weights of a linear model with one grouping factor, at a size linear in the number of levels."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from klimb.latents.weights_posterior import WeightPosterior, pooled_root, register, root_block_covariance, with_rest
from klimb.numerics.arrays import Array, Index
from klimb.numerics.dense import row_blocks, threads_for


@dataclass(frozen=True, eq=False)
class ArrowRows:
    """Rows of a design with one grouping factor: x'w + t'b of the level.

    ``X`` (n, B), ``codes`` (n,) the level of each row, -1 where it was never seen and adds nothing, ``values`` (n, k).
    Weights of ``sparse`` columns, a CSR matrix, come after those of ``X``; ``cells`` says where the entries of rows of
    the fit are among the cells of levels and sparse columns, padded to equal length.
    """

    X: Array
    codes: Index
    values: Array
    sparse: Any = None
    cells: Any = None

    def some(self, rows: Any) -> "ArrowRows":
        """Those of some places."""
        sparse, cells = (None if own is None else own[rows] for own in (self.sparse, self.cells))
        return ArrowRows(self.X[rows], self.codes[rows], self.values[rows], sparse, cells)

    def times(self, weights: Array) -> Array:
        """x'w + t'b for draws of the weights, one a row."""
        B, k = self.X.shape[1], self.values.shape[1]
        f = weights[:, :B] @ self.X.T
        if self.sparse is not None:
            crossed = weights[:, B : B + self.sparse.shape[1]]
            f, B = f + (self.sparse @ crossed.T).T, B + self.sparse.shape[1]
        if k and weights.shape[1] > B:
            levels = weights[:, B:].reshape(len(weights), -1, k)
            t = np.where((self.codes >= 0)[:, None], self.values, 0.0)
            f += np.einsum("nik,ik->ni", levels[:, np.maximum(self.codes, 0)], t)
        return np.asarray(f)


def third_moments(third: Array, L: Any, q: WeightPosterior) -> Array | None:
    """Third central moments of the rows of a design from those of the weights of q; None where they are not known.

    ``third[l]`` is of the shared weights and the coefficients of level l, ``third[0]`` of the shared ones first of all.
    A matrix stands for sums of cubes: its first column times cubes of the row along the rest (`leading_cubes`).
    """
    if not third.size:
        return None
    if third.ndim == 2:
        n = len(L.X) if isinstance(L, ArrowRows) else L.shape[0]
        cubes = (third[some, 0] @ q.push(L, third[some, 1:]) ** 3 for some in row_blocks(len(third), n))
        return sum(cubes, np.zeros(n))
    if not isinstance(L, ArrowRows):
        X = L if isinstance(L, np.ndarray) else L.dense_rows(slice(None))
        L = ArrowRows(X, np.full(len(X), -1), np.zeros((len(X), 0)))
    X, codes, values = L.X, L.codes, L.values
    seen, shared = codes >= 0, min(third.shape[1], X.shape[1])
    if L.sparse is not None or X[:, shared:].any() or (seen.any() and third.shape[1] != shared + values.shape[1]):
        return None
    if not seen.any():
        one = third[0, :shared, :shared, :shared]
        return np.asarray(np.einsum("abc,ia,ib,ic->i", one, *[X[:, :shared]] * 3, optimize=True))
    every, out = np.hstack([X, np.where(seen[:, None], values, 0.0)]), np.empty(len(X))
    for some in row_blocks(len(X), third[0].size):
        own = third[np.maximum(codes[some], 0)]
        out[some] = np.einsum("iabc,ia,ib,ic->i", own, *[every[some]] * 3, optimize=True)
    return out


class LevelPosterior(WeightPosterior):
    """q of shared weights w, made by ``n_shocks`` standard shocks e, then of coefficients of levels, given e."""

    by_levels: ClassVar[bool] = True
    shared: Array  # (B,), the mean of w
    level_mean: Array  # (L, k)
    level_cov: Array  # (L, k, k), given e

    @property
    @abstractmethod
    def n_shocks(self) -> int:
        """How many standard shocks w has."""

    @abstractmethod
    def moved_by(self, e: Array) -> tuple[Array, Array]:
        """What columns of shocks (n_shocks, n) move: w (B, n), and levels that follow it (L k, n)."""

    @abstractmethod
    def pulled_to(self, shared: Array, levels: Array) -> Array:
        """The transpose of ``moved_by``."""

    @cached_property
    def mean(self) -> Array:  # type: ignore[override]
        return np.concatenate([self.shared, self.level_mean.ravel()])

    @cached_property
    def level_roots(self) -> Array:
        """Roots of the covariances of the levels given w; a Cholesky factor would refuse an sd of zero."""
        values, vectors = np.linalg.eigh(self.level_cov)
        return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :])

    @property
    def dim(self) -> int:
        """Columns of a root of all weights: shocks, then those of each level."""
        return self.n_shocks + self.level_mean.size

    def from_root(self, e: Array) -> Array:
        """(dim, n) of independent standard normals as (size, n) of deviations of the weights."""
        shared, levels = self.moved_by(e[: self.n_shocks])
        own = self.level_roots @ e[self.n_shocks :].reshape(*self.level_mean.shape, e.shape[1])
        return np.vstack([shared, levels + own.reshape(levels.shape)])

    def to_root(self, u: Array) -> Array:
        """The transpose of ``from_root``."""
        levels = u[len(self.shared) :]
        own = np.swapaxes(self.level_roots, 1, 2) @ levels.reshape(*self.level_mean.shape, u.shape[1])
        return np.vstack([self.pulled_to(u[: len(self.shared)], levels), own.reshape(levels.shape)])

    def covariance(self) -> Array:
        """Of all weights, as one matrix."""
        root = self.from_root(np.eye(self.dim))
        return np.asarray(root @ root.T)

    def sample(self, n: int, rng: np.random.Generator) -> Array:
        e = np.hstack([rng.standard_normal((n, self.n_shocks)), rng.standard_normal((n, self.level_mean.size))])
        return self.mean + self.from_root(np.ascontiguousarray(e.T)).T

    def push(self, L: ArrowRows, weights: Array) -> Array:
        return L.times(weights)


@register
@dataclass(frozen=True, eq=False)
class ArrowWeights(LevelPosterior):
    """q of all weights: w = shared + root e, b_l = level_mean_l - pull_l e + noise with level_cov_l, e ~ N(0, I).

    ``shared`` (B,), ``root`` (B, R), ``level_mean`` (L, k), ``pull`` (L, k, R), ``level_cov`` (L, k, k).
    """

    kind: ClassVar[str] = "arrow"
    shared: Array
    root: Array
    level_mean: Array
    pull: Array
    level_cov: Array

    @property
    def n_shocks(self) -> int:
        return int(self.root.shape[1])

    def moved_by(self, e: Array) -> tuple[Array, Array]:
        return self.root @ e, -(self.pull.reshape(self.level_mean.size, -1) @ e)

    def pulled_to(self, shared: Array, levels: Array) -> Array:
        return np.asarray(self.root.T @ shared - self.pull.reshape(len(levels), -1).T @ levels)

    def sd(self) -> Array:
        own = np.diagonal(self.level_cov, axis1=1, axis2=2) + (self.pull**2).sum(axis=2)
        return np.asarray(np.sqrt(np.concatenate([(self.root**2).sum(axis=1), own.ravel()])))

    def _root_rows(self, index: Index) -> Array:
        """How weights move with e."""
        B, R = self.root.shape
        out = np.empty((len(index), R))
        levels = index >= B
        out[~levels] = self.root[index[~levels]]
        out[levels] = -self.pull.reshape(-1, R)[index[levels] - B]
        return out

    def covariances(self, rows: Index, columns: Index) -> Array:
        (B, R), k = self.root.shape, max(self.level_mean.shape[1], 1)
        out = np.empty(len(rows))
        for some in row_blocks(len(rows), 2 * max(R, 1)):
            out[some] = np.einsum("ij,ij->i", self._root_rows(rows[some]), self._root_rows(columns[some]))
        i, j = rows - B, columns - B
        same = np.flatnonzero((i >= 0) & (j >= 0) & (i // k == j // k))
        out[same] += self.level_cov[i[same] // k, i[same] % k, j[same] % k]
        return out

    def block_covariance(self, at: slice, k: int) -> Array:
        first, last, _ = at.indices(self.size)
        (B, R), own = self.root.shape, self.level_mean.shape[1]
        if last <= B:
            return root_block_covariance(self.root[at], k)
        if first >= B and k == own and (first - B) % k == 0:
            levels = slice((first - B) // k, (last - B) // k)
            pull = self.pull[levels].reshape(-1, R)
            return np.asarray(root_block_covariance(pull, k) + self.level_cov[levels].sum(axis=0))
        return super().block_covariance(at, k)

    def seen(self, L: ArrowRows, rows: slice) -> tuple[Array, Array, Index]:
        """How rows move with e, their values (0 for levels never seen) and a level of each."""
        codes = L.codes[rows]
        t = np.where((codes >= 0)[:, None], L.values[rows], 0.0)
        at = np.where(codes >= 0, codes, 0)
        moved = L.X[rows] @ self.root
        if len(self.level_mean):
            for j in range(t.shape[1]):
                moved -= t[:, j, None] * self.pull[at, j]
        return moved, t, at

    def at(self, L: ArrowRows, rest: Any = 0.0) -> tuple[Array, Array]:
        m, v = np.empty(len(L.X)), np.empty(len(L.X))
        with threads_for(len(self.shared)):
            for rows in row_blocks(len(m), 2 * max(len(self.shared), 1)):
                moved, t, at = self.seen(L, rows)
                m[rows] = L.X[rows] @ self.shared
                v[rows] = np.einsum("ij,ij->i", moved, moved)
                if len(self.level_mean):
                    m[rows] += np.einsum("ik,ik->i", t, self.level_mean[at])
                    v[rows] += own_variances(t, self.level_cov, at)
        return m, v + rest

    def joint(self, L: ArrowRows, rest: Any = 0.0) -> tuple[Array, Array]:
        with threads_for(len(self.shared)):
            moved, t, at = self.seen(L, slice(0, len(L.X)))
            m, V = L.X @ self.shared, moved @ moved.T
            if len(self.level_mean):
                m += np.einsum("ik,ik->i", t, self.level_mean[at])
                V += np.where(at[:, None] == at, np.einsum("ij,ijk->ik", t, self.level_cov[at]) @ t.T, 0.0)
        return m, with_rest(V, rest)

    def covariance_with(self, L: ArrowRows, at: slice) -> Array:
        moved, _, _ = self.seen(L, slice(0, len(L.X)))
        return np.asarray(moved @ self.root[at].T)

    @classmethod
    def pooled(cls, parts: Sequence[Any], weights: Array) -> WeightPosterior | None:
        """Covariances between different levels are not those of the mixture: they meet in no row."""
        shared, root = pooled_root([part.shared for part in parts], [part.root for part in parts], weights)
        if root.shape[0] != root.shape[1] or not np.diagonal(root).all():
            return None
        level_mean = np.tensordot(weights, [part.level_mean for part in parts], axes=1)
        cross, own = np.zeros((*level_mean.shape, len(shared))), np.zeros_like(parts[0].level_cov)
        for weight, part in zip(weights, parts, strict=True):
            away = part.level_mean - level_mean
            cross += weight * (away[:, :, None] * (part.shared - shared) - part.pull @ part.root.T)
            between = away[:, :, None] * away[:, None]
            own += weight * (part.pull @ np.swapaxes(part.pull, 1, 2) + part.level_cov + between)
        pull = np.asarray(-np.linalg.solve(root, cross.reshape(-1, len(shared)).T).T.reshape(cross.shape))
        return ArrowWeights(shared, root, level_mean, pull, own - pull @ np.swapaxes(pull, 1, 2))


@register
@dataclass(frozen=True, eq=False)
class DrawnWeights(WeightPosterior):
    """All mass at one point; rows are those of a design, or `ArrowRows`.

    >>> DrawnWeights(np.array([1.0, 2.0])).at(np.array([[1.0, -1.0]]), 0.5)
    (array([-1.]), array([0.5]))
    """

    kind: ClassVar[str] = "drawn"
    mean: Array

    def covariances(self, rows: Index, columns: Index) -> Array:
        return np.zeros(len(rows))

    def at(self, L: Any, rest: Any = 0.0) -> tuple[Array, Array]:
        m = self.push(L, self.mean[None])[0]
        return m, np.broadcast_to(np.asarray(rest, dtype=np.float64), m.shape).copy()

    def joint(self, L: Any, rest: Any = 0.0) -> tuple[Array, Array]:
        m = self.push(L, self.mean[None])[0]
        return m, with_rest(np.zeros((len(m), len(m))), rest)

    def covariance_with(self, L: Any, at: slice) -> Array:
        return np.zeros((len(self.push(L, self.mean[None])[0]), len(self.mean[at])))

    def sample(self, n: int, rng: np.random.Generator) -> Array:
        return np.tile(self.mean, (n, 1))

    def push(self, L: Any, weights: Array) -> Array:
        return L.times(weights) if isinstance(L, ArrowRows) else super().push(L, weights)


def own_variances(t: Array, blocks: Array, level: Index) -> Array:
    """t_i' blocks_l t_i."""
    if t.shape[1] == 1:
        return np.asarray(t[:, 0] ** 2 * blocks[level, 0, 0])
    return np.asarray(np.einsum("ij,ijk,ik->i", t, blocks[level], t))
