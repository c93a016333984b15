"""Special functions in the forms that keep their digits, and the nodes of Gauss's rules.

Gaussian expectations of log(1 + x^2/a^2) and of its derivatives come from Faddeeva's function w. For x ~ N(m, s^2) and
z = (i a - m) / (sqrt(2) s), E 1/(x - i a) = i sqrt(pi/2) w(z) / s, so that

    E x/(x^2 + a^2) = -sqrt(pi/2) Im w(z) / s,        E (a^2 - x^2)/(x^2 + a^2)^2 = sqrt(pi) Im w'(z) / (2 s^2)

with w' = 2i/sqrt(pi) - 2 z w. The logarithm is E log(x^2 + a^2) = 2 Re G(z) + log(2 s^2) with G' = -i sqrt(pi) w and
G(z) - log z -> 0 far away. The series of Weideman (1994, SIAM J. Numer. Anal. 31, p. 1497) in Z = (L + iz)/(L - iz),

    w(z) = 2 p(Z) / (L - iz)^2 + 1 / (sqrt(pi) (L - iz)),

integrates term by term, as dZ/dz = 2iL / (L - iz)^2: Re G(z) = log|L - iz| - sqrt(pi)/L Re[P(Z) - P(-1)], P' = p.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import expm1, factorial, log
from typing import Any, TypeAlias

import numpy as np
from scipy.special import gammaln, wofz

from klimb.numerics.arrays import Array, pieces, slices
from klimb.numerics.lazy import scipy_optimize

Triple: TypeAlias = tuple[Array, Array, Array]
CACHE_DOUBLES = 32768  # of one temporary
STEEPEST = 700.0  # rate of an exponential density on the unit interval
LARGEST_EXPONENT = 1600.0  # exp(-x/2) underflows from here on
SPAN = 9.3  # a Gaussian has less than 1e-19 of its mass, and of its low moments, outside this many deviations
SQRT_2 = float(np.sqrt(2.0))
SQRT_2PI = float(np.sqrt(2.0 * np.pi))
HALF_LOG_2PI = float(0.5 * np.log(2.0 * np.pi))

# Coefficients of x^-1, x^-3, ... in Stirling's series for log gamma, B_2k / (2k (2k - 1)).
_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156, -3617 / 122400)
# Coefficients of x^-2, x^-4, ... in the series of digamma(x) - log(x) + 1/(2x), -B_2k / 2k.
_DIGAMMA = (-1 / 12, 1 / 120, -1 / 252, 1 / 240, -1 / 132, 691 / 32760, -1 / 12)
# Coefficients of a^-1, a^-3, ... in log gamma(a + 1/2) - log gamma(a) - log(a) / 2.
_HALF_STEP = (-1 / 8, 1 / 192, -1 / 640, 17 / 14336, -31 / 18432, 691 / 180224)
_EXPONENTIAL = tuple(1.0 / factorial(k) for k in range(2, 13))
_SMALL = 0.3  # d / 2 below which the series of tanh is used
TERMS, TOGETHER = 40, 4  # of the series of G, which leave 1e-15 of G, and how many are summed at a time
MOST_DEVIATIONS = 14.0  # from m to the poles +-i a: farther away the differences above lose digits, and few nodes do
SQRT_PI = float(np.sqrt(np.pi))


def polynomial(x: Array, coefficients: tuple[float, ...]) -> Array:
    """sum_k c_k x^k by Horner's rule."""
    total = np.full_like(x, coefficients[-1])
    for c in coefficients[-2::-1]:
        total *= x
        total += c
    return total


def _odd_series(x: Array, coefficients: tuple[float, ...]) -> Array:
    """sum_k c_k x^-(2k+1)."""
    inverse = 1.0 / x
    return np.asarray(polynomial(inverse * inverse, coefficients) * inverse)


def stirling_error(x: Array) -> Array:
    """log gamma(x) - [(x - 1/2) log x - x + log(2 pi)/2]: what Stirling's formula leaves out, for x > 0."""
    x = np.asarray(x, dtype=np.float64)
    large, small = x >= 12.0, np.minimum(x, 12.0)
    direct = gammaln(small) - (small - 0.5) * np.log(small) + small - HALF_LOG_2PI
    return np.where(large, _odd_series(np.maximum(x, 12.0), _STIRLING), direct) if large.any() else direct


def of_counts(function: Callable[[Array], Array], y: Array) -> Array:
    """function(y) of whole numbers, each of which is worked out once where they are small beside how many there are."""
    most = float(np.max(y, initial=0.0))
    return function(y) if most >= y.size else np.asarray(function(np.arange(most + 1.0))[y.astype(np.intp)])


# Coefficients of x^-3, x^-5, ... in the series of trigamma(x) - 1/x - 1/(2x^2), B_2k.
_TRIGAMMA = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6)


def gamma_family(x: Array) -> tuple[Array, Array, Array]:
    """log gamma, digamma and trigamma of x >= 1 to 1e-15 of the larger of themselves and 10, by one fast recurrence."""
    near = np.minimum(x, 30.0)
    product, inverses, squares = near.copy(), 1.0 / near, 1.0 / (near * near)
    for k in range(1, 8):
        factor = near + k
        product *= factor
        np.divide(1.0, factor, out=factor)
        inverses += factor
        factor *= factor
        squares += factor
    moved = x < 30.0
    far = np.where(moved, x + 8.0, x)
    log_far, inverse = np.log(far), 1.0 / far
    value = (far - 0.5) * log_far - far + HALF_LOG_2PI + _odd_series(far, _STIRLING)
    slope = log_far - 0.5 * inverse + _odd_series(far, _DIGAMMA) * inverse
    bend = inverse + 0.5 * inverse * inverse + _odd_series(far, _TRIGAMMA) * inverse * inverse
    return (np.where(moved, value - np.log(product), value), np.where(moved, slope - inverses, slope),
            np.where(moved, bend + squares, bend))


def log_gamma_half_step(a: Array) -> Array:
    """log gamma(a + 1/2) - log gamma(a) for a > 0."""
    a = np.asarray(a, dtype=np.float64)
    large = np.maximum(a, 12.0)
    small = np.minimum(a, 12.0)
    series = 0.5 * np.log(large) + _odd_series(large, _HALF_STEP)
    return np.where(a >= 12.0, series, gammaln(small + 0.5) - gammaln(small))


def log_binomial(n: Array, k: Array, rest: Array | None = None) -> Array:
    """log of the binomial coefficient for real n >= k >= 0, where no gammas cancel; ``rest`` is n - k, if known."""
    n, k = np.broadcast_arrays(np.asarray(n, dtype=np.float64), np.asarray(k, dtype=np.float64))
    rest = n - k if rest is None else np.broadcast_to(rest, n.shape)
    edge = (k <= 0.0) | (rest <= 0.0)
    a, b = np.where(edge, 1.0, k), np.where(edge, 1.0, rest)
    total = a + b
    entropy = -a * _log_share(a, b) - b * _log_share(b, a)
    correction = stirling_error(total) - stirling_error(a) - stirling_error(b)
    return np.where(edge, 0.0, entropy + 0.5 * (np.log(total) - np.log(a) - np.log(b)) - HALF_LOG_2PI + correction)


def _log_share(a: Array, b: Array) -> Array:
    """log(a / (a + b)) with its digits also where a is nearly all of it."""
    return np.asarray(-np.log1p(b / a))


def exponentials(u: Array) -> tuple[Array, Array, Array]:
    """exp(u), exp(u) - 1 and exp(u) - 1 - u, each with relative accuracy, and infinity where they overflow."""
    with np.errstate(over="ignore", under="ignore"):
        whole = np.asarray(np.exp(u))
        excess = np.asarray(np.expm1(u))
    rest = np.asarray(excess - u)
    flat, near = np.ravel(u), np.flatnonzero(np.abs(u) < 0.25)
    for part in pieces(near, CACHE_DOUBLES // 4):  # x^2 (1/2 + x/6 + x^2/24 + ...)
        x = flat[part]
        rest.reshape(-1)[part] = polynomial(x, _EXPONENTIAL) * (x * x)
    return whole, excess, rest


def _tanh_coefficients(count: int) -> list[float]:
    """tanh u = sum_k c_k u^(2k + 1), from tanh' = 1 - tanh^2."""
    c = [1.0]
    for k in range(1, count):
        c.append(-sum(c[i] * c[k - 1 - i] for i in range(k)) / (2 * k + 1))
    return c


_SERIES = _tanh_coefficients(13)


def log_cosh_even(x: Array) -> tuple[Array, Array, Array, Array]:
    """g(x) = -log(2 cosh(sqrt(x) / 2)), g', g'' and -(2 g' + 4 x g'') = sech^2(sqrt(x) / 2) / 4, for x >= 0."""
    d = np.sqrt(x)
    with np.errstate(under="ignore", over="ignore", divide="ignore", invalid="ignore"):  # at the centre: mended below
        e = np.exp(-d)
        share = 1.0 / (1.0 + e)
        value = -0.5 * d - np.log1p(e)
        gamma = (1.0 - e) * share / (2.0 * d)  # tanh(d/2) / (2d) = -2 g'
        bend = e * share * share
        curvature = (gamma - bend) / (4.0 * x)
    near = np.flatnonzero(d < 2.0 * _SMALL)
    if near.size:
        square = 0.25 * x[near]
        gamma_near, curvature_near = np.zeros_like(square), np.zeros_like(square)
        for k in range(len(_SERIES) - 1, 0, -1):
            gamma_near = (gamma_near + _SERIES[k]) * square
            curvature_near = curvature_near * square - 2 * k * _SERIES[k]
        gamma[near] = 0.25 * (1.0 + gamma_near)
        curvature[near] = curvature_near / 64.0
    return value, -0.5 * gamma, curvature, bend


@lru_cache(maxsize=8)
def chebyshev_rule(degree: int) -> tuple[Array, Array, Array]:
    """Chebyshev points on [-1, 1], values there (rows) to coefficients (columns), and coefficients to powers."""
    k = np.arange(degree + 1)
    angle = np.pi * (k + 0.5) / (degree + 1)
    to_coefficients = 2.0 / (degree + 1) * np.cos(np.outer(angle, k))  # a recurrence in k would lose digits
    to_coefficients[:, 0] *= 0.5
    powers = [np.polynomial.chebyshev.cheb2poly(row) for row in np.eye(degree + 1)]
    return np.cos(angle), to_coefficients, np.array([np.pad(row, (0, degree + 1 - len(row))) for row in powers])


@lru_cache(maxsize=8)
def hermite(n: int) -> tuple[Array, Array]:
    """Nodes and weights of Gauss-Hermite quadrature for the standard normal."""
    z, weight = np.polynomial.hermite_e.hermegauss(n)
    return np.asarray(z, dtype=np.float64), np.asarray(weight / weight.sum(), dtype=np.float64)


@lru_cache(maxsize=8)
def legendre(n: int) -> tuple[Array, Array]:
    """Nodes and weights of Gauss-Legendre quadrature on (0, 1)."""
    x, weight = np.polynomial.legendre.leggauss(n)
    return np.asarray(0.5 * (x + 1.0), dtype=np.float64), np.asarray(0.5 * weight, dtype=np.float64)


def panels(edges: Sequence[float]) -> tuple[Array, Array]:
    """Nodes and weights of Gauss-Legendre quadrature on panels between sorted ``edges``, 16 each."""
    (unit, weight), left, length = legendre(16), np.array(edges[:-1])[:, None], np.diff(edges)[:, None]
    return (left + length * unit).ravel(), (length * weight).ravel()


def cut_exponential(part: float, probability: float) -> tuple[float, float]:
    """Rate of an exponential density on [0, 1] with this probability below ``part``, and the log of its value at 0."""
    def excess(rate: float) -> float:
        below = part if rate == 0.0 else expm1(-rate * part) / expm1(-rate)
        return below - probability

    rate = float(scipy_optimize.brentq(excess, -STEEPEST, STEEPEST))
    return rate, log(rate / -expm1(-rate)) if rate else 0.0


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
