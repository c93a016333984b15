"""Matern Gaussian processes as Gauss-Markov chains: transitions and noise over a step of time, and their derivatives.

With s = nu + 1/2, f and its first s - 1 derivatives (the j-th divided by rate^j, rate = sqrt(2 nu) / l) are a Markov
process dz = F z dx + e_s dw in the unitless time x = rate * t. All eigenvalues of F are -1.
"""

from __future__ import annotations

from math import comb, factorial, sqrt

import numpy as np
from scipy.special import gammainc

from klimb.numerics.arrays import Array

STATES = {0.5: 1, 1.5: 2, 2.5: 3}  # smoothness -> size of the state
FORGOTTEN = 800.0  # exp(-x) is zero from here on, and x^2 exp(-x) must not be inf * 0


def rate(smoothness: float, lengthscale: float) -> float:
    """sqrt(2 nu) / l: what makes time unitless."""
    return sqrt(2.0 * smoothness) / lengthscale


def transition(states: int, x: Array) -> Array:
    """exp(F x) = e^-x sum_j (F + I)^j x^j / j!, a finite sum since (F + I)^s = 0; shape (s, s, n)."""
    x = np.minimum(x, FORGOTTEN)
    out = np.zeros((states, states, len(x)))
    for j, power in enumerate(_powers(states)):
        out += power[:, :, None] * (x**j / factorial(j))
    return np.asarray(out * np.exp(-x))


def noise(states: int, x: Array) -> Array:
    """Covariance of what a step adds at unit variance: q int_0^x p p' e^-2t dt, with p the polynomials of exp(F t) e_s.

    int_0^x t^m e^-2t dt = m! / 2^(m+1) P(m + 1, 2x) with P the regularised incomplete gamma function, so that each
    entry keeps its digits for every x; P_inf - A P_inf A' would lose all of them for small x.
    """
    x = np.minimum(x, FORGOTTEN)
    levels = [factorial(m) / 2.0 ** (m + 1) * gammainc(m + 1.0, 2.0 * x) for m in range(2 * states - 1)]
    p = _last_column(states)
    out = np.empty((states, states, len(x)))
    for i in range(states):
        for j in range(i + 1):
            coefficients = np.convolve(p[i], p[j])
            out[i, j] = out[j, i] = sum(c * level for c, level in zip(coefficients, levels, strict=True) if c != 0.0)
    return out * _diffusion(states)


def stationary(states: int) -> Array:
    """Covariance of the state at unit variance of f."""
    return np.asarray(noise(states, np.array([FORGOTTEN]))[..., 0])


def derivatives(states: int, x: Array) -> tuple[Array, Array]:
    """x d/dx of `transition` and of `noise` (at unit variance)."""
    x = np.minimum(x, FORGOTTEN)
    A = transition(states, x)
    last = A[:, -1]
    return np.einsum("ij,jkn->ikn", _drift(states), A) * x, _diffusion(states) * x * last[:, None] * last[None, :]


def _drift(states: int) -> Array:
    """F, the companion matrix of (1 + d/dx)^s."""
    F = np.diag(np.ones(states - 1), 1)
    F[-1] = [-comb(states, j) for j in range(states)]
    return F


def _powers(states: int) -> list[Array]:
    nilpotent = _drift(states) + np.eye(states)
    return [np.linalg.matrix_power(nilpotent, j) for j in range(states)]


def _last_column(states: int) -> Array:
    """Coefficients, by power of t, of the polynomials p(t) = e^t exp(F t) e_s: one row per entry."""
    return np.array([power[:, -1] / factorial(j) for j, power in enumerate(_powers(states))]).T


def _diffusion(states: int) -> float:
    """The strength of the white noise that gives f unit variance: 2, 4, 16/3."""
    return float(2.0 ** (2 * states - 1) * factorial(states - 1) ** 2 / factorial(2 * states - 2))
