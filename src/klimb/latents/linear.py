"""A linear model's columns and prior, from which a latent over weights is made: what the plan hands to the latents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np
import numpy.typing as npt

from klimb.numerics.arrays import Array


@final
@dataclass(frozen=True, eq=False)
class LinearParts:
    """f = X w + values'(weights of the row's level) + N(0, slack), w ~ N(mean, cov), levels ~ N(0, group_cov) each.

    Without a group ``codes`` are -1 and ``n_levels`` is 0. ``fixed_columns`` says that X and the slack do not move with
    the prior, so that what is made of them may be kept.
    """

    X: Any  # (n, B) array, or a DesignMatrix
    mean: Array  # (B,)
    cov: Array  # (B,) variances or (B, B)
    slack: Array  # (n,)
    codes: npt.NDArray[np.intp]
    values: Array  # (n, k)
    n_levels: int = 0
    group_cov: Array | None = None  # (k, k)
    fixed_columns: bool = True

    def dense(self) -> tuple[Array, Array, Array]:
        """Columns, prior mean and covariance with the levels among the other weights, after them."""
        if not self.n_levels:
            return self.X, self.mean, self.cov
        assert self.group_cov is not None
        k, B = self.values.shape[1], len(self.mean)
        size = B + self.n_levels * k
        cov = np.zeros((size, size))
        cov[:B, :B] = np.diag(self.cov) if self.cov.ndim == 1 else self.cov
        cov[B:, B:] = np.kron(np.eye(self.n_levels), self.group_cov)
        X = dense_rows(self.X, self.codes, self.values, self.n_levels)
        return X, np.concatenate([self.mean, np.zeros(size - B)]), cov


def dense_rows(X: Any, codes: npt.NDArray[np.intp], values: Array, n_levels: int) -> Any:
    """Shared columns, then a column for each coefficient of each level; levels never seen add nothing."""
    if not n_levels:
        return X
    n, k = values.shape
    levels = np.zeros((n, n_levels * k))
    at = np.flatnonzero(codes >= 0)
    for j in range(k):
        levels[at, codes[at] * k + j] = values[at, j]
    return np.hstack([X, levels])
