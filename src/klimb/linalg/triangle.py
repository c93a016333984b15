"""The triangle R of a tall matrix that comes in blocks of rows: R'R = A'A, as accurate as a QR factorisation."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

import numpy as np

from klimb.errors import NotPositiveDefiniteError
from klimb.numerics.arrays import Array
from klimb.numerics.dense import cholesky, triangular_inverse
from klimb.numerics.lazy import blas

Blocks: TypeAlias = Callable[[], Iterable[Array]]  # all rows, whenever they are asked for
EVEN, STEEP = 30.0, 1e6  # condition of scaled columns up to which one Gram matrix does, and up to which two do
SMALLEST, LARGEST = 1e-200, 1e200  # squares of lengths between which a Gram matrix has all its digits
STACKED = 1 << 20  # entries of the rows that are factorised together, at least


def gram(blocks: Iterable[Array], width: int) -> Array:
    """A'A, the sum over blocks of rows."""
    total = np.zeros((width, width), order="F")
    if not width:
        return total
    with np.errstate(over="ignore", invalid="ignore"):
        for block in blocks:
            total = blas.dsyrk(1.0, np.ascontiguousarray(block).T, beta=1.0, c=total, lower=1, overwrite_c=1)
        full = total + total.T
    full.flat[:: width + 1] *= 0.5
    return np.asarray(full)


def triangle(blocks: Blocks, width: int) -> Array:
    """Upper triangular R (width, width) with R'R = A'A.

    A Gram matrix has squares of the condition: where that costs digits, a second one, of the rows in the coordinates
    that the first gives, has them again (Yamamoto et al. 2015); where even that fails, rows are factorised in turn.

    >>> A = np.random.default_rng(0).standard_normal((500, 3)) @ np.array([[1, 0, 5], [0, 1, 0], [0, 0, 1e-3]])
    >>> R = triangle(lambda: (A[k : k + 100] for k in range(0, 500, 100)), 3)
    >>> bool(np.allclose(R.T @ R, A.T @ A, rtol=1e-13)), bool((R == np.triu(R)).all())
    (True, True)
    """
    G = gram(blocks(), width)
    squares = np.diagonal(G)
    if not ((squares > SMALLEST) & (squares < LARGEST)).all():
        return triangle_by_rows(blocks, width)
    size = np.sqrt(squares)
    try:
        first = cholesky(np.asfortranarray(G / np.outer(size, size)))
        inverse = triangular_inverse(first.copy(order="F"))
        condition = float(np.linalg.norm(first) * np.linalg.norm(inverse))
        if condition <= EVEN * width:
            return np.asarray(np.triu(first.T) * size)
        if condition > STEEP * width:
            return triangle_by_rows(blocks, width)
        change = inverse.T / size[:, None]
        second = cholesky(np.asfortranarray(gram((block @ change for block in blocks()), width)))
    except NotPositiveDefiniteError:
        return triangle_by_rows(blocks, width)
    return np.asarray(np.triu(second.T @ first.T) * size)


def triangle_by_rows(blocks: Blocks, width: int) -> Array:
    """The same by QR of the triangle so far over some more rows, again and again: whatever the condition."""
    R, waiting = np.zeros((0, width)), list[Array]()
    for block in blocks():
        waiting.append(block)
        if sum(map(len, waiting)) * width >= STACKED:
            R, waiting = np.asarray(np.linalg.qr(np.vstack([R, *waiting]), mode="r")), []
    R = np.asarray(np.linalg.qr(np.vstack([R, *waiting]), mode="r"))
    return R if len(R) == width else np.vstack([R, np.zeros((width - len(R), width))])
