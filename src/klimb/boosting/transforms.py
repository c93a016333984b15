"""Constrained parameters: maps from the free coordinates u that the mixture lives in to the user's x.

f(x) becomes f(x(u)) |dx/du| in u. A simplex of n shares has n - 1 free coordinates, and densities on it are with
respect to its first n - 1 shares, as in Stan.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np
from scipy.special import expit, log_expit

from klimb.errors import InputError, require
from klimb.numerics.arrays import Array, as_float

EDGE = np.finfo(float).tiny


class Transform(ABC):
    """A map of a block of coordinates: u (n_free of them) to x (``size`` of them)."""
    elementwise: bool = False  # each x is a rising function of its own u
    size: int  # entries of x

    @property
    def n_free(self) -> int:
        """How many entries of u."""
        return self.size

    @abstractmethod
    def forward(self, U: Array) -> tuple[Array, Array]:
        """x and log |dx/du| at the rows of ``U``."""

    @abstractmethod
    def inverse(self, X: Array) -> Array:
        """u at the rows of ``X``."""

    @abstractmethod
    def inside(self, X: Array) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Which rows of ``X`` satisfy the constraint."""

    @abstractmethod
    def pull_back(self, U: Array, slope: Array) -> Array:
        """The gradient in u of f(x(u)) + log |dx/du|, from the gradient ``slope`` of f in x."""


@dataclass(frozen=True)
class Real(Transform):
    """No constraint.

    >>> from klimb.boosting import Positive, Real, boost
    >>> q = boost(lambda x: -0.5 * x[:, 0] ** 2 - x[:, 1], 2, transform=[Real(), Positive()], n_components=1)
    >>> print(np.abs(q.mean.round(1)))  # N(0, 1), and an exponential variable
    [0. 1.]
    """

    size: int = 1
    elementwise = True

    def forward(self, U: Array) -> tuple[Array, Array]:
        return U, np.zeros(len(U))

    def inverse(self, X: Array) -> Array:
        return X

    def inside(self, X: Array) -> np.ndarray[Any, np.dtype[np.bool_]]:
        return np.asarray(np.isfinite(X).all(axis=1))

    def pull_back(self, U: Array, slope: Array) -> Array:
        return slope


class HalfLine(Transform):
    """x on one side of ``edge``: x = edge + sign exp(sign u), a rising function of u."""
    elementwise = True
    sign: float = 1.0
    edge: Any  # where the half line begins, or ends where ``sign`` is -1

    def __post_init__(self) -> None:
        require(np.isfinite(self.edge), f"{type(self).__name__} needs a finite edge", self.edge,
                "Use Real() where there is no edge.")

    def _log_slope(self, U: Array) -> Array:
        """log dx/du, which exp keeps positive and finite."""
        return np.clip(self.sign * U, -700.0, 700.0)

    def forward(self, U: Array) -> tuple[Array, Array]:
        log_slope = self._log_slope(U)
        nearest = np.nextafter(self.edge, self.sign * np.inf)
        X = self.edge + self.sign * np.exp(log_slope)
        return np.maximum(X, nearest) if self.sign > 0 else np.minimum(X, nearest), log_slope.sum(axis=1)

    def inverse(self, X: Array) -> Array:
        return np.asarray(self.sign * np.log(np.maximum(self.sign * (X - self.edge), EDGE)))

    def inside(self, X: Array) -> np.ndarray[Any, np.dtype[np.bool_]]:
        return np.asarray((self.sign * (X - self.edge) > 0).all(axis=1))

    def pull_back(self, U: Array, slope: Array) -> Array:
        return np.asarray(slope * np.exp(self._log_slope(U)) + self.sign)


@dataclass(frozen=True)
class Positive(HalfLine):
    """x > 0 by x = exp(u).

    >>> x, log_jacobian = Positive().forward(np.array([[0.0], [np.log(2.0)]]))
    >>> print(x.ravel(), log_jacobian.round(3))
    [1. 2.] [0.    0.693]
    """

    size: int = 1
    edge = 0.0


@dataclass(frozen=True)
class Above(HalfLine):
    """x > low by x = low + exp(u); ``Above(0.0)`` is `Positive`.

    >>> Above(2.0).forward(np.array([[0.0]]))[0].item()
    3.0
    """

    low: float
    size: int = 1
    edge = property(attrgetter("low"))


@dataclass(frozen=True)
class Below(HalfLine):
    """x < high by x = high - exp(-u), a rising function of u.

    >>> Below(2.0).forward(np.array([[0.0]]))[0].item()
    1.0
    """

    high: float
    size: int = 1
    sign = -1.0
    edge = property(attrgetter("high"))


@dataclass(frozen=True)
class Interval(Transform):
    """low < x < high by a logistic curve.

    >>> Interval(-1.0, 1.0).forward(np.array([[0.0]]))[0].item()
    0.0
    """

    low: float
    high: float
    size: int = 1
    elementwise = True

    def __post_init__(self) -> None:
        if not (np.isfinite(self.low) and np.isfinite(self.high) and self.low < self.high):
            raise InputError("Interval needs finite low < high", f"low = {self.low}, high = {self.high}",
                             "Use Above(low) or Below(high) for a half-line.")

    def forward(self, U: Array) -> tuple[Array, Array]:
        share, rest, width = expit(U), expit(-U), self.high - self.low
        # From the nearer end, so that x never rounds to an end while u is moderate.
        X = np.where(U < 0, self.low + width * share, self.high - width * rest)
        return X, np.sum(np.log(width) + log_expit(U) + log_expit(-U), axis=1)

    def inverse(self, X: Array) -> Array:
        share = np.clip((X - self.low) / (self.high - self.low), EDGE, 1.0 - 1e-16)
        return np.log(share) - np.log1p(-share)

    def inside(self, X: Array) -> np.ndarray[Any, np.dtype[np.bool_]]:
        return np.asarray(((self.low < X) & (self.high > X)).all(axis=1))

    def pull_back(self, U: Array, slope: Array) -> Array:
        share, rest = expit(U), expit(-U)
        return np.asarray(slope * (self.high - self.low) * share * rest + rest - share)


@dataclass(frozen=True)
class Ordered(Transform):
    """x_1 < x_2 < ... < x_n by x_1 = u_1, x_k = x_{k-1} + exp(u_k).

    >>> Ordered(3).forward(np.array([[1.0, 0.0, 0.0]]))[0].tolist()
    [[1.0, 2.0, 3.0]]
    """

    size: int

    @property
    def _gaps(self) -> "TransformedBlocks":
        """Of x_1, and of the steps to the next."""
        return TransformedBlocks([Real(), Positive(self.size - 1)])

    def forward(self, U: Array) -> tuple[Array, Array]:
        gaps, log_jacobian = self._gaps.to_user(U)
        return np.cumsum(gaps, axis=1), log_jacobian

    def inverse(self, X: Array) -> Array:
        return self._gaps.to_free(np.diff(X, axis=1, prepend=0.0))

    def inside(self, X: Array) -> np.ndarray[Any, np.dtype[np.bool_]]:
        return self._gaps.contains(np.diff(X, axis=1, prepend=0.0))

    def pull_back(self, U: Array, slope: Array) -> Array:
        return self._gaps.pull_back(U, np.cumsum(slope[:, ::-1], axis=1)[:, ::-1])  # x_j moves with every u_k, k <= j


@dataclass(frozen=True)
class Simplex(Transform):
    """x_k > 0 that sum to 1, by stick breaking from n - 1 free coordinates; u = 0 is the centre.

    >>> Simplex(4).forward(np.zeros((1, 3)))[0].round(3).tolist()
    [[0.25, 0.25, 0.25, 0.25]]
    """

    size: int

    def __post_init__(self) -> None:
        require(self.size >= 2, "Simplex needs at least 2 shares", self.size, "One share is always 1.")

    @property
    def n_free(self) -> int:
        return self.size - 1

    def _breaks(self, U: Array) -> Array:
        return np.asarray(U - np.log(np.arange(self.size - 1, 0, -1.0)))

    def forward(self, U: Array) -> tuple[Array, Array]:
        t = self._breaks(U)
        log_take, log_leave = log_expit(t), log_expit(-t)
        log_left = np.concatenate([np.zeros((len(U), 1)), np.cumsum(log_leave, axis=1)], axis=1)
        X = np.exp(log_left + np.concatenate([log_take, np.zeros((len(U), 1))], axis=1))
        return X / X.sum(axis=1, keepdims=True), np.sum(log_take + log_leave + log_left[:, :-1], axis=1)

    def inverse(self, X: Array) -> Array:
        left = np.cumsum(X[:, ::-1], axis=1)[:, ::-1]
        t = np.log(np.maximum(X[:, :-1], EDGE)) - np.log(np.maximum(left[:, 1:], EDGE))
        return np.asarray(t + np.log(np.arange(self.size - 1, 0, -1.0)))

    def inside(self, X: Array) -> np.ndarray[Any, np.dtype[np.bool_]]:
        return np.asarray((X > 0).all(axis=1) & (np.abs(X.sum(axis=1) - 1.0) < 1e-8))

    def pull_back(self, U: Array, slope: Array) -> Array:
        t = self._breaks(U)
        X, _ = self.forward(U)
        take, leave = expit(t), expit(-t)
        # d x_k / d t_k = x_k (1 - take_k), and d x_j / d t_k = -x_j take_k for the shares j > k that are left.
        pulled = X * slope
        found = pulled[:, :-1] * leave - take * np.cumsum(pulled[:, ::-1], axis=1)[:, ::-1][:, 1:]
        # log |J| = sum_k log take + log leave + log left_k, and left_k shrinks with every earlier break.
        return np.asarray(found + leave - take - take * np.arange(self.size - 2, -1, -1.0))


class TransformedBlocks:
    """The blocks of x side by side, from ``transform`` of `klimb.boost`."""

    def __init__(self, blocks: Sequence[Transform]) -> None:
        self.blocks = tuple(blocks)
        self.n = sum(block.size for block in self.blocks)
        self.n_free = sum(block.n_free for block in self.blocks)
        self.plain = all(isinstance(block, Real) for block in self.blocks)
        self.elementwise = all(block.elementwise for block in self.blocks)

    @classmethod
    def of(cls, transform: Any, dim: int) -> "TransformedBlocks":
        """From None, one transform for all, or a list of blocks (transforms or their names)."""
        if transform is None:
            return cls([Real(dim)])
        if isinstance(transform, (str, Transform)):
            transform = [transform] * dim if isinstance(transform, str) else [transform]
        names = {"real": Real(), "positive": Positive()}
        blocks = []
        for entry in transform:
            block = names.get(entry) if isinstance(entry, str) else entry
            if not isinstance(block, Transform):
                raise InputError("transform must be a list of Real, Positive, Above, Below, Interval, Ordered or "
                                 "Simplex (or of 'real' and 'positive')", repr(entry), "They are in klimb.boosting.")
            blocks.append(block)
        found = cls(blocks)
        require(found.n == dim, f"the blocks of transform must cover dim = {dim} parameters", found.n,
                "Simplex(n) and Ordered(n) cover n parameters; Real(n), Positive(n) as well.")
        return found

    def _slices(self) -> list[tuple[Transform, slice, slice]]:
        found, i, j = [], 0, 0
        for block in self.blocks:
            found.append((block, slice(i, i + block.n_free), slice(j, j + block.size)))
            i, j = i + block.n_free, j + block.size
        return found

    def to_user(self, U: Array) -> tuple[Array, Array]:
        """x and log |dx/du| at the rows of ``U``."""
        X, total = np.empty((len(U), self.n)), np.zeros(len(U))
        for block, free, user in self._slices():
            X[:, user], part = block.forward(U[:, free])
            total += part
        return X, total

    def to_free(self, X: Array) -> Array:
        """u at the rows of ``X``; an `InputError` names a row that breaks a constraint."""
        outside = ~self.contains(X)
        if outside.any():
            i = int(np.argmax(outside))
            raise InputError("a point must satisfy the constraints of transform", f"{X[i]} at row {i}",
                             "Check the order of the blocks.")
        U = np.empty((len(X), self.n_free))
        for block, free, user in self._slices():
            U[:, free] = block.inverse(X[:, user])
        return U

    def contains(self, X: Array) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Which rows of ``X`` satisfy every constraint."""
        found = np.ones(len(X), dtype=bool)
        for block, _, user in self._slices():
            found &= block.inside(X[:, user])
        return found

    def pull_back(self, U: Array, slope: Array) -> Array:
        """The gradient in u of log f(x(u)) + log |dx/du| from that of log f in x."""
        found = np.empty_like(U)
        for block, free, user in self._slices():
            found[:, free] = block.pull_back(U[:, free], slope[:, user])
        return found


def points(value: Any, name: str, dim: int) -> Array:
    """``value`` as finite rows of length ``dim``."""
    array = np.atleast_2d(as_float(value, name))
    require(array.ndim == 2 and array.shape[1] == dim and len(array) != 0,
            f"{name} must be a point of length {dim} or rows of such points", f"shape {np.shape(value)}", "Check dim.")
    return array
