"""diag(B A^-1 B') and log det(A): exact where affordable, elsewhere estimates that say how far off they may be."""

from klimb.linalg.variances.bounds import LogDet, Variances
from klimb.linalg.variances.methods import METHODS, estimate, log_det

__all__ = ["METHODS", "LogDet", "Variances", "estimate", "log_det"]
