"""Gaussian processes by kernel: a model that knows its inputs, its hyperparameters and how to predict.

    model = klimb.gp(klimb.kernels.RBF(), X, klimb.sites.Logistic())
    best = optimise(model, y)                      # klimb.infer.evidence
    best.model.predict(best.result.posterior, X_new)   # f: mean and variance
    best.model.observe(best.result.posterior, X_new)   # y: mean, quantiles, class probabilities, log density
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, overload

import numpy as np

from klimb.errors import InputError
from klimb.kernels import Kernel as Covariance
from klimb.kernels.inducing_points import choose_inducing, explaining_points
from klimb.kernels.means import Mean, Zero
from klimb.models.kernel import GaussianProcess, as_inputs, as_single
from klimb.models.kernel_classes import MulticlassProcess
from klimb.numerics.arrays import Array, ArrayLike
from klimb.sites.base import Site
from klimb.sites.softmax import Softmax

__all__ = ["INDUCING_JITTER", "GaussianProcess", "MulticlassProcess", "as_single", "gp"]

INDUCING_JITTER = 1e-8  # of the mean prior variance, on the diagonal of Kuu: noise on the inducing values themselves


@overload
def gp(
    kernel: Sequence[Covariance],
    X: ArrayLike,
    site: Site,
    *,
    mean: Mean | None = None,
    inducing: int | Literal["auto"] | ArrayLike | None = None,
    learn: str | tuple[str, ...] = (),
    jitter: float | None = None,
) -> MulticlassProcess: ...


@overload
def gp(  # type: ignore[overload-overlap]
    kernel: Covariance,
    X: ArrayLike,
    site: Softmax,
    *,
    mean: Mean | None = None,
    inducing: int | Literal["auto"] | ArrayLike | None = None,
    learn: str | tuple[str, ...] = (),
    jitter: float | None = None,
) -> MulticlassProcess: ...


@overload
def gp(
    kernel: Covariance,
    X: ArrayLike,
    site: Site | None = None,
    *,
    mean: Mean | None = None,
    inducing: int | Literal["auto"] | ArrayLike | None = None,
    learn: str | tuple[str, ...] = (),
    jitter: float | None = None,
) -> GaussianProcess: ...


def gp(
    kernel: Covariance | Sequence[Covariance],
    X: ArrayLike,
    site: Site | None = None,
    *,
    mean: Mean | None = None,
    inducing: int | Literal["auto"] | ArrayLike | None = None,
    learn: str | tuple[str, ...] = (),
    jitter: float | None = None,
) -> GaussianProcess | MulticlassProcess:
    """A Gaussian process model: prior by kernel at the inputs ``X``, likelihood by ``site``.

    Parameters
    ----------
    kernel : klimb.kernels.Kernel
        With `klimb.sites.Softmax`, of every class alike, or a list with one kernel per class.
    X : (n, d) array
        A 1-d array counts as one column.
    site : Site
        The likelihood; ``klimb.sites.Gaussian(1.0)`` with its scale to be learnt if it is left out.
    mean : klimb.kernels.means.Mean
        Zero unless given.
    inducing : int, (M, d) array or "auto"
        Inducing points, or how many to choose (`klimb.kernels.choose_inducing`), or as many as explain all but a
        thousandth of the prior variance; the full process if it is left out.
    learn : names of parameters of the site
        Those that `klimb.infer.evidence.optimise` may change, such as "scale".
    jitter : float
        Share of the mean prior variance added to the diagonal of K (default 0) or of Kuu (default 1e-8).

    Examples
    --------
    >>> import numpy as np, klimb
    >>> from klimb.infer.evidence import optimise
    >>> x = np.linspace(0, 6, 40)
    >>> y = np.sin(x) > 0
    >>> model = klimb.gp(klimb.kernels.RBF(lengthscale=1.0, variance=4.0), x, klimb.sites.Logistic())
    >>> best = optimise(model, y)
    >>> best.converged, bool(best.bound > model.fit(y).bound)
    (True, True)
    >>> best.model.observe(best.result.posterior, [1.5, 4.5]).mean.round(1)
    array([1., 0.])
    >>> three = klimb.gp(klimb.kernels.RBF(variance=4.0), x, klimb.sites.Softmax(3))
    >>> fit = three.fit(np.digitize(np.sin(x), [-0.5, 0.5]))
    >>> three.observe(fit.posterior, [0.0, 1.5, 4.7]).probabilities().argmax(axis=1)
    array([1, 2, 0])
    """
    inputs = as_inputs(X, "X")
    likelihood, names = _likelihood(site, learn)
    if likelihood.separable:
        return _process(kernel, inputs, likelihood, mean, inducing, names, jitter)
    if names:
        raise InputError(f"{type(likelihood).__name__} has no parameters to learn", repr(names[0]), "Leave learn out.")
    kernels = list(kernel) if isinstance(kernel, Sequence) else [kernel]
    if isinstance(kernel, Sequence) and len(kernels) != likelihood.n_outputs:
        raise InputError(f"kernel must be one kernel, or one for each of {likelihood.n_outputs} latent values",
                         f"{len(kernels)}", "With baseline=True class 0 has none.")
    processes = [_process(one, inputs, likelihood, mean, inducing, (), jitter) for one in kernels]
    return MulticlassProcess(tuple(processes), likelihood)


def _likelihood(site: Site | None, learn: str | tuple[str, ...]) -> tuple[Site, tuple[str, ...]]:
    """The site, and the names of its parameters that may be learnt."""
    if site is None:
        from klimb.sites.real import Gaussian

        site, learn = Gaussian(1.0), learn or ("scale",)
    given: Any = site
    if not isinstance(given, Site):
        raise InputError("site must be a klimb site", repr(given), "Use an instance such as klimb.sites.Logistic().")
    names = (learn,) if isinstance(learn, str) else tuple(learn)
    for name in names:
        if not isinstance(getattr(site, name, None), float):
            raise InputError(f"learn must name positive scalar parameters of {type(site).__name__}", repr(name),
                             "Look at repr(site) for its parameters.")
    return site, names


def _process(
    kernel: Any, inputs: Array, site: Site, mean: Mean | None, inducing: Any, names: tuple[str, ...],
    jitter: float | None,
) -> GaussianProcess:
    if not isinstance(kernel, Covariance):
        raise InputError("kernel must be a klimb kernel", repr(kernel), "Use klimb.kernels.RBF(), say.")
    kernel.diag(inputs[:1])  # refuses inputs of the wrong width
    function: Any = Zero() if mean is None else mean
    if not isinstance(function, Mean):
        raise InputError("mean must be a klimb mean function", repr(mean), "Use klimb.kernels.means.Constant(), say.")
    function(inputs[:1])
    points = None
    if isinstance(inducing, str):
        if inducing != "auto":
            raise InputError('inducing must be a number, points or "auto"', repr(inducing), "Say how many, or where.")
        points = explaining_points(kernel, inputs)
    elif isinstance(inducing, int | np.integer) and not isinstance(inducing, bool):
        points = choose_inducing(kernel, inputs, int(inducing))
    elif inducing is not None:
        points = as_inputs(inducing, "inducing")
    if points is not None and (len(points) > len(inputs) or points.shape[1] != inputs.shape[1]):
        raise InputError(f"inducing must be at most {len(inputs)} points with {inputs.shape[1]} columns",
                         f"shape {points.shape}", "Leave it out for the full process.")
    share = jitter if jitter is not None else (0.0 if points is None else INDUCING_JITTER)
    if not 0.0 <= share < np.inf:
        raise InputError("jitter must be at least 0", f"{share}", "It is a share of the prior variance, such as 1e-8.")
    return GaussianProcess(kernel, inputs, site, function, points, names, float(share))
