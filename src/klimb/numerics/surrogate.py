"""A smooth function between the points where it is known: a quadratic trend and a Gaussian process of what is left.

Its gradients may be known as well. Its own leave-one-out errors, which come in closed form, choose the lengthscale and
say how far it can be relied on.
"""

from dataclasses import dataclass, field, replace
from itertools import combinations_with_replacement
from typing import Self

import numpy as np

from klimb.numerics.arrays import Array, Index
from klimb.numerics.dense import cholesky, row_blocks, triangular_inverse

# Lengthscales over the square root of half the dimension, in the units of the points, and the noise at the top as a
# variance over that of what is smooth; it grows with the distance from the top. The last is little but the trend.
TRIED = ((1.0, 1e-5), (1.5, 1e-5), (2.5, 1e-5), (2.5, 1e-7), (4.0, 1e-7), (6.0, 1e-7), (6.0, 1.0))
FIRST = 3  # of these, beside the last; the others are tried while they are better
MOST_UNEVEN = 6.0  # ratio of lengthscales along two directions
LEAST_FALL = 0.05  # curvature of a trend that must fall
SLOPES = 10.0  # noise of gradients over that of values, both relative to what is smooth
MOST_ROWS = 1000  # values and entries of gradients; of more points than half of it some stand for their neighbours
ALONE, MOST_ALONE = 2.0, 4.0  # sqrt(d) from all other points, where nothing is claimed without it, and nats it counts
FAR = 1.5  # lengthscales from the nearest point beyond which nothing above that point's value is claimed
ABOVE, BENT = 0.3, 1.0  # how far above the tangent at the nearest point a claim may be: nats, and for a unit of z^2


@dataclass(frozen=True, eq=False)
class Surrogate:
    """f(z) = q(u) + r(u), u = z ``axes``: ``trend`` are the coefficients of q, ``pull`` those of r at ``points``.

    ``pull`` has those of values, then those of each entry of the gradients at the first of the points.
    """

    points: Array  # (n, d): u
    values: Array  # (n,)
    trend: Array
    pull: Array
    length: float
    error: float  # root of the weighted mean of squared leave-one-out errors
    amplitude: float  # variance of r, by those errors
    half: Array = field(repr=False)  # C^-1 = half' half, C of what is known
    onto: Array = field(repr=False)  # C^-1 X
    spread: Array = field(repr=False)  # (X'C^-1 X)^-1: the covariance of the trend's coefficients over the amplitude
    axes: Array = field(repr=False)  # (d, d)
    slopes: Array = field(repr=False)  # (n, d), NaN where they are not known
    tried: int = FIRST  # which of the lengthscales it has
    plain: float = 0.0  # error of little but the trend

    def __call__(self, z: Array) -> Array:
        """Values at other points; far from known ones no more than the nearest one has, nor far above its tangent."""
        return self.near(z)[0]

    def near(self, z: Array) -> tuple[Array, Array]:
        """The same, and distances from the nearest point."""
        z = z @ self.axes
        out, away, back = quadratics(z) @ self.trend, np.empty(len(z)), np.linalg.inv(self.axes)
        n, d = self.points.shape
        slopes = self.pull[n:].reshape(d, -1).T / self.length**2
        pull = np.zeros((n, 1 + d))  # of values, and of slopes times z
        pull[:, 0], pull[: len(slopes), 1:] = self.pull[:n], slopes
        # The covariance of f(z) with a slope at x is that with f(x) times (z - x) / length^2.
        pull[: len(slopes), 0] -= np.einsum("ij,ij->i", slopes, self.points[: len(slopes)])
        for rows in row_blocks(len(z), n):
            squares = squared_distances(z[rows], self.points)
            nearest = np.argmin(squares, axis=1)
            off = z[rows] - self.points[nearest]
            away[rows] = np.linalg.norm(off @ back, axis=1)
            far = squares[np.arange(len(squares)), nearest] > (FAR * self.length) ** 2
            squares *= -0.5 / self.length**2
            pulled = np.exp(squares, out=squares) @ pull
            out[rows] += pulled[:, 0] + np.einsum("ij,ij->i", pulled[:, 1:], z[rows])
            highest = np.where(far, self.values[nearest], np.inf)
            tangent = np.einsum("ij,ij->i", self.slopes[nearest], off)
            tangent += self.values[nearest] + ABOVE + BENT * away[rows] ** 2
            out[rows] = np.fmin(out[rows], np.fmin(highest, tangent))
        return out, away

    def variances(self, z: Array, known: Array) -> Array:
        """Variances at ``z`` once the function is also known at ``known``, whatever its values there."""
        z, known = z @ self.axes, known @ self.axes
        (k, h), own = self._residuals(z), np.ones(len(z))
        half = k @ self.half.T
        variances = own - np.einsum("ij,ij->i", half, half) + np.einsum("ij,ij->i", h @ self.spread, h)
        if len(known):
            k2, h2 = self._residuals(known)
            half2 = k2 @ self.half.T
            cross = _rbf(z, known, self.length) - half @ half2.T + h @ self.spread @ h2.T
            among = _rbf(known, known, self.length) - half2 @ half2.T + h2 @ self.spread @ h2.T
            among.flat[:: len(known) + 1] += 1e-6
            variances -= np.einsum("ij,ji->i", cross, np.linalg.lstsq(among, cross.T, rcond=1e-10)[0])
        return np.asarray(self.amplitude * np.maximum(variances, 0.0))

    def _residuals(self, z: Array) -> tuple[Array, Array]:
        """Covariances with the points, and the monomials less what the points say of them."""
        k = _rbf(z, self.points, self.length)
        return k, quadratics(z) - k @ self.onto


def fit_surrogate(points: Array, values: Array, weights: Array, *, slopes: Array | None = None,
                  ridge: float = 0.0, like: Surrogate | None = None) -> Surrogate | None:
    """The surrogate through ``values``, whose errors count by ``weights``, and the gradients ``slopes`` (n, d; or NaN).

    None where too little is known for a trend, unless ``ridge`` (a prior precision of its coefficients over the
    amplitude of r) holds it; then it falls in every direction. r varies fastest where gradients do. The lengthscale of
    ``like``, which knew less, is tried first, then those beside it.
    """
    if slopes is not None and len(points) > MOST_ROWS // 2:  # gradients of some say more than values of all
        kept = _apart(points, values, MOST_ROWS // 2)
        points, values, weights, slopes = points[kept], values[kept], weights[kept], slopes[kept]
    n, d = points.shape
    squares = squared_distances(points, points)
    squares.flat[:: n + 1] = np.inf
    most = np.where(squares.min(axis=1) > ALONE**2 * d, MOST_ALONE, np.inf)
    X, known, axes = quadratics(points), values, np.eye(d)
    if slopes is not None:
        without = np.isnan(slopes).any(axis=1)
        steep = int(np.clip((MOST_ROWS - n) // d, 0, n - without.sum()))
        order = np.lexsort((-values, without)) if steep < n else np.arange(n)
        points, values, weights, slopes = points[order], values[order], weights[order], slopes[order]
        most = most[order]
        if steep > d:
            axes = _directions(points[:steep], values[:steep], slopes[:steep])
            points, slopes = points @ axes, slopes @ np.linalg.inv(axes).T
        X = np.vstack([quadratics(points), *_quadratic_slopes(points[:steep])])
        known = np.concatenate([values, slopes[:steep].T.ravel()])
    if len(known) < 1.6 * X.shape[1] and ridge == 0.0:
        return None
    found, last, terms = dict[int, Surrogate](), len(TRIED) - 1, _Terms.of(points, (len(known) - n) // d)
    first = FIRST if like is None else min(like.tried, last - 1)
    for begin, end, way in ((first, last, 1), (first - 1, -1, -1), (last, last + 1, 1)):
        if like is not None and begin == last and 2.0 * min(one.error for one in found.values()) < like.plain:
            break  # the trend alone was far worse
        for number in range(begin, end, way):
            found[number] = _tried(terms, values, weights / weights.sum(), most, known, X, TRIED[number], ridge)
            beside = number != begin or (like is not None and way < 0)
            if beside and found[number].error > found[number - way].error:
                break
    tried = min(found, key=lambda number: found[number].error)
    plain = found[last].error if last in found else like.plain if like is not None else 0.0
    best = replace(found[tried], axes=axes, tried=tried, plain=plain)
    if slopes is not None:
        best = replace(best, slopes=slopes)
    if ridge > 0.0:
        trend = _falling(best.trend, d)
        best = replace(best, trend=trend, pull=best.half.T @ (best.half @ (known - X @ trend)))
    return best


def _apart(points: Array, values: Array, count: int) -> Index:
    """Which points stand for all: from the best one on always the farthest from those chosen, the lower the less."""
    depth = 1.0 + 0.25 * (values.max() - values)
    chosen, away = [int(np.argmax(values))], np.full(len(points), np.inf)
    while len(chosen) < count:
        away = np.minimum(away, np.linalg.norm(points - points[chosen[-1]], axis=1))
        chosen.append(int(np.argmax(away / depth)))
    return np.sort(chosen)


def _directions(points: Array, values: Array, slopes: Array) -> Array:
    """Axes, of volume one, along which the gradients of what a quadratic leaves of a function are equally large."""
    n, d = points.shape
    weights = np.tile(1.0 / (1.0 + values.max() - values), d + 1)
    X = weights[:, None] * np.vstack([quadratics(points), *_quadratic_slopes(points)])
    known = weights * np.concatenate([values, slopes.T.ravel()])
    left = known - X @ np.linalg.lstsq(X, known)[0]
    gradients = left[n:].reshape(d, n)
    squares, axes = np.linalg.eigh(gradients @ gradients.T)
    rates = np.sqrt(np.maximum(squares, squares[-1] / MOST_UNEVEN**2 + 1e-300))
    return np.asarray(axes * rates / np.exp(np.log(rates).mean()))


@dataclass(frozen=True, eq=False)
class _Terms:
    """What covariances among values at ``points``, and gradients at the first of them, have at any lengthscale."""

    points: Array  # (n, d)
    squares: Array  # (n, n): distances
    away: Array  # (d, n, steep): each coordinate of the points less that of those with gradients

    @classmethod
    def of(cls, points: Array, steep: int) -> Self:
        return cls(points, squared_distances(points, points), (points[:, None] - points[:steep]).transpose(2, 0, 1))

    def covariances(self, length: float) -> Array:
        """Of values, and of every entry of the gradients, entry by entry: the upper triangle."""
        d, n, steep = self.away.shape
        K, near = np.empty((n + d * steep, n + d * steep)), np.exp(-0.5 / length**2 * self.squares)
        K[:n, :n], scaled = near, near[:, :steep] / length**2
        for i, own in enumerate(self.away):
            one = slice(n + i * steep, n + (i + 1) * steep)
            np.multiply(own, scaled, out=K[:n, one])
            twice = own[:steep] * scaled[:steep] / -(length**2)
            for j in range(i, d):
                np.multiply(twice, self.away[j, :steep], out=K[one, n + j * steep : n + (j + 1) * steep])
            K[one, one] += scaled[:steep]
        return K


def _tried(terms: _Terms, values: Array, share: Array, most: Array, known: Array, X: Array,
           tried: tuple[float, float], ridge: float) -> Surrogate:
    """With one lengthscale and noise; errors count up to ``most``."""
    points, (n, d) = terms.points, terms.points.shape
    length, (steep, noise) = tried[0] * np.sqrt(0.5 * d), ((len(known) - n) // d, tried[1])
    K, deep = terms.covariances(length), (1.0 + (values.max() - values)) ** 2
    K.flat[:: len(K) + 1] += noise * np.concatenate([deep, *[SLOPES / length**2 * deep[:steep]] * d])
    half = triangular_inverse(cholesky(K.T))
    into = half @ X
    A = into.T @ into
    A.flat[:: len(A) + 1] += ridge
    spread = np.asarray(np.linalg.pinv(A, rcond=1e-12, hermitian=True), dtype=np.float64)
    trend = spread @ (into.T @ (half @ known))
    KX, pull = half.T @ into, half.T @ (half @ (known - X @ trend))
    # P = C^-1 - C^-1 X (X'C^-1 X)^-1 X'C^-1; without all that is known at a point its errors are P_ii^-1 (P y)_i.
    amplitude, errors = 0.0, np.empty(n)
    for some, m in ((slice(0, steep), d + 1), (slice(steep, n), 1)):
        at = np.arange(n)[some, None] + np.concatenate([[0], n + steep * np.arange(m - 1)]).astype(np.intp)
        own, columns = KX[at], half.T[at]
        blocks = columns @ np.swapaxes(columns, 1, 2) - own @ spread @ np.swapaxes(own, 1, 2)
        blocks[:, np.arange(m), np.arange(m)] += 1e-300
        left = np.linalg.solve(blocks, pull[at][:, :, None])[:, :, 0]
        errors[some] = left[:, 0]
        amplitude += float(share[some] @ (pull[at] * left).sum(axis=1)) / m
    error = float(np.sqrt(share @ np.minimum(np.abs(errors), most) ** 2))
    return Surrogate(points, values, trend, pull, length, error, amplitude, half, KX, spread, np.eye(d),
                     np.full((n, d), np.nan))


def _falling(trend: Array, d: int) -> Array:
    """The trend with its curvature made negative in every direction, its value and slope at the origin kept."""
    i, j = np.triu_indices(d)
    H = np.zeros((d, d))
    H[i, j] = trend[d + 1 :]
    found, basis = np.linalg.eigh(H + H.T)
    H = (basis * np.minimum(found, -LEAST_FALL)) @ basis.T
    return np.concatenate([trend[: d + 1], np.where(i == j, 0.5, 1.0) * H[i, j]])


def quadratics(z: Array) -> Array:
    """1, all coordinates, and all products of two of them."""
    columns = [np.ones(len(z)), *z.T]
    columns += [z[:, i] * z[:, j] for i, j in combinations_with_replacement(range(z.shape[1]), 2)]
    return np.column_stack(columns)


def _quadratic_slopes(z: Array) -> list[Array]:
    """The derivatives of those in each coordinate."""
    d = z.shape[1]
    found = [np.zeros((len(z), 1 + d + d * (d + 1) // 2)) for _ in range(d)]
    for i in range(d):
        found[i][:, 1 + i] = 1.0
    for column, (i, j) in enumerate(combinations_with_replacement(range(d), 2), 1 + d):
        found[i][:, column] += z[:, j]
        found[j][:, column] += z[:, i]
    return found


def nearest_of(z: Array, points: Array) -> Index:
    """Which of the points is nearest to each ``z``."""
    return np.concatenate([np.argmin(squared_distances(z[rows], points), axis=1)
                           for rows in row_blocks(len(z), len(points))])


def _rbf(a: Array, b: Array, length: float) -> Array:
    return np.asarray(np.exp(-0.5 * squared_distances(a, b) / length**2))


def squared_distances(a: Array, b: Array) -> Array:
    """Between the rows of two matrices, as one product: |a|^2 - 2 a'b + |b|^2."""
    left = np.column_stack([a, np.einsum("ij,ij->i", a, a), np.ones(len(a))])
    right = np.column_stack([-2.0 * b, np.ones(len(b)), np.einsum("ij,ij->i", b, b)])
    found = left @ right.T
    return np.asarray(np.maximum(found, 0.0, out=found))
