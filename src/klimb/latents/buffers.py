"""Work arrays of dense factors, which come and go at every step."""

from __future__ import annotations

import weakref
from typing import ClassVar, final

import numpy as np

from klimb.numerics.arrays import Array

MOST_SPARE, LARGEST_SPARE = 2, 4000**2  # work arrays kept, and the entries from which they are not worth keeping


@final
class Buffers:
    """n x n work arrays, handed from a factor that is gone to the next one.

    Fresh memory has to be mapped page by page, which for n of some thousands can cost as much as a factorisation.
    """

    _known: ClassVar[weakref.WeakValueDictionary[int, Buffers]] = weakref.WeakValueDictionary()

    @classmethod
    def of(cls, n: int) -> Buffers:
        """Those that all latents of this size share, as those of one model at many hyperparameters."""
        return cls._known.setdefault(n, cls(n))

    def __init__(self, n: int) -> None:
        self._shape = (n, n)
        self._spare: list[Array] = []

    def take(self) -> Array:
        try:
            return self._spare.pop()
        except IndexError:
            return np.empty(self._shape)

    def drop(self) -> None:
        """Free what nobody has, before a matrix of the same size that is no work array."""
        self._spare.clear()

    def lend(self, buffer: Array, borrower: object) -> None:
        """Take ``buffer`` back when ``borrower`` is garbage."""
        weakref.finalize(borrower, self._give_back, buffer).atexit = False

    def _give_back(self, buffer: Array) -> None:
        if len(self._spare) < MOST_SPARE and buffer.size <= LARGEST_SPARE:
            self._spare.append(buffer)
