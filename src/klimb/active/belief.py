"""What a posterior says of the weights of a linear model: products with V_w, and marginals of many rows.

    q(w) = N(mean, V_w)        s_i = x_i'w ~ N(m_i, v_i)        v_i = x_i' V_w x_i

Exact by a D x D root of V_w where columns are few, by the N x N factor of the labelled rows where labels are. Else

    A = diag(1 / cov) + X' diag(gamma) X ~ Q T Q'        v_i >= |L^-1 Q'x_i|^2, T = L L'        ([N] section 2.3)

a lower bound by k products with the labelled rows and k with the pool, exact where k reaches the number of columns.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np

from klimb.active.pool import take_rows, times_each
from klimb.errors import InputError, NotPositiveDefiniteError
from klimb.latents import Posterior, Weights
from klimb.latents.kernel import DenseFactor, kernel_factor
from klimb.latents.linear import WeightPrior
from klimb.linalg.krylov import lanczos, simplest_preconditioner, solve
from klimb.linalg.matrix import CsrDesign, DesignMatrix
from klimb.linalg.normal_matrix import NormalMatrix
from klimb.linalg.operators import as_operator
from klimb.numerics.arrays import Array, Index
from klimb.numerics.dense import cholesky, row_blocks, threads_for, triangular_inverse

PRECISE = 1e-5  # share of a deviation that inclusions may leave and still be told from rounding
MOST_KEPT = 2**26  # numbers (512 MB) of products between pool and labelled rows that are kept from query to query
SOLVED = 1e-11  # residual of the systems


class Belief(ABC):
    """A Gaussian over the weights."""
    mean: Array
    exact: bool = True  # whether ``variances`` are exact, and not estimates from below

    @abstractmethod
    def times(self, vectors: Array) -> Array:
        """V_w times one vector, or several as columns."""

    @abstractmethod
    def variances(self, pool: DesignMatrix) -> Array:
        """x_i' V_w x_i for every row."""

    def marginals(self, pool: DesignMatrix) -> tuple[Array, Array]:
        """Mean and variance of s_i = x_i'w for every row."""
        return pool.times(self.mean), self.variances(pool)

    def distance(self, mean: Array) -> float:
        """sqrt(d' V_w^-1 d) for d = mean - self.mean, so |x'd| is at most that times sqrt(x' V_w x); or infinity."""
        return float(np.inf)

    def growth(self, later: "Belief") -> float:
        """A bound of x' V' x / x' V_w x over all x, where V' is the covariance of ``later``; or infinity."""
        return 1.0 if later is self else float(np.inf)

    def after(self, mean: Array, directions: Sequence[Array], weights: Sequence[float]) -> "Belief | None":
        """N(mean, V_w - sum_k c_k d_k d_k') as a belief of its own, where that is cheap; else None."""
        return None if directions else self


class PriorBelief(Belief):
    """Nothing labelled yet."""

    def __init__(self, prior: WeightPrior) -> None:
        self._prior, self.mean = prior, np.array(prior.mean)

    def times(self, vectors: Array) -> Array:
        return self._prior.covariance_times(vectors)

    def variances(self, pool: DesignMatrix) -> Array:
        return pool.row_norms_squared(self._prior.root)[0]


class PrimalBelief(Belief):
    """V_w = R R', with R of few columns."""

    def __init__(self, mean: Array, root: Array, *, upper: bool = False) -> None:
        self.mean, self._root, self._upper = mean, root, upper

    def times(self, vectors: Array) -> Array:
        return np.asarray(self._root @ (self._root.T @ vectors))

    def variances(self, pool: DesignMatrix) -> Array:
        with threads_for(len(self._root)):
            return pool.row_norms_squared(self._root, upper=self._upper)[0]

    def distance(self, mean: Array) -> float:
        return float(np.linalg.norm(self._in_own_units(mean - self.mean)))

    def after(self, mean: Array, directions: Sequence[Array], weights: Sequence[float]) -> Belief | None:
        """V_w - D C D' = R (I - W C W') R' with W = R^-1 D."""
        if not directions:
            return self
        whitened = self._in_own_units(np.column_stack(directions))
        if not np.isfinite(whitened).all():
            return None
        left = np.eye(len(self._root)) - (whitened * np.array(weights)) @ whitened.T
        try:
            lower = cholesky(np.asfortranarray(left))
        except NotPositiveDefiniteError:  # labels so precise that rounding is all that is left of some direction
            return None
        return PrimalBelief(mean, self._root @ lower) if np.diagonal(lower).min() > PRECISE else None

    def growth(self, later: Belief) -> float:
        if later is self:
            return 1.0
        if not isinstance(later, PrimalBelief):
            return float(np.inf)
        ratio = self._in_own_units(later._root)  # its singular values are the ratios of standard deviations
        return float(np.linalg.eigvalsh(ratio.T @ ratio)[-1]) if np.isfinite(ratio).all() else float(np.inf)

    def _in_own_units(self, vectors: Array) -> Array:
        """R^-1 vectors, infinite where R has no inverse (a weight without variance)."""
        from scipy.linalg import solve_triangular
        rows, columns = self._root.shape
        if rows != columns or (self._upper and not np.diagonal(self._root).all()):
            return np.full(np.shape(vectors), np.inf)
        if self._upper:
            return np.asarray(solve_triangular(self._root, vectors, check_finite=False))
        try:
            return np.asarray(np.linalg.solve(self._root, vectors))
        except np.linalg.LinAlgError:
            return np.full(np.shape(vectors), np.inf)


class CrossProducts:
    """K between the pool and its labelled rows, one column per label, computed once and kept as memory allows."""

    def __init__(self, pool: DesignMatrix, prior: WeightPrior) -> None:
        self.pool, self.prior = pool, prior
        self._kept = np.empty((pool.shape[0], 0), order="F")
        self._rows: list[int] = []

    def columns(self, rows: Index) -> Array | None:
        """K[:, rows], or None where it would be too large to keep."""
        if self.pool.shape[0] * len(rows) > MOST_KEPT:
            self._kept, self._rows = np.empty((self.pool.shape[0], 0), order="F"), []
            return None
        wanted = rows.tolist()
        place = {row: k for k, row in enumerate(self._rows)}
        missing = [row for row in wanted if row not in place]
        used, n = len(self._rows), len(wanted)
        if used + len(missing) > self._kept.shape[1]:
            needed = used + len(missing)
            larger = np.empty((self.pool.shape[0], min(max(2 * used, needed, 64),
                                                       max(MOST_KEPT // self.pool.shape[0], needed))), order="F")
            larger[:, :used] = self._kept[:, :used]
            self._kept = larger
        for part in row_blocks(len(missing), self.pool.shape[1]):
            chosen = np.array(missing[part], dtype=np.intp)
            pushed = self.prior.covariance_times(self.pool.subset(chosen).dense().T)
            self._kept[:, used + part.start : used + part.stop] = times_each(self.pool, np.ascontiguousarray(pushed))
        self._rows += missing
        place |= {row: used + k for k, row in enumerate(missing)}
        order = [place[row] for row in wanted]
        return self._kept[:, :n] if order == list(range(n)) else self._kept[:, order]


class DualBelief(Belief):
    """V_w = Sigma - Sigma X'(K + G^-1)^-1 X Sigma over the N labelled rows X: [A] Eq. (19)."""

    def __init__(self, latent: Weights, posterior: Posterior, kept: CrossProducts | None = None,
                 rows: Index | None = None) -> None:
        self.mean = posterior.mean
        self._latent, self._kept, self._rows = latent, kept, rows
        factor = posterior.factorised()
        self._factor: DenseFactor = factor if hasattr(factor, "explained") else kernel_factor(  # type: ignore[assignment]
            latent.X.outer_gram(latent.prior.root), posterior.gamma)
        self._posterior, self._gamma = posterior, posterior.gamma

    @cached_property
    def _product(self) -> Callable[[Array], Array]:
        return self._latent.covariance_products(self._posterior)

    def times(self, vectors: Array) -> Array:
        return self._product(vectors)

    def distance(self, mean: Array) -> float:
        """A = Sigma^-1 + X'G X, product by product."""
        moved, deviation = mean - self.mean, self._latent.prior.root
        if deviation.ndim == 2 or not deviation.all():
            return float(np.inf)
        return float(np.sqrt(np.sum((moved / deviation) ** 2) + self._gamma @ self._latent.X.times(moved) ** 2))

    def growth(self, later: Belief) -> float:
        """Sites and prior that keep the share r of their precision, and new sites: A' >= r A, and V' <= V / r."""
        if later is self or not isinstance(later, DualBelief) or self._rows is None or later._rows is None:
            return super().growth(later)
        n = len(self._rows)
        if not (np.array_equal(later._rows[:n], self._rows) and later._gamma.min() >= 0.0 and self._gamma.min() > 0.0):
            return float(np.inf)
        kept = float((later._gamma[:n] / self._gamma).min())
        mine, theirs = self._latent.prior.root, later._latent.prior.root
        if not np.array_equal(mine, theirs):  # a Laplace prior, whose Gaussians move from fit to fit
            kept = min(kept, float(((mine / theirs) ** 2).min()))
        return 1.0 / min(kept, 1.0) if kept > 0.0 else float(np.inf)

    def variances(self, pool: DesignMatrix) -> Array:
        v, _ = pool.row_norms_squared(self._latent.prior.root)
        least = np.finfo(float).eps * v
        known = None
        if self._kept is not None and self._rows is not None and self._kept.pool is pool:
            known = self._kept.columns(self._rows)
        with threads_for(len(self._gamma)):
            for rows in row_blocks(len(v), len(self._gamma)):
                v[rows] -= self._factor.explained(self._cross(pool, rows) if known is None else known[rows])
        return np.maximum(v, least)

    def _cross(self, pool: DesignMatrix, rows: slice) -> Array:
        prior, X = self._latent.prior, self._latent.X
        if isinstance(pool, CsrDesign) and isinstance(X, CsrDesign) and prior.root.ndim == 1:
            return np.asarray((pool.values[rows].multiply(prior.root**2).tocsr() @ X.values.T).toarray())
        pushed = prior.covariance_times(pool.dense_rows(rows).T)
        return np.ascontiguousarray(times_each(X, np.ascontiguousarray(pushed)).T)


def belief_of(posterior: Posterior, kept: CrossProducts | None = None, rows: Index | None = None) -> Belief:
    """The belief that a fit of `klimb.latents.Weights` left, in its own form."""
    latent = posterior.latent
    assert isinstance(latent, Weights)
    if latent.form == "dual":
        return DualBelief(latent, posterior, kept, rows)
    return PrimalBelief(posterior.mean, latent.posterior_root(posterior), upper=latent.prior.root.ndim == 1)


class KrylovBelief(Belief):
    """V_w = A^-1 by conjugate gradients; variances of a pool from below, by ``k`` Lanczos vectors."""
    exact = False

    def __init__(self, matrix: NormalMatrix, mean: Array, k: int) -> None:
        self.mean, self.matrix, self.k = mean, matrix, min(k, matrix.size)
        self._preconditioner = simplest_preconditioner(matrix)
        self.n_pool_products = 0

    def times(self, vectors: Array) -> Array:
        return solve(self.matrix, vectors, preconditioner=self._preconditioner, tol=SOLVED).x

    @cached_property
    def root(self) -> Array:
        """R = Q L^-T of k columns: R R' <= V_w in the sense of quadratic forms."""
        rng = np.random.default_rng(0)
        found = lanczos(self.matrix.times, self.matrix.size, self.k, rng=rng,
                        start=rng.standard_normal((self.matrix.size, 1)))
        return np.asarray(found.basis @ triangular_inverse(cholesky(np.asfortranarray(found.T))).T)

    def variances(self, pool: DesignMatrix) -> Array:
        self.n_pool_products += self.root.shape[1]
        return pool.row_norms_squared(self.root)[0]


def krylov_belief(posterior: Posterior, rows: Index, k: int) -> KrylovBelief:
    """The belief of a fit to labelled ``rows``, sites of a sparsity prior (one per weight) behind them."""
    latent = posterior.latent
    assert isinstance(latent, Weights)
    if latent.prior.root.ndim == 2 or not latent.prior.root.all():
        raise InputError('variances="lanczos" needs a positive prior variance per weight', "a matrix or a zero",
                         'Use variances="exact".')
    n = len(rows)
    diagonal = latent.prior.root**-2.0
    sparsity = posterior.gamma[n:]
    diagonal[: len(sparsity)] += sparsity
    design = take_rows(latent.X, np.arange(n))
    return KrylovBelief(NormalMatrix(diagonal, [(as_operator(design, "X"), posterior.gamma[:n])]), posterior.mean, k)
