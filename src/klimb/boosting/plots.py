"""Pictures of a mixture; matplotlib is imported here and nowhere else in boosting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from klimb.boosting.gaussians import Gaussians, log_mixture
from klimb.errors import InputError, pyplot
from klimb.numerics.arrays import Array

if TYPE_CHECKING:
    from klimb.boosting.mixture import Mixture


def marginals(mixture: Mixture, truth: Array | None, axes: Any) -> Any:
    """Marginal densities of q, one panel per parameter."""
    D = mixture.dim
    if axes is None:
        columns = min(D, 4)
        rows = -(-D // columns)
        size = (3.0 * columns, 2.3 * rows)
        _, axes = pyplot().subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
    for j, ax in enumerate(np.ravel(axes)):
        if j >= D:
            ax.set_visible(False)
            continue
        if truth is not None:
            ax.hist(np.asarray(truth)[:, j], bins=60, density=True, color="0.8", label="truth")
        grid, density = marginal(mixture, j)
        ax.plot(grid, density, color="C3", label="mixture")
        ax.set_title(mixture.names[j], fontsize=10)
        ax.set_yticks([])
    return axes


def marginal(mixture: Mixture, j: int, n: int = 400) -> tuple[Array, Array]:
    """A grid and the marginal density of q for parameter ``j`` there: exact, or of even draws where it is not."""
    if mixture._closed:
        low, high = mixture.quantiles((0.001, 0.999))[:, j]
        grid = np.linspace(low, high, n)
        m, s = mixture.parts.means[:, j], mixture.parts.deviations[:, j]
        density = np.exp(-0.5 * ((grid[:, None] - m) / s) ** 2) / (np.sqrt(2 * np.pi) * s)
        return grid, np.asarray(density @ mixture.weights)
    heights, edges = np.histogram(mixture._even[:, j], bins=80, density=True)
    return 0.5 * (edges[1:] + edges[:-1]), np.asarray(heights)


def contours(mixture: Mixture, pair: Sequence[int], ax: Any) -> Any:
    """Filled contours of the target (two parameters only) under lines of the mixture's marginal."""
    i, j = pair
    if mixture.dim < 2 or not (0 <= i < mixture.dim and 0 <= j < mixture.dim and i != j):
        raise InputError("contours need two different parameters", f"{tuple(pair)} of {mixture.dim}",
                         "Use plot_marginals for one parameter.")
    if ax is None:
        _, ax = pyplot().subplots(figsize=(4.0, 3.6), layout="constrained")
    low, high = mixture.quantiles((0.002, 0.998))
    pad = 0.15 * (high - low)
    x, y = (np.linspace(low[k] - pad[k], high[k] + pad[k], 120) for k in (i, j))
    A, B = np.meshgrid(x, y)
    grid = np.stack([A.ravel(), B.ravel()], axis=1)
    levels = np.array([-6.0, -4.0, -2.5, -1.5, -0.7, -0.2])
    if mixture.dim == 2:
        ordered = grid if i < j else grid[:, ::-1]
        inside = mixture.target.coordinates.contains(ordered)
        heights = np.full(len(grid), -np.inf)
        U = mixture.target.coordinates.to_free(ordered[inside])
        heights[inside] = mixture.target.values(U, far=True) - mixture.target.coordinates.to_user(U)[1]
        _lines(ax, A, B, heights, levels, filled=True)
    _lines(ax, A, B, _pair_density(mixture, grid, i, j), levels, filled=False)
    ax.set(xlabel=mixture.names[i], ylabel=mixture.names[j])
    return ax


def _pair_density(mixture: Mixture, grid: Array, i: int, j: int) -> Array:
    """The marginal log density of q for two parameters at the rows of ``grid``."""
    if mixture.dim == 2:
        return mixture.log_density(grid if i < j else grid[:, ::-1])
    if not mixture._closed:
        raise InputError("contours of more than two parameters need a mixture without transforms", f"{mixture.dim}",
                         "Plot draws of sample(n) instead.")
    covariances = mixture.covariances[:, [i, j]][:, :, [i, j]]
    parts = Gaussians(mixture.means[:, [i, j]], np.asarray(np.linalg.cholesky(covariances), dtype=np.float64))
    return log_mixture(mixture.weights, parts.log_densities(grid))


def _lines(ax: Any, A: Array, B: Array, heights: Array, levels: Array, *, filled: bool) -> None:
    H = np.maximum(heights - heights.max(), -50.0).reshape(A.shape)
    if filled:
        ax.contourf(A, B, H, levels=np.append(levels, 0.0), cmap="Blues", alpha=0.8)
    else:
        ax.contour(A, B, H, levels=levels, colors="C3", linewidths=1.0, linestyles="solid")
