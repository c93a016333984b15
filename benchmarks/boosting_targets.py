"""Targets for black-box inference, written once for NumPy and JAX, with what is known of them.

Each is a function fn(xp, x) of points x of shape (..., dim), xp being numpy or jax.numpy. ``log_evidence``, ``mean``
and ``sd`` are closed forms, quadratures on grids, or (the regressions) importance sampling from a Student-t.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

LOG_2PI = float(np.log(2 * np.pi))


@dataclass(frozen=True)
class Problem:
    """A log density, its log evidence, and its moments where they are known."""

    dim: int
    fn: Callable[[Any, Any], Any]
    log_evidence: float
    mean: np.ndarray | None = None
    sd: np.ndarray | None = None
    smooth: bool = True  # False where differences across an edge would be no gradient
    init: tuple[float, ...] | None = None

    def values(self, X: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            return np.asarray(self.fn(np, np.atleast_2d(X)))

    def gradient(self, X: np.ndarray) -> np.ndarray:
        """By central differences: for runs in NumPy that should not pay for differences in evaluations."""
        X = np.atleast_2d(X)
        h = 6e-6 * np.maximum(1.0, np.abs(X))
        steps = h[:, :, None] * np.eye(self.dim)
        ahead, behind = (self.values((X[:, None] + sign * steps).reshape(-1, self.dim)) for sign in (1.0, -1.0))
        return ((ahead - behind).reshape(X.shape)) / (2 * h)


def mixture(means: Any, roots: Any, weights: Any) -> Problem:
    mu, w = np.asarray(means, float), np.asarray(weights, float)
    dim = mu.shape[1]
    inverse = [np.linalg.inv(root) for root in roots]
    peaks = [np.log(a) + np.linalg.slogdet(i)[1] - 0.5 * dim * LOG_2PI for a, i in zip(w, inverse, strict=True)]

    def fn(xp: Any, x: Any) -> Any:
        terms = [c - 0.5 * (((x - m) @ i.T) ** 2).sum(-1) for c, m, i in zip(peaks, mu, inverse, strict=True)]
        stacked = xp.stack(terms)
        top = stacked.max(0)
        return top + xp.log(xp.exp(stacked - top).sum(0))

    mean = w @ mu
    second = sum(a * (root @ root.T + np.outer(m - mean, m - mean)) for a, m, root in zip(w, mu, roots, strict=True))
    return Problem(dim, fn, 0.0, mean, np.sqrt(np.diag(second)))


def banana() -> Problem:
    def fn(xp: Any, x: Any) -> Any:
        a, b = x[..., 0], x[..., 1]
        return -(a**2) / 8 - 0.5 * (b - 0.5 * (a**2 - 4)) ** 2 - np.log(4 * np.pi)

    return Problem(2, fn, 0.0, np.zeros(2), np.array([2.0, 3.0]))


def half_normal() -> Problem:
    """-inf below an edge that nobody declared."""
    return Problem(1, lambda xp, x: xp.where(x[..., 0] > 0, -0.5 * x[..., 0] ** 2, -np.inf), 0.5 * np.log(np.pi / 2),
                   np.array([np.sqrt(2 / np.pi)]), np.array([np.sqrt(1 - 2 / np.pi)]), smooth=False, init=(1.0,))


def cut_gaussian() -> Problem:
    """The half of two Gaussians correlated by 0.8 in which the first is positive."""
    def fn(xp: Any, x: Any) -> Any:
        a, b = x[..., 0], x[..., 1]
        return xp.where(a > 0, -0.5 * (a**2 - 1.6 * a * b + b**2) / 0.36, -np.inf)

    m = np.sqrt(2 / np.pi)
    return Problem(2, fn, float(np.log(0.6 * np.pi)), np.array([m, 0.8 * m]),
                   np.sqrt([1 - m**2, 1 - (0.8 * m) ** 2]), smooth=False, init=(1.0, 1.0))


def cauchy() -> Problem:
    return Problem(1, lambda xp, x: -xp.log1p((x[..., 0] / 2) ** 2) - np.log(2 * np.pi), 0.0)


def funnel(dim: int) -> Problem:
    def fn(xp: Any, x: Any) -> Any:
        v, rest = x[..., 0], x[..., 1:]
        return (-(v**2) / 18 - 0.5 * np.log(9) - 0.5 * (rest**2).sum(-1) * xp.exp(-v) - 0.5 * (dim - 1) * v
                - 0.5 * dim * LOG_2PI)

    return Problem(dim, fn, 0.0, np.zeros(dim), np.r_[3.0, np.full(dim - 1, np.exp(2.25))])


def ring() -> Problem:
    r = np.linspace(0, 12, 200_001)
    mass = 2 * np.pi * np.trapezoid(r * np.exp(-2 * (r - 4) ** 2), r)
    second = np.pi * np.trapezoid(r**3 * np.exp(-2 * (r - 4) ** 2), r) / mass

    def fn(xp: Any, x: Any) -> Any:
        return -2.0 * (xp.sqrt((x**2).sum(-1) + 1e-12) - 4.0) ** 2

    return Problem(2, fn, float(np.log(mass)), np.zeros(2), np.full(2, np.sqrt(second)))


def skewed(dim: int) -> Problem:
    """A rotated, scaled Gaussian of which one direction is the log of a Gamma(2) variable."""
    from scipy.special import digamma, polygamma

    rng = np.random.default_rng(dim)
    A = np.linalg.qr(rng.standard_normal((dim, dim)))[0] * np.exp(rng.uniform(-1.5, 1.5, dim))
    inverse, centre = np.linalg.inv(A), rng.standard_normal(dim)
    constant = np.linalg.slogdet(inverse)[1] - 0.5 * (dim - 1) * LOG_2PI

    def fn(xp: Any, x: Any) -> Any:
        y = (x - centre) @ inverse.T
        return 2.0 * y[..., 0] - xp.exp(y[..., 0]) - 0.5 * (y[..., 1:] ** 2).sum(-1) + constant

    unit = np.eye(dim)
    unit[0, 0] = polygamma(1, 2.0)
    return Problem(dim, fn, 0.0, centre + A[:, 0] * digamma(2.0), np.sqrt(np.diag(A @ unit @ A.T)))


def regression(X: np.ndarray, y: np.ndarray, family: str) -> Problem:
    from scipy.special import gammaln

    dim = X.shape[1]
    constant = -0.5 * dim * LOG_2PI - (gammaln(y + 1).sum() if family == "poisson" else 0.0)

    def fn(xp: Any, w: Any) -> Any:
        f = w @ X.T
        terms = y * f - (xp.logaddexp(0.0, f) if family == "logistic" else xp.exp(f))
        return terms.sum(-1) - 0.5 * (w**2).sum(-1) + constant

    return _with_importance(Problem(dim, fn, 0.0))


def eight_schools(centred: bool) -> Problem:
    """mu ~ N(0, 5^2), tau ~ half-Cauchy(5), in (mu, log tau, theta or z); truth by a grid over mu and log tau."""
    y = np.array([28.0, 8, -3, 7, -1, 1, 18, 12])
    s = np.array([15.0, 10, 16, 11, 9, 11, 10, 18])

    def fn(xp: Any, x: Any) -> Any:
        mu, t, rest = x[..., 0], x[..., 1], x[..., 2:]
        tau = xp.exp(t)
        prior = -(mu**2) / 50 - np.log(5) - 0.5 * LOG_2PI + np.log(2 / (5 * np.pi)) - xp.log1p((tau / 5) ** 2) + t
        if centred:
            theta, latent = rest, -0.5 * (((rest - mu[..., None]) / tau[..., None]) ** 2).sum(-1) - 8 * t
        else:
            theta, latent = mu[..., None] + tau[..., None] * rest, -0.5 * (rest**2).sum(-1)
        return prior + latent - 4 * LOG_2PI - 0.5 * (((y - theta) / s) ** 2).sum(-1) - np.log(s).sum() - 4 * LOG_2PI

    mu, t = np.meshgrid(np.linspace(-30, 40, 1401), np.linspace(-14, 8, 2201), indexing="ij")
    tau = np.exp(t)
    log_p = -(mu**2) / 50 - np.log(5) - 0.5 * LOG_2PI + np.log(2 / (5 * np.pi)) - np.log1p((tau / 5) ** 2) + t
    for a, b in zip(y, s, strict=True):
        v = tau**2 + b**2
        log_p = log_p - 0.5 * (a - mu) ** 2 / v - 0.5 * np.log(v) - 0.5 * LOG_2PI
    cell = 0.05 * 0.01
    p = np.exp(log_p - log_p.max())
    log_evidence = float(np.log(p.sum() * cell) + log_p.max())
    p /= p.sum()
    mean = np.array([(p * mu).sum(), (p * t).sum()])
    sd = np.sqrt(np.array([(p * mu**2).sum(), (p * t**2).sum()]) - mean**2)
    return Problem(10, fn, log_evidence, mean, sd)  # moments of mu and log tau only


def gp_hyperparameters() -> Problem:
    """Log lengthscale, log amplitude, log noise of a Gaussian process regression; truth by a grid."""
    x = np.linspace(0, 5, 18)
    y = np.sin(1.5 * x) + 0.3 * np.cos(7 * x)
    d2 = (x[:, None] - x) ** 2

    def fn(xp: Any, theta: Any) -> Any:
        a, b, c = theta[..., 0], theta[..., 1], theta[..., 2]
        K = xp.exp(2 * b)[..., None, None] * xp.exp(-0.5 * d2 * xp.exp(-2 * a)[..., None, None])
        K = K + (xp.exp(2 * c) + 1e-8 * xp.exp(2 * b))[..., None, None] * np.eye(len(x))
        L = xp.linalg.cholesky(K)
        white = xp.linalg.solve(L, xp.broadcast_to(y[:, None], L.shape[:-1] + (1,)))[..., 0]
        logdet = xp.log(xp.diagonal(L, axis1=-2, axis2=-1)).sum(-1)
        prior = -0.5 * (a**2 + b**2 + (c + 1) ** 2)
        return -0.5 * (white**2).sum(-1) - logdet - 0.5 * len(x) * LOG_2PI + prior - 1.5 * LOG_2PI

    axes = [np.linspace(-3, 3, 61), np.linspace(-3.5, 4, 61), np.linspace(-5, 2.5, 61)]
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 3)
    values = np.concatenate([fn(np, part) for part in np.array_split(grid, 200)])
    p = np.exp(values - values.max())
    cell = float(np.prod([axis[1] - axis[0] for axis in axes]))
    log_evidence = float(np.log(p.sum() * cell) + values.max())
    p /= p.sum()
    mean = p @ grid
    return Problem(3, fn, log_evidence, mean, np.sqrt(p @ (grid - mean) ** 2))


def _with_importance(problem: Problem, n: int = 200_000) -> Problem:
    from scipy.optimize import minimize
    from scipy.stats import multivariate_t

    dim = problem.dim
    mode = minimize(lambda w: -problem.values(w)[0], np.zeros(dim), method="BFGS", options={"gtol": 1e-6}).x
    h, E = 1e-3, 1e-3 * np.eye(dim)
    corners = [[problem.values(mode + a * E[i] + b * E[j])[0] for a, b in ((1, 1), (1, -1), (-1, 1), (-1, -1))]
               for i in range(dim) for j in range(dim)]
    H = -(np.array(corners) @ [1, -1, -1, 1]).reshape(dim, dim) / (4 * h * h)
    proposal = multivariate_t(mode, 1.2 * np.linalg.inv(0.5 * (H + H.T)), df=8)
    X = proposal.rvs(n, random_state=np.random.default_rng(0)).reshape(n, dim)
    log_w = problem.values(X) - proposal.logpdf(X)
    w = np.exp(log_w - log_w.max())
    log_evidence = float(np.log(w.mean()) + log_w.max())
    w /= w.sum()
    mean = w @ X
    return Problem(dim, problem.fn, log_evidence, mean, np.sqrt(w @ (X - mean) ** 2))


def nodal() -> Problem:
    path = Path(os.environ.get("KLIMB_DATA", Path(__file__).resolve().parents[2] / "shared" / "data")) / "nodal.npz"
    with np.load(path) as stored:
        X, y = stored["X"].astype(float), stored["y"].astype(float)
    return regression(X, (y > 0).astype(float), "logistic")


def poisson() -> Problem:
    rng = np.random.default_rng(3)
    X = np.column_stack([np.ones(60), rng.standard_normal((60, 3))])
    return regression(X, rng.poisson(np.exp(X @ [0.2, 0.5, -0.4, 0.1])).astype(float), "poisson")


def five() -> Problem:
    rng = np.random.default_rng(5)
    means = rng.uniform(-6, 6, (5, 2))
    roots = [np.linalg.cholesky(np.cov(rng.standard_normal((2, 6))) + 0.2 * np.eye(2)) for _ in range(5)]
    return mixture(means, roots, rng.dirichlet(5 * np.ones(5)))


PROBLEMS: dict[str, Callable[[], Problem]] = {
    "Cauchy": cauchy,
    "four in 1-D": lambda: mixture([[-4.0], [-1], [2], [6]], [s * np.eye(1) for s in (0.7, 0.5, 1.0, 0.8)],
                                   [0.2, 0.3, 0.3, 0.2]),
    "five in 2-D": five,
    "nodal": nodal,
    "banana": banana,
    "funnel, 2-D": lambda: funnel(2),
    "funnel, 10-D": lambda: funnel(10),
    "ring": ring,
    "40 sd apart": lambda: mixture([[0.0, 0], [24, 32]], [np.eye(2)] * 2, [0.3, 0.7]),
    "half-normal": half_normal,
    "half of a Gaussian": cut_gaussian,
    "skewed, 20-D": lambda: skewed(20),
    "skewed, 50-D": lambda: skewed(50),
    "Poisson": poisson,
    "eight schools": lambda: eight_schools(False),
    "eight schools, centred": lambda: eight_schools(True),
    "GP hyperparameters": gp_hyperparameters,
}
