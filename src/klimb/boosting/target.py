"""The target: a log density that a user wrote, made safe to call with many points at once.

NaN, +inf, a wrong shape or an exception become errors that name the point; -inf marks a point outside the support.
"""

import copy
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from klimb.boosting.transforms import TransformedBlocks
from klimb.errors import InputError, KlimbError, require
from klimb.numerics.arrays import Array

LogDensity = Callable[[Any], Any]
STEP = 1e-6  # of a forward difference, in units of the scale of a coordinate
SHOWN = 6  # coordinates of a point that a message shows


def recognise(log_density: LogDensity, point: Array) -> tuple[LogDensity, LogDensity] | None:
    """Batched value and gradient of a JAX function of one point, else None; JAX is never imported for it."""
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
        value, slope = batched(jax, lambda x: jax.numpy.reshape(log_density(x), ()))
        try:
            slope(point)
        except Exception:  # it works on numbers, with NumPy's functions or Python's branches, and cannot be traced
            return None
    return value, slope


def batched(jax: Any, scalar: LogDensity) -> tuple[LogDensity, LogDensity]:
    """A JAX function of one point and its gradient, compiled, for points or batches of NumPy."""
    return _numpy(jax, jax.jit(jax.vmap(scalar))), _numpy(jax, jax.jit(jax.vmap(jax.grad(scalar))))


def _numpy(jax: Any, function: LogDensity) -> LogDensity:
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


class TargetError(KlimbError, RuntimeError):
    """The user's function raised an exception; the message names the point, the cause is chained."""


class Target:
    """log p in the unconstrained coordinates u that the mixture lives in: log f(x(u)) + log |dx/du|.

    ``n_values`` counts points at which the log density was asked for, differences included; ``n_gradients`` counts
    points at which the user's own gradient was asked for.
    """

    def __init__(self, log_density: LogDensity, dim: int, *, gradient: LogDensity | None = None,
                 coordinates: TransformedBlocks | None = None, near: Array | None = None,
                 sparing: bool = False) -> None:
        given: dict[str, Any] = {"log_density": log_density, "gradient": gradient}
        for name, function in given.items():
            if not callable(function) and (function is not None or name == "log_density"):
                raise InputError(f"{name} must be a function", type(function).__name__,
                                 "Pass a callable that takes a point of length dim or an n x dim batch.")
        self.coordinates = coordinates or TransformedBlocks.of(None, dim)
        self.n_values = self.n_gradients = 0
        self.dim = self.coordinates.n_free  # of u
        point = np.zeros(self.dim) if near is None else np.asarray(near, dtype=np.float64)
        probes = self._probes(point)
        if gradient is None and not sparing:  # to find out takes evaluations
            found = recognise(log_density, probes[0])
            if found is not None:
                log_density, gradient = found
        self._value, self._gradient = log_density, gradient
        self._model: Callable[[Array], Array] | None = None
        if sparing:
            self.batched = not self._takes_points(probes[0])
            return
        self.batched = self._takes_batches(log_density, probes, (), "log_density")
        self._check_repeatable(probes[:1])
        self._slopes_batched = gradient is not None and self._takes_batches(gradient, probes, (dim,), "gradient")

    def values(self, U: Array, *, far: bool = False) -> Array:
        """log p at the rows of ``U``, never NaN or +inf; at scouts, ``far`` out, NaN (an overflow) counts as -inf."""
        if self._model is not None:
            return self._model(U)
        X, log_jacobian = self.coordinates.to_user(U)
        raw = self._call(self._value, X, self.batched, (), "log_density")
        self.n_values += len(X)
        if far:
            raw = np.where(np.isnan(raw), -np.inf, raw)
        bad = np.isnan(raw) | (raw == np.inf)
        if bad.any():
            i = int(np.argmax(bad))
            raise InputError("log_density must be a number below infinity at every point (or -inf outside the support)",
                             f"{raw[i]} at {show(X[i])}",
                             "Return -inf outside the support; work with logs to avoid overflow.")
        return np.asarray(raw + log_jacobian)

    def with_slopes(self, U: Array, scale: Array, *, far: bool = False) -> tuple[Array, Array]:
        """log p and its gradient (0 where log p is -inf) at the rows of ``U``; ``scale`` is the unit of differences."""
        value = self.values(U, far=far)
        inside = np.isfinite(value)
        slope = np.zeros_like(U)
        if self._gradient is None:
            slope[inside] = self._differences(U[inside], value[inside], np.broadcast_to(scale, U.shape)[inside])
            return value, slope
        X, _ = self.coordinates.to_user(U[inside])
        raw = self._call(self._gradient, X, self._slopes_batched, (X.shape[1],), "gradient")
        self.n_gradients += len(X)
        bad = ~np.isfinite(raw).all(axis=1)
        if bad.any():
            i = int(np.argmax(bad))
            raise InputError("gradient must be finite wherever log_density is", f"{raw[i]} at {show(X[i])}",
                             "Check the gradient, or leave it out: finite differences are used then.")
        slope[inside] = self.coordinates.pull_back(U[inside], raw)
        return value, slope

    def hessian_at(self, u: Array, scale: Array) -> Array:
        """The Hessian of log p at one point, by differences of slopes."""
        h = np.maximum((1e-5 if self._gradient is not None else 1e-3) * scale, 1e-12 * np.abs(u))
        return differences(lambda points: self.with_slopes(points, scale)[1], u, h)

    def within(self, coordinates: TransformedBlocks) -> "Target":
        """The same function in other coordinates; evaluations go on being counted."""
        moved = copy.copy(self)
        moved.coordinates, moved.dim = coordinates, coordinates.n_free
        return moved

    def modelled(self, model: Callable[[Array], Array]) -> "Target":
        """A model of log p in place of the function, which is not called any more."""
        moved = copy.copy(self)
        moved._model = model
        return moved

    def _differences(self, U: Array, value: Array, scale: Array) -> Array:
        """Forward differences; backwards where a step leaves the support."""
        n, dim = U.shape
        if n == 0:
            return np.zeros((0, dim))
        h = np.maximum(STEP * scale, 4e-9 * np.abs(U))
        moved = U[:, None, :] + h[:, :, None] * np.eye(dim)
        h = np.einsum("ndd->nd", moved) - U  # what was really added
        slope = (self.values(moved.reshape(-1, dim)).reshape(n, dim) - value[:, None]) / h
        row, column = np.nonzero(~np.isfinite(slope))
        if len(row):
            back = U[row].copy()
            back[np.arange(len(row)), column] -= h[row, column]
            one_sided = (value[row] - self.values(back)) / h[row, column]
            slope[row, column] = np.where(np.isfinite(one_sided), one_sided, 0.0)
        return np.asarray(slope)

    def _probes(self, point: Array) -> Array:
        """Points near the start, in the user's coordinates, more of them than dimensions so that shapes tell apart."""
        n = self.dim + 3
        nudge = 1e-3 * (1.0 + np.abs(point)) * np.cos(np.outer(np.arange(n), 1.0 + np.arange(self.dim)))
        nudge[0] = 0.0
        return self.coordinates.to_user(point + nudge)[0]

    def _takes_batches(self, function: LogDensity, probes: Array, tail: tuple[int, ...], name: str) -> bool:
        """Whether ``function`` of an n x dim array gives n answers that are those of the points one by one."""
        n = len(probes)
        self.n_values += n + 1 if not tail else 0
        self.n_gradients += n + 1 if tail else 0
        try:
            with np.errstate(all="ignore"):
                answer = function(probes)
        except Exception:  # a function of one point may stumble over a batch in any way
            answer = ()
        try:
            many = _numbers(answer, name)
        except ValueError as error:  # text and the like; what is wrong with it is said at one point
            if isinstance(error, InputError):
                raise
            many = np.empty(0)
        batch = many.shape == (n, *tail) or (not tail and many.shape == (n, 1))
        try:
            with np.errstate(all="ignore"):
                one = _numbers(function(probes[1].copy()), name)
        except InputError:
            raise
        except Exception as error:
            if batch:  # a function of batches only
                return True
            raise TargetError(f"{name} must take a point of length {probes.shape[1]} or a batch of shape (n, "
                              f"{probes.shape[1]}); it raised {type(error).__name__}: {error} at {show(probes[1])}. "
                              "Call it on such a point yourself to see where.") from error
        single = one.size == int(np.prod(tail))
        wanted = "a number" if not tail else f"{tail[0]} numbers"
        require(batch or single, f"{name} must return {wanted} for a point, or one answer per row of a batch",
                f"shape {one.shape} for a point and {many.shape} for {n} points", "Sum over data inside the function.")
        return batch and (not single or bool(np.allclose(many.reshape(n, -1)[1], one.ravel(), rtol=1e-6, atol=1e-9,
                                                         equal_nan=True)))

    def _takes_points(self, probe: Array) -> bool:
        """Whether the function takes a point, by one call; one that does not is taken for one of batches."""
        self.n_values += 1
        try:
            with np.errstate(all="ignore"):
                return _numbers(self._value(probe.copy()), "log_density").size == 1
        except InputError:
            raise
        except Exception:  # a function of batches may stumble over a point in any way
            return False

    def _check_repeatable(self, probe: Array) -> None:
        """Raise if the function answers differently when it is asked twice."""
        first, second = (self._call(self._value, probe, self.batched, (), "log_density") for _ in range(2))
        self.n_values += 2
        if not np.allclose(first, second, rtol=1e-9, atol=1e-9, equal_nan=True):
            raise InputError("log_density must return the same number whenever it is asked for a point",
                             f"{first[0]} and {second[0]} at {show(probe[0])}",
                             "A random log density (minibatches, Monte Carlo) needs its randomness fixed.")

    def _call(self, function: LogDensity, X: Array, batched: bool, tail: tuple[int, ...], name: str) -> Array:
        n = len(X)
        if n == 0:
            return np.zeros((0, *tail))
        if not batched:
            answers = [_numbers(self._guarded(function, x, name), name) for x in X]
            wrong = [i for i, answer in enumerate(answers) if answer.size != int(np.prod(tail))]
            if wrong:
                raise _wrong_shape(name, X[wrong[0]], answers[wrong[0]].shape)
            return np.stack([answer.reshape(tail) for answer in answers])
        answer = _numbers(self._guarded(function, X, name), name)
        if answer.shape != (n, *tail) and answer.shape != (n, 1):
            raise _wrong_shape(name, X[0], answer.shape)
        return answer.reshape(n, *tail)

    def _guarded(self, function: LogDensity, X: Array, name: str) -> Any:
        given = X.copy()  # a function that writes into its argument must not move our points
        try:
            with np.errstate(all="ignore"):
                return function(given)
        except KlimbError:
            raise
        except Exception as error:
            point = self._culprit(function, X) if X.ndim == 2 else X
            raise TargetError(f"{name} must return a number at every point (-inf outside the support); it raised "
                              f"{type(error).__name__}: {error} at {show(point)}. "
                              "Return -inf where the density is zero.") from error

    def _culprit(self, function: LogDensity, X: Array) -> Array:
        """The first row of a batch at which ``function`` raises by itself, else the first row."""
        for x in X:
            try:
                with np.errstate(all="ignore"):
                    function(x[None].copy())
            except Exception:
                return np.asarray(x)
        return np.asarray(X[0])


def differences(slopes: Callable[[Array], Array], u: Array, h: Array) -> Array:
    """The Hessian at ``u`` by differences of slopes at rows, ``h`` either way along the axes."""
    ahead, behind = np.split(slopes(np.concatenate([u + np.diag(h), u - np.diag(h)])), 2)
    H = (ahead - behind) / (2.0 * h[:, None])
    return np.asarray(0.5 * (H + H.T))


def show(point: Array) -> str:
    """A point for a message, shortened."""
    shown = ", ".join(f"{value:.6g}" for value in np.ravel(point)[:SHOWN])
    return f"x = [{shown}{', ...' if np.size(point) > SHOWN else ''}]"


def _numbers(answer: Any, name: str) -> Array:
    """What a user's function returned, as float64."""
    require(answer is not None, f"{name} must return numbers", "None", "Did the function forget its return statement?")
    found = np.asarray(answer)
    if np.iscomplexobj(found):
        raise InputError(f"{name} must return real numbers", f"{found.dtype}", "Take the real part if that is meant.")
    return np.asarray(found, dtype=np.float64)


def _wrong_shape(name: str, x: Array, shape: tuple[int, ...]) -> InputError:
    return InputError(f"{name} must return one answer per point", f"shape {shape} at {show(x)}",
                      "Its shape must not depend on where it is called.")
