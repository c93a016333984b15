"""Rows that need not fit in memory, and their whitened L^-1 k(Z, x_i), computed when they are asked for."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from klimb.errors import InputError, require
from klimb.kernels import Kernel
from klimb.kernels.means import Mean
from klimb.latents.inducing import Inducing
from klimb.linalg.matrix import BlockedDesign, DenseDesign
from klimb.numerics.arrays import Array, Index, as_float
from klimb.numerics.dense import Whitener, psd_square_root, row_blocks, threads_for

STORED_LIMIT = 2**26  # entries (512 MiB) up to which rows are stored unless the user says otherwise


class RowSource:
    """N rows of d numbers that can be read from the front as often as needed, in cache-sized blocks.

    They are those of an array or a memory map, where 1-d counts as one column, or of a callable that yields the same
    blocks in the same order each time it is called. Batches of a stream come in its order: rows that are sorted by
    anything should be shuffled where they are stored.

    >>> rows = RowSource(np.arange(10.0))
    >>> rows.shape, [batch.ravel().tolist() for _, batch in rows.batches(5, seed=0)]
    ((10, 1), [[2.0, 3.0, 4.0, 6.0, 7.0], [0.0, 1.0, 5.0, 8.0, 9.0]])
    >>> rows = RowSource(lambda: (np.full((2, 1), float(k)) for k in range(3)))
    >>> rows.shape, rows.take(np.array([1, 4])).ravel()
    ((6, 1), array([0., 2.]))
    """

    def __init__(self, given: Any) -> None:
        self.shape, self._given = (0, 0), given  # of a stream it is not known before the first pass
        if not callable(given):
            array = given if isinstance(given, np.ndarray) else as_float(given, "X")
            self._given = array = array[:, None] if array.ndim == 1 else array
            require(array.ndim == 2 and 0 not in array.shape, "X must have at least one row and one column",
                    f"shape {array.shape}", "Pass some data.")
            self.shape = (array.shape[0], array.shape[1])
            return
        n, width = 0, 0
        for block in self._pieces():
            n, width = n + len(as_float(block, "X")), block.shape[1]
        require(n != 0, "a stream must yield at least one row", "none", "Check the callable.")
        self.shape = (n, width)

    def _pieces(self) -> Iterator[npt.NDArray[Any]]:
        """All rows in order, of an array in one piece."""
        begin, width = 0, self.shape[1]
        for piece in self._given() if callable(self._given) else (self._given,):
            block = np.asarray(piece.toarray() if hasattr(piece, "tocsr") else piece)
            block = block[:, None] if block.ndim == 1 else block
            if block.ndim != 2 or block.shape[1] == 0 or (width and block.shape[1] != width):
                raise InputError("every block of a stream must be rows with the same columns",
                                 f"shape {block.shape} after {begin} rows", "Check what the callable yields.")
            begin, width = begin + len(block), block.shape[1]
            if len(block):
                yield block
        if self.shape[0] and begin != self.shape[0]:
            raise InputError(f"a stream must yield the same {self.shape[0]} rows each time", f"{begin}",
                             "Check that the callable starts from the front again.")

    def blocks(self, width: int) -> Iterator[tuple[slice, Array]]:
        """All rows in order, in blocks for which ``width`` numbers a row fit the cache."""
        begin = 0
        for piece in self._pieces():
            for rows in row_blocks(len(piece), width):
                yield slice(begin + rows.start, begin + rows.stop), as_float(piece[rows], "X")
            begin += len(piece)

    def take(self, rows: Index) -> Array:
        """Some rows, given in ascending order."""
        found = np.empty((len(rows), self.shape[1]))
        begin = 0
        for piece in self._pieces():
            first, last = np.searchsorted(rows, [begin, begin + len(piece)])
            found[first:last] = as_float(piece[rows[first:last] - begin], "X")
            begin += len(piece)
        return found

    def batches(self, size: int, seed: int) -> Iterator[tuple[Index, Array]]:
        """Every row once, about ``size`` at a time, in an order that ``seed`` fixes."""
        if not callable(self._given):
            yield from ((rows, self.take(rows)) for rows in shuffled_batches(self.shape[0], size, seed))
            return
        begin = 0
        for piece in self._pieces():
            for rows in np.array_split(np.arange(len(piece)), max(1, -(-len(piece) // size))):
                yield rows + begin, as_float(piece[rows], "X")
            begin += len(piece)


def shuffled_batches(n: int, size: int, seed: int) -> Iterator[Index]:
    """A fixed random partition of 0..n-1 into batches of at most ``size``, each in ascending order (kind to disks)."""
    order = np.random.default_rng(seed).permutation(n)
    for batch in np.array_split(order, max(1, -(-n // size))):
        yield np.sort(batch)


class KernelRows(BlockedDesign):
    """The N x M design of a Gaussian process seen through inducing points, of which only a block exists at a time.

    A pass costs N M kernel values and N M^2 / 2 products; the memory is a block of about 1 MiB. ``stored`` computes the
    same blocks once and keeps them, so that both forms give the same numbers to the last bit.

    >>> from klimb.kernels import RBF
    >>> x, Z, kernel = np.linspace(0.0, 6.0, 500)[:, None], np.linspace(0.0, 6.0, 12)[:, None], RBF()
    >>> rows = KernelRows(kernel, RowSource(x), Z, Whitener(psd_square_root(kernel.gram(Z), "Kuu")))
    >>> design = rows.stored().dense()  # 500 x 12, whose products are the prior covariances
    >>> bool(np.abs(design @ design.T - kernel.gram(x)).max() < 1e-4)
    True
    """

    def __init__(self, kernel: Kernel, source: RowSource, Z: Array, whitener: Whitener) -> None:
        self.kernel, self.source, self.Z, self.whitener = kernel, source, Z, whitener
        self.shape = (source.shape[0], whitener.width)

    def blocks(self) -> Iterator[tuple[slice, Array]]:
        for rows, inputs in self.source.blocks(self.shape[1]):
            yield rows, self._whitened(inputs)

    def batches(self, size: int, seed: int) -> Iterator[tuple[Index, Array]]:
        """Every row once, about ``size`` at a time, in an order that ``seed`` fixes."""
        for rows, inputs in self.source.batches(size, seed):
            yield rows, self._whitened(inputs)

    def _whitened(self, inputs: Array) -> Array:
        return self.whitener.in_place(self.kernel.gram(inputs, self.Z))

    def subset(self, rows: Index) -> "KernelRows":
        order = np.argsort(rows, kind="stable")
        inputs = np.empty((len(rows), self.source.shape[1]))
        inputs[order] = self.source.take(rows[order])
        return KernelRows(self.kernel, RowSource(inputs), self.Z, self.whitener)

    def dense_rows(self, rows: slice) -> Array:
        return self._whitened(self.source.take(np.arange(*rows.indices(self.shape[0]))))

    def stored(self) -> DenseDesign:
        """All rows, computed once and kept."""
        return DenseDesign(self.dense())


def inducing_latent(kernel: Kernel, X: Any, Z: Any, *, mean: Mean | None = None, jitter: float = 1e-8,
                    stored: bool | None = None) -> Inducing:
    """A Gaussian process at the inputs ``X`` seen through inducing points ``Z``, of any length.

    Parameters
    ----------
    kernel : klimb.kernels.Kernel
    X : (N, d) array, memory map, or callable
        A callable is called once per pass and yields blocks of rows, the same ones each time.
    Z : (M, d) array
    mean : klimb.kernels.means.Mean
        Zero unless given.
    jitter : float
        Share of the mean prior variance added to the diagonal of Kuu.
    stored : bool
        Whether to keep the N x M whitened rows in memory (fast) or to compute them block by block in every pass
        (bounded memory, the same numbers). Decided by size (512 MiB) if it is left out.

    Examples
    --------
    >>> import numpy as np, klimb
    >>> from klimb.rows.kernel_rows import inducing_latent
    >>> x = np.linspace(0.0, 6.0, 500)
    >>> parts = lambda: np.array_split(x, 7)
    >>> latent = inducing_latent(klimb.kernels.RBF(), parts, np.linspace(0, 6, 12), stored=False)
    >>> klimb.infer(latent, klimb.sites.Logistic(), np.sin(x) > 0).status.name
    'CONVERGED'
    """
    source = RowSource(X)
    points = as_float(Z, "Z")
    points = points[:, None] if points.ndim == 1 else points
    if points.ndim != 2 or 0 in points.shape or points.shape[1] != source.shape[1]:
        raise InputError(f"Z must be points with {source.shape[1]} columns", f"shape {points.shape}",
                         "Inducing points live among the inputs.")
    Kuu = kernel.gram(points)
    Kuu.flat[:: len(Kuu) + 1] += jitter * Kuu.diagonal().mean()
    with threads_for(len(points)):
        whitener = Whitener(psd_square_root(Kuu, "Kuu"))
        rows = KernelRows(kernel, source, points, whitener)
        keep = source.shape[0] * whitener.width <= STORED_LIMIT if stored is None else stored
        total, offset = np.empty(source.shape[0]), np.zeros(source.shape[0])
        for block, inputs in source.blocks(source.shape[1]):
            total[block] = kernel.diag(inputs)
            if mean is not None:
                offset[block] = mean(inputs)
        return Inducing.of_rows(whitener, rows.stored() if keep else rows, total, offset)
