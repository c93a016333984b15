"""The contract of a site: the potential log p(y | f) of one datum, seen through a Gaussian N(f; m, v).

All methods are vectorised over data; parameters are scalars or one per datum. ``validate`` turns the user's ``y`` once
into the clean float array that ``oracle``, ``point`` and ``constant`` take.

A super-Gaussian site is log p(y|f) = slope (f - centre) + g((f - centre)^2) + constant, [N] Eq. (2). A site that knows
g and its derivatives in closed form overrides ``Site.even_part``; for any other they come from ``point``.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal, NamedTuple, Self, TypeAlias

import numpy as np
from numpy.polynomial.polynomial import polyval

from klimb.errors import InputError, require
from klimb.numerics.adaptive import gaussian_average
from klimb.numerics.arrays import Array, ArrayLike, as_float, refuse
from klimb.sites import prediction

_NEAR = 0.02  # relative difference of gamma and bend below which they are taken from an expansion around the centre
_NODES = 12  # of that expansion

GammaTrend: TypeAlias = Literal["rising", "falling", "constant", "mixed"]
Response: TypeAlias = Literal["classes", "counts", "real", "positive", "unit", "mixed"]
Rows: TypeAlias = "slice | np.ndarray[Any, np.dtype[np.intp]]"

# kind of response -> (what y may be, in words; the test of y)
SUPPORTS: dict[str, tuple[str, Callable[[Array], Any]]] = {
    "real": ("the real numbers", np.isfinite),
    "positive": ("(0, inf)", lambda y: y > 0.0),
    "unit": ("(0, 1)", lambda y: (y > 0.0) & (y < 1.0)),
    "counts": ("{0, 1, 2, ...}", lambda y: (y >= 0.0) & (y == np.floor(y))),
}


class Expectation(NamedTuple):
    """``value`` = E log p(y|f) under N(m, v), ``alpha`` = -d value/dm, ``gamma`` = -2 d value/dv: [A] Eq. (11)-(12).

    >>> from klimb.sites import Poisson
    >>> e = Poisson().expect([3], [1.0], [0.5])  # a rate exp(f) with f ~ N(1, 1/2), of mean exp(1.25) = 3.49
    >>> print(e.value.round(2), e.alpha.round(2), e.gamma.round(2))
    [-2.28] [0.49] [3.49]
    """

    value: Array
    alpha: Array
    gamma: Array


class Site(ABC):
    """A likelihood, one factor per datum. Subclasses are frozen dataclasses of their parameters, final ones."""

    # -- declared facts, read by the loop, the test suites, the command line and the documentation table; ``support``
    #    and ``discrete`` follow from ``response``, and ``per_datum`` from ``positive``, where they are not declared
    log_concave: ClassVar[bool]  # log p(y|f) is concave in f, so gamma >= 0: [S] condition 1
    gamma_trend: ClassVar[GammaTrend] = "mixed"  # of gamma in v at fixed m: "rising" is [S] 2a, "falling" 2b
    super_gaussian: ClassVar[bool] = False  # log p = slope (f - c) + g((f - c)^2), g convex and falling: [N] Eq. (2)
    discrete: ClassVar[bool]  # y is a count or a class, so that predictions have probabilities
    support: ClassVar[str]  # what y may be, in words
    uses_variance: ClassVar[bool] = True  # False where the oracle ignores v (`Point`): the loop then seeks the mode
    response: ClassVar[Response]  # the same as a kind, which decides how predictions find their quantiles
    smooth: ClassVar[bool] = True  # log p(y|f) has two continuous derivatives in f
    steady: ClassVar[bool] = False  # no further derivative of it is larger than the second
    separable: ClassVar[bool] = True  # a datum sees one latent value; else its oracle couples ``n_outputs`` of them
    survivor_trend: ClassVar[GammaTrend] = "mixed"  # ``gamma_trend`` of ``survivor``
    per_datum: ClassVar[tuple[str, ...]] = ()  # the parameters that may be arrays with one entry per datum
    positive: ClassVar[tuple[tuple[str, str], ...]] = ()  # parameters that must be positive, and advice
    advice: ClassVar[str] = "Check the data."  # what to do about y outside the support

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        declared = cls.__dict__
        if "response" in declared:
            if "discrete" not in declared:
                cls.discrete = cls.response in ("classes", "counts")
            if "support" not in declared and cls.response in SUPPORTS:
                cls.support = SUPPORTS[cls.response][0]
        if "positive" in declared and "per_datum" not in declared:
            cls.per_datum = tuple(name for name, _ in cls.positive)

    def __post_init__(self) -> None:
        for name, advice in self.positive:
            set_parameter(self, name, lambda x: x > 0.0, f"{type(self).__name__} needs {name} > 0", advice)

    @property
    def mean_predictor(self) -> tuple[Any, Any]:
        """(shift, slope): E[y | f] is the inverse link of shift + slope f."""
        return 0.0, 1.0

    @property
    def n_outputs(self) -> int:
        """Latent values per datum. With more than one, ``m``, ``v``, ``alpha`` and ``gamma`` go output by output."""
        return 1

    def validate(self, y: ArrayLike) -> Array:
        """``y`` as the clean 1-d float array the other methods take, or an `InputError` with the first bad index."""
        return clean_data(self, y, SUPPORTS[self.response][1], self.advice)

    def constant(self, y: Array) -> Array:
        """The part of log p(y|f) that ``oracle`` and ``point`` leave out, into which f does not enter: here nothing."""
        return np.zeros(())

    def rows(self, rows: Rows) -> Self:
        """The site of a subset of the data: parameters that are one per datum are sliced, scalars stay."""
        sliced = self._sliced(rows)
        return replace(self, **sliced) if sliced else self  # type: ignore[type-var]

    def _sliced(self, rows: Rows) -> dict[str, Any]:
        return {name: array[rows] for name in self.per_datum if np.ndim(array := getattr(self, name)) == 1}

    @abstractmethod
    def oracle(self, y: Array, m: Array, v: Array) -> Expectation:
        """The expectation without ``constant(y)``; ``y`` is clean, nothing is checked. The hot path."""

    def point(self, y: Array, f: Array) -> Expectation:
        """log p(y|f) without ``constant(y)``, minus its first and minus its second derivative: the oracle at v = 0.

        Broadcasts over leading axes: ``f`` may be (..., n) for n data, whose parameters lie along the last axis. A site
        overrides it unless its oracle is in closed form and broadcasts as well.
        """
        return self.oracle(y, f, np.zeros(()))

    def value(self, y: Array, f: Array) -> Array:
        """The first of ``point`` alone, where that is cheaper."""
        return self.point(y, f).value

    def curvature(self, y: Array, m: Array, v: Array) -> Array:
        """Minus the second derivative of the oracle's value in m with v held: the weights of a Newton step on the mean.

        Under a Gaussian average it is gamma itself; an oracle that is no such average (`SuperGaussian`) overrides it.
        """
        return self.oracle(y, m, v).gamma

    def couplings(self, y: Array, m: Array, v: Array) -> Array | None:
        """Derivatives of (alpha, gamma) in (m, v) of the K = ``n_outputs`` latents of each datum, n x 2K x 2K.

        Asked of sites that are not separable; None leaves it to differences of the oracle.
        """
        return None

    def parameter_slopes(self, y: Array, m: Array, v: Array, counts: Array | float = 1.0) -> Mapping[str, Any] | None:
        """d/d parameter of the sum of ``counts`` times E log p over the data, by field.

        None leaves it to differences of the oracle, two for every parameter.
        """
        del y, m, v, counts
        return None

    def censored_slopes(self, y: Array, m: Array, v: Array, status: Array,
                        counts: Array | float = 1.0) -> Mapping[str, Any] | None:
        """The same where log p is log P(Y > y) at data whose ``status`` is 0."""
        del y, m, v, status, counts
        return None

    def rough(self, tol: float = 0.0) -> "Site":
        """The same site with a cheaper oracle, good to 1e-6 or ``tol``, for steps that are far from the optimum anyway.
        """
        del tol
        return self

    def expect(self, y: ArrayLike, m: ArrayLike, v: ArrayLike) -> Expectation:
        """The checked front of ``oracle``, normalising constant included."""
        clean, mean, variance = self.checked(y, m, v)
        e = self.oracle(clean, mean, variance)
        return Expectation(e.value + self.constant(clean), e.alpha, e.gamma)

    def log_density(self, y: ArrayLike, f: ArrayLike) -> Array:
        """log p(y | f), normalising constant included; ``f`` may be (..., n) for n data."""
        clean = self.validate(y)
        return self.point(clean, as_float(f, "f")).value + self.constant(clean)

    def checked(self, y: ArrayLike, m: ArrayLike, v: ArrayLike) -> tuple[Array, Array, Array]:
        """Clean ``y`` and finite float arrays ``m``, ``v`` >= 0, all of one length."""
        clean, mean, variance = self.validate(y), np.atleast_1d(as_float(m, "m")), np.atleast_1d(as_float(v, "v"))
        refuse(variance < 0.0, variance, "The variance v must be at least 0", "Check how v was computed.")
        # A scalar y stretches to the length of the others, and of the parameters that are one per datum.
        parameters = [np.shape(getattr(self, name)) for name in self.per_datum]
        try:
            shape = np.broadcast_shapes(clean.shape, mean.shape, variance.shape, *parameters)
        except ValueError as error:
            self.check_length(clean.size)
            raise InputError("y, m and v must have one length (or be scalars)",
                             f"shapes {clean.shape}, {mean.shape}, {variance.shape}",
                             "Check which argument went where.") from error
        require(len(shape) == 1, "y, m and v must have 1 dimension", f"shape {shape}", "Pass one entry per datum.")
        self.check_length(shape[0])
        stretched = (np.ascontiguousarray(np.broadcast_to(x, shape)) for x in (clean, mean, variance))
        return next(stretched), next(stretched), next(stretched)

    def check_length(self, n: int) -> None:
        """Raise an `InputError` if a parameter is an array whose length is not ``n``."""
        for name in self.per_datum:
            parameter = getattr(self, name)
            if np.ndim(parameter) == 1 and np.size(parameter) != n:
                raise InputError(f"{type(self).__name__} has one {name} per datum, so y must have {np.size(parameter)} "
                                 "entries", f"{n}", f"Pass a scalar {name}, or one per datum.")

    # -- where to begin, and what to say of new data
    @abstractmethod
    def start(self, y: Array) -> tuple[Array, Array]:
        """(slope, gamma) of a first Gaussian site exp(slope f - gamma f^2 / 2) from the datum alone; gamma >= 0."""

    def symmetry(self, y: Array) -> tuple[Array, Array]:
        """(slope, centre) of a super-Gaussian site: what is left of it is even around the centre."""
        raise InputError("The symmetric form needs a super-Gaussian site", type(self).__name__,
                         "Logistic, Binomial, NegativeBinomial, Laplace and StudentT are.")

    def even_part(self, y: Array, x: Array) -> "EvenPart":
        """g(x) and its derivatives, of a super-Gaussian site, at the squares ``x`` of the distances from its centre."""
        return even_part_of_point(self, y, x)

    def touching(self, y: Array, variance: Array) -> Array | None:
        """The square x > 0 where a Gaussian of that variance touches the site from below, -2 g'(x) variance = 1.

        None where it is not known in closed form; it is then searched for (`klimb.sites.local`).
        """
        return None

    # -- what predictions ask; a site overrides what it knows better. Arguments are clean, as in ``oracle``.
    predict = prediction.predict
    tilted = prediction.tilted_by_quadrature
    log_predictive = prediction.log_predictive_by_quadrature
    response_moments = prediction.moments_by_quadrature
    response_quantile = prediction.quantile_by_search
    class_probabilities = prediction.probabilities_by_quadrature

    def peak(self, y: Array) -> tuple[Array, Array]:
        """Where log p(y|f) is largest in f, and the width of that peak; asked of sites that are not log-concave."""
        raise self._lacks("peak(y)", "is not log-concave, so its integrals need to know where its peak is")

    def conditional_moments(self, f: Array) -> tuple[Array, Array]:
        """Mean and variance of y given f."""
        raise self._lacks("conditional_moments(f)", "has neither conditional nor predictive moments of y")

    def cdf(self, y: Array, f: Array) -> Array:
        """P(Y <= y | f); ``f`` may be (..., n) for n data."""
        raise self._lacks("cdf(y, f)", "has no distribution function")

    def survivor_point(self, y: Array, f: Array) -> Expectation:
        """``point`` of log P(Y > y | f): what a datum says that is censored at y."""
        raise self._lacks("survivor_point(y, f)", "cannot be censored")

    def survivor(self, y: Array, m: Array, v: Array) -> Expectation:
        """``oracle`` of log P(Y > y | f)."""
        with np.errstate(all="ignore"):
            return Expectation(*gaussian_average(
                lambda rows, f: np.stack(self.rows(rows).survivor_point(y[rows], f)), m, v, 3))

    def _lacks(self, hook: str, why: str) -> InputError:
        return InputError(f"this prediction needs a site that defines {hook}", f"{type(self).__name__}, which {why}",
                          "Define that method on the site.")

    def labels(self) -> Array:
        """The clean values of y, in order, of a site with classes."""
        raise InputError("Class probabilities need a site whose y is a class", f"{type(self).__name__} with y in "
                         f"{self.support}", "Use log_density(y) or quantile(p) of the prediction.")


def set_parameter(site: Site, name: str, ok: Callable[[Array], Any], expected: str, advice: str) -> None:
    """Store a parameter of a frozen ``site`` under construction clean: a float, or a 1-d array that ``ok`` accepts."""
    array = as_float(getattr(site, name), name)
    require(array.ndim <= 1, f"{name} must be a scalar or one per datum", f"shape {array.shape}", "Pass a 1-d array.")
    refuse(~np.asarray(ok(array), dtype=bool), array, expected, advice)
    fixed = array.copy()
    fixed.setflags(write=False)
    object.__setattr__(site, name, float(array) if array.ndim == 0 else fixed)


def clean_data(site: Site, y: ArrayLike, ok: Callable[[Array], Any], advice: str) -> Array:
    """``y`` as a 1-d float array of which every entry lies in the support of ``site``."""
    array = np.atleast_1d(as_float(y, "y"))
    require(array.ndim == 1, "y must have 1 dimension", f"shape {array.shape}", "Pass one value per datum.")
    require(array.size != 0, "y must have at least one entry", "an empty array", "Check how the data were selected.")
    site.check_length(array.size) if array.size > 1 else None
    refuse(~np.asarray(ok(array), dtype=bool), array, f"{type(site).__name__} needs y in {site.support}", advice)
    return array


def clean_labels(site: Site, y: ArrayLike, advice: str) -> Array:
    """Binary labels {-1, +1}, {0, 1} or bool as -1.0 / +1.0; a mixture of both codings is refused."""
    array = clean_data(site, y, lambda x: (x == 1.0) | (x == 0.0) | (x == -1.0), advice)
    zero = array == 0.0
    if not zero.any():
        return array
    refuse(array == -1.0, array, f"{type(site).__name__} needs y in {site.support}, not a mixture of both codings",
           "Code the labels one way: 0 and 1, or -1 and +1.")
    return np.where(zero, -1.0, array)


class EvenPart(NamedTuple):
    """g(x), g'(x) <= 0, g''(x) >= 0, and ``bend`` = -(2 g' + 4 x g''), minus the second derivative in the distance.

    ``bend`` is the curvature of the site itself; as a difference it would lose its digits where it is small.
    """

    value: Array
    slope: Array
    curvature: Array
    bend: Array

    @property
    def gamma(self) -> Array:
        """-2 g', the precision of the Gaussian that touches the site at this distance."""
        return -2.0 * self.slope

    def scaled(self, weight: Array | float, unit: Array | float = 1.0) -> "EvenPart":
        """weight * g(x / unit^2), given that this one was evaluated at x / unit^2."""
        per_square = weight / np.square(unit)
        return EvenPart(weight * self.value, per_square * self.slope, per_square / np.square(unit) * self.curvature,
                        per_square * self.bend)


def even_part_of_point(site: Site, y: Array, x: Array) -> EvenPart:
    """The default of ``Site.even_part``: from log p and its two derivatives at both sides of the centre."""
    _, centre = site.symmetry(y)
    d = np.sqrt(x)
    right, left = site.point(y, centre + d), site.point(y, centre - d)
    value, bend = 0.5 * (right.value + left.value), 0.5 * (right.gamma + left.gamma)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        gamma = np.where(d > 0.0, 0.5 * (right.alpha - left.alpha) / d, bend if site.smooth else np.inf)
        curvature = np.where(d > 0.0, np.maximum((gamma - bend) / (4.0 * x), 0.0), np.inf)
    if site.smooth:
        # Close to the centre both differences lose their digits.
        near = np.flatnonzero(~(np.abs(gamma - bend) > _NEAR * np.abs(gamma)))
        if near.size:
            gamma[near], curvature[near] = _near_the_centre(site.rows(near), y[near], centre[near], x[near])
    return EvenPart(value, -0.5 * gamma, curvature, bend)


def _near_the_centre(site: Site, y: Array, centre: Array, x: Array) -> tuple[Array, Array]:
    """-2 g' = sum_k b_k x^k / (2k + 1) and g'' from a polynomial sum_k b_k x^k through curvatures of the site."""
    def bend(d: Array) -> Array:
        return 0.5 * (site.point(y, centre + d).gamma + site.point(y, centre - d).gamma)

    reach = _reach(bend, bend(np.zeros_like(x)))
    # Chebyshev points of [0, reach^2], in units of reach^2
    unit = 0.5 * (1.0 - np.cos(np.pi * (np.arange(_NODES) + 0.5) / _NODES))
    at_nodes = np.stack([bend(reach * np.sqrt(t)) for t in unit])
    coefficients = np.linalg.solve(np.vander(unit, increasing=True), at_nodes)
    k = np.arange(_NODES, dtype=np.float64)[:, None]
    ratio = x / (reach * reach)
    gamma = np.asarray(polyval(ratio, coefficients / (2.0 * k + 1.0), tensor=False), dtype=np.float64)
    bending = (-0.5 * k / (2.0 * k + 1.0) * coefficients)[1:]
    curvature = np.asarray(polyval(ratio, bending, tensor=False), dtype=np.float64)
    return gamma, np.maximum(curvature / (reach * reach), 0.0)


def _reach(bend: Callable[[Array], Array], top: Array) -> Array:
    """A distance over which the curvature changes by 5 to 40 percent: where an expansion is neither blunt nor noisy."""
    reach = 1.0 / np.sqrt(np.maximum(np.abs(top), 1e-300))
    for _ in range(60):
        change = np.abs(bend(reach) - top) / np.maximum(np.abs(top), 1e-300)
        low, high = change < 0.05, change > 0.4
        if not (low | high).any():
            break
        reach = np.where(low, 1.7 * reach, np.where(high, 0.6 * reach, reach))
    return reach
