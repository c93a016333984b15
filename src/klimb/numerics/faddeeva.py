"""Gaussian expectations of log(1 + x^2/a^2) and of its derivatives, by Faddeeva's function w.

For x ~ N(m, s^2) and z = (i a - m) / (sqrt(2) s), E 1/(x - i a) = i sqrt(pi/2) w(z) / s, so that

    E x/(x^2 + a^2) = -sqrt(pi/2) Im w(z) / s,        E (a^2 - x^2)/(x^2 + a^2)^2 = sqrt(pi) Im w'(z) / (2 s^2)

with w' = 2i/sqrt(pi) - 2 z w. The logarithm is E log(x^2 + a^2) = 2 Re G(z) + log(2 s^2) with G' = -i sqrt(pi) w and
G(z) - log z -> 0 far away. The series of Weideman (1994, SIAM J. Numer. Anal. 31, p. 1497) in Z = (L + iz)/(L - iz),

    w(z) = 2 p(Z) / (L - iz)^2 + 1 / (sqrt(pi) (L - iz)),

integrates term by term, as dZ/dz = 2iL / (L - iz)^2: Re G(z) = log|L - iz| - sqrt(pi)/L Re[P(Z) - P(-1)], P' = p.
"""

from functools import lru_cache
from typing import Any

import numpy as np
from scipy.special import wofz

from klimb.numerics.arrays import Array, slices
from klimb.numerics.special import CACHE_DOUBLES, SQRT_2, Triple

TERMS, TOGETHER = 40, 4  # of the series, which leave 1e-15 of G, and how many are summed at a time
MOST_DEVIATIONS = 14.0  # from m to the poles +-i a: farther away the differences above lose digits, and few nodes do
SQRT_PI = float(np.sqrt(np.pi))


def pole_expectations(m: Array, s: Array, a: Array) -> Triple:
    """E log(1 + x^2/a^2), E x/(x^2 + a^2), E (a^2 - x^2)/(x^2 + a^2)^2 for m^2 + a^2 <= (MOST_DEVIATIONS s)^2."""
    z = (1j * a - m) / (SQRT_2 * s)
    w = wofz(z)
    log = 2.0 * (_log_distance(z) + np.log(SQRT_2 * (s / a)))
    return log, -SQRT_PI / SQRT_2 * w.imag / s, (1.0 - SQRT_PI * (z * w).imag) / (s * s)


def _log_distance(z: Any) -> Array:
    """Re G(z) = E log|z - t| for t ~ N(0, 1/2) and Im z > 0."""
    L, at_end, coefficients = _series()
    out = np.empty(z.shape)
    for rows in slices(z.size, CACHE_DOUBLES // (8 * TOGETHER)):
        down = L - 1j * z[rows]
        Z = (L + 1j * z[rows]) / down
        powers = np.multiply.accumulate(np.broadcast_to(Z, (TOGETHER, Z.size)), axis=0)
        total = np.zeros_like(powers)
        for some in coefficients[::-1]:
            total *= powers[-1]
            total += some[:, None]
        total *= powers
        out[rows] = np.log(np.abs(down)) - SQRT_PI / L * (total.real.sum(axis=0) - at_end)
    return out


@lru_cache(maxsize=1)
def _series() -> tuple[float, float, Array]:
    """L, P(-1), and the coefficients of P, from that of Z on, `TOGETHER` in a row."""
    L = float(np.sqrt(TERMS / SQRT_2))
    t = L * np.tan(np.arange(-2 * TERMS + 1, 2 * TERMS) * np.pi / (4 * TERMS))
    values = np.concatenate([[0.0], np.exp(-t * t) * (L * L + t * t)])
    p = np.fft.fft(np.fft.fftshift(values)).real[1 : TERMS + 1] / (4 * TERMS)
    P = p / np.arange(1, TERMS + 1)
    return L, float(P[1::2].sum() - P[::2].sum()), P.reshape(-1, TOGETHER)
