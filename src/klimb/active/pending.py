"""Inclusions that no fit has seen yet: the covariance of the weights after them, and what they do to target rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import final

import numpy as np

from klimb.active.belief import Belief
from klimb.active.pool import block_products
from klimb.linalg.matrix import DesignMatrix
from klimb.numerics.arrays import Array

SOLVED_AT_ONCE = 64  # right-hand sides of one block of solves


@final
@dataclass(frozen=True, eq=False)
class Pending:
    """V - sum_k c_k d_k d_k': the covariance of the weights after inclusions that no fit has seen yet."""

    belief: Belief
    directions: tuple[Array, ...] = ()
    weights: tuple[float, ...] = ()
    steps: tuple[float, ...] = ()  # of the mean, along each direction

    def times(self, vectors: Array) -> Array:
        """V' times one vector, or several as columns."""
        product = self.belief.times(vectors)
        if not self.directions:
            return product
        inner = self._stacked.T @ vectors
        return np.asarray(product - self._stacked @ (np.array(self.weights) * inner.T).T)

    @cached_property
    def _stacked(self) -> Array:
        """The directions as columns."""
        return np.column_stack(self.directions)

    def explained(self, rows: DesignMatrix, after: int) -> Array:
        """sum_k c_k (x'd_k)^2 for some rows, over all inclusions but the first ``after``."""
        directions, c, _ = self.since(after)
        found = np.empty(rows.shape[0])
        for part, w in block_products(rows, directions):
            found[part] = np.square(w, out=w) @ c
        return found

    def including(self, d: Array, c: float, e: float) -> Pending:
        """After one more inclusion."""
        return Pending(self.belief, (*self.directions, d), (*self.weights, c), (*self.steps, e))

    def since(self, number: int) -> tuple[Array, Array, Array]:
        """d as columns, c and e of all inclusions but the first ``number``."""
        if number == len(self.directions):
            return np.empty((0, 0)), np.empty(0), np.empty(0)
        return self._stacked[:, number:], np.array(self.weights[number:]), np.array(self.steps[number:])

    def pool_variances(self, pool: DesignMatrix) -> Array:
        """x'V'x for every row of a pool, by the belief's own way, and one pass for the inclusions."""
        v = self.belief.variances(pool)
        return np.maximum(v - self.explained(pool, 0) if self.directions else v, 0.0)

    def variances(self, rows: object) -> Array:
        """x'V'x for the rows of a dense array or CSR, each by a solve."""
        dense = np.asarray(rows.toarray() if hasattr(rows, "toarray") else rows)
        found = np.empty(len(dense))
        for begin in range(0, len(dense), SOLVED_AT_ONCE):
            part = dense[begin : begin + SOLVED_AT_ONCE]
            found[begin : begin + len(part)] = np.einsum("ij,ji->i", part, self.times(np.ascontiguousarray(part.T)))
        return np.maximum(found, 0.0)


@final
@dataclass(frozen=True, eq=False)
class Targets:
    """Rows whose predictions matter: ``rows`` (T x D), V rows' (D x T), and the marginals of their latent values."""

    rows: Array = field(repr=False)
    directions: Array = field(repr=False)
    m: Array
    v: Array

    @staticmethod
    def of(rows: Array, pending: Pending, weights: Array) -> Targets:
        """Those of a state: one solve per target."""
        directions = pending.times(np.ascontiguousarray(rows.T))
        return Targets(rows, directions, rows @ weights, np.maximum(np.einsum("td,dt->t", rows, directions), 0.0))

    def including(self, d: Array, c: float, e: float) -> Targets:
        """After an inclusion."""
        w = self.rows @ d
        return Targets(self.rows, self.directions - np.multiply.outer(c * d, w), self.m + e * w,
                       np.maximum(self.v - c * w * w, 0.0))
