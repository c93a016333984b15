"""Which preconditioner pays: tried on one system, since spectra are hard to predict and easy to feel."""

from __future__ import annotations

import numpy as np

from klimb.linalg.krylov.cg import solve
from klimb.linalg.krylov.lowrank import ScaledLanczos
from klimb.linalg.krylov.preconditioners import Preconditioner, simplest_preconditioner
from klimb.linalg.krylov.sparsepart import sparse_part
from klimb.linalg.normal_matrix import NormalMatrix

TRIAL_RANK = 32  # Lanczos directions of the low rank that is tried
TRIAL_TOLERANCE, MOST_TRIAL_ITERATIONS = 1e-3, 100
SLOWEST = 0.9  # residual after the trial that is as bad as any above it
FEW_ITERATIONS = 8  # in the trial, with which nothing is left to gain
SPARSE_COST = 2.0  # products that a solve with a factorised sparse part costs, roughly
LOW_RANK_COST = 0.4  # and one with low rank plus diagonal


def choose_preconditioner(A: NormalMatrix, *, n_solves: int = 10, seed: int = 0) -> Preconditioner:
    """The preconditioner that should take the least work for ``n_solves`` systems with A or with its neighbours.

    One random system is solved roughly with diag(A), then with those that may do better: the factorised sparse part of
    A where A has one (`sparse_part`), and low rank plus diagonal from a few Lanczos steps.

    >>> from klimb.linalg.operators import as_operator
    >>> A = NormalMatrix(np.ones(3), [(as_operator(np.eye(3), "B"), 1.0)])
    >>> type(choose_preconditioner(A)).__name__
    'Jacobi'
    """
    plain = simplest_preconditioner(A)
    if n_solves * FEW_ITERATIONS < TRIAL_RANK or A.size <= TRIAL_RANK:
        return plain
    rhs = np.random.default_rng([seed, 3]).standard_normal(A.size) * np.sqrt(_scale(A))

    def iterations(M: Preconditioner) -> float:
        trial = solve(A, rhs, preconditioner=M, tol=TRIAL_TOLERANCE, max_iter=MOST_TRIAL_ITERATIONS)
        if trial.converged:
            return trial.n_iter
        reached = float(np.clip(trial.residual[0], TRIAL_TOLERANCE, SLOWEST))
        return trial.n_iter * float(np.log(TRIAL_TOLERANCE) / np.log(reached))  # at the rate so far

    taken = iterations(plain)
    if taken <= FEW_ITERATIONS:
        return plain
    best, work = plain, float(n_solves * taken)
    if (sparse := sparse_part(A)) is not None and (w := n_solves * iterations(sparse) * (1.0 + SPARSE_COST)) < work:
        best, work = sparse, w
    if work > 2.0 * TRIAL_RANK:
        low_rank = ScaledLanczos(A, TRIAL_RANK, seed).surrogate()
        if (w := TRIAL_RANK + n_solves * iterations(low_rank) * (1.0 + LOW_RANK_COST)) < work:
            best = low_rank
    return best


def _scale(A: NormalMatrix) -> np.ndarray:
    diagonal = A.diagonal()
    return np.ones(A.size) if diagonal is None else diagonal
