"""What [G] compares with: ADVI (a stochastic search for the best diagonal Gaussian) and a Polya-Gamma Gibbs sampler.

Both are written from their own papers: Kucukelbir et al. (2017), sections 2.4-2.6; Polson, Scott and Windle (2013),
sections 3 and 4, with Devroye's method for PG(1, c).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from klimb.boosting.target import LogDensity
from klimb.numerics.arrays import Array

RATES = (0.01, 0.1, 1.0)  # step sizes that ADVI tries on the first iterations
FIRST, DRAWS = 100, 10  # those iterations, and draws for each gradient
FORGET, SHIFT = 0.1, 1.0  # weight of the newest squared gradient; keeps steps finite
SWITCH = 0.64  # where the two series of the Polya-Gamma density meet
BURN = 0.1  # share of the sweeps that are left out


def advi(log_density: LogDensity, gradient: LogDensity, dim: int, iterations: int,
         seed: int = 0) -> tuple[Array, Array]:
    """Mean and standard deviations of a diagonal Gaussian by stochastic gradients of the bound, x = m + s z.

    The step of coordinate i at iteration k is rate k^(-1/2) / (1 + sqrt(running mean of squared gradients)); the rate
    is the one with the best bound after the first iterations. The answer averages the last quarter.
    """
    nodes = np.random.default_rng([seed, 1]).standard_normal((1000, dim))

    def bound(theta: Array) -> float:
        value = float(np.mean(log_density(theta[:dim] + np.exp(theta[dim:]) * nodes))) + float(theta[dim:].sum())
        return value if np.isfinite(value) else -np.inf

    def walk(rate: float, n: int) -> Array:
        rng = np.random.default_rng(seed)
        theta, squares, kept = np.zeros(2 * dim), np.zeros(2 * dim), list[Array]()
        for k in range(1, n + 1):
            z = rng.standard_normal((DRAWS, dim))
            s = np.exp(theta[dim:])
            slope = gradient(theta[:dim] + s * z)
            g = np.concatenate([slope.mean(axis=0), (slope * z).mean(axis=0) * s + 1.0])
            squares = g**2 if k == 1 else FORGET * g**2 + (1.0 - FORGET) * squares
            theta = theta + rate * k**-0.5 * g / (SHIFT + np.sqrt(squares))
            if k > 0.75 * n:
                kept.append(theta)
        return np.asarray(np.mean(kept, axis=0))

    theta = walk(max(RATES, key=lambda rate: bound(walk(rate, FIRST))), iterations)
    return theta[:dim], np.exp(theta[dim:])


def polya_gamma(c: Array, rng: np.random.Generator) -> Array:
    """One draw of PG(1, c_i) for each i: its mean is tanh(c / 2) / (2 c).

    Devroye's rejection: a proposal of an exponential tail beyond 0.64 or of an inverse Gaussian below, accepted by an
    alternating series whose partial sums enclose the density.
    """
    z = 0.5 * np.abs(np.asarray(c, dtype=float))
    found, todo = np.empty_like(z), np.arange(len(z))
    while len(todo):
        x = _proposal(z[todo], rng)
        accepted = _accepted(x, rng)
        found[todo[accepted]] = 0.25 * x[accepted]
        todo = todo[~accepted]
    return np.asarray(found)


def _proposal(z: Array, rng: np.random.Generator) -> Array:
    from scipy.special import ndtr

    rate = np.pi**2 / 8 + z**2 / 2
    tail = np.pi / (2 * rate) * np.exp(-rate * SWITCH)
    root = np.sqrt(1 / SWITCH)
    body = np.exp(-z) * ndtr(root * (SWITCH * z - 1)) + np.exp(z) * ndtr(-root * (SWITCH * z + 1))
    far = rng.random(len(z)) < tail / (tail + 2 * body)
    x = SWITCH + rng.exponential(size=len(z)) / rate
    todo = np.flatnonzero(~far)
    while len(todo):  # inverse Gaussian with mean 1 / z, cut off at SWITCH
        own = z[todo]
        wide = own < 1 / SWITCH
        first = rng.exponential(size=(2, len(todo)))
        light = SWITCH / (1 + SWITCH * first[0]) ** 2
        fine = (first[0] ** 2 <= 2 * first[1] / SWITCH) & (rng.random(len(todo)) < np.exp(-0.5 * own**2 * light))
        normal = rng.wald(1 / np.where(wide, 1.0, own), 1.0)
        proposal, good = np.where(wide, light, normal), np.where(wide, fine, normal < SWITCH)
        x[todo[good]] = proposal[good]
        todo = todo[~good]
    return x


def _term(n: int, x: Array) -> Array:
    k = n + 0.5
    with np.errstate(under="ignore", divide="ignore", over="ignore"):
        near = (2 / (np.pi * x)) ** 1.5 * np.pi * k * np.exp(-2 * k**2 / x)
        return np.where(x > SWITCH, np.pi * k * np.exp(-0.5 * k**2 * np.pi**2 * x), near)


def _accepted(x: Array, rng: np.random.Generator) -> npt.NDArray[np.bool_]:
    total = _term(0, x)
    level, undecided, accepted = rng.random(len(x)) * total, np.ones(len(x), dtype=bool), np.zeros(len(x), dtype=bool)
    for n in range(1, 200):
        total = total - _term(n, x) if n % 2 else total + _term(n, x)
        decided = undecided & ((level <= total) if n % 2 else (level > total))
        accepted |= decided & bool(n % 2)
        undecided &= ~decided
        if not undecided.any():
            break
    return accepted


def gibbs(X: Array, y: Array, sweeps: int, seed: int = 0) -> Array:
    """Draws of the weights of a logistic regression with labels -1 and 1 under N(0, I), one a row."""
    rng, dim = np.random.default_rng(seed), X.shape[1]
    pull, w, draws = 0.5 * X.T @ np.where(y > 0, 1.0, -1.0), np.zeros(dim), np.empty((sweeps, dim))
    for k in range(sweeps):
        root = np.linalg.cholesky(np.eye(dim) + X.T @ (polya_gamma(X @ w, rng)[:, None] * X))
        mean = np.linalg.solve(root.T, np.linalg.solve(root, pull))
        w = draws[k] = mean + np.linalg.solve(root.T, rng.standard_normal(dim))
    return draws[int(BURN * sweeps):]
