"""Inverse roots of matrices that can only multiply, by Lanczos's iteration from each of several vectors.

From q_1 = z / |z| the iteration finds A Q = Q T + ..., T tridiagonal, and f(A) z is close to |z| Q f(T) e_1 for any
smooth f. With f(x) = x^-1/2 and z ~ N(0, I) that is a draw of N(0, A^-1), and f(x) = log x gives z' log(A) z for the
log determinant from the same T.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from klimb.errors import NotPositiveDefiniteError
from klimb.linalg.normal_matrix import NormalMatrix
from klimb.linalg.operators.base import BLOCK_DOUBLES
from klimb.numerics.arrays import Array, slices

MOST_STEPS, CHECKED_FROM = 300, 4  # of the iteration, and when its error is first looked at
EXHAUSTED = 1e-12  # length of a new direction that is rounding


@final
@dataclass(frozen=True, eq=False)
class InverseRoots:
    """``x`` = S (S A S)^-1/2 z, whose covariance is A^-1 for z ~ N(0, I).

    ``logs`` and ``first`` are z'log(SAS)z and z'(SAS)z, and ``left`` what the last step changed, relative to x.
    """

    x: Array
    logs: Array
    first: Array
    left: float


def inverse_roots(A: NormalMatrix, scale: Array, z: Array, tol: float) -> InverseRoots:
    """For the columns of ``z``, with S = diag(``scale``), best diag(A)^-1/2; in blocks of bounded memory.

    >>> found = inverse_roots(NormalMatrix(np.array([4.0, 9.0])), np.ones(2), np.eye(2), 1e-8)
    >>> found.x.round(3).tolist(), bool(np.isclose(found.logs.sum(), np.log(36.0)))
    ([[0.5, 0.0], [0.0, 0.333]], True)
    """
    width = int(np.clip(BLOCK_DOUBLES // (16 * max(len(z), 1)), 1, max(z.shape[1], 1)))
    parts = [_iterated(A, scale, np.ascontiguousarray(z[:, columns]), tol) for columns in slices(z.shape[1], width)]
    if not parts:
        return InverseRoots(np.zeros_like(z), np.zeros(0), np.zeros(0), 0.0)
    return InverseRoots(np.hstack([part.x for part in parts]), np.concatenate([part.logs for part in parts]),
                        np.concatenate([part.first for part in parts]), max(part.left for part in parts))


def _iterated(A: NormalMatrix, scale: Array, z: Array, tol: float) -> InverseRoots:
    D, k = z.shape
    S, size = scale[:, None], np.linalg.norm(z, axis=0)
    basis, diagonal, beside = [z / np.where(size > 0.0, size, 1.0)], list[Array](), list[Array]()
    weights, left, due, live = np.zeros((k, 0)), np.inf, CHECKED_FROM, size > 0.0
    while True:
        last = basis[-1]
        w = S * A.times(S * last)
        if beside:
            w -= beside[-1] * basis[-2]
        diagonal.append(np.where(live, np.einsum("ij,ij->j", last, w), 1.0))  # an exhausted column goes on with zeros
        steps = len(diagonal)
        if steps >= min(due, D) or steps == MOST_STEPS:
            values, vectors = _ritz(diagonal, beside)
            weights = np.einsum("kij,kj->ki", vectors, vectors[:, 0] / np.sqrt(values))
            left = float((np.abs(weights[:, -1]) / np.linalg.norm(weights, axis=1)).max(initial=0.0))
            due = steps + max(1, steps // 4)
            if left <= tol or steps >= min(MOST_STEPS, D):
                break
        w -= diagonal[-1] * last
        length = np.linalg.norm(w, axis=0)
        live = live & (length > EXHAUSTED * np.abs(diagonal[-1]))
        beside.append(np.where(live, length, 0.0))
        basis.append(w * np.where(live, 1.0 / np.where(live, length, 1.0), 0.0))
    x = sum((q * (size * own) for q, own in zip(basis, weights.T, strict=True)), np.zeros_like(z))
    logs = size**2 * (vectors[:, 0] ** 2 * np.log(values)).sum(axis=1)
    return InverseRoots(S * x, logs, size**2 * diagonal[0], left if steps < D else 0.0)


def _ritz(diagonal: list[Array], beside: list[Array]) -> tuple[Array, Array]:
    """Eigenvalues and vectors of the tridiagonal matrix of every column."""
    n = len(diagonal)
    T = np.zeros((len(diagonal[0]), n, n))
    at = np.arange(n)
    T[:, at, at] = np.array(diagonal).T
    if n > 1:
        T[:, at[:-1], at[1:]] = T[:, at[1:], at[:-1]] = np.array(beside[: n - 1]).T
    values, vectors = np.linalg.eigh(T)
    if not values.min(initial=1.0) > 0.0:
        raise NotPositiveDefiniteError(f"an eigenvalue of {values.min():.3g} shows itself")
    return values, vectors
