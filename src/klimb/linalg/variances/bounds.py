"""Certain bounds from one Lanczos run: [N] section 2.3 from below, Nystrom's approximation from above.

From below, projection: b'Q (Q'AQ)^-1 Q'b grows with the basis Q towards b'A^-1 b. From above, a precision that is too
small: diag(d) plus the Nystrom approximation of B'GB from the same basis is never above A. Both take no more products
with A than Lanczos itself. Where the prior is flat there is no such bound from above; then a few rows are solved for,
and what the bounds from below miss in them is what they are believed to miss elsewhere.
"""

from __future__ import annotations

import numpy as np

from klimb.linalg.krylov import solve
from klimb.linalg.krylov.lowrank import ScaledLanczos
from klimb.linalg.normal_matrix import NormalMatrix
from klimb.linalg.operators.base import BLOCK_DOUBLES, Operator
from klimb.linalg.variances.result import ProductCount, Variances, median_relative_error
from klimb.numerics.arrays import Array

FIRST_RANK = 64
MOST_RANK = 512  # reorthogonalisation grows with its square
MOST_DOUBLES = 4 * BLOCK_DOUBLES  # of the basis: 512 MiB
CHECKED_ROWS = 16


def bracket_by_lanczos(A: NormalMatrix, B: Operator, krylov: ScaledLanczos) -> tuple[Array, Array]:
    """(lower, upper), upper infinite where the prior is flat."""
    lower = krylov.lower(B)
    below = krylov.below()
    known = None if below is None else below.variances(B)
    upper = np.full(B.shape[0], np.inf) if known is None else known[0]
    return lower, np.maximum(np.minimum(upper, simple_upper(A, B)), lower)


def simple_upper(A: NormalMatrix, B: Operator) -> Array:
    """What needs no products: the variance under the prior, and 1 / gamma_i where b_i is a row of A."""
    upper = np.full(B.shape[0], np.inf)
    if not A.positive:
        return upper
    if A.shift.min() > 0.0 and (prior := B.row_norms_squared(1.0 / A.shift)) is not None:
        upper = np.minimum(upper, prior)
    for operator, weights in A.parts:
        if operator is B:
            own = np.divide(1.0, weights, out=np.full_like(weights, np.inf), where=weights > 0.0)
            upper = np.minimum(upper, own)
    return upper


def by_lanczos(A: NormalMatrix, B: Operator, *, accuracy: float, budget: int, seed: int,
               vectors: int | None = None) -> Variances:
    """Bounds from below, of a basis that grows until they are accurate enough, or of so many ``vectors``."""
    count = ProductCount((*A.operators, B))
    krylov = ScaledLanczos(A, min(FIRST_RANK if vectors is None else vectors, A.size), seed)
    most = max(min(A.size, MOST_RANK, MOST_DOUBLES // A.size), FIRST_RANK)
    while True:
        lower, upper = bracket_by_lanczos(A, B, krylov)
        certain = bool(np.isfinite(upper).all())
        error = upper - lower if certain else _missed(A, B, lower, seed)
        reached = median_relative_error(lower, error, normal=False) <= accuracy or krylov.found.k >= A.size
        rank = krylov.found.k
        if vectors is not None or reached or rank >= most or count.spent * 2 > budget:
            break
        krylov.extend(min(2 * rank, most))
    return Variances(lower, error, lower, upper, "lanczos", False, certain, bool(reached), count.spent,
                     preconditioner=krylov.surrogate())


def _missed(A: NormalMatrix, B: Operator, lower: Array, seed: int) -> Array:
    """What bounds from below miss, by exact solves for a few rows: the root mean square of their relative misses."""
    rng = np.random.default_rng([seed, 2])
    rows = np.sort(rng.choice(B.shape[0], min(CHECKED_ROWS, B.shape[0]), replace=False))
    checked = B.take(rows)
    columns = checked.transpose_times(np.eye(len(rows)))
    truth = np.einsum("ij,ij->j", columns, solve(A, columns, tol=1e-6).x)
    live = truth > 0.0
    miss = 1.0 - np.minimum(lower[rows][live] / truth[live], 1.0)
    share = float(np.sqrt(np.mean(miss**2))) if live.any() else 0.0
    return lower * share / max(1.0 - share, 1e-12)
