"""diag(B A^-1 B') and log det(A): exact where affordable, elsewhere estimates that say how far off they may be."""

from klimb.linalg.variances.methods import METHODS, LogDet, Variances, estimate, log_det

__all__ = ["METHODS", "LogDet", "Variances", "estimate", "log_det"]
