"""Inducing points by the bound: how many are enough, and where they are best.

    fit = enough_inducing(model, y)               # how many, at the present hyperparameters
    best = optimise_inducing(fit.model, y)        # where, and the hyperparameters
"""

from dataclasses import replace
from typing import Any, Literal

import numpy as np

from klimb.errors import InputError, require
from klimb.kernels.inducing_points import GreedyPoints, candidates
from klimb.models.fit import Fit
from klimb.models.gp import INDUCING_JITTER
from klimb.models.kernel import KernelModel, single
from klimb.models.kernel_blocks import Held, Points
from klimb.models.model import Listen
from klimb.models.search import find_peak
from klimb.models.solution import Solution, around
from klimb.numerics.arrays import Array
from klimb.report.records import BoundTrace
from klimb.theta import ParameterBlock

FIRST, GROWTH, MOST = 16, 1.5, 1000  # sizes that are tried
Reason = Literal["explained", "settled", "exhausted", "limit"]
WORDS: dict[Reason, str] = {
    "explained": "the variance that they leave unexplained costs no more",
    "settled": "the gains of further ones promise no more",
    "exhausted": "they explain every input to rounding",
    "limit": "no more were allowed",
}


def enough_inducing(model: KernelModel, y: Any, *, tol: float = 0.1, most: int = MOST, seed: int = 0) -> Fit:
    """Add inducing points, each where the prior is least explained, until the bound says that they are enough.

    Sizes grow by half; each fit starts from the sites of the one before. It is enough when one of two estimates of what
    the full Gaussian process would still gain falls below ``tol``:

    - the price of the unexplained variance, sum_i gamma_i c_i / 2: the bound changes by -gamma_i / 2 per unit of c_i;
    - the sum of the gains to come, if they go on falling in the ratio of the last two.

    The hyperparameters are held. ``fit.notes`` has the reason to stop: "explained", "settled", "exhausted" (every input
    is explained to rounding) or "limit"; ``fit.trace`` has the bound at every size.

    Parameters
    ----------
    model : KernelModel
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
    >>> from klimb.models.inducing import enough_inducing
    >>> x = np.linspace(0.0, 6.0, 300)
    >>> model = klimb.gp(klimb.kernels.RBF(), x, klimb.sites.Poisson())
    >>> y = np.round(np.exp(np.sin(x)))
    >>> fit = enough_inducing(model, y)
    >>> len(fit.model.Z), bool(model.fit(y, hyper="fixed").bound - fit.bound < 0.1)
    (16, True)
    >>> print(fit.notes[0])
    16 inducing points (explained): the variance that they leave unexplained costs no more than 0.1 nats.
    """
    single(model, "For several classes say how many: klimb.gp(..., inducing=100).")
    require(tol > 0, "tol must be positive", tol, "It is in nats; the default is 0.1.")
    require(most >= 1, "most must be at least 1", most, "It is the largest number of points.")
    data = model.read(y)
    model = model.ready(data)
    pool = candidates(model.X, seed, most)
    greedy = GreedyPoints(model.kernel, pool)
    limit = min(most, len(pool))
    size, sizes, bounds = min(FIRST, limit), list[int](), list[float]()
    here, result, reason = model, None, None
    while reason is None:
        points = greedy.extend(size)
        here = with_points(model, points)
        result = here.infer(data, start=None if result is None else result.posterior)
        sizes.append(len(points))
        bounds.append(result.bound)
        price = 0.5 * float(np.maximum(result.posterior.gamma, 0.0) @ here.latent.slack)
        reason = _verdict(price, bounds, tol, exhausted=greedy.exhausted, full=len(points) >= limit)
        size = min(int(np.ceil(GROWTH * size)), limit)
    assert result is not None
    limits = "" if reason in ("exhausted", "limit") else f" than {tol:g} nats"
    note = f"{sizes[-1]} inducing points ({reason}): {WORDS[reason]}{limits}."
    trace = BoundTrace(tuple(bounds), (), tuple(f"{number} points" for number in sizes))
    return replace(Fit.of(Solution.held(here, result), data, notes=(note,)), trace=trace, n_fits=len(sizes))


def with_points(model: KernelModel, Z: Array, *, free: bool = False) -> KernelModel:
    """The same Gaussian process seen through these inducing points."""
    jitter = model.jitter if model.points is not None else max(model.jitter, INDUCING_JITTER)
    at = np.concatenate([model.at, Points.among(model.X, Z, free=free).start])
    return replace(model, points=Points.among(model.X, Z, free=free), jitter=jitter, form="Inducing", at=at)


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


def optimise_inducing(model: KernelModel, y: Any, *, hyperparameters: bool = True, tol: float = 1e-2,
                      max_iter: int = 100, callback: Listen | None = None) -> Fit:
    """Maximise the bound over the places of the inducing points, and over the hyperparameters with them.

    The climb of `klimb.optimise` on the converged bound: one more pullback through the kernel gives the gradient in Z.
    The bound is never worse than at the start, which may be greedy points, those of k-means++
    (`klimb.kernels.choose_inducing`) or your own.

    Parameters
    ----------
    model : KernelModel
        With inducing points.
    y : array
    hyperparameters : bool
        Whether to move those as well.
    tol : float
        Stop when no entry of the gradient is larger, in nats per unit of theta and per standard deviation of X.
    max_iter : int
        Most iterations.
    callback : function of a `Progress`
        Called after every fit; returning False stops the work.

    Examples
    --------
    >>> import numpy as np, klimb
    >>> from klimb.models.inducing import optimise_inducing
    >>> x = np.linspace(0.0, 6.0, 60)
    >>> y = np.round(np.exp(np.sin(x)))
    >>> model = klimb.gp(klimb.kernels.RBF(), x, klimb.sites.Poisson(), inducing=x[:4])
    >>> best = optimise_inducing(model, y, hyperparameters=False)
    >>> bool(best.bound > model.fit(y, hyper="fixed").bound + 1)
    True
    """
    single(model, "Several classes take the points of klimb.gp(..., inducing=100).")
    points = model.Z
    if points is None:
        raise InputError("the model needs inducing points to move", "none", "Pass inducing= to klimb.gp.")
    data = model.read(y)
    model = model.ready(data)
    moving = with_points(model if hyperparameters else held(model), points, free=True)
    peak = find_peak(moving, data, tol=tol, max_iter=max_iter, listen=callback)
    at = peak.model.at[: moving.theta.size - points.size] if hyperparameters else model.at
    best = replace(with_points(model, peak.model.Z), at=at)
    best.__dict__["latent"] = peak.model.latent  # the same, and made already
    if hyperparameters and model.theta.size:
        return Fit.of(around(replace(peak, model=best), data, integrate=False, spread=False), data)
    solution = replace(Solution.held(best, peak.result), status=peak.status, n_fits=peak.n_fits, path=peak.path)
    return Fit.of(solution, data)


def held(model: KernelModel) -> KernelModel:
    """The model with all hyperparameters held where they are."""
    def hold(blocks: tuple[ParameterBlock, ...]) -> tuple[ParameterBlock, ...]:
        return tuple(Held(block, model.at[model.theta.slice_of(block)]) for block in blocks)

    likelihood = replace(model.likelihood, parameters=hold(model.likelihood.parameters))
    return replace(model, kernel_blocks=hold(model.kernel_blocks), mean_blocks=hold(model.mean_blocks),
                   likelihood=likelihood, at=np.zeros(0))
