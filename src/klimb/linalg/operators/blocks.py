"""Rows in blocks that are read again for every product: matrices larger than memory."""

from collections.abc import Iterable, Sequence
from functools import partial
from os import PathLike
from typing import Any

import numpy as np

from klimb.errors import require
from klimb.linalg.operators.base import Operator
from klimb.numerics.arrays import Array, check_finite_csr
from klimb.numerics.lazy import scipy_sparse


class BlockedOperator(Operator):
    """Blocks of rows, one below the other, each read where it is multiplied: one pass for a product with B or B'GB.

    Parameters
    ----------
    blocks : sequence
        Matrices, paths of files that ``scipy.sparse.save_npz`` wrote, or functions that return a matrix.
    engine : object with ``map(function, items)``
        Where blocks are read: any ``concurrent.futures`` executor. Here unless given. Sums are taken in the order of
        the blocks, so the numbers are the same.

    Examples
    --------
    >>> import scipy.sparse
    >>> X = scipy.sparse.random(90, 20, density=0.2, random_state=0, format="csr")
    >>> B = BlockedOperator([X[:40], lambda: X[40:]])
    >>> B.shape, bool(np.allclose(B.normal_times(np.ones(90), np.ones(20)), X.T @ (X @ np.ones(20))))
    ((90, 20), True)
    """

    def __init__(self, blocks: Sequence[Any], engine: Any = None, *, ones: bool = False) -> None:
        self.blocks, self._engine, self._ones = tuple(blocks), engine, ones
        found = list(self._mapped("about", None, self.blocks))
        widths = sorted({width for _, width, _ in found})
        require(len(widths) == 1, "blocks of rows with equally many columns", widths or "no block",
                "Check how the blocks were written.")
        self._ends = np.cumsum([n for n, *_ in found])
        self.shape, self.nnz = (int(self._ends[-1]), widths[0]), sum(entries for *_, entries in found)

    def with_ones(self) -> "BlockedOperator":
        """The same with a column of ones at the end."""
        return BlockedOperator(self.blocks, self._engine, ones=True)

    def _mapped(self, what: str, shared: Any, own: Iterable[Any]) -> Iterable[Any]:
        work, items = partial(_product, what, self._ones, shared), zip(self.blocks, own, strict=True)
        return map(work, items) if self._engine is None else self._engine.map(work, items)

    def _summed(self, what: str, shared: Any, own: Array) -> Array:
        return np.asarray(sum(self._mapped(what, shared, np.split(own, self._ends[:-1]))))

    def _times(self, U: Array) -> Array:
        return np.concatenate(list(self._mapped("times", U, self.blocks)))

    def _transpose_times(self, W: Array) -> Array:
        return self._summed("transposed", None, W)

    def normal_times(self, weights: Array, U: Array) -> Array:
        self.n_products += 2 if U.ndim == 1 else 2 * U.shape[1]
        return self._summed("normal", U, weights if U.ndim == 1 else weights[:, None])

    def gram_diagonal(self, gamma: Array) -> Array:
        return self._summed("diagonal", None, gamma)

    def gram(self, gamma: Array) -> Array:
        return np.asfortranarray(self._summed("gram", None, gamma[:, None]))

    def row_norms_squared(self, scale: Array) -> Array:
        return np.concatenate(list(self._mapped("norms", scale, self.blocks)))


def _product(what: str, ones: bool, shared: Any, item: tuple[Any, Any]) -> Any:
    """What one block adds, read here; ``own`` is its share of a vector over all rows."""
    block, own = item
    X = block() if callable(block) else scipy_sparse.load_npz(block) if isinstance(block, str | PathLike) else block
    X = scipy_sparse.csr_array(X, dtype=np.float64)
    if ones:
        X = scipy_sparse.hstack([X, np.ones((X.shape[0], 1))], format="csr")
    if what == "about":
        check_finite_csr(X, "a block")
        return *X.shape, X.nnz
    if what == "gram":
        return (X.T @ X.multiply(own)).toarray()
    if what in ("times", "normal"):
        product = X @ shared
        return product if what == "times" else X.T @ (own * product)
    X = X if what == "transposed" else X.power(2)
    return X @ shared if what == "norms" else X.T @ own
