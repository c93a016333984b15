"""Expectations of logsumexp(f) and its derivatives for independent normal f_1 .. f_C, as one-dimensional integrals.

With independent standard Gumbel G_c, max_c (f_c + G_c) = logsumexp(f) + a Gumbel variable, and the index of the maximum
is c with probability softmax_c(f). So with F_c the distribution function of f_c + G_c (below), P = prod_c F_c
and r_c = F_c' / F_c,

    E logsumexp(f) = int x dP - 0.577...                    E softmax_c = int P r_c dx
    E softmax_c softmax_d = int P r_c r_d dx (c != d)       E softmax_c (1 - softmax_c) = int P r_c (sum_d r_d - r_c) dx

Nothing is approximated: whatever C is, there is one smooth, log-concave integrand per class, on the nodes
x = left + unit sinh(y), equally spaced in y. ``left`` is where P is negligible; its finest feature is there, and what
lies at a distance D to the right of it cannot be narrower than about D / 9, because otherwise P would still vanish. So
nodes whose distance grows in proportion to D resolve everything, be the normals equally wide or wide and narrow.

Arrays are C x n, one row per class. The distribution of f + G, f ~ N(m, v), comes from a table, many values at once:

    F(t; v) = E exp(-e^(s z - t)),  t = x - m,  s = sqrt(v),  z ~ N(0, 1)

F is smooth in t / sqrt(v + 0.4) and in 1 / sqrt(1 + v), which are bounded: for v -> infinity it becomes the normal
distribution function. So polynomials on a few bins of both say all of it, to about 3e-15 (absolute; 5e-13 for the
density, in units of the scale). The table takes a fifth of a second and is made when it is first needed.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.special import ndtr, wrightomega

from klimb.numerics.arrays import Array, Index, pieces
from klimb.numerics.dense import threads_for
from klimb.numerics.special import chebyshev_rule
from klimb.numerics.tilted import tilted

EULER = 0.57721566490153286061  # the mean of G
SOFTENING = 0.4  # t is measured in units of sqrt(v + SOFTENING): narrower where F is the Gumbel function itself
LEFT, BEND, RIGHT = -9.0, 3.0, 60.0  # of the table in those units; beyond BEND the bins grow with t
WIDTH, DEGREE, ROUGH_DEGREE = 0.6, 11, 7  # of a bin in t, and of its polynomial
EDGES = (0.0, 0.06, 0.12, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.87, 0.93, 0.97, 0.99, 1.0)  # bins in 1 / sqrt(1 + v)
SMOOTH_DEGREE, ROUGH_SMOOTH_DEGREE = 12, 6  # of the polynomials there
NOISE = 1e-16  # Chebyshev coefficients below this are rounding
SWITCH = 1.0  # s from which the table is made by averaging normal distribution functions over G
HALF = 0.7  # minus the logarithm of P near its median
UNEVEN = 12.0  # units that the nodes span from which they are closer
POINTS_PER_CHUNK = 1 << 15
SMALLEST_VARIANCE = 1e-14  # below which the left end is found as if it were this
ROUNDING = 4e-15  # of the table: what is nearer to 0 or 1 is there
RARE, RELATIVE = 1e-3, 1e-3  # probabilities and values of F below which the table has too few digits
LOWEST, MARGIN = 900.0, 45.0  # logarithms: of the smallest probability that is told from 0, and of what is negligible
SCAN = np.linspace(0.0, 1.0, 200)


@dataclass(frozen=True)
class SoftmaxRule:
    """How closely to integrate: what is negligible, as minus its logarithm, steps in y, degrees of the table."""

    negligible: float
    step: float
    uneven_step: float  # where the nodes span more than `UNEVEN` units
    degree: int
    smooth_degree: int
    normal_reach: float  # standard deviations from its middle at which a normal distribution function is negligible
    rises: tuple[int, int]  # steps towards the left end, and from there to the middle
    kind: Any = np.float64  # of numbers


EXACT = SoftmaxRule(39.0, 1 / 20, 1 / 26, DEGREE, SMOOTH_DEGREE, 8.7, (3, 5))  # to 1e-12
# To 1e-7, in less than half the time.
ROUGH = SoftmaxRule(16.0, 1 / 9, 1 / 12, ROUGH_DEGREE, ROUGH_SMOOTH_DEGREE, 5.6, (1, 3))
FAR = SoftmaxRule(12.0, 1 / 6, 1 / 8, 5, 4, 4.8, (1, 3), np.float32)  # to 1e-5 of a nat or so, in half of that


@dataclass(frozen=True, eq=False)
class GumbelNormal:
    """Polynomial coefficients of F: ``blocks[b]`` maps Chebyshev polynomials in 1 / sqrt(1 + v) to those of all bins.

    The bins of one distribution are laid out coefficient by coefficient, lowest first, so that Horner's rule gathers
    neighbours.
    """

    blocks: Array
    n_bins: int
    degree: int

    def evaluate(self, t: Array, v: Array, *, bend: bool = False) -> tuple[Array, Array, Array]:
        """F, its derivative and, if wanted, its ``bend`` at ``t`` (M x J) for M variances ``v``; overwrites ``t``."""
        scale = np.sqrt(v + SOFTENING)[:, None].astype(t.dtype)
        t /= scale
        far = np.maximum(t, BEND)
        place = np.minimum(t, BEND, out=t)
        place += BEND * np.log(far / BEND)
        place -= LEFT
        place /= WIDTH
        np.clip(place, 0.0, self.n_bins * (1.0 - np.finfo(t.dtype).eps), out=place)
        index = place.astype(np.intp)
        u = np.subtract(place, index, out=place)
        u *= 2.0
        u -= 1.0
        used = slice(int(index.min()), int(index.max()) + 1)
        coefficients, begin = self._coefficients(v, used)
        n_bins = used.stop - used.start
        index += (begin + self.degree * n_bins - used.start)[:, None]
        F = np.take(coefficients, index)
        slope, next_one = np.zeros_like(F), np.empty_like(F)
        half = np.zeros_like(F) if bend else F  # of the second derivative
        for _ in range(self.degree):
            if bend:
                half *= u
                half += slope
            slope *= u
            slope += F
            index -= n_bins
            np.take(coefficients, index, out=next_one, mode="clip")
            F *= u
            F += next_one
        rate = (2.0 / WIDTH) * (BEND / far) / scale  # du/dt, which beyond BEND falls as 1/t
        slope *= rate
        if bend:
            half *= 2.0 * rate * rate
            half -= np.where(far > BEND, slope / (far * scale), 0.0)
        return F, slope, half

    def _coefficients(self, v: Array, bins: slice) -> tuple[Array, Index]:
        """The polynomials in t of every distribution on some bins, and where those of each begin."""
        place = 1.0 / np.sqrt(1.0 + v)
        edges = np.array(EDGES)
        block = np.clip(np.searchsorted(edges, place, side="right") - 1, 0, len(EDGES) - 2)
        order = np.argsort(block, kind="stable")
        x = 2.0 * (place - edges[block]) / np.diff(edges)[block] - 1.0
        chebyshev = np.polynomial.chebyshev.chebvander(x[order], self.blocks.shape[1] - 1).astype(self.blocks.dtype)
        out = np.empty((len(v), (self.degree + 1) * (bins.stop - bins.start)), self.blocks.dtype)
        ends = np.cumsum(np.bincount(block, minlength=len(EDGES) - 1))
        for b in np.flatnonzero(np.diff(ends, prepend=0)):
            table = self.blocks[b].reshape(-1, self.degree + 1, self.n_bins)[:, :, bins]
            rows = slice(ends[b - 1] if b else 0, ends[b])
            np.matmul(chebyshev[rows], table.reshape(len(table), -1), out=out[rows])
        begin = np.empty_like(order)
        begin[order] = np.arange(len(v)) * out.shape[1]
        return out.ravel(), begin


@lru_cache(maxsize=3)
def gumbel_normal(rule: SoftmaxRule = EXACT) -> GumbelNormal:
    """The table."""
    degree, smooth, to_powers = rule.degree, rule.smooth_degree, chebyshev_rule(rule.degree)[2]
    series = _series()[:, : smooth + 1, :, : degree + 1] @ to_powers
    blocks = np.swapaxes(series, 2, 3).reshape(len(series), smooth + 1, -1).astype(rule.kind)
    return GumbelNormal(blocks, series.shape[2], degree)


@lru_cache(maxsize=1)
def _series() -> Array:
    """Coefficients of Chebyshev polynomials: bins in v, degrees there, bins in t, degrees there."""
    n_bins = int(np.ceil((BEND - LEFT + BEND * np.log(RIGHT / BEND)) / WIDTH))
    (in_t, fit_t, _), (in_v, fit_v, _) = chebyshev_rule(DEGREE), chebyshev_rule(SMOOTH_DEGREE)
    place = LEFT + WIDTH * (np.arange(n_bins)[:, None] + 0.5 * (in_t + 1.0))
    t = np.where(place < BEND, place, BEND * np.exp(np.maximum(place - BEND, 0.0) / BEND))
    found = []
    for low, high in zip(EDGES[:-1], EDGES[1:], strict=True):
        variances = np.maximum(low + 0.5 * (high - low) * (in_v + 1.0), 1e-9) ** -2.0 - 1.0
        F = np.stack([_by_quadrature(t * np.sqrt(v + SOFTENING), v) for v in variances])
        coefficients = np.tensordot(fit_v, F, axes=(0, 0)) @ fit_t
        coefficients[np.abs(coefficients) < NOISE] = 0.0  # powers would magnify them
        found.append(coefficients)
    return np.stack(found)


def _by_quadrature(t: Array, v: float) -> Array:
    """F by the trapezoid rule: over z where the normal is narrow, over G where it is wide."""
    s = np.sqrt(v)
    if s < SWITCH:
        z = 0.2 * np.arange(-48, 49)
        weight = np.exp(-0.5 * z * z)
        with np.errstate(over="ignore", under="ignore"):
            return np.asarray(np.exp(-np.exp(s * z - t[..., None])) @ (weight / weight.sum()))
    g = np.arange(-4.0, 42.0, 0.25)
    return np.asarray(ndtr((t[..., None] - g) / s) @ (0.25 * np.exp(-g - np.exp(-g))))


@dataclass(frozen=True, slots=True)
class SoftmaxMoments:
    """Under independent normals."""

    value: Array  # E log softmax_label, n
    probabilities: Array  # E softmax_c, C x n
    curvature: Array  # E softmax_c (1 - softmax_c), C x n


def softmax_moments(label: Array, m: Array, v: Array, rule: SoftmaxRule = EXACT) -> SoftmaxMoments:
    """Expectations of log softmax_label, and of softmax and its derivatives, to 1e-12 unless ``rule`` is less exact."""
    n_classes, n = m.shape
    out = SoftmaxMoments(np.empty(n), np.empty((n_classes, n)), np.empty((n_classes, n)))
    centred = m - m.max(axis=0)
    with threads_for(1):  # many small products, which threads only slow down
        for rows, x, weight, left, unit in _chunks(centred, v, rule):
            part = _integrals(label[rows], centred[:, rows], v[:, rows], x, weight, left, unit, rule)
            out.value[rows], out.probabilities[:, rows], out.curvature[:, rows] = part
    return out


def softmax_couplings(m: Array, v: Array, rule: SoftmaxRule = EXACT) -> Array:
    """d(p, gamma) / d(m, v), n x 2C x 2C, for p = E softmax and gamma = E softmax (1 - softmax) of each class.

    A derivative of -int prod_c F_c dx = E logsumexp + ... in m_c replaces F_c by -F_c', one in v_c by F_c'' / 2. With
    r = F' / F and b = F'' / F, off the diagonals

        dp_c/dm_d = -int P r_c r_d    dgamma_c/dm_d = 2 dp_d/dv_c = int P b_c r_d    dgamma_c/dv_d = -int P b_c b_d / 2

    On the diagonals the first two follow from the others, as logsumexp moves with a common shift of all f, and the last
    by parts.
    """
    n_classes, n = m.shape
    out = np.empty((n, 2 * n_classes, 2 * n_classes))
    by_mean, by_variance = slice(0, n_classes), slice(n_classes, 2 * n_classes)
    centred, diagonal = m - m.max(axis=0), np.arange(n_classes)
    for rows, x, weight, _, _ in _chunks(centred, v, rule):
        t = (x - centred[:, rows, None]).reshape(n_classes * len(rows), -1).astype(rule.kind)
        parts = gumbel_normal(rule).evaluate(t, v[:, rows].ravel(), bend=True)
        F, r, b = (part.reshape(n_classes, len(rows), -1) for part in parts)
        np.clip(F, 0.0, 1.0, out=F)
        seen = (F > ROUNDING) & (F < 1.0 - ROUNDING)
        r, b = (np.divide(part, F, out=np.zeros_like(F), where=seen) for part in (r, b))
        weight = (weight * np.multiply.reduce(F, axis=0)).astype(rule.kind)
        rr, rb, bb = (_pairs(one, other, weight) for one, other in ((r, r), (b, r), (b, b)))
        others, excess = r.sum(axis=0) - r, (b - r * r).sum(axis=0) - (b - r * r)
        bb[:, diagonal, diagonal] = np.einsum("cnj,cnj,nj->nc", b, others**2 + excess, weight)
        for pairs in (rr, rb):
            pairs[:, diagonal, diagonal] -= pairs.sum(axis=2)
        block = np.empty((len(rows), 2 * n_classes, 2 * n_classes))
        block[:, by_mean, by_mean] = -rr
        block[:, by_variance, by_mean] = rb
        block[:, by_mean, by_variance] = 0.5 * np.swapaxes(rb, 1, 2)
        block[:, by_variance, by_variance] = -0.5 * bb
        out[rows] = block
    return out


def _pairs(one: Array, other: Array, weight: Array) -> Array:
    """sum_j weight_j one_c other_d for each row, n x C x C."""
    return np.asarray(np.matmul(np.swapaxes(one * weight, 0, 1), np.moveaxis(other, 0, 2)))


def _chunks(m: Array, v: Array, rule: SoftmaxRule) -> Iterator[tuple[Index, Array, Array, Array, Array]]:
    """Index with about as many nodes as each other: (rows, x, weights, left, unit), nodes along the last axis."""
    n_classes, n = m.shape
    left, unit, nodes, step = _frames(m, v, rule)
    order = np.argsort(nodes, kind="stable")
    begin = 0
    while begin < n:
        first = order[begin]
        rows = order[begin : begin + max(1, POINTS_PER_CHUNK // (n_classes * int(nodes[first])))]
        rows = rows[(nodes[rows] <= 1.25 * nodes[first]) & (step[rows] == step[first])]
        y = step[first] * np.arange(int(nodes[rows].max()))
        x = left[rows, None] + unit[rows, None] * np.sinh(y)
        yield rows, x, (step[first] * unit[rows])[:, None] * np.cosh(y), left[rows], unit[rows]
        begin += len(rows)


def _integrals(label: Array, m: Array, v: Array, x: Array, weight: Array, left: Array, unit: Array, rule: SoftmaxRule
               ) -> tuple[Array, Array, Array]:
    n_classes, n = m.shape
    t = (x - m[:, :, None]).reshape(n_classes * n, -1).astype(rule.kind)
    F, density = (array.reshape(n_classes, n, -1) for array in gumbel_normal(rule).evaluate(t, v.ravel())[:2])
    np.clip(F, 0.0, 1.0, out=F)
    ratio = np.divide(density, F, out=np.zeros_like(F), where=(F > ROUNDING) & (F < 1.0 - ROUNDING))
    P = np.multiply.reduce(F, axis=0)
    weighted = (weight * P).astype(rule.kind)
    probabilities = np.einsum("cnj,nj->cn", ratio, weighted)
    total = ratio.sum(axis=0)
    total *= weighted
    curvature = np.einsum("cnj,nj->cn", ratio, total) - np.einsum("cnj,cnj,nj->cn", ratio, ratio, weighted)
    # E max = middle + int (H - P) dx for any distribution function H of that mean: a normal one, on the same nodes.
    middle, spread = left + unit, unit / rule.normal_reach
    gap = ndtr((x - middle[:, None]) / spread[:, None]) - P
    value = (m[label.astype(np.intp), np.arange(n)] + EULER - middle) - np.einsum("nj,nj->n", weight, gap)
    return np.minimum(value, 0.0), probabilities, np.maximum(curvature, 0.0)


def _frames(m: Array, v: Array, rule: SoftmaxRule) -> tuple[Array, Array, Array, Array]:
    """Left end, unit, number of nodes and step of each row."""
    negligible = rule.negligible
    soft = np.maximum(v, SMALLEST_VARIANCE)
    log_v = np.log(soft)
    # Where one of the factors alone is negligible: with w^2 + 2 w = 2 * negligible * v in (1) below.
    root = 1.0 + np.sqrt(1.0 + 2.0 * negligible * v)
    alone = np.log(2.0 * negligible / root) + 2.0 * negligible * v / root
    # log P is concave and rises, so Newton's method from the left hardly oversteps.
    left, w = _raise((m - alone).max(axis=0), negligible, m, soft, log_v, rule.rises[0])
    slopes = _slopes(w, soft)
    middle, _ = _raise(left, HALF, m, soft, log_v, rule.rises[1], w)
    # The unit is the distance over which P rises, or that of the factors that make it steep at the left end.
    unit = np.minimum(middle - left, slopes.sum(axis=0) / (slopes / alone).sum(axis=0))
    # To the right 1 - F falls like a normal tail up to t = v, and like exp(-t) from there on.
    reach = np.where(v > 2.0 * negligible, np.sqrt(2.0 * negligible * v), 0.5 * v + negligible)
    span = ((m + reach).max(axis=0) - left) / unit
    step = np.where(span < UNEVEN, rule.step, rule.uneven_step)
    return left, unit, np.ceil(np.arcsinh(span) / step) + 1.0, step


def _raise(x: Array, level: float, m: Array, v: Array, log_v: Array, steps: int, known: Array | None = None
           ) -> tuple[Array, Array]:
    """Towards the x with log P = -``level``, from the left, and w of the log F_c there (of the start, if ``known``).

    By Laplace's method log F = -(w^2 + 2 w) / 2 v - log(1 + w) / 2 with w e^w = v e^-t (1), which is close enough.
    """
    w = _omega(log_v - (x - m)) if known is None else known
    for step in range(steps):
        height = (-0.5 * w * (w + 2.0) / v - 0.5 * np.log(1.0 + w)).sum(axis=0)
        x = x + np.maximum(-level - height, 0.0) / _slopes(w, v).sum(axis=0)
        if known is None or step + 1 < steps:
            w = _omega(log_v - (x - m))
    return x, w


def _omega(x: Array) -> Array:
    """w with w + log w = x to one in a hundred, where it only says where to put nodes: one Newton step."""
    low = np.minimum(x, 30.0)
    w = np.log1p(np.exp(low)) + (x - low) + 1e-300
    return np.asarray(w * (1.0 + x - np.log(w)) / (1.0 + w))


def _slopes(w: Array, v: Array) -> Array:
    """Of the log F_c."""
    rest = 1.0 + w
    return np.asarray(w / v + 0.5 * w / (rest * rest) + 1e-300)


def log_probabilities(label: Array, m: Array, v: Array) -> Array:
    """log E softmax_label, n, to 9 digits or more, however improbable the label is."""
    own, rows = label.astype(np.intp), np.arange(m.shape[1])
    p = softmax_moments(label, m, v).probabilities
    others = p.copy()
    others[own, rows] = 0.0
    likely = p[own, rows] > 0.5
    with np.errstate(divide="ignore"):
        out = np.where(likely, np.log1p(-np.minimum(others.sum(axis=0), 0.5)), np.log(np.maximum(p[own, rows], 0.0)))
    rare = np.flatnonzero(p[own, rows] < RARE)
    for part in pieces(rare, max(1, POINTS_PER_CHUNK // (128 * len(m)))):
        out[part] = _log_rare(own[part], m[:, part], v[:, part])
    return np.asarray(out)


def _log_rare(own: Index, m: Array, v: Array) -> Array:
    """log int F_own' prod of the other F_c dx, the integrand in logarithms: it is log-concave."""
    rows = np.arange(m.shape[1])
    m = m - m.max(axis=0)
    soft = np.maximum(v, SMALLEST_VARIANCE)
    log_v = np.log(soft)

    def rough(x: Array) -> Array:
        """The logarithm of the integrand at x (n x J) by Laplace's method, as in `_raise`."""
        t = x - m[:, :, None]
        w = wrightomega(log_v[:, :, None] - t)
        log_F = -0.5 * w * (w + 2.0) / soft[:, :, None] - 0.5 * np.log1p(w)
        log_F[own, rows] = 0.0
        v_own, log_v_own = soft[own, rows][:, None], log_v[own, rows][:, None]
        # For the density w e^w = v e^(v - t); log w = v + log v - t - w does not underflow.
        exponent = v_own + log_v_own - t[own, rows]
        w = wrightomega(exponent)
        density = (exponent - w) - log_v_own - w / v_own - 0.5 * (v_own - w) ** 2 / v_own - 0.5 * np.log1p(w)
        return np.asarray(log_F.sum(axis=0) + density)

    # Find the mode on a wide scan, then where the integrand has become negligible either side of it.
    low = (m - np.sqrt(2.0 * LOWEST * v) - np.log(LOWEST)).max(axis=0)
    high = (m + np.sqrt(2.0 * LOWEST * v)).max(axis=0) + LOWEST
    for _ in range(3):
        x = low[:, None] + (high - low)[:, None] * SCAN
        height = rough(x)
        top = height.argmax(axis=1)
        alive = height > height.max(axis=1, keepdims=True) - MARGIN
        first, last = alive.argmax(axis=1), len(SCAN) - 1 - alive[:, ::-1].argmax(axis=1)
        middle = x[rows, top]
        low, high = x[rows, np.maximum(first - 1, 0)], x[rows, np.minimum(last + 1, len(SCAN) - 1)]
    unit = middle - low
    step = EXACT.uneven_step
    y = step * np.arange(int(np.ceil(np.arcsinh(((high - low) / unit).max()) / step)) + 1)
    x = low[:, None] + unit[:, None] * np.sinh(y)
    terms = np.log(step * unit)[:, None] + np.log(np.cosh(y)) + _log_factors(own, x, m, v)
    peak = terms.max(axis=1)
    return np.asarray(peak + np.log(np.exp(terms - peak[:, None]).sum(axis=1)))


def _log_factors(own: Index, x: Array, m: Array, v: Array) -> Array:
    """log F_own' + the other log F_c at the nodes x (n x J), with relative accuracy."""
    n_classes, n = m.shape
    t = (x - m[:, :, None]).reshape(n_classes * n, -1)
    F, *_ = gumbel_normal().evaluate(t.copy(), v.ravel())
    spread = np.broadcast_to(v.reshape(-1, 1), t.shape)
    log_F = np.log(np.maximum(F, ROUNDING))
    tail = F < RELATIVE
    log_F[tail] = tilted(_log_cdf, -t[tail], spread[tail], log_concave=True, derivatives=False).log_z
    log_F = log_F.reshape(n_classes, n, -1)
    rows = np.arange(n)
    log_F[own, rows] = 0.0
    t_own = t.reshape(n_classes, n, -1)[own, rows]
    v_own = np.broadcast_to(v[own, rows][:, None], t_own.shape)
    log_density = tilted(_log_density, -t_own.ravel(), v_own.ravel(), log_concave=True, derivatives=False).log_z
    return np.asarray(log_F.sum(axis=0) + log_density.reshape(t_own.shape))


def _log_cdf(rows: Index, f: Array) -> tuple[Array, Array, Array]:
    """log of the Gumbel distribution function at -f, and its derivatives in f."""
    rate = -np.exp(np.minimum(f, 700.0))
    return rate, rate, rate


def _log_density(rows: Index, f: Array) -> tuple[Array, Array, Array]:
    """The same for the density."""
    rate = -np.exp(np.minimum(f, 700.0))
    return f + rate, 1.0 + rate, rate
