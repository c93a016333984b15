"""Rows in single precision: half the time of every product, for states that are far from an optimum."""

from functools import partial

import numpy as np
import numpy.typing as npt

from klimb.linalg.matrix import DenseDesign, StoredDesign
from klimb.numerics.arrays import Array
from klimb.numerics.dense import row_blocks, shares, together

SINGLE = np.float32


class SingleDesign(StoredDesign):
    """A dense design rounded to 32 bits, in which its products are computed; sums of blocks are in double precision."""

    rounding = float(np.finfo(SINGLE).eps)

    def __init__(self, exact: DenseDesign) -> None:
        self._exact, self.shape = exact, exact.shape
        self.values = exact.values.astype(SINGLE)
        self._squares = np.einsum("ij,ij->j", self.values, self.values) / self.shape[0]

    @property
    def exact(self) -> DenseDesign:
        return self._exact

    def lost(self, a: Array, root: Array) -> float:
        """By the rounding of every f, which is as large as its columns and weights are on average."""
        variances = root**2 if root.ndim == 1 else (root**2).sum(axis=1)
        return self.rounding * float(np.abs(a).sum()) * float(np.sqrt(variances @ self._squares))

    def times(self, vector: Array) -> Array:
        return np.asarray(self.values @ vector.astype(SINGLE), dtype=np.float64)

    def _transpose_times(self, vector: Array) -> Array:
        return np.asarray(vector.astype(SINGLE) @ self.values, dtype=np.float64)

    def weighted_gram(self, gamma: Array) -> Array:
        signed = bool(gamma.min() < 0)
        weight = (gamma if signed else np.sqrt(gamma)).astype(SINGLE)[:, None]

        def part(share: slice) -> Array:
            total = np.zeros((self.shape[1], self.shape[1]))
            for block, each in self._pieces(share, weight):
                scaled = block * each
                total += (block if signed else scaled).T @ scaled  # BLAS knows A'A, and does half of it
            return total

        return np.asarray(sum(together([partial(part, share) for share in shares(*self.shape)])))

    def row_norms_squared(self, root: Array, *, upper: bool = False, times: Array | None = None) -> tuple[Array, Array]:
        del upper  # a product with all of a matrix is as fast
        norms, product, factor = np.empty(self.shape[0]), np.zeros(self.shape[0]), root.astype(SINGLE)

        def part(share: slice) -> None:
            for block, own, moved in self._pieces(share, norms, product):
                scaled = block * factor if factor.ndim == 1 else block @ factor
                own[:] = np.einsum("ij,ij->i", scaled, scaled)
                if times is not None:
                    moved[:] = block @ times.astype(SINGLE)

        together([partial(part, share) for share in shares(*self.shape)])
        return norms, product

    def _pieces(self, share: slice, *values: npt.NDArray[np.floating]) -> list[tuple[npt.NDArray[np.floating], ...]]:
        """Blocks of some rows, and of what is known of each."""
        blocks = [slice(share.start + some.start, min(share.start + some.stop, share.stop))
                  for some in row_blocks(share.stop - share.start, self.shape[1])]
        return [tuple(one[rows] for one in (self.values, *values)) for rows in blocks]
