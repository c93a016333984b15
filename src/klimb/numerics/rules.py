"""Fixed nodes and weights, and the sizes that the quadratures share."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

from klimb.numerics.arrays import Array
from klimb.numerics.special import SQRT_2PI

__all__ = ["CACHE_DOUBLES", "LARGEST_EXPONENT", "SPAN", "SQRT_2PI", "Index", "Triple", "hermite", "legendre"]

Index: TypeAlias = "np.ndarray[Any, np.dtype[np.intp]]"
Triple: TypeAlias = tuple[Array, Array, Array]

CACHE_DOUBLES = 32768  # of one temporary
LARGEST_EXPONENT = 1600.0  # exp(-x/2) underflows from here on
SPAN = 9.3  # a Gaussian has less than 1e-19 of its mass, and of its low moments, outside this many deviations


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
