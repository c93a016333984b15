"""A Gaussian process seen through M inducing points: [S] Eq. (4)."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from klimb.errors import InputError, require
from klimb.latents.base import Latent, Posterior, asked, mean_at, variances_at
from klimb.latents.coordinates import Coordinates, MatrixCoordinates
from klimb.latents.costs import Option, Shape, inducing
from klimb.latents.weights import PrimalFactor, Weights
from klimb.latents.weights_posterior import DenseWeights
from klimb.linalg.matrix import BlockedDesign, DenseDesign, DesignMatrix
from klimb.numerics.arrays import Array, Index, as_float
from klimb.numerics.dense import Whitener, check_symmetric, psd_square_root, row_blocks, threads_for, triangular_solve


class Inducing(Latent):
    """f_i = k_u(x_i)' Kuu^-1 u + e_i with u ~ N(0, Kuu) at the inducing points and e_i what they leave unexplained.

    In whitened coordinates this is `Weights` with one row L^-1 k_u(x_i) per site, L L' = Kuu, and the unexplained
    variance as slack: Kuu is never inverted, and duplicate inducing points (a singular Kuu) are ordinary. The weights
    are the whitened values; with the inducing points at the inputs the model is the full Gaussian process.

    Parameters
    ----------
    Kuu : (M, M) array
        Covariance of f at the inducing points.
    Kuf : (M, N) array
        Covariance of f at the inducing points with f at the sites.
    kff_diag : number or (N,) array
        Prior variance of f at the sites.
    mean : number or (N,) array
        Prior mean of f at the sites.

    Examples
    --------
    >>> import numpy as np, klimb
    >>> x, z = np.linspace(0, 3, 50), np.linspace(0, 3, 6)
    >>> k = lambda a, b: np.exp(-0.5 * (a[:, None] - b) ** 2)
    >>> latent = klimb.latents.Inducing(k(z, z), k(z, x), 1.0)
    >>> result = klimb.infer(latent, klimb.sites.Poisson(), np.round(np.exp(np.sin(x))))
    >>> bool(result.bound <= klimb.infer(klimb.latents.Kernel(k(x, x)), klimb.sites.Poisson(),
    ...                                  np.round(np.exp(np.sin(x)))).bound)
    True
    """

    def __init__(self, Kuu: Any, Kuf: Any, kff_diag: Any, mean: Any = 0.0) -> None:
        inner = as_float(Kuu, "Kuu", ndim=2)
        check_symmetric(inner, "Kuu")
        cross = as_float(Kuf, "Kuf", ndim=2)
        if cross.shape[0] != inner.shape[0] or 0 in cross.shape:
            raise InputError(f"Kuf must have one row per inducing point ({inner.shape[0]}) and one column per site",
                             f"shape {cross.shape}", "Pass k(Z, X).")
        with threads_for(inner.shape[0]):
            whitener = Whitener(psd_square_root(inner, "Kuu"))
            rows = DenseDesign(whitener.whitened(cross.T))
            self._build(whitener, rows, _unexplained(rows, kff_diag), mean)

    @classmethod
    def of_rows(cls, whitener: Whitener, rows: DesignMatrix, kff_diag: Any, mean: Any = 0.0) -> "Inducing":
        """From rows that are whitened already, stored or computed when they are asked for (`klimb.rows`)."""
        latent = cls.__new__(cls)
        with threads_for(whitener.width):
            latent._build(whitener, rows, _unexplained(rows, kff_diag), mean)
        return latent

    def _build(self, whitener: Whitener, rows: DesignMatrix, slack: Array, mean: Any) -> None:
        self._whitener, self.n_sites = whitener, rows.shape[0]
        self._weights = Weights(rows, slack=slack, form="primal")
        self.row_design, self.root = rows, whitener.root  # L with L L' = Kuu
        self.n_weights = self.dense_size = self._weights.n_weights
        self.mean = self._weights.mean = mean_at(mean, (self.n_sites,), "mean")  # of f: that of the weights is zero
        self.slack = self._weights.slack

    @cached_property
    def prior_variances(self) -> Array:
        return self._weights.prior_variances

    @property
    def rows(self) -> Array:
        """The whitened design, one row per site, as one array; ``row_design`` may compute it when it is asked for."""
        return self.row_design.dense()

    mvm = asked("_weights", "mvm")
    factor = asked("_weights", "factor")
    design = asked("_weights", "design")
    weight_mean = asked("_weights", "weight_mean")
    weight_covariance = asked("_weights", "weight_covariance")

    def thin(self, rows: Index) -> Latent:
        thinned = Inducing.__new__(Inducing)
        thinned._build(self._whitener, self.row_design.subset(rows), self.slack[rows], self.mean[rows])
        return thinned

    def marginals(self, posterior: Posterior) -> tuple[Array, Array]:
        m, v = posterior.latent.detach(posterior).at(self.row_design, self.slack)
        return self.mean + m, v

    def weight_root(self, posterior: Posterior) -> Array:
        """A matrix whose outer square is the posterior covariance of the whitened weights."""
        factor = posterior.factorised()
        assert isinstance(factor, PrimalFactor)
        return factor.weight_root()

    def pull_back(self, posteriors: Sequence[Posterior], take: Callable[[slice, Array], None]) -> tuple[Array, Array]:
        """d bound / d(Kuu, Kuf, kff_diag) at converged ``posteriors`` that share this prior, summed, in bounded memory.

        That in Kuf goes to ``take(block of sites, part of M rows)``, the others are returned; that in the mean is
        ``posterior.a``. The bound hangs on the whitened rows x = L^-1 k_u and the slack c = k_ff - |x|^2 alone. With
        q(u) = N(m_u, V_u): d/dx_i = a_i m_u - gamma_i V_u x_i + gamma_i x_i.
        """
        L, design = self.root, self.row_design
        require(L.shape[0] == L.shape[1], "gradients need inducing points whose Kuu has full rank",
                f"rank {L.shape[1]} of {L.shape[0]}", "Drop inducing points that repeat each other.")
        assert isinstance(design, BlockedDesign)
        with threads_for(self.dense_size):
            states = [(q.a, q.gamma, self.weight_mean(q), self.weight_root(q)) for q in posteriors]
            product = np.zeros_like(L)
            for block, rows in design.blocks():
                d_rows = np.zeros_like(rows)
                for a, gamma, mean, spread in states:
                    d_rows += np.multiply.outer(a[block], mean)
                    d_rows += gamma[block, None] * (rows - (rows @ spread) @ spread.T)
                product += d_rows.T @ rows
                take(block, triangular_solve(L, d_rows.T, transpose=True))  # L^-T d_rows': x' = k_u' L^-T
            d_L = -np.tril(triangular_solve(L, product, transpose=True))
            half = np.tril(L.T @ d_L)  # Cholesky backwards: Kuu-bar = L^-T sym(Phi(L' L-bar)) L^-1
            half.flat[:: len(half) + 1] *= 0.5
            inner = triangular_solve(L, 0.5 * (half + half.T), transpose=True)
            d_inner = triangular_solve(L, inner.T, transpose=True)
        return 0.5 * (d_inner + d_inner.T), -0.5 * np.sum([q.gamma for q in posteriors], axis=0)

    def coordinates(self, posterior: Posterior) -> Coordinates:
        return MatrixCoordinates(self.row_design, self.weight_root(posterior), "f", posterior.m, np.sqrt(posterior.v))

    def detach(self, posterior: Posterior) -> DenseWeights:
        """q of the whitened weights: rows of L are ``Whitener(latent.root).whitened(k(X_new, Z))``."""
        return DenseWeights(self.weight_mean(posterior),
                            self.weight_root(posterior) if posterior.spread else np.zeros(self.n_weights))

    def whitened(self) -> DesignMatrix:
        return self.row_design

    @classmethod
    def costs(cls, shape: Shape) -> Option | None:
        serves = shape.kernel and shape.n_weights < shape.n_sites and shape.n_outputs == 1
        return inducing(shape) if serves else None

    def predict(self, posterior: Posterior, K_new: Any, k_new_diag: Any, mean: Any = 0.0) -> tuple[Array, Array]:
        """Mean and variance of f at new inputs; ``K_new`` is (n_new, M), their covariance with the inducing points."""
        cross = as_float(K_new, "K_new", ndim=2)
        if cross.shape[1] != self.root.shape[0]:
            raise InputError(f"K_new must have one column per inducing point ({self.root.shape[0]})",
                             f"shape {cross.shape}", "Pass k(X_new, Z).")
        total = variances_at(k_new_diag, (cross.shape[0],), "k_new_diag")
        m, v, q = np.empty(len(cross)), np.empty(len(cross)), self.detach(posterior)
        for block in row_blocks(len(m), self.n_weights):
            rows = self._whitener.whitened(cross[block])
            unexplained = np.maximum(total[block] - np.einsum("ij,ij->i", rows, rows), 0.0)
            m[block], v[block] = q.at(DenseDesign(rows), unexplained * posterior.spread)
        return mean_at(mean, m.shape, "mean") + m, v


def _unexplained(rows: DesignMatrix, kff_diag: Any) -> Array:
    """What whitened rows leave of the prior variances of f."""
    total = variances_at(kff_diag, (rows.shape[0],), "kff_diag")
    explained, _ = rows.row_norms_squared(np.ones(rows.shape[1]))
    excess = explained - total
    if (excess > 1e-6 * np.maximum(total, 1e-300)).any():
        i = int(excess.argmax())
        raise InputError("the inducing points cannot explain more than the prior variance",
                         f"kff_diag {total[i]:.6g} but k_u'Kuu^-1 k_u {explained[i]:.6g} at index {i}",
                         "Check that Kuu, Kuf and kff_diag come from one kernel (White noise belongs to none of Kuf).")
    return np.maximum(total - explained, 0.0)
