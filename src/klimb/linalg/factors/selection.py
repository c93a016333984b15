"""Which exact factorisation is cheapest, what it costs, and whether it fits into memory."""

from math import prod
from typing import NamedTuple

import numpy as np

from klimb.errors import require
from klimb.linalg.factors import forms
from klimb.linalg.normal_matrix import NormalMatrix
from klimb.linalg.operators import Operator, SparseOperator
from klimb.linalg.sparse_cholesky import SymbolicCholesky

FLOPS_A_SECOND = 2e10  # of dense products on one core
PAIRS_A_SECOND = 1.5e8  # of a sparse matrix times its transpose, and of gathering entries
MEMORY = 4 * 2**30  # bytes that a factorisation may take unless told otherwise
SPARSE_ENOUGH = 0.02  # share of nonzeros in A up to which it is factorised as a sparse matrix
SEPARATED = 1e-8  # of diag(A): the least that the diagonal part of a dual form has
SAMPLED_COLUMNS = 16  # of A, to see whether it is sparse at all
WORTH_LEVELS = 200  # weights from which they may pay
SECONDS_A_FRONT = 2e-4  # of a sparse factorisation and its inverse, beside the flops


class FactorPlan(NamedTuple):
    """Which factorisation, and what it should cost."""

    kind: str  # "primal", "dual", or "levels": those of the tree of fronts of a sparse A
    seconds: float  # on one core
    bytes: int
    symbolic: SymbolicCholesky | None = None  # the analysis of a sparse A

    def __str__(self) -> str:
        return f"{self.kind}: about {self.seconds:.2g} s and {self.bytes / 2**20:,.0f} MiB"


def cheapest_plan(A: NormalMatrix, B: Operator | None = None) -> FactorPlan:
    """The exact factorisation of A with the least expected time, variances of the rows of B (if given) included."""
    plans = [_primal(A, B)]
    if A.positive and A.parts and A.shift.min() > 0.0:
        plans.append(_dual(A, B))
    if (levels := levels_plan(A)) is not None:
        plans.append(levels)
    return min(plans, key=lambda plan: plan.seconds)


def factorise(A: NormalMatrix, plan: FactorPlan | None = None, *, memory: int = MEMORY) -> forms.Factorisation:
    """Factorise A as ``plan`` says (the cheapest one unless given); refuses to take more than ``memory`` bytes."""
    plan = cheapest_plan(A) if plan is None else plan
    require(plan.bytes <= memory, f"an exact factorisation must fit into {memory / 2**30:.1f} GiB",
            f"{plan.bytes / 2**30:.1f} GiB for {A.size:,} weights ({plan.kind})",
            "Use an estimator (method='auto') or allow more memory.")
    if plan.kind == "primal":
        return forms.PrimalFactorisation(A)
    if plan.kind == "dual":
        return forms.DualFactor(_separated(A))
    assert plan.symbolic is not None
    return forms.SparseFactorisation(A, plan.symbolic)


def _separated(A: NormalMatrix) -> NormalMatrix:
    """A with a diagonal that the dual form can tell from zero: no variance moves by more than 1e-8 of it."""
    diagonal = A.diagonal()
    if diagonal is None or (A.shift >= SEPARATED * diagonal).all():
        return A
    return NormalMatrix(np.maximum(A.shift, SEPARATED * diagonal), A.parts)


def _primal(A: NormalMatrix, B: Operator | None) -> FactorPlan:
    D = float(A.size)
    grams = ((_pairs(operator), prod(operator.shape) * D) for operator in A.operators)
    seconds = D**3 / 3 / FLOPS_A_SECOND + sum(flops / FLOPS_A_SECOND if pairs is None else pairs / PAIRS_A_SECOND
                                              for pairs, flops in grams)
    if B is not None:
        by_solves = B.shape[0] * D**2 / FLOPS_A_SECOND
        pairs = _pairs(B)
        by_pairs = np.inf if pairs is None else 2 * D**3 / 3 / FLOPS_A_SECOND + pairs / PAIRS_A_SECOND
        seconds += min(by_solves, float(by_pairs))
    unstored = 8 * sum(_unstored(operator) for operator in (*A.operators, B) if operator is not None)
    return FactorPlan("primal", seconds, int(8 * (2.2 * D**2 if B is not None else 1.2 * D**2) + unstored))


def _dual(A: NormalMatrix, B: Operator | None) -> FactorPlan:
    N, D = float(sum(operator.shape[0] for operator in A.operators)), float(A.size)
    nonzeros = sum(float(leaf.matrix.nnz) if isinstance(leaf, SparseOperator) else prod(leaf.shape)
                   for operator in A.operators for leaf in operator.leaves)
    seconds = N**3 / 3 / FLOPS_A_SECOND + min(N * nonzeros / PAIRS_A_SECOND, N**2 * D / FLOPS_A_SECOND)
    if B is not None:
        seconds += B.shape[0] * N**2 / FLOPS_A_SECOND
    return FactorPlan("dual", seconds, int(8 * (3.5 * N**2 + sum(_unstored(operator) for operator in A.operators))))


def levels_plan(A: NormalMatrix) -> FactorPlan | None:
    """The factorisation of a sparse A, where it is sparse beyond doubt: sum_i nnz_i^2 bounds its entries."""
    pairs = [_pairs(operator) for operator in A.operators]
    known = [count for count in pairs if count is not None]
    if A.size < WORTH_LEVELS or len(known) < len(pairs) or sum(known) > 50 * SPARSE_ENOUGH * A.size**2:
        return None
    leaves = (leaf for operator in A.operators for leaf in operator.leaves)
    if max(map(_sampled_density, leaves), default=0.0) > 2 * SPARSE_ENOUGH:
        return None  # the whole product would take minutes to say so
    pattern = forms.sparse_pattern(A)
    if pattern is None or pattern.nnz > SPARSE_ENOUGH * A.size**2:
        return None
    symbolic = forms.analysed(pattern)
    pivots, rows = np.array([(front.pivots, front.rows) for front in symbolic.tree.fronts], dtype=float).T
    seconds = 3.0 * float(pivots @ rows**2) / FLOPS_A_SECOND + SECONDS_A_FRONT * len(rows)
    return FactorPlan("levels", seconds, 8 * int(pivots @ rows + 4 * pattern.nnz), symbolic)


def _sampled_density(operator: Operator) -> float:
    """Share of nonzeros in B'B, from some columns spread over it."""
    if not isinstance(operator, SparseOperator):
        return 0.0
    columns = np.linspace(0, operator.shape[1] - 1, min(operator.shape[1], SAMPLED_COLUMNS)).astype(np.intp)
    sampled = operator.transpose[columns] @ operator.matrix
    return float(sampled.nnz) / (len(columns) * operator.shape[1])


def _pairs(operator: Operator) -> float | None:
    """sum_i nnz_i^2 for a sparse matrix, None for any other operator."""
    sparse = [leaf.matrix for leaf in operator.leaves if isinstance(leaf, SparseOperator)]
    if len(sparse) < len(operator.leaves):
        return None
    return sum(float((np.diff(matrix.indptr).astype(float) ** 2).sum()) for matrix in sparse)


def _unstored(operator: Operator) -> float:
    """Entries that would have to be made by products with unit vectors."""
    return sum(prod(leaf.shape) for leaf in operator.leaves if leaf.explicit is None)
