"""The Gaussian prior of weights: mean and a covariance that is a scalar, a vector or a matrix."""

from __future__ import annotations

from typing import Any, final

import numpy as np

from klimb.errors import InputError
from klimb.latents.base import mean_at, variances_at
from klimb.numerics.arrays import Array, as_float
from klimb.numerics.dense import check_symmetric, psd_square_root


@final
class WeightPrior:
    """N(mean, S S') over D weights; S is diagonal (kept as a vector) or a D x R matrix, R the rank."""

    def __init__(self, mean: Any, cov: Any, n_weights: int) -> None:
        self.n_weights = n_weights
        self.mean = mean_at(mean, (n_weights,), "mean")
        values = as_float(cov, "cov")
        if values.ndim <= 1:
            self._root = np.sqrt(variances_at(values, (n_weights,), "cov"))
        elif values.shape == (n_weights, n_weights):
            check_symmetric(values, "cov")
            self._root = psd_square_root(values, "cov")
        else:
            raise InputError(
                f"cov must be a number, a vector of {n_weights} variances or a {n_weights} x {n_weights} matrix",
                f"shape {values.shape}", "There is one variance per column of X.",
            )

    @property
    def root(self) -> Array:
        """S: a vector where it is diagonal, else a matrix."""
        return self._root

    def whiten(self, gram: Array) -> Array:
        """S' gram S; may overwrite ``gram``."""
        if self._root.ndim == 2:
            return np.asarray(self._root.T @ gram @ self._root)
        gram *= self._root
        gram *= self._root[:, None]
        return gram

    def root_times(self, matrix: Array) -> Array:
        """S matrix."""
        return np.asarray(self._root @ matrix if self._root.ndim == 2 else self._root[:, None] * matrix)

    def covariance_times(self, vectors: Array) -> Array:
        """Sigma_w vectors, one vector or several as columns."""
        if self._root.ndim == 2:
            return np.asarray(self._root @ (self._root.T @ vectors))
        variances = self._root**2
        return np.asarray(variances * vectors if vectors.ndim == 1 else variances[:, None] * vectors)

    def covariance(self) -> Array:
        """Sigma_w as a matrix."""
        return np.asarray(self._root @ self._root.T if self._root.ndim == 2 else np.diag(self._root**2))
