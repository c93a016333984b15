"""The even part of a super-Gaussian site: log p(y|f) = slope (f - centre) + g((f - centre)^2) + constant, [N] Eq. (2).

Everything in [N] is made of g and its derivatives in x, the square of the distance from the centre. A site that knows
them in closed form overrides ``Site.even_part``; for any other they come from ``point``, with nearly all digits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np
from numpy.polynomial.polynomial import polyval

from klimb.numerics.arrays import Array

if TYPE_CHECKING:
    from klimb.sites.base import Site

_NEAR = 0.02  # relative difference of gamma and bend below which they are taken from an expansion around the centre
_NODES = 12  # of that expansion


@final
@dataclass(frozen=True, slots=True)
class EvenPart:
    """g(x), g'(x) <= 0, g''(x) >= 0, and ``bend`` = -(2 g' + 4 x g''), minus the second derivative in the distance.

    ``bend`` is the curvature of the site itself. It is kept because a site is log-concave where it is not negative, and
    because the difference that defines it loses its digits just where it is small.
    """

    value: Array
    slope: Array
    curvature: Array
    bend: Array

    @property
    def gamma(self) -> Array:
        """-2 g', the precision of the Gaussian that touches the site at this distance."""
        return -2.0 * self.slope

    def scaled(self, weight: Array | float, unit: Array | float = 1.0) -> EvenPart:
        """weight * g(x / unit^2), given that this one was evaluated at x / unit^2."""
        per_square = weight / np.square(unit)
        return EvenPart(weight * self.value, per_square * self.slope, per_square / np.square(unit) * self.curvature,
                        per_square * self.bend)


def even_part_of_point(site: Site, y: Array, x: Array) -> EvenPart:
    """The default of ``Site.even_part``: from log p and its two derivatives at both sides of the centre."""
    _, centre = site.symmetry(y)
    d = np.sqrt(x)
    right, left = site.point(y, centre + d), site.point(y, centre - d)
    value, bend = 0.5 * (right.value + left.value), 0.5 * (right.gamma + left.gamma)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        gamma = np.where(d > 0.0, 0.5 * (right.alpha - left.alpha) / d, bend if site.smooth else np.inf)
        curvature = np.where(d > 0.0, np.maximum((gamma - bend) / (4.0 * x), 0.0), np.inf)
    if site.smooth:
        # Close to the centre both differences lose their digits.
        near = np.flatnonzero(~(np.abs(gamma - bend) > _NEAR * np.abs(gamma)))
        if near.size:
            gamma[near], curvature[near] = _near_the_centre(site.rows(near), y[near], centre[near], x[near])
    return EvenPart(value, -0.5 * gamma, curvature, bend)


def _near_the_centre(site: Site, y: Array, centre: Array, x: Array) -> tuple[Array, Array]:
    """-2 g' and g'' from a polynomial in x through the curvatures of the site: bend = sum_k b_k x^k.

    Integrated term by term: -2 g' = sum_k b_k x^k / (2k + 1), and 4 x g'' is the difference of the two.
    """
    def bend(d: Array) -> Array:
        return 0.5 * (site.point(y, centre + d).gamma + site.point(y, centre - d).gamma)

    top = bend(np.zeros_like(x))
    reach = _reach(bend, top)
    # Chebyshev points of [0, reach^2], in units of reach^2
    unit = 0.5 * (1.0 - np.cos(np.pi * (np.arange(_NODES) + 0.5) / _NODES))
    at_nodes = np.stack([bend(reach * np.sqrt(t)) for t in unit])
    coefficients = np.linalg.solve(np.vander(unit, increasing=True), at_nodes)
    k = np.arange(_NODES, dtype=np.float64)[:, None]
    ratio = x / (reach * reach)
    gamma = np.asarray(polyval(ratio, coefficients / (2.0 * k + 1.0), tensor=False), dtype=np.float64)
    bending = (-0.5 * k / (2.0 * k + 1.0) * coefficients)[1:]
    curvature = np.asarray(polyval(ratio, bending, tensor=False), dtype=np.float64)
    return gamma, np.maximum(curvature / (reach * reach), 0.0)


def _reach(bend: Callable[[Array], Array], top: Array) -> Array:
    """A distance over which the curvature changes by 5 to 40 percent: where an expansion is neither blunt nor noisy."""
    reach = 1.0 / np.sqrt(np.maximum(np.abs(top), 1e-300))
    for _ in range(60):
        change = np.abs(bend(reach) - top) / np.maximum(np.abs(top), 1e-300)
        low, high = change < 0.05, change > 0.4
        if not (low | high).any():
            break
        reach = np.where(low, 1.7 * reach, np.where(high, 0.6 * reach, reach))
    return reach
