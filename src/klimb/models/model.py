"""The contract of a model: a latent and a likelihood that depend on hyperparameters theta.

A model is a record; another theta is another object, made by ``moved``. What does not move with theta (sorted rows,
Gram matrices, encoded columns) is shared by all of them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

import numpy as np

from klimb.errors import require
from klimb.infer.loop import Callback, infer
from klimb.infer.problem import Start
from klimb.infer.result import Result
from klimb.latents.base import Latent, Posterior, draws_from
from klimb.latents.costs import Shape
from klimb.latents.weights_posterior import WeightPosterior
from klimb.likelihoods import Left, Likelihood, Observed
from klimb.models.plan import Plan, planned
from klimb.numerics.arrays import Array, as_float
from klimb.numerics.dense import psd_square_root, threads_for
from klimb.sites.base import Site
from klimb.theta import Theta

if TYPE_CHECKING:
    from klimb.models.fit import Fit

DRAW_JITTER = 1e-10  # of the largest prior variance, on the diagonal of the covariance of joint draws
HyperMode: TypeAlias = Literal["auto", "optimise", "integrate", "fixed"]


@dataclass(frozen=True)
class Progress:
    """What a listener is told after every fit: what it was for, how many are done, of how many (0: unknown).

    Of rows that are not in memory it is told after every block: how many rows the pass has been over, of how many.
    """

    what: str
    done: int
    total: int
    bound: float  # of the last fit, or pass; NaN before the first
    passes: int = 0  # over the rows, the present one counted
    left: float = math.nan  # seconds, of the present pass


Listen: TypeAlias = Callable[[Progress], Any]  # returning False stops the work


@dataclass(frozen=True, eq=False)
class Functionals:
    """Linear functionals of the weights: f = shift + L w + N(0, rest), for `WeightPosterior.at`."""

    L: Any
    rest: Array  # (n,), variances that the weights do not carry
    shift: Array  # (n,), prior means and offsets
    covariance: Callable[[], Any] | None = None  # (n, n), the prior's, where rows share what the weights do not carry

    def draw(self, part: WeightPosterior, n: int, rng: np.random.Generator) -> Array:
        """``n`` joint draws of f, one a row."""
        if self.covariance is None:
            f = part.push(self.L, part.sample(n, rng))
            sd = np.tile(np.sqrt(self.rest), f.shape[1] // len(self.rest))  # the same for every field
            return np.asarray(self.shift + f + rng.standard_normal(f.shape) * sd)
        mean, V = part.joint(self.L, self.covariance())
        # What the data explain is subtracted, so V is as exact as the prior is large.
        V.flat[:: len(V) + 1] += DRAW_JITTER * float(np.max(self.rest, initial=0.0))
        root = psd_square_root(0.5 * (V + V.T), "the covariance of the draws")
        return draws_from(self.shift + mean, root, n, rng)


class Model(ABC):
    """A latent Gaussian model that can be fitted: hyperparameters, a latent, a likelihood, predictions."""

    theta: Theta
    at: Array  # the present values of theta
    likelihood: Likelihood
    form: str  # which of `klimb.latents.LATENTS` it is fitted with

    @property
    def title(self) -> str:
        """The model in one line, for tables."""
        return type(self).__name__

    # -- the hyperparameters

    @property
    def names(self) -> tuple[str, ...]:
        """One readable name per entry of theta."""
        return self.theta.names

    @abstractmethod
    def _moved(self, at: Array) -> Self:
        """The same model at other values of theta, which have been checked."""

    def moved(self, at: Any) -> Self:
        """The same model at other values of theta."""
        values = as_float(at, "theta", ndim=1)
        require(len(values) == self.theta.size, f"theta must have {self.theta.size} entries ({', '.join(self.names)})",
                len(values), "The order is that of names.")
        return self if np.array_equal(values, self.at) else self._moved(values)

    @property
    def hyperparameters(self) -> dict[str, float]:
        """The present values as they are printed, by name."""
        return {name: float(values[0]) for name, values in self.theta.reported(self.at[None]).items()}

    def log_prior(self) -> tuple[float, Array]:
        """Log density of the hyperparameters' prior per unit of theta, and its gradient."""
        return self.theta.log_prior(self.at)

    @property
    def settles(self) -> bool:
        """Whether its one hyperparameter scales a Gaussian prior, so that loose fits tell where it is best."""
        return False

    def elsewhere(self, data: Observed) -> Self | None:
        """The model at other hyperparameters, where those that it has are far from the units of the data; or None."""
        del data
        return None

    def left_out(self, posterior: Posterior) -> tuple[float, float]:
        """Errors of a mean of f, in sd, and of an sd, where f is seen through fewer numbers than it has."""
        del posterior
        return 0.0, 0.0

    def finer(self, posterior: Posterior) -> Self | None:
        """The model with more numbers for f, where it chooses how many and has too few; or None."""
        del posterior
        return None

    def information(self) -> Array | None:
        """Minus the second derivatives of the objective, guessed from counts to start a climb; None without a guess."""
        return None

    @property
    def holds_sites(self) -> bool:
        """Whether a search begins with slopes at held sites, each for a factorisation.

        Not for Gaussian rows, which are to be searched in one way whether few stand for many or not.
        """
        return False

    # -- data

    def read(self, y: Any, weights: Any = None) -> Observed:
        """Clean data from an array; weights count rows. Data that were read before stay as they are."""
        if isinstance(y, Observed):
            return y
        counts = None if weights is None else as_float(weights, "weights", ndim=1)
        return self.likelihood.read(Left.of(y), counts)

    def ready(self, data: Observed) -> Self:
        """The model with the parameters that its likelihood learns from these data."""
        del data
        return self

    # -- inference at the present theta

    @property
    @abstractmethod
    def latent(self) -> Latent:
        """The prior of f; cached by the model."""

    def site(self, data: Observed) -> Site:
        """The site of the data."""
        return self.likelihood.site(self.theta.of_owner(self.at, self.likelihood.parameters), data)

    def new_site(self, aux: Any = None) -> Site:
        """The site of new data."""
        return self.likelihood.new(self.theta.of_owner(self.at, self.likelihood.parameters), aux)

    @abstractmethod
    def prior_gradient(self, posterior: Posterior) -> Array:
        """d bound / d theta through the latent, q held; zeros where only the likelihood depends on an entry."""

    def gradient(self, posterior: Posterior, data: Observed) -> Array:
        """d bound / d theta at a converged posterior: by the envelope theorem q may be held fixed."""
        total = self.prior_gradient(posterior)
        blocks = self.likelihood.parameters
        if blocks:
            own = self.theta.of_owner(self.at, blocks)
            n = data.n * len(self.likelihood.fields)  # sites that follow belong to priors of weights
            self.theta.add(total, blocks, self.likelihood.gradient(own, data, posterior.m[:n], posterior.v[:n]))
        return total

    def infer(self, data: Observed, *, start: Start = None, tol: float = 1e-6, max_iter: int = 500,
              callback: Callback | None = None) -> Result:
        """`klimb.infer` at the present hyperparameters."""
        return infer(self.latent, self.site(data), data.y, start=start, tol=tol, max_iter=max_iter, callback=callback)

    def reduced(self, data: Observed) -> tuple[Self, Observed] | None:
        """A model of far fewer rows that has the same bound and weights at every theta, and its data; or None."""
        del data
        return None

    def closed(self, data: Observed) -> Any:
        """Evidence, gradient and posterior of the weights at any theta without a fit, by `squares.Squares`; or None."""
        del data
        return None

    def detach(self, posterior: Posterior) -> WeightPosterior:
        """q of the weights, without its data."""
        return posterior.latent.detach(posterior)

    # -- predictions

    @abstractmethod
    def prepare(self, new: Any) -> Any:
        """New rows encoded once, for all points of theta; None stands for the rows of the fit."""

    def count(self, prepared: Any) -> int:
        """How many rows those are."""
        return int(prepared.n)

    def some(self, prepared: Any, rows: Any) -> Any:
        """Some of them."""
        return prepared.some(rows)

    @abstractmethod
    def functionals(self, prepared: Any) -> Functionals:
        """f at the prepared rows as functionals of the weights, at the present theta."""

    @property
    def slack(self) -> Array:
        """The variance that f of each datum has beyond what the weights explain."""
        return np.broadcast_to(self.latent.slack, self.latent.n_sites)

    # -- what it costs

    @abstractmethod
    def shape(self) -> Shape:
        """The counts that costs follow from."""

    def plan(self) -> Plan:
        """The ways to fit the model and what each costs; the one that is taken is marked."""
        return planned(self.shape())

    def explain(self) -> str:
        """Which latent the model is fitted with and why, with the predicted cost of one fit."""
        return str(planned(self.shape(), self.form))

    # -- fitting

    def work(self) -> float:
        """Multiplications of one fit at fixed theta, roughly: what "auto" goes by, the same on every machine."""
        return 15.0 * self.latent.n_sites * float(self.latent.dense_size + 5) ** 2

    @threads_for(0)
    def fit(self, y: Any, *, hyper: HyperMode = "optimise", weights: Any = None, start: Posterior | None = None,
            tol: float = 1e-6, max_iter: int = 500, callback: Listen | None = None) -> Fit:
        """Fit the model: hyperparameters at their best value, integrated out, or held fixed.

        Parameters
        ----------
        y : array
        hyper : "optimise", "integrate", "fixed" or "auto"
            What to do with the free hyperparameters; "auto" integrates them out where that is affordable.
        weights : array
            How often each datum counts.
        start : Posterior
            Of a similar fit, to start from.
        tol, max_iter
            As in `klimb.infer`, of the fits.
        callback : function of a `Progress`
            Called after every fit; returning False stops the work.
        """
        from klimb.models.fit import Fit
        from klimb.models.solution import solve

        data = self.read(y, weights)
        model = self.ready(data)
        # The spread of hyperparameters that are chosen costs two fits for each: it waits until a table asks.
        found = solve(model, data, hyper=hyper, start=start, tol=tol, max_iter=max_iter, listen=callback, spread=False)
        return Fit.of(found, data)


def joined(parts: list[Array]) -> Array:
    """Vectors one after the other."""
    return np.concatenate([np.zeros(0), *parts])
