"""Inducing points by the bound: how many are enough, and where they are best.

    found = enough_inducing(model, y)             # how many, at the present hyperparameters
    best = optimise_inducing(found.model, y)      # where, and the hyperparameters
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, Self, final

import numpy as np

from klimb.errors import InputError
from klimb.infer.evidence import optimise
from klimb.infer.hyper import Hypermodel, Optimum
from klimb.infer.result import Result
from klimb.kernels.inducing_points import GreedyPoints, candidates
from klimb.latents.base import Latent, Posterior
from klimb.models.gp import INDUCING_JITTER, GaussianProcess, as_single
from klimb.numerics.arrays import Array, as_float
from klimb.sites.base import Site

FIRST, GROWTH, MOST = 16, 1.5, 1000  # sizes that are tried
MARGIN = 0.5  # how far points may leave the box of the inputs, in units of its sides

Reason = Literal["explained", "settled", "exhausted", "limit"]


@final
@dataclass(frozen=True, eq=False)
class InducingChoice:
    """How many inducing points were enough, the model with them and the fit there.

    ``reason`` is "explained" (the variance they leave unexplained costs less than ``tol``), "settled" (the gains of
    further points promise less), "exhausted" (every input is explained to rounding) or "limit".
    """

    model: GaussianProcess
    result: Result
    reason: Reason
    sizes: tuple[int, ...]
    bounds: tuple[float, ...]
    price: float  # nats that the unexplained variance costs to first order

    def __repr__(self) -> str:
        return (f"InducingChoice(M={self.sizes[-1]}, bound={self.result.bound:.6g}, reason={self.reason!r}, "
                f"price={self.price:.2g})")


def enough_inducing(
    model: GaussianProcess, y: Any, *, tol: float = 0.1, most: int = MOST, seed: int = 0
) -> InducingChoice:
    """Add inducing points, each where the process is least explained, until the bound says that they are enough.

    Sizes grow by half; each fit starts from the sites of the one before. It is enough when one of two estimates of what
    the full process would still gain falls below ``tol``:

    - the price of the unexplained variance, sum_i gamma_i c_i / 2: the bound changes by -gamma_i / 2 per unit of c_i;
    - the sum of the gains to come, if they go on falling in the ratio of the last two.

    Parameters
    ----------
    model : GaussianProcess
        From `klimb.gp`; inducing points that it has are not used.
    y : array
    tol : float
        In nats. 0.1 is far below what would change a conclusion; it is a total over all data.
    most : int
        Most points.
    seed : int
        Of the candidates, where there are more than 20,000 inputs.

    Examples
    --------
    >>> import numpy as np, klimb
    >>> x = np.linspace(0.0, 6.0, 300)
    >>> model = klimb.gp(klimb.kernels.RBF(), x, klimb.sites.Poisson())
    >>> y = np.round(np.exp(np.sin(x)))
    >>> found = enough_inducing(model, y)
    >>> found.reason, found.sizes[-1] < 30, bool(model.fit(y).bound - found.result.bound < 0.1)
    ('explained', True, True)
    """
    as_single(model, "For several classes say how many: klimb.gp(..., inducing=100).")
    if not tol > 0:
        raise InputError("tol must be positive", f"{tol}", "It is in nats; the default is 0.1.")
    if most < 1:
        raise InputError("most must be at least 1", f"{most}", "It is the largest number of points.")
    pool = candidates(model.X, seed, most)
    greedy = GreedyPoints(model.kernel, pool)
    limit = min(most, len(pool))
    size, sizes, bounds = min(FIRST, limit), list[int](), list[float]()
    here, result, price, reason = model, None, np.inf, None
    while reason is None:
        points = greedy.extend(size)
        here = replace(model, Z=points, jitter=max(model.jitter, INDUCING_JITTER))
        result = here.fit(y, start=None if result is None else result.posterior)
        sizes.append(len(points))
        bounds.append(result.bound)
        price = 0.5 * float(np.maximum(result.posterior.gamma, 0.0) @ here.latent.slack)
        reason = _verdict(price, bounds, tol, exhausted=greedy.exhausted, full=len(points) >= limit)
        size = min(int(np.ceil(GROWTH * size)), limit)
    assert result is not None
    return InducingChoice(here, result, reason, tuple(sizes), tuple(bounds), price)


def _verdict(price: float, bounds: list[float], tol: float, *, exhausted: bool, full: bool) -> Reason | None:
    if price <= tol:
        return "explained"
    if len(bounds) >= 3:
        before, gain = bounds[-2] - bounds[-3], bounds[-1] - bounds[-2]
        if gain < before and gain * gain / (before - gain) <= tol:  # gain (r + r^2 + ...), r = gain / before
            return "settled"
    if exhausted:
        return "exhausted"
    return "limit" if full else None


def optimise_inducing(
    model: GaussianProcess,
    y: Any,
    *,
    hyperparameters: bool = True,
    tol: float = 1e-2,
    max_iter: int = 100,
) -> Optimum:
    """Maximise the bound over the places of the inducing points, and over the hyperparameters with them.

    L-BFGS on the converged bound, as in `klimb.infer.evidence.optimise`: one more pullback through the kernel gives the
    gradient in Z. The bound is never worse than at the start, which may be greedy points, those of k-means++
    (`klimb.kernels.choose_inducing`) or your own.

    Parameters
    ----------
    model : GaussianProcess
        With inducing points.
    y : array
    hyperparameters : bool
        Whether to move those as well.
    tol : float
        Stop when no entry of the gradient is larger, in nats per unit of theta and per standard deviation of X.
    max_iter : int
        Most L-BFGS iterations.

    Returns
    -------
    Optimum
        ``.model`` at the best points, ``.result`` the fit there; ``.gradient`` and ``.trace`` speak of both.

    Examples
    --------
    >>> import numpy as np, klimb
    >>> x = np.linspace(0.0, 6.0, 60)
    >>> y = np.round(np.exp(np.sin(x)))
    >>> model = klimb.gp(klimb.kernels.RBF(), x, klimb.sites.Poisson(), inducing=x[:4])
    >>> best = optimise_inducing(model, y, hyperparameters=False)
    >>> bool(best.bound > model.fit(y).bound + 1)
    True
    """
    as_single(model, "Several classes take the points of klimb.gp(..., inducing=100).")
    if model.Z is None:
        raise InputError("the model needs inducing points to move", "none", "Pass inducing= to klimb.gp.")
    spread = model.X.std(axis=0)
    unit = np.where(spread > 0, spread, 1.0)
    found = optimise(_MovingPoints(model, unit, hyperparameters), y, tol=tol, max_iter=max_iter)
    return replace(found, model=found.model.process)


@final
@dataclass(frozen=True, eq=False)
class _MovingPoints(Hypermodel):
    """A process whose theta ends with its inducing points, in standard deviations of the inputs."""

    process: GaussianProcess
    unit: Array
    hyperparameters: bool

    @property
    def _points(self) -> Array:
        assert self.process.Z is not None
        return self.process.Z

    @property
    def _n_hyper(self) -> int:
        return len(self.process.names) if self.hyperparameters else 0

    @property
    def names(self) -> tuple[str, ...]:
        places = (f"Z[{i},{j}]" for i, j in np.ndindex(*self._points.shape))
        return (*self.process.names[: self._n_hyper], *places)

    @property
    def theta(self) -> Array:
        return np.concatenate([self.process.theta[: self._n_hyper], (self._points / self.unit).ravel()])

    @property
    def bounds(self) -> tuple[Array, Array]:
        lower, upper = self.process.bounds
        X, k, count = self.process.X, self._n_hyper, len(self._points)
        low, high = X.min(axis=0), X.max(axis=0)
        reach = MARGIN * (high - low)
        low, high = np.minimum(low - reach, self._points), np.maximum(high + reach, self._points)
        sides = [np.broadcast_to(side / self.unit, (count, len(self.unit))).ravel() for side in (low, high)]
        return np.concatenate([lower[:k], sides[0]]), np.concatenate([upper[:k], sides[1]])

    def with_theta(self, theta: Any) -> Self:
        values, k = as_float(theta, "theta", ndim=1), self._n_hyper
        process = self.process.with_theta(values[:k]) if self.hyperparameters else self.process
        points = values[k:].reshape(self._points.shape) * self.unit
        return replace(self, process=replace(process, Z=points))

    @property
    def latent(self) -> Latent:
        return self.process.latent

    @property
    def site(self) -> Site:
        return self.process.site

    def gradient(self, posterior: Posterior, y: Any) -> Array:
        if self.hyperparameters:
            theta, points = self.process.joint_gradient(posterior, y)
        else:
            theta, points = np.zeros(0), self.process.inducing_gradient(posterior)
        return np.concatenate([theta, (points * self.unit).ravel()])

    def log_prior(self) -> tuple[float, Array | float]:
        value, slope = self.process.log_prior()
        if not self.hyperparameters:
            return 0.0, 0.0
        return value, np.concatenate([np.broadcast_to(slope, self._n_hyper), np.zeros(self._points.size)])
