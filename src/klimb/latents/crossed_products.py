"""Crossed grouping factors beyond what a dense border holds: conjugate gradients, and variances with error bars.

Levels of the largest factor are eliminated, each by itself, as in `Crossed`. What is left, S = I + W'(Z'GZ - C'D^-1C)W,
is never formed: with diag(S) as its scale its spectrum is that of a random walk between levels, close to one where
levels have many rows, so that systems and draws take a dozen products of sparse matrices.
"""

from functools import cached_property
from typing import Any

import numpy as np

from klimb.latents.costs import Option, Shape, crossed_products
from klimb.latents.crossed import CrossedColumns, EliminatedFactor
from klimb.latents.crossed_draws import MOST_DRAWS, CrossedDraws, CsrArrays, SparseBorder, noise_of
from klimb.numerics.arrays import Array
from klimb.numerics.dense import cholesky, log_det_from_cholesky, triangular_inverse
from klimb.numerics.lazy import scipy_sparse

ACCURACY = 0.005  # relative standard error of the variance of a usual row
FEWEST_DRAWS = 12
SEED = 0


class CrossedProductsFactor(EliminatedFactor):
    """S by its products: exact systems, and draws of N(0, S^-1) from the same random numbers at every gamma."""

    def __init__(self, latent: "CrossedProducts", gamma: Array) -> None:
        super().__init__(latent, gamma)
        cells = latent.cells
        self._Wx, W = latent.split_root()
        self.border = self._border(W)
        dense, mixed = self.eliminated_gram()
        self._side = W.T @ ((self.sums.mixed - mixed) @ self._Wx)  # (S, p)
        top = self._Wx.T @ (self.sums.gram - dense) @ self._Wx
        top.flat[:: len(top) + 1] += 1.0
        self._along = self.border.solve(self._side)
        lower = cholesky(np.asfortranarray(top - self._side.T @ self._along))
        log_det = self.log_det_levels + log_det_from_cholesky(lower)
        self._x_root = triangular_inverse(lower).T
        Q = latent.modes
        P = self.border.solve(Q)
        self._modes = Q, triangular_inverse(cholesky(np.asfortranarray(Q.T @ P))), P
        along = P @ self._modes[1].T
        self._exact = np.hstack([np.vstack([self._Wx @ self._x_root, -(W @ (self._along @ self._x_root))]),
                                 np.vstack([np.zeros((len(self._Wx), Q.shape[1])), W @ along])])
        self._draw(cells.n_draws or FEWEST_DRAWS)
        if not cells.n_draws and not self.border.few:  # as many for all hyperparameters
            v, error = self._variances
            share = float(np.median(error / np.maximum(v, 1e-300))) / noise_of(FEWEST_DRAWS)
            cells.n_draws = int(np.clip(4 + 2 * np.ceil((share / ACCURACY) ** 2), FEWEST_DRAWS, MOST_DRAWS))
            if cells.n_draws > FEWEST_DRAWS:
                self._draw(cells.n_draws)
        self.logdet += log_det

    def _border(self, W: Any) -> SparseBorder:
        cells, S = self._latent.cells, self._latent.cells.n_sparse
        H = scipy_sparse.vstack([cells.matrix(self.H, j) for j in range(self.H.shape[1])], format="csr")
        one, other = cells.pairs
        half = np.where(one == other, 0.5, 1.0) * self.sums.pairs
        upper = scipy_sparse.csr_matrix((half, (one, other)), shape=(S, S))
        P = (W.T @ (upper + upper.T) @ W).tocoo()
        apart = P.row < P.col
        first, second, weights = P.row[apart], P.col[apart], P.data[apart]
        shift = 1.0 + P.tocsr().diagonal()
        shift -= np.bincount(first, weights, minlength=S) + np.bincount(second, weights, minlength=S)
        pairs = CsrArrays(np.ones(2 * len(weights)), np.column_stack([first, second]).ravel().astype(np.int32),
                          np.arange(0, 2 * len(weights) + 1, 2, dtype=np.int32), S)
        return SparseBorder(shift, CsrArrays.of(H @ W), pairs, weights, CsrArrays.of(W))

    def _draw(self, n: int) -> None:
        """Draws of N(0, S^-1) and diag(S)^-1 S times them, and what they say of log det S and of variances."""
        border, S = self.border, len(self.border.shift)
        z = np.sqrt(S) * np.eye(S) if border.few else np.random.default_rng(SEED).standard_normal((n, S)).T
        found = border.roots(np.ascontiguousarray(z))
        # E z'(D^-1/2 S D^-1/2)z is known: with it taken off, logs begin with squares of what is off the diagonal.
        each = (found.logs - found.first) * (S / np.maximum((z**2).sum(axis=0), 1e-300)) + S
        self.logdet = float(np.log(border.diagonal).sum() + each.mean())
        self.log_det_error = 0.0 if border.few else float(each.std(ddof=1) / np.sqrt(n))
        Q, half, P = self._modes
        draws = found.x - P @ (half.T @ (half @ (Q.T @ found.x)))
        ahead = np.hstack([Q @ half.T, border.matrix.times(draws)]) / border.diagonal[:, None]
        self._estimate = draws, ahead
        latent = self._latent
        q = self.weights(np.zeros(latent.cells.width), np.zeros((latent.cells.n_levels, latent.cells.k)))
        self._variances = q.variances(latent.cells.rows)

    def variances(self) -> Array:
        return self._variances[0]

    def variance_error(self) -> Array:
        return self._variances[1]

    @property
    def exact(self) -> bool:
        return self.border.few

    def border_solve(self, b: Array) -> Array:
        Bd, W = self.H_dense.shape[2], self.border.W
        dense, sparse = self._Wx.T @ b[:Bd], W.T @ b[Bd:]
        x = self._x_root @ (self._x_root.T @ (dense - self._along.T @ sparse))
        e = self.border.solve(sparse - self._side @ x)
        return np.concatenate([self._Wx @ x, W @ e])

    def weights(self, shared: Array, level_mean: Array) -> CrossedDraws:
        (T, dense), cells = self.T, self._latent.cells
        return CrossedDraws(shared, level_mean, self.K, dense, T, cells.columns, cells.starts, self.border,
                            self._exact, *self._estimate)


class CrossedProducts(CrossedColumns):
    """The model of `Crossed` for smaller factors of tens of thousands of levels: nothing dense is of their size.

    Means and covariances of any rows come from conjugate gradients. Variances of all rows are estimates whose standard
    errors are about half a per cent (``result.variance_error``), with the same random numbers for all hyperparameters.

    Parameters
    ----------
    X, sparse, codes, values, n_levels, mean, cov, roots, group_cov, slack
        As in `Crossed`.

    Examples
    --------
    >>> import numpy as np, klimb
    >>> from scipy.sparse import csr_matrix
    >>> rng = np.random.default_rng(0)
    >>> users, films = rng.integers(0, 60, 900), rng.integers(0, 40, 900)
    >>> by_film = csr_matrix((np.ones(900), (np.arange(900), films)))
    >>> y = rng.random(900) < 0.5
    >>> direct, products = (kind(np.ones((900, 1)), by_film, users) for kind in (
    ...     klimb.latents.Crossed, klimb.latents.CrossedProducts))
    >>> exact, result = (klimb.infer(latent, klimb.sites.Logistic(), y) for latent in (direct, products))
    >>> bool(np.abs(result.posterior.v / exact.posterior.v - 1).max() < 0.05)
    True
    """

    @classmethod
    def costs(cls, shape: Shape) -> Option | None:
        return crossed_products(shape) if shape.linear and shape.n_levels > 0 and shape.sparse else None

    def factor(self, gamma: Array) -> CrossedProductsFactor:
        return CrossedProductsFactor(self, gamma)

    @cached_property
    def modes(self) -> Array:
        """Common shifts of each coefficient of all levels of a factor, whitened: (S, r)."""
        columns, begin = list[Array](), 0
        for root, copies in self.roots:
            k = len(np.atleast_2d(root))
            for j in range(k):
                columns.append(np.zeros(self.cells.n_sparse))
                columns[-1][begin + j : begin + k * copies : k] = 1.0
            begin += k * copies
        return np.column_stack(columns)

    def split_root(self) -> tuple[Array, Any]:
        """The prior root of dense columns, and that of sparse ones as a CSR matrix."""
        W, Bd = self.border_root, self.cells.X.shape[1]
        if W.ndim == 1:
            return np.diag(W[:Bd]), scipy_sparse.diags_array(W[Bd:], format="csr")
        rank = W.shape[1] - self.cells.n_sparse
        return W[:Bd, :rank].toarray(), scipy_sparse.csr_matrix(W[Bd:, rank:])
