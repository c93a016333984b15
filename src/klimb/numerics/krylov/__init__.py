"""Krylov methods for positive definite matrices that can only multiply: conjugate gradients and Lanczos."""

from klimb.numerics.krylov.cg import Solution, solve
from klimb.numerics.krylov.choose import choose_preconditioner
from klimb.numerics.krylov.lanczos import Lanczos, lanczos
from klimb.numerics.krylov.lowrank import LowRankPlusDiagonal, ScaledLanczos
from klimb.numerics.krylov.preconditioners import (
    Identity,
    Jacobi,
    Preconditioner,
    Surrogate,
    simplest_preconditioner,
)
from klimb.numerics.krylov.sparsepart import SparsePart, sparse_part

__all__ = ["Identity", "Jacobi", "Lanczos", "LowRankPlusDiagonal", "Preconditioner", "ScaledLanczos", "Solution",
           "SparsePart", "Surrogate", "choose_preconditioner", "lanczos", "simplest_preconditioner",
           "solve", "sparse_part"]
