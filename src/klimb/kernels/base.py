"""The contract of a kernel: covariance functions k(x, z) with named positive parameters.

Parameters are searched by their logarithms; every flat vector (``log_parameters``, gradients, bounds) has the order of
``kernel.free``. Kernels are frozen: methods that change something return a new kernel.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from klimb.errors import InputError, require
from klimb.kernels.parameters import FREE, MOST, Leaf, Parametric, as_points, per_row, positive
from klimb.kernels.tiles import Pairs, fill_rectangle, fill_square, pull_rectangle, pull_square
from klimb.numerics.arrays import Array, ArrayLike, as_float
from klimb.priors import PositivePrior

DEFAULT_BOUNDS = (1e-8, 1e8)  # what a search keeps where the user set no bounds, or this times where it begins
FAR, FAR_VARIANCE = 5.0, 100.0  # times what is typical of the data: from farther away f looks flat, or like noise


class Kernel(Parametric):
    """A covariance function. Inputs are arrays with one row per point; a 1-d array is one column."""

    __array_ufunc__: ClassVar[None] = None  # numpy scalars leave `scalar * kernel` to the kernel

    # -- what a kernel must offer; arguments are clean
    @abstractmethod
    def _pairs(self, X: Array, Z: Array | None, *, inputs: bool = False) -> Pairs:
        """The kernel bound to its inputs (Z None: K(X, X)); ``inputs`` asks for the gradient in the right ones."""

    @abstractmethod
    def _diag(self, X: Array) -> Array:
        """k(x, x) for each row."""

    @abstractmethod
    def _diag_pull(self, X: Array, g: Array) -> Array:
        """The gradient of sum_i g_i k(x_i, x_i) in the logarithm of every parameter, fixed ones included."""

    @abstractmethod
    def _scaled(self, factor: float) -> Kernel:
        """``factor`` times this kernel, without a new parameter."""

    @abstractmethod
    def _typical(self, X: Array, shares: Array, variance: float) -> dict[str, float]:
        """What parameters, by name, may be for such inputs, by their shares, and functions of this variance."""

    @abstractmethod
    def _check_width(self, width: int) -> None:
        """Raise an `InputError` if inputs with this many columns do not fit."""

    def typical(self, X: ArrayLike, variance: float | None = None, weights: ArrayLike | None = None) -> Self:
        """The same kernel in the units of some inputs and of functions of this variance (its own unless given).

        It is the kernel itself where variances are within a factor of 100 of that, and lengthscales neither five times
        as long nor shorter than the distance of neighbours. Parameters that are fixed, have bounds or a prior, and all
        but variances and lengthscales stay as they are. ``weights`` count inputs.

        >>> from klimb.kernels import RBF
        >>> RBF().typical([0.0, 200.0, 0.0, 200.0], variance=9.0)
        RBF(variance=9.0, lengthscale=100.0)
        """
        points = self._inputs(X, "X")
        counts = np.ones(len(points)) if weights is None else per_row(weights, points)
        shares = counts / counts.sum()
        size = float(shares @ self._diag(points)) if variance is None else variance
        found, entries = self._typical(points, shares, size), self._entries()
        open_ = {entry.name: found[entry.name] for entry in entries
                 if entry.rule == FREE and 1.0 / MOST < found.get(entry.name, 0.0) < MOST}
        short = max(FAR, len(points) ** (1.0 / points.shape[1]))  # from there to the distance of neighbours
        ratios = [(entry.name, open_[entry.name] / entry.value) for entry in entries if entry.name in open_]
        far = any(not 1.0 / FAR_VARIANCE <= ratio <= FAR_VARIANCE if "variance" in name else
                  not 1.0 / FAR <= ratio <= short for name, ratio in ratios)
        return self.with_parameters(open_) if far else self

    def gram(self, X: ArrayLike, Z: ArrayLike | None = None, *, out: Array | None = None) -> Array:
        """K(X, X), exactly symmetric, or K(X, Z); written to ``out`` if it is given.

        White noise lives on the diagonal of K(X, X) only: ``gram(X, X)`` has none.

        >>> from klimb.kernels import RBF
        >>> RBF(lengthscale=2.0).gram([0.0, 2.0]).round(3)
        array([[1.   , 0.607],
               [0.607, 1.   ]])
        """
        left = self._inputs(X, "X")
        right = None if Z is None else self._inputs(Z, "Z", left.shape[1])
        shape = (len(left), len(left if right is None else right))
        K = np.empty(shape) if out is None else _checked_out(out, shape)
        pairs = self._pairs(left, right)
        if right is None:
            fill_square(pairs, self._diag(left), K)
        else:
            fill_rectangle(pairs, K)
        return K

    def diag(self, X: ArrayLike) -> Array:
        """The diagonal of ``gram(X)`` without the rest.

        >>> from klimb.kernels import Linear, White
        >>> (Linear() + White(0.5)).diag([1.0, 2.0])
        array([1.5, 4.5])
        """
        return self._diag(self._inputs(X, "X"))

    def gram_vjp(self, X: ArrayLike, G: ArrayLike) -> Array:
        """The gradient of sum_ij G_ij K(X, X)_ij in ``log_parameters``. No n x n temporary is made.

        >>> from klimb.kernels import RBF
        >>> RBF(variance=3.0).gram_vjp([0.0, 1.0], [[1.0, 0.0], [0.0, 1.0]])  # the trace: 2 variance
        array([6., 0.])
        """
        left = self._inputs(X, "X")
        G = _checked_cotangent(G, (len(left), len(left)))
        pairs = self._pairs(left, None)
        pull_square(pairs, G)
        return (pairs.gradient() + self._diag_pull(left, np.diagonal(G)))[self._free_places()]

    def cross_vjp(self, X: ArrayLike, Z: ArrayLike, G: ArrayLike) -> tuple[Array, Array]:
        """The gradients of sum_ij G_ij K(X, Z)_ij in ``log_parameters`` and in ``Z`` (in the shape of Z).

        A Matern12 kernel has no derivative in Z where x = z; it counts as zero there.
        """
        pairs = self._pulled(X, Z, G, inputs=True)
        return pairs.gradient()[self._free_places()], pairs.right_gradient().reshape(np.shape(Z))

    def cross_parameter_vjp(self, X: ArrayLike, Z: ArrayLike, G: ArrayLike) -> Array:
        """The first part of ``cross_vjp`` alone, which is cheaper."""
        return self._pulled(X, Z, G, inputs=False).gradient()[self._free_places()]

    def _pulled(self, X: ArrayLike, Z: ArrayLike, G: ArrayLike, *, inputs: bool) -> Pairs:
        left = self._inputs(X, "X")
        right = self._inputs(Z, "Z", left.shape[1])
        pairs = self._pairs(left, right, inputs=inputs)
        pull_rectangle(pairs, _checked_cotangent(G, (len(left), len(right))))
        return pairs

    def gram_input_vjp(self, X: ArrayLike, G: ArrayLike) -> Array:
        """The gradient of sum_ij G_ij K(X, X)_ij in ``X`` (in the shape of X)."""
        left = self._inputs(X, "X")
        G = _checked_cotangent(G, (len(left), len(left)))
        pairs = self._pairs(left, left, inputs=True)  # k is symmetric, so both slots are served by the right one
        pull_rectangle(pairs, G + G.T)
        return pairs.right_gradient().reshape(np.shape(X))

    def diag_vjp(self, X: ArrayLike, g: ArrayLike) -> Array:
        """The gradient of sum_i g_i k(x_i, x_i) in ``log_parameters``."""
        left = self._inputs(X, "X")
        return self._diag_pull(left, per_row(g, left))[self._free_places()]

    @property
    def log_parameters(self) -> Array:
        """The logarithms of the free parameters.

        >>> from klimb.kernels import RBF
        >>> kernel = RBF(lengthscale=[1.0, 2.0]).fixed("variance")
        >>> kernel.free
        ('lengthscale[0]', 'lengthscale[1]')
        >>> kernel.with_log_parameters(kernel.log_parameters + 1.0).parameters["variance"]
        1.0
        """
        return np.log([entry.value for entry in self._entries() if not entry.rule.fixed])

    def with_log_parameters(self, theta: ArrayLike) -> Self:
        """The same kernel with other values of its free parameters, given by their logarithms."""
        limit = math.log(MOST)
        numbers = as_float(theta, "theta", ndim=1)
        far = np.flatnonzero(np.abs(numbers) > limit)
        if len(far):
            raise InputError(f"log-parameters must lie within {-limit:.0f} and {limit:.0f}",
                             f"{numbers[far[0]]} at index {far[0]}", "Bound the search: see log_bounds.")
        # A logarithm that did not change gives back the very same value: exp(log(x)) is not always x.
        return self._with_free(numbers, "theta", lambda log, old: old if log == np.log(old) else
                               min(max(math.exp(log), 1.0 / MOST), MOST))

    @property
    def log_bounds(self) -> Array:
        """One row (lower, upper) per free parameter, in logarithms; `DEFAULT_BOUNDS` where none were set."""
        rows = []
        for entry in self._entries():
            if not entry.rule.fixed:
                lower, upper = entry.rule.bounds or (DEFAULT_BOUNDS[0] * min(1.0, entry.value),
                                                     DEFAULT_BOUNDS[1] * max(1.0, entry.value))
                rows.append((math.log(max(lower, 1.0 / MOST)), math.log(min(upper, MOST))))
        return np.array(rows).reshape(-1, 2)

    def with_priors(self, priors: Mapping[str, PositivePrior | None] | None = None, /,
                    **more: PositivePrior | None) -> Self:
        """The same kernel with priors for some parameters, by name (None removes one).

        >>> from klimb.kernels import RBF
        >>> from klimb.priors import log_normal
        >>> RBF().with_priors(lengthscale=log_normal(0.5))
        RBF(variance=1.0, lengthscale=1.0).with_priors({'lengthscale': LogNormal(median=0.5, sd=1.0)})
        """
        wanted = {**(priors or {}), **more}
        for name, prior in wanted.items():
            if prior is not None and not isinstance(prior, PositivePrior):
                raise InputError(f"the prior of {name} must be a prior of a positive parameter", f"{prior!r}",
                                 "Use klimb.priors.log_normal, pc_variance or pc_lengthscale.")
        return self._changed(wanted, lambda entry, prior: replace(entry.rule, prior=prior))

    @property
    def priors(self) -> dict[str, PositivePrior | None]:
        """The priors of the free parameters by name; None where it is flat in the logarithm."""
        return {entry.name: entry.rule.prior for entry in self._entries() if not entry.rule.fixed}

    def log_prior(self) -> tuple[float, Array]:
        """The log prior density of the free log-parameters (Jacobian included), and its gradient in them."""
        total, slopes = 0.0, []
        for entry in self._entries():
            if entry.rule.fixed:
                continue
            prior = entry.rule.prior
            slopes.append(0.0 if prior is None else prior.slope(entry.value) + 1.0)
            total += 0.0 if prior is None else prior.log_density(entry.value) + math.log(entry.value)
        return total, np.array(slopes)

    def __add__(self, other: Kernel | float) -> Kernel:
        from klimb.kernels.algebra import Sum

        part = _as_kernel(other)
        return NotImplemented if part is None else Sum((self, part))

    def __radd__(self, other: Kernel | float) -> Kernel:
        if _is_number(other) and other == 0:
            return self  # sum() begins with 0
        part = _as_kernel(other)
        return NotImplemented if part is None else part + self

    def __mul__(self, other: Kernel | float) -> Kernel:
        from klimb.kernels.algebra import Product, with_one_scale

        if isinstance(other, Kernel):
            return with_one_scale(Product((self, other)))
        if not _is_number(other):
            return NotImplemented
        positive(other, "a factor", "a kernel")
        return self._scaled(float(other))

    def __rmul__(self, other: float) -> Kernel:
        return self * other

    def _inputs(self, X: ArrayLike, name: str, width: int | None = None) -> Array:
        array = as_points(X, name)
        require(array.shape[1], f"{name} must have one row per point and at least one column", f"shape {array.shape}",
                "Reshape it; a 1-d array counts as one column.")
        require(width is None or array.shape[1] == width, f"{name} must have as many columns as X ({width})",
                array.shape[1], "Pass points of the same kind.")
        largest = max(array.max(initial=0.0), -array.min(initial=0.0))
        require(largest <= MOST, f"{name} must lie within -{MOST:g} and {MOST:g}", f"{largest} in magnitude",
                "Change the units.")
        self._check_width(array.shape[1])
        return array


@dataclass(frozen=True, repr=False)
class LeafKernel(Leaf, Kernel):
    """A kernel that is not built of others. Its first parameter is its variance, its k(x, x) by default."""

    _clean = staticmethod(positive)

    def __post_init__(self) -> None:
        super().__post_init__()
        owner = type(self).__name__
        if hasattr(self, "active_dims"):
            object.__setattr__(self, "active_dims", _clean_dims(self.active_dims, owner))
            if self.active_dims is not None:
                self._check_vectors(len(self.active_dims), f"{owner} with active_dims={self.active_dims}")

    def _check_width(self, width: int) -> None:
        dims = getattr(self, "active_dims", None)
        if dims is None:
            super()._check_width(width)
        elif max(dims) >= width:
            raise InputError(f"active_dims must lie within 0 and {width - 1}, the columns of X", f"{max(dims)}",
                             "Columns are counted from 0.")

    def _columns(self, X: Array) -> Array:
        """The columns that the kernel sees."""
        dims = getattr(self, "active_dims", None)
        return X if dims is None else X[:, dims]

    def _seen(self, X: Array, Z: Array | None) -> tuple[Array, Array]:
        """The columns of both inputs; twice the same array where Z is None."""
        left = self._columns(X)
        return left, left if Z is None else self._columns(Z)

    def _spread(self, gradient: Array, width: int) -> Array:
        """A gradient in the columns that the kernel sees, as one in all ``width`` columns."""
        dims = getattr(self, "active_dims", None)
        if dims is None:
            return gradient
        full = np.zeros((len(gradient), width))
        full[:, dims] = gradient
        return full

    def _diag(self, X: Array) -> Array:
        return np.full(len(X), self._entries()[0].value)

    def _diag_pull(self, X: Array, g: Array) -> Array:
        entries = self._entries()
        gradient = np.zeros(len(entries))
        gradient[0] = entries[0].value * g.sum()
        return gradient

    def _typical(self, X: Array, shares: Array, variance: float) -> dict[str, float]:
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            factor = float(variance / (shares @ self._diag(X)))
        return {entry.name: entry.value * factor for entry in self._entries() if entry.name.startswith("variance")}

    def _scaled(self, factor: float) -> Kernel:
        return self.with_parameters(variance=factor * np.asarray(getattr(self, "variance")))  # noqa: B009  in subclasses


def _clean_dims(dims: Any, owner: str) -> tuple[int, ...] | None:
    if dims is None:
        return None
    array = np.atleast_1d(np.asarray(dims))
    if array.ndim != 1 or array.size == 0 or not np.issubdtype(array.dtype, np.integer):
        raise InputError(f"{owner} needs active_dims to be column numbers", f"{dims!r}", "Pass a list such as [0, 2].")
    clean = tuple(int(d) for d in array)
    if min(clean) < 0 or len(set(clean)) < len(clean):
        raise InputError(f"{owner} needs active_dims to be distinct and not negative", f"{clean}",
                         "Name each column once, counted from 0.")
    return clean


def _checked_out(out: Any, shape: tuple[int, int]) -> Array:
    if not isinstance(out, np.ndarray) or out.shape != shape or out.dtype != np.float64 or not out.flags.c_contiguous:
        raise InputError(f"out must be a C-ordered float64 array of shape {shape}",
                         f"shape {np.shape(out)} of {getattr(out, 'dtype', type(out).__name__)}",
                         "Make it by np.empty(shape), or leave it out.")
    return np.asarray(out)


def _checked_cotangent(G: ArrayLike, shape: tuple[int, int]) -> Array:
    array = as_float(G, "G", ndim=2)
    require(array.shape == shape, f"G must have the shape of the kernel matrix, {shape}", f"shape {array.shape}",
            "Pass one entry per pair of points.")
    return array


# What + and * accept; anything else is left to the other operand.
def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.integer, np.floating))


def _as_kernel(value: Any) -> Kernel | None:
    """A kernel, or a number as a constant kernel."""
    from klimb.kernels.dot import Constant

    if isinstance(value, Kernel):
        return value
    return Constant(float(value)) if _is_number(value) else None
