"""Recursions along a Gauss-Markov chain, solved in about log2(n) vectorised sweeps instead of n steps.

A chain is x_k = A_k x_{k-1} + e_k with e_k ~ N(0, C_k). Nothing here divides by C: zero noise (equal times) is
ordinary, and so is noise that is tiny beside the variance of the states (dense sampling), where working with the
precision of the chain, C^-1, would lose every digit.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from klimb.linalg.batches import (
    cholesky,
    congruence,
    congruence_t,
    product,
    product_tn,
    semidefinite_root,
    solve_lower,
    symmetric,
)
from klimb.numerics.arrays import Array


class ChainStep(NamedTuple):
    """Steps of a chain: transitions, noise, and information about the state before the step."""

    A: Array
    C: Array
    J: Array


class Absorbed(NamedTuple):
    """Noise C after the information B about its state has been taken in: root'root = (C^-1 + B)^-1."""

    root: Array
    covariance: Array
    log_det: Array  # of I + C B


def absorb(noise_root: Array, B: Array) -> Absorbed:
    """(C^-1 + B)^-1 = L (I + L'BL)^-1 L' for C = L L'; B may be negative as long as the sum is positive."""
    W = congruence_t(noise_root, B)
    for i in range(W.shape[0]):
        W[i, i] += 1.0
    lower = cholesky(W)
    root = solve_lower(lower, noise_root.transpose(1, 0, 2))
    log_det = 2.0 * np.log(np.einsum("iin->in", lower)).sum(axis=0)
    return Absorbed(root, symmetric(product_tn(root, root)), log_det)


def seen_through(B: Array, covariance: Array) -> Array:
    """(B^-1 + C)^-1 = B - B (C^-1 + B)^-1 B: what information B about a state says through noise C."""
    return symmetric(B - congruence_t(B, covariance))


def information(A: Array, C: Array, J: Array, end: Array) -> Array:
    """B_k = J_k + A_k' (B_{k+1}^-1 + C_k)^-1 A_k for k = n-1, ..., 0 with B_n = ``end``: all of B_0, ..., B_n.

    Two neighbouring steps are one step of the same form, so half of the entries follow from a recursion of half the
    length, and the others from those. All J must have the same sign; negative ones raise `NotPositiveDefiniteError`
    where the chain would become improper.
    """
    n = A.shape[2]
    out = np.empty((*A.shape[:2], n + 1))
    out[..., n] = end
    if n == 0:
        return out
    left, right = slice(0, n - 1, 2), slice(1, n, 2)
    steps = slice(0, 1)
    if n > 1:
        halved = _joined(A[..., left], C[..., left], J[..., left], A[..., right], C[..., right], J[..., right])
        if n % 2:
            halved = ChainStep(*(np.concatenate([a, b[..., -1:]], axis=2)
                                 for a, b in zip(halved, (A, C, J), strict=True)))
        out[..., : n + 1 : 2] = information(*halved, end)[..., : n // 2 + 1]
        steps = right
    following = out[..., slice(steps.start + 1, steps.stop + 1, steps.step)]
    within = absorb(semidefinite_root(C[..., steps]), following).covariance
    out[..., steps] = J[..., steps] + congruence_t(A[..., steps], seen_through(following, within))
    return out


def _joined(A1: Array, C1: Array, J1: Array, A2: Array, C2: Array, J2: Array) -> ChainStep:
    """The first step, then the second, as one: the state between them is integrated out."""
    within = absorb(semidefinite_root(C1), J2).covariance  # of the state between, given the one before
    pulled = product(J2, A1)
    moved = A1 - product(within, pulled)
    J = J1 + symmetric(product_tn(A1, pulled) - congruence_t(pulled, within))
    return ChainStep(product(A2, moved), C2 + congruence(A2, within), J)


def marginal_covariances(A: Array, C: Array) -> Array:
    """P_k = A_k P_{k-1} A_k' + C_k with P_{-1} = 0: covariances of the states, sums of positive terms only."""
    n = A.shape[2]
    if n == 1:
        return C.copy()
    pairs = n // 2
    left, right = slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2)
    A2, C2 = product(A[..., right], A[..., left]), C[..., right] + congruence(A[..., right], C[..., left])
    out = np.empty_like(C)
    out[..., right] = marginal_covariances(A2, C2)
    out[..., 0] = C[..., 0]
    steps = slice(2, n, 2)
    out[..., steps] = C[..., steps] + congruence(A[..., steps], out[..., 1 : n - 1 : 2])
    return out
