"""Whitened rows L^-1 k(Z, x_i) that are computed when they are asked for instead of being stored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, final

import numpy as np

from klimb.errors import InputError
from klimb.kernels import Kernel
from klimb.kernels.means import Mean
from klimb.latents.inducing import Inducing
from klimb.linalg.matrix import BlockedDesign, DenseDesign
from klimb.numerics.arrays import Array, Index, as_float
from klimb.numerics.dense import Whitener, psd_square_root, threads_for
from klimb.rows.source import RowSource

STORED_LIMIT = 2**26  # entries (512 MiB) up to which rows are stored unless the user says otherwise


@final
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

    def subset(self, rows: Index) -> KernelRows:
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
