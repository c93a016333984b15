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
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from klimb.errors import InputError, require
from klimb.linalg.matrix import DENSE_LIMIT, DesignMatrix
from klimb.numerics.arrays import Array, Index, as_float
from klimb.numerics.dense import psd_square_root, row_blocks

if TYPE_CHECKING:
    from klimb.latents.coordinates import Coordinates
    from klimb.latents.costs import Option, Shape
    from klimb.latents.implicit import Implicit
    from klimb.latents.linear import LinearParts
    from klimb.latents.shocks import Shocks
    from klimb.latents.weights_posterior import WeightPosterior

Product: TypeAlias = Callable[[Array], Array]
OwnFactor = TypeVar("OwnFactor", bound="Factor")


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

    def shift(self, b: Array) -> Array:
        """The same where nobody will ask for variances, which ``smooth`` may compute beside it."""
        return self.smooth(b)

    def smooth_rows(self, rows: Index, B: Array) -> Array:
        """V b at some ``rows``, for several b, rows of ``B``, that have entries only there."""
        whole = np.zeros((len(B), len(self.gamma)))
        whole[:, rows] = B
        return np.array([self.smooth(b)[rows] for b in whole])

    def solve(self, b: Array) -> tuple[Array, Array]:
        """``x`` = (I + diag(gamma) K)^-1 b and K x, together because the second comes with the first."""
        smoothed = self.smooth(b)
        return b - self.gamma * smoothed, smoothed

    def energy(self, b: Array) -> float:
        """b' V b: with b = a + alpha, twice what the bound still gains from the best move of the mean."""
        return float(b @ self.smooth(b))

    def covariance(self) -> Array | None:
        """V, N x N, of which the lower triangle counts; None where mean and spread do not share one V (mean-field)."""
        return None

    def covariance_of(self, rows: Index) -> Array | None:
        """The block of V of some sites, lower triangle; None as for ``covariance``."""
        V = self.covariance()
        return None if V is None else V[np.ix_(rows, rows)]

    def correlations(self, sd: Array) -> npt.NDArray[np.float32] | None:
        """V scaled by ``sd`` on both sides, in single precision: the lower triangle, in Fortran order."""
        V = self.covariance()
        if V is None:
            return None
        R, scale = np.empty(V.shape, dtype=np.float32, order="F"), 1.0 / sd
        for columns in row_blocks(len(sd), len(sd)):
            part = V.T[columns] * scale
            R.T[columns] = np.multiply(part, scale[columns, None], out=part)
        return R

    def by_weights(self) -> tuple[DesignMatrix, Array] | None:
        """X, which factors of other outputs may share, and S with few columns such that V = X S S'X'; None without."""
        return None

    def products(self) -> tuple[Product, Product] | None:
        """Products with V and with its entrywise square, where those are cheaper than a dense V; None elsewhere."""
        return None

    def energy_of_squares(self, b: Array) -> float | None:
        """b'(V o V) b, where ``products`` are at hand; None elsewhere."""
        products = self.products()
        return None if products is None else float(b @ products[1](b))

    log_det_error: float = 0.0  # standard error of ``logdet``, where that is estimated
    log_det_rounding: float = 0.0  # what cancellation may leave of it, where that is more than its own rounding

    @property
    def exact(self) -> bool:
        """Whether variances and log determinant are computed; False where they are estimated (`Implicit`)."""
        return True

    def variance_error(self) -> Array:
        """Standard errors of ``variances()``; zeros where they are computed."""
        return np.zeros_like(self.gamma)

    def release(self) -> None:
        """Let go of what can be made again from gamma, and is when it is asked for; here of nothing."""
        return

    def blocks(self) -> tuple[Factor, ...]:
        """The factors of equally large, independent blocks of sites, where the posterior has such."""
        return (self,)


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
        """Posterior covariance of the weights (of f at the sites for a kernel latent); zero for a point estimate."""
        return self.latent.weight_covariance(self) if self.spread else np.zeros((len(self.mean), len(self.mean)))

    def sample(self, n: int, rng: np.random.Generator | int | None = None) -> Array:
        """``n`` draws of the weights, one a row."""
        require(n >= 0, "the number of draws must not be negative", n, "Ask for n >= 0 draws.")
        if not self.spread:
            return np.tile(self.mean, (n, 1))
        return self.latent.weight_sample(self, n, np.random.default_rng(rng))


class Latent(ABC):
    """A Gaussian prior and its map to the sites."""

    n_sites: int
    mean: Array  # mu at the sites
    slack: Array  # c at the sites
    n_weights: int  # rank of the map at most; the size of the smallest system it can solve
    dense_size: int  # rows of the dense matrices it factorises
    n_outputs: int = 1  # latent values per datum; sites are numbered output by output
    log_evidence: float = 0.0  # of Gaussian data that the latent itself holds (`Implicit`)
    by_products: bool = False  # known by products alone (`Implicit`): the double loop is its default step
    reports: Literal["weight", "f"] = "f"  # what ``coordinates`` and ``draw`` speak of; they go together

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

    def thin(self, rows: Index) -> Latent | None:
        """The same prior seen by some data (``rows``, not sites), for a first fit; None where that is not cheap."""
        return None

    def marginals(self, posterior: Posterior) -> tuple[Array, Array]:
        """Mean and variance at every site under the posterior of a thinned latent; goes with ``thin``."""
        raise TypeError(f"{type(self).__name__} does not thin, so it has no marginals of a thinned posterior")

    @abstractmethod
    def design(self) -> Array:
        """A dense N x R matrix Z with Z Z' = K: the prior in whitened coordinates, f = mu + Z u, u ~ N(0, I)."""

    # -- the weights under q, whose default is that of ``detach``: a latent has its own one way or the other

    def weight_mean(self, posterior: Posterior) -> Array:
        return self.detach(posterior).mean

    @abstractmethod
    def weight_covariance(self, posterior: Posterior) -> Array: ...

    # -- what has a default for every latent

    def weight_sample(self, posterior: Posterior, n: int, rng: np.random.Generator) -> Array:
        """``n`` draws of the weights, one a row."""
        return self.detach(posterior).sample(n, rng)

    def coordinates(self, posterior: Posterior) -> Coordinates:
        """The coordinates in which q is N(0, I), for `Result.trust`."""
        from klimb.latents.coordinates import default_coordinates

        return default_coordinates(posterior)

    def shocks(self, posterior: Posterior) -> Shocks | None:
        """q of few shared weights, and of the levels of a group apart; None where importance weights are of no use."""
        return None

    def draw(self, rng: np.random.Generator) -> tuple[Array, Array]:
        """A draw from the prior: of what is reported (here f itself), and of f at the sites."""
        slack = np.sqrt(self.slack) * rng.standard_normal(self.n_sites)
        design = self._dense_design()
        f = self.mean + design @ np.asarray(rng.standard_normal(design.shape[1])) + slack
        return f, f

    def diagonal(self) -> Latent:
        """The same prior with a q of diagonal covariance, here over the whitened weights u of f = mean + Z u."""
        from klimb.latents.meanfield import MeanField

        Z = self._dense_design()
        mean, cov = np.zeros(Z.shape[1]), np.ones(Z.shape[1])
        if np.any(self.mean):  # the mean is one more column, whose weight is known to be 1
            Z, mean, cov = np.column_stack([Z, self.mean]), np.append(mean, 1.0), np.append(cov, 0.0)
        latent = MeanField(Z, mean, cov, self.slack)
        latent.log_evidence, latent.n_outputs = self.log_evidence, self.n_outputs
        return latent

    @property
    def parts(self) -> tuple[Latent, ...]:
        """The latents of parts that are independent under q (`Outputs`); itself where there are none."""
        return (self,)

    def split(self, posterior: Posterior) -> tuple[Posterior, ...]:
        """The posteriors of the parts."""
        return (posterior,)

    def detach(self, posterior: Posterior) -> WeightPosterior:
        """q of the weights without data or factor: what predictions, draws and files keep of a fit."""
        from klimb.latents.weights_posterior import DenseWeights

        covariance = posterior.covariance()
        return DenseWeights(self.weight_mean(posterior), psd_square_root(covariance, "the posterior covariance"))

    def covariance_products(self, posterior: Posterior) -> Product:
        """b -> V_w b for vectors or columns b, V_w the posterior covariance of the weights."""
        covariance = posterior.covariance()
        return lambda vectors: np.asarray(covariance @ vectors)

    def reported_prior(self) -> tuple[Array, Array, Array | None]:
        """Mean and root of the prior of the weights, and their map to the sites; for f itself the map is None."""
        return self.mean, self._dense_design(), None

    def whitened(self) -> DesignMatrix | None:
        """Rows x_i with f_i = mean_i + x_i'u + slack, u ~ N(0, I), for batches of data; None where there are none."""
        return None

    def implicit(self) -> Implicit:
        """The prior of f - mean known by its products, for the double loop; weights are whitened unless it says so."""
        from klimb.latents.implicit import Implicit

        return Implicit(self._dense_design())

    @classmethod
    def costs(cls, shape: Shape) -> Option | None:
        """What an ordinary fit of a model of this shape costs with this latent; None where it cannot serve."""
        return None

    @classmethod
    def of_parts(cls, parts: LinearParts, kept: dict[str, Any]) -> Latent | None:
        """The latent of a linear model; ``kept`` holds what may be shared by all priors. None: not made of columns."""
        return None

    @classmethod
    def rows_of(cls, X: Any, codes: Index, values: Array, n_levels: int, sparse: Any = None) -> Any:
        """Rows of a linear model in the form that ``detach(posterior).at`` takes; ``sparse`` as in `LinearParts`."""
        from klimb.latents.linear import dense_rows

        return dense_rows(X, codes, values, n_levels, sparse)

    def _dense_design(self) -> Array:
        """``design()``, or an `InputError` where it would be too large to form."""
        if self.n_sites * self.n_weights > DENSE_LIMIT:
            raise InputError(f"a dense design of {type(self).__name__} has up to {DENSE_LIMIT:,} entries",
                             f"{self.n_sites:,} sites x {self.n_weights:,} weights", "Take fewer data.")
        return self.design()


def as_latent(value: Any, expected: str = "latent must be a klimb latent",
              advice: str = "Use klimb.latents.Weights(X).") -> Latent:
    """``value`` if it is a latent, else an `InputError` in the caller's words."""
    if not isinstance(value, Latent):
        raise InputError(expected, type(value).__name__, advice)
    return value


def mean_at(mean: Any, shape: tuple[int, ...], name: str) -> Array:
    """``mean`` as a read-only vector of the given shape; scalars are spread."""
    array = as_float(mean, name)
    if array.ndim != 0 and array.shape != shape:
        raise InputError(f"{name} must be a number or have shape {shape}", f"shape {array.shape}", "Pass one each.")
    return np.broadcast_to(one_value(array), shape)


def one_value(values: Array) -> Array:
    """A copy of the first of values that are all equal, else all of them."""
    return values[:1].copy() if values.ndim == 1 and values.size and (values == values[:1]).all() else values


def checked_outputs(n_outputs: int, n_sites: int) -> int:
    """``n_outputs`` if the rows of a design can be so many latent values of each datum, stacked output by output."""
    if n_outputs < 1 or n_sites % n_outputs:
        raise InputError("n_outputs must divide the number of rows", f"{n_outputs} for {n_sites} rows",
                         "Stack the rows of all data for the first output, then for the second, and so on.")
    return n_outputs


def sites_of(data: Index, n_outputs: int, n_sites: int) -> Index:
    """The sites of some data, output by output."""
    return (np.arange(n_outputs)[:, None] * (n_sites // n_outputs) + data).ravel()


def variances_at(values: Any, shape: tuple[int, ...], name: str) -> Array:
    """Non-negative ``values`` as a vector of the given shape."""
    array = mean_at(values, shape, name)
    if array.size and array.min() < 0:
        i = int(array.argmin())
        raise InputError(f"{name} must not be negative", f"{array[i]:.6g} at index {i}", "Variances are 0 or more.")
    return array


def check_spread(posterior: Posterior) -> None:
    """An `InputError` where ``posterior`` is a point estimate, whose predictions have no variance."""
    if not posterior.spread:
        raise InputError("this needs a posterior with a spread", "a point estimate", "Use klimb.infer, not a mode.")


def asked(inner: str, name: str) -> Any:
    """That method of what is inside, which is the attribute ``inner``."""
    def ask(self: Any, *given: Any, **named: Any) -> Any:
        return getattr(getattr(self, inner), name)(*given, **named)

    return ask


def factor_of(posterior: Posterior, kind: type[OwnFactor]) -> OwnFactor:
    """The factor of the fit, or a new one: of the kind that its latent makes."""
    factor = posterior.factorised()
    assert isinstance(factor, kind)
    return factor


def draws_from(mean: Array, root: Array, n: int, rng: np.random.Generator) -> Array:
    """``n`` rows of N(mean, root root')."""
    return mean + rng.standard_normal((n, root.shape[1])) @ root.T
