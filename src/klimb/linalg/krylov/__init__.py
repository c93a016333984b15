"""Krylov methods for positive definite matrices that can only multiply: conjugate gradients and Lanczos."""

from klimb.linalg.krylov.cg import KrylovSolution, simplest_preconditioner, solve
from klimb.linalg.krylov.surrogates import Lanczos, ScaledLanczos, lanczos, sparse_part
from klimb.linalg.normal_matrix import Preconditioner, SurrogateMatrix

__all__ = ["KrylovSolution", "Lanczos", "Preconditioner", "ScaledLanczos", "SurrogateMatrix", "lanczos",
           "simplest_preconditioner", "solve", "sparse_part"]
