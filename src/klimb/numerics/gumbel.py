"""The distribution of f + G, f ~ N(m, v) and G a standard Gumbel variable, from a table, many values at once.

    F(t; v) = E exp(-e^(s z - t)),  t = x - m,  s = sqrt(v),  z ~ N(0, 1)

F is smooth in t / sqrt(v + 0.4) and in 1 / sqrt(1 + v), which are bounded: for v -> infinity it becomes the normal
distribution function. So polynomials on a few bins of both say all of it, to about 3e-15 (absolute; 5e-13 for the
density, in units of the scale). The table takes a fifth of a second and is made when it is first needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, final

import numpy as np
from scipy.special import ndtr

from klimb.numerics.arrays import Array

EULER = 0.57721566490153286061  # the mean of G
SOFTENING = 0.4  # t is measured in units of sqrt(v + SOFTENING): narrower where F is the Gumbel function itself
LEFT, BEND, RIGHT = -9.0, 3.0, 60.0  # of the table in those units; beyond BEND the bins grow with t
WIDTH, DEGREE = 0.6, 11  # of a bin in t, and of its polynomial
EDGES = (0.0, 0.06, 0.12, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.87, 0.93, 0.97, 0.99, 1.0)  # bins in 1 / sqrt(1 + v)
SMOOTH_DEGREE = 12  # of the polynomials there
NOISE = 1e-16  # Chebyshev coefficients below this are rounding
SWITCH = 1.0  # s from which the table is made by averaging normal distribution functions over G


@final
@dataclass(frozen=True, eq=False)
class GumbelNormal:
    """Polynomial coefficients of F: ``blocks[b]`` maps Chebyshev polynomials in 1 / sqrt(1 + v) to those of all bins.

    The bins of one distribution are laid out coefficient by coefficient, lowest first, so that Horner's rule gathers
    neighbours.
    """

    blocks: Array
    n_bins: int

    def evaluate(self, t: Array, v: Array) -> tuple[Array, Array]:
        """F and its derivative at ``t`` (M x J) for M variances ``v``; overwrites ``t``."""
        F, slope, _ = self._horner(t, v, bend=False)
        return F, slope

    def curved(self, t: Array, v: Array) -> tuple[Array, Array, Array]:
        """F, its derivative and its second derivative; overwrites ``t``."""
        return self._horner(t, v, bend=True)

    def _horner(self, t: Array, v: Array, *, bend: bool) -> tuple[Array, Array, Array]:
        scale = np.sqrt(v + SOFTENING)[:, None]
        t /= scale
        far = np.maximum(t, BEND)
        place = np.minimum(t, BEND, out=t)
        place += BEND * np.log(far / BEND)
        place -= LEFT
        place /= WIDTH
        np.clip(place, 0.0, self.n_bins - 1e-9, out=place)
        index = place.astype(np.intp)
        u = np.subtract(place, index, out=place)
        u *= 2.0
        u -= 1.0
        coefficients = self._coefficients(v)
        index += (np.arange(len(v)) * ((DEGREE + 1) * self.n_bins) + DEGREE * self.n_bins)[:, None]
        F = np.take(coefficients, index)
        slope, next_one = np.zeros_like(F), np.empty_like(F)
        half = np.zeros_like(F) if bend else F  # of the second derivative
        for _ in range(DEGREE):
            if bend:
                half *= u
                half += slope
            slope *= u
            slope += F
            index -= self.n_bins
            np.take(coefficients, index, out=next_one, mode="clip")
            F *= u
            F += next_one
        rate = (2.0 / WIDTH) * (BEND / far) / scale  # du/dt, which beyond BEND falls as 1/t
        slope *= rate
        if bend:
            half *= 2.0 * rate * rate
            half -= np.where(far > BEND, slope / (far * scale), 0.0)
        return F, slope, half

    def _coefficients(self, v: Array) -> Array:
        """The polynomials in t of every distribution, one after the other."""
        place = 1.0 / np.sqrt(1.0 + v)
        edges = np.array(EDGES)
        block = np.clip(np.searchsorted(edges, place, side="right") - 1, 0, len(EDGES) - 2)
        x = 2.0 * (place - edges[block]) / np.diff(edges)[block] - 1.0
        chebyshev = np.polynomial.chebyshev.chebvander(x, SMOOTH_DEGREE)
        out = np.empty((len(v), self.blocks.shape[2]))
        for b in np.flatnonzero(np.bincount(block, minlength=len(EDGES) - 1)):
            rows = np.flatnonzero(block == b)
            out[rows] = chebyshev[rows] @ self.blocks[b]
        return out.ravel()


@lru_cache(maxsize=1)
def gumbel_normal() -> GumbelNormal:
    """The table."""
    n_bins = int(np.ceil((BEND - LEFT + BEND * np.log(RIGHT / BEND)) / WIDTH))
    in_t, in_v = _points(DEGREE), _points(SMOOTH_DEGREE)
    fit_t, fit_v, to_powers = _fit(in_t, DEGREE), _fit(in_v, SMOOTH_DEGREE), _chebyshev_to_powers(DEGREE)
    place = LEFT + WIDTH * (np.arange(n_bins)[:, None] + 0.5 * (in_t + 1.0))
    t = np.where(place < BEND, place, BEND * np.exp(np.maximum(place - BEND, 0.0) / BEND))
    blocks = []
    for low, high in zip(EDGES[:-1], EDGES[1:], strict=True):
        variances = np.maximum(low + 0.5 * (high - low) * (in_v + 1.0), 1e-9) ** -2.0 - 1.0
        F = np.stack([_by_quadrature(t * np.sqrt(v + SOFTENING), v) for v in variances])
        coefficients = np.tensordot(fit_v, F, axes=(0, 0)) @ fit_t
        coefficients[np.abs(coefficients) < NOISE] = 0.0  # powers would magnify them
        blocks.append(np.swapaxes(coefficients @ to_powers, 1, 2).reshape(SMOOTH_DEGREE + 1, -1))
    return GumbelNormal(np.stack(blocks), n_bins)


def _points(degree: int) -> Array:
    return np.asarray(np.cos(np.pi * (np.arange(degree + 1) + 0.5) / (degree + 1)))


def _fit(x: Array, degree: int) -> Array:
    """Values at Chebyshev points (rows) to coefficients (columns)."""
    V = np.polynomial.chebyshev.chebvander(x, degree) * (2.0 / (degree + 1))
    V[:, 0] *= 0.5
    return np.asarray(V)


def _chebyshev_to_powers(degree: int) -> Array:
    out = np.zeros((degree + 1, degree + 1))
    for k in range(degree + 1):
        unit: Any = np.eye(degree + 1)[k]
        out[k, : k + 1] = np.polynomial.chebyshev.cheb2poly(unit)[: k + 1]
    return out


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
