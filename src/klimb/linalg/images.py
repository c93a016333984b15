"""Operators for large sparse models: what images are measured with, and what makes them sparse.

An image of any number of axes is a vector here, in NumPy's order (``image.ravel()``). Every operator offers
``times`` and ``transpose_times`` for one vector or for the columns of a matrix; ``stack`` puts operators below each
other. All know the squares of their entries as far as ``gram_diagonal`` and ``row_norms_squared`` need them, because
these are transforms again.

>>> import numpy as np
>>> B = stack([gradients((8, 8)), wavelet((8, 8), "haar", levels=2)])
>>> image = np.outer(np.arange(8.0), np.ones(8))
>>> B.shape, float(np.abs(B.times(image.ravel())[:112]).sum())
((176, 64), 56.0)
"""

from collections.abc import Iterable, Sequence
from functools import cached_property
from math import comb, prod
from typing import Any

import numpy as np
import numpy.typing as npt

from klimb.errors import InputError, require
from klimb.linalg.operators import Operator, SparseOperator, as_operator
from klimb.numerics.arrays import Array, ArrayLike, Index, Mask, as_float
from klimb.numerics.lazy import scipy_fft, scipy_sparse

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
    known = {"haar": 1} | {f"db{k}": k for k in range(1, _MOST_MOMENTS + 1)}
    require(str(name) in known, f'wavelet must be "haar" or "db1" to "db{_MOST_MOMENTS}"',
            repr(name), "Choose one of these.")
    return Wavelet(daubechies(known[str(name)]), grid, int(chosen))


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
    """Daubechies' orthonormal low-pass filter with so many vanishing moments, by spectral factorisation."""
    zeros: list[complex] = []
    for y in np.roots([comb(moments - 1 + k, k) for k in reversed(range(moments))]):
        pair = np.roots([1.0, 4.0 * y - 2.0, 1.0])  # y = (2 - z - 1/z) / 4
        zeros.append(complex(pair[np.argmin(np.abs(pair))]))
    filter_ = np.real(np.poly([*zeros, *([-1.0] * moments)]))
    return np.asarray(filter_ * (np.sqrt(2.0) / filter_.sum()))


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


Shape = tuple[int, ...]
Spectrum = npt.NDArray[np.complex128]
_ROWS_AT_A_TIME = 256


def _spectrum(images: Array) -> Spectrum:
    """Half of the discrete Fourier transform of real images, one per leading entry."""
    return np.asarray(scipy_fft.rfftn(images, axes=range(1, images.ndim)))


def _from_spectrum(half: Spectrum, shape: Shape) -> Array:
    return np.asarray(scipy_fft.irfftn(half, s=shape, axes=range(1, half.ndim)))


def _as_images(U: Array, shape: Shape) -> Array:
    """The columns of ``U`` (or ``U`` itself) as images, one per leading entry, each of them contiguous."""
    if U.ndim == 1:
        return np.ascontiguousarray(U).reshape(1, *shape)
    turned = np.empty(U.shape[::-1])
    for begin in range(0, len(U), _ROWS_AT_A_TIME):  # in pieces that stay in the cache: five times faster
        turned[:, begin : begin + _ROWS_AT_A_TIME] = U[begin : begin + _ROWS_AT_A_TIME].T
    return turned.reshape(-1, *shape)


def _as_columns(images: Array, like: Array) -> Array:
    """Images back as columns, or as one vector where ``like`` is one."""
    flat = images.reshape(len(images), -1)
    return flat[0] if like.ndim == 1 else np.ascontiguousarray(flat.T)


class PartialFourier(Operator):
    """Chosen unitary Fourier coefficients of a real image, real parts first; the half not stored is conjugate."""

    def __init__(self, mask: Mask) -> None:
        self.grid = tuple(mask.shape)
        index = np.nonzero(mask)
        n_half = self.grid[-1] // 2 + 1
        mirrored = index[-1] >= n_half
        stored = tuple(np.where(mirrored, (-k) % n, k) for k, n in zip(index, self.grid, strict=True))
        self._half_grid = (*self.grid[:-1], n_half)
        self._at = np.ravel_multi_index(stored, self._half_grid)
        self._sign = np.where(mirrored, -1.0, 1.0)  # of the imaginary part
        # The inverse transform of real data counts every column but the first and the middle one twice.
        twice = (stored[-1] > 0) & (2 * stored[-1] != self.grid[-1])
        self._share = np.where(twice, 0.5, 1.0)
        self._doubled = tuple((2 * k) % n for k, n in zip(index, self.grid, strict=True))
        self._size = prod(self.grid)
        self.shape = (2 * len(self._at), self._size)

    def _times(self, U: Array) -> Array:
        half = _spectrum(_as_images(U, self.grid)).reshape(-1, prod(self._half_grid))
        values = half[:, self._at] / np.sqrt(self._size)
        return _as_columns(np.concatenate([values.real, self._sign * values.imag], axis=1), U)

    def _transpose_times(self, W: Array) -> Array:
        rows = _as_images(W, (self.shape[0],))
        n = len(self._at)
        values = (rows[:, :n] + 1j * (self._sign * rows[:, n:])) * (self._share * np.sqrt(self._size))
        half = np.zeros((len(rows), prod(self._half_grid)), dtype=np.complex128)
        for spectrum, value in zip(half, values, strict=True):
            spectrum += np.bincount(self._at, value.real, len(spectrum))  # a mirror pair shares one entry
            spectrum += 1j * np.bincount(self._at, value.imag, len(spectrum))
        return _as_columns(_from_spectrum(half.reshape(-1, *self._half_grid), self.grid), W)

    # The entries are cos and -sin of an angle, over sqrt(size): their squares are 1/2 and half a cosine of twice it.

    def gram_diagonal(self, gamma: Array) -> Array:
        n = len(self._at)
        even, odd = 0.5 * (gamma[:n] + gamma[n:]), 0.5 * (gamma[:n] - gamma[n:])
        spread = np.zeros(self.grid)
        np.add.at(spread, self._doubled, odd)
        return np.asarray((even.sum() + np.fft.fftn(spread).real.ravel()) / self._size)

    def row_norms_squared(self, scale: Array) -> Array:
        odd = 0.5 * np.fft.fftn(scale.reshape(self.grid)).real[self._doubled]
        return np.asarray(np.concatenate([0.5 * scale.sum() + odd, 0.5 * scale.sum() - odd]) / self._size)


class Convolution(Operator):
    """Convolution with a kernel whose middle stays where it is; at the border periodic, or zeros outside."""

    def __init__(self, kernel: Array, grid: Shape, periodic: bool) -> None:
        self.grid, self._periodic = grid, periodic
        size = prod(grid)
        self.shape = (size, size)
        extra = (0,) * len(grid) if periodic else tuple(n // 2 for n in kernel.shape)
        self._padded = grid if periodic else tuple(
            int(scipy_fft.next_fast_len(n + e, real=True)) for n, e in zip(grid, extra, strict=True))
        self._inside = (slice(None), *(slice(0, n) for n in grid))
        # The kernel on the grid, its middle at the origin; what leaves on one side comes in on the other.
        self._placed = np.zeros((1, *self._padded))
        index = np.meshgrid(*((np.arange(n) - n // 2) % size for n, size in
                              zip(kernel.shape, self._padded, strict=True)), indexing="ij")
        np.add.at(self._placed[0], tuple(index), kernel)
        self._response = _spectrum(self._placed)[0]

    @cached_property
    def _squared_response(self) -> Spectrum:
        return np.asarray(_spectrum(self._placed**2)[0])

    def _filtered(self, U: Array, response: Spectrum) -> Array:
        images = _as_images(U, self.grid)
        if not self._periodic:
            inner = images
            images = np.zeros((len(inner), *self._padded))
            images[self._inside] = inner
        whole = _from_spectrum(_spectrum(images) * response, self._padded)
        return _as_columns(np.ascontiguousarray(whole[self._inside]), U)

    def _times(self, U: Array) -> Array:
        return self._filtered(U, self._response)

    def _transpose_times(self, W: Array) -> Array:
        return self._filtered(W, self._response.conj())

    def gram_diagonal(self, gamma: Array) -> Array:
        return np.maximum(self._filtered(gamma, self._squared_response.conj()), 0.0)

    def row_norms_squared(self, scale: Array) -> Array:
        return np.maximum(self._filtered(scale, self._squared_response), 0.0)


class Wavelet(Operator):
    """An orthonormal periodic wavelet transform along every axis, ``levels`` times on the coarse part.

    ``low`` is the low-pass filter of even length; coefficients stand as in nested corners, coarse first, flattened.
    """

    def __init__(self, low: Array, grid: Shape, levels: int) -> None:
        self.grid, self._levels = grid, levels
        size = prod(grid)
        self.shape = (size, size)
        number = np.arange(size).reshape(grid)
        # Of every level: where its image is in the vector, and a sparse matrix for each axis with its transpose.
        self._corners = [number[tuple(slice(0, n >> level) for n in grid)].ravel() for level in range(levels)]
        steps = [_along_axes(low, tuple(n >> level for n in grid)) for level in range(levels)]
        self._forward = steps
        self._backward = [[step.T.tocsr() for step in reversed(level)] for level in steps]

    def _times(self, U: Array) -> Array:
        block = np.ascontiguousarray(U)
        for corner, steps in zip(self._corners, self._forward, strict=True):  # the first level makes a new array
            block = _apply(steps, corner, block)
        return block

    def _transpose_times(self, W: Array) -> Array:
        block = np.array(W, order="C") if self._levels > 1 else np.ascontiguousarray(W)
        for corner, steps in zip(reversed(self._corners), reversed(self._backward), strict=True):
            block = _apply(steps, corner, block)
        return block

    # Each band is one wavelet, shifted: squared entries act as a convolution with the square of that wavelet.

    @cached_property
    def _bands(self) -> list[tuple[tuple[slice, ...], int, Spectrum]]:
        """(where its coefficients are, its stride, the spectrum of its squared wavelet) of every band."""
        corners: list[tuple[tuple[slice, ...], int]] = []
        for level in range(1, self._levels + 1):
            for kind in np.ndindex(*(2,) * len(self.grid)):
                if any(kind) or level == self._levels:
                    where = tuple(slice(k * (n >> level), (k + 1) * (n >> level))
                                  for k, n in zip(kind, self.grid, strict=True))
                    corners.append((where, 1 << level))
        bands = []
        for where, stride in corners or [(tuple(slice(0, n) for n in self.grid), 1)]:
            unit = np.zeros(self.grid)
            unit[tuple(part.start for part in where)] = 1.0
            wavelet = self._transpose_times(unit.ravel()).reshape(self.grid)
            bands.append((where, stride, _spectrum(wavelet[None] ** 2)[0]))
        return bands

    def gram_diagonal(self, gamma: Array) -> Array:
        weights = gamma.reshape(self.grid)
        total: Any = 0.0
        for where, stride, squared in self._bands:
            spread = np.zeros(self.grid)
            spread[(slice(None, None, stride),) * len(self.grid)] = weights[where]
            total = total + _spectrum(spread[None])[0] * squared
        return np.maximum(_from_spectrum(total[None], self.grid).ravel(), 0.0)

    def row_norms_squared(self, scale: Array) -> Array:
        spectrum = _spectrum(scale.reshape(1, *self.grid))[0]
        norms = np.empty(self.grid)
        for where, stride, squared in self._bands:
            whole = _from_spectrum((spectrum * squared.conj())[None], self.grid)[0]
            norms[where] = whole[(slice(None, None, stride),) * len(self.grid)]
        return np.maximum(norms.ravel(), 0.0)


def _along_axes(low: Array, grid: Shape) -> list[Any]:
    """Sparse matrices that split an image into low and high halves along each axis in turn: sum_k filter_k x_(2n + k).

    The one of an axis acts on the image reshaped to (entries up to this axis, entries after it): contiguous memory.
    """
    high = low[::-1] * (-1.0) ** np.arange(len(low))
    steps = []
    for axis, n in enumerate(grid):
        columns = (2 * np.arange(n // 2)[:, None] + np.arange(len(low))) % n
        values = np.concatenate([np.tile(low, n // 2), np.tile(high, n // 2)])
        entries = (values, np.tile(columns.ravel(), 2), len(low) * np.arange(n + 1))
        split: Any = scipy_sparse.csr_array(entries, shape=(n, n))
        split.sum_duplicates()  # where the filter is longer than the axis
        repeated = scipy_sparse.eye_array(prod(grid[:axis]))
        steps.append(scipy_sparse.kron(repeated, split, format="csr"))
    return steps


def _apply(steps: list[Any], corner: Index, block: Array) -> Array:
    """The steps of one level, on the part of the block that is the image of this level."""
    whole = len(corner) == len(block)
    part = block if whole else block[corner]
    for step in steps:
        part = (step @ part.reshape(step.shape[1], -1)).reshape(part.shape)
    if whole:
        return part
    block[corner] = part
    return block
