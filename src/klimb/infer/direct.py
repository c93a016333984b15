"""L-BFGS on the bound: over mean and Cholesky factor (GRAD of [S], Cholesky of [A]), or over mean and gamma ([N])."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from klimb.infer.loop import Callback
from klimb.infer.problem import Problem, State
from klimb.infer.result import History, Iteration, Status
from klimb.numerics.arrays import Array
from klimb.sites.base import Expectation

Path: TypeAlias = tuple[State, Status, History]
Marginals: TypeAlias = Callable[[Array], tuple[Array, Array]]
Ascent: TypeAlias = Callable[[Array], tuple[float, Array]]
NOWHERE = 1e300  # stands for a bound that is not finite


def cholesky_gradient_path(problem: Problem, tol: float, max_iter: int, callback: Callback | None) -> Path:
    """Maximise the bound over (u, C), f = mu + Z u, u ~ N(mean, C C') in whitened coordinates Z Z' = K.

    The bound is concave in (mean, C) for log-concave sites.
    """
    latent = problem.latent
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
        return _value(problem, e, kl), -np.concatenate([Z.T @ e.alpha + u, grad_C])

    start = np.concatenate([np.zeros(R), np.eye(R)[rows, columns]])
    return _climb(problem, bound, marginals, start, tol, max_iter, callback)


def direct_gradient_path(problem: Problem, tol: float, max_iter: int, callback: Callback | None) -> Path:
    """Maximise the bound over (u, log gamma): all variances for every gradient, as [N] section 2.2 warns.

    At fixed mean d bound / d gamma = (V o V)(e.gamma - gamma) / 2 at the sites; with V = Z P^-1 Z' that needs no matrix
    of their size.
    """
    latent = problem.latent
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
        return _value(problem, e, kl), np.concatenate([-(Z.T @ e.alpha) - u, gamma * slope])

    first = np.log(np.maximum(problem.site.start(problem.y)[1], 1e-6))
    return _climb(problem, bound, marginals, np.concatenate([np.zeros(R), first]), tol, max_iter, callback)


def _value(problem: Problem, e: Expectation, kl: float) -> float:
    return float(e.value.sum()) + problem.constant - kl


def _climb(problem: Problem, bound: Ascent, marginals: Marginals, start: Array, tol: float, max_iter: int,
           callback: Callback | None) -> Path:
    """L-BFGS from ``start``. The state returned is the one whose sites are those of the optimum.

    So its stationarity norm measures what L-BFGS left.
    """
    import scipy.optimize

    minimize: Any = scipy.optimize.minimize  # its overloads are narrower than what it takes
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

    options: Any = {"maxiter": max_iter, "maxfun": 100 * max_iter + 100, "ftol": 0.0, "gtol": 1e-2 * tol, "maxcor": 30}
    found = minimize(negative, start, jac=True, method="L-BFGS-B", callback=record, options=options)
    m, v = marginals(found.x)
    e = problem.oracle(m, v)
    state = problem.at_sites(e.gamma * m - e.alpha, e.gamma)
    if state.stationarity <= tol:
        status = Status.CONVERGED
    else:
        status = Status.MAX_ITER if found.nit >= max_iter else Status.STALLED
    iterations.append(
        Iteration(len(iterations), state.bound, state.stationarity, 1.0, "sites", time.perf_counter() - begin, 1, 2)
    )
    return state, status, History(iterations)
