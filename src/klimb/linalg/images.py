"""Operators for large sparse models: what images are measured with, and what makes them sparse.

An image of any number of axes is a vector here, in NumPy's order (``image.ravel()``). Every operator offers
``times`` and ``transpose_times`` for one vector or for the columns of a matrix; ``stack`` puts operators below each
other.

>>> import numpy as np
>>> B = stack([gradients((8, 8)), wavelet((8, 8), "haar", levels=2)])
>>> image = np.outer(np.arange(8.0), np.ones(8))
>>> B.shape, float(np.abs(B.times(image.ravel())[:112]).sum())
((176, 64), 56.0)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import comb, prod
from typing import Any

import numpy as np

from klimb.errors import InputError, require
from klimb.linalg.operators import Operator, SparseOperator, as_operator
from klimb.linalg.operators.transforms import Convolution, PartialFourier, Wavelet
from klimb.numerics.arrays import Array, ArrayLike, as_float
from klimb.numerics.lazy import scipy_sparse

__all__ = ["Operator", "convolution", "gradients", "identity", "partial_fourier", "selection", "stack", "wavelet"]

_MOST_MOMENTS = 10


def identity(shape: int | Sequence[int]) -> Operator:
    """The identity on a vector of that length, or on an image of that shape.

    >>> identity((2, 2)).times(np.arange(4.0)).tolist()
    [0.0, 1.0, 2.0, 3.0]
    """
    return SparseOperator(scipy_sparse.eye_array(prod(_grid(shape)), format="csr"))


def selection(mask: ArrayLike) -> Operator:
    """The entries of an image where ``mask`` holds: an image with holes.

    >>> selection([[True, False], [False, True]]).times(np.arange(4.0)).tolist()
    [0.0, 3.0]
    """
    chosen = np.flatnonzero(_mask(mask))
    ones, rows = np.ones(len(chosen)), np.arange(len(chosen) + 1)
    return SparseOperator(scipy_sparse.csr_array((ones, chosen, rows), shape=(len(chosen), np.size(mask))))


def gradients(shape: int | Sequence[int], *, periodic: bool = False) -> Operator:
    """Differences between neighbours along every axis, one axis after the other; ``periodic`` joins the ends.

    >>> gradients((2, 3)).times(np.array([0.0, 1.0, 3.0, 10.0, 11.0, 13.0])).tolist()  # down, then across
    [10.0, 10.0, 10.0, 1.0, 2.0, 1.0, 2.0]
    """
    grid = _grid(shape)
    if all(n == 1 for n in grid):
        raise InputError("gradients need an axis with at least 2 entries", f"shape {grid}", "Check the shape.")
    number = np.arange(prod(grid)).reshape(grid)
    pairs = []
    for axis, n in enumerate(grid):
        # The ends of an axis of 2 are neighbours already.
        first = number if periodic and n > 2 else np.delete(number, n - 1, axis)
        second = np.roll(number, -1, axis) if periodic and n > 2 else np.delete(number, 0, axis)
        pairs.append(np.stack([first.ravel(), second.ravel()], axis=1))
    columns = np.concatenate(pairs)
    signs, starts = np.tile([-1.0, 1.0], len(columns)), 2 * np.arange(len(columns) + 1)
    return SparseOperator(scipy_sparse.csr_array((signs, columns.ravel(), starts), shape=(len(columns), prod(grid))))


def partial_fourier(mask: ArrayLike) -> Operator:
    """The unitary discrete Fourier coefficients of a real image where ``mask`` holds: real parts, then imaginary parts.

    ``mask`` has the shape of the image and the order of ``np.fft.fftn`` (frequency 0 first; ``np.fft.ifftshift`` brings
    a picture of the spectrum into it). A frequency and its mirror image are the same number twice, so measure one.

    >>> mask = np.zeros((4, 4), dtype=bool)
    >>> mask[0, 0] = mask[1, 2] = True
    >>> image = np.random.default_rng(0).standard_normal((4, 4))
    >>> found, whole = partial_fourier(mask).times(image.ravel()), np.fft.fft2(image, norm="ortho")
    >>> bool(np.allclose(found, [whole[0, 0].real, whole[1, 2].real, whole[0, 0].imag, whole[1, 2].imag]))
    True
    """
    return PartialFourier(_mask(mask))


def convolution(kernel: ArrayLike, shape: int | Sequence[int], *, boundary: str = "periodic") -> Operator:
    """Blur by a ``kernel`` whose middle stays in place; outside the image is its periodic image, or "zero".

    >>> convolution([0.25, 0.5, 0.25], 4, boundary="zero").times(np.array([1.0, 0.0, 4.0, 0.0])).round(12).tolist()
    [0.5, 1.25, 2.0, 1.0]
    """
    grid = _grid(shape)
    values = as_float(kernel, "kernel")
    require(values.ndim == len(grid) and values.size != 0, f"kernel must have {len(grid)} axes, as the image has",
            f"shape {values.shape}", "Add axes of length 1 where the blur does not act.")
    if boundary not in ("periodic", "zero"):
        raise InputError('boundary must be "periodic" or "zero"', repr(boundary), "Choose what lies outside the image.")
    if boundary == "zero" and any(k > 2 * n for k, n in zip(values.shape, grid, strict=True)):
        raise InputError("a kernel cannot be more than twice as large as the image", f"shape {values.shape}",
                         "Cut what no pixel sees.")
    return Convolution(values, grid, boundary == "periodic")


def wavelet(shape: int | Sequence[int], name: str = "haar", *, levels: int | None = None) -> Operator:
    """An orthonormal periodic wavelet transform: "haar" or Daubechies' "db2" ... "db10" (by vanishing moments).

    Every axis is halved ``levels`` times (default: as often as its length allows, at most 4 times).

    >>> W = wavelet(8, "db2", levels=2)
    >>> x = np.arange(8.0)
    >>> bool(np.allclose(W.transpose_times(W.times(x)), x))
    True
    """
    grid = _grid(shape)
    halvings = min((n & -n).bit_length() - 1 for n in grid)  # powers of two in the lengths
    chosen = min(4, halvings) if levels is None else levels
    if not _is_count(chosen) or chosen > halvings:
        raise InputError(f"wavelet needs 1 <= levels <= {halvings} for the shape {grid}" if halvings else
                         "wavelet needs an even number of entries along every axis", f"{levels} and shape {grid}",
                         "Every axis is halved once per level: pad the image or take fewer levels.")
    return Wavelet(daubechies(_moments(name)), grid, int(chosen))


def stack(parts: Sequence[Any]) -> Operator:
    """Operators, arrays or sparse matrices of equal width, one below the other.

    >>> stack([np.eye(2), [[1.0, 1.0]]]).times(np.array([2.0, 3.0])).tolist()
    [2.0, 3.0, 5.0]
    """
    given: Any = parts  # whatever it was called with
    listed = list(given) if isinstance(given, Iterable) else []
    require(listed, "stack needs a list of operators", repr(parts), "Pass [A, B, ...].")
    return as_operator(listed, "stack")


def daubechies(moments: int) -> Array:
    """The low-pass filter of Daubechies' orthonormal wavelet with so many vanishing moments, of twice that length.

    By spectral factorisation: the half of the zeros of the symmetric product filter that lies inside the unit circle.
    """
    zeros: list[complex] = []
    for y in np.roots([comb(moments - 1 + k, k) for k in reversed(range(moments))]):
        pair = np.roots([1.0, 4.0 * y - 2.0, 1.0])  # y = (2 - z - 1/z) / 4
        zeros.append(complex(pair[np.argmin(np.abs(pair))]))
    filter_ = np.real(np.poly([*zeros, *([-1.0] * moments)]))
    return np.asarray(filter_ * (np.sqrt(2.0) / filter_.sum()))


def _moments(name: Any) -> int:
    known = {"haar": 1} | {f"db{k}": k for k in range(1, _MOST_MOMENTS + 1)}
    if not isinstance(name, str) or name not in known:
        raise InputError(f'wavelet must be "haar" or "db1" to "db{_MOST_MOMENTS}"', repr(name), "Choose one of these.")
    return known[name]


def _grid(shape: int | Sequence[int]) -> tuple[int, ...]:
    """A shape as a tuple of positive integers."""
    try:
        grid: tuple[Any, ...] = tuple(shape)  # type: ignore[arg-type]
    except TypeError:  # one number, or something that is none: see below
        grid = (shape,)
    if not grid or not all(_is_count(n) for n in grid):
        raise InputError("shape must be a positive integer or several", repr(shape), "Pass image.shape.")
    return tuple(int(n) for n in grid)


def _is_count(n: Any) -> bool:
    return isinstance(n, (int, np.integer)) and not isinstance(n, bool) and int(n) >= 1


def _mask(mask: ArrayLike) -> Any:
    chosen = np.asarray(mask)
    if chosen.dtype != np.bool_ or chosen.ndim == 0:
        raise InputError("mask must be an array of True and False with the shape of the image",
                         f"{chosen.dtype} of shape {chosen.shape}", "Write mask > 0, or mask.astype(bool).")
    require(chosen.any(), "mask must choose at least one entry", "none", "Check how the mask was made.")
    return chosen
