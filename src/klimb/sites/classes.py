"""Sites of several classes: ordered levels cut from one latent value, and unordered ones with a latent value each."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

import numpy as np

from klimb._stored import SKIPPED
from klimb.errors import InputError, require
from klimb.numerics import normal
from klimb.numerics.arrays import Array, ArrayLike, as_float, refuse
from klimb.numerics.softmax import EXACT, FAR, ROUGH, SoftmaxRule, log_probabilities, softmax_couplings, softmax_moments
from klimb.numerics.softplus import folded_moments, folded_point, unfold
from klimb.numerics.tilted import Tilted
from klimb.sites.base import Expectation, Rows, Site, clean_data
from klimb.sites.prediction import Prediction

FAR_TOL = 0.1  # tolerance of a fit that is far from the optimum anyway
MOST_COUPLED, MOST_ENTRIES = 24, 2**24  # classes, and entries in all, up to which a matrix per datum is kept


@dataclass(frozen=True, eq=False)
class Ordinal(Site):
    """Levels 0..K-1 cut from the real line by K-1 rising ``cutpoints``: P(y) = F(c_{y+1} - f) - F(c_y - f).

    F is the logistic or the normal distribution function (``link``), c_0 = -inf and c_K = inf.

    >>> site = Ordinal(cutpoints=[-1.0, 1.0])
    >>> print(np.exp(site.log_density([0, 1, 2], [0.0, 0.0, 0.0])).round(6))
    [0.268941 0.462117 0.268941]
    """

    cutpoints: Array
    link: Literal["logit", "probit"] = "logit"

    log_concave = True
    support = "{0, 1, ..., K-1} for K-1 cutpoints"
    response = "classes"

    def __post_init__(self) -> None:
        cut = np.atleast_1d(as_float(self.cutpoints, "cutpoints")).copy()
        require(cut.ndim == 1 and cut.size != 0, "Ordinal needs a list of at least one cutpoint", f"shape {cut.shape}",
                "K levels have K-1 cutpoints.")
        flat = np.flatnonzero(np.diff(cut) <= 0.0)
        if flat.size:
            raise InputError("Ordinal needs strictly rising cutpoints",
                             f"{cut[flat[0]]} and {cut[flat[0] + 1]} at indices {flat[0]} and {flat[0] + 1}",
                             "Sort the cutpoints, and merge levels that have no width.")
        if self.link not in ("logit", "probit"):
            raise InputError('Ordinal needs link = "logit" or "probit"', repr(self.link), "Choose one of the two.")
        cut.setflags(write=False)
        object.__setattr__(self, "cutpoints", cut)

    @property
    def n_levels(self) -> int:
        """The number K of levels."""
        return int(self.cutpoints.size + 1)

    def validate(self, y: ArrayLike) -> Array:
        return clean_data(self, y, lambda x: (x >= 0.0) & (x < self.n_levels) & (x == np.floor(x)),
                          f"With {self.cutpoints.size} cutpoints the levels are 0 to {self.cutpoints.size}; recode y.")

    def edges(self, y: Array) -> tuple[Array, Array]:
        """The lower and the upper edge of the cell of each clean ``y``, infinite at the ends."""
        padded = np.concatenate(([-np.inf], self.cutpoints, [np.inf]))
        level = y.astype(np.intp)
        return padded[level], padded[level + 1]

    def constant(self, y: Array) -> Array:
        if self.link == "probit":
            return np.zeros(())
        low, high = self.edges(y)
        # log(1 - e^-width), which is 0 at the ends, where the width is infinite.
        width = high - low
        wide = width > 0.7
        return np.where(wide, np.log1p(-np.exp(-np.maximum(width, 0.7))), np.log(-np.expm1(-np.minimum(width, 0.7))))

    def oracle(self, y: Array, m: Array, v: Array) -> Expectation:
        return self._split(y, m, v)

    def point(self, y: Array, f: Array) -> Expectation:
        e = self._split(np.broadcast_to(y, f.shape).ravel(), f.ravel(), None)
        return Expectation(e.value.reshape(f.shape), e.alpha.reshape(f.shape), e.gamma.reshape(f.shape))

    def _split(self, y: Array, m: Array, v: Array | None) -> Expectation:
        """End cells and inner cells apart, under N(m, v), or at m where ``v`` is None."""
        e = Expectation(np.zeros_like(m), np.zeros_like(m), np.zeros_like(m))
        low, high = self.edges(y)
        if self.link == "logit":  # log p = log(1 - e^-(width)) - softplus(f - high) - softplus(low - f)
            for edge, sign in ((high, 1.0), (low, -1.0)):
                rows = np.flatnonzero(np.isfinite(edge))
                x = sign * (m[rows] - edge[rows])
                value, slope, curvature = folded_point(x) if v is None else folded_moments(x, v[rows])
                softplus, sigmoid = unfold(x, value, slope)
                e.value[rows] -= softplus
                e.alpha[rows] += sign * sigmoid
                e.gamma[rows] += curvature
            return e
        for edge, other, sign in ((high, low, -1.0), (low, high, 1.0)):
            rows = np.flatnonzero(np.isinf(other))
            x = sign * (m[rows] - edge[rows])
            value, alpha, gamma = normal.probit_point(x) if v is None else normal.probit_moments(x, v[rows])
            e.value[rows], e.alpha[rows], e.gamma[rows] = value, sign * alpha, gamma
        rows = np.flatnonzero(np.isfinite(low) & np.isfinite(high))
        if v is None:
            value, slope, gamma = normal.log_interval_derivatives(low[rows] - m[rows], high[rows] - m[rows])
            e.value[rows], e.alpha[rows], e.gamma[rows] = value, -slope, gamma
        else:
            moments = normal.interval_moments(low[rows], high[rows], m[rows], v[rows])
            e.value[rows], e.alpha[rows], e.gamma[rows] = moments
        return e

    def parameter_slopes(self, y: Array, m: Array, v: Array, counts: Array | float = 1.0) -> Mapping[str, Any] | None:
        if self.link != "logit":
            return None
        low, high = self.edges(y)
        slopes, level, counts = np.zeros(self.n_levels + 1), y.astype(np.intp), counts + np.zeros_like(m)
        with np.errstate(over="ignore"):
            narrow = 1.0 / np.expm1(high - low)  # d/d width of log(1 - e^-width)
        for edge, cut, sign in ((high, level + 1, 1.0), (low, level, -1.0)):
            rows = np.flatnonzero(np.isfinite(edge))
            x = sign * (m[rows] - edge[rows])
            value, slope, _ = folded_moments(x, v[rows])
            own = sign * counts[rows] * (unfold(x, value, slope)[1] + narrow[rows])
            slopes += np.bincount(cut[rows], own, minlength=len(slopes))
        return {"cutpoints": slopes[1:-1]}

    def start(self, y: Array) -> tuple[Array, Array]:
        # The middle of an inner cell, one unit beyond the last cutpoint for an end cell, and the curvature there.
        low, high = self.edges(y)
        with np.errstate(invalid="ignore"):
            middle = np.where(np.isinf(low), high - 1.0, np.where(np.isinf(high), low + 1.0, 0.5 * (low + high)))
        e = self.point(y, middle)
        return e.gamma * middle - e.alpha, e.gamma

    def labels(self) -> Array:
        return np.arange(self.n_levels, dtype=np.float64)

    def tilted(self, y: Array, m: Array, v: Array, power: float | Array = 1.0) -> Tilted:
        if self.link == "logit" or np.any(np.asarray(power) != 1.0):
            return super().tilted(y, m, v, power)
        # A normal latent under a normal link: the cell of a normal variable with variance 1 + v.
        root = np.sqrt(1.0 + v)
        low, high = self.edges(y)
        low, high = (low - m) / root, (high - m) / root
        log_z, slope, bend = np.zeros_like(m), np.zeros_like(m), np.zeros_like(m)
        for rows, x, sign in ((np.flatnonzero(np.isinf(low)), high, -1.0), (np.flatnonzero(np.isinf(high)), -low, 1.0)):
            log_z[rows], ratio, bend[rows] = normal.log_ndtr_derivatives(x[rows])
            slope[rows] = sign * ratio
        rows = np.flatnonzero(np.isfinite(low) & np.isfinite(high))
        log_z[rows], slope[rows], bend[rows] = normal.log_interval_derivatives(low[rows], high[rows])
        return Tilted(log_z, slope / root, -bend / (1.0 + v))


@dataclass(frozen=True)
class Softmax(Site):
    """P(y = c) = e^(f_c) / sum_d e^(f_d) for labels 0 .. C-1, with one latent value f_c per class.

    The latent is `klimb.latents.Outputs`, one part per class. q is independent between the classes (not between the
    data), and the expectations under such a q are exact, to 1e-12: see `klimb.numerics.softmax`.

    With ``baseline=True`` class 0 has f = 0, as in regression tables: C - 1 latent values, each the log odds of its
    class against class 0. `Softmax(2, baseline=True)` is `Logistic`.

    Wherever several latent values per datum are passed (``m``, ``v``, ``f``), they are an n x C array, one row per
    datum, or that array as a vector, class after class.

    >>> site = Softmax(3)
    >>> e = site.expect([2], m=[[0.0, 0.0, 1.0]], v=[[0.5, 0.5, 2.0]])
    >>> e.value.round(6).tolist(), e.gamma.round(6).tolist()
    ([-0.833298], [0.146621, 0.146621, 0.175635])
    >>> site.predict(m=[[0.0, 0.0, 1.0]], v=[[0.5, 0.5, 2.0]]).probabilities().round(6).tolist()
    [[0.232902, 0.232902, 0.534196]]
    """

    n_classes: int
    baseline: bool = False
    rule: SoftmaxRule = field(default=EXACT, repr=False, metadata={SKIPPED: False})  # how closely it integrates

    log_concave = True
    support = "{0, 1, ..., C-1} for C classes"
    response = "classes"
    separable = False

    def __post_init__(self) -> None:
        count: Any = self.n_classes
        if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 2:
            raise InputError("Softmax needs at least 2 classes", repr(count), "Pass the number of classes.")
        object.__setattr__(self, "n_classes", int(count))

    @property
    def n_outputs(self) -> int:
        return self.n_classes - self.baseline

    def validate(self, y: ArrayLike) -> Array:
        return clean_data(self, y, lambda x: (x >= 0.0) & (x < self.n_classes) & (x == np.floor(x)),
                          f"With {self.n_classes} classes the labels are 0 to {self.n_classes - 1}; recode y, for "
                          "instance by numpy.unique(y, return_inverse=True).")

    def rows(self, rows: Rows) -> Self:
        return self

    def labels(self) -> Array:
        return np.arange(self.n_classes, dtype=np.float64)

    def flat(self, values: ArrayLike, name: str) -> Array:
        """Values at an n x C array of latents, or at one that is flat already, as one vector, class after class."""
        array = as_float(values, name)
        outputs = self.n_outputs
        if array.ndim == 2 and array.shape[1] == outputs:
            return np.ascontiguousarray(array.T).ravel()
        if array.ndim == 1 and array.size % outputs == 0:
            return np.ascontiguousarray(array)
        raise InputError(f"{name} must have one row per datum and one column per latent value ({outputs})",
                         f"shape {array.shape}", "Pass what klimb.latents.Outputs.predict returns.")

    def checked(self, y: ArrayLike, m: ArrayLike, v: ArrayLike) -> tuple[Array, Array, Array]:
        clean, mean, variance = self.validate(y), self.flat(m, "m"), self.flat(v, "v")
        refuse(variance < 0.0, variance, "The variance v must be at least 0", "Check how v was computed.")
        n = mean.size // self.n_outputs
        if variance.shape != mean.shape or clean.size not in (1, n):
            raise InputError("y, m and v must belong to the same data", f"{clean.size} labels, {mean.size} means and "
                             f"{variance.size} variances", f"Pass n labels and n x {self.n_outputs} arrays.")
        return np.ascontiguousarray(np.broadcast_to(clean, (n,))), mean, variance

    def _by_class(self, values: Array) -> Array:
        """One row per class, the baseline's included, from values that are one per latent."""
        by_class = values.reshape(*values.shape[:-1], self.n_outputs, -1)
        if not self.baseline:
            return by_class
        return np.concatenate([np.zeros_like(by_class[..., :1, :]), by_class], axis=-2)

    def _flat_again(self, by_class: Array) -> Array:
        free = by_class[..., int(self.baseline) :, :]
        return np.ascontiguousarray(free).reshape(*free.shape[:-2], -1)

    def _hits(self, y: Array) -> Array:
        """1 where the class is that of the datum, else 0; one row per class."""
        return np.asarray(np.arange(self.n_classes)[:, None] == y, dtype=np.float64)

    def oracle(self, y: Array, m: Array, v: Array) -> Expectation:
        moments = softmax_moments(y, self._by_class(m), self._by_class(v), self.rule)
        alpha = moments.probabilities - self._hits(y)
        return Expectation(moments.value, self._flat_again(alpha), self._flat_again(moments.curvature))

    def rough(self, tol: float = 0.0) -> Self:
        rule = FAR if tol >= FAR_TOL else ROUGH
        return self if self.rule == rule else replace(self, rule=rule)

    def couplings(self, y: Array, m: Array, v: Array) -> Array | None:
        if self.n_classes > MOST_COUPLED or len(y) * (2 * self.n_classes) ** 2 > MOST_ENTRIES:
            return None
        blocks = softmax_couplings(self._by_class(m), self._by_class(v), self.rule)
        if not self.baseline:
            return blocks
        free = np.flatnonzero(np.arange(2 * self.n_classes) % self.n_classes)
        return blocks[:, free[:, None], free]

    def point(self, y: Array, f: Array) -> Expectation:
        by_class = self._by_class(f)
        shifted = by_class - by_class.max(axis=-2, keepdims=True)
        with np.errstate(under="ignore"):
            e = np.exp(shifted)
            total = e.sum(axis=-2, keepdims=True)
            p = e / total
        own = np.take_along_axis(shifted, np.broadcast_to(y.astype(np.intp), total.shape), axis=-2)
        value = (own - np.log(total))[..., 0, :]
        rest = (total - e) / total  # 1 - p without cancellation for all but the largest
        return Expectation(value, self._flat_again(p - self._hits(y)), self._flat_again(p * rest))

    def log_density(self, y: ArrayLike, f: ArrayLike) -> Array:
        """log p(y | f) for an n x C array ``f``."""
        clean, latent, _ = self.checked(y, f, np.zeros(np.shape(f)))
        return self.point(clean, latent).value

    def start(self, y: Array) -> tuple[Array, Array]:
        # The tangent parabola at f = 0, where all classes are equally likely.
        share = 1.0 / self.n_classes
        slope = self._flat_again(self._hits(y) - share)
        return slope, np.full_like(slope, share * (1.0 - share))

    def predict(self, m: ArrayLike, v: ArrayLike) -> Prediction:
        _, mean, variance = self.checked([0], m, v)
        return Prediction(self, mean, variance)

    def class_probabilities(self, m: Array, v: Array) -> Array:
        label = np.zeros(m.size // self.n_outputs)
        if v.any():
            p = np.maximum(softmax_moments(label, self._by_class(m), self._by_class(v)).probabilities.T, 0.0)
        else:
            by_class = self._by_class(m)
            with np.errstate(under="ignore"):
                p = np.exp(by_class - by_class.max(axis=0)).T
            p /= p.sum(axis=1, keepdims=True)
        rows, top = np.arange(len(p)), p.argmax(axis=1)
        p[rows, top] = 0.0
        p[rows, top] = 1.0 - p.sum(axis=1)
        return p

    def log_predictive(self, y: Array, m: Array, v: Array) -> Array:
        return log_probabilities(y, self._by_class(m), self._by_class(v))
