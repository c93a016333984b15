"""E g, -dE g/dm and -2 dE g/dv under N(m, v) from values of g alone: [S] Eq. (7), for any number of data at once.

Taken literally, (7) divides rounding errors of g by v. So where g is smooth on a scale r that is much wider than
s = sqrt(v), g is replaced by its Chebyshev interpolant on [m - r, m + r], whose derivatives lose only 1/r^2; elsewhere
g is integrated by adaptive panels after a quadratic through m - s, m, m + s is taken out.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from klimb.numerics.adaptive import Rows, gaussian_average
from klimb.numerics.arrays import Array
from klimb.numerics.special import Triple, chebyshev_rule

# values(rows, f) -> g at the Q x L points f; column l belongs to datum rows[l], rows never fall.
Values = Callable[[Rows, Array], Array]

_DEGREE = 16
_WIDEST = 0.5  # first radius that is tried: sites have features of size 1
_NARROWEST = 1e-7
_SHRINK = 4.0
_DATA_PER_CHUNK = 1 << 12
_SAFE = 10.0  # standard deviations within the radius, so that the Gaussian's mass outside is below 1e-23
_FAR = 9.6  # standard deviations
_LOWEST = -1e300
_NOISE = 4.0 * np.finfo(np.float64).eps


def derivative_free_moments(values: Values, m: Array, v: Array) -> Triple:
    """(E g, -dE g/dm, -2 dE g/dv) under N(m, v)."""
    out = np.empty((3, m.size))
    s = np.sqrt(v)
    with np.errstate(all="ignore"):
        for begin in range(0, m.size, _DATA_PER_CHUNK):
            _fill(values, np.arange(begin, min(begin + _DATA_PER_CHUNK, m.size)), m, s, out)
    return out[0], out[1], out[2]


def _fill(values: Values, rest: Rows, m: Array, s: Array, out: Array) -> None:
    """The moments of the rows ``rest``: interpolants with falling radius while they are wider than s, then panels."""
    radius = _WIDEST
    while rest.size and radius >= _SAFE * np.min(s[rest]) and radius > _NARROWEST:
        wide = s[rest] * _SAFE <= radius
        tried = rest[wide]
        smooth, found = _patch(values, tried, m[tried], s[tried], radius)
        out[:, tried[smooth]] = found[:, smooth]
        rest = np.sort(np.concatenate([rest[~wide], tried[~smooth]]))
        radius /= _SHRINK
    if rest.size:
        narrowest = 1e-8 * np.maximum(1.0, np.abs(m[rest]))  # f itself is rounded
        out[:, rest] = _by_panels(values, rest, m[rest], np.maximum(s[rest], narrowest))


def _patch(values: Values, rows: Rows, m: Array, s: Array, radius: float) -> tuple[np.ndarray, Array]:
    """Whether g is smooth on [m - radius, m + radius], and the moments of its interpolant."""
    nodes, to_coefficients, to_powers = chebyshev_rule(_DEGREE)
    g = values(rows, m + radius * nodes[:, None])
    coefficients = to_coefficients.T @ g
    size = np.abs(g).max(axis=0)
    noise = _NOISE * size
    smooth = (np.abs(coefficients[-4:]) <= noise).all(axis=0) & np.isfinite(size)
    coefficients[np.abs(coefficients) <= noise] = 0.0  # what is left of it is rounding, which derivatives would magnify
    powers = to_powers.T @ coefficients
    # E x^k of x = (f - m)/radius ~ N(0, ratio^2), and the derivatives of the polynomial term by term
    ratio = (s / radius) ** 2
    moment = np.ones_like(m)
    found = np.zeros((3, m.size))
    for k in range(0, _DEGREE + 1, 2):
        found[0] += powers[k] * moment
        if k + 1 <= _DEGREE:
            found[1] -= (k + 1) * powers[k + 1] * moment / radius
        if k + 2 <= _DEGREE:
            found[2] -= (k + 2) * (k + 1) * powers[k + 2] * moment / radius**2
        moment = moment * (k + 1) * ratio
    return smooth, found


def _by_panels(values: Values, rows: Rows, m: Array, s: Array) -> Array:
    """The moments by [S] Eq. (7), with a quadratic in z = (f - m)/s taken out of g."""
    left, middle, right = values(rows, m + s * np.array([[-1.0], [0.0], [1.0]]))
    tilt, bend = 0.5 * (right - left), right - 2.0 * middle + left

    def weighted(owner: Rows, z: Array) -> Array:
        rest = values(rows[owner], m[owner] + s[owner] * z)
        rest = rest - (middle[owner] + z * (tilt[owner] + 0.5 * z * bend[owner]))
        # g may overflow far out, where the Gaussian has no mass; nearer to m it then has no expectation.
        rest = np.where(np.isfinite(rest), rest, np.where(np.abs(z) > _FAR, 0.0, _LOWEST))
        return np.stack([rest, z * rest, (z * z - 1.0) * rest])

    floor = _NOISE * (np.abs(middle) + np.abs(tilt) + np.abs(bend))
    value, first, second = gaussian_average(weighted, np.zeros_like(m), np.ones_like(m), 3, floor=floor)
    found = np.stack([middle + 0.5 * bend + value, -(tilt + first) / s, -(bend + second) / (s * s)])
    found[:, ~np.isfinite(found).all(axis=0)] = np.array([[-np.inf], [0.0], [0.0]])
    return found
