"""Many small matrices at once: a batch has shape (rows, columns, n), the batch last.

With the batch last every operation is a handful of passes over long contiguous vectors. For matrices of one to six rows
that is several times faster than one call of a linear algebra library per matrix.
"""

from __future__ import annotations

import numpy as np

from klimb.errors import NotPositiveDefiniteError
from klimb.numerics.arrays import Array


def product(A: Array, B: Array) -> Array:
    """A B."""
    return np.asarray(np.einsum("ijn,jkn->ikn", A, B))


def product_tn(A: Array, B: Array) -> Array:
    """A' B."""
    return np.asarray(np.einsum("jin,jkn->ikn", A, B))


def product_nt(A: Array, B: Array) -> Array:
    """A B'."""
    return np.asarray(np.einsum("ijn,kjn->ikn", A, B))


def congruence(A: Array, S: Array) -> Array:
    """A S A' for symmetric S, exactly symmetric."""
    return symmetric(product_nt(product(A, S), A))


def congruence_t(A: Array, S: Array) -> Array:
    """A' S A for symmetric S, exactly symmetric."""
    return symmetric(product_tn(A, product(S, A)))


def symmetric(S: Array) -> Array:
    """The mean of each matrix and its transpose, in place."""
    for i in range(S.shape[0]):
        for j in range(i):
            S[i, j] += S[j, i]
            S[i, j] *= 0.5
            S[j, i] = S[i, j]
    return S


def semidefinite_root(S: Array) -> Array:
    """Lower triangular L with L L' = S for positive semi-definite S; a vanishing pivot leaves its column empty."""
    L = np.zeros_like(S)
    for j in range(S.shape[0]):
        pivot = S[j, j] - np.einsum("kn,kn->n", L[j, :j], L[j, :j])
        root = np.sqrt(np.maximum(pivot, 0.0))
        L[j, j] = root
        inverse = np.divide(1.0, root, out=np.zeros_like(root), where=root > 0.0)
        for i in range(j + 1, S.shape[0]):
            L[i, j] = (S[i, j] - np.einsum("kn,kn->n", L[i, :j], L[j, :j])) * inverse
    return L


def cholesky(S: Array) -> Array:
    """Lower triangular L with L L' = S, or `NotPositiveDefiniteError` if one S of the batch is not definite."""
    L = np.zeros_like(S)
    for j in range(S.shape[0]):
        pivot = S[j, j] - np.einsum("kn,kn->n", L[j, :j], L[j, :j])
        if not (pivot > 0.0).all():  # also catches NaN
            raise NotPositiveDefiniteError("a pivot of the chain is not positive")
        L[j, j] = np.sqrt(pivot)
        for i in range(j + 1, S.shape[0]):
            L[i, j] = (S[i, j] - np.einsum("kn,kn->n", L[i, :j], L[j, :j])) / L[j, j]
    return L


def solve_lower(L: Array, B: Array) -> Array:
    """L^-1 B for lower triangular L."""
    X = np.empty_like(B)
    for i in range(L.shape[0]):
        X[i] = (B[i] - np.einsum("kn,kjn->jn", L[i, :i], X[:i])) / L[i, i]
    return X
