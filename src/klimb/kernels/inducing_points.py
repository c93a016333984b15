"""Where to put inducing points: greedy conditional variance, or the seeds of k-means++."""

from typing import Any, Literal

import numpy as np

from klimb.errors import InputError, require
from klimb.kernels.base import Kernel
from klimb.kernels.parameters import as_points
from klimb.numerics.arrays import Array

EXPLAINED = 1e-10  # of the largest prior variance: what is left of it there counts as nothing
MOST_CANDIDATES = 20_000  # rows among which points are chosen; more are thinned evenly at random
ENOUGH = 1e-3  # share of the prior variance that "auto" leaves unexplained
MOST_AUTOMATIC = 500

Method = Literal["greedy", "kmeans++"]


class GreedyPoints:
    """Points, each the input least explained by those before: a pivoted Cholesky factorisation that can be extended."""

    def __init__(self, kernel: Kernel, X: Array) -> None:
        self._kernel, self._X = kernel, X
        self._left = kernel.diag(X).copy()
        self._total, self._largest = float(self._left.sum()), float(self._left.max())
        self._columns = np.empty((0, len(X)))
        self._chosen: list[int] = []

    @property
    def unexplained(self) -> float:
        """Share of the prior variance at all candidates that the points leave unexplained."""
        return float(self._left.sum()) / self._total if self._total > 0 else 0.0

    @property
    def exhausted(self) -> bool:
        """Whether any further point would repeat the others."""
        return bool(self._left.max() <= EXPLAINED * self._largest)

    def extend(self, count: int, *, enough: float = 0.0) -> Array:
        """Go on to ``count`` points, or until no more than the share ``enough`` is unexplained; all points so far."""
        if count > len(self._columns):
            self._columns = np.vstack([self._columns[: len(self._chosen)],
                                       np.empty((count - len(self._chosen), len(self._X)))])
        while len(self._chosen) < count and not self.exhausted and self.unexplained > enough:
            k, pivot = len(self._chosen), int(self._left.argmax())
            column = self._kernel.gram(self._X, self._X[pivot : pivot + 1])[:, 0]
            column -= self._columns[:k, pivot] @ self._columns[:k]
            column /= np.sqrt(self._left[pivot])
            self._columns[k] = column
            self._left = np.maximum(self._left - column**2, 0.0)
            self._left[pivot] = 0.0
            self._chosen.append(pivot)
        return self._X[self._chosen]


def choose_inducing(kernel: Kernel, X: Any, count: int, *, method: Method = "greedy", seed: int = 0) -> Array:
    """``count`` rows of ``X`` to serve as inducing points (fewer if the others would repeat them).

    "greedy" takes the input least explained by those before it. "kmeans++" draws each with probability proportional to
    the squared distance, measured by the kernel, to the nearest one before it: it follows the density of the data,
    where greedy spreads to their edges. Both are deterministic for a given ``seed``. Of more than 20,000 rows, that
    many are looked at.

    >>> from klimb.kernels import RBF
    >>> choose_inducing(RBF(), np.linspace(0.0, 4.0, 9), 2, method="kmeans++").shape
    (2, 1)
    """
    inputs = _inputs(X)
    require(1 <= count <= len(inputs), f"the number of inducing points must lie between 1 and {len(inputs)}", count,
            "Fewer points than data make it a sparse Gaussian process.")
    if method not in ("greedy", "kmeans++"):
        raise InputError('method must be "greedy" or "kmeans++"', repr(method), "Leave it out for greedy.")
    pool = candidates(inputs, seed, count)
    return GreedyPoints(kernel, pool).extend(count) if method == "greedy" else _kmeans_seeds(kernel, pool, count, seed)


def explaining_points(kernel: Kernel, X: Any, *, enough: float = ENOUGH, most: int = MOST_AUTOMATIC) -> Array:
    """Greedy points until at most the share ``enough`` of the prior variance is unexplained: ``inducing="auto"``."""
    pool = candidates(_inputs(X), 0, most)
    return GreedyPoints(kernel, pool).extend(min(most, len(pool)), enough=enough)


def candidates(X: Array, seed: int, count: int) -> Array:
    """The rows among which points are chosen: all of them, or an even random part of very many."""
    size = max(MOST_CANDIDATES, 4 * count)
    if len(X) <= size:
        return X
    return X[np.sort(np.random.default_rng(seed).choice(len(X), size, replace=False))]


def _kmeans_seeds(kernel: Kernel, X: Array, count: int, seed: int) -> Array:
    """Distances are those of the kernel: |phi(x) - phi(z)|^2 = k(x, x) - 2 k(x, z) + k(z, z)."""
    rng = np.random.default_rng(seed)
    own = kernel.diag(X)
    chosen = [int(rng.integers(len(X)))]
    nearest = np.full(len(X), np.inf)
    while True:
        last = chosen[-1]
        cross = kernel.gram(X, X[last : last + 1])[:, 0]
        nearest = np.minimum(nearest, np.maximum(own - 2.0 * cross + own[last], 0.0))
        nearest[chosen] = 0.0
        total = np.cumsum(nearest)
        if len(chosen) == count or total[-1] <= EXPLAINED * float(own.sum()):
            return X[chosen]
        chosen.append(min(int(np.searchsorted(total, rng.random() * total[-1], side="right")), len(X) - 1))


def _inputs(X: Any) -> Array:
    array = as_points(X, "X")
    require(array.size, "X must have at least one row and one column", f"shape {array.shape}", "Pass some data.")
    return array
