"""E[h(f)] under N(f; m, v) for smooth integrands h whose complex singularities and tails are known.

Four rules, chosen per datum by s = sqrt(v) against the distance to the nearest singularity:

- Gauss-Hermite with a few nodes, where h is a polynomial for all the Gaussian can see;
- the trapezoid rule in z = (f - m)/s, which converges exponentially while the singularity is not nearer than about s;
- a table of h on fixed nodes in f, on panels that grow with the distance from the features of h, where the Gaussian is
  as wide as these and near them, and the integrands are those of all data: one exponential per node and datum;
- Gauss-Legendre panels that walk outwards from the centre of h, each as long as the nearest of the singularity, the
  Gaussian and the site's own tail allows, between limits outside of which nothing is left.

Layout: nodes along axis 0, data along axis 1, in chunks that stay in cache.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from klimb.numerics.arrays import Array, Index, pieces, slices
from klimb.numerics.special import CACHE_DOUBLES, SPAN, SQRT_2PI, Triple, hermite, legendre, panels

GROWTH = 1.5  # of the panels with the distance from the centre
FARTHEST = 5.0  # deviations between m and the centre that a table serves


class WideTable(NamedTuple):
    """Nodes, and weights times the value, alpha and gamma integrands there. The features of h are around 0."""

    node: Array
    rows: Array  # (3, nodes)
    least_deviation: float

    def serves(self, m: Array, s: Array) -> np.ndarray:
        """Which data are wide enough and near enough."""
        return np.asarray((s >= self.least_deviation) & (np.abs(m) <= FARTHEST * s))

    def expectation(self, m: Array, s: Array, low: Array, high: Array) -> Triple:
        """(E h, -E h', -E h'') where the integrand is negligible outside of (low, high)."""
        out = np.empty((3, m.size))
        for piece in slices(m.size, max(1, CACHE_DOUBLES // self.node.size)):
            first, last = np.searchsorted(self.node, (low[piece].min(), high[piece].max()))
            nodes = slice(max(0, first - 1), last + 1)
            z = np.subtract.outer(self.node[nodes], m[piece])
            z /= s[piece]
            z *= z
            z *= -0.5
            with np.errstate(under="ignore"):
                np.exp(z, out=z)
            z /= s[piece] * SQRT_2PI
            np.matmul(self.rows[:, nodes], z, out=out[:, piece])
        return out[0], out[1], out[2]


def geometric_edges(first: float, farthest: float) -> list[float]:
    """0, first, first * GROWTH, ... up to ``farthest``."""
    edges = [0.0, first]
    while edges[-1] < farthest:
        edges.append(edges[-1] * GROWTH)
    return edges


def tabulate(integrands: Callable[[Array], Triple], edges: Sequence[float], least_deviation: float) -> WideTable:
    """The table of ``integrands`` on Gauss-Legendre panels between sorted ``edges``."""
    node, weight = panels(edges)
    return WideTable(node, np.stack(integrands(node)) * weight, least_deviation)


# (f of shape (nodes, data), which data) -> the value, alpha and gamma integrands: h, -h', -h''.
Integrands: TypeAlias = Callable[[Array, Index], Triple]

PANEL_NODES = 16


class Landscape(NamedTuple):
    """Where the integrands of each datum have their features. All arrays have one entry per datum."""

    offset: Array  # the nearest complex singularities are at m + offset +- i height
    height: Array
    tilt: Array  # bound on |d log h / df| near m: how strongly the tails of h shift the Gaussian
    low: Array  # outside of (low, high) the integrand is negligible
    high: Array
    centre: Array  # the panels walk outwards from here
    step: Callable[[Array, Index], Array]  # longest panel that starts at f and walks away from the centre
    by_parts: Any = None  # where true, gamma = -E[h' z]/s: [S] Eq. (7) by parts once; for h'' that cancels
    table: WideTable | None = None  # for wide Gaussians around 0, where the integrands are the same for all data


def gaussian_expectation(integrands: Integrands, m: Array, v: Array, landscape: Landscape) -> Triple:
    """(E h, -E h', -E h'') under N(m, v), one entry per datum."""
    out = (np.empty_like(m), np.empty_like(m), np.empty_like(m))
    s, left = np.sqrt(v), np.ones(m.shape, dtype=bool)
    if (table := landscape.table) is not None and (rows := np.flatnonzero(table.serves(m, s))).size:
        found = table.expectation(m[rows], s[rows], landscape.low[rows], landscape.high[rows])
        for target, values in zip(out, found, strict=True):
            target[rows] = values
        left[rows] = False
    left = by_few_nodes(integrands, m, s, np.abs(landscape.offset), landscape.height, landscape.tilt, left, out)
    if left.any():
        _panels(integrands, m, s, landscape, np.flatnonzero(left), out)
    return out


def by_few_nodes(integrands: Integrands, m: Array, s: Array, offset: Array, height: Array, tilt: Any, left: Any,
                 out: Triple) -> Any:
    """Fill in ``out`` where ``left`` is true and a rule with fixed nodes serves; what is left after that."""
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        safe = np.where(s > 0.0, s, 1e-300)
        offset, height = np.minimum(offset / safe, 1e3), np.minimum(height / safe, 1e3)
        shift = np.where(s > 0.0, tilt * s, 0.0)
    for rule in _rules():
        if not left.any():
            break
        chosen = left & rule.serves(offset, height, shift)
        if chosen.any():
            for chunk in pieces(np.flatnonzero(chosen), max(1, CACHE_DOUBLES // rule.z.size)):
                for target, h in zip(out, integrands(m[chunk] + s[chunk] * rule.z[:, None], chunk), strict=True):
                    target[chunk] = rule.weight @ h
            left = left & ~chosen
    return left


class _Rule(NamedTuple):
    """Fixed nodes in z and weights; ``step`` of a trapezoid rule, 0 for Gauss-Hermite."""

    z: Array
    weight: Array
    step: float
    most_shift: float
    least_distance: float = 0.0

    def serves(self, offset: Array, height: Array, shift: Array) -> Any:
        """Whether the rule is exact to rounding, with the nearest singularity at offset +- i height deviations."""
        if self.step == 0.0:
            return (offset * offset + height * height >= self.least_distance**2) & (shift <= self.most_shift)
        # The error of the trapezoid rule is the density at the pole times exp(-2 pi height/h), or exp(-2 pi^2/h^2).
        saddle = np.minimum(height, 2.0 * np.pi / self.step)
        away = np.maximum(offset - shift, 0.0)
        exponent = 0.5 * (away * away - saddle * saddle) + (2.0 * np.pi / self.step) * saddle
        return (exponent >= 37.5) & (shift <= self.most_shift)


@lru_cache(maxsize=1)
def _rules() -> tuple[_Rule, ...]:
    """The rules with fixed nodes, cheapest first."""
    # n nodes leave an error of about n! / distance^2n.
    rules = [_Rule(*hermite(n), step=0.0, most_shift=shift, least_distance=distance)
             for n, shift, distance in ((1, 1e-8, 3e7), (3, 4e-3, 600.0), (5, 0.05, 65.0), (10, 0.5, 14.0))]
    for h in (0.72, 0.56, 0.4, 0.25):
        last = int(np.ceil((SPAN + 3.0) / h))
        z = h * np.arange(-last, last + 1, dtype=np.float64)
        rules.append(_Rule(z, np.asarray(h * np.exp(-0.5 * z * z) / SQRT_2PI), step=h, most_shift=3.0))
    return tuple(rules)


def _panels(integrands: Integrands, m: Array, s: Array, landscape: Landscape, rows: Index, out: Triple) -> None:
    for chunk in pieces(rows, CACHE_DOUBLES // PANEL_NODES):
        low, high = landscape.low[chunk], np.maximum(landscape.high[chunk], landscape.low[chunk])
        first = np.clip(landscape.centre[chunk], low, high)
        total = np.zeros((3, chunk.size))
        for sign, end in ((1.0, high), (-1.0, low)):
            total += _walk(integrands, m, s, landscape, chunk, first, end, sign)
        for target, row in zip(out, total, strict=True):
            target[chunk] = row


def _walk(integrands: Integrands, m: Array, s: Array, landscape: Landscape, chunk: Index, first: Array, end: Array,
          sign: float) -> Array:
    """The sum over panels from ``first`` to ``end``, which lies in the direction of ``sign``."""
    node, weight = legendre(PANEL_NODES)
    total = np.zeros((3, chunk.size))
    active = np.flatnonzero(first != end)
    f = first[active]
    while active.size:
        rows = chunk[active]
        mean, deviation = m[rows], s[rows]
        with np.errstate(divide="ignore"):
            gaussian = deviation * np.minimum(3.0, 14.0 * deviation / np.abs(f - mean))
        length = np.minimum(np.minimum(gaussian, landscape.step(f, rows)), sign * (end[active] - f))
        x = f + (sign * length) * node[:, None]
        z = (x - mean) / deviation
        with np.errstate(under="ignore"):
            density = np.exp(-0.5 * z * z) * weight[:, None]
        density *= length / (deviation * SQRT_2PI)
        value, alpha, gamma = integrands(x, rows)
        if landscape.by_parts is not None:
            gamma = np.where(landscape.by_parts[rows], alpha * z / deviation, gamma)
        with np.errstate(under="ignore"):
            for k, h in enumerate((value, alpha, gamma)):
                total[k, active] += np.einsum("qn,qn->n", density, h)
        f = f + sign * length
        unfinished = sign * (end[active] - f) > 1e-15 * np.abs(f)
        active, f = active[unfinished], f[unfinished]
    return total
