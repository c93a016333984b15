"""What a fit returns: Status, History, Result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from klimb._stored import stored
from klimb.latents.base import Posterior
from klimb.numerics.arrays import Array

if TYPE_CHECKING:
    from klimb.infer.problem import Problem
    from klimb.trust import Corrected, Trust


@stored("status")
class Status(Enum):
    """How a fit ended; ``advice`` says what to do about it.

    >>> import numpy as np, klimb
    >>> latent = klimb.latents.Weights(np.ones((4, 1)))
    >>> result = klimb.infer(latent, klimb.sites.Poisson(), [3, 1, 2, 4], max_iter=1)
    >>> print(result.status.name, result.converged, result.status.advice)
    MAX_ITER False The iteration limit was reached: raise max_iter, or loosen tol if the bound no longer changes.
    """

    CONVERGED = "The stationarity norm and the remaining gain are below tol: this is the optimum of the bound."
    ESTIMATED = (
        "q and the sites agree to within the error of the estimated variances (result.variance_error): further "
        "iterations would chase noise. For more digits lower the accuracy of klimb.steps.DoubleLoop."
    )
    UNSOLVED = (
        "A linear system could not be solved to its tolerance, so the mean is not the best one: rescale the columns, "
        "raise the noise, or give the weights a proper prior (result.notes has the residual)."
    )
    MAX_ITER = "The iteration limit was reached: raise max_iter, or loosen tol if the bound no longer changes."
    STALLED = (
        "No step raises the bound any more although the stationarity norm is above tol. See result.history: if "
        "the norm is small, the answer is about that accurate; otherwise rescale the columns of X or narrow the prior."
    )
    CYCLE = "The iteration alternates between two points: use the default step, klimb.steps.Natural()."
    DIVERGED = "The bound fell or became infinite: use the default step, klimb.steps.Natural(), which cannot diverge."
    IMPROPER = "A step led to an improper posterior: use the default step, klimb.steps.Natural()."
    STOPPED = "The callback stopped the fit: call again with the same arguments to reach the optimum."

    @property
    def advice(self) -> str:
        return str(self.value)


@dataclass(frozen=True, slots=True)
class Iteration:
    """One row of the history, and what a callback is given. Counts are those of this iteration alone."""

    number: int
    bound: float
    stationarity: float
    step: float  # 1 is a full step
    rule: str  # "start", "natural", "anderson", "newton", ...
    seconds: float  # since the fit began
    n_factor: int
    n_oracle: int
    n_products: int = 0  # of a single vector with a matrix that is known by its products


class History:
    """The iterations of a fit; each column is an array: ``history.bound``, ``history.n_factor``, ...

    >>> import numpy as np, klimb
    >>> history = klimb.infer(klimb.latents.Weights(np.ones((4, 1))), klimb.sites.Poisson(), [3, 1, 2, 4]).history
    >>> bool((np.diff(history.bound) >= -1e-9).all()), history.rule[0], bool(history[-1].stationarity < 1e-6)
    (True, 'start', True)
    """

    def __init__(self, iterations: list[Iteration]) -> None:
        self.iterations = tuple(iterations)

    def __len__(self) -> int:
        return len(self.iterations)

    def __getitem__(self, index: int) -> Iteration:
        return self.iterations[index]

    def __getattr__(self, name: str) -> Array:
        if name not in Iteration.__slots__:
            raise AttributeError(f"a history has no {name!r}")
        return np.array([getattr(row, name) for row in self.iterations], dtype=float)

    @property
    def rule(self) -> tuple[str, ...]:
        return tuple(row.rule for row in self.iterations)


@dataclass(frozen=True, eq=False)
class Result:
    """The posterior, the bound on the log evidence, how the fit ended and how it went there.

    ``bound`` is a lower bound on the log evidence for the variational methods; Laplace's, EP's and the point estimate's
    numbers are not bounds, and their docstrings say what they are. ``trust`` says whether the fit can be believed, and
    ``corrected`` holds mean, sd and skewness of the exact posterior's marginals; both are computed when first asked.

    >>> import numpy as np, klimb
    >>> X = np.column_stack([np.ones(8), np.arange(8.0)])
    >>> result = klimb.infer(klimb.latents.Weights(X, cov=4.0), klimb.sites.Logistic(), [0, 0, 1, 0, 1, 1, 1, 1])
    >>> print(result.converged, round(result.bound, 2), result.posterior.mean.round(2))
    True -5.44 [-1.77  0.98]
    >>> sd = np.sqrt(np.diag(result.posterior.covariance()))
    >>> print(result.trust.verdict, sd.round(2), result.corrected.sd.round(2))
    corrected [1.29 0.46] [1.32 0.52]
    """

    posterior: Posterior
    bound: float
    status: Status
    history: History
    notes: tuple[str, ...] = ()
    problem: Problem | None = field(default=None, repr=False)  # what was fitted, for questions asked later
    bound_error: float = 0.0  # of an estimated bound (`klimb.steps.DoubleLoop`)
    weighed: Callable[[], Any] | None = field(default=None, repr=False)  # log weights of draws, of rows elsewhere

    @cached_property
    def trust(self) -> Trust:
        """The trust report (`klimb.trust.Trust`): a verdict, k-hat, the log evidence, the marginals' errors."""
        # The room that judges results stands above this one, so it is looked up when it is asked.
        report: Trust = import_module("klimb.trust").trust_report(self)
        return report

    @property
    def corrected(self) -> Corrected:
        """Mean, sd, skewness and quantiles of the marginals under the exact posterior, as far as weights can tell."""
        return self.trust.corrected

    @property
    def converged(self) -> bool:
        return self.status in (Status.CONVERGED, Status.ESTIMATED)

    @property
    def certified(self) -> bool:
        """Whether variances and bound were computed, not estimated from random vectors."""
        factor = self.posterior.factor
        return factor is None or factor.exact

    @property
    def variance_error(self) -> Array:
        """Standard errors of ``posterior.v`` where it was estimated, zeros where it was computed."""
        factor = self.posterior.factor
        return np.zeros_like(self.posterior.v) if factor is None else factor.variance_error()

    @property
    def n_products(self) -> int:
        """Products of a single vector with a matrix that is known only by them, over the whole fit."""
        return int(self.history.n_products.sum())

    @property
    def n_iter(self) -> int:
        """Number of steps taken from the starting point."""
        return len(self.history) - 1

    def __repr__(self) -> str:
        return (f"Result(bound={self.bound:.6g}, status={self.status.name}, n_iter={self.n_iter}, "
                f"stationarity={self.history[-1].stationarity:.2g})")
