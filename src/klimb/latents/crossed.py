"""Linear models with crossed grouping factors: the largest by its codes, the others as sparse columns.

    f_i = x_i'w + s_i'u + t_i'b_l(i),    w ~ N(mean, cov),    u and b in levels, each N(0, R R') with the factor's R

Levels of the largest factor are eliminated first, each by itself, as in `Mixed`. What is left has the size of (w, u)
and is one dense matrix, but all that leads to it is sparse: a level meets few columns of the other factors.
"""

from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from scipy.linalg import blas

from klimb.errors import InputError, require
from klimb.latents.arrow import own_variances
from klimb.latents.base import Factor, Posterior, factor_of, variances_at
from klimb.latents.coordinates import LARGEST_DENSE, Coordinates, WeightCoordinates
from klimb.latents.costs import Option, Shape, crossed
from klimb.latents.crossed_border import Border, BorderFactor, Parting
from klimb.latents.crossed_cells import Cells
from klimb.latents.crossed_weights import CANCELLED, CrossedPosterior, CrossedWeights
from klimb.latents.linear import LinearParts, WeightPrior, dense_rows, side_by_side
from klimb.latents.mixed import LevelLatent, checked_levels, group_root, inverse_blocks
from klimb.latents.shocks import Shocks
from klimb.numerics.arrays import Array, Index, as_float
from klimb.numerics.lazy import scipy_sparse


class EliminatedFactor(Factor):
    """Levels eliminated: given the border's weights those of a level have covariance K, and what is left is S.

    ``H`` at the cells and ``H_dense`` are half'C with half half' = K, so that S is the border's own precision - H'H.
    """

    detached: tuple[Array, bool, CrossedPosterior] | None = None  # q of the weights, and which posterior it is of

    def __init__(self, latent: "CrossedColumns", gamma: Array) -> None:
        self.gamma, self._latent = gamma, latent
        cells, R = latent.cells, latent.group_root
        self.sums = sums = cells.sums(gamma)
        A = R.T @ sums.levels @ R
        A[:, np.arange(A.shape[1]), np.arange(A.shape[1])] += 1.0
        inverse, self.log_det_levels = inverse_blocks(A)
        half = R @ (np.sqrt(inverse) if inverse.shape[1] == 1 else np.linalg.cholesky(inverse))  # K = half half'
        self.K = half @ np.swapaxes(half, 1, 2)
        self.C, self.C_dense = sums.cells, sums.dense
        self._C = [cells.matrix(sums.cells, j) for j in range(cells.k)]
        self._C_transposed = [cells.matrix(sums.cells, j, transposed=True) for j in range(cells.k)]
        self.H = np.einsum("ejr,ej->er", half[cells.level], sums.cells)
        self.H_dense = np.swapaxes(half, 1, 2) @ sums.dense

    def eliminated_gram(self) -> tuple[Array, Array]:
        """H'H of dense columns, (Bd, Bd), and of sparse ones with those, (S, Bd)."""
        cells, flat = self._latent.cells, self.H_dense.reshape(-1, self.H_dense.shape[2])
        mixed = sum(cells.matrix(self.H, j, transposed=True) @ self.H_dense[:, j] for j in range(self.H.shape[1]))
        return flat.T @ flat, np.asarray(mixed)

    @abstractmethod
    def border_solve(self, b: Array) -> Array:
        """W S^-1 W'b, S being the precision of whitened weights and W their root."""

    @abstractmethod
    def weights(self, shared: Array, level_mean: Array) -> CrossedPosterior:
        """q with these means."""

    @cached_property
    def T(self) -> tuple[Array, Array]:
        """How levels follow the border: at cells (E, k), and (L, k, Bd) for dense columns."""
        return np.einsum("ejk,ek->ej", self.K[self._latent.cells.level], self.C), self.K @ self.C_dense

    def solve_weights(self, b: Array) -> tuple[Array, Array]:
        """(Sigma_w^-1 + X'GX)^-1 X'b: the border's part and (L, k) for the levels."""
        left, own, _ = self._eliminated(b)
        x = self.border_solve(left)
        Bd = self.C_dense.shape[2]
        along = self.C_dense @ x[:Bd] + np.column_stack([one @ x[Bd:] for one in self._C])
        return x, own - np.einsum("ljk,lk->lj", self.K, along)

    def _eliminated(self, b: Array) -> tuple[Array, Array, Array]:
        """What is left of X'b without the levels, K X'b of the levels, and X'b of them."""
        cells = self._latent.cells
        border, levels = cells.pulled(b)
        own = np.einsum("ljk,lk->lj", self.K, levels)
        taken = sum(one @ own[:, j] for j, one in enumerate(self._C_transposed))
        dense = np.einsum("lkb,lk->b", self.C_dense, own)
        return border - np.concatenate([dense, taken]), own, levels

    def smooth(self, b: Array) -> Array:
        return self._latent.cells.pushed(*self.solve_weights(b))

    def energy(self, b: Array) -> float:
        left, own, levels = self._eliminated(b)
        return float(left @ self.border_solve(left) + (own * levels).sum())

    def covariance(self) -> Array | None:
        latent = self._latent
        if latent.n_sites > LARGEST_DENSE:
            return None
        q = self.weights(np.zeros(latent.cells.width), np.zeros((latent.cells.n_levels, latent.cells.k)))
        return q.joint(latent.cells.rows)[1]


class CrossedFactor(EliminatedFactor):
    """With the border factorised dense: its weights have root root'."""

    def __init__(self, latent: "Crossed", gamma: Array) -> None:
        super().__init__(latent, gamma)
        self._variances: Array | None = None
        border = latent.parting.left(latent.cells, self.sums, self.H, *self.eliminated_gram())
        self._border = BorderFactor(border, latent.border_root)
        self.logdet = self.log_det_levels + self._border.log_det

    def border_solve(self, b: Array) -> Array:
        return self._border.solve(b)

    @cached_property
    def border_covariance(self) -> Border:
        return self._border.covariance()

    @cached_property
    def _with_border(self) -> tuple[Array, Array, Array]:
        """T V at the cells, T V of dense columns, and the covariances of the levels with the border unknown."""
        cells, V, (T, T_dense) = self._latent.cells, self.border_covariance, self.T
        Bd, mixed = T_dense.shape[2], V.mixed()
        dense = (T_dense.reshape(-1, Bd) @ V.rest[:Bd, :Bd]).reshape(T_dense.shape)
        for j in range(cells.k):
            dense[:, j] += cells.matrix(T, j) @ mixed
        at_cells = cells.products_at_cells(T, V)
        at_cells += np.einsum("ekb,eb->ek", T_dense[cells.level], mixed[cells.columns])
        total = self.K + cells.level_sums(T, at_cells) + np.einsum("lib,ljb->lij", T_dense, dense)
        return at_cells, dense, 0.5 * (total + np.swapaxes(total, 1, 2))

    def variances(self) -> Array:
        if self._variances is None:
            latent = self._latent
            at_cells, dense, total = self._with_border
            v, size = latent.cells.variances(total, -at_cells, -dense, self.border_covariance)
            lost = np.flatnonzero(v < CANCELLED * size)
            if lost.size:
                q = self.weights(np.zeros(latent.cells.width), np.zeros(total.shape[:2]))
                v[lost] = q.at(latent.cells.rows.some(lost))[1]
            self._variances = v
        return self._variances

    def _moves(self) -> tuple[Array, tuple[Index, Index], Array]:
        """M, pairs of rows, and numbers there, such that V is MM' and these numbers."""
        cells, (T, T_dense), Bd = self._latent.cells, self.T, self.H_dense.shape[2]
        cell, entry, one, other, same = cells.near_rows
        own = np.zeros(len(one))
        own[same] = np.einsum("ij,ijk,ik->i", cells.values[one[same]], self.K[cells.codes[one[same]]],
                              cells.values[other[same]])
        among = self._latent.border_root.ndim == 1 and bool((cell >= 0).any())
        if among:  # what two rows have by a column that is alone
            at = cells.columns[cell] + Bd
            left = np.where(cell >= 0, entry - np.einsum("ij,ij->i", cells.values, T[cell]), 0.0)
            left *= self._latent.border_root[at] * self._border.sds[at]
            own += left[one] * left[other]
        root = self._border.root(not among)
        moves = cells.X.values @ root[:Bd] + cells.sparse @ root[Bd:]
        for j in range(cells.k):
            follow = cells.matrix(T, j) @ root[Bd:] + T_dense[:, j] @ root[:Bd]
            moves -= cells.values[:, j, None] * follow[cells.codes]
        return moves, (one, other), own

    def covariance(self) -> Array | None:
        if self._latent.cells.n > LARGEST_DENSE:
            return None
        moved, pairs, own = self._moves()
        V = moved @ moved.T
        V[pairs] += own
        return np.asarray(V)

    def correlations(self, sd: Array) -> npt.NDArray[np.float32] | None:
        """In single precision from the start, which takes a quarter of the time of a covariance."""
        if self._latent.cells.n > LARGEST_DENSE:
            return None
        (moved, pairs, own), scale = self._moves(), 1.0 / sd
        W = np.asarray(moved * scale[:, None], dtype=np.float32)
        R: npt.NDArray[np.float32] = blas.ssyrk(1.0, W.T, trans=1, lower=1)
        R[pairs] += own * scale[pairs[0]] * scale[pairs[1]]
        return R

    def weights(self, shared: Array, level_mean: Array) -> CrossedWeights:
        (T, dense), cells = self.T, self._latent.cells
        return CrossedWeights(shared, level_mean, self.K, dense, T, cells.columns, cells.starts, self._border.root(),
                              self._with_border[2])


class CrossedColumns(LevelLatent):
    """Columns of crossed grouping factors and their prior, for any way to the posterior."""

    def __init__(self, X: Any, sparse: Any, codes: Any, values: Any = None, *, n_levels: int | None = None,
                 mean: Any = 0.0, cov: Any = 1.0, roots: Sequence[tuple[Any, int]] | None = None, group_cov: Any = 1.0,
                 slack: Any = 0.0) -> None:
        matrix = as_float(X, "X", ndim=2)
        n = len(matrix)
        columns = side_by_side([sparse])
        columns.sum_duplicates()
        if n == 0 or columns.shape[0] != n or columns.shape[1] == 0:
            raise InputError("X and sparse must have the same rows, and both some columns",
                             f"shapes {matrix.shape} and {columns.shape}", "There is one row of each per datum.")
        level, count, t = checked_levels(codes, values, n, n_levels)
        self._build(Cells(matrix, columns, level, t, count), mean, cov, roots or ((1.0, columns.shape[1]),), group_cov,
                    variances_at(slack, (n,), "slack"))

    def _build(self, cells: Cells, mean: Any, cov: Any, roots: Sequence[tuple[Any, int]], group_cov: Any,
               slack: Array) -> None:
        self.cells, self.slack, self.n_sites, self.roots = cells, slack, cells.n, roots
        Bd = cells.X.shape[1]
        self.prior = WeightPrior(mean, cov, Bd)
        self.group_root = group_root(group_cov, cells.k)
        self.border_root = _border_root(self.prior.root, roots, cells.n_sparse)
        self.border_mean = np.concatenate([self.prior.mean, np.zeros(cells.n_sparse)])
        self.n_weights = cells.width + cells.n_levels * cells.k
        self.dense_size = cells.width
        self.mean = cells.X.times(self.prior.mean) if self.prior.mean.any() else np.zeros(cells.n)

    @classmethod
    def of_parts(cls, parts: LinearParts, kept: dict[str, Any]) -> Self | None:
        """Pairs of entries are found once, whatever the prior."""
        if not parts.n_levels or parts.sparse is None:
            return None
        if "cells" not in kept:
            kept["cells"] = Cells(parts.X, parts.sparse, parts.codes, parts.values, parts.n_levels)
        cells: Cells = kept["cells"]
        latent = cls.__new__(cls)
        latent._build(cells if parts.fixed_columns else cells.with_dense(parts.X), parts.mean, parts.cov, parts.roots,
                      parts.group_cov, parts.slack)
        return latent

    @property
    def parting(self) -> Parting:
        """How matrices over the border are held."""
        return self.cells.parted if self.border_root.ndim == 1 else self.cells.whole

    def _prior_times(self, border: Array, levels: Array) -> tuple[Array, Array]:
        """Sigma_w times a vector over the weights."""
        W, R = self.border_root, self.group_root
        return np.asarray(W @ (W.T @ border) if W.ndim == 2 else W**2 * border), levels @ (R @ R.T)

    @cached_property
    def prior_variances(self) -> Array:
        cells, Bd = self.cells, self.cells.X.shape[1]
        own = own_variances(cells.values, (self.group_root @ self.group_root.T)[None], np.zeros(cells.n, dtype=np.intp))
        if self.border_root.ndim == 1:
            squares = self.border_root**2
            return np.asarray(own + cells.X.values**2 @ squares[:Bd] + cells.sparse.power(2) @ squares[Bd:])
        scaled = side_by_side([cells.X.values, cells.sparse]) @ self.border_root
        return np.asarray(own + np.asarray(scaled.power(2).sum(axis=1)).ravel())

    def mvm(self, a: Array) -> Array:
        return self.cells.pushed(*self._prior_times(*self.cells.pulled(a)))

    @abstractmethod
    def factor(self, gamma: Array) -> EliminatedFactor: ...

    def detach(self, posterior: Posterior) -> CrossedPosterior:
        factor = factor_of(posterior, EliminatedFactor)  # type: ignore[type-abstract]
        known = factor.detached  # gradients, gaps and averages ask for it
        if known is None or known[0] is not posterior.a or known[1] != posterior.spread:
            factor.detached = known = posterior.a, posterior.spread, self._detached(posterior, factor)
        return known[2]

    def _detached(self, posterior: Posterior, factor: EliminatedFactor) -> CrossedPosterior:
        border, levels = factor.solve_weights(posterior.a + posterior.gamma * (posterior.m - self.mean))
        if posterior.spread:
            return factor.weights(self.border_mean + border, levels)
        nothing, (T, dense), cells = np.zeros_like(factor.K), factor.T, self.cells
        return CrossedWeights(self.border_mean + border, levels, nothing, dense, T, cells.columns, cells.starts,
                              np.zeros((cells.width, 0)), nothing)

    def predict(self, posterior: Posterior, X_new: Any, sparse: Any, codes: Any,
                values: Any = None) -> tuple[Array, Array]:
        """Mean and variance of f at new rows; a level of -1 is one that was never seen, and gets the prior."""
        return self.predicted(posterior, X_new, codes, values, side_by_side([sparse]))

    def design(self) -> Array:
        cells = self.cells
        X = dense_rows(cells.X.values, cells.codes, cells.values, 0, cells.sparse)
        border = X @ self.border_root if self.border_root.ndim == 2 else X * self.border_root
        return np.asarray(dense_rows(border, cells.codes, cells.values @ self.group_root, cells.n_levels))

    def weight_covariance(self, posterior: Posterior) -> Array:
        require(self.n_weights <= LARGEST_DENSE, f"a covariance of all weights has up to {LARGEST_DENSE} of them",
                f"{self.n_weights:,}", "Ask for variances, for draws, or for rows.")
        return super().weight_covariance(posterior)

    def coordinates(self, posterior: Posterior) -> Coordinates:
        q, cells = self.detach(posterior), self.cells
        crossed = np.r_[cells.width : q.size, cells.X.shape[1] : cells.width]  # as the columns of Y stand
        return WeightCoordinates(q, [(cells.X.values, slice(0, cells.X.shape[1])), (cells.Y, crossed)],
                                 cells.X.values.size + cells.Y.nnz + q.pulls().nnz + q.root_work)

    def draw(self, rng: np.random.Generator) -> tuple[Array, Array]:
        cells, W = self.cells, self.border_root
        e, u = rng.standard_normal(W.shape[-1]), rng.standard_normal((cells.n_levels, self.group_root.shape[1]))
        border, levels = (W @ e if W.ndim == 2 else W * e), u @ self.group_root.T
        slack = np.sqrt(self.slack) * rng.standard_normal(self.n_sites)
        truth = np.concatenate([self.border_mean + border, levels.ravel()])
        return truth, self.mean + cells.pushed(border, levels) + slack


class Crossed(CrossedColumns):
    """f = x'w + s'u + t'b of the row's level: fixed effects, and random effects of crossed or nested factors.

    Parameters
    ----------
    X : (N, B) array
        Dense columns, with weights w.
    sparse : (N, S) scipy.sparse matrix
        Columns of all grouping factors but the largest, level by level.
    codes, values, n_levels
        The largest factor, as in `Mixed`.
    mean, cov : prior of w, as in `Weights`
    roots : sequence of (R, copies)
        For each factor in ``sparse`` the root R (k, k) of the prior covariance of a level's k coefficients, and how
        many levels it has. One factor with a standard deviation of 1 unless given.
    group_cov : number, (k,) array or (k, k) array
        Prior covariance of the coefficients of a level of the largest factor.
    slack : number or (N,) array
        Extra variance of f_i.

    Examples
    --------
    >>> import numpy as np, klimb
    >>> from scipy.sparse import csr_matrix
    >>> students, teachers = np.array([0, 0, 1, 1, 2, 2]), np.array([0, 1, 0, 1, 0, 1])
    >>> by_teacher = csr_matrix((np.ones(6), (np.arange(6), teachers)))
    >>> latent = klimb.latents.Crossed(np.ones((6, 1)), by_teacher, students, cov=100.0, group_cov=1.0)
    >>> y = np.array([1.0, 2.2, 3.0, 4.2, 5.0, 6.2])
    >>> result = klimb.infer(latent, klimb.sites.Gaussian(0.5), y)
    >>> result.posterior.mean[[0, 3, 5]].round(1)  # the intercept, and the first and last student's deviations
    array([ 3.6, -1.8,  1.8])
    """

    @classmethod
    def costs(cls, shape: Shape) -> Option | None:
        return crossed(shape) if shape.linear and shape.n_levels > 0 and shape.sparse else None

    def factor(self, gamma: Array) -> CrossedFactor:
        return CrossedFactor(self, gamma)

    def shocks(self, posterior: Posterior) -> Shocks | None:
        if self.slack.any() or not posterior.spread:
            return None
        q = self.detach(posterior)
        assert isinstance(q, CrossedWeights)
        return Shocks.of_crossed(q, *self.cells.by_level)


def _border_root(dense: Array, roots: Sequence[tuple[Any, int]], n_sparse: int) -> Any:
    """The root of the prior covariance of the border: a vector where all is independent, else a sparse matrix."""
    each = [(np.atleast_2d(as_float(root, "roots")), int(copies)) for root, copies in roots]
    size = sum(len(root) * copies for root, copies in each)
    if size != n_sparse or any(root.shape[0] != root.shape[1] for root, _ in each):
        raise InputError(f"roots must stand for the {n_sparse} sparse columns", f"{size} weights",
                         "Give a square root and the number of levels for each factor.")
    if dense.ndim == 1 and all((root == np.diag(np.diagonal(root))).all() for root, _ in each):
        return np.concatenate([dense, *(np.tile(np.diagonal(root), copies) for root, copies in each)])
    first = scipy_sparse.diags(dense) if dense.ndim == 1 else scipy_sparse.csr_matrix(dense)
    levels = (scipy_sparse.kron(scipy_sparse.eye(copies), root) for root, copies in each)
    return scipy_sparse.csr_matrix(scipy_sparse.block_diag([first, *levels], format="csr"))
