"""The contract of a model with free hyperparameters, and what the evidence routines return."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Self, final

from klimb.infer.loop import infer
from klimb.infer.result import Result, Status
from klimb.latents.base import Latent, Posterior
from klimb.numerics.arrays import Array
from klimb.sites.base import Site


class Hypermodel(ABC):
    """A latent and a site that depend on a vector theta of free parameters (logs of positive ones, others as they are).

    A record: another theta is another object, made by ``with_theta``.
    """

    @property
    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """One readable name per entry of theta."""

    @property
    @abstractmethod
    def theta(self) -> Array:
        """The present values."""

    @property
    @abstractmethod
    def bounds(self) -> tuple[Array, Array]:
        """Lower and upper limits of theta for optimisers."""

    @abstractmethod
    def with_theta(self, theta: Array) -> Self:
        """The same model at other values."""

    @property
    @abstractmethod
    def latent(self) -> Latent: ...

    @property
    @abstractmethod
    def site(self) -> Site: ...

    @abstractmethod
    def gradient(self, posterior: Posterior, y: Any) -> Array:
        """d bound / d theta at a converged posterior: by the envelope theorem q may be held fixed."""

    def log_prior(self) -> tuple[float, Array | float]:
        """Log density of the hyperprior at theta (per unit of theta) and its gradient; flat unless overridden."""
        return 0.0, 0.0

    def fit(self, y: Any, *, start: Posterior | None = None, tol: float = 1e-6, max_iter: int = 500) -> Result:
        """`klimb.infer` at the present hyperparameters."""
        return infer(self.latent, self.site, y, start=start, tol=tol, max_iter=max_iter)


@final
@dataclass(frozen=True, eq=False)
class Optimum:
    """The hyperparameters with the best bound (plus hyperprior), and the fit there."""

    model: Any
    result: Result
    objective: float  # bound plus log hyperprior
    status: Status
    gradient: Array
    n_fits: int
    trace: tuple[tuple[Array, float], ...]  # (theta, objective) of every evaluation

    @property
    def bound(self) -> float:
        return self.result.bound

    @property
    def converged(self) -> bool:
        return self.status is Status.CONVERGED and self.result.converged

    def __repr__(self) -> str:
        pairs = zip(self.model.names, self.model.theta, strict=True)
        values = ", ".join(f"{name}={value:.4g}" for name, value in pairs)
        return f"Optimum(bound={self.bound:.6g}, status={self.status.name}, n_fits={self.n_fits}, {values})"
