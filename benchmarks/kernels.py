"""What a Gram matrix and its pullback cost beside cdist and one exp of the same shape; one thread, CPU seconds."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from scipy.spatial.distance import cdist

from benchmarks.measure import cpu, one_thread, save, table
from klimb import kernels

LIMIT = 2.0  # a Gram matrix may cost this many times cdist and an exp


def cases(d: int) -> dict[str, kernels.Kernel]:
    """Kernels at lengthscales that leave no entry near zero or one."""
    scale = float(np.sqrt(d))
    ard = np.full(d, scale)
    return {
        "RBF": kernels.RBF(lengthscale=scale),
        "RBF, one lengthscale per column": kernels.RBF(lengthscale=ard),
        "Matern12": kernels.Matern12(lengthscale=scale),
        "Matern32": kernels.Matern32(lengthscale=scale),
        "Matern52": kernels.Matern52(lengthscale=scale),
        "Matern52, one lengthscale per column": kernels.Matern52(lengthscale=ard),
        "RationalQuadratic": kernels.RationalQuadratic(lengthscale=scale),
        "Periodic": kernels.Periodic(lengthscale=scale, period=5.0),
        "Linear": kernels.Linear(),
        "RBF + Linear + White": kernels.RBF(lengthscale=scale) + kernels.Linear() + kernels.White(),
        "RBF * Linear": kernels.RBF(lengthscale=scale) * kernels.Linear(),
    }


def inputs(n: int, d: int, *, crowds: bool = False) -> np.ndarray:
    """Normal inputs; with ``crowds`` half of them far away, which no centring helps: the slow case of the distances."""
    X = np.random.default_rng(0).standard_normal((n, d))
    if crowds:
        X[::2] += 1e4
    return X


def reference(X: np.ndarray, repeats: int) -> dict[str, float]:
    """CPU seconds of cdist and of one exp over its result."""
    squares = cdist(X, X, "sqeuclidean")
    squares *= -0.5 / X.shape[1]
    return {"cdist": cpu(lambda: cdist(X, X, "sqeuclidean"), repeats).seconds,
            "exp": cpu(lambda: np.exp(squares), repeats).seconds}


def measured(X: np.ndarray, kernel: kernels.Kernel, repeats: int) -> dict[str, float]:
    """CPU seconds of K(X, X), of the same into memory that is there already, of K(X, Z) and of the pullback."""
    out = np.empty((len(X), len(X)))
    G = np.random.default_rng(1).standard_normal(out.shape)
    kernel.gram(X[:2])  # imports
    return {"gram": cpu(lambda: kernel.gram(X), repeats).seconds,
            "gram in place": cpu(lambda: kernel.gram(X, out=out), repeats).seconds,
            "cross gram": cpu(lambda: kernel.gram(X, X), repeats).seconds,
            "gram_vjp": cpu(lambda: kernel.gram_vjp(X, G), repeats).seconds}


def run(n: int, d: int, repeats: int = 7) -> dict[str, Any]:
    X = inputs(n, d)
    found: dict[str, Any] = {"n": n, "d": d, "reference": reference(X, repeats), "kernels": {}}
    for name, kernel in cases(d).items():
        found["kernels"][name] = measured(X, kernel, repeats)
    found["kernels"]["RBF, two crowds far apart"] = measured(inputs(n, d, crowds=True), cases(d)["RBF"], repeats)
    return found


def main(n: int = 2000, repeats: int = 7) -> None:
    results = {}
    with one_thread():
        for d in (1, 5, 30):
            found = results[f"d={d}"] = run(n, d, repeats)
            unit = found["reference"]["cdist"] + found["reference"]["exp"]
            rows = [(name, *times.values(), times["gram"] / unit) for name, times in found["kernels"].items()]
            heads = ["kernel", "gram", "in place", "cross", "gram_vjp", "gram / (cdist + exp)"]
            table(f"n = {n}, D = {d}: cdist {found['reference']['cdist']:.4f} s, exp {found['reference']['exp']:.4f} s",
                  heads, rows)
            found["RBF within the limit"] = found["kernels"]["RBF"]["gram"] <= LIMIT * unit
    save("kernels", results)


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
