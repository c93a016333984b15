"""BLAS and LAPACK on blocks of a matrix in Fortran order: in place, and while other threads of Python run.

SciPy's own wrappers copy a block that is not contiguous, and hold the interpreter until they are done. The same
routines are published for Cython, and called here at their addresses.
"""

import ctypes
from functools import cache
from typing import Any

import numpy as np

from klimb.numerics.arrays import Array


@cache
def _routine(name: str) -> Any:
    from scipy.linalg import cython_blas, cython_lapack

    capsule, api = (cython_lapack if name[1:] == "potrf" else cython_blas).__pyx_capi__[name], ctypes.pythonapi
    named = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(("PyCapsule_GetName", api))
    address = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", api))
    return ctypes.CFUNCTYPE(None)(address(capsule, named(capsule)))


def _call(name: str, *arguments: Any) -> None:
    """Everything by reference, arrays with their leading dimension; 32-bit routines read the low words of integers."""
    size = next(one.itemsize for one in arguments if isinstance(one, np.ndarray))
    letter, real = ("s", ctypes.c_float) if size == 4 else ("d", ctypes.c_double)
    kinds: dict[type, Any] = {bytes: ctypes.c_char, int: ctypes.c_int64, float: real}
    given: list[Any] = []
    for one in arguments:
        if isinstance(one, np.ndarray):
            assert one.itemsize == size
            assert one.strides[0] == size or len(one) == 1
            leading = ctypes.c_int64(max(one.strides[1] // size, len(one)))
            given += [ctypes.c_void_p(one.ctypes.data), ctypes.byref(leading)]
        else:
            given.append(ctypes.byref(kinds[type(one)](one) if type(one) in kinds else one))
    _routine(letter + name)(*given)


def factorise(A: Array) -> int:
    """The lower triangle of A becomes its Cholesky factor; the order of the minor that is not positive, or 0."""
    info = ctypes.c_int64(0)
    _call("potrf", b"L", len(A), A, info)
    return info.value


def times_triangle(triangle: Array, B: Array, scale: float = 1.0, how: bytes = b"LLN") -> None:
    """B becomes scale T B or scale B T: the side (L, R), which triangle counts (L, U), whether it is transposed (N, T).
    """
    _call("trmm", how[:1], how[1:2], how[2:], b"N", *B.shape, scale, triangle, B)


def solve_right(lower: Array, B: Array) -> None:
    """B becomes B L^-T."""
    _call("trsm", b"R", b"L", b"T", b"N", *B.shape, 1.0, lower, B)


def add_square(B: Array, C: Array, scale: float = 1.0) -> None:
    """The lower triangle of C becomes that of C + scale B B'."""
    _call("syrk", b"L", b"N", *B.shape, scale, B, 1.0, C)


def less_product(A: Array, B: Array, C: Array) -> None:
    """C becomes C - A B'."""
    _call("gemm", b"N", b"T", *C.shape, A.shape[1], -1.0, A, B, 1.0, C)
