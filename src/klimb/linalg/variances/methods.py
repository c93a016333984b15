"""One entrance for all estimators of variances and log-determinants."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from klimb.errors import InputError, require
from klimb.linalg.factors import FactorPlan, cheapest_plan, factorise
from klimb.linalg.factors.selection import MEMORY
from klimb.linalg.krylov import ScaledLanczos, sparse_part
from klimb.linalg.normal_matrix import NormalMatrix
from klimb.linalg.operators import Operator, SparseOperator
from klimb.linalg.variances import bounds
from klimb.linalg.variances.bounds import LogDet, ProductCount, Variances, median_relative_error
from klimb.linalg.variances.stochastic import Probes
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
        return bounds.by_lanczos(A, B, accuracy=accuracy, budget=limit, seed=seed, vectors=vectors)
    if method == "sampling":
        return bounds.sample(A, B, accuracy=accuracy, budget=limit, seed=seed, previous=memory)
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
    count = ProductCount(A.operators)
    if plan.seconds <= AFFORDABLE and plan.bytes <= MEMORY:
        return LogDet(factorise(A, plan).log_det, 0.0, True, count.spent)
    found = Probes(A, None, ScaledLanczos(A, _rank(A, 0.03), seed).surrogate(), accuracy=accuracy, seed=seed)
    found.add(probes)
    value, error = found.quadrature.result()
    return LogDet(value, error, False, count.spent)


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
    count = ProductCount((*A.operators, B))
    factor = factorise(A, plan)
    value = np.maximum(factor.variances(B), 0.0)
    return Variances(value, np.zeros_like(value), value, value, "exact", True, True, True, count.spent,
                     log_det=LogDet(factor.log_det, 0.0, True, 0))


def _probed(A: NormalMatrix, B: Operator, *, accuracy: float, budget: int, seed: int, memory: object,
            plan: FactorPlan | None = None, bounded: bool = False) -> Variances:
    """Probes until the accuracy is reached or the budget spent; or the exact ``plan``, once it looks cheaper."""
    count = ProductCount((*A.operators, B))
    if B.row_norms_squared(np.ones(A.size)) is None:  # the surrogate cannot be compared with
        found = bounds.sample(A, B, accuracy=accuracy, budget=budget, seed=seed, previous=memory)
        return _within_bounds(A, B, found, count) if bounded else found
    limit = max(bounds.FEWEST_ITERATIONS, budget // (4 * max(len(A.parts), 1) * PILOT))
    probes = _begun(A, B, accuracy, seed, limit)
    same = memory.probes if isinstance(memory, Effort) and memory.seed == seed else 0
    allowed = probes.n + int((budget - count.spent) * probes.n / max(count.spent, 1))
    if min(max(same, FEWEST_PROBES), allowed) > probes.n:
        probes.add(min(max(same, FEWEST_PROBES), allowed) - probes.n, limit)
    value, error = probes.variances()
    while (off := median_relative_error(value, error)) > accuracy or _tail(value, error) > TAIL * accuracy:
        more = _more_probes(probes, accuracy, budget, count.spent, _tail(value, error))
        if off > accuracy and plan is not None and plan.bytes <= MEMORY:
            ahead = _probes_needed(probes, accuracy) * count.spent / probes.n * _seconds_a_product(A)
            if plan.seconds < ahead and plan.seconds < budget * _seconds_a_product(A):
                return _exact(A, B, plan)
        if more < 1:
            break
        probes.add(more, limit)
        value, error = probes.variances()
    value = np.minimum(value, bounds.simple_upper(A, B))
    reached = probes.converged and median_relative_error(value, error) <= accuracy
    log_value, log_error = probes.quadrature.result()
    found = Variances(value, error, np.maximum(value - INTERVAL * error, 0.0), value + INTERVAL * error, "diagonal",
                      False, False, bool(reached), count.spent, Effort(seed, probes.n),
                      LogDet(log_value, log_error, False, 0), probes.M)
    return _within_bounds(A, B, found, count) if bounded else found


def _within_bounds(A: NormalMatrix, B: Operator, found: Variances, count: ProductCount) -> Variances:
    """The estimate, moved into certain bounds where it is outside of them."""
    lower, upper = bounds.bracket_by_lanczos(A, B, ScaledLanczos(A, _rank(A, 0.0), 0))
    value: Array = np.clip(found.value, lower, upper)
    error = np.minimum(found.error, np.maximum(upper - value, value - lower))
    certain = bool(np.isfinite(upper).all())
    return Variances(value, error, lower, upper, "bracket", False, certain, found.reached, count.spent, found.memory,
                     found.log_det, found.preconditioner)


def _rank(A: NormalMatrix, accuracy: float) -> int:
    """Directions of the surrogate: fewer where the basis would be large."""
    wanted = next(rank for least, rank in RANKS.items() if accuracy >= least)
    return min(wanted, max(bounds.MOST_DOUBLES // A.size, FEWEST_DIRECTIONS), A.size)


def _probes_needed(probes: Probes, accuracy: float) -> int:
    """How many probes there should be in total."""
    n = probes.n
    while probes.rows.expected_error(n) > accuracy and n < 2**20:
        n = int(1.25 * n) + 1
    return n


def _tail(value: Array, error: Array) -> float:
    """The relative standard error that one row in a hundred exceeds."""
    ratio = np.divide(error, value, out=np.zeros_like(error), where=value > 0.0)
    return float(np.quantile(ratio, 0.99))


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
