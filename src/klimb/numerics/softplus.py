"""E log(1 + e^f), E sigmoid(f) and E sigmoid'(f) under N(f; m, v): the three moments behind every logistic site.

All three are computed at -|m|, where they are small like e^f and keep their relative accuracy; `unfold` mirrors them.
The rule is chosen by v: a series in v with one exponential per datum; the trapezoid rule, two mirrored nodes at a time;
for wide Gaussians a closed form and a remainder on fixed nodes, in the far tails after tilting by e^f.
"""

from functools import lru_cache
from math import factorial, pi
from typing import Any

import numpy as np
from scipy.special import ndtr

from klimb.numerics.arrays import Array, Index, slices
from klimb.numerics.normal import half_normal_loss
from klimb.numerics.special import SQRT_2PI, Triple, panels

CHUNK = 4096
# Largest v that is served by so many terms of the series in v, for a relative error of some 1e-15 in all three.
_SERIES = ((0.0, 0), (1e-8, 1), (4e-6, 2), (1e-4, 3), (6e-4, 4), (2e-3, 5), (5e-3, 6), (9e-3, 7), (1.5e-2, 8),
           (2.2e-2, 9), (3e-2, 10), (4e-2, 11))
_SERIES_END = _SERIES[-1][0]
_TRAPEZOID_END = 6.0
_FINE_EDGES = (_SERIES_END, 0.4, 1.0, 2.5, _TRAPEZOID_END)
_COARSE_EDGES = (_SERIES_END, 1.0, _TRAPEZOID_END)
FEW = 2000  # data up to which more nodes cost less than more calls
# sigmoid(f) = sum_k share_k Phi(scale_k f) to 2e-9: Monahan, Stefanski (1992), Handbook of the Logistic Distribution.
SHARES = np.array([0.003246343272134, 0.051517477033972, 0.195077912673858, 0.315569823632818,
                   0.274149576158423, 0.131076880695470, 0.027912418727972, 0.001449567805354])
SCALES = np.array([1.365340806296348, 1.059523971016916, 0.830791313765644, 0.650732166639391,
                   0.508135425366489, 0.396313345166341, 0.308904252267995, 0.238212616409306])
EXCESS = 5.9e-9  # what its integral lacks where f is large
# Phi(-x) = exp(-x^2 / 2) sum_j MILLS_j t^j, t = 1 / (1 + BEND x), to 1.1e-10 at x >= 0: least squares, Lawson weights.
BEND = 0.305
MILLS = (-0.001684879892704, 0.141916480853598, 0.016311875510151, 0.419076995647618, -0.461776707291912,
         0.645784010851293, -0.311817499718143, 0.052189724142099)


def folded_point(f: Array) -> Triple:
    """softplus, sigmoid and sigmoid' at -|f|, where all three are small and have relative accuracy."""
    with np.errstate(under="ignore"):  # in place: f may be large
        e, share = np.abs(f, out=np.empty_like(f)), np.empty_like(f)
        np.exp(np.negative(e, out=e), out=e)
        np.divide(1.0, np.add(1.0, e, out=share), out=share)
        small = e * share
        return np.log1p(e, out=e), small, np.multiply(small, share, out=share)


def unfold(m: Array, value: Array, slope: Array) -> tuple[Array, Array]:
    """E softplus and E sigmoid at m from those at -|m|, since softplus(f) - softplus(-f) = f, and likewise sigmoid."""
    whole, chance = np.maximum(m, 0.0, out=np.empty_like(m)), np.subtract(1.0, slope, out=np.empty_like(m))
    np.copyto(chance, slope, where=m <= 0.0)
    return np.add(whole, value, out=whole), chance


def folded_moments(m: Array, v: Array) -> Triple:
    """E softplus, E sigmoid and E sigmoid' under N(-|m|, v), each with relative accuracy."""
    out = (np.empty_like(m), np.empty_like(m), np.empty_like(m))
    if m.size == 0:
        return out
    largest = float(v.max())
    if largest <= _SERIES_END:
        _in_chunks(_series, m, v, None, out)
        return out
    smallest = float(v.min())
    if m.size <= FEW and smallest > _SERIES_END and largest <= _TRAPEZOID_END and not smallest <= 1.0 < largest:
        return _trapezoid(-np.abs(m), v)  # all in one tier
    tiers = [(_series, v <= _SERIES_END)]
    # Within a tier, data of similar v share the nodes of the largest; bins keep a few wide ones from costing all.
    edges = _FINE_EDGES if m.size > FEW else _COARSE_EDGES
    tiers += [(_trapezoid, (v > low) & (v <= high)) for low, high in zip(edges[:-1], edges[1:], strict=True)
              if smallest <= high and largest > low]
    if largest > _TRAPEZOID_END:
        wide = v > _TRAPEZOID_END
        tilted = np.abs(m) > 0.5 * v
        tiers += [(_wide, wide & ~tilted), (_tilted, wide & tilted)]
    for rule, chosen in tiers:
        rows = np.flatnonzero(chosen)
        if rows.size == m.size:
            _in_chunks(rule, m, v, None, out)
        elif rows.size:
            _in_chunks(rule, m[rows], v[rows], rows, out)
    return out


def rough_moments(m: Array, v: Array) -> Triple:
    """The same to 1e-8 (absolute) at any v: under N(m, v) a normal distribution function's average is one as well."""
    if m.size == 0 or float(v.max()) <= _SERIES_END:
        return folded_moments(m, v)
    out, heights = np.empty((3, m.size)), SHARES / SQRT_2PI
    for piece in slices(m.size, CHUNK):
        below = -np.abs(m[piece])
        square = np.add.outer(SCALES**-2.0, v[piece])
        narrow = np.sqrt(square)
        np.divide(1.0, narrow, out=narrow)
        u = below * narrow
        t = np.multiply(u, -BEND)
        t += 1.0
        np.divide(1.0, t, out=t)
        chance = MILLS[-1] * t  # of normal distribution functions, whose own would take three times as long
        for coefficient in MILLS[-2:0:-1]:
            chance += coefficient
            chance *= t
        chance += MILLS[0]
        u *= u
        u *= -0.5
        with np.errstate(under="ignore"):
            np.exp(u, out=u)
        chance *= u
        out[1, piece] = SHARES @ chance
        u *= narrow
        out[2, piece] = heights @ u
        u *= square
        out[0, piece] = heights @ u + below * out[1, piece] + EXCESS
    return np.maximum(out[0], 0.0), out[1], out[2]


def _in_chunks(rule: Any, m: Array, v: Array, rows: Index | None, out: Triple) -> None:
    """Apply ``rule`` to pieces that stay in cache; the results belong to ``rows`` of ``out``."""
    for piece in slices(m.size, CHUNK):
        for target, values in zip(out, rule(-np.abs(m[piece]), v[piece]), strict=True):
            target[piece if rows is None else rows[piece]] = values


@lru_cache(maxsize=16)
def _series_coefficients(terms: int) -> Array:
    """Rows for value, slope and curvature; columns for the monomials (v/2)^k w^n, k = 0..terms, n = 1..k+1.

    T_k = (d/df)^2k w is a polynomial in w = sigmoid', because w' = w (1 - 2 sigmoid) and so
    (d/df)^2 w^n = n^2 w^n - 2n(2n + 1) w^(n+1).
    """
    columns: list[tuple[float, float, float]] = []
    polynomial = [0, 1]
    for k in range(terms + 1):
        for n in range(1, k + 2):
            c = polynomial[n] / factorial(k)
            later = c / (k + 1) if k < terms else 0.0  # value and slope have T_k in term k + 1
            columns.append((later, n * later, c))
        following = [0] * (len(polynomial) + 1)
        for n, integer in enumerate(polynomial):
            following[n] += n * n * integer
            following[n + 1] -= 2 * n * (2 * n + 1) * integer
        polynomial = following
    return np.ascontiguousarray(np.array(columns).T)


def _series(m: Array, v: Array) -> Triple:
    """E h = sum_k (v/2)^k / k! h^(2k)(m), where every even derivative is a polynomial in w (times 1 - 2 sigmoid)."""
    largest = float(v.max())
    terms = next(k for bound, k in _SERIES if largest <= bound)
    value, slope, w = folded_point(m)
    if terms == 0:
        return value, slope, w
    half = 0.5 * v
    monomials = np.empty(((terms + 1) * (terms + 2) // 2, m.size))
    monomials[0] = w
    last, begin = monomials[:1], 1
    with np.errstate(under="ignore"):
        step = half * w
        for k in range(1, terms + 1):
            block = monomials[begin:begin + k + 1]
            np.multiply(last, half, out=block[:-1])
            np.multiply(last[-1], step, out=block[-1])
            last, begin = block, begin + k + 1
        excess, bend, curvature = _series_coefficients(terms) @ monomials
        excess *= half
        bend *= half
        bend *= 1.0 - 2.0 * slope
    value += excess
    slope += bend
    return value, slope, curvature


def _trapezoid(m: Array, v: Array) -> Triple:
    """Nodes z = +-j h share one logarithm: (1 + e^(m + sz)) (1 + e^(m - sz)) = 1 + q, q = e^2m + e^m (e^sz + e^-sz)."""
    s = np.sqrt(v)
    widest = float(s.max())
    pole = pi / widest  # of the sigmoid, in deviations
    step = 2.0 * pi * pole / (36.0 + 0.5 * pole * pole)
    # e^f moves the mass of the integrand by s deviations to the right.
    z = step * np.arange(1.0, int((8.4 + widest) / step) + 2)
    weight = (step / SQRT_2PI) * np.exp(-0.5 * z * z)
    with np.errstate(under="ignore"):
        once = np.exp(m)
        twice = once * once
    total, rest = 1.0 + twice, twice * (3.0 - twice)
    out = np.stack(folded_point(m))
    out *= step / SQRT_2PI
    ratio = np.exp(step * s)  # e^sz of the first node; those that follow are its powers
    for piece in slices(m.size, max(1, 32768 // z.size)):
        q = np.empty((z.size, len(ratio[piece])))
        q[0] = ratio[piece]
        for j in range(1, z.size):
            np.multiply(q[j - 1], ratio[piece], out=q[j])
        work = 1.0 / q
        q += work
        q *= once[piece]
        q += twice[piece]
        one_more = np.add(q, 1.0, out=work)
        inverse = 1.0 / one_more
        logarithm = np.log(one_more)
        one_more -= 1.0
        np.subtract(q, one_more, out=one_more)  # what rounding took from 1 + q: log1p itself costs twice as much
        one_more *= inverse
        logarithm += one_more
        out[0, piece] += weight @ logarithm
        sigmoids = q + twice[piece]  # the sum of the two, times 1 + q
        sigmoids *= inverse
        out[1, piece] += weight @ sigmoids
        q *= total[piece]
        q += rest[piece]  # the sum of their derivatives, times (1 + q)^2
        q *= inverse
        q *= inverse
        out[2, piece] += weight @ q
    return out[0], out[1], out[2]


@lru_cache(maxsize=1)
def _remainders() -> tuple[Array, Array, Array]:
    """Nodes f > 0, and weights times softplus(-f) and sigmoid'(f) (rows of one matrix), and times sigmoid(-f)."""
    f, weights = panels((0.0, 2.5, 7.0, 16.0, 32.0, 52.0, 78.0))
    value, slope, curvature = folded_point(f)
    return f, weights * np.stack((value, curvature)), weights * slope


def _wide(m: Array, v: Array) -> Triple:
    """softplus(f) = max(f, 0) + softplus(-|f|): the first part in closed form, the second on nodes that do not move."""
    f, even_weights, odd_weights = _remainders()
    s = np.sqrt(v)
    half_precision, drift = 0.5 / v, -m / v
    results = np.empty((3, m.size))
    size = 512  # nodes times data stay in cache
    for piece in slices(m.size, size):
        # The remainders fall like e^-f, against which the Gaussian rises like e^(drift f).
        last = int(np.searchsorted(f, 39.0 / (1.0 - float(drift[piece].max()))))
        falling = np.multiply.outer(-f[:last] * f[:last], half_precision[piece])
        tilt = np.multiply.outer(f[:last], drift[piece])
        up = falling + tilt
        falling -= tilt
        with np.errstate(under="ignore"):
            np.exp(up, out=up)
            down = np.exp(falling, out=falling)
        np.add(up, down, out=tilt)
        results[0, piece], results[2, piece] = even_weights[:, :last] @ tilt
        up -= down
        results[1, piece] = odd_weights[:last] @ up
    a = -m / s
    with np.errstate(under="ignore"):
        results *= np.exp(-0.5 * a * a) / (s * SQRT_2PI)
    return s * half_normal_loss(a) + results[0], ndtr(-a) + results[1], results[2]


@lru_cache(maxsize=1)
def _tilted_remainders() -> tuple[Array, Array]:
    """Nodes f in (-42, 78), ascending, and weights times e^-f (softplus, sigmoid, sigmoid')(f) - [f < 0] as rows."""
    f, weights = panels((-42.0, -32.0, -16.0, -7.0, -2.5, 0.0, 2.5, 7.0, 16.0, 32.0, 52.0, 78.0))
    e = np.exp(-np.abs(f))
    share = 1.0 / (1.0 + e)
    # f > 0: e^-f (f + log1p(e)), e share, (e share)^2. f < 0: what is missing to 1, as far as float64 can tell.
    above = np.stack(((f + np.log1p(e)) * e, e * share, np.square(e * share)))
    below = np.stack((np.log1p(e) / e - 1.0, -e * share, share * share - 1.0))
    return f, weights * np.where(f > 0.0, above, below)


def _tilted(m: Array, v: Array) -> Triple:
    """The tail m < -v/2 of a wide Gaussian: e^(m + v/2) E' e^-f h under N(m + v, v), P'(f < 0) and a remainder."""
    f, weights = _tilted_remainders()
    s, centre = np.sqrt(v), m + v
    with np.errstate(under="ignore"):
        scale = np.exp(m + 0.5 * v)
        results = np.empty((3, m.size))
        for piece in slices(m.size, 256):
            # Above 0 the remainders fall like e^-f, against which the Gaussian rises like e^(drift f), drift <= 1/2.
            last = int(np.searchsorted(f, 43.0 / (1.0 - max(float((centre[piece] / v[piece]).max()), 0.0))))
            z = np.subtract.outer(f[:last], centre[piece])
            z /= s[piece]
            np.multiply(z, z, out=z)
            z *= -0.5
            np.exp(z, out=z)
            results[:, piece] = weights[:, :last] @ z
        results /= s * SQRT_2PI
        results += ndtr(-centre / s)
        results *= scale
    return results[0], results[1], results[2]
