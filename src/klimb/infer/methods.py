"""Other answers to the same question: point estimate, Laplace, EP, L-BFGS on the bound, mean-field.

Each takes the arguments of `klimb.infer` and returns the same `Result`.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from klimb.errors import require
from klimb.infer.certificate import Certificate, safe_step, variance_certificate
from klimb.infer.loop import Callback, infer, run
from klimb.infer.natural import Natural
from klimb.infer.problem import Problem
from klimb.infer.result import History, Iteration, Result, Status
from klimb.infer.sitewise import ExpectationPropagation
from klimb.latents.base import Latent, Posterior, as_latent
from klimb.numerics.arrays import Array
from klimb.numerics.lazy import scipy_optimize
from klimb.sites import Cavity, Point, Site

Marginals: TypeAlias = Callable[[Array], tuple[Array, Array]]
Ascent: TypeAlias = Callable[[Array], tuple[float, Array]]
NOWHERE = 1e300  # stands for a bound that is not finite
SMOOTHINGS = 9  # widths tried for a density with a kink, each a tenth of the one before

__all__ = ["certificate", "cholesky_gradient", "direct_gradient", "ep", "laplace", "map_estimate", "mean_field",
           "safe_step"]


def laplace(latent: Latent, site: Site, y: Any, *, tol: float = 1e-6, max_iter: int = 500,
            callback: Callback | None = None) -> Result:
    """Laplace's approximation: the mode and the curvature there. ``bound`` is its estimate of the log evidence.

    >>> import numpy as np, klimb
    >>> latent, site = klimb.latents.Weights(np.ones((3, 1))), klimb.sites.Gaussian(1.0)
    >>> result = klimb.methods.laplace(latent, site, [1.0, 2.0, 3.0])
    >>> float(result.posterior.mean[0].round(6))
    1.5
    """
    pointlike = Point(site)
    require(site.separable, "Laplace's approximation needs a site with one latent value per datum",
            f"{type(site).__name__} with {site.n_outputs}, whose curvature couples them",
            "Use klimb.infer, or klimb.methods.map_estimate for the mode.")
    require(site.smooth, "Laplace's approximation needs a site with a curvature at its mode",
            f"{type(site).__name__}, which has a kink", "Use klimb.infer or klimb.methods.ep.")
    return infer(latent, pointlike, y, tol=tol, max_iter=max_iter, callback=callback)


def map_estimate(latent: Latent, site: Site, y: Any, *, tol: float = 1e-6, max_iter: int = 500,
                 callback: Callback | None = None) -> Result:
    """The mode of the posterior: a point, so its predictions have no variance.

    ``bound`` is the log likelihood minus the penalty (m - mu)' K^-1 (m - mu) / 2: no bound on anything. A site with a
    kink (Laplace) is smoothed by a Gaussian of ever smaller width, down to 1e-8 of its own.

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

    >>> import numpy as np, klimb
    >>> latent, site, y = klimb.latents.Weights(np.ones((6, 1)), cov=4.0), klimb.sites.Logistic(), [1, 1, 1, 0, 1, 1]
    >>> by_ep, bound = klimb.methods.ep(latent, site, y).bound, klimb.infer(latent, site, y).bound
    >>> print(f"{by_ep:.4f} {bound:.4f}")  # the log evidence is -3.7403
    -3.7488 -3.7503
    """
    require(0 < damping <= 1, "damping must lie in (0, 1]", damping, "1 takes full steps.")
    problem = Problem(latent, site, y)
    step = ExpectationPropagation(Cavity(site), damping)
    state, status, history, notes = run(problem, step, tol, max_iter, callback)
    return Result(problem.posterior(state), state.bound, status, history, tuple(notes), problem)


def cholesky_gradient(latent: Latent, site: Site, y: Any, *, tol: float = 1e-6, max_iter: int = 5000,
                      callback: Callback | None = None) -> Result:
    """L-BFGS on the mean and the Cholesky factor of the covariance: the baseline of [A] and [S]; slow.

    >>> import numpy as np, klimb
    >>> latent, site = klimb.latents.Weights(np.column_stack([np.ones(6), np.arange(6.0)])), klimb.sites.Poisson()
    >>> slow = klimb.methods.cholesky_gradient(latent, site, [2, 1, 3, 4, 3, 7])
    >>> fast = klimb.infer(latent, site, [2, 1, 3, 4, 3, 7])
    >>> bool(abs(slow.bound - fast.bound) < 1e-6), slow.n_iter > 2 * fast.n_iter  # the same optimum, by more steps
    (True, True)
    """
    # Over (u, C), f = mu + Z u, u ~ N(mean, C C') in whitened coordinates Z Z' = K: concave for log-concave sites.
    problem = Problem(latent, site, y)
    Z = latent.design()
    R = Z.shape[1]
    rows, columns = np.tril_indices(R)
    diagonal = np.flatnonzero(rows == columns)

    def unpack(theta: Array) -> tuple[Array, Array]:
        C = np.zeros((R, R))
        C[rows, columns] = theta[R:]
        return theta[:R], C

    def marginals(theta: Array) -> tuple[Array, Array]:
        u, C = unpack(theta)
        ZC = Z @ C
        return latent.mean + Z @ u, latent.slack + np.einsum("ij,ij->i", ZC, ZC)

    def bound(theta: Array) -> tuple[float, Array]:
        u, C = unpack(theta)
        e = problem.oracle(*marginals(theta))
        pivots = C[np.arange(R), np.arange(R)]
        with np.errstate(divide="ignore"):
            kl = 0.5 * (u @ u + np.sum(C * C) - R) - np.log(np.abs(pivots)).sum()
        grad_C = (Z.T @ (e.gamma[:, None] * (Z @ C)) + C)[rows, columns]  # minus the gradient
        grad_C[diagonal] -= 1.0 / pivots
        return float(e.value.sum()) + problem.constant - kl, -np.concatenate([Z.T @ e.alpha + u, grad_C])

    start = np.concatenate([np.zeros(R), np.eye(R)[rows, columns]])
    return _climb(problem, bound, marginals, start, tol, max_iter, callback)


def direct_gradient(latent: Latent, site: Site, y: Any, *, tol: float = 1e-6, max_iter: int = 5000,
                    callback: Callback | None = None) -> Result:
    """L-BFGS on the mean and the logarithms of gamma, with the variances of all sites for every gradient.

    What [N] section 2.2 sets its double loop against; with ``sites.SuperGaussian(site)`` on the same bound. gamma stays
    positive, so the site must be log-concave or such a bound.

    >>> import numpy as np, klimb
    >>> latent = klimb.latents.Weights(np.column_stack([np.ones(6), np.arange(6.0)]))
    >>> problem = latent, klimb.sites.Poisson(), [2, 1, 3, 4, 3, 7]
    >>> slow, fast = klimb.methods.direct_gradient(*problem), klimb.infer(*problem)
    >>> bool(abs(slow.bound - fast.bound) < 1e-6), slow.n_iter > 2 * fast.n_iter
    (True, True)
    """
    require(site.log_concave, "direct_gradient needs a site with positive precisions", type(site).__name__,
            "Use a log-concave site, or klimb.sites.SuperGaussian(site).")
    # At fixed mean d bound / d gamma = (V o V)(e.gamma - gamma) / 2 at the sites; with V = Z P^-1 Z' that needs no
    # matrix of their size.
    problem = Problem(latent, site, y)
    Z = latent.design()
    R = Z.shape[1]

    def covariance(theta: Array) -> tuple[Array, Array]:
        gamma = np.exp(np.clip(theta[R:], -60.0, 60.0))
        return gamma, np.asarray(np.linalg.inv(np.eye(R) + Z.T @ (gamma[:, None] * Z)), dtype=np.float64)

    def marginals(theta: Array) -> tuple[Array, Array]:
        return latent.mean + Z @ theta[:R], latent.slack + np.einsum("ij,ij->i", Z @ covariance(theta)[1], Z)

    def bound(theta: Array) -> tuple[float, Array]:
        u, (gamma, V) = theta[:R], covariance(theta)
        ZV = Z @ V
        spread = np.einsum("ij,ij->i", ZV, Z)
        e = problem.oracle(latent.mean + Z @ u, latent.slack + spread)
        kl = 0.5 * (u @ u - float(gamma @ spread) - np.linalg.slogdet(V)[1])
        slope = 0.5 * np.einsum("ij,ij->i", ZV @ (Z.T @ ((e.gamma - gamma)[:, None] * Z)), ZV)
        return float(e.value.sum()) + problem.constant - kl, np.concatenate([-(Z.T @ e.alpha) - u, gamma * slope])

    first = np.log(np.maximum(problem.site.start(problem.y)[1], 1e-6))
    return _climb(problem, bound, marginals, np.concatenate([np.zeros(R), first]), tol, max_iter, callback)


def mean_field(latent: Latent, site: Site, y: Any, *, tol: float = 1e-6, max_iter: int = 500,
               callback: Callback | None = None) -> Result:
    """The best q with a diagonal covariance: over the weights of a linear model, f of a kernel, else whitened weights.

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

    >>> import numpy as np, klimb
    >>> latent, y = klimb.latents.Weights(np.ones((4, 1))), [3, 1, 2, 4]
    >>> result = klimb.infer(latent, klimb.sites.Poisson(), y)
    >>> found = klimb.methods.certificate(result, klimb.sites.Poisson(), y)
    >>> bool((found.lower <= result.posterior.v * (1 + 1e-5)).all() and found.gap < 1e-6)
    True
    """
    return variance_certificate(Problem(result.posterior.latent, site, y), result.posterior.m, tol, max_iter)


def _climb(problem: Problem, bound: Ascent, marginals: Marginals, start: Array, tol: float, max_iter: int,
           callback: Callback | None) -> Result:
    """L-BFGS from ``start``. The last state has the sites of the optimum: its norm measures what L-BFGS left."""
    begin, iterations, points = time.perf_counter(), list[Iteration](), list[tuple[float, float, int]]()

    def negative(theta: Array) -> tuple[float, Array]:
        value, gradient = bound(theta)
        if not np.isfinite(value):
            return NOWHERE, np.zeros_like(theta)
        points.append((value, float(np.abs(gradient).max()), problem.n_oracle))
        return -value, -gradient

    def record(_: Any) -> None:
        value, norm, calls = points[-1]
        before = iterations[-1].n_oracle if iterations else 0
        row = Iteration(len(iterations), value, norm, 1.0, "l-bfgs", time.perf_counter() - begin, 0, calls - before)
        iterations.append(row)
        if callback is not None and callback(row) is False:
            raise StopIteration

    options = {"maxiter": max_iter, "maxfun": 100 * max_iter + 100, "ftol": 0.0, "gtol": 1e-2 * tol, "maxcor": 30}
    found = scipy_optimize.minimize(negative, start, jac=True, method="L-BFGS-B", callback=record, options=options)
    m, v = marginals(found.x)
    e = problem.oracle(m, v)
    state = problem.at_sites(e.gamma * m - e.alpha, e.gamma)
    status = Status.MAX_ITER if found.nit >= max_iter else Status.STALLED
    if state.stationarity <= tol:
        status = Status.CONVERGED
    iterations.append(Iteration(len(iterations), state.bound, state.stationarity, 1.0, "sites",
                                time.perf_counter() - begin, 1, 2))
    return Result(problem.posterior(state), state.bound, status, History(iterations), (), problem)
