"""Gaussian linear predictors: sums of variables, X w, and products of two variables.

A predictor f offers the moments of f under the factors and turns a quadratic potential -J f^2 / 2 + h f (what a normal
observation or a linearised site says) into messages for the variables inside it.
"""

from abc import ABC, abstractmethod
from functools import cached_property
from typing import Any

import numpy as np

from klimb.conjugate.families import MultivariateNormal, Naturals, Normal
from klimb.conjugate.variables import NetworkState, Plates, Summand, Variable, View, as_view, common_plates, sum_to
from klimb.errors import InputError, require
from klimb.linalg.matrix import as_design
from klimb.numerics.arrays import Array, as_float
from klimb.numerics.dense import row_blocks
from klimb.numerics.lazy import scipy_sparse


class Predictor(Summand, ABC):
    """f, one per plate."""
    plates: Plates
    variables: tuple[Variable, ...]
    gaussian: bool = True  # f is normal when its variables are; not so for products

    @abstractmethod
    def moments(self, state: NetworkState) -> tuple[Array, Array]:
        """Mean and variance of f."""

    def mean(self, state: NetworkState) -> Array:
        """Mean of f alone."""
        return self.moments(state)[0]

    def message(self, to: Variable, J: Array, h: Array, state: NetworkState) -> Naturals:
        """The potential -J f^2 / 2 + h f as a message, all other variables at their factors."""
        raise AssertionError("a constant has no variables")


class KnownMean(Predictor):
    """A number or array: an offset."""

    def __init__(self, value: Any) -> None:
        self.value = as_float(value, "mean")
        self.plates, self.variables = self.value.shape, ()

    def moments(self, state: NetworkState) -> tuple[Array, Array]:
        return self.value, np.zeros(())


class Itself(Predictor):
    """A normal variable, whole or through an index."""

    def __init__(self, view: View) -> None:
        self.view, self.plates, self.variables = view, view.plates, (view.variable,)

    def moments(self, state: NetworkState) -> tuple[Array, Array]:
        factor: Normal = state[self.view.variable]
        m, v = factor.mean, factor.variance
        return (m, v) if self.view.index is None else (m[self.view.index], v[self.view.index])

    def message(self, to: Variable, J: Array, h: Array, state: NetworkState) -> Naturals:
        return self.view.collect((h, -0.5 * J))


class DotPredictor(Predictor):
    """X w, one entry per row of X (dense or sparse), for a multivariate normal w without plates."""

    def __init__(self, X: Any, w: Variable) -> None:
        if w.family is not MultivariateNormal or w.plates:
            raise InputError(f"dot(X, {w.name}) needs a multivariate_normal without plates", f"{w!r}",
                             "Use inner(u[i], v[j]) for variables with plates.")
        self.X, self.variables = as_design(X, "X"), (w,)
        require(self.X.shape[1] == w.dimension, f"X must have one column per entry of {w.name} ({w.dimension})",
                f"shape {self.X.shape}", f"Declare {w.name} with dimension {self.X.shape[1]}.")
        self.plates = (self.X.shape[0],)

    def moments(self, state: NetworkState) -> tuple[Array, Array]:
        factor: MultivariateNormal = state[self.variables[0]]
        root = np.asarray(np.linalg.inv(factor.root).T, dtype=float)  # covariance = root root'
        variance, mean = self.X.row_norms_squared(root, upper=True, times=factor.mean)
        return mean, variance

    @cached_property
    def _gram(self) -> Array:
        return self.X.weighted_gram(np.ones(self.X.shape[0]))

    def message(self, to: Variable, J: Array, h: Array, state: NetworkState) -> Naturals:
        J, h = np.broadcast_to(J, self.plates), np.array(np.broadcast_to(h, self.plates))
        if J.strides == (0,) or np.all(J[0] == J):  # one precision for all rows: X'X serves every sweep
            return self.X.transpose_times(h), -0.5 * J[0] * self._gram
        return self.X.transpose_times(h), -0.5 * self.X.weighted_gram(np.array(J))


class Inner(Predictor):
    """sum_k u_k v_k of two multivariate normals: rows and columns of a matrix factorisation.

    ``inner(u[i], v[j])`` gives one f per pair (i, j); ``inner(u, v)`` of plates (N,) and (D,) all N x D of them.
    """

    gaussian = False

    def __init__(self, u: View, v: View) -> None:
        for view in (u, v):
            if view.variable.family is not MultivariateNormal or len(view.variable.plates) != 1:
                raise InputError("inner needs two multivariate_normal variables with one plate each",
                                 f"{view.variable!r}", "Declare plates=(n_rows,).")
        require(u.variable is not v.variable, "inner needs two different variables", f"{u.variable.name} twice",
                "A symmetric factorisation is not conditionally conjugate.")
        if (u.index is None) != (v.index is None):
            raise InputError("inner needs an index for both variables or for neither", "one of each",
                             "Write inner(u[i], v[j]) for observed pairs, inner(u, v) for all pairs.")
        require(u.variable.dimension == v.variable.dimension, "inner needs equal dimensions",
                f"{u.variable.dimension} and {v.variable.dimension}", "Both are the rank of the factorisation.")
        self.u, self.v = u, v
        self._seen: tuple[Any, Any, tuple[Array, Array]] | None = None
        self.variables = (u.variable, v.variable)
        self.pairs = u.index is not None
        self.plates = common_plates("inner", u.plates, v.plates) if self.pairs else (*u.plates, *v.plates)

    def mean(self, state: NetworkState) -> Array:
        u, v = (state[variable].mean for variable in self.variables)
        return sampled_product(u, v, self.u.index, self.v.index) if self.pairs else np.asarray(u @ v.T)

    def moments(self, state: NetworkState) -> tuple[Array, Array]:
        u, v = (state[variable] for variable in self.variables)
        if self._seen is None or self._seen[0] is not u or self._seen[1] is not v:
            # Var(u'v) = mu'Vv mu + mv'Vu mv + tr(Vu Vv) = <Vu, Vv + mv mv'> + <mu mu', Vv>
            left = np.hstack([packed(u.covariance, twice=True), packed(outer(u.mean))])
            right = np.hstack([packed(v.covariance + outer(v.mean)), packed(v.covariance, twice=True)])
            variance = sampled_product(left, right, self.u.index, self.v.index) if self.pairs else left @ right.T
            self._seen = u, v, (self.mean(state), variance)
        return self._seen[2]

    @cached_property
    def _by_row(self) -> dict[Variable, Any]:
        """For each side, the pattern that adds up entries over the other: (indices, indptr, order of the entries)."""
        out: dict[Variable, Any] = {}
        for this, other in ((self.u, self.v), (self.v, self.u)):
            assert this.index is not None
            assert other.index is not None
            order = np.argsort(this.index, kind="stable")
            counts = np.bincount(this.index, minlength=this.variable.plates[0])
            out[this.variable] = (other.index[order], np.concatenate([[0], np.cumsum(counts)]), order)
        return out

    def message(self, to: Variable, J: Array, h: Array, state: NetworkState) -> Naturals:
        first = to is self.u.variable
        other: MultivariateNormal = state[self.variables[1 if first else 0]]
        mean, second = other.mean, packed(other.covariance + outer(other.mean))
        J, h = np.broadcast_to(J, self.plates), np.broadcast_to(h, self.plates)
        if self.pairs:
            indices, indptr, order = self._by_row[to]
            shape = (to.plates[0], len(mean))
            precision = scipy_sparse.csr_array((J[order], indices, indptr), shape=shape) @ second
            linear = scipy_sparse.csr_array((h[order], indices, indptr), shape=shape) @ mean
        else:
            precision = (J if first else J.T) @ second
            linear = (h if first else h.T) @ mean
        return np.asarray(linear), -0.5 * unpacked(np.asarray(precision), mean.shape[1])


class SumPredictor(Predictor):
    """Independent predictors added up."""

    def __init__(self, terms: tuple[Predictor, ...]) -> None:
        nested = (term.terms if isinstance(term, SumPredictor) else (term,) for term in terms)
        self.terms: tuple[Predictor, ...] = tuple(part for parts in nested for part in parts)
        self.variables = tuple(variable for term in self.terms for variable in term.variables)
        names = [variable.name for variable in self.variables]
        if len(set(self.variables)) < len(self.variables):
            twice = next(name for name in names if names.count(name) > 1)
            raise InputError("a sum of predictors must use each variable once", f"{twice} twice",
                             "Add the matrices first: dot(A + B, w).")
        self.plates = common_plates("a sum", *(term.plates for term in self.terms))
        self.gaussian = all(term.gaussian for term in self.terms)

    def moments(self, state: NetworkState) -> tuple[Array, Array]:
        means, variances = zip(*(term.moments(state) for term in self.terms), strict=True)
        return sum(means, np.zeros(self.plates)), sum(variances, np.zeros(self.plates))

    def message(self, to: Variable, J: Array, h: Array, state: NetworkState) -> Naturals:
        target = next(term for term in self.terms if to in term.variables)
        rest = sum((term.mean(state) for term in self.terms if term is not target), np.zeros(()))
        # f = target + rest: the linear part loses what the rest explains
        J, h = np.broadcast_to(J, self.plates), np.broadcast_to(h - J * rest, self.plates)
        return target.message(to, sum_to(J, target.plates, 0), sum_to(h, target.plates, 0), state)


def dot(X: Any, w: Variable) -> DotPredictor:
    """The linear predictor X w.

    >>> from klimb.conjugate import dot, fit, gamma, multivariate_normal, normal
    >>> x = np.linspace(0.0, 1.0, 30)
    >>> w, noise = multivariate_normal(0.0, 0.01, dimension=2), gamma(1e-3, 1e-3)
    >>> y = 1.0 + 3.0 * x + 0.1 * np.sin(np.arange(30.0) ** 2)
    >>> result = fit(normal(dot(np.column_stack([np.ones(30), x]), w), noise).observe(y))
    >>> print(result[w].mean.round(1), round(float(result[noise].mean ** -0.5), 2))
    [1. 3.] 0.07
    """
    return DotPredictor(X, w)


def inner(u: Variable | View, v: Variable | View) -> Inner:
    """The product u'v, for every pair of an index or for all pairs.

    >>> from klimb.conjugate import fit, gamma, inner, multivariate_normal, normal
    >>> from klimb.conjugate.families import MultivariateNormal
    >>> table = np.outer([1.0, -1.0, 2.0, 3.0], [1.0, -2.0, 2.0, 1.0])
    >>> table[2, 1] = np.nan  # was 2 times -2
    >>> u, v = (multivariate_normal(0.0, 0.1, dimension=1, plates=(4,)) for _ in range(2))
    >>> start = {v: MultivariateNormal(np.ones((4, 1)), np.ones((4, 1, 1)))}  # not at zero, where nothing moves
    >>> result = fit(normal(inner(u, v), gamma(1e-3, 1e-3)).observe(table), start=start)
    >>> round(float(result[u].mean[2] @ result[v].mean[1]), 2)
    -4.0
    """
    return Inner(as_view(u), as_view(v))


def as_predictor(value: Any) -> Predictor:
    """Numbers, normal variables and predictors as a predictor."""
    if isinstance(value, Predictor):
        return value
    if isinstance(value, Variable | View):
        view = as_view(value)
        require(view.variable.family is Normal, "a mean must be a number, a normal variable or a predictor",
                f"{view.variable!r}", "Use dot(X, w) for a multivariate normal w.")
        return Itself(view)
    return KnownMean(value)


def sampled_product(left: Array, right: Array, rows: Any, columns: Any) -> Array:
    """left[rows] . right[columns], in blocks that stay in cache."""
    out = np.empty(len(rows))
    for part in row_blocks(len(out), 2 * left.shape[1]):
        np.einsum("ek,ek->e", left[rows[part]], right[columns[part]], out=out[part])
    return out


def outer(mean: Array) -> Array:
    """mean mean', plate by plate."""
    return mean[..., :, None] * mean[..., None, :]


def packed(matrix: Array, *, twice: bool = False) -> Array:
    """The lower triangles of symmetric matrices, row by row; ``twice`` counts what stands off the diagonal twice."""
    i, j = np.tril_indices(matrix.shape[-1])
    values = matrix[..., i, j]
    return values * np.where(i == j, 1.0, 2.0) if twice else values


def unpacked(values: Array, D: int) -> Array:
    """Symmetric matrices from their lower triangles."""
    i, j = np.tril_indices(D)
    full = np.empty((*values.shape[:-1], D, D))
    full[..., i, j] = values
    full[..., j, i] = values
    return full

