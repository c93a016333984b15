"""Estimators of variances and log-determinants: their results, certain bounds, draws, and one entrance for all.

Bounds come from one Lanczos run (docs/variances.md). Where the prior is flat there is none from above; then a few rows
are solved for, and what the bounds from below miss in them is what they are believed to miss elsewhere.

A draw costs one linear system: p ~ N(0, A), x = A^-1 p (Papandreou and Yuille, NIPS 2010). The average of k squares of
a Gaussian is its variance times chi-squared / k, so the relative standard error is sqrt(2 / k) for every row.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Self

import numpy as np
from scipy.special import chdtri

from klimb.errors import InputError, require
from klimb.linalg.factors import FactorPlan, cheapest_plan, factorise
from klimb.linalg.factors.selection import MEMORY
from klimb.linalg.krylov import Preconditioner, ScaledLanczos, simplest_preconditioner, solve, sparse_part
from klimb.linalg.normal_matrix import NormalMatrix
from klimb.linalg.operators import Operator, SparseOperator
from klimb.linalg.operators.base import BLOCK_DOUBLES, column_blocks
from klimb.linalg.variances.stochastic import MEDIAN_OF_NORMAL, Probes
from klimb.numerics.arrays import Array

METHODS = ("auto", "exact", "lanczos", "sampling", "diagonal", "bracket")
BUDGET = 4000  # products, unless told otherwise
AFFORDABLE = 2.0  # seconds that an exact answer may take before estimates are considered
RANKS = {0.1: 32, 0.03: 64, 0.0: 128}  # Lanczos directions in the surrogate, by the accuracy from which they are used
FEWEST_DIRECTIONS = 16  # how small the basis may become so as not to be larger than `MOST_DOUBLES`
PILOT, FEWEST_PROBES = 8, 16  # probes that show what a probe costs, and how few may be believed
LOG_DET_ACCURACY = 0.005  # of the systems behind a log-determinant: they share the accuracy of variances of 0.5%
FLOPS_A_SECOND = 1e9  # of sparse products
INTERVAL = 1.96
TAIL = 10.0  # times the accuracy is what one row in a hundred may be off by, if the budget allows
GOOD_SURROGATE = 0.7  # noise of a probe, half that of a draw, below which no other surrogate is looked for
FIRST_RANK = 64
MOST_RANK = 512  # reorthogonalisation grows with its square
MOST_DOUBLES = 4 * BLOCK_DOUBLES  # of the basis: 512 MiB
CHECKED_ROWS = 16
FEWEST_DRAWS = 8
FEWEST_ITERATIONS = 50  # that a system may always take, whatever the budget
MOST_KEPT = 2**26  # numbers of draws that are kept for a later call: 512 MiB
TOLERANCE = 1e-4  # of the systems: the error it leaves is far below that of any affordable number of draws


class Variances(NamedTuple):
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
    log_det: "LogDet | None" = None
    preconditioner: Preconditioner | None = None

    @classmethod
    def known(cls, value: Array, n_products: int = 0, log_det: "LogDet | None" = None) -> Self:
        """Those that were computed."""
        return cls(value, np.zeros_like(value), value, value, "exact", True, True, True, n_products, log_det=log_det)

    @property
    def relative_error(self) -> float:
        """The median over the rows of the relative error, as far as it is known."""
        return median_relative_error(self.value, self.error, normal=self.method != "lanczos")


class LogDet(NamedTuple):
    """log det(A) with its standard error (zero where ``exact``)."""

    value: float
    error: float
    exact: bool
    n_products: int


def median_relative_error(value: Array, error: Array, *, normal: bool = True) -> float:
    """Half of the rows have a smaller relative error: from standard errors (``normal``) or from widths of bounds."""
    return float(np.median(_relative(value, error))) * (MEDIAN_OF_NORMAL if normal else 1.0)


def _relative(value: Array, error: Array) -> Array:
    return np.divide(error, value, out=np.zeros_like(error), where=value > 0.0)


def products_since(operators: Iterable[Operator]) -> Callable[[], int]:
    """A function that says how many single-vector products some operators have made since now, each operator once."""
    distinct = list({id(operator): operator for operator in operators}.values())
    start = sum(operator.n_products for operator in distinct)
    return lambda: sum(operator.n_products for operator in distinct) - start


def bracket_by_lanczos(A: NormalMatrix, B: Operator, krylov: ScaledLanczos) -> tuple[Array, Array]:
    """(lower, upper), upper infinite where the prior is flat."""
    lower = krylov.lower(B)
    below = krylov.below()
    known = None if below is None else below.known_variances(B)
    upper = np.full(B.shape[0], np.inf) if known is None else known
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
    count = products_since((*A.operators, B))
    krylov = ScaledLanczos(A, min(FIRST_RANK if vectors is None else vectors, A.size), seed)
    most = max(min(A.size, MOST_RANK, MOST_DOUBLES // A.size), FIRST_RANK)
    while True:
        lower, upper = bracket_by_lanczos(A, B, krylov)
        certain = bool(np.isfinite(upper).all())
        error = upper - lower if certain else _missed(A, B, lower, seed)
        reached = median_relative_error(lower, error, normal=False) <= accuracy or krylov.found.k >= A.size
        rank = krylov.found.k
        if vectors is not None or reached or rank >= most or count() * 2 > budget:
            break
        krylov.extend(min(2 * rank, most))
    return Variances(lower, error, lower, upper, "lanczos", False, certain, bool(reached), count(),
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
    """What a later call can begin with: the solutions for the same random numbers, drawn in the same blocks."""

    seed: int
    widths: tuple[int, ...]
    size: int
    x: Array | None  # None of many draws of many weights: the noise is the same, the work is done again


def sample(A: NormalMatrix, B: Operator, *, accuracy: float, budget: int, seed: int,
           previous: object = None) -> Variances:
    """Average squares of draws until the accuracy is reached or the budget of products is spent."""
    count = products_since((*A.operators, B))
    M, rng = simplest_preconditioner(A), np.random.default_rng(seed)
    wanted = max(int(np.ceil(2.0 * (MEDIAN_OF_NORMAL / accuracy) ** 2)), FEWEST_DRAWS)
    limit = max(FEWEST_ITERATIONS, budget // (2 * max(len(A.parts), 1) * FEWEST_DRAWS))
    known = previous if isinstance(previous, Draws) and previous.seed == seed and previous.size == A.size else None
    total, drawn, kept, taken = np.zeros(B.shape[0]), 0, [], []
    converged = True
    tallest = max(*B.shape, *(operator.shape[0] for operator in A.operators), 1)
    later = column_blocks(max(wanted - FEWEST_DRAWS, 0), tallest)  # a few draws first, to see what they cost
    widths = (min(FEWEST_DRAWS, wanted), *(block.stop - block.start for block in later))
    for width in widths if known is None else known.widths:
        if known is None and drawn >= FEWEST_DRAWS:  # what the draws so far have cost says how many more there may be
            width = min(width, int((budget - count()) * drawn / max(count(), 1)))
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
    lower, upper = total / float(chdtri(drawn, 0.025)), total / float(chdtri(drawn, 0.975))
    reached = converged and MEDIAN_OF_NORMAL * np.sqrt(2.0 / drawn) <= accuracy
    value = total / drawn
    # The value is known, not the variance: given the value, the variance has the longer tail of an inverse chi-squared.
    error = value * np.sqrt(2.0 / (drawn - 4))
    return Variances(value, error, lower, upper, "sampling", False, False, bool(reached), count(),
                     Draws(seed, tuple(taken), A.size, whole), preconditioner=M)


def estimate(A: NormalMatrix, B: Operator, *, method: str = "auto", accuracy: float = 0.01, seed: int = 0,
             previous: Variances | None = None, budget: int | None = None, vectors: int | None = None) -> Variances:
    """diag(B A^-1 B') with an error for each of its values.

    ``accuracy`` is the median relative error to aim for and ``budget`` the most single-vector products with the
    operators to spend on it; the result says whether it was ``reached``. Equal seeds give equal answers, and with
    ``previous`` the answer for a nearby A has the same noise, so that differences between them can be trusted.

    - ``"exact"``: dense Cholesky in D or in N, or selected inversion of a sparse A.
    - ``"diagonal"``: the diagonal of a surrogate and probes of the rest, pooled over the rows.
    - ``"bracket"``: the same within certain bounds from Lanczos's iteration.
    - ``"lanczos"``: those bounds alone, the value being the one from below; of so many ``vectors`` if given.
    - ``"sampling"``: perturb and solve. Needs nothing but products.
    - ``"auto"``: exact where that takes a moment or less than an estimate would, "diagonal" elsewhere.

    >>> from klimb.linalg.operators import as_operator
    >>> B = as_operator([[1.0, 0.0], [1.0, 1.0]], "B")
    >>> found = estimate(NormalMatrix(np.ones(2), [(B, np.ones(2))]), B)
    >>> found.value, found.method, found.exact
    (array([0.4, 0.6]), 'exact', True)
    """
    _check(A, B, method, accuracy, budget)
    limit = BUDGET if budget is None else budget
    memory = None if previous is None else previous.memory
    if method == "exact":
        return _exact(A, B, cheapest_plan(A, B))
    if method == "lanczos":
        return by_lanczos(A, B, accuracy=accuracy, budget=limit, seed=seed, vectors=vectors)
    if method == "sampling":
        return sample(A, B, accuracy=accuracy, budget=limit, seed=seed, previous=memory)
    if method == "auto":
        plan = cheapest_plan(A, B)
        if plan.seconds <= AFFORDABLE and plan.bytes <= MEMORY:
            return _exact(A, B, plan)
        return _probed(A, B, accuracy=accuracy, budget=limit, seed=seed, memory=memory, plan=plan)
    return _probed(A, B, accuracy=accuracy, budget=limit, seed=seed, memory=memory, bounded=method == "bracket")


def log_det(A: NormalMatrix, *, accuracy: float = LOG_DET_ACCURACY, probes: int = FEWEST_PROBES,
            seed: int = 0) -> LogDet:
    """log det(A): exact where that takes a moment, else by stochastic Lanczos quadrature with ``probes`` probes.

    ``accuracy`` is that of the systems behind it. An estimate of variances brings a log-determinant along
    (``Variances.log_det``): use that where there is one.

    >>> from klimb.linalg.operators import as_operator
    >>> log_det(NormalMatrix(np.ones(2), [(as_operator([[1.0, 2.0]], "B"), 1.0)])).value.__round__(6)
    1.791759
    """
    plan = cheapest_plan(A)
    count = products_since(A.operators)
    if plan.seconds <= AFFORDABLE and plan.bytes <= MEMORY:
        return LogDet(factorise(A, plan).log_det, 0.0, True, count())
    found = Probes(A, None, ScaledLanczos(A, _rank(A, 0.03), seed).surrogate(), accuracy=accuracy, seed=seed)
    found.add(probes)
    value, error = found.quadrature.result()
    return LogDet(value, error, False, count())


def _begun(A: NormalMatrix, B: Operator, accuracy: float, seed: int, limit: int) -> Probes:
    """The first probes, of the sparse part of A where there is a good one, else of low rank plus diagonal."""
    if isinstance(B, SparseOperator) and (M := sparse_part(A)) is not None:
        probes = Probes(A, B, M, accuracy=accuracy, seed=seed)
        probes.add(PILOT, limit)
        if probes.converged and probes.rows.one_probe_noise() < GOOD_SURROGATE:
            return probes
    probes = Probes(A, B, ScaledLanczos(A, _rank(A, accuracy), seed).surrogate(), accuracy=accuracy, seed=seed)
    probes.add(PILOT, limit)
    return probes


class Effort(NamedTuple):
    """How much was spent: a later call with a nearby A spends the same, so that its noise is the same."""

    seed: int
    probes: int


def _exact(A: NormalMatrix, B: Operator, plan: FactorPlan) -> Variances:
    count = products_since((*A.operators, B))
    factor = factorise(A, plan)
    value = np.maximum(factor.variances(B), 0.0)
    return Variances.known(value, count(), LogDet(factor.log_det, 0.0, True, 0))


def _probed(A: NormalMatrix, B: Operator, *, accuracy: float, budget: int, seed: int, memory: object,
            plan: FactorPlan | None = None, bounded: bool = False) -> Variances:
    """Probes until the accuracy is reached or the budget spent; or the exact ``plan``, once it looks cheaper."""
    count = products_since((*A.operators, B))
    if B.row_norms_squared(np.ones(A.size)) is None:  # the surrogate cannot be compared with
        found = sample(A, B, accuracy=accuracy, budget=budget, seed=seed, previous=memory)
        return _within_bounds(A, B, found, count) if bounded else found
    limit = max(FEWEST_ITERATIONS, budget // (4 * max(len(A.parts), 1) * PILOT))
    probes = _begun(A, B, accuracy, seed, limit)
    same = memory.probes if isinstance(memory, Effort) and memory.seed == seed else 0
    allowed = probes.n + int((budget - count()) * probes.n / max(count(), 1))
    if min(max(same, FEWEST_PROBES), allowed) > probes.n:
        probes.add(min(max(same, FEWEST_PROBES), allowed) - probes.n, limit)
    value, error = probes.variances()
    while (off := median_relative_error(value, error)) > accuracy or _tail(value, error) > TAIL * accuracy:
        more = _more_probes(probes, accuracy, budget, count(), _tail(value, error))
        if off > accuracy and plan is not None and plan.bytes <= MEMORY:
            ahead = _probes_needed(probes, accuracy) * count() / probes.n * _seconds_a_product(A)
            if plan.seconds < ahead and plan.seconds < budget * _seconds_a_product(A):
                return _exact(A, B, plan)
        if more < 1:
            break
        probes.add(more, limit)
        value, error = probes.variances()
    value = np.minimum(value, simple_upper(A, B))
    reached = probes.converged and median_relative_error(value, error) <= accuracy
    log_value, log_error = probes.quadrature.result()
    found = Variances(value, error, np.maximum(value - INTERVAL * error, 0.0), value + INTERVAL * error, "diagonal",
                      False, False, bool(reached), count(), Effort(seed, probes.n),
                      LogDet(log_value, log_error, False, 0), probes.M)
    return _within_bounds(A, B, found, count) if bounded else found


def _within_bounds(A: NormalMatrix, B: Operator, found: Variances, count: Callable[[], int]) -> Variances:
    """The estimate, moved into certain bounds where it is outside of them."""
    lower, upper = bracket_by_lanczos(A, B, ScaledLanczos(A, _rank(A, 0.0), 0))
    value: Array = np.clip(found.value, lower, upper)
    error = np.minimum(found.error, np.maximum(upper - value, value - lower))
    certain = bool(np.isfinite(upper).all())
    return Variances(value, error, lower, upper, "bracket", False, certain, found.reached, count(), found.memory,
                     found.log_det, found.preconditioner)


def _rank(A: NormalMatrix, accuracy: float) -> int:
    """Directions of the surrogate: fewer where the basis would be large."""
    wanted = next(rank for least, rank in RANKS.items() if accuracy >= least)
    return min(wanted, max(MOST_DOUBLES // A.size, FEWEST_DIRECTIONS), A.size)


def _probes_needed(probes: Probes, accuracy: float) -> int:
    """How many probes there should be in total."""
    n = probes.n
    while probes.rows.expected_error(n) > accuracy and n < 2**20:
        n = int(1.25 * n) + 1
    return n


def _tail(value: Array, error: Array) -> float:
    """The relative standard error that one row in a hundred exceeds."""
    return float(np.quantile(_relative(value, error), 0.99))


def _more_probes(probes: Probes, accuracy: float, budget: int, spent: int, tail: float) -> int:
    """As many as are needed, but no more than the budget allows, nor than three times those at hand."""
    wanted = max(_probes_needed(probes, accuracy), int(probes.n * min(tail / (TAIL * accuracy), 2.0) ** 2))
    needed = min(wanted, 4 * probes.n) - probes.n
    allowed = int((budget - spent) * probes.n / max(spent, 1))
    return min(max(needed, PILOT), allowed)


def _seconds_a_product(A: NormalMatrix) -> float:
    """Expected time of one single-vector product, as part of a block."""
    return max((sum(map(_flops, operator.leaves)) for operator in A.operators), default=0.0) / FLOPS_A_SECOND


def _flops(operator: Operator) -> float:
    if isinstance(operator, SparseOperator):
        return 2.0 * float(operator.matrix.nnz)
    if operator.explicit is not None:
        return 0.2 * float(operator.shape[0]) * operator.shape[1]  # dense products run ten times faster
    return 50.0 * sum(operator.shape)  # a transform


def _check(A: NormalMatrix, B: Operator, method: str, accuracy: float, budget: int | None) -> None:
    require(method in METHODS, f"method must be one of {', '.join(METHODS)}", repr(method), "'auto' chooses by cost.")
    require(B.shape[1] == A.size, f"B must have {A.size} columns, as A has rows", f"shape {B.shape}",
            "Check that B multiplies the weights that A belongs to.")
    if not 0.0 < accuracy < 1.0:
        raise InputError("accuracy must be between 0 and 1", f"{accuracy}", "0.01 asks for 1% median relative error.")
    if budget is not None and budget < 1:
        raise InputError("budget must be a positive number of products", f"{budget}", "Leave it out, or allow some.")
