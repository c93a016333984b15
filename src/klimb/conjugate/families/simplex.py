"""Distributions on probabilities and classes: Beta, Dirichlet, Categorical."""

from __future__ import annotations

from typing import Any, ClassVar, Self, final

import numpy as np
from scipy.special import digamma, gammaln

from klimb.conjugate.families.base import Family, Naturals, generator, positive
from klimb.conjugate.families.gamma import gamma_kl
from klimb.errors import InputError
from klimb.numerics.arrays import Array, as_float


@final
class Beta(Family):
    """Beta(a, b): statistics (log x, log(1 - x)).

    >>> print(Beta(2.0, 6.0).mean)
    0.25
    """

    event_ndims: ClassVar[tuple[int, ...]] = (0, 0)

    def __init__(self, a: Any, b: Any) -> None:
        first, second = np.broadcast_arrays(positive(a, "a"), positive(b, "b"))
        super().__init__((first, second))

    @property
    def a(self) -> Array:
        return self.natural[0]

    @property
    def b(self) -> Array:
        return self.natural[1]

    def log_base(self, statistics: Naturals) -> Array:
        return -statistics[0] - statistics[1]

    def log_partition(self) -> Array:
        return np.asarray(gammaln(self.a) + gammaln(self.b) - gammaln(self.a + self.b))

    def mean_parameters(self) -> Naturals:
        both = digamma(self.a + self.b)
        return digamma(self.a) - both, digamma(self.b) - both

    def statistics(self, x: Array) -> Naturals:
        return np.log(x), np.log1p(-x)

    @property
    def mean(self) -> Array:
        return self.a / (self.a + self.b)

    def kl(self, other: Self) -> Array:
        # A Beta is a pair of Gammas divided by their sum, which is independent of the ratio: the chain rule of KL.
        parts = gamma_kl(self.a, other.a, self.a / other.a) + gamma_kl(self.b, other.b, self.b / other.b)
        total, base = self.a + self.b, other.a + other.b
        return np.maximum(parts - gamma_kl(total, base, total / base), 0.0)

    def quantile(self, probability: Any) -> Array:
        """The values below which x lies with these probabilities."""
        from scipy.special import betaincinv

        return np.asarray(betaincinv(self.a, self.b, probability))

    def sample(self, n: int, rng: np.random.Generator | int | None = None) -> Array:
        return generator(rng).beta(self.a, self.b, size=(n, *self.plates))


@final
class Dirichlet(Family):
    """Dirichlet(concentration): statistics log x."""

    event_ndims: ClassVar[tuple[int, ...]] = (1,)

    def __init__(self, concentration: Any) -> None:
        alpha = positive(concentration, "concentration")
        if alpha.ndim < 1 or alpha.shape[-1] < 1:
            raise InputError("concentration must have one entry per class", f"shape {alpha.shape}",
                             "Pass numpy.full(K, 1.0) for K classes.")
        super().__init__((alpha,))

    @property
    def concentration(self) -> Array:
        return self.natural[0]

    def log_base(self, statistics: Naturals) -> Array:
        return np.asarray(-statistics[0].sum(-1))

    def log_partition(self) -> Array:
        alpha = self.concentration
        return np.asarray(gammaln(alpha).sum(-1) - gammaln(alpha.sum(-1)))

    def mean_parameters(self) -> Naturals:
        alpha = self.concentration
        return (digamma(alpha) - digamma(alpha.sum(-1))[..., None],)

    def statistics(self, x: Array) -> Naturals:
        return (np.log(x),)

    @property
    def mean(self) -> Array:
        alpha = self.concentration
        return np.asarray(alpha / alpha.sum(-1, keepdims=True))

    def kl(self, other: Self) -> Array:
        # Gammas divided by their sum, which is independent of the direction: the chain rule of KL.
        q, p = np.broadcast_arrays(self.concentration, other.concentration)
        parts = gamma_kl(q, p, q / p).sum(-1)
        return np.asarray(np.maximum(parts - gamma_kl(q.sum(-1), p.sum(-1), q.sum(-1) / p.sum(-1)), 0.0))

    def sample(self, n: int, rng: np.random.Generator | int | None = None) -> Array:
        draws = generator(rng).standard_gamma(self.concentration, size=(n, *self.natural[0].shape))
        return np.asarray(draws / np.maximum(draws.sum(-1, keepdims=True), np.finfo(float).tiny))


@final
class Categorical(Family):
    """Categorical(probabilities): statistics are the indicators of the classes; natural parameters are logits."""

    event_ndims: ClassVar[tuple[int, ...]] = (1,)

    def __init__(self, probabilities: Any) -> None:
        p = as_float(probabilities, "probabilities")
        if p.ndim < 1 or np.any(p < 0) or not np.allclose(p.sum(-1), 1.0):
            raise InputError("probabilities must be nonnegative and sum to one", f"sums {np.atleast_1d(p.sum(-1))[:3]}",
                             "Divide by their sum.")
        with np.errstate(divide="ignore"):
            super().__init__((np.maximum(np.log(p), -1e300),))

    @property
    def probabilities(self) -> Array:
        logits = self.natural[0]
        p = np.exp(logits - logits.max(-1, keepdims=True))
        return np.asarray(p / p.sum(-1, keepdims=True))

    def log_partition(self) -> Array:
        logits = self.natural[0]
        top = logits.max(-1)
        return np.asarray(top + np.log(np.exp(logits - top[..., None]).sum(-1)))

    def mean_parameters(self) -> Naturals:
        return (self.probabilities,)

    def statistics(self, x: Array) -> Naturals:
        return ((np.asarray(x)[..., None] == np.arange(self.natural[0].shape[-1])).astype(float),)

    @property
    def mean(self) -> Array:
        """The probabilities: the mean of the indicators."""
        return self.probabilities

    def inner(self, left: Naturals, right: Naturals) -> Array:
        # A probability of zero times its logit of -inf is zero.
        return np.asarray(np.where(right[0] == 0, 0.0, left[0] * right[0]).sum(-1))

    def sample(self, n: int, rng: np.random.Generator | int | None = None) -> Array:
        cumulative = np.cumsum(self.probabilities, axis=-1)
        uniform = generator(rng).uniform(size=(n, *self.plates))
        drawn = (uniform[..., None] > cumulative).sum(-1)
        return np.asarray(np.minimum(drawn, self.natural[0].shape[-1] - 1))
