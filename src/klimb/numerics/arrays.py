"""The array types of the library and the checks that every entrance shares."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from klimb.errors import InputError

Array: TypeAlias = npt.NDArray[np.float64]
ArrayLike: TypeAlias = npt.ArrayLike


def as_float(value: Any, name: str, *, ndim: int | None = None) -> Array:
    """``value`` as a finite float64 array, or an `InputError` that names the first bad entry."""
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must be an array of numbers", f"{type(value).__name__} ({error})",
                         "Convert it to a float array first.") from error
    if ndim is not None and array.ndim != ndim:
        raise InputError(f"{name} must have {ndim} dimension{'s' if ndim != 1 else ''}", f"shape {array.shape}",
                         "Reshape it, or check which argument went where.")
    check_finite(array, name)
    return array


def check_finite(array: Array, name: str) -> None:
    """Raise an `InputError` that names the first non-finite entry of ``array``, if there is one."""
    # A sum is one pass without a temporary; it is finite unless an entry is not (or the sum overflows, then we look).
    if np.isfinite(array.sum()):
        return
    bad = ~np.isfinite(array)
    count = int(bad.sum())
    if count == 0:
        return
    index = tuple(int(i) for i in np.argwhere(bad)[0])
    where = index[0] if array.ndim == 1 else index
    others = f"({count} such value{'s' * (count > 1)})"
    raise InputError(f"{name} must be finite", f"{array[index]} at index {where} {others}",
                     "Drop or impute missing values first.")
