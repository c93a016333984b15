"""Rows and priors of a linear model, put together from those of its terms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from klimb.errors import InputError, require
from klimb.numerics.arrays import Array
from klimb.numerics.lazy import scipy_sparse
from klimb.terms.base import Coded, Moving, Placed, Term, TermBlock, WeightsPrior

MOST_ENTRIES = 2**27  # of the matrix of shared columns (1 GiB)
MOST_COLUMNS = 5000  # their posterior covariance is a dense matrix
MOST_CROSSED = 10_000  # weights of smaller groups from which nested ones go to a sparse factor
HELD = 1e12  # precision of a weight whose prior variance is 0


@dataclass(frozen=True, eq=False)
class LinearRows:
    """Rows in the columns of a model: those that all share, and the codes of the one group that keeps them.

    Of the columns that all share, those of many levels are ``sparse``: their weights come after those of ``X``.
    """

    X: Any  # (n, B) array, or a DesignMatrix; zeros where features of `Moving` terms go
    codes: Any  # (n,), `UNSEEN` everywhere without such a group
    values: Array  # (n, k), k = 0 without such a group
    blocks: tuple[TermBlock, ...]
    shift: Array  # (n,)
    sparse: Any = None  # (n, S) CSR matrix of the terms whose columns are mostly zero; None without any
    stands_for: int = 0  # rows that these few say as much as, where they are reduced; 0 where they are not

    @property
    def n(self) -> int:
        return len(self.shift)

    def some(self, rows: Any) -> LinearRows:
        """Some of the rows."""
        X = self.X[rows] if isinstance(self.X, np.ndarray) else self.X.dense_rows(rows)
        return replace(self, X=X, codes=self.codes[rows], values=self.values[rows], shift=self.shift[rows],
                       blocks=tuple(block.some(rows) for block in self.blocks),
                       sparse=None if self.sparse is None else self.sparse[rows])


def block_length(blocks: Sequence[TermBlock]) -> int:
    """How many rows terms have made columns of."""
    first = blocks[0]
    assert not isinstance(first, Placed)
    return len(first.inputs) if isinstance(first, Moving) else int(first.values.shape[0])


def check_size(n: int, dense: int) -> None:
    """An error where ``n`` rows of ``dense`` columns are too many."""
    if dense > MOST_COLUMNS or dense * n > MOST_ENTRIES:
        raise InputError(f"a model by formula may have {MOST_COLUMNS} columns, and {MOST_ENTRIES:.0e} entries",
                         f"{dense} columns for {n} rows", "Use klimb.latents.Weights with a sparse matrix.")


def many_nested(sizes: Sequence[int], blocks: Sequence[TermBlock]) -> bool:
    """Whether groups have more weights than a dense border holds, and a sparse factor serves them at any size."""
    return sum(sizes) - max(sizes, default=0) > MOST_CROSSED and nested(blocks)


def nested(blocks: Sequence[TermBlock]) -> bool:
    """Whether every level of a group lies in one level of the next smaller group: such precisions have no fill."""
    groups = sorted((block for block in blocks if isinstance(block, Coded)), key=lambda block: -block.n_levels)
    for fine, coarse in pairwise(groups):
        seen = (fine.codes >= 0) & (coarse.codes >= 0)
        pairs = np.unique(fine.codes[seen] * coarse.n_levels + coarse.codes[seen])
        if (np.diff(pairs // coarse.n_levels) == 0).any():
            return False
    return True


def dense_prior(priors: Sequence[tuple[WeightsPrior | None, slice]], width: int) -> tuple[Array, Array]:
    """Mean and covariance of the weights of dense columns: variances, or a matrix where those of levels need one."""
    mean, variances = np.zeros(width), np.zeros(width)
    correlated: list[tuple[slice, Array]] = []
    for prior, place in priors:
        if prior is None:
            continue
        mean[place], variances[place] = prior.mean, prior.variances
        if prior.root is not None and np.count_nonzero(prior.root) > np.count_nonzero(np.diagonal(prior.root)):
            correlated.append((place, np.asarray(np.kron(np.eye(prior.copies), prior.root @ prior.root.T))))
    if not correlated:
        return mean, variances
    cov = np.diag(variances)
    for place, block in correlated:
        cov[place, place] = block
    return mean, cov


class JointPrecision:
    """Weights of dense columns, then those of each sparse term: Q, its log determinant, and all constraints.

    Q is block diagonal, so the entries of its CSC form are those of its blocks, one after another.
    """

    def __init__(self, variances: Array, sparse: Sequence[WeightsPrior], terms: Sequence[Term]) -> None:
        dense = np.divide(1.0, variances, out=np.full(len(variances), HELD), where=variances > 0.0)
        blocks: list[Any] = [scipy_sparse.diags_array(dense, format="csc")]
        self.logdet = float(np.log(dense).sum())
        for prior in sparse:
            block, logdet = _precision_of(prior)
            blocks.append(block)
            self.logdet += logdet
        self.Q = scipy_sparse.csc_array(scipy_sparse.block_diag(blocks, format="csc"))
        self.Q.sort_indices()
        begin, rows = len(variances), []
        for term in terms:
            own = term.constraints()
            if own is not None:
                row = np.zeros((len(own), self.Q.shape[0]))
                row[:, begin : begin + term.size] = own
                rows.append(row)
            begin += term.size
        self.constraints = np.vstack(rows) if rows else None


def _precision_of(prior: WeightsPrior) -> tuple[Any, float]:
    """The precision of one term's weights, with all entries that it may have, and its log determinant."""
    if prior.precision is not None:
        return prior.precision, prior.logdet
    if prior.root is None:
        return scipy_sparse.diags_array(1.0 / prior.variances, format="csc"), -float(np.log(prior.variances).sum())
    inverse = np.linalg.inv(prior.root)
    k, block = len(inverse), inverse.T @ inverse
    size = k * prior.copies
    rows = (k * np.arange(prior.copies)[:, None, None] + np.broadcast_to(np.arange(k), (k, k))).ravel()
    data = np.tile(block.ravel(), prior.copies)
    matrix = scipy_sparse.csc_array((data, rows, k * np.arange(size + 1)), shape=(size, size))
    return matrix, 2.0 * prior.copies * float(np.linalg.slogdet(inverse)[1])


def named_term(terms: Sequence[Any], name: str | None, expected: str) -> Any:
    """The term of this name, or the only one where none is given."""
    known = {term.name: term for term in terms}
    if name is None and len(known) == 1:
        return terms[0]
    require(name in known, expected, repr(name), f"The model has {', '.join(known) or 'none'}.")
    return known[name]
