"""How a network is written: one small function per kind of node."""

from __future__ import annotations

from typing import Any

import numpy as np

from klimb.conjugate import conditionals, families
from klimb.conjugate.means import as_predictor
from klimb.conjugate.variables import Plates, Variable, View, as_view
from klimb.errors import InputError
from klimb.numerics.arrays import as_float


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
        if view.variable.family is not families.Gamma:
            raise InputError(f"the rate of {name} must be a number or a gamma variable", f"{view.variable!r}",
                             "Only a gamma is conjugate to the rate of a gamma.")
        return Variable(conditionals.GammaGiven(shape, view, plates, name), name)
    return _known(families.Gamma(shape, rate), plates, name)


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
    scale = conditionals.Scale(precision, name)
    return Variable(conditionals.NormalGiven(as_predictor(mean), scale, plates, name), name)


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
        if precision.family is families.Wishart:
            size = precision.dimension
        elif precision.plates:
            size = precision.plates[0]
        else:
            size = dimension or np.shape(mean)[-1] if dimension or np.ndim(mean) else 0
        if size < 1 or (dimension is not None and dimension != size):
            raise InputError(f"{name} needs its dimension", f"dimension {dimension} and precision {precision!r}",
                             "Pass dimension=D.")
        return Variable(conditionals.MultivariateGiven(mean, precision, size, plates, name), name)
    P = as_float(precision, f"the precision of {name}")
    if P.ndim < 2:
        size = dimension or max(P.shape[-1:] + np.shape(mean)[-1:] + (1,))
        P = np.eye(size) * np.broadcast_to(P, (size,))
    m = np.broadcast_to(as_float(mean, f"the mean of {name}"), (*np.shape(mean)[:-1], P.shape[-1]))
    return _known(families.MultivariateNormal(m, P), plates, name)


def wishart(dof: Any, rate: Any, *, plates: Plates = (), name: str = "wishart") -> Variable:
    """An unknown precision matrix with mean dof * rate^-1.

    >>> from klimb.conjugate import dot, fit, multivariate_normal, normal, wishart
    >>> lines = np.random.default_rng(0).normal(size=(40, 2)) @ [[1.0, -0.8], [0.0, 0.6]]  # levels and slopes
    >>> X = np.column_stack([np.ones(5), np.linspace(-1, 1, 5)])
    >>> spread = wishart(3.0, np.eye(2))
    >>> groups = [(multivariate_normal(0.0, spread), line) for line in lines]
    >>> result = fit(*(normal(dot(X, w), 100.0).observe(X @ line) for w, line in groups))
    >>> C = np.linalg.inv(result[spread].mean)
    >>> correlation = C[0, 1] / np.sqrt(C[0, 0] * C[1, 1])
    >>> print(round(float(correlation), 2), round(float(np.corrcoef(lines.T)[0, 1]), 2))  # learnt, and of the lines
    -0.74 -0.77
    """
    return _known(families.Wishart(dof, rate), plates, name)


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
    >>> from klimb.conjugate.families import Categorical
    >>> X = np.random.default_rng(0).normal(size=(90, 2)) * [1.0, 0.2]
    >>> X[60:, 1] += 2.0  # two flat clouds, one above the other
    >>> cloud = normal_wishart([0.0, 0.0], 0.1, 3.0, np.eye(2), plates=(2,))
    >>> group = categorical(dirichlet([1.0, 1.0]), plates=(90,))
    >>> start = {group: Categorical(np.where(X[:, 1:] > 1.0, [0.2, 0.8], [0.8, 0.2]))}  # a first guess
    >>> result = fit(mixture(group, cloud).observe(X), start=start)
    >>> sd = np.sqrt(np.diag(np.linalg.inv(result[cloud].precision.mean[0])))
    >>> print(result[cloud].mean[:, 1].round(1) + 0.0, sd.round(1))  # heights of both, spread of the first
    [0. 2.] [0.9 0.2]
    """
    return _known(families.NormalWishart(mean, kappa, dof, rate), plates, name)


def tied_normal_wishart(mean: Any, kappa: Any, dof: Any, rate: Any, *, name: str = "tied_normal_wishart") -> Variable:
    """K mean vectors (rows of ``mean``) that share one precision matrix.

    >>> from klimb.conjugate import categorical, dirichlet, fit, mixture, tied_normal_wishart
    >>> from klimb.conjugate.families import Categorical
    >>> X = np.random.default_rng(0).normal(size=(90, 2)) * [1.0, 0.2]
    >>> X[60:, 1] += 2.0
    >>> clouds = tied_normal_wishart(np.zeros((2, 2)), 0.1, 3.0, np.eye(2))
    >>> group = categorical(dirichlet([1.0, 1.0]), plates=(90,))
    >>> start = {group: Categorical(np.where(X[:, 1:] > 1.0, [0.2, 0.8], [0.8, 0.2]))}  # a first guess
    >>> result = fit(mixture(group, clouds).observe(X), start=start)
    >>> sd = np.sqrt(np.diag(np.linalg.inv(result[clouds].precision.mean)))
    >>> print(result[clouds].mean[:, 1].round(1) + 0.0, sd.round(1))  # heights of both, the spread they share
    [0. 2.] [1.  0.2]
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
    return _known(families.Dirichlet(concentration), plates, name)


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
    return Variable(conditionals.CategoricalGiven(as_view(probabilities), plates, name), name)


def _known(prior: families.Family, plates: Plates, name: str) -> Variable:
    return Variable(conditionals.KnownParameters(prior, plates, name), name)
