"""Gamma and Wishart distributions of precisions and rates; Dirichlet, beta and categorical ones of shares."""

from typing import Any, ClassVar, Self

import numpy as np
from scipy.special import betaincinv, digamma, gammaincinv, gammaln, logsumexp, softmax

from klimb.conjugate.families.base import Family, NaturalPart, Naturals, generator, positive
from klimb.errors import InputError, require
from klimb.numerics.arrays import Array, as_float
from klimb.numerics.special import HALF_LOG_2PI, exponentials, stirling_error

SERIES = 16.0  # from here on the asymptotic series of Stirling has full precision with the terms below


def excess(x: Any) -> Array:
    """x - 1 - log x >= 0 without cancellation near one."""
    with np.errstate(divide="ignore"):
        return exponentials(np.log(np.asarray(x, dtype=float)))[2]


def stirling_digamma(a: Array) -> Array:
    """log a - 1/(2a) - digamma(a), by its series where the difference would cancel."""
    large = np.maximum(a, SERIES)
    u = 1.0 / (large * large)
    series = u * (1 / 12 - u * (1 / 120 - u * (1 / 252 - u * (1 / 240 - u * (1 / 132 - u * (691 / 32760))))))
    small = np.minimum(a, SERIES)
    return np.asarray(np.where(a >= SERIES, series, np.log(small) - 0.5 / small - digamma(small)))


def gamma_kl(shape_q: Array, shape_p: Array, ratio: Array | float = 1.0) -> Array:
    """KL between Gamma distributions with these shapes and ``ratio`` = mean_q * rate_p / shape_p.

    Stirling's leading terms are cancelled by hand, so that shapes of 1e12 keep their digits.
    """
    return np.asarray(
        shape_p * excess(ratio) + 0.5 * excess(shape_p / shape_q) - (shape_q - shape_p) * stirling_digamma(shape_q)
        + stirling_error(shape_p) - stirling_error(shape_q)
    )


class Gamma(Family):
    """Gamma(shape, rate): statistics (log x, x).

    >>> import numpy as np
    >>> q = Gamma(2.0, 4.0)
    >>> print(q.mean, q.variance, np.round(q.kl(Gamma(1.0, 1.0)), 4))
    0.5 0.125 0.3091
    """

    event_ndims: ClassVar[tuple[int, ...]] = (0, 0)
    shape, rate = NaturalPart(0), NaturalPart(1, -1.0)

    def __init__(self, shape: Any, rate: Any) -> None:
        a, b = np.broadcast_arrays(positive(shape, "shape"), positive(rate, "rate"))
        super().__init__((a, -b))

    def log_base(self, statistics: Naturals) -> Array:
        return -statistics[0]

    def log_partition(self) -> Array:
        return np.asarray(gammaln(self.shape) - self.shape * np.log(self.rate))

    def mean_parameters(self) -> Naturals:
        return digamma(self.shape) - np.log(self.rate), self.shape / self.rate

    @property
    def mean(self) -> Array:
        return self.shape / self.rate

    @property
    def variance(self) -> Array:
        return self.shape / self.rate**2

    def entropy(self) -> Array:
        a = self.shape
        return np.asarray(0.5 * np.log(a) - np.log(self.rate) + HALF_LOG_2PI + stirling_error(a) + 0.5 - 0.5 / a
                          - (1.0 - a) * stirling_digamma(a))

    def kl(self, other: Self) -> Array:
        ratio = (self.shape / other.shape) * (other.rate / self.rate)
        return np.maximum(gamma_kl(self.shape, other.shape, ratio), 0.0)

    def quantile(self, probability: Any) -> Array:
        """The values below which x lies with these probabilities."""
        return np.asarray(gammaincinv(self.shape, probability) / self.rate)

    def sample(self, n: int, rng: np.random.Generator | int | None = None) -> Array:
        return generator(rng).standard_gamma(self.shape, size=(n, *self.plates)) / self.rate


class Wishart(Family):
    """Wishart(dof, rate): of D x D precision matrices with mean dof * rate^-1; statistics (log det x, x).

    ``rate`` is the inverse of the usual scale matrix, so that it adds up with scatter matrices.
    """

    event_ndims: ClassVar[tuple[int, ...]] = (0, 2)
    rate = NaturalPart(1, -2.0)

    def __init__(self, dof: Any, rate: Any) -> None:
        matrix = as_float(rate, "rate")
        if matrix.ndim < 2 or matrix.shape[-1] != matrix.shape[-2]:
            raise InputError("rate must be a square matrix per plate", f"shape {matrix.shape}", "Pass (..., D, D).")
        degrees = positive(dof, "dof")
        D = matrix.shape[-1]
        if np.any(degrees <= D - 1):
            raise InputError(f"dof must exceed D - 1 = {D - 1}", f"{degrees.min()}", "Use dof = D for a wide prior.")
        degrees = np.broadcast_to(degrees, matrix.shape[:-2]).astype(float)
        super().__init__((0.5 * (degrees - D - 1), -0.5 * matrix))

    @property
    def dof(self) -> Array:
        return 2.0 * self.natural[0] + self.dimension + 1

    def _halves(self) -> Array:
        """(dof + 1 - j)/2 for j = 1..D: the shapes of the chi-squares in Bartlett's decomposition."""
        return np.asarray(0.5 * (self.dof[..., None] - np.arange(self.dimension)))

    def log_partition(self) -> Array:
        D = self.dimension
        log_det = np.linalg.slogdet(self.rate)[1]
        return np.asarray(0.5 * self.dof * (D * np.log(2.0) - log_det) + 0.25 * D * (D - 1) * np.log(np.pi)
                          + gammaln(self._halves()).sum(-1))

    def mean_parameters(self) -> Naturals:
        log_det = np.linalg.slogdet(self.rate)[1]
        return digamma(self._halves()).sum(-1) + self.dimension * np.log(2.0) - log_det, self.mean

    @property
    def mean(self) -> Array:
        return self.dof[..., None, None] * np.linalg.inv(self.rate)

    def kl(self, other: Self) -> Array:
        # Eigenvalues of rate_q^-1 rate_p, from the whitened matrix so that they are real and positive.
        root = np.linalg.cholesky(self.rate)
        half = np.linalg.solve(root, other.rate)
        values = np.linalg.eigvalsh(np.linalg.solve(root, np.swapaxes(half, -1, -2)))
        c = (self.dof / other.dof)[..., None]
        spread = (0.5 * other.dof[..., None] * excess(c * values)).sum(-1)
        q, p = self._halves(), other._halves()
        shapes = gamma_kl(q, p) - p * np.log(q / p) + 0.5 * other.dof[..., None] * np.log(c)
        return np.asarray(np.maximum(spread + shapes.sum(-1), 0.0))

    def sample(self, n: int, rng: np.random.Generator | int | None = None) -> Array:
        # Bartlett: x = L T T' L' with L L' = rate^-1, T lower triangular.
        rng, D = generator(rng), self.dimension
        T = np.tril(rng.standard_normal((n, *self.plates, D, D)), -1)
        diagonal = np.sqrt(2.0 * rng.standard_gamma(self._halves(), size=(n, *self.plates, D)))
        T[..., np.arange(D), np.arange(D)] = diagonal
        root = np.linalg.cholesky(np.linalg.inv(self.rate)) @ T
        return np.asarray(root @ np.swapaxes(root, -1, -2))


class Beta(Family):
    """Beta(a, b): statistics (log x, log(1 - x)).

    >>> print(Beta(2.0, 6.0).mean)
    0.25
    """

    event_ndims: ClassVar[tuple[int, ...]] = (0, 0)
    a, b = NaturalPart(0), NaturalPart(1)

    def __init__(self, a: Any, b: Any) -> None:
        super().__init__(tuple(np.broadcast_arrays(positive(a, "a"), positive(b, "b"))))

    @property
    def both(self) -> "Dirichlet":
        """The distribution of (x, 1 - x)."""
        return Dirichlet.from_natural((np.stack(self.natural, axis=-1),))

    def log_base(self, statistics: Naturals) -> Array:
        return -statistics[0] - statistics[1]

    def log_partition(self) -> Array:
        return self.both.log_partition()

    def mean_parameters(self) -> Naturals:
        return tuple(np.moveaxis(self.both.mean_parameters()[0], -1, 0))

    @property
    def mean(self) -> Array:
        return self.a / (self.a + self.b)

    def kl(self, other: Self) -> Array:
        return self.both.kl(other.both)

    def quantile(self, probability: Any) -> Array:
        """The values below which x lies with these probabilities."""
        return np.asarray(betaincinv(self.a, self.b, probability))

    def sample(self, n: int, rng: np.random.Generator | int | None = None) -> Array:
        return generator(rng).beta(self.a, self.b, size=(n, *self.plates))


class Dirichlet(Family):
    """Dirichlet(concentration): statistics log x."""
    event_ndims: ClassVar[tuple[int, ...]] = (1,)
    concentration = NaturalPart(0)

    def __init__(self, concentration: Any) -> None:
        alpha = positive(concentration, "concentration")
        require(alpha.ndim >= 1 and alpha.shape[-1] >= 1, "concentration must have one entry per class",
                f"shape {alpha.shape}", "Pass numpy.full(K, 1.0) for K classes.")
        super().__init__((alpha,))

    def log_base(self, statistics: Naturals) -> Array:
        return np.asarray(-statistics[0].sum(-1))

    def log_partition(self) -> Array:
        alpha = self.concentration
        return np.asarray(gammaln(alpha).sum(-1) - gammaln(alpha.sum(-1)))

    def mean_parameters(self) -> Naturals:
        alpha = self.concentration
        return (digamma(alpha) - digamma(alpha.sum(-1))[..., None],)

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

    def log_partition(self) -> Array:
        return np.asarray(logsumexp(self.natural[0], axis=-1))

    def mean_parameters(self) -> Naturals:
        return (self.probabilities,)

    @property
    def mean(self) -> Array:
        """The probabilities: the mean of the indicators."""
        return np.asarray(softmax(self.natural[0], axis=-1))

    probabilities = mean

    def inner(self, left: Naturals, right: Naturals) -> Array:
        # A probability of zero times its logit of -inf is zero.
        return np.asarray(np.where(right[0] == 0, 0.0, left[0] * right[0]).sum(-1))

    def sample(self, n: int, rng: np.random.Generator | int | None = None) -> Array:
        cumulative = np.cumsum(self.probabilities, axis=-1)
        drawn = (generator(rng).uniform(size=(n, *self.plates))[..., None] > cumulative).sum(-1)
        return np.asarray(np.minimum(drawn, self.natural[0].shape[-1] - 1))
