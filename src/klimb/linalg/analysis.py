"""The analysis of a symmetric sparse pattern: a narrow band where there is one, else a tree of fronts."""

from __future__ import annotations

from typing import Any, Protocol

from klimb.linalg.banded import BandPlan, band_order
from klimb.linalg.sparse_cholesky import SymbolicCholesky
from klimb.numerics.arrays import Array


class SelectedFactor(Protocol):
    """A Cholesky factor M = P'L L'P, with the entries of M^-1 on the pattern of M."""

    logdet: float

    def solve(self, b: Array) -> Array:
        """M^-1 b, for a vector or columns."""

    def half_solve(self, b: Array) -> Array:
        """L^-1 P b, of squared length b'M^-1 b."""

    def root_solve(self, z: Array) -> Array:
        """P'L^-T z, a draw of N(0, M^-1) for z ~ N(0, I)."""

    def inverse_entries(self) -> Array:
        """Entries of M^-1, in the order of the pattern."""


class Analysis(Protocol):
    """What is known of a pattern before its values are."""

    def factor(self, values: Array) -> SelectedFactor:
        """The factor for values in the order of the pattern, or `NotPositiveDefiniteError`."""


def analysed(pattern: Any, coordinates: Array | None = None) -> Analysis:
    """The cheapest way to factorise matrices of a pattern (CSC, both triangles, its whole diagonal, sorted)."""
    order = band_order(pattern)
    return SymbolicCholesky(pattern, coordinates) if order is None else BandPlan(pattern, order)
