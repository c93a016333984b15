"""Normal distributions by precision and precision times mean, and a mean and its precision together.

Data far from the origin cost digits of the second moments: shift the data first (the ready models do).
"""

from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
from scipy.special import ndtri

from klimb.conjugate.families.base import Family, NaturalPart, Naturals, generator, matvec, positive
from klimb.conjugate.families.gamma import Gamma, Wishart, excess
from klimb.errors import InputError
from klimb.numerics.arrays import Array, as_float
from klimb.numerics.special import HALF_LOG_2PI


class Normal(Family):
    """Normal(mean, precision): statistics (x, x^2).

    >>> q = Normal(1.0, precision=4.0)
    >>> print(q.mean, q.variance, q.kl(Normal(0.0, 4.0)))
    1.0 0.25 2.0
    """

    event_ndims: ClassVar[tuple[int, ...]] = (0, 0)
    precision = NaturalPart(1, -2.0)

    def __init__(self, mean: Any, precision: Any = 1.0) -> None:
        m, tau = np.broadcast_arrays(as_float(mean, "mean"), positive(precision, "precision"))
        super().__init__((tau * m, -0.5 * tau))

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

    def entropy(self) -> Array:
        return np.asarray(0.5 - 0.5 * np.log(self.precision) + HALF_LOG_2PI)

    def kl(self, other: Self) -> Array:
        gap = self.mean - other.mean
        return 0.5 * (other.precision * gap * gap + excess(other.precision / self.precision))

    def quantile(self, probability: Any) -> Array:
        """The values below which x lies with these probabilities."""
        return np.asarray(self.mean + ndtri(probability) / np.sqrt(self.precision))

    def sample(self, n: int, rng: np.random.Generator | int | None = None) -> Array:
        return self.mean + generator(rng).standard_normal((n, *self.plates)) / np.sqrt(self.precision)


class MultivariateNormal(Family):
    """MultivariateNormal(mean, precision): statistics (x, x x')."""
    event_ndims: ClassVar[tuple[int, ...]] = (1, 2)
    precision = NaturalPart(1, -2.0)

    def __init__(self, mean: Any, precision: Any) -> None:
        m, P = as_float(mean, "mean"), as_float(precision, "precision")
        if P.ndim < 2 or P.shape[-1] != P.shape[-2] or m.ndim < 1 or m.shape[-1] != P.shape[-1]:
            raise InputError("mean (..., D) and precision (..., D, D) must fit", f"shapes {m.shape} and {P.shape}",
                             "A diagonal precision is numpy.diag(values).")
        plates = np.broadcast_shapes(m.shape[:-1], P.shape[:-2])
        P = np.broadcast_to(P, (*plates, *P.shape[-2:]))
        super().__init__((np.broadcast_to(matvec(P, m), (*plates, m.shape[-1])), -0.5 * P))

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

    def entropy(self) -> Array:
        return np.asarray(self.dimension * (0.5 + HALF_LOG_2PI) - 0.5 * self._log_det())

    def kl(self, other: Self) -> Array:
        gap = matvec(np.swapaxes(other.root, -1, -2), self.mean - other.mean)
        half = np.linalg.solve(self.root, other.root)  # eigenvalues of half half': those of P_q^-1 P_p
        values = np.linalg.svd(half, compute_uv=False) ** 2
        return np.asarray(0.5 * ((gap * gap).sum(-1) + excess(values).sum(-1)))

    def sample(self, n: int, rng: np.random.Generator | int | None = None) -> Array:
        z = generator(rng).standard_normal((n, *self.plates, self.dimension))
        return self.mean + matvec(np.swapaxes(np.linalg.inv(self.root), -1, -2), z)


class NormalGamma(Family):
    """mu | tau ~ Normal(mean, kappa tau), tau ~ Gamma(shape, rate): statistics (tau mu, tau mu^2, tau, log tau).

    >>> q = NormalGamma(1.0, 4.0, 3.0, 2.0)
    >>> print(q.mean, q.precision.mean)
    1.0 1.5
    """

    event_ndims: ClassVar[tuple[int, ...]] = (0, 0, 0, 0)
    kappa = NaturalPart(1, -2.0)

    def __init__(self, mean: Any, kappa: Any, shape: Any, rate: Any) -> None:
        m, k, a, b = np.broadcast_arrays(as_float(mean, "mean"), positive(kappa, "kappa"), positive(shape, "shape"),
                                         positive(rate, "rate"))
        super().__init__((k * m, -0.5 * k, -b - 0.5 * k * m * m, a + 0.5))

    @property
    def mean(self) -> Array:
        return self.natural[0] / self.kappa

    @cached_property
    def precision(self) -> Gamma:
        """The marginal distribution of tau."""
        rate = -self.natural[2] - 0.5 * self.natural[0] * self.mean
        return Gamma.from_natural((self.natural[3] - 0.5, -rate))

    def log_base(self, statistics: Naturals) -> Array:
        return -statistics[3]

    def log_partition(self) -> Array:
        return np.asarray(self.precision.log_partition() - 0.5 * np.log(self.kappa) + HALF_LOG_2PI)

    def mean_parameters(self) -> Naturals:
        log_tau, tau = self.precision.mean_parameters()
        m = self.mean
        return m * tau, 1.0 / self.kappa + m * m * tau, tau, log_tau

    def kl(self, other: Self) -> Array:
        gap = self.mean - other.mean
        given = other.kappa * gap * gap * self.precision.mean + excess(other.kappa / self.kappa)
        return 0.5 * given + self.precision.kl(other.precision)

    def sample(self, n: int, rng: np.random.Generator | int | None = None) -> Array:
        """Pairs (mu, tau) in the last axis."""
        rng = generator(rng)
        tau = self.precision.sample(n, rng)
        return np.stack([self.mean + rng.standard_normal(tau.shape) / np.sqrt(self.kappa * tau), tau], axis=-1)


class MeansAndPrecision(Family):
    """What a normal-Wishart distribution has in common with its tied form, whose means share one precision matrix."""
    tied: ClassVar[bool]  # whether the last plate of the means shares one L
    kappa = NaturalPart(1, -2.0)

    def __init__(self, mean: Any, kappa: Any, dof: Any, rate: Any) -> None:
        m, precision = as_float(mean, "mean"), Wishart(dof, rate)
        D = precision.dimension
        if m.ndim < 1 + self.tied or m.shape[-1] != D:
            raise InputError("mean (..., D) and rate (..., D, D) must fit", f"shapes {m.shape} and {np.shape(rate)}",
                             "A diagonal rate is numpy.diag(values).")
        plates = np.broadcast_shapes(m.shape[:-1], () if self.tied else precision.plates, np.shape(kappa))
        k = np.broadcast_to(positive(kappa, "kappa"), plates).astype(float)
        scaled = k[..., None] * m
        second = precision.natural[1] - 0.5 * self._together(scaled[..., :, None] * m[..., None, :], 2)
        half_count = self._together(np.full(plates, 0.5))
        super().__init__((scaled, -0.5 * k, second, np.asarray(precision.natural[0] + half_count)))

    @property
    def mean(self) -> Array:
        return self.natural[0] / self.kappa[..., None]

    @cached_property
    def precision(self) -> Wishart:
        """The marginal distribution of the precision matrix."""
        scatter = self._together(self.natural[0][..., :, None] * self.mean[..., None, :], 2)
        half_count = self._together(np.full(self.kappa.shape, 0.5))
        return Wishart.from_natural((np.asarray(self.natural[3] - half_count), self.natural[2] + 0.5 * scatter))

    def _together(self, each: Array, event_ndim: int = 0) -> Array:
        """Numbers or matrices of each mean, summed over those that share a precision matrix."""
        return np.asarray(each.sum(-1 - event_ndim) if self.tied else each)

    def log_partition(self) -> Array:
        each = self.dimension * (HALF_LOG_2PI - 0.5 * np.log(self.kappa))
        return self.precision.log_partition() + self._together(each)

    def mean_parameters(self) -> Naturals:
        log_det, L = self.precision.mean_parameters()
        Lm = matvec(L, self.mean)
        return Lm, self.dimension / self.kappa + (self.mean * Lm).sum(-1), L, log_det

    def kl(self, other: Self) -> Array:
        gap = self.mean - other.mean
        distance = (gap * matvec(self.precision.mean, gap)).sum(-1)
        given = other.kappa * distance + self.dimension * excess(other.kappa / self.kappa)
        return 0.5 * self._together(given) + self.precision.kl(other.precision)

    def _draws(self, n: int, rng: np.random.Generator | int | None) -> tuple[Array, Array]:
        """Means and precision matrices."""
        rng = generator(rng)
        L = self.precision.sample(n, rng)
        z = rng.standard_normal((n, *self.mean.shape)) / np.sqrt(self.kappa)[..., None]
        rows = z if self.tied else z[..., None, :]
        return self.mean + (rows @ np.linalg.inv(np.linalg.cholesky(L))).reshape(z.shape), L


class NormalWishart(MeansAndPrecision):
    """mu | L ~ Normal(mean, kappa L), L ~ Wishart(dof, rate): statistics (L mu, mu'L mu, L, log det L)."""
    event_ndims: ClassVar[tuple[int, ...]] = (1, 0, 2, 0)
    tied = False

    def sample(self, n: int, rng: np.random.Generator | int | None = None) -> Array:
        """L and, as last column, mu: (n, ..., D, D + 1)."""
        mu, L = self._draws(n, rng)
        return np.concatenate([L, mu[..., None]], axis=-1)


class TiedNormalWishart(MeansAndPrecision):
    """K means with one precision matrix: mu_k | L ~ Normal(mean_k, kappa_k L), L ~ Wishart(dof, rate).

    Statistics (L mu_k, mu_k'L mu_k, L, log det L); one member only, no plates.
    """

    event_ndims: ClassVar[tuple[int, ...]] = (2, 1, 2, 0)
    tied = True

    def sample(self, n: int, rng: np.random.Generator | int | None = None) -> Array:
        """The means in the first K rows, L below: (n, K + D, D)."""
        return np.concatenate(self._draws(n, rng), axis=1)
