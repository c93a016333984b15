"""The six models whose posteriors were sampled at length (`make_nuts.py`), as plain arrays.

Each problem is a dict with a design ``Z`` such that f = Z u with u ~ N(0, I) a priori, data ``y``, the name of a
likelihood, and ``map``, the matrix from u to what is reported: weights, or f at the sites.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

NAMES = ("nodal", "poisson", "student", "gp_classes", "cox", "separable")
DF, SCALE = 3.0, 0.5  # of the Student-t problem


def nodal(directory: Path | None = None) -> dict[str, Any] | None:
    """Nodal involvement in prostate cancer, 53 patients, N(0, I) prior; None where the data are missing."""
    where = directory or Path(os.environ.get("KLIMB_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
    path = where / "nodal.npz"
    if not path.is_file():
        return None
    with np.load(path, allow_pickle=False) as stored:
        X, y = stored["X"].astype(float), stored["y"].astype(float)
    return {"site": "logistic", "Z": X, "y": y, "map": np.eye(6), "X": X, "sd": 1.0}


def poisson() -> dict[str, Any]:
    """Counts on an intercept and three covariates, few of them large: a skewed intercept."""
    rng = np.random.default_rng(11)
    X = np.column_stack([np.ones(30), rng.standard_normal((30, 3))])
    y = rng.poisson(np.exp(X @ [-0.7, 0.6, -0.4, 0.2])).astype(float)
    return {"site": "poisson", "Z": 2.0 * X, "y": y, "map": 2.0 * np.eye(4), "X": X, "sd": 2.0}


def student() -> dict[str, Any]:
    """A line with heavy-tailed noise, df = 3."""
    rng = np.random.default_rng(12)
    X = np.column_stack([np.ones(40), rng.standard_normal((40, 2))])
    y = X @ [1.0, -0.5, 0.8] + SCALE * rng.standard_t(DF, 40)
    return {"site": "student", "Z": X, "y": y, "map": np.eye(3), "X": X, "sd": 1.0}


def _kernel(x: np.ndarray, variance: float, lengthscale: float) -> np.ndarray:
    K = variance * np.exp(-0.5 * ((x[:, None] - x) / lengthscale) ** 2)
    return np.asarray(K + 1e-6 * variance * np.eye(len(x)))


def gp_classes() -> dict[str, Any]:
    """A Gaussian process classifier at 60 inputs."""
    rng = np.random.default_rng(13)
    x = np.sort(rng.uniform(-3, 3, 60))
    K = _kernel(x, 4.0, 0.8)
    y = np.where(rng.random(60) < 1 / (1 + np.exp(-2 * np.sin(2 * x))), 1.0, -1.0)
    L = np.linalg.cholesky(K)
    return {"site": "logistic", "Z": L, "y": y, "map": L, "K": K}


def cox() -> dict[str, Any]:
    """A log-Gaussian Cox process in 50 bins, many of them empty."""
    rng = np.random.default_rng(14)
    x = np.linspace(0, 10, 50)
    K = _kernel(x, 1.0, 1.0)
    y = rng.poisson(np.exp(-0.5 + np.sin(x))).astype(float)
    L = np.linalg.cholesky(K)
    return {"site": "poisson", "Z": L, "y": y, "map": L, "K": K}


def separable() -> dict[str, Any]:
    """Labels that a line separates, prior sd 5: the posterior leans on the prior."""
    rng = np.random.default_rng(15)
    X = np.column_stack([np.ones(20), rng.standard_normal((20, 2))])
    y = np.where(X @ [0.3, 2.0, -1.0] > 0, 1.0, -1.0)
    return {"site": "logistic", "Z": 5.0 * X, "y": y, "map": 5.0 * np.eye(3), "X": X, "sd": 5.0}


def problem(name: str, directory: Path | None = None) -> dict[str, Any] | None:
    return nodal(directory) if name == "nodal" else globals()[name]()
