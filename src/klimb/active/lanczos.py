"""The posterior known by products alone, as in [N]: means and single variances by solving systems, all by Lanczos.

    A = diag(1 / cov) + X' diag(gamma) X ~ Q T Q'        v_i >= |L^-1 Q'x_i|^2, T = L L'        ([N] section 2.3)

k products with the labelled rows and k with the pool give a lower bound of every variance, however many labels there
are. It is exact where k reaches the number of columns, or of labels beside a prior that is the same for all weights.
"""

from __future__ import annotations

from functools import cached_property
from typing import final

import numpy as np

from klimb.active.belief import Belief
from klimb.active.pool import Index, take_rows, times_each
from klimb.errors import InputError
from klimb.latents.base import Posterior
from klimb.latents.weights import Weights
from klimb.linalg.krylov import lanczos, simplest_preconditioner, solve
from klimb.linalg.matrix import DesignMatrix
from klimb.linalg.normal_matrix import NormalMatrix
from klimb.linalg.operators import as_operator
from klimb.numerics.arrays import Array
from klimb.numerics.dense import cholesky, row_blocks, triangular_inverse

SOLVED = 1e-11  # residual of the systems


@final
class KrylovBelief(Belief):
    """V_w = A^-1 by conjugate gradients; variances of a pool from below, by ``k`` Lanczos vectors."""

    exact = False

    def __init__(self, matrix: NormalMatrix, mean: Array, k: int, seed: int = 0) -> None:
        self.mean, self.matrix, self.k = mean, matrix, min(k, matrix.size)
        self._preconditioner = simplest_preconditioner(matrix)
        self._seed = seed
        self.n_pool_products = 0

    def times(self, vectors: Array) -> Array:
        return solve(self.matrix, vectors, preconditioner=self._preconditioner, tol=SOLVED).x

    @cached_property
    def root(self) -> Array:
        """R = Q L^-T of k columns: R R' <= V_w in the sense of quadratic forms."""
        rng = np.random.default_rng(self._seed)
        found = lanczos(self.matrix.times, self.matrix.size, self.k, rng=rng,
                        start=rng.standard_normal((self.matrix.size, 1)))
        return np.asarray(found.basis @ triangular_inverse(cholesky(np.asfortranarray(found.T))).T)

    def variances(self, pool: DesignMatrix) -> Array:
        root = self.root
        self.n_pool_products += root.shape[1]
        v = np.empty(pool.shape[0])
        for rows in row_blocks(pool.shape[0], max(root.shape[1], pool.shape[1])):
            whole = rows == slice(0, pool.shape[0])
            part = times_each(pool, root) if whole else take_rows(pool, np.arange(rows.start, rows.stop)) @ root
            np.einsum("ij,ij->i", part, part, out=v[rows])
        return v


def krylov_belief(posterior: Posterior, rows: Index, k: int, seed: int = 0) -> KrylovBelief:
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
    return KrylovBelief(NormalMatrix(diagonal, [(as_operator(design, "X"), posterior.gamma[:n])]), posterior.mean, k,
                        seed)
