"""The conjugate conditionals: what each variable may depend on, and what it says about its parents."""

from __future__ import annotations

from typing import Any, final

import numpy as np
from scipy.special import gammaln

from klimb.conjugate.families import Categorical, Dirichlet, Gamma, MultivariateNormal, Normal, Wishart
from klimb.conjugate.families.base import Family, Naturals
from klimb.conjugate.means import Predictor, outer
from klimb.conjugate.variables import Conditional, NetworkState, Plates, Variable, View, as_view, common_plates, sum_to
from klimb.errors import InputError
from klimb.numerics.arrays import Array, as_float
from klimb.numerics.special import HALF_LOG_2PI


@final
class KnownParameters(Conditional):
    """A prior with known parameters: one member of the family for every plate."""

    def __init__(self, prior: Family, plates: Plates, name: str) -> None:
        self.family, self.variables = type(prior), ()
        self.plates = common_plates(name, prior.plates, plates)
        self.prior = type(prior).from_natural(tuple(
            np.broadcast_to(part, (*self.plates, *part.shape[part.ndim - ndim :]))
            for part, ndim in zip(prior.natural, prior.event_ndims, strict=True)
        ))
        self._log_partition = self.prior.log_partition()
        self.dimension = next((part.shape[-1] for part, ndim in zip(prior.natural, prior.event_ndims, strict=True)
                               if ndim), 1)

    def natural(self, state: NetworkState) -> Naturals:
        return self.prior.natural

    def log_partition(self, state: NetworkState) -> Array:
        return self._log_partition


@final
class Scale:
    """A precision: a number, a gamma variable (whole or indexed), or a product of these."""

    def __init__(self, value: Any, name: str) -> None:
        self.known: Array = np.ones(())
        self.views: tuple[View, ...] = ()
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, Variable | View):
                view = as_view(part)
                if view.variable.family is not Gamma:
                    raise InputError(f"the precision of {name} must be a number or a gamma variable",
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
        others: Any = self.known
        target: View | None = None
        for view in self.views:
            if view.variable is to:
                target = view
            else:
                others = others * view.moments(state)[1]
        assert target is not None
        return target.collect(tuple(np.broadcast_arrays(half_count, -half_square * others)))


@final
class NormalGiven(Conditional):
    """x ~ Normal(predictor, precision)."""

    family = Normal

    def __init__(self, mean: Predictor, precision: Scale, plates: Plates, name: str) -> None:
        self.mean, self.precision = mean, precision
        self.plates = common_plates(name, mean.plates, precision.plates, plates)
        self.variables = (*mean.variables, *precision.variables)
        if len(set(self.variables)) < len(self.variables):
            raise InputError(f"{name} must use each variable in one place", ", ".join(v.name for v in self.variables),
                             "A variable that is both in the mean and in the precision, or twice in one of them, has "
                             "no conjugate factor.")

    def natural(self, state: NetworkState) -> Naturals:
        tau, m, shape = self.precision.moments(state)[1], self.mean.mean(state), self.plates
        return np.broadcast_to(tau * m, shape), np.broadcast_to(-0.5 * tau, shape)

    def log_partition(self, state: NetworkState) -> Array:
        log_tau, tau = self.precision.moments(state)
        m, v = self.mean.moments(state)
        return np.broadcast_to(0.5 * tau * (m * m + v) - 0.5 * log_tau + HALF_LOG_2PI, self.plates)

    def squared_error(self, x: Naturals, state: NetworkState) -> Array:
        """E (x - mean)^2."""
        m, v = self.mean.moments(state)
        mean, second = x
        return np.asarray((second - mean * mean) + v + (mean - m) ** 2)

    def expected_log(self, x: Naturals, state: NetworkState) -> Array:
        """E log p(x | parents), without the cancellation of its two large halves."""
        log_tau, tau = self.precision.moments(state)
        return np.asarray(0.5 * log_tau - HALF_LOG_2PI - 0.5 * tau * self.squared_error(x, state))

    def message(self, to: Variable, x: Naturals, weight: Array, state: NetworkState) -> Naturals:
        if to in self.precision.variables:
            square = 0.5 * weight * self.squared_error(x, state)
            half = np.broadcast_to(0.5 * weight, self.plates)
            return self.precision.message(to, half, np.broadcast_to(square, self.plates), state)
        J = np.broadcast_to(weight * self.precision.moments(state)[1], self.plates)
        return self.mean.message(to, J, J * x[0], state)


@final
class MultivariateGiven(Conditional):
    """x ~ MultivariateNormal(mean, precision): precision a gamma per entry (ARD), one gamma, or a Wishart variable."""

    family = MultivariateNormal

    def __init__(self, mean: Any, precision: Variable, dimension: int, plates: Plates, name: str) -> None:
        self.dimension, self.precision = dimension, precision
        wanted = {Gamma: ((), (dimension,)), Wishart: ((),)}.get(precision.family, ())
        if precision.plates not in wanted:
            raise InputError(f"the precision of {name} must be a gamma without plates or with plates ({dimension},), "
                             "or a wishart without plates", f"{precision!r}",
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


@final
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


@final
class CategoricalGiven(Conditional):
    """x ~ Categorical(p) with a Dirichlet variable p."""

    family = Categorical

    def __init__(self, probabilities: View, plates: Plates, name: str) -> None:
        if probabilities.variable.family is not Dirichlet:
            raise InputError(f"the probabilities of {name} must be a dirichlet variable", f"{probabilities.variable!r}",
                             "Declare dirichlet(numpy.full(K, 1.0)).")
        self.probabilities, self.variables = probabilities, (probabilities.variable,)
        self.dimension = probabilities.variable.dimension
        self.plates = common_plates(name, probabilities.plates, plates)

    def natural(self, state: NetworkState) -> Naturals:
        (log_p,) = self.probabilities.moments(state)
        return (np.broadcast_to(log_p, (*self.plates, log_p.shape[-1])),)

    def log_partition(self, state: NetworkState) -> Array:
        return np.zeros(self.plates)

    def message(self, to: Variable, x: Naturals, weight: Array, state: NetworkState) -> Naturals:
        indicators = np.broadcast_to(x[0], (*self.plates, x[0].shape[-1]))
        return self.probabilities.collect((np.broadcast_to(weight, self.plates)[..., None] * indicators,))
