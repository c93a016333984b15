"""Krylov methods for positive definite matrices that can only multiply: conjugate gradients and Lanczos."""

from klimb.linalg.krylov.cg import (
    Identity,
    Jacobi,
    KrylovSolution,
    Preconditioner,
    SurrogateMatrix,
    simplest_preconditioner,
    solve,
)
from klimb.linalg.krylov.lanczos import Lanczos, lanczos
from klimb.linalg.krylov.surrogates import (
    LowRankPlusDiagonal,
    ScaledLanczos,
    SparsePart,
    choose_preconditioner,
    sparse_part,
)

__all__ = ["Identity", "Jacobi", "KrylovSolution", "Lanczos", "LowRankPlusDiagonal", "Preconditioner",
           "ScaledLanczos", "SparsePart", "SurrogateMatrix", "choose_preconditioner", "lanczos",
           "simplest_preconditioner", "solve", "sparse_part"]
