"""E[h(f)] under N(f; m, v) for wide Gaussians: h is tabulated once on graded panels, and the Gaussian visits the nodes.

A table serves every datum whose Gaussian is at least as wide as the features of h and not far from them, so that panels
that grow in proportion to the distance from the features resolve both. It costs one exponential per node and datum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from klimb.numerics.arrays import Array
from klimb.numerics.rules import CACHE_DOUBLES, SQRT_2PI, Triple, legendre

GROWTH = 1.5  # of the panels with the distance from the centre
FARTHEST = 5.0  # deviations between m and the centre that a table serves


@final
@dataclass(frozen=True, eq=False)
class WideTable:
    """Nodes, and weights times the value, alpha and gamma integrands there. The features of h are around 0."""

    node: Array
    rows: Array  # (3, nodes); gamma by parts has the row alpha * f instead: gamma = E[alpha (f - m)] / v
    by_parts: bool
    least_deviation: float

    def serves(self, m: Array, s: Array) -> np.ndarray:
        """Which data are wide enough and near enough."""
        return np.asarray((s >= self.least_deviation) & (np.abs(m) <= FARTHEST * s))

    def expectation(self, m: Array, s: Array, low: Array, high: Array) -> Triple:
        """(E h, -E h', -E h'') where the integrand is negligible outside of (low, high)."""
        out = np.empty((3, m.size))
        begin, size = 0, max(1, CACHE_DOUBLES // self.node.size)
        while begin < m.size:
            piece = slice(begin, begin + size)
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
            begin += size
        value, alpha, gamma = out
        if self.by_parts:
            gamma = (gamma - m * alpha) / (s * s)
        return value, alpha, gamma


def geometric_edges(first: float, farthest: float) -> list[float]:
    """0, first, first * GROWTH, ... up to ``farthest``."""
    edges = [0.0, first]
    while edges[-1] < farthest:
        edges.append(edges[-1] * GROWTH)
    return edges


def tabulate(integrands: Callable[[Array], Triple], edges: Sequence[float], by_parts: bool,
             least_deviation: float) -> WideTable:
    """The table of ``integrands`` on Gauss-Legendre panels between sorted ``edges``."""
    unit, unit_weight = legendre(16)
    left, length = np.array(edges[:-1]), np.diff(edges)
    node = (left[:, None] + length[:, None] * unit).ravel()
    weight = (length[:, None] * unit_weight).ravel()
    value, alpha, gamma = integrands(node)
    rows = np.stack((value, alpha, alpha * node if by_parts else gamma)) * weight
    return WideTable(node, rows, by_parts, least_deviation)
