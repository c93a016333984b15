"""The least a step can cost: the BLAS and LAPACK calls that no exact method of this shape does without."""

from __future__ import annotations

import time
from statistics import median

import numpy as np
from scipy.linalg.blas import dsyrk, dtrsm
from scipy.linalg.lapack import dpotrf, dtrtri


def weights_floor(n: int, d: int, repeats: int = 5) -> float:
    """CPU seconds of X'X by one dsyrk and of L^-1 X' by one dtrsm, X of shape n x d."""
    design = np.random.default_rng(0).standard_normal((n, d))
    rows = design.T  # d x n in Fortran order: what BLAS takes without a copy
    factor = np.asfortranarray(np.linalg.cholesky(np.eye(d) + design.T @ design / n))
    seconds = []
    for _ in range(repeats):
        scratch = rows.copy(order="F")
        start = time.process_time()
        dsyrk(1.0, rows)
        dtrsm(1.0, factor, scratch, lower=1, overwrite_b=1)
        seconds.append(time.process_time() - start)
    return median(seconds)


def kernel_floor(n: int, repeats: int = 5) -> float:
    """CPU seconds of one dpotrf and one dtrtri of order n."""
    square = np.random.default_rng(0).standard_normal((n, n))
    matrix = np.asfortranarray(np.eye(n) + square @ square.T / n)
    seconds = []
    for _ in range(repeats):
        scratch = matrix.copy(order="F")
        start = time.process_time()
        factor, info = dpotrf(scratch, lower=1, overwrite_a=1, clean=0)
        _, info_inverse = dtrtri(factor, lower=1, overwrite_c=1)
        seconds.append(time.process_time() - start)
        if info or info_inverse:
            raise ArithmeticError(f"dpotrf gave {info}, dtrtri gave {info_inverse}")
    return median(seconds)


if __name__ == "__main__":
    from benchmarks.measure import one_thread, table

    with one_thread():
        table("floors (CPU seconds, one thread)", ["shape", "seconds"],
              [(f"weights {n} x {d}", weights_floor(n, d)) for n, d in ((1605, 123), (32561, 123), (1_000_000, 50))]
              + [(f"kernel {n}", kernel_floor(n)) for n in (208, 351, 1000, 2000)])
