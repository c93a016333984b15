"""How accurate are estimated variances, and are they as accurate as they say? ``python -m benchmarks.variances``.

Problems small enough for the exact answer: Reuters (6,000 x 4,000, rows of unit length) at two prior precisions, IMDB
(8,000 x 4,000) with unit rows and with counts, and pictures of 48 x 48 pixels: a third of the Fourier coefficients
with weak gradients, and a blur with gradients as strong as flat areas have them in the end. For each method and budget
of products: CPU seconds of one thread, the median and the 99th percentile of the relative error, the median error it
claims, and the share of true values within two of its standard errors.
"""

from __future__ import annotations

import argparse
from time import process_time
from typing import Any

import numpy as np
from scipy import sparse

from benchmarks.measure import one_thread, save, table
from benchmarks.problems import load
from klimb.linalg import images as operators
from klimb.linalg.factors.forms import PrimalFactorisation
from klimb.linalg.normal_matrix import NormalMatrix
from klimb.linalg.operators import Operator, as_operator
from klimb.linalg.variances import estimate

METHODS, BUDGETS = ("diagonal", "sampling", "lanczos"), (500, 1000, 2000, 4000, 8000)
Problem = tuple[NormalMatrix, Operator]


def documents(name: str, rows: int, columns: int, prior: float, *, unit: bool) -> Problem:
    """A logistic regression on the most frequent words of some documents, with weights drawn from half the prior sd."""
    rng = np.random.default_rng(0)
    X = sparse.csr_matrix(load(name, dense=False).X)
    X = X[rng.choice(X.shape[0], rows, replace=False)]
    X = X[:, np.argsort(-np.asarray((X != 0).sum(axis=0)).ravel(), kind="stable")[:columns]]
    if unit:
        norms = np.sqrt(np.asarray(X.multiply(X).sum(axis=1)).ravel())
        X = sparse.diags(1.0 / np.maximum(norms, 1e-9)) @ X
    B = as_operator(X.tocsr(), "B")
    p = 1.0 / (1.0 + np.exp(-B.times(0.5 / np.sqrt(prior) * rng.standard_normal(columns))))
    return NormalMatrix(np.full(columns, prior), [(B, p * (1.0 - p))]), B


def picture(kind: str, tau: float, z: float, n: int = 48, noise: float = 0.02) -> Problem:
    """Gradients of a picture with Laplace sites, gamma = tau / sqrt(s^2 + z) as in the double loop, z randomised."""
    rng = np.random.default_rng(0)
    down, across = np.mgrid[:n, :n] / n
    image = 1.0 * ((across - 0.5) ** 2 + (down - 0.5) ** 2 < 0.12)
    image += 0.5 * ((np.abs(across - 0.4) < 0.1) & (np.abs(down - 0.5) < 0.2))
    B = operators.gradients((n, n))
    gamma = tau / np.sqrt(B.times(image.ravel()) ** 2 + z * rng.gamma(2.0, 0.5, B.shape[0]))
    frequency = np.abs(np.fft.fftfreq(n))
    seen = (rng.random((n, n)) < 0.3) | ((frequency[:, None] < 0.06) & (frequency[None] < 0.06))
    bell = np.hanning(9)[1:-1] / np.hanning(9)[1:-1].sum()
    X = operators.partial_fourier(seen) if kind == "fourier" else operators.convolution(np.outer(bell, bell), (n, n))
    return NormalMatrix(np.zeros(n * n), [(X, noise**-2), (B, gamma)]), B


PROBLEMS = {
    "reuters, prior precision 1": lambda: documents("reuters", 6000, 4000, 1.0, unit=True),
    "reuters, prior precision 0.1": lambda: documents("reuters", 6000, 4000, 0.1, unit=True),
    "imdb, unit rows": lambda: documents("imdb", 8000, 4000, 1.0, unit=True),
    "imdb, counts": lambda: documents("imdb", 8000, 4000, 1.0, unit=False),
    "picture, partial Fourier, weak gradients": lambda: picture("fourier", 10.0, 1e-3),
    "picture, blurred, strong gradients": lambda: picture("blur", 50.0, 1e-7),
}


def measured(A: NormalMatrix, B: Operator, truth: np.ndarray, method: str, budget: int) -> dict[str, Any]:
    begin = process_time()
    found = estimate(A, B, method=method, accuracy=0.01, budget=budget)
    seconds = process_time() - begin
    live = truth > 0.0
    off = np.abs(found.value - truth)[live]
    return {"method": method, "budget": budget, "products": found.n_products, "seconds": seconds,
            "median": float(np.median(off / truth[live])), "99%": float(np.quantile(off / truth[live], 0.99)),
            "claimed": found.relative_error, "within two errors": float(np.mean(off <= 2.0 * found.error[live])),
            "reached": found.reached}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=list(PROBLEMS), choices=list(PROBLEMS))
    chosen = parser.parse_args().only
    results: dict[str, Any] = {}
    with one_thread():
        for name in chosen:
            A, B = PROBLEMS[name]()
            begin = process_time()
            factor = PrimalFactorisation(A)
            truth = factor.variances(B)
            exact = process_time() - begin
            rows = [measured(A, B, truth, method, budget) for method in METHODS for budget in BUDGETS]
            results[name] = {"exact seconds": exact, "rows": rows}
            table(f"{name} (exact: {exact:.1f} s)", list(rows[0]), [list(row.values()) for row in rows])
    if len(chosen) == len(PROBLEMS):
        save("variances", results)


if __name__ == "__main__":
    main()
