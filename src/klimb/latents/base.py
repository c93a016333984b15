"""The contracts of a latent model: Latent, Factor and Posterior.

    w ~ N(mu_w, Sigma_w)      h = mu + X (w - mu_w)      f_i | h_i ~ N(h_i, c_i)      K = X Sigma_w X'

A latent knows nothing of likelihoods. Whatever the model, a Gaussian q of interest is two N-vectors (a, gamma):

    m = mu + K a        V = (K^-1 + diag(gamma))^-1 (in the sense of Woodbury)        v = c + diag(V)
    KL(q || prior) = 1/2 [ a'(m - mu) - gamma'(v - c) + log det(I + K diag(gamma)) ]
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias, final

import numpy as np
import numpy.typing as npt

from klimb.errors import InputError
from klimb.numerics.arrays import Array, as_float

Product: TypeAlias = Callable[[Array], Array]


class Factor(ABC):
    """A factorised posterior precision at given ``gamma``: what the loop may ask of it."""

    gamma: Array
    logdet: float  # log det(I + K diag(gamma))

    @abstractmethod
    def variances(self) -> Array:
        """diag(V), without the slack c."""

    @abstractmethod
    def smooth(self, b: Array) -> Array:
        """V b, where V = K (I + diag(gamma) K)^-1 is the posterior covariance at the sites."""

    def solve(self, b: Array) -> tuple[Array, Array]:
        """``x`` = (I + diag(gamma) K)^-1 b and K x, together because the second comes with the first."""
        smoothed = self.smooth(b)
        return b - self.gamma * smoothed, smoothed

    def energy(self, b: Array) -> float:
        """b' V b: with b = a + alpha, twice what the bound still gains from the best move of the mean."""
        return float(b @ self.smooth(b))

    def covariance(self) -> Array | None:
        """V as a dense N x N matrix of which only the lower triangle counts.

        None where mean and spread do not share one V (mean-field).
        """
        return None

    def products(self) -> tuple[Product, Product] | None:
        """Products with V and with its entrywise square, where those are cheaper than a dense V; None elsewhere."""
        return None

    @property
    def exact(self) -> bool:
        """Whether variances and log determinant are computed; False where they are estimated (`Implicit`)."""
        return True

    def variance_error(self) -> Array:
        """Standard errors of ``variances()``; zeros where they are computed."""
        return np.zeros_like(self.gamma)

    def blocks(self) -> tuple[Factor, ...]:
        """The factors of equally large, independent blocks of sites, where the posterior has such."""
        return (self,)


@final
@dataclass(frozen=True, eq=False)
class Posterior:
    """A Gaussian q given by (a, gamma), with its marginals at the sites.

    ``m`` and ``v`` are the mean and variance of f at each site, ``kl`` is KL(q || prior). ``spread`` is False for a
    point estimate, whose predictions have no variance.

    >>> import numpy as np, klimb
    >>> X = np.column_stack([np.ones(8), np.arange(8.0)])
    >>> latent, y = klimb.latents.Weights(X, cov=4.0), [0, 0, 1, 0, 1, 1, 1, 1]
    >>> posterior = klimb.infer(latent, klimb.sites.Logistic(), y).posterior
    >>> print(posterior.mean.round(2), np.sqrt(np.diag(posterior.covariance())).round(2), posterior.m[:3].round(1))
    [-1.77  0.98] [1.29 0.46] [-1.8 -0.8  0.2]
    >>> print(np.mean(posterior.sample(4000, rng=0)[:, 1] > 0).round(2))  # that the slope is positive
    0.99
    """

    latent: Latent
    a: Array
    gamma: Array
    m: Array
    v: Array
    kl: float
    spread: bool = True
    factor: Factor | None = field(default=None, repr=False)  # at ``gamma``, if the fit has left one

    def factorised(self) -> Factor:
        """The factor at ``gamma``: the one of the fit, or a new one."""
        return self.factor if self.factor is not None else self.latent.factor(self.gamma)

    @property
    def mean(self) -> Array:
        """Posterior mean of the weights (of f at the sites for a kernel latent)."""
        return self.latent.weight_mean(self)

    def covariance(self) -> Array:
        """Posterior covariance of the weights (of f at the sites for a kernel latent)."""
        return self.latent.weight_covariance(self)

    def sample(self, n: int, rng: np.random.Generator | int | None = None) -> Array:
        """``n`` draws of the weights, one a row."""
        if n < 0:
            raise InputError("the number of draws must not be negative", f"{n}", "Ask for n >= 0 draws.")
        generator = np.random.default_rng(rng)
        return self.latent.weight_sample(self, n, generator)


class Latent(ABC):
    """A Gaussian prior and its map to the sites."""

    n_sites: int
    mean: Array  # mu at the sites
    slack: Array  # c at the sites
    n_weights: int  # rank of the map at most; the size of the smallest system it can solve
    dense_size: int  # rows of the dense matrices it factorises
    n_outputs: int = 1  # latent values per datum (`Outputs`); sites are numbered output by output
    log_evidence: float = 0.0  # of Gaussian data that the latent itself holds (`Implicit`)
    by_products: bool = False  # known by products alone (`Implicit`): the double loop is its default step

    @property
    def n_products(self) -> int:
        """Single-vector products so far with a matrix that is known only by them (`Implicit`)."""
        return 0

    @cached_property
    @abstractmethod
    def prior_variances(self) -> Array:
        """diag(K), without the slack."""

    @abstractmethod
    def mvm(self, a: Array) -> Array:
        """K a."""

    def cancelled(self, a: Array) -> float:
        """Size of the terms that may cancel in a'K a, as far as K a is summed from entries of K; 0 where it is not."""
        return 0.0

    @abstractmethod
    def factor(self, gamma: Array) -> Factor:
        """Factorise the posterior precision, or raise `NotPositiveDefiniteError` where q would be improper."""

    def thin(self, rows: npt.NDArray[np.intp]) -> Latent | None:
        """The same prior seen by some of the data only, for a cheap first fit; None where that would not be cheap."""
        return None

    def marginals(self, posterior: Posterior) -> tuple[Array, Array]:
        """Mean and variance at every site under the posterior of a thinned latent; goes with ``thin``."""
        raise TypeError(f"{type(self).__name__} does not thin, so it has no marginals of a thinned posterior")

    @abstractmethod
    def design(self) -> Array:
        """A dense N x R matrix Z with Z Z' = K: the prior in whitened coordinates, f = mu + Z u, u ~ N(0, I)."""

    @abstractmethod
    def weight_mean(self, posterior: Posterior) -> Array: ...

    @abstractmethod
    def weight_covariance(self, posterior: Posterior) -> Array: ...

    @abstractmethod
    def weight_sample(self, posterior: Posterior, n: int, rng: np.random.Generator) -> Array: ...


def mean_at(mean: Any, shape: tuple[int, ...], name: str) -> Array:
    """``mean`` as a read-only vector of the given shape; scalars are spread."""
    array = as_float(mean, name)
    if array.ndim != 0 and array.shape != shape:
        raise InputError(f"{name} must be a number or have shape {shape}", f"shape {array.shape}", "Pass one each.")
    return np.broadcast_to(array, shape)


def variances_at(values: Any, shape: tuple[int, ...], name: str) -> Array:
    """Non-negative ``values`` as a vector of the given shape."""
    array = mean_at(values, shape, name)
    if array.size and array.min() < 0:
        i = int(array.argmin())
        raise InputError(f"{name} must not be negative", f"{array[i]:.6g} at index {i}", "Variances are 0 or more.")
    return array


def draws_from(mean: Array, root: Array, n: int, rng: np.random.Generator) -> Array:
    """``n`` rows of N(mean, root root')."""
    return mean + rng.standard_normal((n, root.shape[1])) @ root.T
