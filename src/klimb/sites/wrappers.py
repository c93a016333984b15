"""Sites made of one site: weights, an offset, censored data, and the oracle at a point or in a cavity.

A wrapper satisfies the contract of `Site`, so that wrappers nest in any order. Its facts are those of what it wraps, as
far as wrapping keeps them; they are set on the instance.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from klimb.errors import InputError, require
from klimb.numerics.arrays import Array, ArrayLike, Index
from klimb.numerics.tilted import Tilted
from klimb.sites.base import EvenPart, Expectation, Rows, Site, set_parameter

_FACTS = ("log_concave", "gamma_trend", "super_gaussian", "discrete", "support", "response", "smooth",
          "uses_variance", "separable")


def set_facts(wrapper: Site, **facts: Any) -> None:
    """Facts of a frozen wrapper under construction: they hide the class's declarations."""
    for name, fact in facts.items():
        object.__setattr__(wrapper, name, fact)


def asked(name: str, latent: int | None = None) -> Any:
    """That method of the site inside, which sees its argument number ``latent`` where the wrapper has moved it."""
    def ask(self: Any, *given: Any) -> Any:
        moved = given if latent is None else (*given[:latent], self.moved(given[latent]), *given[latent + 1 :])
        return getattr(self.site, name)(*moved)

    return ask


class Wrapper(Site):
    """What the wrappers of one site share: all but the oracle is asked of the ``site`` inside."""

    site: Site

    def rows(self, rows: Rows) -> Self:
        return replace(self, site=self.site.rows(rows), **self._sliced(rows))  # type: ignore[type-var]

    def _adopt(self, **changed: Any) -> None:
        """Take the facts of the inner site, but for those ``changed``."""
        require(isinstance(self.site, Site), f"{type(self).__name__} needs a site to wrap", type(self.site).__name__,
                "Pass an instance, such as Logistic().")
        set_facts(self, **({name: getattr(self.site, name) for name in _FACTS} | changed))

    @property
    def n_outputs(self) -> int:
        return self.site.n_outputs

    def checked(self, y: ArrayLike, m: ArrayLike, v: ArrayLike) -> tuple[Array, Array, Array]:
        return super().checked(y, m, v) if self.separable else self.site.checked(y, m, v)

    def validate(self, y: ArrayLike) -> Array:
        clean = self.site.validate(y)
        if clean.size > 1:
            self.check_length(clean.size)
        return clean

    def check_length(self, n: int) -> None:
        super().check_length(n)
        self.site.check_length(n)

    def moved(self, f: Array) -> Array:
        """The latent values as the inner site sees them."""
        return f

    constant = asked("constant")
    point = asked("point", 1)
    start = asked("start")
    symmetry = asked("symmetry")
    even_part = asked("even_part")
    touching = asked("touching")
    peak = asked("peak")
    tilted = asked("tilted", 1)
    log_predictive = asked("log_predictive", 1)
    conditional_moments = asked("conditional_moments", 0)
    response_moments = asked("response_moments", 0)
    cdf = asked("cdf", 1)
    response_quantile = asked("response_quantile", 1)
    labels = asked("labels")
    class_probabilities = asked("class_probabilities", 0)


def _counted(weights: Array | float, values: Array) -> Array:
    """Values times weights; 0 where a datum is removed, which may be infinitely unlikely or sit on a kink."""
    used = np.asarray(weights) > 0.0
    return np.asarray(weights * (values if used.all() else np.where(used, values, 0.0)))


@dataclass(frozen=True, eq=False)
class Weighted(Wrapper):
    """Each datum counts ``weights`` times: log p becomes weights * log p. A weight of 0 removes a datum.

    Weights concern the data that are fitted: ``predict`` speaks of one new datum, unweighted.

    >>> from klimb.sites.counts import Logistic
    >>> e = Weighted(Logistic(), [2.0, 0.0]).expect([1, 1], m=[0.0, 0.0], v=[0.0, 0.0])
    >>> e.gamma.round(12).tolist()
    [0.5, 0.0]
    """

    site: Site
    weights: Array | float

    per_datum = ("weights",)
    predict = asked("predict")

    def __post_init__(self) -> None:
        self._adopt()
        set_parameter(self, "weights", lambda w: w >= 0.0, "Weighted needs weights >= 0",
                      "A weight of 0 removes a datum.")

    def constant(self, y: Array) -> Array:
        return self.weights * self.site.constant(y)

    def oracle(self, y: Array, m: Array, v: Array) -> Expectation:
        return self._weigh(self.site.oracle(y, m, v))

    def point(self, y: Array, f: Array) -> Expectation:
        return self._weigh(self.site.point(y, f))

    def parameter_slopes(self, y: Array, m: Array, v: Array, counts: Array | float = 1.0) -> Mapping[str, Any] | None:
        return self.site.parameter_slopes(y, m, v, counts * self.weights)

    def curvature(self, y: Array, m: Array, v: Array) -> Array:
        return _counted(self._per_output(), self.site.curvature(y, m, v))

    def _weigh(self, e: Expectation) -> Expectation:
        each = self._per_output()
        return Expectation(_counted(self.weights, e.value), _counted(each, e.alpha), _counted(each, e.gamma))

    def _per_output(self) -> Array | float:
        """The weights of all latent values, output by output."""
        return np.tile(self.weights, self.n_outputs) if np.ndim(self.weights) and not self.separable else self.weights

    def start(self, y: Array) -> tuple[Array, Array]:
        slope, gamma = self.site.start(y)
        each = self._per_output()
        return each * slope, each * gamma

    def rough(self, tol: float = 0.0) -> Site:
        site = self.site.rough(tol)
        return self if site is self.site else replace(self, site=site)

    def couplings(self, y: Array, m: Array, v: Array) -> Array | None:
        blocks = self.site.couplings(y, m, v)
        return None if blocks is None else np.reshape(self.weights, (-1, 1, 1)) * blocks

    def symmetry(self, y: Array) -> tuple[Array, Array]:
        slope, centre = self.site.symmetry(y)
        return self.weights * slope, centre

    def even_part(self, y: Array, x: Array) -> EvenPart:
        return EvenPart(*(_counted(self.weights, piece) for piece in self.site.even_part(y, x)))

    def touching(self, y: Array, variance: Array) -> Array | None:
        return self.site.touching(y, self.weights * variance)

    def tilted(self, y: Array, m: Array, v: Array, power: float | Array = 1.0) -> Tilted:
        return self.site.tilted(y, m, v, self.weights * np.asarray(power))


@dataclass(frozen=True, eq=False)
class Offset(Wrapper):
    """The site at f + ``offset``: a known part of the linear predictor, such as a log exposure.

    >>> from klimb.sites.counts import Poisson
    >>> shifted = Offset(Poisson(), np.log(2.0)).expect([3], m=[0.5], v=[1.0])
    >>> bool(np.isclose(shifted.value[0], Poisson(exposure=2.0).expect([3], m=[0.5], v=[1.0]).value[0], rtol=1e-14))
    True
    """

    site: Site
    offset: Array | float

    per_datum = ("offset",)

    def __post_init__(self) -> None:
        self._adopt()
        needs_one_output(self.site, "Offset")
        set_parameter(self, "offset", np.isfinite, "Offset needs finite offsets", "Drop rows without one.")

    def moved(self, f: Array) -> Array:
        return np.asarray(f + self.offset)

    def oracle(self, y: Array, m: Array, v: Array) -> Expectation:
        return self.site.oracle(y, self.moved(m), v)

    def parameter_slopes(self, y: Array, m: Array, v: Array, counts: Array | float = 1.0) -> Mapping[str, Any] | None:
        return self.site.parameter_slopes(y, self.moved(m), v, counts)

    def curvature(self, y: Array, m: Array, v: Array) -> Array:
        return self.site.curvature(y, self.moved(m), v)

    def start(self, y: Array) -> tuple[Array, Array]:
        # slope (f + offset) - gamma (f + offset)^2 / 2, as a function of f
        slope, gamma = self.site.start(y)
        return slope - gamma * self.offset, gamma

    def symmetry(self, y: Array) -> tuple[Array, Array]:
        slope, centre = self.site.symmetry(y)
        return slope, centre - self.offset

    def peak(self, y: Array) -> tuple[Array, Array]:
        centre, width = self.site.peak(y)
        return centre - self.offset, width


@dataclass(frozen=True, eq=False)
class Point(Wrapper):
    """The oracle at v = 0: log p(y|m) and its derivatives. The loop then makes the Laplace approximation.

    With a ``width`` the oracle is taken at v = width^2 instead: the same density, smoothed, for one that has a kink.

    >>> from klimb.sites.counts import Logistic
    >>> Point(Logistic()).expect([1], m=[0.0], v=[7.0]).gamma.tolist()
    [0.25]
    """

    site: Site
    width: float = 0.0

    predict = asked("predict")

    def __post_init__(self) -> None:
        self._adopt(gamma_trend="constant", uses_variance=False)

    def oracle(self, y: Array, m: Array, v: Array) -> Expectation:
        return self.site.oracle(y, m, np.full_like(m, self.width**2)) if self.width else self.site.point(y, m)


@dataclass(frozen=True, eq=False)
class Cavity(Wrapper):
    """The oracle of expectation propagation: log Z = log E p(y|f) under the cavity N(m, v), and its derivatives in m.

    ``value`` = log Z, ``alpha`` = -d log Z/dm and ``gamma`` = -d2 log Z/dm2.

    >>> from klimb.sites.real import Gaussian
    >>> e = Cavity(Gaussian(scale=1.0)).expect([1.0], m=[0.0], v=[3.0])
    >>> print(e.alpha, e.gamma)
    [-0.25] [0.25]
    """

    site: Site

    predict = asked("predict")

    def __post_init__(self) -> None:
        self._adopt(gamma_trend="mixed")
        needs_one_output(self.site, "Cavity")

    def oracle(self, y: Array, m: Array, v: Array) -> Expectation:
        t = self.site.tilted(y, m, v)
        return Expectation(t.log_z, -t.slope, -t.curvature)


def needs_one_output(site: Site, what: str) -> None:
    """Raise an `InputError` for a site that couples several latent values per datum."""
    require(site.separable, f"{what} needs a site with one latent value per datum",
            f"{type(site).__name__} with {site.n_outputs}", "Use klimb.infer with the site itself.")


@dataclass(frozen=True, eq=False)
class Censored(Wrapper):
    """The site where ``status`` is 1, log P(Y > y | f) where it is 0: censored on the right, at y.

    Its predictions are of y itself, as if nobody censored it.

    >>> from klimb.sites.positive import Weibull
    >>> e = Censored(Weibull(shape=1.0), [1.0, 0.0]).expect([2.0, 2.0], m=[0.0, 0.0], v=[0.0, 0.0])
    >>> print(e.value)
    [-2. -2.]
    """

    site: Site
    status: Array | float

    per_datum = ("status",)

    def __post_init__(self) -> None:
        trend = "rising" if self.site.gamma_trend == self.site.survivor_trend == "rising" else "mixed"
        self._adopt(gamma_trend=trend, super_gaussian=False)
        if not self.site.log_concave or self.site.response not in ("real", "positive"):
            raise InputError("Censored needs a site of real or positive y that is log-concave",
                             type(self.site).__name__, "Weibull, Exponential, Gamma and Gaussian are.")
        set_parameter(self, "status", lambda s: (s == 0.0) | (s == 1.0), "Censored needs status 0 or 1",
                      "1 is an event, 0 a censored datum.")

    def constant(self, y: Array) -> Array:
        return np.where(self._events(y), self.site.constant(y), 0.0)

    def oracle(self, y: Array, m: Array, v: Array) -> Expectation:
        return self._either(y, m, lambda site, rows: site.oracle(y[rows], m[rows], v[rows]),
                            lambda site, rows: site.survivor(y[rows], m[rows], v[rows]))

    def point(self, y: Array, f: Array) -> Expectation:
        return self._either(y, f, lambda site, rows: site.point(y[rows], f[..., rows]),
                            lambda site, rows: site.survivor_point(y[rows], f[..., rows]))

    def parameter_slopes(self, y: Array, m: Array, v: Array, counts: Array | float = 1.0) -> Mapping[str, Any] | None:
        return self.site.censored_slopes(y, m, v, np.asarray(self.status), counts)

    def curvature(self, y: Array, m: Array, v: Array) -> Array:
        return self.oracle(y, m, v).gamma

    def start(self, y: Array) -> tuple[Array, Array]:
        slope, gamma = self.site.start(y)
        at = slope / np.maximum(gamma, 1e-300)  # where the datum would put f if it were an event
        e = self.site.survivor_point(y, at)
        events = self._events(y)
        return np.where(events, slope, e.gamma * at - e.alpha), np.where(events, gamma, e.gamma)

    tilted = Site.tilted

    def log_predictive(self, y: Array, m: Array, v: Array) -> Array:
        return np.asarray(self.tilted(y, m, v).log_z + self.constant(y))

    def _events(self, y: Array) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        return np.broadcast_to(np.asarray(self.status) > 0.0, y.shape)

    def _either(self, y: Array, f: Array, seen: Callable[[Site, Index], Expectation],
                censored: Callable[[Site, Index], Expectation]) -> Expectation:
        """What events and censored data have, each asked of its own rows."""
        out, events = np.empty((3, *f.shape)), self._events(y)
        for ask, rows in ((seen, np.flatnonzero(events)), (censored, np.flatnonzero(~events))):
            if len(rows):
                out[..., rows] = ask(self.site.rows(rows), rows)
        return Expectation(*out)
