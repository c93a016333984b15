"""Sparse Cholesky factorisation with selected inverse: a pattern is analysed once, then values are factorised."""

from __future__ import annotations

from functools import cached_property
from typing import Any, final

import numpy as np

from klimb.errors import NotPositiveDefiniteError
from klimb.linalg.fronts import FrontTree
from klimb.linalg.independent import EliminatedSet, IndependentSet, independent_set
from klimb.linalg.multifrontal import FrontFactor
from klimb.numerics.arrays import Array

LOST = 16.0 * np.finfo(float).eps  # a pivot below this share of its diagonal entry has no digit left
DENSE = 10.0  # a row with more than this many times sqrt(n) entries is eliminated last


@final
class SymbolicCholesky:
    """The analysis of a symmetric pattern: order of elimination, tree of fronts, places of the entries.

    Parameters
    ----------
    pattern
        Square ``csc_array`` or ``csc_matrix`` with both triangles, every diagonal entry stored, sorted indices and no
        duplicates. Its values are not looked at.
    coordinates
        Positions of the nodes, shape (n, d), where there are any: separators are then found in space, not in the graph.
    """

    def __init__(self, pattern: Any, coordinates: Array | None = None) -> None:
        self.pattern = pattern
        self.size: int = pattern.shape[0]
        degree = np.diff(pattern.indptr)
        last = degree > max(16.0, DENSE * np.sqrt(self.size))
        nodes = np.arange(self.size)
        pivots = np.flatnonzero(pattern.indices == np.repeat(nodes, degree))
        self.stages: list[IndependentSet] = []
        self.diagonal = np.zeros(0, dtype=np.int64)  # places of the diagonal's entries in the order of elimination
        while (stage := independent_set(pattern, last)) is not None:
            self.stages.append(stage)
            self.diagonal = np.concatenate([self.diagonal, pivots[nodes[stage.taken]]])
            pattern, last, nodes = stage.rest, last[stage.kept], nodes[stage.kept]
        self.tree = FrontTree(pattern, last, None if coordinates is None else coordinates[nodes])
        self.diagonal = np.concatenate([self.diagonal, pivots[nodes[self.tree.order]]])

    def factor(self, values: Array) -> SparseCholesky:
        """The factor for entries in the order of ``pattern.data``; only one triangle is looked at."""
        return SparseCholesky(self, values)


@final
class SparseCholesky:
    """P M P' = L L' with what follows from it. Made by `SymbolicCholesky.factor`."""

    def __init__(self, symbolic: SymbolicCholesky, values: Array) -> None:
        self.symbolic = symbolic
        self._parts: list[EliminatedSet] = []
        left = np.asarray(values, dtype=float)
        with np.errstate(all="ignore"):  # whatever is not a number ends in a pivot
            for stage in symbolic.stages:
                part, left = stage.eliminate(left)
                self._parts.append(part)
            self._core = FrontFactor(symbolic.tree, left[symbolic.tree.lower])
            roots = np.concatenate([*(part.root for part in self._parts), self._core.roots])
            sound = (roots**2 > LOST * np.asarray(values)[symbolic.diagonal]) & np.isfinite(roots)
        if not sound.all():
            raise NotPositiveDefiniteError("a pivot has no digit left: the matrix is singular to working precision")
        self.logdet = 2.0 * float(np.log(roots).sum())

    def half_solve(self, b: Array) -> Array:
        """L^-1 P b for b of shape (n,) or (n, k): the squared length is b' M^-1 b."""
        x = np.array(b, dtype=float).reshape(len(b), -1)
        done = []
        for part in self._parts:
            y, x = part.forward(x)
            done.append(y)
        done.append(self._core.forward(x[self.symbolic.tree.order]))
        return np.concatenate(done).reshape(np.shape(b))

    def root_solve(self, z: Array) -> Array:
        """P' L^-T z: has covariance M^-1 where the entries of z are independent with variance 1."""
        z_ = np.array(z, dtype=float).reshape(len(z), -1)
        sizes = [len(stage.taken) for stage in self.symbolic.stages]
        *parts, core = np.split(z_, np.cumsum(sizes))
        x = np.empty_like(core)
        x[self.symbolic.tree.order] = self._core.backward(core)
        for part, y in zip(reversed(self._parts), reversed(parts), strict=True):
            x = part.backward(y, x)
        return x.reshape(np.shape(z))

    def solve(self, b: Array) -> Array:
        """M^-1 b for b of shape (n,) or (n, k)."""
        return self.root_solve(self.half_solve(b))

    def inverse_entries(self) -> Array:
        """Entries of M^-1 in the order of ``pattern.data``."""
        return self._inverse

    @cached_property
    def _inverse(self) -> Array:
        values = self._core.inverse_entries()
        for part in reversed(self._parts):
            values = part.inverse_entries(values)
        return values
