"""Krylov methods for positive definite matrices that can only multiply: conjugate gradients and Lanczos."""

from klimb.numerics.krylov.cg import Solution, solve
from klimb.numerics.krylov.lanczos import Lanczos, lanczos
from klimb.numerics.krylov.lowrank import LowRankPlusDiagonal, ScaledLanczos, choose_preconditioner
from klimb.numerics.krylov.preconditioners import Identity, Jacobi, Preconditioner, simplest_preconditioner

__all__ = ["Identity", "Jacobi", "Lanczos", "LowRankPlusDiagonal", "Preconditioner", "ScaledLanczos", "Solution",
           "choose_preconditioner", "lanczos", "simplest_preconditioner", "solve"]
