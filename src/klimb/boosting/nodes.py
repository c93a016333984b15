"""Nodes of N(0, I): evenly spread, symmetric, and with exactly the right mean and covariance."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from klimb.numerics.arrays import Array
from klimb.numerics.lowdiscrepancy import normal_draws


@lru_cache(maxsize=64)
def nodes(n: int, dim: int, seed: int = 0) -> Array:
    """``n`` nodes (rounded up to an even number above 2 ``dim``), whose average z is 0 and average zz' is I exactly.

    So expectations of quadratics under any Gaussian are exact, and the error of others is that of a quasi-random rule.

    >>> z = nodes(16, 2)
    >>> print(z.shape, bool(np.allclose(z.T @ z / len(z), np.eye(2))))
    (16, 2) True
    """
    n = max(n, 2 * dim + 2)
    n += n % 2
    z = normal_draws(n, dim, seed=seed)
    root = np.linalg.cholesky(z.T @ z / n)
    z = np.linalg.solve(root, z.T).T
    z.setflags(write=False)
    return z


def node_count(dim: int) -> int:
    """How many nodes a component gets: enough to see more than a quadratic, few enough to be cheap."""
    return max(32, 16 * dim) if dim <= 6 else max(96, 2 * dim + 40)
