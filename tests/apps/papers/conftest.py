"""A folder of small invented data sets under the names of the real ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest


def labels(X: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    f = 1.5 * X[:, 0] - X[:, 1]
    return np.where(rng.random(len(X)) < 1 / (1 + np.exp(-f)), 1.0, -1.0)


@pytest.fixture(scope="session")
def small_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from scipy.sparse import csr_matrix

    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)

    def dense(name: str, n: int, d: int, kind: str) -> None:
        X = rng.standard_normal((n, d))
        y = {"label": labels(X, rng), "real": X[:, 0] + 0.3 * rng.laplace(size=n),
             "count": rng.poisson(np.exp(0.3 * X[:, 0])).astype(float)}[kind]
        np.savez(folder / f"{name}.npz", X=X, y=y)

    def sparse(name: str, n: int, d: int) -> None:
        X = (rng.random((n, d)) < 0.4).astype(float)
        S = csr_matrix(X)
        np.savez(folder / f"{name}.npz", data=S.data, indices=S.indices, indptr=S.indptr, shape=np.array(S.shape),
                 y=labels(X, rng), train=np.arange(n) < n // 2)

    for name, n, d in (("a1a", 60, 6), ("a9a", 60, 6), ("dexter", 24, 40), ("imdb", 60, 12), ("reuters", 60, 12),
                       ("farm_ads", 60, 12), ("rcv1_small", 60, 12)):
        sparse(name, n, d)
    for name, n, d, kind in (
            ("colon", 24, 40, "label"), ("madelon", 40, 6, "label"), ("arcene", 24, 40, "label"),
            ("ionosphere", 40, 4, "label"), ("sonar", 40, 4, "label"), ("usps_3vs5", 40, 4, "label"),
            ("german", 60, 4, "label"), ("boston", 40, 3, "real"), ("triazines", 40, 3, "real"),
            ("space_ga", 40, 3, "real"), ("stock", 60, 3, "real"), ("flares", 60, 3, "count"),
            ("abalone", 60, 3, "count"), ("nodal", 53, 2, "label")):
        dense(name, n, d, kind)
    np.savez(folder / "usps.npz", X=rng.uniform(-1, 1, (120, 8)), y=np.arange(120) % 10.0)
    return folder
