"""A Gaussian process at its own inputs: f ~ N(mean, K) with a dense K."""

from abc import abstractmethod
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from klimb.errors import require
from klimb.latents.base import Factor, Latent, Posterior, check_spread, draws_from, factor_of, mean_at, variances_at
from klimb.latents.coordinates import Coordinates, dense_coordinates
from klimb.latents.costs import Option, Shape, kernel
from klimb.latents.shocks import MOST_REDUCED, Shocks
from klimb.numerics import dense
from klimb.numerics.arrays import Array, Index, as_float, slices
from klimb.numerics.lazy import blas, lapack

if TYPE_CHECKING:
    from klimb.latents.kernel_weights import KernelWeights

MOST_KEPT = 12  # factors that a latent remembers: one per output
MOST_WEAK = 0.3  # share of such sites up to which their columns of V are computed one by one
WEAK_SINGLE = 1e-4  # gamma_i v_i below this: single precision has too few digits of B^-1 for V_ij
PARTS = 4  # of as many columns, for products with all of K that are not held whole
MOST_SINGLE = 1e5  # trace of G K up to which B, whose least eigenvalue is 1, keeps two digits in single precision
WEAK_SITE = 1e-4  # gamma_i k_ii below this: (1 - (B^-1)_ii) / gamma_i would cancel, so V_ii comes from K - W'W


def positive(v: Array, prior: Array) -> Array:
    """Differences from ``prior`` that rounding may have taken below zero, held at their rounding error."""
    return np.asarray(np.maximum(v, np.finfo(float).eps * prior))


def identity_plus(K: Array, root: Array, *, single: bool = False) -> Array:
    """The lower triangle of I + diag(root) K diag(root) for a symmetric K, in Fortran order."""
    B = np.empty(K.shape, np.float32 if single else np.float64)

    def fill(blocks: list[slice]) -> None:
        for rows in blocks:  # both scalings while the block is in the cache
            part = B[rows, rows.start :]
            np.multiply(K[rows, rows.start :], root[rows.start :], out=part)
            part *= root[rows, None]

    blocks, k = list(dense.row_blocks(len(root), 4 * len(root))), len(dense.shares(*K.shape))
    dense.together([partial(fill, blocks[j::k]) for j in range(k)])
    B.flat[:: len(root) + 1] += 1.0
    return B.T


class DenseFactor(Factor):
    """The factor of a dense K."""

    @abstractmethod
    def covariance(self) -> Array: ...

    @abstractmethod
    def marginal_precision(self) -> Array:
        """(K + G^-1)^-1, of which only the lower triangle counts."""

    @abstractmethod
    def explained_and_returned(self, cross: Array) -> tuple[Array, Array]:
        """W and U with k_*' (K + G^-1)^-1 k_+ = w_*'w_+ - u_*'u_+, a column for each row k_* of ``cross``."""

    def explained(self, cross: Array) -> Array:
        """k_*' (K + G^-1)^-1 k_* for each row k_* of ``cross``: what sites explain, less what negative ones take."""
        W, U = self.explained_and_returned(cross)
        return np.asarray(np.einsum("ij,ij->j", W, W) - np.einsum("ij,ij->j", U, U))

    def explained_matrix(self, cross: Array) -> Array:
        """k_*' (K + G^-1)^-1 k_+ for all pairs of rows of ``cross``."""
        W, U = self.explained_and_returned(cross)
        return np.asarray(W.T @ W - U.T @ U if len(U) else W.T @ W)

    def smooth(self, b: Array) -> Array:
        return self.solve(b)[1]


class KernelFactor(DenseFactor):
    """B = I + G^1/2 K G^1/2 for gamma >= 0, 2/3 n^3 flops; four digits or so if ``single``. [A] Eq. (18)-(19)."""

    def __init__(self, K: Array, gamma: Array, *, single: bool = False) -> None:
        self.gamma = gamma
        self._K = K
        self._root = np.sqrt(gamma)
        lower = dense.cholesky(identity_plus(K, self._root, single=single))  # in place, and so is its inverse
        self.logdet = dense.log_det_from_cholesky(lower)
        self.log_det_rounding = len(K) * float(np.finfo(np.float32).eps) if single else 0.0
        self._inverse = dense.triangular_inverse(lower)  # L^-1
        largest = float(self._root.max())
        self._silent = self._root <= 1e-150  # no information at all: x_i = b_i
        self._uneven = bool((self._root < 1e-6 * largest).any())  # so far apart that one solve may not be enough

    def variances(self) -> Array:
        return self._variances

    @cached_property
    def _variances(self) -> Array:
        rows = self._inverse.T  # C order: row i is column i of L^-1
        # 1 - (B^-1)_ii = gamma_i V_ii; it cancels where other sites all but know f_i
        explained = positive(1.0 - np.einsum("ij,ij->i", rows, rows), np.ones(len(rows)))
        prior = np.diagonal(self._K)
        weak = self.gamma * prior < WEAK_SITE
        v = np.divide(explained, self.gamma, out=np.zeros_like(explained), where=~weak)
        if weak.any():
            v[weak] = self._weak_variances(np.flatnonzero(weak))
        return np.asarray(v)

    def _weak_variances(self, sites: Index) -> Array:
        """k_ii - |L^-1 G^1/2 K e_i|^2, in blocks of columns."""
        out = np.empty(len(sites))
        for block in dense.row_blocks(len(sites), len(self.gamma)):
            W = self.explained_root(sites[block])
            prior = np.diagonal(self._K)[sites[block]]
            out[block] = positive(prior - np.einsum("ij,ij->j", W, W), prior)
        return out

    def explained_root(self, sites: Index | slice) -> Array:
        """W = L^-1 G^1/2 K for some columns: V = K - W'W."""
        return self.whitened(self._K[sites])

    def solve(self, b: Array) -> tuple[Array, Array]:
        """x = G^1/2 B^-1 G^-1/2 b, free of cancellation for precise sites, and K x from x itself.

        V b would be K x as well, but for wide priors K magnifies the rounding errors of x beyond those of V b: the mean
        would drift away from mu + K a, and the bound with it.
        """
        x = self._solve_once(b)
        Kx = dense.times(self._K, x)
        if self._uneven:
            x += self._solve_once(b - x - self.gamma * Kx)
            Kx = dense.times(self._K, x)
        return x, Kx

    def _solve_once(self, b: Array) -> Array:
        silent = self._silent
        if not silent.any():
            rhs = b / self._root
        else:
            told = np.where(silent, b, 0.0)
            rhs = np.divide(b, self._root, out=np.zeros_like(b), where=~silent) - self._root * (self._K @ told)
        times = dense.alike(blas, "trmv", self._inverse)
        x = self._root * times(self._inverse, times(self._inverse, rhs, lower=1), lower=1, trans=1)
        return np.where(silent, b, x)

    def marginal_precision(self) -> Array:
        """G^1/2 B^-1 G^1/2."""
        P, _ = lapack.dlauum(self._inverse, lower=1)
        P *= self._root[:, None]
        P *= self._root
        return np.asarray(P)

    def whitened(self, cross: Array) -> Array:
        """L^-1 G^1/2 k_* for each row k_* of ``cross``, as columns."""
        columns = np.asarray((cross * self._root).T, dtype=self._inverse.dtype, order="F")
        return np.asarray(dense.alike(blas, "trmm", columns)(1.0, self._inverse, columns, lower=1, overwrite_b=1))

    def explained_and_returned(self, cross: Array) -> tuple[Array, Array]:
        return self.whitened(cross), np.zeros((0, len(cross)))

    def covariance(self) -> Array:
        weak = np.flatnonzero(self.gamma * np.diagonal(self._K) < WEAK_SITE)
        if len(weak) > MOST_WEAK * len(self.gamma):
            W = self.explained_root(slice(None))
            return np.asarray(blas.dsyrk(-1.0, W, beta=1.0, c=self._K.T, trans=1, lower=1))
        V, _ = lapack.dlauum(self._inverse, lower=1)  # B^-1 = L^-T L^-1
        told = ~np.isin(np.arange(len(V)), weak)
        scale = np.divide(1.0, self._root, out=np.zeros(len(V)), where=told)
        V *= -scale[:, None]
        V *= scale
        V.flat[:: len(V) + 1] += scale**2
        if weak.size:
            V[:, weak] = columns = self._weak_columns(weak)
            V[weak] = columns.T
        return np.asarray(V)

    def _weak_columns(self, weak: Index) -> Array:
        """Columns of V of sites that say nearly nothing: K e_i - K G^1/2 B^-1 G^1/2 K e_i."""
        W = self.explained_root(weak)
        half = dense.alike(blas, "trmm", W)(1.0, self._inverse, W, lower=1, trans_a=1, overwrite_b=1)
        half *= self._root[:, None]
        return np.asarray(self._K[:, weak] - dense.times(self._K, half))

    def correlations(self, sd: Array) -> npt.NDArray[np.float32] | None:
        weak = np.flatnonzero(self.gamma * sd**2 < WEAK_SINGLE)
        if len(weak) > MOST_WEAK * len(self.gamma):
            return super().correlations(sd)
        R, _ = lapack.slauum(self._inverse.astype(np.float32), lower=1, overwrite_c=1)
        scale = np.divide(1.0, self._root * sd, out=np.zeros(len(R)), where=self._root > 0.0).astype(np.float32)
        for columns in dense.row_blocks(len(R), len(R)):  # both scalings while the block is in the cache
            part = R.T[columns]
            part *= -scale
            part *= scale[columns, None]
        if weak.size:
            V = self._weak_columns(weak) / sd[:, None] / sd[weak]
            R[:, weak], R[weak] = V, V.T
        R.flat[:: len(R) + 1] = 1.0
        return np.asarray(R)

    def covariance_of(self, rows: Index) -> Array:
        if (self.gamma[rows] * np.diagonal(self._K)[rows]).min() < WEAK_SITE:
            W = self.explained_root(rows)
            return np.asarray(self._K[np.ix_(rows, rows)] - W.T @ W)
        columns = self._inverse[:, rows] / self._root[rows]
        V = -(columns.T @ columns)
        V.flat[:: len(V) + 1] += 1.0 / self.gamma[rows]
        return np.asarray(V)


class SignedKernelFactor(DenseFactor):
    """Some gamma < 0: first the other sites, then the negative ones as a downdate that must stay proper.

    With V1 the covariance given the sites of gamma >= 0 and R = |G_n|^1/2 on the negative ones, C = I - R V1_nn R is
    positive definite exactly if the posterior is proper, and V = V1 + U'U with U = C^-1/2 R V1_n.
    """

    def __init__(self, K: Array, gamma: Array) -> None:
        self.gamma = gamma
        self._K = K
        self._base = KernelFactor(K, np.maximum(gamma, 0.0))
        self._negative = np.flatnonzero(gamma < 0)
        self._root = np.sqrt(-gamma[self._negative])
        self._W, V1 = self._base.explained_root(self._negative), K[self._negative]
        for columns in slices(len(K), -(-len(K) // PARTS)):
            V1[:, columns] -= self._W.T @ self._base.explained_root(columns)
        self._lower = dense.cholesky(identity_plus(-V1[:, self._negative], self._root))  # of C
        self.logdet = self._base.logdet + dense.log_det_from_cholesky(self._lower)
        self._U = dense.triangular_solve(self._lower, self._root[:, None] * V1)

    def variances(self) -> Array:
        return np.asarray(self._base.variances() + np.einsum("ij,ij->j", self._U, self._U))

    def solve(self, b: Array) -> tuple[Array, Array]:
        """(I + G K)^-1 = (I + G_p K)^-1 (I + G_n V1)^-1, the second by Woodbury on the negative sites."""
        y = b.copy()
        pulled = self._root * self._base.smooth(b)[self._negative]
        inner = dense.triangular_solve(self._lower, dense.triangular_solve(self._lower, pulled), transpose=True)
        y[self._negative] += self._root * inner
        return self._base.solve(y)

    def covariance(self) -> Array:
        return np.asarray(self._base.covariance() + self._U.T @ self._U)

    def marginal_precision(self) -> Array:
        """G - G V G."""
        P = self.covariance()
        P *= -self.gamma[:, None]
        P *= self.gamma
        P.flat[:: len(P) + 1] += self.gamma
        return P

    def explained_and_returned(self, cross: Array) -> tuple[Array, Array]:
        W = self._base.whitened(cross)
        V1 = cross[:, self._negative].T - self._W.T @ W
        return W, dense.triangular_solve(self._lower, self._root[:, None] * V1)


def kernel_factor(K: Array, gamma: Array, *, single: bool = False) -> DenseFactor:
    """The cheapest factor for these signs of gamma, in ``single`` precision if it may be and has digits enough."""
    if gamma.size and gamma.min() < 0:
        return SignedKernelFactor(K, gamma)
    return KernelFactor(K, gamma, single=single and enough_in_single(K, gamma))


def enough_in_single(K: Array, gamma: Array) -> bool:
    """Whether single precision has digits enough for these sites."""
    return bool(gamma.min(initial=0.0) >= 0.0 and gamma @ np.diagonal(K) < MOST_SINGLE)


class Kernel(Latent):
    """f ~ N(mean, K) at n inputs.

    Parameters
    ----------
    K : (n, n) array
        Covariance of f at the sites; symmetric and positive semi-definite. Duplicate inputs (singular K) are ordinary.
        No jitter is added.
    mean : number or (n,) array
        Prior mean of f.
    check : bool
        Whether to make sure that K is positive semi-definite, at about half the cost of an iteration.

    Examples
    --------
    >>> import numpy as np, klimb
    >>> x = np.linspace(0, 1, 5)
    >>> K = np.exp(-0.5 * (x[:, None] - x) ** 2 / 0.3**2)
    >>> result = klimb.infer(klimb.latents.Kernel(K), klimb.sites.Gaussian(scale=0.1), np.sin(6 * x))
    >>> result.converged
    True
    """

    def __init__(self, K: Any, mean: Any = 0.0, *, check: bool = True) -> None:
        matrix = as_float(K, "K", ndim=2)
        dense.check_symmetric(matrix, "K")
        self.K = dense.without_faint(np.ascontiguousarray(matrix))
        self.n_sites = self.n_weights = self.dense_size = matrix.shape[0]
        require(self.n_sites != 0, "K must have at least one row", "shape (0, 0)", "Pass at least one site.")
        variances_at(self.prior_variances, (self.n_sites,), "the diagonal of K")
        if check:
            with dense.threads_for(self.dense_size):
                dense.check_psd(self.K, "K")
        self.mean = mean_at(mean, (self.n_sites,), "mean")
        self.slack = np.zeros(self.n_sites)
        self._kept: dict[int, tuple[Array, DenseFactor]] = {}  # by identity of gamma

    @cached_property
    def prior_variances(self) -> Array:
        return np.diagonal(self.K).copy()

    def mvm(self, a: Array) -> Array:
        return np.asarray(self.K @ a)

    def cancelled(self, a: Array) -> float:
        reach = float(np.abs(a) @ np.sqrt(self.prior_variances))  # as |k_ij| <= sqrt(k_ii k_jj)
        return reach * reach  # not ** 2, which raises where this is infinite

    def factor(self, gamma: Array) -> DenseFactor:
        return kernel_factor(self.K, gamma)

    def kept_factor(self, gamma: Array) -> DenseFactor:
        """The factor at this very ``gamma``, made once: for predictions, which come again and again."""
        found = self._kept.get(id(gamma))
        if found is None:
            if len(self._kept) >= MOST_KEPT:
                self._kept.clear()
            found = self._kept[id(gamma)] = (gamma, self.factor(gamma))
        return found[1]

    def design(self) -> Array:
        return dense.psd_square_root(self.K, "K")

    def weight_mean(self, posterior: Posterior) -> Array:
        return posterior.m

    def weight_covariance(self, posterior: Posterior) -> Array:
        return dense.symmetric_from_lower(self._factor_of(posterior).covariance())

    def weight_sample(self, posterior: Posterior, n: int, rng: np.random.Generator) -> Array:
        root = dense.psd_square_root(posterior.covariance(), "the posterior covariance")
        return draws_from(posterior.m, root, n, rng)

    def coordinates(self, posterior: Posterior) -> Coordinates:
        return dense_coordinates(self._factor_of(posterior).covariance(), posterior.m)

    def diagonal(self) -> Latent:
        """With q diagonal over f at the sites."""
        from klimb.latents.meanfield import MeanField

        return MeanField(np.eye(self.n_sites), mean=self.mean, cov=self.K, form="dual")

    def detach(self, posterior: Posterior) -> "KernelWeights":
        from klimb.latents.kernel_weights import KernelWeights

        check_spread(posterior)
        return KernelWeights(posterior.m, posterior.a, posterior.gamma, self.K, posterior.v)

    def shocks(self, posterior: Posterior) -> Shocks | None:
        if self.n_sites > MOST_REDUCED or not posterior.spread:
            return None
        return Shocks.of_kernel(self.detach(posterior), self.weight_covariance(posterior))

    @classmethod
    def costs(cls, shape: Shape) -> Option | None:
        return kernel(shape) if (shape.kernel or shape.chain) and shape.n_outputs == 1 else None

    def predict(self, posterior: Posterior, K_new: Any, k_new_diag: Any, mean: Any = 0.0) -> tuple[Array, Array]:
        """Mean and variance of f at new inputs. [A] Eq. (20).

        ``K_new`` is the (n_new, n) covariance of the new inputs with the sites, ``k_new_diag`` the prior variances
        there and ``mean`` the prior mean there. Works in blocks of rows; no n_new x n_new matrix is formed.
        """
        cross = as_float(K_new, "K_new", ndim=2)
        require(cross.shape[1] == self.n_sites, f"K_new must have one column per site ({self.n_sites})",
                f"shape {cross.shape}", "Pass k(X_new, X).")
        from klimb.latents.kernel_weights import CrossCovariances, KernelWeights

        prior = variances_at(k_new_diag, (cross.shape[0],), "k_new_diag")
        rows = CrossCovariances(len(cross), self.n_sites, cross.__getitem__, lambda _: self._factor_of(posterior))
        m, v = KernelWeights(posterior.m, posterior.a, posterior.gamma, self.K, posterior.v).at(rows, prior)
        return mean_at(mean, m.shape, "mean") + m, v * posterior.spread

    @staticmethod
    def _factor_of(posterior: Posterior) -> DenseFactor:
        return factor_of(posterior, DenseFactor)  # type: ignore[type-abstract]

    def bound_gradient(self, posterior: Posterior) -> Array:
        """d bound / dK at a converged posterior, 1/2 [a a' - (K + G^-1)^-1]; d bound / d mean is ``posterior.a``."""
        with dense.threads_for(self.dense_size):
            P = self._factor_of(posterior).marginal_precision()
            P *= -0.5
            return dense.mirror(blas.dsyr(0.5, posterior.a, lower=1, a=P, overwrite_a=1))
