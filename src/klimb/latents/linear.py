"""A linear model's columns and prior, from which a latent over weights is made: what the plan hands to the latents."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from klimb.errors import InputError
from klimb.latents.base import mean_at, variances_at
from klimb.numerics.arrays import Array, Index, as_float
from klimb.numerics.dense import check_symmetric, psd_square_root
from klimb.numerics.lazy import scipy_linalg, scipy_sparse


class WeightPrior:
    """N(mean, S S') over D weights; the root S is diagonal (kept as a vector) or a D x R matrix, R the rank."""

    def __init__(self, mean: Any, cov: Any, n_weights: int, name: str = "cov") -> None:
        self.n_weights = n_weights
        self.mean = mean_at(mean, (n_weights,), "mean")
        values = as_float(cov, name)
        if values.ndim <= 1:
            self.root = np.sqrt(variances_at(values, (n_weights,), name))
        elif values.shape == (n_weights, n_weights):
            check_symmetric(values, name)
            self.root = psd_square_root(values, name)
        else:
            raise InputError(
                f"{name} must be a number, a vector of {n_weights} variances or a {n_weights} x {n_weights} matrix",
                f"shape {values.shape}", "There is one variance per column.",
            )

    def whiten(self, gram: Array) -> Array:
        """S' gram S; may overwrite ``gram``."""
        if self.root.ndim == 2:
            return np.asarray(self.root.T @ gram @ self.root)
        gram *= self.root
        gram *= self.root[:, None]
        return gram

    def root_times(self, matrix: Array) -> Array:
        """S matrix."""
        return np.asarray(self.root @ matrix if self.root.ndim == 2 else self.root[:, None] * matrix)

    def covariance_times(self, vectors: Array) -> Array:
        """Sigma_w vectors, one vector or several as columns."""
        if self.root.ndim == 2:
            return np.asarray(self.root @ (self.root.T @ vectors))
        variances = self.root**2
        return np.asarray(variances * vectors if vectors.ndim == 1 else variances[:, None] * vectors)

    def covariance(self) -> Array:
        """Sigma_w as a matrix."""
        return np.asarray(self.root @ self.root.T if self.root.ndim == 2 else np.diag(self.root**2))


@dataclass(frozen=True, eq=False)
class LinearParts:
    """f = X w + values'(weights of the row's level) + N(0, slack), w ~ N(mean, cov), levels ~ N(0, group_cov) each.

    Without a group ``codes`` are -1 and ``n_levels`` is 0. ``fixed_columns`` says that X and the slack do not move with
    the prior, so that what is made of them may be kept. Further columns may be ``sparse``: their weights come after w,
    and each of ``roots`` is (R, copies), for as many consecutive vectors of weights with prior N(0, R R'). With fields
    among them, the prior of all weights is a sparse ``precision``, under ``constraints``.
    """

    X: Any  # (n, B) array, or a DesignMatrix
    mean: Array  # (B,)
    cov: Array  # (B,) variances or (B, B)
    slack: Array  # (n,)
    codes: Index
    values: Array  # (n, k)
    n_levels: int = 0
    group_cov: Array | None = None  # (k, k)
    fixed_columns: bool = True
    sparse: Any = None  # (n, S) CSR matrix
    roots: tuple[tuple[Array, int], ...] = ()
    precision: Any = None  # (B + S, B + S) CSC matrix instead of cov and roots, on a pattern that does not move
    logdet: float = 0.0  # of ``precision`` where the constraints hold
    constraints: Array | None = None
    reduced: bool = False  # about as few rows as columns, which stand for many more
    loose: bool = False  # far from an optimum: products may be in single precision

    def dense(self) -> tuple[Array, Array, Array]:
        """Columns, prior mean and covariance with the levels among the other weights, after them."""
        if not self.n_levels:
            return self.X, self.mean, self.cov
        assert self.group_cov is not None
        shared = np.diag(self.cov) if self.cov.ndim == 1 else self.cov
        crossed = [np.kron(np.eye(copies), root @ root.T) for root, copies in self.roots]
        cov = np.asarray(scipy_linalg.block_diag(shared, *crossed, np.kron(np.eye(self.n_levels), self.group_cov)))
        X = dense_rows(self.X, self.codes, self.values, self.n_levels, self.sparse)
        return X, np.concatenate([self.mean, np.zeros(len(cov) - len(self.mean))]), cov


def side_by_side(columns: Sequence[Any]) -> Any:
    """Matrices, dense or sparse, as the columns of one CSR matrix."""
    return scipy_sparse.csr_matrix(scipy_sparse.hstack([scipy_sparse.csr_matrix(one) for one in columns], format="csr"))


def dense_rows(X: Any, codes: Index, values: Array, n_levels: int, sparse: Any = None) -> Any:
    """Shared columns, then a column for each coefficient of each level; levels never seen add nothing."""
    if sparse is not None:
        X = np.hstack([X, sparse.toarray()])
    if not n_levels:
        return X
    n, k = values.shape
    levels = np.zeros((n, n_levels * k))
    at = np.flatnonzero(codes >= 0)
    for j in range(k):
        levels[at, codes[at] * k + j] = values[at, j]
    return np.hstack([X, levels])
