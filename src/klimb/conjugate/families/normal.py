"""Normal distributions, scalar and multivariate, by precision and precision times mean."""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar, Self, final

import numpy as np

from klimb.conjugate.families.base import Family, Naturals, generator, matvec, positive
from klimb.conjugate.families.gamma import HALF_LOG_2PI, excess
from klimb.errors import InputError
from klimb.numerics.arrays import Array, as_float


@final
class Normal(Family):
    """Normal(mean, precision): statistics (x, x^2).

    >>> q = Normal(1.0, precision=4.0)
    >>> print(q.mean, q.variance, q.kl(Normal(0.0, 4.0)))
    1.0 0.25 2.0
    """

    event_ndims: ClassVar[tuple[int, ...]] = (0, 0)

    def __init__(self, mean: Any, precision: Any = 1.0) -> None:
        m, tau = np.broadcast_arrays(as_float(mean, "mean"), positive(precision, "precision"))
        super().__init__((tau * m, -0.5 * tau))

    @property
    def precision(self) -> Array:
        return -2.0 * self.natural[1]

    @property
    def mean(self) -> Array:
        return self.natural[0] / self.precision

    @property
    def variance(self) -> Array:
        return 1.0 / self.precision

    def log_partition(self) -> Array:
        return np.asarray(0.5 * self.natural[0] * self.mean - 0.5 * np.log(self.precision) + HALF_LOG_2PI)

    def mean_parameters(self) -> Naturals:
        return self.mean, self.mean**2 + self.variance

    def statistics(self, x: Array) -> Naturals:
        return x, x * x

    def entropy(self) -> Array:
        return np.asarray(0.5 - 0.5 * np.log(self.precision) + HALF_LOG_2PI)

    def kl(self, other: Self) -> Array:
        gap = self.mean - other.mean
        return 0.5 * (other.precision * gap * gap + excess(other.precision / self.precision))

    def quantile(self, probability: Any) -> Array:
        """The values below which x lies with these probabilities."""
        from scipy.special import ndtri

        return np.asarray(self.mean + ndtri(probability) / np.sqrt(self.precision))

    def sample(self, n: int, rng: np.random.Generator | int | None = None) -> Array:
        return self.mean + generator(rng).standard_normal((n, *self.plates)) / np.sqrt(self.precision)


@final
class MultivariateNormal(Family):
    """MultivariateNormal(mean, precision): statistics (x, x x')."""

    event_ndims: ClassVar[tuple[int, ...]] = (1, 2)

    def __init__(self, mean: Any, precision: Any) -> None:
        m, P = as_float(mean, "mean"), as_float(precision, "precision")
        if P.ndim < 2 or P.shape[-1] != P.shape[-2] or m.ndim < 1 or m.shape[-1] != P.shape[-1]:
            raise InputError("mean (..., D) and precision (..., D, D) must fit", f"shapes {m.shape} and {P.shape}",
                             "A diagonal precision is numpy.diag(values).")
        plates = np.broadcast_shapes(m.shape[:-1], P.shape[:-2])
        P = np.broadcast_to(P, (*plates, *P.shape[-2:]))
        super().__init__((np.broadcast_to(matvec(P, m), (*plates, m.shape[-1])), -0.5 * P))

    @property
    def dimension(self) -> int:
        return int(self.natural[0].shape[-1])

    @property
    def precision(self) -> Array:
        return -2.0 * self.natural[1]

    @cached_property
    def root(self) -> Array:
        """Lower Cholesky factor of the precision."""
        try:
            return np.asarray(np.linalg.cholesky(self.precision))
        except np.linalg.LinAlgError as error:
            raise InputError("precision must be positive definite", "a matrix that is not",
                             "Check its eigenvalues; a prior needs a positive precision in every direction.") from error

    @cached_property
    def covariance(self) -> Array:
        inverse = np.linalg.inv(self.root)
        return np.asarray(np.swapaxes(inverse, -1, -2) @ inverse)

    @cached_property
    def mean(self) -> Array:
        return matvec(self.covariance, self.natural[0])

    @property
    def variance(self) -> Array:
        """Variance of each entry."""
        return np.asarray(np.diagonal(self.covariance, axis1=-2, axis2=-1))

    def _log_det(self) -> Array:
        return np.asarray(2.0 * np.log(np.diagonal(self.root, axis1=-2, axis2=-1)).sum(-1))

    def log_partition(self) -> Array:
        quadratic = 0.5 * (self.natural[0] * self.mean).sum(-1)
        return np.asarray(quadratic - 0.5 * self._log_det() + self.dimension * HALF_LOG_2PI)

    def mean_parameters(self) -> Naturals:
        return self.mean, self.covariance + self.mean[..., :, None] * self.mean[..., None, :]

    def statistics(self, x: Array) -> Naturals:
        return x, x[..., :, None] * x[..., None, :]

    def entropy(self) -> Array:
        return np.asarray(self.dimension * (0.5 + HALF_LOG_2PI) - 0.5 * self._log_det())

    def kl(self, other: Self) -> Array:
        gap = matvec(np.swapaxes(other.root, -1, -2), self.mean - other.mean)
        half = np.linalg.solve(self.root, other.root)  # eigenvalues of half half': those of P_q^-1 P_p
        values = np.linalg.svd(half, compute_uv=False) ** 2
        return np.asarray(0.5 * ((gap * gap).sum(-1) + excess(values).sum(-1)))

    def sample(self, n: int, rng: np.random.Generator | int | None = None) -> Array:
        z = generator(rng).standard_normal((n, *self.plates, self.dimension))
        back = np.swapaxes(np.linalg.inv(self.root), -1, -2)
        return self.mean + matvec(back, z)
