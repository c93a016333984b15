"""Hyperparameters by the evidence: ``optimise`` climbs the converged bound, ``grid`` tabulates it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any, final

import numpy as np

from klimb.errors import InputError, KlimbError
from klimb.infer.hyper import Hypermodel, Optimum
from klimb.infer.result import Result, Status
from klimb.latents.base import Posterior
from klimb.numerics.arrays import Array, as_float

FIT_TOL = 1e-5  # of the fits on the way: the noise it leaves in bound and gradient must not mislead the line search


def optimise(
    model: Hypermodel, y: Any, *, tol: float = 1e-2, max_iter: int = 200, restarts: int = 0, seed: int = 0
) -> Optimum:
    """Maximise the bound (plus hyperprior) over the hyperparameters.

    L-BFGS on the converged bound, whose gradient costs one inverse more: at the optimum over q the bound changes with a
    hyperparameter as if q stood still. Each fit starts from the sites of the one before.

    Parameters
    ----------
    model : Hypermodel
        For instance ``klimb.gp(kernel, X, site)``; the search starts at its present hyperparameters.
    y : array
    tol : float
        Stop when no entry of the gradient (nats per unit of theta, mostly logs) is larger: at 0.01 the bound is within
        some 1e-5 nats of its best.
    max_iter : int
        Most L-BFGS iterations, per start.
    restarts : int
        More starts, drawn around the first (standard deviation 1 in theta) with ``seed``; the best end counts.

    Returns
    -------
    Optimum
        ``.model`` at the best hyperparameters, ``.result`` the fit there.
    """
    if model.theta.size == 0:
        raise InputError("the model needs free hyperparameters", "none", "Free a parameter, or call model.fit(y).")
    lower, upper = model.bounds
    rng = np.random.default_rng(seed)
    best: Optimum | None = None
    for number in range(restarts + 1):
        jump = rng.standard_normal(model.theta.size) if number else np.zeros(model.theta.size)
        found = _climb(model, np.clip(model.theta + jump, lower, upper), y, tol, max_iter)
        if best is None or found.objective > best.objective:
            best = found
    assert best is not None
    return best


def _climb(model: Hypermodel, theta: Array, y: Any, tol: float, max_iter: int) -> Optimum:
    import scipy.optimize

    lower, upper = model.bounds
    trace: list[tuple[Array, float]] = []
    best: list[tuple[float, Hypermodel, Result, Array]] = []  # the best evaluation so far
    latest: list[Posterior] = []  # the sites to start from

    def negative(at: Array) -> tuple[float, Array]:
        try:
            here = model.with_theta(at)
            result = here.fit(y, start=latest[0] if latest else None, tol=FIT_TOL)
        except KlimbError:
            if not best:
                raise
            return 1e300, np.zeros_like(at)  # nothing can be computed there: the line search steps back
        prior, prior_gradient = here.log_prior()
        value, gradient = result.bound + prior, here.gradient(result.posterior, y) + prior_gradient
        trace.append((at.copy(), value))
        if not np.isfinite(value):
            return 1e300, np.zeros_like(at)
        latest[:] = [result.posterior]
        if not best or value > best[0][0]:
            best[:] = [(value, here, result, gradient)]
        return -value, -gradient

    minimize: Any = scipy.optimize.minimize
    options = {"maxiter": max_iter, "gtol": tol, "ftol": 1e-9, "maxcor": 20}
    found = minimize(negative, theta, jac=True, method="L-BFGS-B", bounds=list(zip(lower, upper, strict=True)),
                     options=options)
    _, here, result, gradient = best[0]
    result = here.fit(y, start=result.posterior)  # to the usual precision
    value = result.bound + here.log_prior()[0]
    # At a bound the gradient may point outwards.
    free = ~(((here.theta <= lower) & (gradient < 0)) | ((here.theta >= upper) & (gradient > 0)))
    rest = float(np.abs(gradient[free]).max(initial=0.0))
    if rest <= 10 * tol:
        status = Status.CONVERGED
    else:
        status = Status.MAX_ITER if found.nit >= max_iter else Status.STALLED
    return Optimum(here, result, value, status, gradient, len(trace), tuple(trace))


@final
@dataclass(frozen=True, eq=False)
class Grid:
    """Bounds over a grid of hyperparameters, one axis per name."""

    names: tuple[str, ...]
    axes: tuple[Array, ...]
    bound: Array
    converged: Array
    n_factor: Array
    best: Any  # the model of the best cell
    best_result: Result

    def table(self) -> list[dict[str, float]]:
        """One row per cell: the hyperparameters (as in theta), the bound, whether it converged."""
        return [
            dict(zip(self.names, values, strict=True)) | {"bound": float(bound), "converged": bool(done)}
            for values, bound, done in zip(product(*self.axes), self.bound.flat, self.converged.flat, strict=True)
        ]

    def plot(self, ax: Any = None) -> Any:
        """A heat map over two axes, the best cell marked; needs matplotlib."""
        if len(self.names) != 2:
            raise InputError("a heat map needs a grid over two hyperparameters", f"{len(self.names)}", "Use table().")
        try:
            import matplotlib.pyplot as plt
        except ImportError as error:
            raise InputError("plot needs matplotlib", "no such package", "pip install matplotlib") from error
        if ax is None:
            _, ax = plt.subplots(figsize=(5.0, 4.2), layout="constrained")
        first, second = self.axes
        low = np.quantile(self.bound, 0.2)  # the far corners would take all the colours
        mesh = ax.pcolormesh(second, first, self.bound, shading="nearest", cmap="viridis", vmin=low)
        i, j = np.unravel_index(int(self.bound.argmax()), self.bound.shape)
        ax.plot(second[j], first[i], "o", mfc="none", mec="white", ms=12, mew=2)
        ax.set(xlabel=self.names[1], ylabel=self.names[0], title=f"bound; best {self.bound.max():.2f}")
        ax.figure.colorbar(mesh, ax=ax)
        return ax


def grid(model: Hypermodel, y: Any, axes: Mapping[str, Any], *, tol: float = 1e-6) -> Grid:
    """The bound at every combination of some hyperparameters; the others stay as they are.

    ``axes`` maps names of ``model.names`` to values of theta (logs of positive parameters). Cells are visited like the
    rows of a ploughed field, so that each fit starts from the sites of a neighbour.
    """
    unknown = [name for name in axes if name not in model.names]
    if unknown or not axes:
        raise InputError(f"axes must name hyperparameters among {', '.join(model.names)}", f"{unknown or 'none'}",
                         "Names are those of model.names.")
    names = tuple(axes)
    values = tuple(as_float(axes[name], name, ndim=1) for name in names)
    places = [model.names.index(name) for name in names]
    shape = tuple(len(v) for v in values)
    bound, done, cost = np.empty(shape), np.zeros(shape, dtype=bool), np.zeros(shape, dtype=int)
    best: tuple[float, Hypermodel, Result] | None = None
    start: Posterior | None = None
    for cell in _ploughed(shape):
        theta = model.theta.copy()
        theta[places] = [values[axis][index] for axis, index in enumerate(cell)]
        here = model.with_theta(theta)
        result = here.fit(y, start=start, tol=tol)
        start = result.posterior if result.converged else None
        bound[cell], done[cell], cost[cell] = result.bound, result.converged, int(result.history.n_factor.sum())
        if best is None or result.bound > best[0]:
            best = (result.bound, here, result)
    assert best is not None
    return Grid(names, values, bound, done, cost, best[1], best[2])


def _ploughed(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """All cells, neighbours following each other."""
    cells: list[tuple[int, ...]] = [()]
    for size in shape:
        forth, back = list(range(size)), list(range(size - 1, -1, -1))
        cells = [(*cell, i) for number, cell in enumerate(cells) for i in (back if number % 2 else forth)]
    return cells
