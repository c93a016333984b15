"""Adaptive quadrature for many integrals at once: one worklist of (integral, panel) pairs, never a loop over integrals.

Every round evaluates all open panels by a nested Gauss-Kronrod pair, closes those whose error is small against their
own integral, and bisects the rest. Kinks and steps are allowed: the panels close in on them.

E g, -dE g/dm and -2 dE g/dv under N(m, v) come from values of g alone by [S] Eq. (7). Taken literally, it divides
rounding errors of g by v. So where g is smooth on a scale r that is much wider than s = sqrt(v), g is replaced by its
Chebyshev interpolant on [m - r, m + r], whose derivatives lose only 1/r^2; elsewhere g is integrated by adaptive panels
after a quadratic through m - s, m, m + s is taken out.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from klimb.numerics.arrays import Array, Index, Mask, pieces, slices
from klimb.numerics.special import Triple, chebyshev_rule

# integrand(rows, x) -> values (K, Q, L): K functions at the Q x L points x, column l belongs to integral rows[l].
Integrand = Callable[[Index, Array], Array]

_DATA_PER_CHUNK = 1 << 12  # data whose panels are listed at once
_POINTS_PER_CHUNK = 1 << 15  # points evaluated at once: K arrays of this size stay within the cache
_PANELS_PER_INTEGRAL = 600  # a bound on the work; reached only where rounding noise exceeds the tolerance asked for

# Positive half of the Gauss-Kronrod pair (10, 21) on [-1, 1]; every second Kronrod node is a Gauss node.
_NODES = np.array([
    0.995657163025808080735527280689003, 0.973906528517171720077964012084452, 0.930157491355708226001207180059508,
    0.865063366688984510732096688423493, 0.780817726586416897063717578345042, 0.679409568299024406234327365114874,
    0.562757134668604683339000099272694, 0.433395394129247190799265943165784, 0.294392862701460198131126603103866,
    0.148874338981631210884826001129720,
])
_KRONROD = np.array([
    0.011694638867371874278064396062192, 0.032558162307964727478818972459390, 0.054755896574351996031381300244580,
    0.075039674810919952767043140916190, 0.093125454583697605535065465083366, 0.109387158802297641899210590325805,
    0.123491976262065851077958109585166, 0.134709217311473325928054001771707, 0.142775938577060080797094273138717,
    0.147739104901338491374841515972068,
])
_KRONROD_MIDDLE = 0.149445554002916905664936468389821
_GAUSS = np.array([
    0.066671344308688137593568809893332, 0.149451349150580593145863396957698, 0.219086362515982043995534934228163,
    0.269266719309996355091226921569469, 0.295524224714752870173815619188769,
])


def _full_rule() -> tuple[Array, Array, Array, Array]:
    """Nodes, Kronrod and Gauss weights of the pair on [-1, 1] with both ends added, and the rows that test the ends.

    A kink beyond the outermost node is invisible to the rule: a test row has the value at an end less what the others
    extrapolate to.
    """
    inner = np.concatenate([-_NODES, [0.0], _NODES[::-1]])
    nodes = np.concatenate([[-1.0], inner, [1.0]])
    kronrod = np.concatenate([[0.0], _KRONROD, [_KRONROD_MIDDLE], _KRONROD[::-1], [0.0]])
    gauss_half = np.zeros(11)
    gauss_half[2::2] = _GAUSS
    gauss = np.concatenate([gauss_half, [0.0], gauss_half[::-1]])
    gaps = inner[:, None] - inner
    np.fill_diagonal(gaps, 1.0)
    ends = np.zeros((2, nodes.size))
    for row, end in zip(ends, (-1.0, 1.0), strict=True):
        distance = end - inner
        row[1:-1] = -np.prod(distance) / distance / np.prod(gaps, axis=1)  # Lagrange's formula
        row[0 if end < 0.0 else -1] = 1.0
    return nodes, kronrod, gauss, ends


KRONROD_NODES, KRONROD_WEIGHTS, GAUSS_WEIGHTS, END_TESTS = _full_rule()
# What lies between an end and the outermost node, as a share of a half panel; a tenth of it, so that the extrapolation
# error of smooth functions, which does not enter the integral, causes no bisection.
_END_SHARE = 0.1 * 0.5 * (1.0 - _NODES[0])


class Panels(NamedTuple):
    """Panels [left, right] of the integrals ``owner`` (sorted, so that rows of data stay in order)."""

    owner: Index
    left: Array
    right: Array


class Integrals(NamedTuple):
    """``values`` and ``errors`` (estimated, absolute), K x n, and whether all panels of an integral closed, n."""

    values: Array
    errors: Array
    closed: Mask


def graded_panels(breaks: Array, keep: Mask | None = None) -> Panels:
    """The panels between consecutive rows of ``breaks`` (sorted, one column per integral), empty ones dropped."""
    left, right = breaks[:-1], breaks[1:]
    wanted = right > left
    if keep is not None:
        wanted &= keep
    owner, index = np.nonzero(wanted.T)
    return Panels(owner, left[index, owner], right[index, owner])


def integrate(integrand: Integrand, panels: Panels, count: int, functions: int, *, tolerance: float | Array = 1e-14,
              floor: float | Array = 0.0) -> Integrals:
    """The integrals of ``functions`` functions over the panels of each of ``count`` owners.

    A panel closes when the error of each function is below ``tolerance`` (scalar, or one per integral) times the
    integral of its absolute value. Rounding may forbid that: ``closed`` tells which integrals ran into the bound on
    panels.
    """
    tolerances = np.broadcast_to(np.asarray(tolerance, dtype=np.float64), (count,))
    floors = np.broadcast_to(np.asarray(floor, dtype=np.float64), (functions, count))
    done = np.zeros((3, functions, count))  # value, size, error of closed panels
    spent = np.zeros(count, dtype=np.intp)
    closed = np.ones(count, dtype=bool)
    owner, left, right = panels.owner, panels.left, panels.right
    while owner.size:
        found = _evaluate(integrand, owner, left, right, functions)
        open_sums = _sum_by_owner(found, owner, count)
        spent += np.bincount(owner, minlength=count)
        scale = (done[1] + open_sums[1])[:, owner]
        middle = 0.5 * (left + right)
        ready = (found[2] <= tolerances[owner] * scale + floors[:, owner]).all(axis=0)
        ready |= ~np.isfinite(found[2]).all(axis=0)  # an infinite integral stays infinite, however fine the panels
        exhausted = (spent[owner] >= _PANELS_PER_INTEGRAL) | (middle <= left) | (middle >= right)
        closed[owner[exhausted & ~ready]] = False
        ready |= exhausted
        done += _sum_by_owner(found[:, :, ready], owner[ready], count)
        split = ~ready
        # Children stay next to each other, so that owners stay sorted.
        owner = np.repeat(owner[split], 2)
        left = np.column_stack([left[split], middle[split]]).ravel()
        right = np.column_stack([middle[split], right[split]]).ravel()
    return Integrals(done[0], done[2], closed)


def _sum_by_owner(found: Array, owner: Index, count: int) -> Array:
    """Sum over the panels (last axis) of each owner."""
    leading = found.shape[:-1]
    flat = found.reshape(int(np.prod(leading)), owner.size)
    out = np.empty((flat.shape[0], count))
    for row, values in zip(out, flat, strict=True):
        row[:] = np.bincount(owner, weights=values, minlength=count)
    return out.reshape(*leading, count)


def _evaluate(integrand: Integrand, owner: Index, left: Array, right: Array, functions: int) -> Array:
    """(value, integral of the absolute value, error estimate) of each function on each panel: 3 x K x L."""
    found = np.empty((3, functions, owner.size))
    for part in slices(owner.size, max(1, _POINTS_PER_CHUNK // (KRONROD_NODES.size * functions))):
        half = 0.5 * (right[part] - left[part])
        values = integrand(owner[part], 0.5 * (left[part] + right[part]) + half * KRONROD_NODES[:, None])
        kronrod = np.einsum("q,kql->kl", KRONROD_WEIGHTS, values)
        spread = np.einsum("q,kql->kl", KRONROD_WEIGHTS, np.abs(values - 0.5 * kronrod[:, None, :])) * half
        raw = np.abs(kronrod - np.einsum("q,kql->kl", GAUSS_WEIGHTS, values)) * half
        found[0, :, part] = kronrod * half
        found[1, :, part] = np.einsum("q,kql->kl", KRONROD_WEIGHTS, np.abs(values)) * half
        # The Kronrod rule is far better than its difference to the Gauss rule: the scaling of QUADPACK (1983).
        ratio = np.divide(200.0 * raw, spread, out=np.zeros_like(raw), where=spread > 0.0)
        unseen = np.abs(np.einsum("eq,kql->ekl", END_TESTS, values)).max(axis=0) * (_END_SHARE * half)
        found[2, :, part] = np.maximum(spread * np.minimum(1.0, ratio * np.sqrt(ratio)), unseen)
    return found


_TRAPEZOID = (0.4, 0.2)  # steps in standard deviations: one level certifies the next
_TRAPEZOID_NODES = 24  # on each side at the first step: 9.6 standard deviations


def bounded_average(function: Integrand, m: Array, v: Array) -> Array:
    """E function(f) under N(m, v) for one analytic function bounded by 1, n, to 1e-12.

    The trapezoidal rule's error squares when the step is halved: two levels that agree to 1e-7, for z times the
    function too (errors may vanish by chance), certify the finer one. `gaussian_average` does the rest.
    """
    s = np.sqrt(v)
    out = np.empty_like(m)
    for rows in pieces(np.arange(m.size), 512):
        z = _TRAPEZOID[0] * np.arange(-_TRAPEZOID_NODES, _TRAPEZOID_NODES + 1.0)[:, None]
        total = np.zeros((2, rows.size))
        for step in _TRAPEZOID:
            values = function(rows, m[rows] + s[rows] * z)[0] * (np.exp(-0.5 * z * z) / np.sqrt(2.0 * np.pi))
            pair = np.stack([values, z * values])
            first = step == _TRAPEZOID[0]
            coarse = pair[:, ::2].sum(axis=1) if first else total
            total = coarse + (pair[:, 1::2] if first else pair).sum(axis=1)
            agree = (np.abs(total - 2.0 * coarse) * step <= 1e-7).all(axis=0)
            out[rows[agree]] = step * total[0, agree]
            rows, total = rows[~agree], total[:, ~agree]
            z = z[:-1] + 0.5 * step  # half way between
            if rows.size == 0:
                break
        if rows.size:
            out[rows] = _of_rows(function, m, v, rows)
    return out


def _of_rows(function: Integrand, m: Array, v: Array, rows: Index) -> Array:
    return np.asarray(gaussian_average(lambda part, f: function(rows[part], f), m[rows], v[rows], 1)[0])


# Breaks in standard deviations: beyond 10 only where a function grows like an exponential of f.
_AVERAGE_BREAKS = np.array([-37.0, -19.2, -9.6, -4.8, -2.4, -1.2, 0.0, 1.2, 2.4, 4.8, 9.6, 19.2, 37.0])
_AROUND_PEAK = np.array([-8.0, -3.0, 0.0, 3.0, 8.0])  # in its standard deviations


def gaussian_average(function: Integrand, m: Array, v: Array, functions: int, *, tolerance: float = 1e-14,
                     floor: float | Array = 0.0, peak: tuple[Array, Array] | None = None) -> Array:
    """E function(f) under N(m, v), K x n; panels begin around a narrow ``peak``, (places, widths), if there is one."""
    s = np.sqrt(v)
    floors = np.broadcast_to(np.asarray(floor, dtype=np.float64), (functions, m.size))
    out = np.empty((functions, m.size))
    for begin in range(0, m.size, _DATA_PER_CHUNK):

        def integrand(rows: Index, z: Array, begin: int = begin) -> Array:
            weight = np.exp(-0.5 * z * z) * (1.0 / np.sqrt(2.0 * np.pi))
            rows = rows + begin
            values: Array = weight * function(rows, m[rows] + s[rows] * z)
            return values

        part = slice(begin, min(begin + _DATA_PER_CHUNK, m.size))
        count = part.stop - begin
        breaks = np.broadcast_to(_AVERAGE_BREAKS[:, None], (_AVERAGE_BREAKS.size, count))
        if peak is not None:
            around = (peak[0][part] - m[part] + np.multiply.outer(_AROUND_PEAK, peak[1][part])) / s[part]
            breaks = np.sort(np.concatenate([breaks, np.clip(around, breaks[0], breaks[-1])]), axis=0)
        out[:, part] = integrate(integrand, graded_panels(breaks), count, functions, tolerance=tolerance,
                                 floor=floors[:, part]).values
    return out


# values(rows, f) -> g at the Q x L points f; column l belongs to datum rows[l], rows never fall.
Values = Callable[[Index, Array], Array]

_DEGREE = 16
_WIDEST = 0.5  # first radius that is tried: sites have features of size 1
_NARROWEST = 1e-7
_SHRINK = 4.0
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


def _fill(values: Values, rest: Index, m: Array, s: Array, out: Array) -> None:
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


def _patch(values: Values, rows: Index, m: Array, s: Array, radius: float) -> tuple[np.ndarray, Array]:
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


def _by_panels(values: Values, rows: Index, m: Array, s: Array) -> Array:
    """The moments by [S] Eq. (7), with a quadratic in z = (f - m)/s taken out of g."""
    left, middle, right = values(rows, m + s * np.array([[-1.0], [0.0], [1.0]]))
    tilt, bend = 0.5 * (right - left), right - 2.0 * middle + left

    def weighted(owner: Index, z: Array) -> Array:
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
