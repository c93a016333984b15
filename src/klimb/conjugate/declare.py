"""How a network is written: one small function per kind of node."""

from __future__ import annotations

from typing import Any

import numpy as np

from klimb.conjugate.conditionals import CategoricalGiven, Fixed, GammaGiven, MultivariateGiven, NormalGiven, Scale
from klimb.conjugate.families import (
    Beta,
    Dirichlet,
    Gamma,
    MultivariateNormal,
    NormalGamma,
    NormalWishart,
    TiedNormalWishart,
    Wishart,
)
from klimb.conjugate.means import as_predictor
from klimb.conjugate.variables import Plates, State, Variable, View, as_view
from klimb.errors import InputError
from klimb.numerics.arrays import as_float


def gamma(shape: Any, rate: Any, *, plates: Plates = (), name: str = "gamma") -> Variable:
    """A positive unknown: a precision or a rate. ``rate`` may itself be a gamma variable."""
    if isinstance(rate, Variable | View):
        view = as_view(rate)
        if view.variable.family is not Gamma:
            raise InputError(f"the rate of {name} must be a number or a gamma variable", f"{view.variable!r}",
                             "Only a gamma is conjugate to the rate of a gamma.")  # fmt: skip
        return Variable(GammaGiven(shape, view, plates, name), name)
    return Variable(Fixed(Gamma(shape, rate), plates, name), name)


def normal(mean: Any = 0.0, precision: Any = 1.0, *, plates: Plates = (), name: str = "normal") -> Variable:
    """A real unknown, or data when ``.observe(values)`` is called.

    ``mean`` is a number, a normal variable, or a predictor (``dot(X, w) + u[group] + offset``); ``precision`` a number,
    a gamma variable, or a tuple of these to be multiplied.
    """
    return Variable(NormalGiven(as_predictor(mean), Scale(precision, name), plates, name), name)


def multivariate_normal(mean: Any = 0.0, precision: Any = 1.0, *, dimension: int | None = None, plates: Plates = (),
                        name: str = "multivariate_normal") -> Variable:  # fmt: skip
    """A vector of unknowns.

    ``precision`` is a number, a matrix, a gamma variable (one for all entries, or plates (D,) for one each: automatic
    relevance), or a wishart variable.
    """
    if isinstance(precision, Variable):
        if precision.family is Wishart:
            size = int(precision.conditional.natural(State())[1].shape[-1])
        elif precision.plates:
            size = precision.plates[0]
        else:
            size = dimension or np.shape(mean)[-1] if dimension or np.ndim(mean) else 0
        if size < 1 or (dimension is not None and dimension != size):
            raise InputError(f"{name} needs its dimension", f"dimension {dimension} and precision {precision!r}",
                             "Pass dimension=D.")  # fmt: skip
        return Variable(MultivariateGiven(mean, precision, size, plates, name), name)
    P = as_float(precision, f"the precision of {name}")
    if P.ndim < 2:
        size = dimension or max(P.shape[-1:] + np.shape(mean)[-1:] + (1,))
        P = np.eye(size) * np.broadcast_to(P, (size,))
    m = np.broadcast_to(as_float(mean, f"the mean of {name}"), (*np.shape(mean)[:-1], P.shape[-1]))
    return Variable(Fixed(MultivariateNormal(m, P), plates, name), name)


def wishart(dof: Any, rate: Any, *, plates: Plates = (), name: str = "wishart") -> Variable:
    """An unknown precision matrix with mean dof * rate^-1."""
    return Variable(Fixed(Wishart(dof, rate), plates, name), name)


def normal_gamma(mean: Any, kappa: Any, shape: Any, rate: Any, *, plates: Plates = (),
                 name: str = "normal_gamma") -> Variable:  # fmt: skip
    """A mean and its precision: components of a mixture of numbers, plates (K,) or (K, D)."""
    return Variable(Fixed(NormalGamma(mean, kappa, shape, rate), plates, name), name)


def normal_wishart(mean: Any, kappa: Any, dof: Any, rate: Any, *, plates: Plates = (),
                   name: str = "normal_wishart") -> Variable:  # fmt: skip
    """A mean vector and its precision matrix: components of a mixture of vectors, plates (K,)."""
    return Variable(Fixed(NormalWishart(mean, kappa, dof, rate), plates, name), name)


def tied_normal_wishart(mean: Any, kappa: Any, dof: Any, rate: Any, *, name: str = "tied_normal_wishart") -> Variable:
    """K mean vectors (rows of ``mean``) that share one precision matrix."""
    return Variable(Fixed(TiedNormalWishart(mean, kappa, dof, rate), (), name), name)


def dirichlet(concentration: Any, *, plates: Plates = (), name: str = "dirichlet") -> Variable:
    """Unknown probabilities of K classes."""
    return Variable(Fixed(Dirichlet(concentration), plates, name), name)


def beta(a: Any, b: Any, *, plates: Plates = (), name: str = "beta") -> Variable:
    """An unknown probability."""
    return Variable(Fixed(Beta(a, b), plates, name), name)


def categorical(probabilities: Variable | View, *, plates: Plates = (), name: str = "categorical") -> Variable:
    """An unknown class with dirichlet probabilities: the gate of a `mixture`, or data when observed."""
    return Variable(CategoricalGiven(as_view(probabilities), plates, name), name)

