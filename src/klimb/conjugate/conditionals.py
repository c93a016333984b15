"""The conjugate conditionals: what each variable may depend on, and the function that declares it in a network."""

from typing import Any

import numpy as np
from scipy.special import gammaln

from klimb.conjugate import families
from klimb.conjugate.families import Categorical, Dirichlet, Gamma, MultivariateNormal, Normal, Wishart
from klimb.conjugate.families.base import Family, Naturals
from klimb.conjugate.means import Predictor, as_predictor, outer
from klimb.conjugate.variables import Conditional, NetworkState, Plates, Variable, View, as_view, common_plates, sum_to
from klimb.errors import InputError, require
from klimb.numerics.arrays import Array, as_float
from klimb.numerics.special import HALF_LOG_2PI


class KnownParameters(Conditional):
    """A prior with known parameters: one member of the family for every plate."""

    def __init__(self, prior: Family, plates: Plates, name: str) -> None:
        self.family, self.variables = type(prior), ()
        self.plates = common_plates(name, prior.plates, plates)
        self.prior = type(prior).from_natural(tuple(
            np.broadcast_to(part, (*self.plates, *part.shape[part.ndim - ndim :]))
            for part, ndim in zip(prior.natural, prior.event_ndims, strict=True)
        ))
        self.dimension = prior.dimension

    def natural(self, state: NetworkState) -> Naturals:
        return self.prior.natural

    def divergence(self, factor: Family, state: NetworkState) -> Array:
        return factor.kl(self.prior)


class Scale:
    """A precision: a number, a gamma variable (whole or indexed), or a product of these."""

    def __init__(self, value: Any, name: str) -> None:
        self.known: Array = np.ones(())
        self.views: tuple[View, ...] = ()
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, Variable | View):
                view = as_view(part)
                require(view.variable.family is Gamma, f"the precision of {name} must be a number or a gamma variable",
                        f"{view.variable!r}", "Declare it with gamma(shape, rate).")
                self.views += (view,)
            else:
                number = as_float(part, f"the precision of {name}")
                if np.any(number <= 0):
                    raise InputError(f"the precision of {name} must be positive", f"{number.min()}",
                                     "It is one over the variance.")
                self.known = self.known * number
        self.variables = tuple(view.variable for view in self.views)
        self.plates = common_plates(f"the precision of {name}", self.known.shape, *(view.plates for view in self.views))

    def moments(self, state: NetworkState) -> tuple[Array, Array]:
        """E log and E of the precision."""
        log, mean = np.log(self.known), self.known
        for view in self.views:
            log_part, part = view.moments(state)
            log, mean = log + log_part, mean * part
        return log, mean

    def message(self, to: Variable, half_count: Array, half_square: Array, state: NetworkState) -> Naturals:
        """From (1/2) E log tau - half_square E tau per plate of the child."""
        others, target = self.known, next(view for view in self.views if view.variable is to)
        for view in self.views:
            others = others if view is target else others * view.moments(state)[1]
        return target.collect(tuple(np.broadcast_arrays(half_count, -half_square * others)))


class NormalGiven(Conditional):
    """x ~ Normal(predictor, precision)."""
    family = Normal

    def __init__(self, mean: Predictor, precision: Scale, plates: Plates, name: str) -> None:
        self.mean, self.precision = mean, precision
        self.plates = common_plates(name, mean.plates, precision.plates, plates)
        self.variables = (*mean.variables, *precision.variables)
        require(len(set(self.variables)) >= len(self.variables), f"{name} must use each variable in one place",
                ", ".join(v.name for v in self.variables), "A variable that is both in the mean and in the precision,"
                " or twice in one of them, has no conjugate factor.")

    def natural(self, state: NetworkState) -> Naturals:
        tau, m, shape = self.precision.moments(state)[1], self.mean.mean(state), self.plates
        return np.broadcast_to(tau * m, shape), np.broadcast_to(-0.5 * tau, shape)

    def squared_error(self, x: Naturals, state: NetworkState) -> Array:
        """E (x - mean)^2."""
        m, v = self.mean.moments(state)
        mean, second = x
        return np.asarray((second - mean * mean) + v + (mean - m) ** 2)

    def expected_log(self, x: Naturals, state: NetworkState) -> Array:
        """E log p(x | parents), without the cancellation of its two large halves."""
        log_tau, tau = self.precision.moments(state)
        return np.asarray(0.5 * log_tau - HALF_LOG_2PI - 0.5 * tau * self.squared_error(x, state))

    def divergence(self, factor: Family, state: NetworkState) -> Array:
        return -self.expected_log(factor.moments, state) - factor.entropy()

    def message(self, to: Variable, x: Naturals, weight: Array, state: NetworkState) -> Naturals:
        if to in self.precision.variables:
            square = 0.5 * weight * self.squared_error(x, state)
            half = np.broadcast_to(0.5 * weight, self.plates)
            return self.precision.message(to, half, np.broadcast_to(square, self.plates), state)
        J = np.broadcast_to(weight * self.precision.moments(state)[1], self.plates)
        return self.mean.message(to, J, J * x[0], state)


class MultivariateGiven(Conditional):
    """x ~ MultivariateNormal(mean, precision): precision a gamma per entry (ARD), one gamma, or a Wishart variable."""
    family = MultivariateNormal

    def __init__(self, mean: Any, precision: Variable, dimension: int, plates: Plates, name: str) -> None:
        self.dimension, self.precision = dimension, precision
        wanted = {Gamma: ((), (dimension,)), Wishart: ((),)}.get(precision.family, ())
        require(precision.plates in wanted, f"the precision of {name} must be a gamma without plates or with plates"
                f" ({dimension},), or a wishart without plates", f"{precision!r}",
                f"gamma(1e-3, 1e-3, plates=({dimension},)) is one precision per entry.")
        self.parent = as_view(mean) if isinstance(mean, Variable | View) else None
        if self.parent is not None and self.parent.variable.family is not MultivariateNormal:
            raise InputError(f"the mean of {name} must be numbers or a multivariate normal",
                             f"{self.parent.variable!r}", "Use normal(...) for scalars.")
        self.known = np.zeros(dimension) if self.parent is not None else as_float(mean, f"the mean of {name}")
        known = np.broadcast_shapes(self.known.shape, (dimension,))[:-1]
        self.plates = common_plates(name, known if self.parent is None else self.parent.plates, plates)
        self.variables = (precision,) if self.parent is None else (self.parent.variable, precision)

    def _precision(self, state: NetworkState) -> tuple[Array, Array]:
        """E log det and E of the precision matrix."""
        log, value = state[self.precision].moments
        if self.precision.family is Wishart:
            return log, value
        return np.broadcast_to(log, (self.dimension,)).sum(), np.diag(np.broadcast_to(value, (self.dimension,)))

    def _mean(self, state: NetworkState) -> tuple[Array, Array]:
        """E mean and E mean mean'."""
        if self.parent is not None:
            first, second = self.parent.moments(state)
            return first, second
        mean = np.broadcast_to(self.known, (*self.known.shape[:-1], self.dimension))
        return mean, outer(mean)

    def natural(self, state: NetworkState) -> Naturals:
        P = self._precision(state)[1]
        m = self._mean(state)[0] @ P
        D = self.dimension
        return np.broadcast_to(m, (*self.plates, D)), np.broadcast_to(-0.5 * P, (*self.plates, D, D))

    def log_partition(self, state: NetworkState) -> Array:
        log_det, P = self._precision(state)
        value = 0.5 * (P * self._mean(state)[1]).sum((-2, -1)) - 0.5 * log_det + self.dimension * HALF_LOG_2PI
        return np.broadcast_to(value, self.plates)

    def message(self, to: Variable, x: Naturals, weight: Array, state: NetworkState) -> Naturals:
        P = self._precision(state)[1]
        if self.parent is not None and to is self.parent.variable:
            w = np.broadcast_to(weight, self.plates)
            return self.parent.collect((w[..., None] * (x[0] @ P), -0.5 * w[..., None, None] * P))
        first, second = self._mean(state)
        cross = x[0][..., :, None] * first[..., None, :]
        scatter = x[1] + second - cross - np.swapaxes(cross, -1, -2)
        w = np.broadcast_to(weight, self.plates)
        total, count = sum_to(w[..., None, None] * scatter, (), 2), float(w.sum())
        if self.precision.family is Wishart:
            return np.asarray(0.5 * count), -0.5 * total
        diagonal = np.diagonal(total)
        if self.precision.plates:
            return np.full(self.dimension, 0.5 * count), -0.5 * diagonal
        return np.asarray(0.5 * count * self.dimension), np.asarray(-0.5 * diagonal.sum())


class GammaGiven(Conditional):
    """x ~ Gamma(shape, rate) with a gamma variable as its rate."""
    family = Gamma

    def __init__(self, shape: Any, rate: View, plates: Plates, name: str) -> None:
        self.shape, self.rate, self.variables = as_float(shape, "shape"), rate, (rate.variable,)
        self.plates = common_plates(name, self.shape.shape, rate.plates, plates)

    def natural(self, state: NetworkState) -> Naturals:
        return np.broadcast_to(self.shape, self.plates), np.broadcast_to(-self.rate.moments(state)[1], self.plates)

    def log_partition(self, state: NetworkState) -> Array:
        return np.broadcast_to(gammaln(self.shape) - self.shape * self.rate.moments(state)[0], self.plates)

    def message(self, to: Variable, x: Naturals, weight: Array, state: NetworkState) -> Naturals:
        return self.rate.collect(tuple(np.broadcast_arrays(weight * self.shape, -weight * x[1])))


class CategoricalGiven(Conditional):
    """x ~ Categorical(p) with a Dirichlet variable p."""
    family = Categorical

    def __init__(self, probabilities: View, plates: Plates, name: str) -> None:
        require(probabilities.variable.family is Dirichlet, f"the probabilities of {name} must be a dirichlet variable",
                f"{probabilities.variable!r}", "Declare dirichlet(numpy.full(K, 1.0)).")
        self.probabilities, self.variables = probabilities, (probabilities.variable,)
        self.dimension = probabilities.variable.dimension
        self.plates = common_plates(name, probabilities.plates, plates)

    def natural(self, state: NetworkState) -> Naturals:
        (log_p,) = self.probabilities.moments(state)
        return (np.broadcast_to(log_p, (*self.plates, log_p.shape[-1])),)

    def message(self, to: Variable, x: Naturals, weight: Array, state: NetworkState) -> Naturals:
        indicators = np.broadcast_to(x[0], (*self.plates, x[0].shape[-1]))
        return self.probabilities.collect((np.broadcast_to(weight, self.plates)[..., None] * indicators,))


def gamma(shape: Any, rate: Any, *, plates: Plates = (), name: str = "gamma") -> Variable:
    """A positive unknown: a precision or a rate. ``rate`` may itself be a gamma variable.

    >>> from klimb.conjugate import fit, gamma, normal
    >>> noise = gamma(1e-3, 1e-3)
    >>> result = fit(normal(5.0, noise, plates=(4,)).observe([4.9, 5.1, 5.3, 4.7]))
    >>> print(np.sqrt(1 / result[noise].quantile([0.95, 0.5, 0.05])).round(2))  # the standard deviation
    [0.15 0.25 0.53]
    """
    if isinstance(rate, Variable | View):
        view = as_view(rate)
        require(view.variable.family is Gamma, f"the rate of {name} must be a number or a gamma variable",
                f"{view.variable!r}", "Only a gamma is conjugate to the rate of a gamma.")
        return Variable(GammaGiven(shape, view, plates, name), name)
    return _known(Gamma(shape, rate), plates, name)


def normal(mean: Any = 0.0, precision: Any = 1.0, *, plates: Plates = (), name: str = "normal") -> Variable:
    """A real unknown, or data when ``.observe(values)`` is called.

    ``mean`` is a number, a normal variable, or a predictor (``dot(X, w) + u[group] + offset``); ``precision`` a number,
    a gamma variable, or a tuple of these to be multiplied.

    >>> from klimb.conjugate import fit, normal
    >>> level = normal(0.0, 0.01, plates=(2,))  # one for each of two groups
    >>> result = fit(normal(level[[0, 0, 0, 1, 1, 1]], 4.0).observe([1.0, 1.2, 0.8, 5.0, 5.4, np.nan]))
    >>> print(result[level].mean.round(2), result[level].variance.round(2))
    [1.   5.19] [0.08 0.12]
    """
    scale = Scale(precision, name)
    return Variable(NormalGiven(as_predictor(mean), scale, plates, name), name)


def multivariate_normal(mean: Any = 0.0, precision: Any = 1.0, *, dimension: int | None = None, plates: Plates = (),
                        name: str = "multivariate_normal") -> Variable:
    """A vector of unknowns.

    ``precision`` is a number, a matrix, a gamma variable (one for all entries, or plates (D,) for one each: automatic
    relevance), or a wishart variable.

    >>> from klimb.conjugate import dot, fit, gamma, multivariate_normal, normal
    >>> X = np.random.default_rng(0).normal(size=(60, 3))
    >>> w = multivariate_normal(0.0, gamma(1e-3, 1e-3, plates=(3,)))  # automatic relevance
    >>> result = fit(normal(dot(X, w), 100.0).observe(2.0 * X[:, 0] + 0.1 * np.sin(np.arange(60.0) ** 2)))
    >>> print(result[w].mean.round(1) + 0.0)
    [2. 0. 0.]
    """
    if isinstance(precision, Variable):
        if precision.family is Wishart:
            size = precision.dimension
        elif precision.plates:
            size = precision.plates[0]
        else:
            size = dimension or np.shape(mean)[-1] if dimension or np.ndim(mean) else 0
        require(not (size < 1 or (dimension is not None and dimension != size)), f"{name} needs its dimension",
                f"dimension {dimension} and precision {precision!r}", "Pass dimension=D.")
        return Variable(MultivariateGiven(mean, precision, size, plates, name), name)
    P = as_float(precision, f"the precision of {name}")
    if P.ndim < 2:
        size = dimension or max(P.shape[-1:] + np.shape(mean)[-1:] + (1,))
        P = np.eye(size) * np.broadcast_to(P, (size,))
    m = np.broadcast_to(as_float(mean, f"the mean of {name}"), (*np.shape(mean)[:-1], P.shape[-1]))
    return _known(MultivariateNormal(m, P), plates, name)


def wishart(dof: Any, rate: Any, *, plates: Plates = (), name: str = "wishart") -> Variable:
    """An unknown precision matrix with mean dof * rate^-1.

    >>> from klimb.conjugate import dot, fit, multivariate_normal, normal, wishart
    >>> ends = np.random.default_rng(0).normal(size=(40, 2)) @ [[1.0, -0.8], [0.0, 0.6]]  # correlated pairs
    >>> spread = wishart(3.0, np.eye(2))
    >>> pairs = [(multivariate_normal(0.0, spread), end) for end in ends]
    >>> result = fit(*(normal(dot(np.eye(2), w), 100.0).observe(end) for w, end in pairs))
    >>> print(np.linalg.inv(result[spread].mean).round(1))  # covariance of the pairs
    [[ 0.9 -0.6]
     [-0.6  0.7]]
    """
    return _known(Wishart(dof, rate), plates, name)


def normal_gamma(mean: Any, kappa: Any, shape: Any, rate: Any, *, plates: Plates = (),
                 name: str = "normal_gamma") -> Variable:
    """A mean and its precision: components of a mixture of numbers, plates (K,) or (K, D).

    >>> from klimb.conjugate import categorical, dirichlet, fit, mixture, normal_gamma
    >>> level = normal_gamma([0.0, 10.0], 0.1, 1.0, 1.0)
    >>> group = categorical(dirichlet([1.0, 1.0]), plates=(7,))
    >>> result = fit(mixture(group, level).observe([0.1, -0.2, 0.3, 9.8, 10.1, 10.3, 9.9]))
    >>> print(result[level].mean.round(1), result[group].mean.argmax(axis=1))
    [ 0.1 10. ] [0 0 0 1 1 1 1]
    """
    return _known(families.NormalGamma(mean, kappa, shape, rate), plates, name)


def normal_wishart(mean: Any, kappa: Any, dof: Any, rate: Any, *, plates: Plates = (),
                   name: str = "normal_wishart") -> Variable:
    """A mean vector and its precision matrix: components of a mixture of vectors, plates (K,).

    >>> from klimb.conjugate import categorical, dirichlet, fit, mixture, normal_wishart
    >>> X = np.random.default_rng(0).normal(size=(90, 2)) * [1.0, 0.2]
    >>> X[60:, 1] += 2.0  # two flat clouds, one above the other
    >>> cloud = normal_wishart([[0.0, 0.0], [0.0, 2.0]], 0.1, 3.0, np.eye(2))
    >>> result = fit(mixture(categorical(dirichlet([1.0, 1.0]), plates=(90,)), cloud).observe(X))
    >>> sd = np.sqrt(np.diag(np.linalg.inv(result[cloud].precision.mean[0])))
    >>> print(result[cloud].mean[:, 1].round(1) + 0.0, sd.round(1))  # heights of both, spread of the first
    [0. 2.] [0.9 0.2]
    """
    return _known(families.NormalWishart(mean, kappa, dof, rate), plates, name)


def tied_normal_wishart(mean: Any, kappa: Any, dof: Any, rate: Any, *, name: str = "tied_normal_wishart") -> Variable:
    """K mean vectors (rows of ``mean``) that share one precision matrix.

    >>> from klimb.conjugate import categorical, dirichlet, fit, mixture, tied_normal_wishart
    >>> X = np.random.default_rng(0).normal(size=(90, 2)) + np.repeat([[0.0, 0.0], [0.0, 9.0]], 45, axis=0)
    >>> clouds = tied_normal_wishart([[0.0, 0.0], [0.0, 9.0]], 0.1, 3.0, np.eye(2))
    >>> result = fit(mixture(categorical(dirichlet([1.0, 1.0]), plates=(90,)), clouds).observe(X))
    >>> print(result[clouds].mean.round(0) + 0.0, result[clouds].precision.mean.shape)
    [[0. 0.]
     [0. 9.]] (2, 2)
    """
    return _known(families.TiedNormalWishart(mean, kappa, dof, rate), (), name)


def dirichlet(concentration: Any, *, plates: Plates = (), name: str = "dirichlet") -> Variable:
    """Unknown probabilities of K classes.

    >>> from klimb.conjugate import categorical, dirichlet, fit
    >>> shares = dirichlet([1.0, 1.0, 1.0])
    >>> result = fit(categorical(shares, plates=(6,)).observe([0, 0, 1, 0, 0, 1]))
    >>> print(result[shares].mean.round(2))  # (1 + 4) / 9, (1 + 2) / 9, 1 / 9
    [0.56 0.33 0.11]
    """
    return _known(Dirichlet(concentration), plates, name)


def beta(a: Any, b: Any, *, plates: Plates = (), name: str = "beta") -> Variable:
    """An unknown probability.

    >>> from klimb.conjugate import bernoulli, beta, fit
    >>> p = beta(1.0, 1.0)
    >>> result = fit(bernoulli(p).observe([1, 0, 1, 1]))
    >>> print(round(float(result[p].mean), 3), result[p].quantile([0.05, 0.95]).round(2))
    0.667 [0.34 0.92]
    """
    return _known(families.Beta(a, b), plates, name)


def categorical(probabilities: Variable | View, *, plates: Plates = (), name: str = "categorical") -> Variable:
    """An unknown class with dirichlet probabilities: the gate of a `mixture`, or data when observed.

    >>> from klimb.conjugate import categorical, dirichlet, fit, gamma, mixture
    >>> kind = categorical(dirichlet([1.0, 1.0]), plates=(6,))  # quiet or busy days, by their counts
    >>> result = fit(mixture(kind, gamma([1.0, 10.0], 1.0)).observe([0, 2, 9, 5, 1, 12]))
    >>> print(result[kind].mean[:, 1].round(2))  # probabilities of the second class
    [0.   0.03 1.   0.97 0.   1.  ]
    """
    return Variable(CategoricalGiven(as_view(probabilities), plates, name), name)


def _known(prior: families.Family, plates: Plates, name: str) -> Variable:
    return Variable(KnownParameters(prior, plates, name), name)
