"""Krylov methods for positive definite matrices that can only multiply: conjugate gradients and Lanczos."""

from klimb.linalg.krylov.cg import KrylovSolution, solve
from klimb.linalg.krylov.lanczos import Lanczos, lanczos
from klimb.linalg.krylov.lowrank import LowRankPlusDiagonal, ScaledLanczos
from klimb.linalg.krylov.preconditioners import (
    Identity,
    Jacobi,
    Preconditioner,
    SurrogateMatrix,
    simplest_preconditioner,
)
from klimb.linalg.krylov.selection import choose_preconditioner
from klimb.linalg.krylov.sparsepart import SparsePart, sparse_part

__all__ = [
    "Identity",
    "Jacobi",
    "KrylovSolution",
    "Lanczos",
    "LowRankPlusDiagonal",
    "Preconditioner",
    "ScaledLanczos",
    "SparsePart",
    "SurrogateMatrix",
    "choose_preconditioner",
    "lanczos",
    "simplest_preconditioner",
    "solve",
    "sparse_part",
]
