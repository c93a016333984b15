"""Columns freed of the terms marginal to them, so that priors do not depend on anybody's origin or unit.

The coefficient of a product such as t:belt is that of whatever t:belt adds to t and belt. Its default prior acts on
that part alone: each column less its least-squares fit by the columns marginal to it,

    Z = X U,    U unit upper triangular in the order of the terms,    f = Z w = X (U w),

so that the coefficients of the columns as they are written are U w. Main effects are freed of the constant (centred), a
product of its factors and of the constant, a raw power of lower powers; unrelated neighbours are left alone.
"""

from collections.abc import Sequence

import numpy as np

from klimb.formula.factors import Factor, LevelFactor, Product
from klimb.formula.numeric import PolynomialBasis
from klimb.numerics.arrays import Array, Index, Mask
from klimb.numerics.dense import row_blocks
from klimb.terms.column_moments import ColumnMoments

NEGLIGIBLE = 1e-10  # of the largest singular value: directions below it are not in the margin
ROUNDING = 64 * float(np.finfo(float).eps)  # of what a column is a difference of: less is nothing


def owners(products: Sequence[Product], factors: dict[str, Factor]) -> Index:
    """Which product each column belongs to."""
    sizes = [int(np.prod([len(factors[key].names(full)) for key, full in product], dtype=np.int64))
             for product in products]
    return np.repeat(np.arange(len(products)), sizes)


def constant_in(products: Sequence[Product], factors: dict[str, Factor]) -> Array | None:
    """Coefficients that make the constant: the intercept's, or those of cells in full; None where nothing makes it."""
    owner = owners(products, factors)
    for number, product in enumerate(products):
        if all(full and isinstance(factors[key], LevelFactor) for key, full in product):
            return np.asarray(owner == number, dtype=np.float64)
    return None


def freed(X: Array, products: Sequence[Product], factors: dict[str, Factor], shares: Array,
          left_alone: Mask, moments: ColumnMoments | None = None) -> Array:
    """U: ``X @ U`` are the columns freed of their margins; those ``left_alone`` are not taken out of others."""
    moments = ColumnMoments.of(X, shares) if moments is None else moments
    owner = owners(products, factors)
    U, constant = np.eye(X.shape[1]), constant_in(products, factors)
    if constant is not None and () not in products and left_alone[constant > 0.0].any():
        constant = None  # cells with priors of their own: what is taken out of others would move them
    for number, product in enumerate(products):
        if not product:
            continue
        own = np.flatnonzero(owner == number)
        keys = {key for key, _ in product}
        below = [k for k, other in enumerate(products) if other and {key for key, _ in other} < keys]
        margin = np.flatnonzero(np.isin(owner, below) & ~left_alone)
        level = None if constant is None or constant[own].any() else constant  # cells in full make the constant
        degree = _degrees(product, factors)
        for power in np.unique(degree):
            lower, now = own[degree < power], own[degree == power]
            regressors = np.concatenate([margin, lower[~left_alone[lower]]])
            U[:, now] = _residual_map(X, shares, regressors, now, level, moments.mean)
    gone = _largest(X, U, moments) <= ROUNDING * (moments.size @ np.abs(U))  # its margins make up the column:
    U[:, gone] = np.eye(len(U))[:, gone]  # nothing is left to scale a prior by
    return U


def _largest(X: Array, U: Array, moments: ColumnMoments) -> Array:
    """Largest absolute entry of every column of X U: by ranges where at most a constant is taken out."""
    mixed = U - np.eye(len(U))
    constant = moments.low == moments.high
    if not mixed[~constant].any():
        step = moments.low[constant] @ mixed[constant]
        return np.asarray(np.maximum(np.abs(moments.low + step), np.abs(moments.high + step)))
    found = np.zeros(len(U))
    for rows in row_blocks(*X.shape):
        np.maximum(found, np.abs(X[rows] @ U).max(axis=0), out=found)
    return found


def _residual_map(X: Array, shares: Array, regressors: Index, own: Index,
                  constant: Array | None, mean: Array) -> Array:
    """Columns of U: 1 at each of ``own``, minus the least-squares coefficients of the regressors and the constant."""
    out = np.zeros((X.shape[1], len(own)))
    out[own, np.arange(len(own))] = 1.0
    middle, centre = (mean[regressors], mean[own]) if constant is not None else (
        np.zeros(len(regressors)), np.zeros(len(own)))
    if len(regressors):
        columns = X[:, regressors]
        root = np.sqrt(shares)[:, None]
        spread = root * (columns - middle)
        size = np.sqrt((spread**2).sum(axis=0))
        size[size == 0.0] = 1.0
        found = np.linalg.lstsq(spread / size, root * (X[:, own] - centre), rcond=NEGLIGIBLE)[0] / size[:, None]
        out[regressors] -= found
        centre = centre - middle @ found
    if constant is not None:
        out -= np.outer(constant, centre)
    return out


def _degrees(product: Product, factors: dict[str, Factor]) -> Index:
    """Of the columns of a product as polynomials: each is freed of the lower ones."""
    degree = np.zeros(1, dtype=np.intp)
    for key, full in product:
        factor = factors[key]
        power = not isinstance(factor, LevelFactor) and isinstance(factor.basis, PolynomialBasis)
        own = np.arange(len(factor.names(full))) * power
        degree = (own[:, None] + degree).ravel()
    return degree
