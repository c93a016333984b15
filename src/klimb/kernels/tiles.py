"""Gram matrices and their pullbacks, tile by tile, and the squared distances behind most of them.

Of K(X, X) only tiles on and below the diagonal are computed, the rest is mirrored: symmetric to the last bit.

Distances are r_ij^2 = sum_d ((x_id - z_jd) / l_d)^2, by one matrix product of centred inputs, |x|^2 + |z|^2 - 2 x'z.
Pairs that are close beside their norms, whose terms cancel, are computed again from differences of the inputs as they
were given. The error is about eps / `CLOSE`, never negative, and zero for equal points. Few columns go by differences,
and so do tiles with many close pairs (docs/decisions/0005-distances-by-products-and-repair.md).
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias

import numpy as np

from klimb.numerics.arrays import Array, Index, slices
from klimb.numerics.dense import threads_for

TILE_COLUMNS = 512
TILE_DOUBLES = 65_536  # half a MiB: a tile and what is computed beside it stay in the second-level cache


class Pairs(ABC):
    """A kernel bound to its left and right inputs."""

    @abstractmethod
    def tile(self, rows: slice, columns: slice) -> Array:
        """K[rows, columns]. The diagonal of K(X, X) is not asked: see ``Kernel.diag``."""

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
    return slices(n_rows, max(16, TILE_DOUBLES // max(min(n_columns, TILE_COLUMNS), 1)))


@contextmanager
def _quietly() -> Iterator[None]:
    """Tiles are too small for several threads, and values may overflow to infinity or underflow to zero."""
    with threads_for(TILE_COLUMNS), np.errstate(over="ignore", under="ignore"):
        yield


def fill_rectangle(pairs: Pairs, out: Array) -> None:
    """K(X, Z)."""
    with _quietly():
        for rows in row_blocks(*out.shape):
            for columns in slices(out.shape[1], TILE_COLUMNS):
                out[rows, columns] = pairs.tile(rows, columns)


def fill_square(pairs: Pairs, diagonal: Array, out: Array) -> None:
    """K(X, X): the tiles that meet the lower triangle, then their mirror images, then the diagonal."""
    with _quietly():
        for rows in row_blocks(*out.shape):
            for columns in slices(rows.stop, TILE_COLUMNS):
                out[rows, columns] = pairs.tile(rows, columns)
            out[: rows.start, rows] = out[rows, : rows.start].T
            square = out[rows, rows]
            np.copyto(square, np.tril(square).T, where=~np.tri(len(square), dtype=bool))
    out.flat[:: len(out) + 1] = diagonal


def pull_rectangle(pairs: Pairs, G: Array) -> None:
    """Pull sum_ij G_ij K(X, Z)_ij back."""
    with _quietly():
        for rows in row_blocks(*G.shape):
            for columns in slices(G.shape[1], TILE_COLUMNS):
                pairs.pull(rows, columns, np.array(G[rows, columns], order="C"))


def pull_square(pairs: Pairs, G: Array) -> None:
    """Pull sum of G_ij K(X, X)_ij over i != j back: each pair i > j once, with G_ij + G_ji."""
    with _quietly():
        for rows in row_blocks(*G.shape):
            for columns in slices(rows.stop, TILE_COLUMNS):
                both = np.add(G[rows, columns], G[columns, rows].T, order="C")
                if columns.stop > rows.start:
                    both *= np.arange(rows.start, rows.stop)[:, None] > np.arange(columns.start, columns.stop)
                pairs.pull(rows, columns, both)


Close: TypeAlias = "tuple[Index, Index] | None"

DIRECT_COLUMNS = 3  # up to here differences cost no more than the product and its repair
CLOSE = 1e-3  # r^2 / (|x|^2 + |z|^2) below which the product has lost too many digits
CROWDED = 1 / 16  # share of close pairs in a tile from which all of it goes by differences
HUGE = 1e300  # stands for infinity: kernels are zero long before, and zero times it is zero
CENTRE_ROWS = 512  # rows that are enough to find a centre


def centre_of(X: Array) -> Array:
    """A point in the middle of most rows: the median, which outliers do not move."""
    if len(X) == 0:
        return np.zeros(X.shape[1])
    return np.asarray(np.median(X[:: max(1, len(X) // CENTRE_ROWS)], axis=0))


def on_circles(angles: Array) -> Array:
    """Cosines of all angles, and their sines behind them."""
    return np.hstack([np.cos(angles), np.sin(angles)])


def by_angles(gradient: Array, circles: Array) -> Array:
    """A gradient in points on circles as one in their angles."""
    (by_cosine, by_sine), (cosine, sine) = (np.split(values, 2, axis=1) for values in (gradient, circles))
    return np.asarray(by_sine * cosine - by_cosine * sine)


class SquaredDistances:
    """The distances between the rows of ``left`` and ``right`` in units of ``lengthscale``.

    ``pull`` gathers what a matrix M = G o dK/d(r^2) says of the lengthscales and of the inputs; in units u = x / l:

        squares[d] = sum_ij M_ij (u_id - w_jd)^2
        left_sums[i, d] = sum_j M_ij (u_id - w_jd)        right_sums[j, d] = sum_i M_ij (w_jd - u_id)
    """

    def __init__(self, left: Array, right: Array, lengthscale: Array, *, inputs: bool = False) -> None:
        self._left, self._right = left, right
        self._inverse = 1.0 / lengthscale
        self._same_inverse = bool((lengthscale == lengthscale[0]).all())
        self.squares = np.zeros(left.shape[1])
        self._inputs = inputs
        self.left_sums: Array = np.zeros(left.shape if inputs else (0, 0))
        self.right_sums: Array = np.zeros(right.shape if inputs else (0, 0))
        self._direct = left.shape[1] <= DIRECT_COLUMNS or not self._prepare_product(left, right)

    def _prepare_product(self, left: Array, right: Array) -> bool:
        """The two factors of the matrix product; False where the squares are too large for it."""
        centre = centre_of(left)
        with np.errstate(over="ignore", under="ignore"):
            u = (left - centre) * self._inverse
            w = u if right is left else (right - centre) * self._inverse
            u_norms, w_norms = (np.einsum("ij,ij->i", one, one) for one in (u, w))
        if max(u_norms.max(initial=0.0), w_norms.max(initial=0.0)) >= HUGE:
            return False
        # (-2u, |u|^2, 1)'(w, 1, |w|^2) is the squared distance.
        self._A = np.column_stack([-2.0 * u, u_norms, np.ones(len(u))])
        self._B = np.column_stack([w, np.ones(len(w)), w_norms])
        self._u, self._w = u, w
        # Close points have nearly equal norms, so |x|^2 alone can stand for both.
        self._close_below = 2.1 * CLOSE * u_norms[:, None]
        return True

    def squared(self, rows: slice, columns: slice) -> tuple[Array, Close]:
        """A tile of r^2, and the pairs in it that did not come from the product (None: none did)."""
        if self._direct:
            return self._by_differences(rows, columns), None
        r2 = self._A[rows] @ self._B[columns].T
        i, j = np.divmod(np.flatnonzero(r2 <= self._close_below[rows]), r2.shape[1])  # nonzero is slow on matrices
        if len(i) > CROWDED * r2.size:
            return self._by_differences(rows, columns), None
        if len(i):
            steps = self._steps(rows, columns, (i, j))
            r2[i, j] = np.einsum("pd,pd->p", steps, steps)
        return np.asarray(r2), (i, j)

    def _steps(self, rows: slice, columns: slice, close: tuple[Index, Index]) -> Array:
        """(x_i - z_j) / l for some pairs of a tile."""
        return np.asarray((self._left[rows.start + close[0]] - self._right[columns.start + close[1]]) * self._inverse)

    def _by_differences(self, rows: slice, columns: slice) -> Array:
        """A whole tile, by a compiled loop."""
        from scipy.spatial.distance import cdist

        same = self._same_inverse
        r2 = cdist(self._left[rows], self._right[columns], "sqeuclidean", w=None if same else self._inverse**2)
        return np.minimum(r2 * self._inverse[0] ** 2 if same and self._inverse[0] != 1.0 else r2, HUGE)

    def pull(self, rows: slice, columns: slice, M: Array, close: Close) -> None:
        """Add a tile's part to the sums; ``close`` is what ``squared`` returned for it, and M is spoilt."""
        if close is None:
            self._pull_by_differences(rows, columns, M)
            return
        self._pull_close(rows, columns, M, close)
        u, w = self._u[rows], self._w[columns]
        row_sums, column_sums = M.sum(axis=1), M.sum(axis=0)
        Mw = M @ w
        # sum_ij M_ij (u_i - w_j)^2 without a matrix per column: row sums, column sums and one product.
        self.squares += row_sums @ (u * u) - 2.0 * np.einsum("id,id->d", u, Mw) + column_sums @ (w * w)
        if self._inputs:
            self.left_sums[rows] += row_sums[:, None] * u - Mw
            self.right_sums[columns] += column_sums[:, None] * w - M.T @ u

    def _pull_close(self, rows: slice, columns: slice, M: Array,
                    close: tuple[Index, Index]) -> None:
        """The close pairs by their differences; their entries of M are then zero."""
        i, j = close
        weights = M[i, j]
        M[i, j] = 0.0
        told = np.flatnonzero(weights)
        if len(told) == 0:
            return
        i, j, weights = i[told], j[told], weights[told]
        steps = self._steps(rows, columns, (i, j))
        pulls = weights[:, None] * steps
        self.squares += np.einsum("pd,pd->d", pulls, steps)
        if self._inputs:
            np.add.at(self.left_sums, rows.start + i, pulls)
            np.subtract.at(self.right_sums, columns.start + j, pulls)

    def _pull_by_differences(self, rows: slice, columns: slice, M: Array) -> None:
        for d, inverse in enumerate(self._inverse):
            step = np.subtract.outer(self._left[rows, d], self._right[columns, d])
            step *= inverse
            pulls = M * step
            self.squares[d] += np.vdot(pulls, step)
            if self._inputs:
                self.left_sums[rows, d] += pulls.sum(axis=1)
                self.right_sums[columns, d] -= pulls.sum(axis=0)
