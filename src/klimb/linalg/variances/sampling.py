"""Perturb and solve: draws of N(0, A^-1), whose squares at the rows of B average to the variances.

A draw costs one linear system: p ~ N(0, A), x = A^-1 p (Papandreou and Yuille, NIPS 2010). The average of k squares of
a Gaussian is its variance times chi-squared / k, so the relative standard error is sqrt(2 / k) for every row, whatever
A is: robust, and slow to become precise.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from klimb.linalg.krylov import Preconditioner, simplest_preconditioner, solve
from klimb.linalg.normal_matrix import NormalMatrix
from klimb.linalg.operators.base import Operator, column_blocks
from klimb.linalg.variances.result import MEDIAN_OF_NORMAL, ProductCount, Variances
from klimb.numerics.arrays import Array

FEWEST_DRAWS = 8
FEWEST_ITERATIONS = 50  # that a system may always take, whatever the budget
MOST_KEPT = 2**26  # numbers of draws that are kept for a later call: 512 MiB
TOLERANCE = 1e-4  # of the systems: the error it leaves is far below that of any affordable number of draws


class Draws(NamedTuple):
    """What a later call can begin with: the solutions for the same random numbers, drawn in the same blocks.

    Of many draws of many weights only the blocks are remembered: the noise is the same, the work is done again.
    """

    seed: int
    widths: tuple[int, ...]
    size: int
    x: Array | None


def sample(A: NormalMatrix, B: Operator, *, accuracy: float, budget: int, seed: int, previous: object = None,
           preconditioner: Preconditioner | None = None) -> Variances:
    """Average squares of draws until the accuracy is reached or the budget of products is spent."""
    count = ProductCount((*A.operators, B))
    M = simplest_preconditioner(A) if preconditioner is None else preconditioner
    rng = np.random.default_rng(seed)
    wanted = max(int(np.ceil(2.0 * (MEDIAN_OF_NORMAL / accuracy) ** 2)), FEWEST_DRAWS)
    limit = max(FEWEST_ITERATIONS, budget // (2 * max(len(A.parts), 1) * FEWEST_DRAWS))
    known = previous if isinstance(previous, Draws) and previous.seed == seed and previous.size == A.size else None
    total, drawn, kept, taken = np.zeros(B.shape[0]), 0, [], []
    converged = True
    widths = _widths(wanted, max(*B.shape, *(operator.shape[0] for operator in A.operators), 1))
    for width in widths if known is None else known.widths:
        if known is None and drawn >= FEWEST_DRAWS:  # what the draws so far have cost says how many more there may be
            width = min(width, int((budget - count.spent) * drawn / max(count.spent, 1)))
            if width < 1:
                break
        perturbation = A.perturbation(width, rng)
        start = None if known is None or known.x is None else known.x[:, drawn : drawn + width]
        solution = solve(A, perturbation, preconditioner=M, tol=TOLERANCE, start=start, max_iter=limit)
        converged &= solution.converged
        at_rows = B.times(solution.x)
        total += np.einsum("ij,ij->i", at_rows, at_rows)
        drawn += width
        taken.append(width)
        if drawn * A.size <= MOST_KEPT:
            kept.append(solution.x)
    whole = np.concatenate(kept, axis=1) if len(kept) == len(taken) else None
    memory = Draws(seed, tuple(taken), A.size, whole)
    return _from_draws(total, drawn, accuracy, converged, count.spent, memory, M)


def _widths(wanted: int, tallest: int) -> Iterator[int]:
    """Blocks of draws: a few first, to see what they cost."""
    yield min(FEWEST_DRAWS, wanted)
    for block in column_blocks(max(wanted - FEWEST_DRAWS, 0), tallest):
        yield block.stop - block.start


def _from_draws(total: Array, k: int, accuracy: float, converged: bool, n_products: int, memory: Draws,
                M: Preconditioner) -> Variances:
    from scipy.special import chdtri

    value = total / k
    lower, upper = total / float(chdtri(k, 0.025)), total / float(chdtri(k, 0.975))
    reached = converged and MEDIAN_OF_NORMAL * np.sqrt(2.0 / k) <= accuracy
    # The value is known, not the variance: given the value, the variance has the longer tail of an inverse chi-squared.
    error = value * np.sqrt(2.0 / (k - 4))
    return Variances(value, error, lower, upper, "sampling", False, False, bool(reached), n_products, memory,
                     preconditioner=M)
