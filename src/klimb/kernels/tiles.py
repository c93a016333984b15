"""Gram matrices and their pullbacks, tile by tile: no temporary is ever larger than a tile.

`Pairs` is a kernel bound to its inputs. The functions here walk the tiles: for K(X, X) only those on and below the
diagonal, the rest is mirrored, so that the matrix is symmetric to the last bit and half the work is saved.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from klimb.numerics.arrays import Array
from klimb.numerics.dense import threads_for

TILE_COLUMNS = 512
TILE_DOUBLES = 65_536  # half a MiB: a tile and what is computed beside it stay in the second-level cache


class Pairs(ABC):
    """A kernel bound to its left and right inputs."""

    @abstractmethod
    def fill(self, rows: slice, columns: slice, out: Array) -> None:
        """Write K[rows, columns] to ``out``. The diagonal of K(X, X) is not asked: see ``Kernel.diag``."""

    @abstractmethod
    def pull(self, rows: slice, columns: slice, G: Array) -> None:
        """Add what sum G_ij K_ij over this tile contributes to the gradients; ``G`` is contiguous, and is spoilt."""

    @abstractmethod
    def gradient(self) -> Array:
        """The gradient in the logarithm of every parameter, fixed ones included."""

    @abstractmethod
    def right_gradient(self) -> Array:
        """The gradient in the right inputs, one row per point and one column per column of the inputs."""


def row_blocks(n_rows: int, n_columns: int) -> Iterator[slice]:
    """Consecutive rows, so many that tiles of them have about `TILE_DOUBLES` entries."""
    height = max(16, TILE_DOUBLES // max(min(n_columns, TILE_COLUMNS), 1))
    for begin in range(0, n_rows, height):
        yield slice(begin, min(begin + height, n_rows))


def column_blocks(n_columns: int) -> Iterator[slice]:
    """Consecutive columns, at most `TILE_COLUMNS` of them."""
    for begin in range(0, n_columns, TILE_COLUMNS):
        yield slice(begin, min(begin + TILE_COLUMNS, n_columns))


@contextmanager
def _quietly() -> Iterator[None]:
    """Tiles are too small for several threads, and values may overflow to infinity or underflow to zero."""
    with threads_for(TILE_COLUMNS), np.errstate(over="ignore", under="ignore"):
        yield


def fill_rectangle(pairs: Pairs, out: Array) -> None:
    """K(X, Z)."""
    with _quietly():
        for rows in row_blocks(*out.shape):
            for columns in column_blocks(out.shape[1]):
                pairs.fill(rows, columns, out[rows, columns])


def fill_square(pairs: Pairs, diagonal: Array, out: Array) -> None:
    """K(X, X): the tiles that meet the lower triangle, then their mirror images, then the diagonal."""
    with _quietly():
        for rows in row_blocks(*out.shape):
            for columns in column_blocks(rows.stop):
                pairs.fill(rows, columns, out[rows, columns])
            out[: rows.start, rows] = out[rows, : rows.start].T
            square = out[rows, rows]
            np.copyto(square, np.tril(square).T, where=~np.tri(len(square), dtype=bool))
    out.flat[:: len(out) + 1] = diagonal


def pull_rectangle(pairs: Pairs, G: Array) -> None:
    """Pull sum_ij G_ij K(X, Z)_ij back."""
    with _quietly():
        for rows in row_blocks(*G.shape):
            for columns in column_blocks(G.shape[1]):
                pairs.pull(rows, columns, np.array(G[rows, columns], order="C"))


def pull_square(pairs: Pairs, G: Array) -> None:
    """Pull sum of G_ij K(X, X)_ij over i != j back: each pair i > j once, with G_ij + G_ji."""
    with _quietly():
        for rows in row_blocks(*G.shape):
            for columns in column_blocks(rows.stop):
                both = np.add(G[rows, columns], G[columns, rows].T, order="C")
                if columns.stop > rows.start:
                    below = np.arange(rows.start, rows.stop)[:, None] > np.arange(columns.start, columns.stop)
                    both *= below
                pairs.pull(rows, columns, both)
