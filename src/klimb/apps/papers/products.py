"""[N] section 2.4: how many products with B and B' a fit takes, counted beside the paper's formulas.

A product is one multiplication of B or of its transpose with a vector (a block of k vectors counts k times).
"""

import time
from functools import partial
from typing import Any

import numpy as np
from scipy.special import expit

from klimb import latents, sites, steps
from klimb.apps.papers.data import Library
from klimb.apps.papers.experiment import Experiment, Found, Job, Results, Size, by_parts
from klimb.apps.papers.pictures import NOTHING, PaperTable, seconds
from klimb.infer.loop import infer
from klimb.linalg.krylov import solve
from klimb.numerics.arrays import Array

SETS = ("a9a", "reuters")
SAMPLED = 12  # rows whose linear systems are solved to count N_CG
ACCURACY = 1e-6  # of these systems
MOST = 50  # Newton steps
CLOSE = 1e-4  # largest change of a linear predictor at which Newton's method ends
METHODS = {"MAP": "full Newton for MAP", "gradient": "one exact gradient, or one round of coordinate ascent",
           "lanczos": "double loop, variances by Lanczos", "default": "double loop, variances as klimb chooses"}
PRINTED = {"MAP": "N_Newt N_CG", "gradient": "q N_CG", "lanczos": "outer (k + N_Newt N_CG)", "default": NOTHING}


def rows(library: Library, name: str, size: Size) -> tuple[Any, Any]:
    """Sparse features and labels of random rows."""
    data = library.load(name)
    most = {"full": len(data.y), "quick": 3000, "tiny": 60}[size]
    kept = np.sort(np.random.default_rng(0).permutation(len(data.y))[:most])
    return data.X[kept], data.y[kept]


def count(library: Library, name: str, method: str, size: Size, _: Results) -> Found:
    """Products and CPU seconds of one method on one data set."""
    X, y = rows(library, name, size)
    begin = time.process_time()
    latent, site = latents.Implicit(X, cov=1.0), sites.Logistic()
    found: Found = {"q": X.shape[0], "n": X.shape[1], "nonzeros": int(X.nnz)}
    if method in ("gradient", "MAP"):
        counted = one_gradient(latent, X) if method == "gradient" else newton(latent, X, y)[1]
        return {**found, **counted, "seconds": time.process_time() - begin}
    step = steps.DoubleLoop(bound="local", variances="lanczos" if method == "lanczos" else "auto")
    result = infer(latent, site, y, step=step)
    return {**found, "products": int(np.sum(result.history.n_products)), "iterations": result.n_iter,
            "bound": float(result.bound), "status": result.status.name.lower(),
            "seconds": time.process_time() - begin}


def newton(latent: Any, X: Any, y: Array) -> tuple[Array, Found]:
    """The mode under N(0, I) by Newton's method, its systems solved by conjugate gradients, and what that took."""
    w, f = np.zeros(X.shape[1]), np.zeros(X.shape[0])
    products, iterations = 0, 0

    def value(w: Array, f: Array) -> float:
        return float(np.logaddexp(0.0, -y * f).sum() + 0.5 * w @ w)

    while iterations < MOST:
        iterations += 1
        p = expit(-y * f)
        found = solve(latent.precision(p * (1.0 - p)), X.T @ (y * p) - w, tol=1e-4)
        move, length = found.x, 1.0
        df = X @ move
        products += 2 * found.n_iter + 2
        while length > 1e-6 and value(w + length * move, f + length * df) > value(w, f):
            length *= 0.5
        w, f = w + length * move, f + length * df
        if np.abs(df).max() < CLOSE:
            break
    return w, {"products": products, "iterations": iterations, "n_cg": (products / iterations - 2) / 2}


def one_gradient(latent: Any, X: Any) -> Found:
    """q linear systems, counted by solving a few of them, at gamma = 1/4."""
    A = latent.precision(np.full(X.shape[0], 0.25))
    chosen = np.sort(np.random.default_rng(0).permutation(X.shape[0])[:SAMPLED])
    iterations = [solve(A, np.asarray(X[int(row)].todense()).ravel(), tol=ACCURACY).n_iter for row in chosen]
    mean = float(np.mean(iterations))
    return {"n_cg": mean, "products": round(2 * mean * X.shape[0]), "iterations": None}


def plan(library: Library, size: Size) -> list[Job]:
    """A job for every set and method."""
    return [Job(f"{name}/{method}", partial(count, library, name, method, size)) for name in SETS for method in METHODS]


def tables(results: Results) -> list[PaperTable]:
    """Counts beside the paper's formulas, a table for every set."""
    parts, found = by_parts(results), []
    for name in dict.fromkeys(key[0] for key in parts):
        lines = []
        for method, title in METHODS.items():
            one = parts[name, method]
            iterations = NOTHING if one["iterations"] is None else str(one["iterations"])
            extra = f", N_CG = {one['n_cg']:.0f}" if "n_cg" in one else ""
            lines.append((title, PRINTED[method] + extra, f"{one['products']:,}", iterations,
                          seconds(one["seconds"]) if method != "gradient" else NOTHING))
        first = parts[name, "MAP"]
        found.append(PaperTable(f"[N] section 2.4, {name}: q = {first['q']:,} rows, n = {first['n']:,} weights,"
                                f" {first['nonzeros']:,} nonzeros",
                                ("algorithm", "paper", "products with B or B'", "iterations", "CPU"),
                                tuple(lines), left=2))
    return found


TABLE = Experiment(plan, tables)
