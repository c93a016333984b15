"""A user's own site from its log density alone."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np

from klimb.errors import InputError, require
from klimb.numerics.adaptive import derivative_free_moments, gaussian_average
from klimb.numerics.arrays import Array, ArrayLike, Index, as_float
from klimb.numerics.search import highest_point
from klimb.numerics.tilted import Tilted
from klimb.sites.base import SUPPORTS, Expectation, Response, Rows, Site, clean_data
from klimb.sites.prediction import log_predictive_by_quadrature, tilted_around_peak
from klimb.sites.wrappers import set_facts

Function = Callable[..., Any]
Support = Literal["real", "positive", "unit", "counts"]


@dataclass(frozen=True, eq=False, init=False)
class Custom(Site):
    """A site from ``log_density(y, f)``, vectorised NumPy on two equally long 1-d arrays; the rest is quadrature.

    >>> def log_density(y, f):  # Laplace noise, kink and all
    ...     return -np.abs(y - f) - np.log(2.0)
    >>> site = Custom(log_density, log_concave=True)
    >>> site.expect([0.0], m=[0.0], v=[1.0]).value.round(10).tolist()
    [-1.4910317414]

    ``derivatives(y, f)`` returns (g', g'') of g = log_density; ``support`` is "real", "positive", "unit", "counts" or
    the list of the classes of y; ``cdf(y, f)`` and ``moments(f)`` (mean and variance of y) let predictions give
    quantiles and moments; ``args`` are arrays with one entry per datum, passed to each of these functions after f.

    Accuracy, for log densities of ordinary size (g and its scale in f within a few powers of ten of 1): the value to 12
    digits or more; without derivatives, alpha keeps about 10 and gamma about 8 digits relative to g, because rounding
    errors of g are divided by a length and its square ([S] Eq. 7): the length over which g is smooth, at most 1/2, or
    sqrt(v) beside a kink. A kink that a Gaussian much narrower than 1e-8 straddles is not resolved.
    """

    function: Function
    derivatives: Function | None
    conditional_cdf: Function | None
    moments: Function | None
    classes: Array | None
    args: tuple[Array, ...]

    advice = "Check the support that Custom was given."

    def __init__(self, log_density: Function, *, derivatives: Function | None = None, log_concave: bool = False,
                 support: Support | Sequence[float] = "real", cdf: Function | None = None,
                 moments: Function | None = None, args: Sequence[ArrayLike] = ()) -> None:
        require(callable(log_density), "Custom needs a function log_density(y, f)", type(log_density).__name__,
                "Pass the function itself, not its value.")
        for name, given in (("derivatives", derivatives), ("cdf", cdf), ("moments", moments)):
            if given is not None and not callable(given):
                raise InputError(f"Custom needs a function as {name}", type(given).__name__, f"Write def {name}(...).")
        if isinstance(support, str) and support not in SUPPORTS:
            raise InputError(f"Custom needs a support among {', '.join(SUPPORTS)}, or a list of classes",
                             repr(support), "Choose the set that y lies in.")
        classes = None if isinstance(support, str) else np.sort(as_float(support, "support", ndim=1))
        columns = tuple(as_float(arg, f"args[{i}]", ndim=1) for i, arg in enumerate(args))
        fields = {"function": log_density, "derivatives": derivatives, "conditional_cdf": cdf, "moments": moments,
                  "classes": classes, "args": columns}
        for name, value in fields.items():
            object.__setattr__(self, name, value)
        response: Response = support if isinstance(support, str) else "classes"
        words = SUPPORTS[response][0] if classes is None else "{" + ", ".join(f"{c:g}" for c in classes) + "}"
        set_facts(self, log_concave=bool(log_concave), gamma_trend="mixed", super_gaussian=False, response=response,
                  discrete=response in ("counts", "classes"), support=words, smooth=derivatives is not None)

    def rows(self, rows: Rows) -> Self:
        if not self.args:
            return self
        part = object.__new__(type(self))
        part.__dict__.update(self.__dict__, args=tuple(arg[rows] for arg in self.args))
        return part

    def check_length(self, n: int) -> None:
        for i, arg in enumerate(self.args):
            require(arg.size == n, f"Custom has args[{i}] with one entry per datum, so y must have {arg.size} entries",
                    n, "Pass args with one entry per datum.")

    # -- the user's functions, asked with equally long 1-d arrays and checked

    def _ask(self, function: Function, f: Array, *before: Array) -> Any:
        """``function`` at ``f`` (..., n), each of ``before`` and ``args`` having n entries."""
        stretched = [np.broadcast_to(column, f.shape).ravel() for column in (*before, f, *self.args)]
        return function(*stretched)

    def _clean(self, found: Any, name: str, f: Array, y: Array | None) -> Array:
        """What a user's function returned, as an array of the shape of ``f`` without nan."""
        try:
            array = np.asarray(found, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise InputError(f"{name} must return an array of numbers", f"{type(found).__name__} ({error})",
                             "Return one float per entry of f.") from error
        require(array.shape == (f.size,), f"{name} must return one value per entry of f, shape ({f.size},)",
                f"shape {array.shape}", "Write it with NumPy functions that work elementwise on y and f.")
        bad = np.flatnonzero(np.isnan(array) | (array == np.inf))
        if bad.size:
            place = f"f = {f.ravel()[bad[0]]:g}" + ("" if y is None else
                                                   f", y = {np.broadcast_to(y, f.shape).ravel()[bad[0]]:g}")
            raise InputError(f"{name} must return numbers below infinity, for every real f",
                             f"{array[bad[0]]} at {place}", "Guard overflow, for instance with np.logaddexp.")
        return array.reshape(f.shape)

    def _values(self, y: Array, f: Array) -> Array:
        with np.errstate(all="ignore"):
            return self._clean(self._ask(self.function, f, y), "log_density", f, y)

    def _slopes(self, y: Array, f: Array) -> tuple[Array, Array]:
        assert self.derivatives is not None
        with np.errstate(all="ignore"):
            found = self._ask(self.derivatives, f, y)
        require(isinstance(found, (tuple, list)) and len(found) == 2, "derivatives must return the pair (g', g'')",
                type(found).__name__, "Return the first and the second derivative of log_density in f.")
        return self._clean(found[0], "derivatives (g')", f, y), self._clean(found[1], "derivatives (g'')", f, y)

    def validate(self, y: ArrayLike) -> Array:
        classes = self.classes
        if classes is not None:
            return clean_data(self, y, lambda x: np.isin(x, classes), "Add the class to support, or drop the row.")
        return super().validate(y)

    def oracle(self, y: Array, m: Array, v: Array) -> Expectation:
        def values(rows: Index, f: Array) -> Array:
            return self.rows(rows)._values(y[rows], f)

        if self.derivatives is None:
            return Expectation(*derivative_free_moments(values, m, v))
        middle = self._values(y, m)

        def functions(rows: Index, f: Array) -> Array:
            part = self.rows(rows)
            found = np.stack([part._values(y[rows], f) - middle[rows], *part._slopes(y[rows], f)])
            far = np.abs(f - m[rows]) > 9.6 * np.sqrt(v[rows])  # g may overflow where the Gaussian has no mass
            return np.where(np.isfinite(found) | ~far, found, 0.0)

        floor = np.stack([1e-15 * np.abs(middle), np.zeros_like(m), np.zeros_like(m)])
        with np.errstate(all="ignore"):
            value, slope, curvature = gaussian_average(functions, m, v, 3, floor=floor)
        lost = ~(np.isfinite(value) & np.isfinite(slope) & np.isfinite(curvature))
        return Expectation(np.where(lost, -np.inf, middle + value), np.where(lost, 0.0, -slope),
                           np.where(lost, 0.0, -curvature))

    def point(self, y: Array, f: Array) -> Expectation:
        if self.derivatives is not None:
            slope, curvature = self._slopes(y, f)
            return Expectation(self._values(y, f), -slope, -curvature)
        flat = f.ravel()
        origin = np.broadcast_to(np.arange(f.shape[-1]), f.shape).ravel()  # the datum of each entry

        def values(rows: Index, x: Array) -> Array:
            return self.rows(origin[rows])._values(y[origin[rows]], x)

        found = derivative_free_moments(values, flat, np.zeros_like(flat))
        return Expectation(self._values(y, f), found[1].reshape(f.shape), found[2].reshape(f.shape))

    def peak(self, y: Array) -> tuple[Array, Array]:
        centre, width, _ = self._summit(y)
        return centre, width

    def _summit(self, y: Array) -> tuple[Array, Array, Any]:
        """Where log p is largest within a bounded search, its width there, and whether it is a maximum, not an end."""
        with np.errstate(all="ignore"):
            log_y, odds = np.log(np.abs(y)), np.log(y / (1.0 - y))
        # Links in use put the peak near y, log y or logit y, if it is not near 0.
        guesses = [np.zeros_like(y), y, *(np.where(np.isfinite(x), x, 0.0) for x in (log_y, odds))]
        return highest_point(lambda rows, f: self.rows(rows)._values(y[rows], f), guesses)

    def start(self, y: Array) -> tuple[Array, Array]:
        centre, width, inside = self._summit(y)
        # Where log p rises for ever (a class, say) there is no peak: its slope and curvature at 0 are a fair beginning.
        at = np.where(inside, centre, 0.0)
        e = self.point(y, at)
        # At a kink the curvature says nothing: the width of the peak does, if there is one.
        broad = 1.0 / np.square(np.maximum(width, 1e-6))
        gamma = np.where((e.gamma > 0.0) & ((e.gamma < 4.0 * broad) | ~inside), e.gamma, broad)
        return np.where(np.isfinite(e.alpha), -e.alpha, 0.0) + gamma * at, gamma

    def tilted(self, y: Array, m: Array, v: Array, power: float | Array = 1.0) -> Tilted:
        powers = np.broadcast_to(np.asarray(power, dtype=np.float64), m.shape)

        def log_factor(rows: Index, f: Array) -> tuple[Array, Array, Array]:
            part, w = self.rows(rows), powers[rows]
            g = part._values(y[rows], f)
            if self.derivatives is not None:
                slope, curvature = part._slopes(y[rows], f)
            else:  # only to find the mode, so that differences will do
                step = 1e-4 * np.maximum(1.0, np.abs(f))
                left, right = part._values(y[rows], f - step), part._values(y[rows], f + step)
                slope, curvature = (right - left) / (2.0 * step), (right - 2.0 * g + left) / (step * step)
            return w * g, w * slope, w * curvature

        return tilted_around_peak(self, log_factor, y, m, v)

    def log_predictive(self, y: Array, m: Array, v: Array) -> Array:
        return log_predictive_by_quadrature(self, y, m, v) if self.classes is not None else self.tilted(y, m, v).log_z

    def labels(self) -> Array:
        return super().labels() if self.classes is None else self.classes

    def conditional_moments(self, f: Array) -> tuple[Array, Array]:
        if self.moments is None:
            raise InputError("The mean and variance of a prediction need Custom(..., moments=...)", "none",
                             "Give moments(f), the mean and variance of y given f; log_density(y) works without.")
        found = self._ask(self.moments, f)
        require(isinstance(found, (tuple, list)) and len(found) == 2, "moments must return the pair (mean, variance)",
                type(found).__name__, "Return the mean and the variance of y given f.")
        return self._clean(found[0], "moments (mean)", f, None), self._clean(found[1], "moments (variance)", f, None)

    def cdf(self, y: Array, f: Array) -> Array:
        if self.conditional_cdf is None:
            raise InputError("Quantiles of a prediction need Custom(..., cdf=...)", "none",
                             "Give cdf(y, f) = P(Y <= y | f); log_density(y) works without.")
        with np.errstate(all="ignore"):
            return self._clean(self._ask(self.conditional_cdf, f, y), "cdf", f, y)
