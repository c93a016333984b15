"""The problems of the benchmarks: public data sets found through KLIMB_DATA, and synthetic ones made from a seed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parent.parent
GRID = np.linspace(-1.0, 6.0, 15)  # log lengthscales, and log amplitudes, of [A] Fig. 1


class Regression(NamedTuple):
    """A design (dense or CSR) and a target."""

    name: str
    X: Any
    y: NDArray[np.float64]


def data_dir() -> Path:
    """The directory of the public data sets: KLIMB_DATA, by default ../shared/data beside the repository."""
    path = Path(os.environ.get("KLIMB_DATA", ROOT.parent / "shared" / "data"))
    if not path.is_dir():
        raise SystemExit(f"no data directory at {path}: set KLIMB_DATA")
    return path


def load(name: str, *, rows: str | None = None, dense: bool = True) -> Regression:
    """A stored data set; ``rows`` names the boolean array of its file that marks the rows to keep."""
    with np.load(data_dir() / f"{name}.npz", allow_pickle=False) as stored:
        arrays = {key: stored[key] for key in stored.files}
    if "X" in arrays:
        X: Any = arrays["X"].astype(np.float64)
    else:
        from scipy.sparse import csr_matrix

        X = csr_matrix((arrays["data"].astype(np.float64), arrays["indices"], arrays["indptr"]),
                       shape=tuple(arrays["shape"]))
    y = arrays["y"].astype(np.float64)
    if rows is not None:
        X, y = X[arrays[rows]], y[arrays[rows]]
    if dense and not isinstance(X, np.ndarray):
        X = X.toarray()
    return Regression(name, X, y)


def a1a() -> Regression:
    """The 1,605 training rows of a1a, dense."""
    return load("a1a", rows="train")


def a9a(*, dense: bool = True) -> Regression:
    """All 32,561 rows of a9a."""
    return load("a9a", dense=dense)


def synthetic(n: int = 1_000_000, d: int = 50, seed: int = 0) -> Regression:
    """A logistic regression with normal columns and log odds of unit variance."""
    draw = np.random.default_rng(seed)
    X = draw.standard_normal((n, d))
    truth = draw.standard_normal(d) / np.sqrt(d)
    y = np.where(draw.random(n) < 1.0 / (1.0 + np.exp(-X @ truth)), 1.0, -1.0)
    return Regression(f"synthetic {n} x {d}", X, y)


def standardised(X: NDArray[np.float64]) -> NDArray[np.float64]:
    """Columns at mean zero and unit variance; a constant column becomes zero."""
    spread = X.std(axis=0)
    return (X - X.mean(axis=0)) / np.where(spread > 0.0, spread, 1.0)


def squared_distances(X: NDArray[np.float64]) -> NDArray[np.float64]:
    """|x_i - x_j|^2, exactly symmetric, exactly zero on the diagonal."""
    norms = np.einsum("ij,ij->i", X, X)
    d2 = norms[:, None] + norms[None, :] - 2.0 * (X @ X.T)
    np.maximum(d2, 0.0, out=d2)
    d2 = 0.5 * (d2 + d2.T)
    np.fill_diagonal(d2, 0.0)
    return d2


def rbf(d2: NDArray[np.float64], log_lengthscale: float, log_amplitude: float) -> NDArray[np.float64]:
    """sigma^2 exp(-d^2 / 2 l^2)."""
    return np.exp(2.0 * log_amplitude - 0.5 * d2 * np.exp(-2.0 * log_lengthscale))


class Process(NamedTuple):
    """A Gaussian process problem: squared distances of its (standardised) inputs, and its target."""

    name: str
    d2: NDArray[np.float64]
    y: NDArray[np.float64]


def process(name: str) -> Process:
    """A stored data set as a Gaussian process problem."""
    data = load(name)
    return Process(name, squared_distances(standardised(data.X)), data.y)


def synthetic_process(n: int, seed: int = 0) -> Process:
    """Labels of a smooth function of five normal inputs."""
    draw = np.random.default_rng(seed)
    X = draw.standard_normal((n, 5))
    surface = 2.0 * np.sin(X[:, 0]) + X[:, 1] * X[:, 2]
    y = np.where(draw.random(n) < 1.0 / (1.0 + np.exp(-surface)), 1.0, -1.0)
    return Process(f"synthetic n = {n}", squared_distances(X), y)
