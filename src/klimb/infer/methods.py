"""Other answers to the same question: point estimate, Laplace, EP, L-BFGS on the bound, mean-field.

Each takes the arguments of `klimb.infer` and returns the same `Result`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from klimb.errors import InputError
from klimb.infer.certificate import Certificate, SafeStep, largest_safe_step, variance_certificate
from klimb.infer.direct import cholesky_gradient_path, direct_gradient_path
from klimb.infer.ep import ExpectationPropagation
from klimb.infer.loop import Callback, infer, run
from klimb.infer.natural import Natural
from klimb.infer.problem import Problem
from klimb.infer.result import Result
from klimb.latents.base import Latent, Posterior, as_latent
from klimb.sites.base import Site
from klimb.sites.wrappers import Cavity, Point

SMOOTHINGS = 9  # widths tried for a density with a kink, each a tenth of the one before

__all__ = [
    "certificate", "cholesky_gradient", "direct_gradient", "ep", "laplace", "map_estimate", "mean_field", "safe_step",
]


def laplace(latent: Latent, site: Site, y: Any, *, tol: float = 1e-6, max_iter: int = 500,
            callback: Callback | None = None) -> Result:
    """Laplace's approximation: the mode and the curvature there. ``bound`` is its estimate of the log evidence.

    Examples
    --------
    >>> import numpy as np, klimb
    >>> latent, site = klimb.latents.Weights(np.ones((3, 1))), klimb.sites.Gaussian(1.0)
    >>> result = klimb.methods.laplace(latent, site, [1.0, 2.0, 3.0])
    >>> float(result.posterior.mean[0].round(6))
    1.5
    """
    pointlike = Point(site)
    if not site.separable:
        raise InputError(
            "Laplace's approximation needs a site with one latent value per datum",
            f"{type(site).__name__} with {site.n_outputs}, whose curvature couples them",
            "Use klimb.infer, or klimb.methods.map_estimate for the mode.",
        )
    if not site.smooth:
        raise InputError(
            "Laplace's approximation needs a site with a curvature at its mode",
            f"{type(site).__name__}, which has a kink", "Use klimb.infer or klimb.methods.ep.",
        )
    return infer(latent, pointlike, y, tol=tol, max_iter=max_iter, callback=callback)


def map_estimate(latent: Latent, site: Site, y: Any, *, tol: float = 1e-6, max_iter: int = 500,
                 callback: Callback | None = None) -> Result:
    """The mode of the posterior: a point, so its predictions have no variance.

    ``bound`` is the log likelihood minus the penalty (m - mu)' K^-1 (m - mu) / 2: no bound on anything. A site with a
    kink (Laplace) is smoothed by a Gaussian of ever smaller width, down to 1e-8 of its own.

    Examples
    --------
    >>> import numpy as np, klimb
    >>> latent = klimb.latents.Weights(np.ones((5, 1)), cov=1e6)
    >>> result = klimb.methods.map_estimate(latent, klimb.sites.Laplace(1.0), [0.0, 1.0, 2.0, 7.0, 9.0])
    >>> float(result.posterior.mean[0].round(4))  # the median
    2.0
    """
    widths = [Point(site).width]
    if not site.smooth:
        own = 1.0 / np.sqrt(np.median(site.start(site.validate(y))[1]))
        widths = [float(own * 10.0**-k) for k in range(SMOOTHINGS)]
    start: Posterior | None = None
    for width in widths:
        problem = Problem(latent, Point(site, width), y, start)
        state, status, history, notes = run(problem, Natural(), tol, max_iter, callback)
        start = problem.posterior(state)
    if widths[-1] > 0:
        notes.append(f"the kink of the density was smoothed to a width of {widths[-1]:.1e}")
    posterior = replace(problem.posterior(state, spread=False), kl=float("inf"))
    return Result(posterior, state.objective, status, history, tuple(notes), problem)


def ep(latent: Latent, site: Site, y: Any, *, tol: float = 1e-6, max_iter: int = 500, damping: float = 1.0,
       callback: Callback | None = None) -> Result:
    """Expectation propagation, all sites in parallel. ``bound`` is EP's estimate of the log evidence, not a bound.

    ``damping`` = 1 takes full steps where they help and shorter ones where they do not.

    Examples
    --------
    >>> import numpy as np, klimb
    >>> latent, site, y = klimb.latents.Weights(np.ones((6, 1)), cov=4.0), klimb.sites.Logistic(), [1, 1, 1, 0, 1, 1]
    >>> by_ep, bound = klimb.methods.ep(latent, site, y).bound, klimb.infer(latent, site, y).bound
    >>> print(f"{by_ep:.4f} {bound:.4f}")  # the log evidence is -3.7403
    -3.7488 -3.7503
    """
    if not 0 < damping <= 1:
        raise InputError("damping must lie in (0, 1]", f"{damping}", "1 takes full steps.")
    problem = Problem(latent, site, y)
    step = ExpectationPropagation(Cavity(site), damping)
    state, status, history, notes = run(problem, step, tol, max_iter, callback)
    return Result(problem.posterior(state), state.bound, status, history, tuple(notes), problem)


def cholesky_gradient(latent: Latent, site: Site, y: Any, *, tol: float = 1e-6, max_iter: int = 5000,
                      callback: Callback | None = None) -> Result:
    """L-BFGS on the mean and the Cholesky factor of the covariance: the baseline of [A] and [S]; slow.

    Examples
    --------
    >>> import numpy as np, klimb
    >>> latent, site = klimb.latents.Weights(np.column_stack([np.ones(6), np.arange(6.0)])), klimb.sites.Poisson()
    >>> slow = klimb.methods.cholesky_gradient(latent, site, [2, 1, 3, 4, 3, 7])
    >>> fast = klimb.infer(latent, site, [2, 1, 3, 4, 3, 7])
    >>> bool(abs(slow.bound - fast.bound) < 1e-6), slow.n_iter > 2 * fast.n_iter  # the same optimum, by more steps
    (True, True)
    """
    problem = Problem(latent, site, y)
    state, status, history = cholesky_gradient_path(problem, tol, max_iter, callback)
    return Result(problem.posterior(state), state.bound, status, history, (), problem)


def direct_gradient(latent: Latent, site: Site, y: Any, *, tol: float = 1e-6, max_iter: int = 5000,
                    callback: Callback | None = None) -> Result:
    """L-BFGS on the mean and the logarithms of gamma, with the variances of all sites for every gradient.

    What [N] section 2.2 sets its double loop against; with ``sites.SuperGaussian(site)`` on the same bound. gamma stays
    positive, so the site must be log-concave or such a bound.

    Examples
    --------
    >>> import numpy as np, klimb
    >>> latent = klimb.latents.Weights(np.column_stack([np.ones(6), np.arange(6.0)]))
    >>> problem = latent, klimb.sites.Poisson(), [2, 1, 3, 4, 3, 7]
    >>> slow, fast = klimb.methods.direct_gradient(*problem), klimb.infer(*problem)
    >>> bool(abs(slow.bound - fast.bound) < 1e-6), slow.n_iter > 2 * fast.n_iter
    (True, True)
    """
    if not site.log_concave:
        raise InputError("direct_gradient needs a site with positive precisions", type(site).__name__,
                         "Use a log-concave site, or klimb.sites.SuperGaussian(site).")
    problem = Problem(latent, site, y)
    state, status, history = direct_gradient_path(problem, tol, max_iter, callback)
    return Result(problem.posterior(state), state.bound, status, history, (), problem)


def mean_field(latent: Latent, site: Site, y: Any, *, tol: float = 1e-6, max_iter: int = 500,
               callback: Callback | None = None) -> Result:
    """The best q with a diagonal covariance: over the weights of a linear model, f of a kernel, else whitened weights.

    Examples
    --------
    >>> import numpy as np, klimb
    >>> latent, site = klimb.latents.Weights(np.column_stack([np.ones(6), np.arange(6.0)])), klimb.sites.Poisson()
    >>> for solve in (klimb.methods.mean_field, klimb.infer):  # without the correlation, spreads are too small
    ...     result = solve(latent, site, [2, 1, 3, 4, 3, 7])
    ...     print(round(result.bound, 2), np.sqrt(np.diag(result.posterior.covariance())).round(2))
    -14.06 [0.22 0.06]
    -13.32 [0.46 0.13]
    """
    diagonal = as_latent(latent, "mean_field needs a latent", "Use klimb.latents, as for klimb.infer.").diagonal()
    return infer(diagonal, site, y, tol=tol, max_iter=max_iter, callback=callback)


def certificate(result: Result, site: Site, y: Any, *, tol: float = 1e-8, max_iter: int = 100) -> Certificate:
    """Two-sided bounds on the covariance at the mean of ``result``, for every log-concave site ([S] Theorem 1).

    ``lower`` and ``upper`` enclose the variances at the sites, ``matrices()`` the covariance itself: A <= V* <= B, so
    that every linear combination has its variance between the two. They do not trust the loop. Where gamma neither
    rises nor falls with the variance for every datum, it is bounded over the interval; sites that are not log-concave
    are taken where even the lowest curvatures leave q proper.

    Examples
    --------
    >>> import numpy as np, klimb
    >>> latent, y = klimb.latents.Weights(np.ones((4, 1))), [3, 1, 2, 4]
    >>> result = klimb.infer(latent, klimb.sites.Poisson(), y)
    >>> found = klimb.methods.certificate(result, klimb.sites.Poisson(), y)
    >>> bool((found.lower <= result.posterior.v * (1 + 1e-5)).all() and found.gap < 1e-6)
    True
    """
    return variance_certificate(Problem(result.posterior.latent, site, y), result.posterior.m, tol, max_iter)


def safe_step(site: Site, y: Any, variances: tuple[float, float]) -> SafeStep:
    """The largest beta that [A] section 4 calls safe for `klimb.steps.Proximal` on one datum each of ``y``.

    ``variances`` is the range in which the variance at the site stays; for a log-concave site it ends at the prior's.
    ``lipschitz`` is infinite, and ``beta`` 0, where the gradient of the expected log likelihood is not Lipschitz there,
    as for counts with a log link: then no fixed step is safe.

    Examples
    --------
    >>> import klimb
    >>> logistic, poisson = (klimb.methods.safe_step(site, [1], (0.1, 2.0))
    ...                      for site in (klimb.sites.Logistic(), klimb.sites.Poisson()))
    >>> print(f"{logistic.lipschitz:.3f} {logistic.beta:.3f}", poisson.exists)
    0.244 0.512 False
    """
    low, high = variances
    if not 0 < low <= high:
        raise InputError("variances must be a range 0 < low <= high", f"{variances}", "Such as (0.01, 4.0).")
    return largest_safe_step(site, site.validate(y), low, high)
