"""L-BFGS on the mean and the Cholesky factor of the covariance: the papers' GRAD / Cholesky baseline."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from klimb.infer.loop import Callback
from klimb.infer.problem import Problem, State
from klimb.infer.result import History, Iteration, Status
from klimb.numerics.arrays import Array


def cholesky_gradient_path(
    problem: Problem, tol: float, max_iter: int, callback: Callback | None
) -> tuple[State, Status, History]:
    """Maximise the bound over (u, C), f = mu + Z u, u ~ N(mean, C C') in whitened coordinates Z Z' = K.

    The bound is concave in (mean, C) for log-concave sites. The state returned is the one whose sites are those of the
    optimum, so its stationarity norm measures what L-BFGS left.
    """
    import scipy.optimize

    minimize: Any = scipy.optimize.minimize  # its overloads are narrower than what it takes

    latent, begin = problem.latent, time.perf_counter()
    Z = latent.design()
    R = Z.shape[1]
    rows, columns = np.tril_indices(R)
    diagonal = np.flatnonzero(rows == columns)
    points: list[tuple[float, float, int]] = []

    def unpack(theta: Array) -> tuple[Array, Array]:
        C = np.zeros((R, R))
        C[rows, columns] = theta[R:]
        return theta[:R], C

    def negative_bound(theta: Array) -> tuple[float, Array]:
        u, C = unpack(theta)
        ZC = Z @ C
        e = problem.oracle(latent.mean + Z @ u, latent.slack + np.einsum("ij,ij->i", ZC, ZC))
        pivots = C[np.arange(R), np.arange(R)]
        with np.errstate(divide="ignore"):
            kl = 0.5 * (u @ u + np.sum(C * C) - R) - np.log(np.abs(pivots)).sum()
        value = float(e.value.sum()) + problem.constant - kl
        if not np.isfinite(value):
            return 1e300, np.zeros_like(theta)
        grad_C = (Z.T @ (e.gamma[:, None] * ZC) + C)[rows, columns]  # minus the gradient
        grad_C[diagonal] -= 1.0 / pivots
        grad = np.concatenate([Z.T @ e.alpha + u, grad_C])
        points.append((value, float(np.abs(grad).max()), problem.n_oracle))
        return -value, grad

    iterations: list[Iteration] = []

    def record(_: Any) -> None:
        value, norm, calls = points[-1]
        before = iterations[-1].n_oracle if iterations else 0
        row = Iteration(len(iterations), value, norm, 1.0, "l-bfgs", time.perf_counter() - begin, 0, calls - before)
        iterations.append(row)
        if callback is not None and callback(row) is False:
            raise StopIteration

    theta = np.concatenate([np.zeros(R), np.eye(R)[rows, columns]])
    options: Any = {"maxiter": max_iter, "maxfun": 100 * max_iter + 100, "ftol": 0.0, "gtol": 1e-2 * tol, "maxcor": 30}
    found = minimize(negative_bound, theta, jac=True, method="L-BFGS-B", callback=record, options=options)
    u, C = unpack(found.x)
    m = latent.mean + Z @ u
    ZC = Z @ C
    e = problem.oracle(m, latent.slack + np.einsum("ij,ij->i", ZC, ZC))
    state = problem.at_sites(e.gamma * m - e.alpha, e.gamma)
    if state.stationarity <= tol:
        status = Status.CONVERGED
    else:
        status = Status.MAX_ITER if found.nit >= max_iter else Status.STALLED
    iterations.append(
        Iteration(len(iterations), state.bound, state.stationarity, 1.0, "sites", time.perf_counter() - begin, 1, 2)
    )
    return state, status, History(iterations)
