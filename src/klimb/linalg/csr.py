"""Small work on scipy.sparse CSR matrices that keeps their pattern."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from klimb.numerics.arrays import Array, Index, pieces
from klimb.numerics.lazy import scipy_sparse

PAIRS_AT_A_TIME = 2**20


def with_data(matrix: Any, data: Any) -> Any:
    """A CSR matrix with other entries at the same positions, which are shared."""
    return scipy_sparse.csr_matrix((data, matrix.indices, matrix.indptr), shape=matrix.shape)


def times_rows(matrix: Any, gamma: Array) -> Any:
    """diag(gamma) X for a CSR matrix X."""
    return with_data(matrix, matrix.data * np.repeat(gamma, np.diff(matrix.indptr)))


def rows_by_length(matrix: Any) -> Iterator[tuple[Index, Any]]:
    """Rows of a CSR matrix with equally many nonzeros together, and where the entries of each are stored."""
    counts = np.diff(matrix.indptr)
    for k in np.unique(counts).tolist():
        for rows in pieces(np.flatnonzero(counts == k), max(1, PAIRS_AT_A_TIME // max(k, 1) ** 2)):
            yield rows, matrix.indptr[rows][:, None] + np.arange(k)
