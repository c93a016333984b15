"""The array types of the library and the checks that every entrance shares."""

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from klimb.errors import InputError

Array: TypeAlias = npt.NDArray[np.float64]
Index: TypeAlias = npt.NDArray[np.intp]
Mask: TypeAlias = npt.NDArray[np.bool_]
ArrayLike: TypeAlias = npt.ArrayLike
LARGEST, TINY = 3e4, 1e-280  # steps in a unit that sixteen bits hold, and steps that are none

# glibc hands freed memory back to the system beyond twice the largest block it has seen freed, and every temporary of
# more than 128 kB then pays for new pages, four times what an addition costs. One large block, never touched, tells it
# once to keep up to 64 MB; other systems take no notice.
np.empty(4_000_000)


def as_float(value: Any, name: str, *, ndim: int | None = None) -> Array:
    """``value`` as a finite float64 array, or an `InputError` that names the first bad entry."""
    if getattr(getattr(value, "dtype", None), "kind", None) in ("m", "M"):
        raise InputError(f"{name} must be an array of numbers", "dates or times, whose unit depends on who stored them",
                         f"Count days, say: ({name} - {name}[0]) / np.timedelta64(1, 'D').")
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        one = ndim == 0
        raise InputError(f"{name} must be {'a number' if one else 'an array of numbers'}",
                         f"{type(value).__name__} ({error})",
                         "Pass a number." if one else "Convert it to a float array first.") from error
    if ndim is not None and array.ndim != ndim:
        raise InputError(f"{name} must have {ndim} dimension{'s' if ndim != 1 else ''}", f"shape {array.shape}",
                         "Reshape it, or check which argument went where.")
    check_finite(array, name)
    return array


def slices(count: int, size: int) -> Iterator[slice]:
    """0..count in consecutive slices of at most ``size``."""
    return (slice(begin, min(begin + size, count)) for begin in range(0, count, size))


def pieces(values: Any, size: int) -> Iterator[Any]:
    """Consecutive parts of an array, of at most ``size`` rows."""
    return (values[part] for part in slices(len(values), size))


def rounded(steps: Array, kind: Any) -> tuple[float, Any]:
    """A unit, and ``steps``, which are overwritten, in it in few digits: for long data that cost much memory."""
    if kind is not np.float16:
        return 1.0, steps.astype(kind, copy=False)
    unit = max(float(steps.max()), -float(steps.min()), TINY) / LARGEST
    steps /= unit
    return unit, steps.astype(kind)


def finite_sum(array: Array) -> bool:
    """Whether the sum is finite, in one pass: then all entries are; if not, one is not, or the sum overflows."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(array.sum()))


def check_finite(array: Array, name: str) -> None:
    """Raise an `InputError` that names the first non-finite entry of ``array``, if there is one."""
    if not finite_sum(array):
        refuse(~np.isfinite(array), array, f"{name} must be finite",
               "Drop or impute missing values first." if array.ndim else "Pass a number.")


def check_finite_csr(matrix: Any, name: str) -> None:
    """The same for the stored entries of a scipy.sparse CSR matrix (explicit zeros may be among them)."""
    if finite_sum(matrix.data):
        return
    bad = np.flatnonzero(~np.isfinite(matrix.data))
    if len(bad):
        where = int(np.searchsorted(matrix.indptr, bad[0], side="right")) - 1, int(matrix.indices[bad[0]])
        got = f"{matrix.data[bad[0]]} at index {where} ({len(bad)} such value{'s' * (len(bad) > 1)})"
        raise InputError(f"{name} must be finite", got, "Drop or impute missing values first.")


def refuse(bad: npt.NDArray[np.bool_], array: Array, expected: str, advice: str) -> None:
    """Raise an `InputError` that names the first entry of ``array`` where ``bad`` holds, if there is one."""
    if not bad.any():
        return
    count = int(np.count_nonzero(bad))
    index = tuple(int(i) for i in np.argwhere(bad)[0])
    place = "" if not index else f" at index {index[0] if len(index) == 1 else index}"
    others = f" ({count} such value{'s' * (count > 1)})" if array.ndim else ""
    raise InputError(expected, f"{float(array[index])}{place}{others}", advice)
