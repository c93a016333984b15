"""Functions written with JAX are recognised and differentiated, where JAX is installed and already imported."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from klimb.numerics.arrays import Array

Function = Callable[[Any], Any]


def recognise(log_density: Function, point: Array) -> tuple[Function, Function] | None:
    """Batched value and gradient of a JAX function of one point; None if ``log_density`` is not one.

    Only a program that has imported JAX can hold such a function, so JAX is never imported here for nothing.
    """
    jax = sys.modules.get("jax")
    if jax is None:
        return None
    with double_precision(jax):
        try:
            answer = log_density(jax.numpy.asarray(point))
        except Exception:  # not a function of one JAX array; its own call reports what is wrong with it, if anything
            return None
        if not isinstance(answer, jax.Array) or answer.size != 1:
            return None
        scalar = lambda x: jax.numpy.reshape(log_density(x), ())  # noqa: E731
        value = jax.jit(jax.vmap(scalar))
        slope = jax.jit(jax.vmap(jax.grad(scalar)))
        try:
            slope(jax.numpy.asarray(point)[None])
        except Exception:  # it works on numbers, with NumPy's functions or Python's branches, and cannot be traced
            return None
    return _numpy(jax, value), _numpy(jax, slope)


def _numpy(jax: Any, function: Function) -> Function:
    """``function`` from and to NumPy in double precision. Rows are padded to powers of 2: few shapes to compile for."""

    def call(X: Array) -> Array:
        rows = np.atleast_2d(X)
        n = len(rows)
        padded = np.concatenate([rows, np.repeat(rows[:1], (1 << (n - 1).bit_length()) - n, axis=0)])
        with double_precision(jax):
            answer = np.asarray(function(jax.numpy.asarray(padded)), dtype=np.float64)[:n]
        return np.asarray(answer if np.ndim(X) == 2 else answer[0])

    return call


def double_precision(jax: Any) -> AbstractContextManager[Any]:
    """A context with 64-bit numbers."""
    if jax.config.jax_enable_x64:
        return nullcontext()
    if hasattr(jax, "enable_x64"):
        return jax.enable_x64(True)  # type: ignore[no-any-return]
    from jax.experimental import enable_x64

    return enable_x64()  # type: ignore[no-any-return]
