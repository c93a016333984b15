"""Linear models with one grouping factor of any number of levels: cost linear in rows and levels.

    f_i = x_i'w + t_i'b_l(i),    w ~ N(mean, cov),    b_l ~ N(0, group_cov) for every level l

The posterior precision of (w, b_1, ..., b_L) is an arrow: a dense border for w, and a block of its own for each level,
because no row belongs to two levels. Levels are eliminated first, each by itself; what is left has the size of w.
"""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from klimb.errors import InputError, NotPositiveDefiniteError, require
from klimb.latents.arrow import ArrowRows, ArrowWeights, LevelPosterior, own_variances
from klimb.latents.base import Factor, Latent, Posterior, checked_outputs, factor_of, one_value, sites_of, variances_at
from klimb.latents.coordinates import LARGEST_DENSE, Coordinates, WeightCoordinates
from klimb.latents.costs import Option, Shape, arrow
from klimb.latents.linear import LinearParts, WeightPrior, dense_rows
from klimb.latents.shocks import Shocks
from klimb.linalg.matrix import DenseDesign
from klimb.numerics.arrays import Array, as_float, slices
from klimb.numerics.dense import cholesky, log_det_from_cholesky, row_blocks, triangular_inverse
from klimb.numerics.lazy import scipy_sparse

FEW = 20_000  # numbers up to which sums over levels column by column cost less than a sparse matrix
BLOCK = 65_536  # rows of which that is made at a time


def sorted_by_level(codes: npt.NDArray[np.intp], n_levels: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """The order of rows by their levels, and where the runs of the levels that occur begin in it."""
    order = np.argsort(codes.astype(np.uint16) if n_levels <= 1 << 16 else codes, kind="stable")  # a radix sort
    return order, np.flatnonzero(np.diff(codes[order], prepend=-1))


def level_sums(codes: npt.NDArray[np.intp], n_levels: int, weights: Array, columns: Array) -> Array:
    """Sums over the rows of every level of ``weights`` times ``columns`` (n, B): (L, B); 0 for a level without rows."""
    out = np.zeros((n_levels, columns.shape[1]))
    if columns.size <= FEW or columns.shape[1] == 1:
        for j, column in enumerate(columns.T):
            out[:, j] = np.bincount(codes, weights * column, n_levels)
        return out
    for rows in slices(len(codes), max(BLOCK, n_levels)):
        n = len(codes[rows])
        place = scipy_sparse.csc_array((weights[rows], codes[rows], np.arange(n + 1)), shape=(n_levels, n))
        out += place @ columns[rows]
    return out


class MixedFactor(Factor):
    """The arrow I + Z' G Z in whitened coordinates: D_l for the levels, C_l beside the border, S after elimination."""

    def __init__(self, latent: Mixed, gamma: Array) -> None:
        self.gamma = gamma
        self._latent = latent
        X, R, values = latent.shared, latent.group_root, latent.values
        D, C = (np.stack([latent.level_sums(gamma * value, part) for value in values.T], axis=1)
                for part in (values, X.values))  # (L, k, k) and (L, k, B)
        gram = latent.prior.whiten(X.weighted_gram(gamma))
        self.D_inverse, self.T, self.root, self.logdet = eliminated(R.T @ D @ R, latent.whitened_rows(R.T @ C), gram)
        # In units of the weights: how w follows its shocks, how levels follow those, and levels given them.
        self.to_root = latent.prior.root_times(np.ascontiguousarray(self.root))
        self.pull, self.level_cov = R @ (self.T @ self.root), R @ self.D_inverse @ R.T

    def residual_rows(self, rows: slice) -> Array:
        """(z_i - T_l't_i)' root, z_i whitened: what is left of rows once their level's own coefficients are known."""
        latent = self._latent
        U, values, level = latent.X[rows] @ self.to_root, latent.values[rows], latent.codes[rows]
        for j in range(values.shape[1]):
            U -= values[:, j, None] * self.pull[level, j]
        return np.asarray(U)

    def variances(self) -> Array:
        latent = self._latent
        v = np.empty(latent.n_sites)
        for rows in row_blocks(latent.n_sites, 2 * latent.X.shape[1]):
            rest = self.residual_rows(rows)
            v[rows] = np.einsum("ij,ij->i", rest, rest)
            v[rows] += own_variances(latent.values[rows], self.level_cov, latent.codes[rows])
        return v

    def solve_weights(self, b: Array) -> tuple[Array, Array]:
        """A^-1 Z'b in whitened coordinates: the border's part and (L, k) for the levels."""
        border, levels = self._latent.pulled(b)
        x = self.root @ (self.root.T @ (border - np.einsum("lkb,lk->b", self.T, levels)))
        own = np.einsum("ljk,lk->lj", self.D_inverse, levels) - self.T @ x
        return x, own

    def smooth(self, b: Array) -> Array:
        return self._latent.pushed(*self.solve_weights(b))

    def energy(self, b: Array) -> float:
        border, levels = self._latent.pulled(b)
        half = self.root.T @ (border - np.einsum("lkb,lk->b", self.T, levels))
        return float(half @ half + np.einsum("lj,ljk,lk->", levels, self.D_inverse, levels))

    def covariance(self) -> Array | None:
        latent = self._latent
        if latent.n_outputs > 1 and latent.n_sites > LARGEST_DENSE:  # Newton directions for coupled outputs ask for it
            return None
        rest = self.residual_rows(slice(None))
        V = rest @ rest.T
        own = np.einsum("ij,ijk->ik", latent.values, self.level_cov[latent.codes])
        order, starts = sorted_by_level(latent.codes, latent.n_levels)
        for rows in np.split(order, starts[1:]):
            V[np.ix_(rows, rows)] += own[rows] @ latent.values[rows].T
        return np.asarray(V)


class LevelLatent(Latent):
    """What models with a group that is kept by its codes share; q is a `LevelPosterior` of rows `ArrowRows`."""

    reports = "weight"
    group_root: Array

    @abstractmethod
    def detach(self, posterior: Posterior) -> LevelPosterior: ...

    def weight_covariance(self, posterior: Posterior) -> Array:
        return self.detach(posterior).covariance()

    @classmethod
    def rows_of(cls, X: Any, codes: npt.NDArray[np.intp], values: Array, n_levels: int,
                sparse: Any = None) -> ArrowRows:
        return ArrowRows(X, codes, values, sparse)

    def predicted(self, posterior: Posterior, X_new: Any, codes: Any, values: Any, sparse: Any) -> tuple[Array, Array]:
        """Mean and variance of f at new rows; a level of -1 is one that was never seen, and gets the prior."""
        matrix, level = as_float(X_new, "X_new", ndim=2), np.asarray(codes, dtype=np.intp)
        t = np.ones((len(matrix), 1)) if values is None else as_float(values, "values", ndim=2)
        m, v = self.detach(posterior).at(ArrowRows(matrix, level, t, sparse))
        prior = t @ self.group_root
        return m, v + np.where(level < 0, np.einsum("ij,ij->i", prior, prior), 0.0)


class Mixed(LevelLatent):
    """f = x'w + t'b of the row's level: fixed effects, and random effects of one grouping factor.

    Parameters
    ----------
    X : (N, B) array
        Columns whose weights all rows share.
    codes : (N,) integers
        Level of each row, from 0.
    values : (N, k) array
        What multiplies the k coefficients of the level; ones for a random intercept.
    n_levels : int
        How many levels there are; one more than the largest code unless given.
    mean, cov : prior of w, as in `Weights`
    group_cov : number, (k,) array or (k, k) array
        Prior covariance of a level's coefficients.
    slack : number or (N,) array
        Extra variance of f_i.
    n_outputs : int
        Latent values of each datum, as in `Weights`.

    Examples
    --------
    >>> import numpy as np, klimb
    >>> latent = klimb.latents.Mixed(np.ones((6, 1)), [0, 0, 1, 1, 2, 2], cov=100.0, group_cov=1.0)
    >>> y = np.array([1.0, 1.2, 3.0, 2.8, 5.0, 5.2])
    >>> result = klimb.infer(latent, klimb.sites.Gaussian(0.5), y)
    >>> result.posterior.mean.round(1)  # the shared intercept, then the deviation of each level
    array([ 3. , -1.7, -0.1,  1.8])
    """

    def __init__(self, X: Any, codes: Any, values: Any = None, *, n_levels: int | None = None, mean: Any = 0.0,
                 cov: Any = 1.0, group_cov: Any = 1.0, slack: Any = 0.0, n_outputs: int = 1) -> None:
        matrix = as_float(X, "X", ndim=2)
        N = len(matrix)
        require(N, "X must have at least one row", f"shape {matrix.shape}", "Pass some data.")
        self.codes, self.n_levels, self.values = checked_levels(codes, values, N, n_levels)
        self.n_outputs = checked_outputs(n_outputs, N)
        self._build(matrix, mean, cov, group_cov, variances_at(slack, (N,), "slack"))

    def _build(self, X: Array, mean: Any, cov: Any, group_cov: Any, slack: Array, before: Mixed | None = None) -> None:
        """``before`` has the same rows and columns."""
        self.shared: DenseDesign = DenseDesign(X) if before is None else before.shared
        self.X, self.n_sites, self.slack = self.shared.values, len(X), slack
        self.prior = WeightPrior(mean, cov, X.shape[1])
        self.group_root = group_root(group_cov, self.values.shape[1])
        self.n_weights = X.shape[1] + self.n_levels * self.values.shape[1]
        self.dense_size = X.shape[1]
        if before is not None and np.array_equal(before.prior.mean, self.prior.mean):
            self.mean = before.mean
        else:
            self.mean = np.broadcast_to(one_value(X @ self.prior.mean), len(X))

    def with_prior(self, mean: Any, cov: Any, group_cov: Any, *, X: Array | None = None, slack: Array | None = None,
                   rows: Any = None) -> Mixed:
        """The same rows, or some of them, under another prior; ``X`` and ``slack`` may change too."""
        new = Mixed.__new__(Mixed)
        new.n_outputs, new.n_levels, new.codes, new.values = self.n_outputs, self.n_levels, self.codes, self.values
        if rows is not None:
            new.codes, new.values = self.codes[rows], self.values[rows]
        new._build(self.X if X is None else X, mean, cov, group_cov, self.slack if slack is None else slack,
                   self if X is None else None)
        return new

    def whitened_rows(self, X: Array) -> Array:
        """Rows over the shared columns in coordinates where the prior is standard."""
        return np.asarray(X * self.prior.root if self.prior.root.ndim == 1 else X @ self.prior.root)

    def level_sums(self, weights: Array, columns: Array) -> Array:
        """Sums over levels of ``weights`` times ``columns``."""
        return level_sums(self.codes, self.n_levels, weights, columns)

    def pulled(self, b: Array) -> tuple[Array, Array]:
        """Z'b: the border's part and (L, k) for the levels."""
        return self.whitened_rows(self.shared.transpose_times(b)), self.level_sums(b, self.values) @ self.group_root

    def pushed(self, border: Array, levels: Array) -> Array:
        """Z times weights in whitened coordinates."""
        f, own = self.shared.times(self.prior.root_times(border[:, None])[:, 0]), levels @ self.group_root.T
        for rows in row_blocks(self.n_sites, self.values.shape[1]):
            f[rows] += np.einsum("ik,ik->i", self.values[rows], own[self.codes[rows]])
        return f

    @cached_property
    def prior_variances(self) -> Array:
        t = self.values @ self.group_root
        return np.asarray(self.shared.row_norms_squared(self.prior.root)[0] + np.einsum("ij,ij->i", t, t))

    def mvm(self, a: Array) -> Array:
        return self.pushed(*self.pulled(a))

    def factor(self, gamma: Array) -> MixedFactor:
        return MixedFactor(self, gamma)

    def thin(self, rows: npt.NDArray[np.intp]) -> Mixed | None:
        sites, root, own = sites_of(rows, self.n_outputs, self.n_sites), self.prior.root, self.group_root
        return self.with_prior(self.prior.mean, root**2 if root.ndim == 1 else root @ root.T, own @ own.T,
                               X=self.X[sites], slack=self.slack[sites], rows=sites)

    def marginals(self, posterior: Posterior) -> tuple[Array, Array]:
        return posterior.latent.detach(posterior).at(ArrowRows(self.X, self.codes, self.values), self.slack)

    def detach(self, posterior: Posterior) -> ArrowWeights:
        """The posterior of all weights, at a size linear in the number of levels."""
        factor = factor_of(posterior, MixedFactor)
        pull = posterior.a + posterior.gamma * (posterior.m - self.mean)
        border, levels = factor.solve_weights(pull)
        R, mean = self.group_root, self.prior.mean + self.prior.root_times(border[:, None])[:, 0]
        if not posterior.spread:
            B, (L, k) = self.X.shape[1], (self.n_levels, len(R))
            return ArrowWeights(mean, np.zeros((B, 0)), levels @ R.T, np.zeros((L, k, 0)), np.zeros((L, k, k)))
        return ArrowWeights(mean, factor.to_root, levels @ R.T, factor.pull, factor.level_cov)

    @classmethod
    def of_parts(cls, parts: LinearParts, kept: dict[str, Any]) -> Mixed | None:
        """Rows are checked once, whatever the prior."""
        if not parts.n_levels or parts.sparse is not None:
            return None
        if "checked" not in kept:
            kept["checked"] = cls(parts.X, parts.codes, parts.values, n_levels=parts.n_levels, mean=parts.mean)
        checked: Mixed = kept["checked"]
        return checked.with_prior(parts.mean, parts.cov, parts.group_cov,
                                  X=None if parts.fixed_columns else parts.X, slack=parts.slack)

    @classmethod
    def costs(cls, shape: Shape) -> Option | None:
        return arrow(shape) if shape.linear and shape.n_levels > 0 and not shape.sparse else None

    def predict(self, posterior: Posterior, X_new: Any, codes: Any, values: Any = None) -> tuple[Array, Array]:
        """Mean and variance of f at new rows; a level of -1 is one that was never seen, and gets the prior."""
        return self.predicted(posterior, X_new, codes, values, None)

    def design(self) -> Array:
        t = self.values @ self.group_root
        return np.asarray(dense_rows(self.whitened_rows(self.X), self.codes, t, self.n_levels))

    def coordinates(self, posterior: Posterior) -> Coordinates:
        q, (n, k), B = self.detach(posterior), self.values.shape, self.X.shape[1]
        at = self.codes[:, None] * k + np.arange(k)
        levels = scipy_sparse.csr_array((self.values.ravel(), at.ravel(), np.arange(n + 1) * k),
                                        shape=(n, q.level_mean.size))
        return WeightCoordinates(q, [(self.X, slice(0, B)), (levels, slice(B, None))], n * (B + 2 * k) + q.pull.size)

    def shocks(self, posterior: Posterior) -> Shocks | None:
        if self.n_outputs > 1 or self.slack.any() or not posterior.spread:
            return None
        rows = ArrowRows(self.X, self.codes, self.values)
        return Shocks.of_levels(self.detach(posterior), rows, *sorted_by_level(self.codes, self.n_levels))

    def draw(self, rng: np.random.Generator) -> tuple[Array, Array]:
        slack = np.sqrt(self.slack) * rng.standard_normal(self.n_sites)
        design = self._dense_design()
        u, B = np.asarray(rng.standard_normal(design.shape[1])), self.prior.root.shape[-1]
        shared = self.prior.mean + self.prior.root_times(u[:B, None])[:, 0]
        levels = u[B:].reshape(self.n_levels, -1) @ self.group_root.T
        return np.concatenate([shared, levels.ravel()]), self.mean + design @ u + slack


def eliminated(D: Array, C: Array, gram: Array) -> tuple[Array, Array, Array, float]:
    """D^-1, T = D^-1 C, a root of S^-1 and the log determinant of I + [[D, C], [C', gram]], S = I + gram - C'T.

    ``D`` (L, k, k), to which the identity is added in place, ``C`` (L, k, B) and ``gram`` (B, B) are whitened.
    """
    k, B = C.shape[1:]
    D[:, np.arange(k), np.arange(k)] += 1.0
    D_inverse, log_det_levels = inverse_blocks(D)
    T = np.matmul(D_inverse, C)
    S = gram - C.reshape(-1, B).T @ T.reshape(-1, B)
    S.flat[:: B + 1] += 1.0
    lower = cholesky(np.asfortranarray(0.5 * (S + S.T)))
    logdet = log_det_levels + log_det_from_cholesky(lower)  # before its inverse takes its place
    return D_inverse, T, triangular_inverse(lower).T, logdet


def inverse_blocks(D: Array) -> tuple[Array, float]:
    """Inverses of positive definite k x k blocks and the sum of their log determinants."""
    if D.shape[1] == 1:
        if not D.min(initial=1.0) > 0.0:
            raise NotPositiveDefiniteError("a level has no proper posterior")
        return 1.0 / D, float(np.log(D).sum())
    try:
        lower = np.linalg.cholesky(D)
    except np.linalg.LinAlgError as error:
        raise NotPositiveDefiniteError("a level has no proper posterior") from error
    half = np.linalg.inv(lower)
    return np.swapaxes(half, 1, 2) @ half, 2.0 * float(np.log(np.diagonal(lower, axis1=1, axis2=2)).sum())


def group_root(group_cov: Any, k: int) -> Array:
    """R (k x r) with R R' = group_cov."""
    root = WeightPrior(0.0, group_cov, k, "group_cov").root
    return np.diag(root) if root.ndim == 1 else root if root.shape[1] else np.zeros((k, 1))


def checked_levels(codes: Any, values: Any, n: int, n_levels: int | None) -> tuple[npt.NDArray[np.intp], int, Array]:
    """Levels of rows, how many levels there are, and the values that multiply their coefficients."""
    array = np.asarray(codes)
    if array.shape != (n,) or array.dtype.kind not in "iu":
        raise InputError(f"codes must be {n} whole numbers", f"shape {array.shape}, type {array.dtype}",
                         "Number the levels from 0.")
    level = array.astype(np.intp, copy=False)
    count = int(level.max()) + 1 if n_levels is None else int(n_levels)
    bad = np.flatnonzero((level < 0) | (level >= count))
    if bad.size:
        raise InputError(f"codes must lie between 0 and {count - 1}", f"{level[bad[0]]} at index {bad[0]}",
                         "Number the levels from 0.")
    t = np.ones((n, 1)) if values is None else as_float(values, "values", ndim=2)
    require(len(t) == n and t.shape[1], f"values must have {n} rows and at least one column", f"shape {t.shape}",
            "There is one row of values per row of X.")
    return level, count, t
