"""Results of estimators, certain bounds from one Lanczos run, and perturb-and-MAP sampling.

From below, projection: b'Q (Q'AQ)^-1 Q'b grows with the basis Q towards b'A^-1 b. From above, a precision that is too
small: diag(d) plus the Nystrom approximation of B'GB from the same basis is never above A. Both take no more products
with A than Lanczos itself. Where the prior is flat there is no such bound from above; then a few rows are solved for,
and what the bounds from below miss in them is what they are believed to miss elsewhere.

A draw costs one linear system: p ~ N(0, A), x = A^-1 p (Papandreou and Yuille, NIPS 2010). The average of k squares of
a Gaussian is its variance times chi-squared / k, so the relative standard error is sqrt(2 / k) for every row, whatever
A is: robust, and slow to become precise.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np
from scipy.special import chdtri

from klimb.linalg.krylov import Preconditioner, simplest_preconditioner, solve
from klimb.linalg.krylov.surrogates import ScaledLanczos
from klimb.linalg.normal_matrix import NormalMatrix
from klimb.linalg.operators.base import BLOCK_DOUBLES, Operator, column_blocks
from klimb.numerics.arrays import Array

MEDIAN_OF_NORMAL = 0.6745  # |x| is below this half of the time, x standard normal
FIRST_RANK = 64
MOST_RANK = 512  # reorthogonalisation grows with its square
MOST_DOUBLES = 4 * BLOCK_DOUBLES  # of the basis: 512 MiB
CHECKED_ROWS = 16
FEWEST_DRAWS = 8
FEWEST_ITERATIONS = 50  # that a system may always take, whatever the budget
MOST_KEPT = 2**26  # numbers of draws that are kept for a later call: 512 MiB
TOLERANCE = 1e-4  # of the systems: the error it leaves is far below that of any affordable number of draws


@final
@dataclass(frozen=True, eq=False)
class Variances:
    """diag(B A^-1 B'), one value per row of B, none of them negative.

    ``error`` is the standard error of each value (zero where exact, the distance of the bounds for "lanczos").
    ``lower`` and ``upper`` are certain bounds where ``certain``, otherwise ends of a 95% interval. ``reached``: the
    median relative error is believed to be within the accuracy that was asked for. What the estimate had to find out on
    its way is kept where there is such: ``log_det`` of A, a good ``preconditioner`` of A, and ``memory``, which makes a
    later call with a nearby A (``previous``) cheaper and its noise the same.
    """

    value: Array
    error: Array
    lower: Array
    upper: Array
    method: str
    exact: bool
    certain: bool
    reached: bool
    n_products: int
    memory: Any = None
    log_det: LogDet | None = None
    preconditioner: Preconditioner | None = None

    @property
    def relative_error(self) -> float:
        """The median over the rows of the relative error, as far as it is known."""
        return median_relative_error(self.value, self.error, normal=self.method != "lanczos")


@final
@dataclass(frozen=True, eq=False)
class LogDet:
    """log det(A) with its standard error (zero where ``exact``)."""

    value: float
    error: float
    exact: bool
    n_products: int


def median_relative_error(value: Array, error: Array, *, normal: bool = True) -> float:
    """Half of the rows have a smaller relative error: from standard errors (``normal``) or from widths of bounds."""
    ratio = np.divide(error, value, out=np.zeros_like(error), where=value > 0.0)
    return float(np.median(ratio)) * (MEDIAN_OF_NORMAL if normal else 1.0)


@final
class ProductCount:
    """Counts single-vector products with any of some operators, each operator once."""

    def __init__(self, operators: Iterable[Operator]) -> None:
        self._operators = list({id(operator): operator for operator in operators}.values())
        self._start = self._total()

    def _total(self) -> int:
        return sum(operator.n_products for operator in self._operators)

    @property
    def spent(self) -> int:
        """Products since this count began."""
        return self._total() - self._start


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
    value = total / k
    lower, upper = total / float(chdtri(k, 0.025)), total / float(chdtri(k, 0.975))
    reached = converged and MEDIAN_OF_NORMAL * np.sqrt(2.0 / k) <= accuracy
    # The value is known, not the variance: given the value, the variance has the longer tail of an inverse chi-squared.
    error = value * np.sqrt(2.0 / (k - 4))
    return Variances(value, error, lower, upper, "sampling", False, False, bool(reached), n_products, memory,
                     preconditioner=M)
