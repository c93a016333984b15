"""Krylov methods for positive definite matrices that can only multiply: conjugate gradients and Lanczos."""

from klimb.linalg.krylov.cg import KrylovSolution, Preconditioner, SurrogateMatrix, simplest_preconditioner, solve
from klimb.linalg.krylov.surrogates import Lanczos, ScaledLanczos, choose_preconditioner, lanczos, sparse_part

__all__ = ["KrylovSolution", "Lanczos", "Preconditioner", "ScaledLanczos", "SurrogateMatrix", "choose_preconditioner",
           "lanczos", "simplest_preconditioner", "solve", "sparse_part"]
