"""log Z = log int exp(g(f)) N(f; m, v) df and its derivatives in m, for many data at once.

All work is done in d = f - m, so that a narrow Gaussian far from the origin loses no digits. With
h(d) = g(m + d) - d^2/2v:

1. the mode of h is located roughly (a safeguarded Newton iteration; a graded scan first where g is not concave);
2. where g is concave, the trapezoidal rule around the mode is tried with halved steps. Its error squares (at least)
   with every halving, so that two levels that agree to 1e-7 certify 1e-14;
3. what is left (skewed, cut off, two modes) goes to adaptive Gauss-Kronrod panels graded from the mode.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from klimb.numerics.adaptive import Panels, graded_panels, integrate
from klimb.numerics.arrays import Array, Index, pieces
from klimb.numerics.special import HALF_LOG_2PI

# log_factor(rows, f) -> (g, g', g'') at the Q x L points f; column l belongs to datum rows[l], rows never fall.
LogFactor = Callable[[Index, Array], tuple[Array, Array, Array]]

_SMALLEST_VARIANCE = 1e-200  # v = 0 is the limit; this keeps 1/v and the squares within range
_DATA_PER_CHUNK = 512
_REACH = 10.0  # standard deviations of N(m, v) beyond which the mass is below 1e-22
_NEGLIGIBLE = -52.0  # exp of this is below 1e-22
_STEP = 0.4  # first step of the trapezoidal rule in local standard deviations: for a Gaussian 0.8 already gives 1e-13
_HALF_NODES = (24, 48, 96)  # nodes on each side at the first level: 9.6 local standard deviations, or more
_LEVELS = 3  # halvings of the step before the adaptive panels take over
_AGREE = 1e-7


class Tilted(NamedTuple):
    """``log_z`` = log int exp(g) N(m, v), with its first (``slope``) and second (``curvature``) derivative in m."""

    log_z: Array
    slope: Array
    curvature: Array


@dataclass(frozen=True, slots=True)
class _Lanes:
    """The Gaussians of a chunk of data, and where their tilted mass sits: d = ``shift`` + ``unit`` * x."""

    log_factor: LogFactor
    rows: Index
    m: Array
    v: Array
    s: Array
    shift: Array  # offset of the (rough) mode from m
    unit: Array  # local standard deviation there
    g: Array  # g at the mode
    slope: Array  # g' at the mode
    bend: Array  # g'' at the mode
    smooth: bool  # whether g is
    derivatives: bool  # whether those of g are to be averaged

    @property
    def functions(self) -> int:
        return 6 if self.derivatives else 3

    def noise(self) -> Array:
        """What rounding of g' leaves in the integrals, for a weight that integrates to 1: no rule can do better."""
        floor = np.zeros((self.functions, self.m.size))
        if self.derivatives:
            floor[3] = 1e-14 * np.abs(self.slope)
            floor[4] = floor[3] * (np.abs(self.bend) * self.unit + floor[3])
        return floor

    def take(self, lanes: Index) -> "_Lanes":
        return _Lanes(self.log_factor, self.rows[lanes], self.m[lanes], self.v[lanes], self.s[lanes], self.shift[lanes],
                      self.unit[lanes], self.g[lanes], self.slope[lanes], self.bend[lanes], self.smooth,
                      self.derivatives)

    def log_weight(self, x: Array, g: Array) -> Array:
        """h at ``x`` minus h at the mode; the quadratic part as a product, so that nothing cancels."""
        t = self.unit / self.s * x
        return (g - self.g) - 0.5 * t * (t + 2.0 * self.shift / self.s)

    def moments(self, x: Array) -> Array:
        """What is integrated: exp(h - h_mode) times 1, x, x^2, and if wanted g' - g'_mode, its square, and g''."""
        g, first, second = self.log_factor(self.rows, self.m + (self.shift + self.unit * x))
        log_weight = self.log_weight(x, g)
        weight = np.exp(np.where(np.isnan(log_weight), -np.inf, np.minimum(log_weight, 700.0)))
        out = np.empty((self.functions, *x.shape))
        out[0] = weight
        out[1] = weight * x
        out[2] = out[1] * x
        if self.derivatives:
            deviation = first - self.slope
            out[3] = weight * deviation
            out[4] = out[3] * deviation
            out[5] = weight * second
        out[:, weight == 0.0] = 0.0  # 0 * inf, far out where g falls like an exponential
        return out


def tilted(log_factor: LogFactor, m: Array, v: Array, *, log_concave: bool, centre: Array | None = None,
           width: Array | None = None, smooth: bool = True, derivatives: bool = True) -> Tilted:
    """log Z and its derivatives for each (m, v); ``log_factor`` gives g, g' and g''.

    Where g is not log-concave ``centre`` and ``width`` of its peak tell where a second mode can be. ``smooth=False``
    (kinks) and ``derivatives=False`` take derivatives of log Z from moments of f, which loses digits where v is small.
    """
    out = Tilted(np.empty_like(m), np.empty_like(m), np.empty_like(m))
    want = (smooth, smooth and derivatives)
    v = np.maximum(v, _SMALLEST_VARIANCE)
    with np.errstate(all="ignore"):
        for rows in pieces(np.arange(m.size), _DATA_PER_CHUNK):
            mean, variance = m[rows], v[rows]
            if log_concave:
                lanes = _concave_mode(log_factor, rows, mean, variance, want)
                sums = _concave_sums(lanes)
            else:
                if centre is None or width is None:
                    raise ValueError("tilted needs centre and width where g is not log-concave")
                lanes, panels = _scanned_mode(log_factor, rows, mean, variance, centre[rows], width[rows], want)
                sums = _panel_sums(lanes, panels)
            for target, part in zip(out, _from_sums(lanes, sums), strict=True):
                target[rows] = part
    return out


def _local_unit(v: Array, second: Array) -> Array:
    """1/sqrt(-h'') where h is concave, else the prior's standard deviation."""
    scaled = 1.0 - v * second  # -v h''
    return np.sqrt(v / np.where(np.isfinite(scaled) & (scaled > 1.0), scaled, 1.0))


def _concave_mode(log_factor: LogFactor, rows: Index, m: Array, v: Array, want: tuple[bool, bool]) -> _Lanes:
    """The root of r(d) = v g'(m + d) - d, which falls with slope <= -1, to a quarter of a local standard deviation."""
    s = np.sqrt(v)
    d = np.zeros_like(m)
    near = np.zeros_like(m)  # the end of the bracket on the side of m
    far = np.empty_like(m)
    g, first, second = _at(log_factor, rows, m + d)
    residual = v * first
    sign = np.where(residual >= 0.0, 1.0, -1.0)
    far[:] = np.clip(np.abs(residual), 0.0, 1e300) * sign
    for iteration in range(100):
        unit = _local_unit(v, second)
        done = (np.abs(residual) * unit <= 0.25 * v) & np.isfinite(g)
        done |= np.abs(far - near) <= 1e-3 * np.minimum(unit, s) + 1e-15 * np.abs(d)
        if iteration and done.all():
            break
        newton = d + residual / (1.0 - v * second)
        # Brackets span many powers of ten where g is exponential: bisect them in the logarithm, from a small step on.
        small, large = np.maximum(np.abs(near), 1e-2 * np.minimum(s, np.abs(far))), np.abs(far)
        middle = np.where(large > 4.0 * small, sign * np.sqrt(small) * np.sqrt(large), 0.5 * (near + far))
        inside = (newton - near) * (far - newton) > 0.0
        crawling = iteration % 3 == 2  # Newton goes one unit per step down an exponential: every third step bisects
        d = np.where(done, d, np.where(inside & (not crawling), newton, middle))
        g, first, second = _at(log_factor, rows, m + d)
        residual = v * first - d
        residual = np.where(np.isnan(residual), -sign * np.inf, residual)
        before = residual * sign > 0.0  # still on m's side of the root
        near = np.where(before, d, near)
        far = np.where(before, far, d)
    return _Lanes(log_factor, rows, m, v, s, d, _local_unit(v, second), g, first, second, *want)


def _at(log_factor: LogFactor, rows: Index, f: Array) -> tuple[Array, Array, Array]:
    g, first, second = log_factor(rows, f[None, :])
    return g[0], first[0], second[0]


def _scanned_mode(log_factor: LogFactor, rows: Index, m: Array, v: Array, centre: Array,
                  width: Array, want: tuple[bool, bool]) -> tuple[_Lanes, Panels]:
    """The highest mode of h for a unimodal g with peak ``centre``, and panels graded from m, the peak and the mode."""
    s = np.sqrt(v)
    peak = centre - m
    low, high = np.minimum(peak, 0.0) - _REACH * s, np.maximum(peak, 0.0) + _REACH * s
    reach = high - low
    grid = np.sort(np.concatenate([_graded(0.0 * m, s, low, high), _graded(peak, np.minimum(width, reach), low, high)]),
                   axis=0)
    g = log_factor(rows, m + grid)[0]
    h = np.where(np.isnan(g), -np.inf, g) - 0.5 * (grid / s) ** 2
    best = np.clip(np.argmax(h, axis=0), 1, grid.shape[0] - 2)
    lane = np.arange(m.size)
    left, right = grid[best - 1, lane], grid[best + 1, lane]
    d = grid[best, lane]
    for _ in range(60):  # bisect on the sign of h' between the neighbours of the best grid point
        g_d, first_d, second_d = _at(log_factor, rows, m + d)
        rising = v * first_d - d > 0.0
        left, right = np.where(rising, d, left), np.where(rising, right, d)
        if np.all(right - left <= 0.1 * _local_unit(v, second_d)):
            break
        d = 0.5 * (left + right)
    g_d, first_d, second_d = _at(log_factor, rows, m + d)
    unit = _local_unit(v, second_d)
    lanes = _Lanes(log_factor, rows, m, v, s, d, unit, g_d, first_d, second_d, *want)
    breaks = np.sort(np.concatenate([grid, _graded(d, unit, low, high)]), axis=0)
    return lanes, _live_panels(lanes, breaks, peak)


def _graded(origin: Array, unit: Array, low: Array, high: Array) -> Array:
    """``origin`` and origin +- unit * (1/2, 1, 2, 4, ...), clipped to [low, high], enough to reach both ends."""
    reach = float(np.max((high - low) / unit, initial=1.0))
    powers = 2.0 ** np.arange(-1, max(1, int(np.ceil(np.log2(reach)))) + 1)
    graded: Array = np.clip(origin + unit * np.concatenate([-powers[::-1], [0.0], powers])[:, None], low, high)
    return graded


def _live_panels(lanes: _Lanes, breaks: Array, peak: Array) -> Panels:
    """Panels (in x) between ``breaks`` (in d) where the integrand can matter: g is monotone beside its peak."""
    g = lanes.log_factor(lanes.rows, lanes.m + breaks)[0]
    g = np.where(np.isnan(g), -np.inf, g)
    nearest = np.where(breaks[:-1] > 0.0, breaks[:-1], np.where(breaks[1:] < 0.0, breaks[1:], 0.0))
    ceiling = np.maximum(g[:-1], g[1:])
    holds_peak = (breaks[:-1] < peak) & (breaks[1:] > peak)
    bound = ceiling - 0.5 * (nearest / lanes.s) ** 2 - (lanes.g - 0.5 * (lanes.shift / lanes.s) ** 2)
    return graded_panels((breaks - lanes.shift) / lanes.unit, (bound > _NEGLIGIBLE) | holds_peak)


def _concave_sums(lanes: _Lanes) -> Array:
    """The integrals (in x): the trapezoidal rule where two levels agree, adaptive panels elsewhere."""
    if not lanes.smooth:  # what two levels of the trapezoidal rule say is true of analytic functions only
        return _panel_sums(lanes, _concave_panels(lanes))
    sums, rest = np.empty((lanes.functions, lanes.m.size)), list[Index]()
    wide = np.arange(lanes.m.size)  # whose mass reaches beyond the nodes so far
    for half in _HALF_NODES:
        part = lanes if len(wide) == lanes.m.size else lanes.take(wide)
        found, low, agreed = _trapezoidal(part, half)
        sums[:, wide[agreed]] = found[:, agreed]
        rest.append(wide[low & ~agreed])
        wide = wide[~low]
        if not wide.size:
            break
    others = np.sort(np.concatenate([*rest, wide]))
    if others.size:
        part = lanes.take(others)
        sums[:, others] = _panel_sums(part, _concave_panels(part))
    return sums


def _trapezoidal(lanes: _Lanes, half: int) -> tuple[Array, Index, Index]:
    """The integrals by the trapezoidal rule, for which data nothing lies beyond, and where two levels of it agree."""
    sums = np.empty((lanes.functions, lanes.m.size))
    agreed = np.zeros(lanes.m.size, dtype=bool)
    step, count = _STEP, 2 * half
    first = np.arange(-half, half + 1, dtype=np.float64)
    values = lanes.moments(step * first[:, None] + np.zeros(lanes.m.size))
    fine, coarse, size = values.sum(axis=1), 2.0 * values[:, ::2].sum(axis=1), np.abs(values).sum(axis=1)
    # h is concave: if it is low at both ends it stays below the tangents there, and nothing outside matters.
    ends = np.maximum(np.abs(values[:, 0]), np.abs(values[:, -1]))
    low = (ends <= 1e-15 * size + lanes.noise() * size[0]).all(axis=0) & (ends[0] <= 1e-17 * size[0])
    active = np.flatnonzero(low)
    fine, coarse, size = fine[:, active], coarse[:, active], size[:, active]
    floor = lanes.noise()[:, active]
    for level in range(_LEVELS + 1):
        fits = (np.abs(fine - coarse) <= _AGREE * size + floor * size[0]).all(axis=0) & np.isfinite(fine).all(axis=0)
        sums[:, active[fits]] = step * fine[:, fits]
        agreed[active[fits]] = True
        active, fine, size, floor = active[~fits], fine[:, ~fits], size[:, ~fits], floor[:, ~fits]
        if active.size == 0 or level == _LEVELS:
            break
        # Half the step: the old nodes and those half way between.
        between = np.arange(count, dtype=np.float64) - 0.5 * (count - 1)
        values = lanes.take(active).moments(step * between[:, None] + np.zeros(active.size))
        coarse, fine, size = 2.0 * fine, fine + values.sum(axis=1), size + np.abs(values).sum(axis=1)
        step, count = 0.5 * step, 2 * count
    return sums, low, agreed


def _concave_panels(lanes: _Lanes) -> Panels:
    """Panels (in x) graded from the mode, up to where a concave h has fallen below what matters."""
    low, high = (-_REACH * lanes.s - lanes.unit) / lanes.unit, (_REACH * lanes.s + lanes.unit) / lanes.unit
    breaks = _graded(np.zeros_like(lanes.m), np.ones_like(lanes.m), low, high)
    g = lanes.log_factor(lanes.rows, lanes.m + (lanes.shift + lanes.unit * breaks))[0]
    height = lanes.log_weight(breaks, g)
    alive = height > _NEGLIGIBLE  # nan is dead: it is inf - inf far out
    inner = np.where(breaks[1:] > 0.0, alive[:-1], alive[1:])  # the end nearer to the mode decides
    return graded_panels(breaks, inner)


def _panel_sums(lanes: _Lanes, panels: Panels) -> Array:
    """The integrals by adaptive panels."""
    def integrand(owner: Index, x: Array) -> Array:
        return lanes.take(owner).moments(x)

    # Differences of g carry its rounding noise; asking for less than that would only bisect noise.
    tolerance = np.maximum(1e-14, 4.0 * np.finfo(np.float64).eps * np.maximum(np.abs(lanes.g), 1.0))
    return integrate(integrand, panels, lanes.m.size, lanes.functions, tolerance=tolerance, floor=lanes.noise()).values


def _from_sums(lanes: _Lanes, sums: Array) -> Tilted:
    """log Z and its derivatives, each by the form that cancels less."""
    z = sums[0]
    x_mean, x_square = sums[1:3] / z
    ratio, shift = lanes.unit / lanes.s, lanes.shift / lanes.s
    log_z = (lanes.g - 0.5 * shift * shift) + (np.log(z) + np.log(ratio) - HALF_LOG_2PI)
    x_variance = np.maximum(x_square - x_mean * x_mean, 0.0)
    # d log Z/dm = (E_t f - m)/v and d2 log Z/dm2 = (Var_t f - v)/v^2: exact where the site dominates.
    slope = (shift + ratio * x_mean) / lanes.s
    curvature = (ratio * ratio * x_variance - 1.0) / lanes.v
    if lanes.derivatives:
        g_mean, g_square, second = sums[3:] / z
        # ... = E_t g' and E_t g'' + Var_t g': exact where the Gaussian dominates.
        g_variance = np.maximum(g_square - g_mean * g_mean, 0.0)
        better = np.abs(lanes.slope) + np.sqrt(g_variance) <= (np.abs(shift) + ratio) / lanes.s
        slope = np.where(better & np.isfinite(g_mean), lanes.slope + g_mean, slope)
        better = np.abs(second) + g_variance <= 1.0 / lanes.v
        curvature = np.where(better & np.isfinite(second), second + g_variance, curvature)
    return Tilted(log_z, slope, curvature)
