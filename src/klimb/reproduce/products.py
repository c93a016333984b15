"""[N] section 2.4: how many products with B and B' a fit takes, counted on logistic regressions with Gaussian prior.

The paper's table has formulas; here they stand beside counts. A product is one multiplication of B or of its transpose
with a vector (a block of k vectors counts k times).
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from klimb import latents, methods, sites, steps
from klimb.infer.loop import infer
from klimb.numerics.krylov import solve
from klimb.reproduce.data import Library
from klimb.reproduce.experiment import Experiment, Found, Job, Results, Size, Table, by_parts
from klimb.reproduce.tables import NOTHING, seconds

SETS = ("a9a", "reuters")
SAMPLED = 12  # rows whose linear systems are solved to count N_CG
ACCURACY = 1e-6  # of these systems
METHODS = {"MAP": "full Newton for MAP", "gradient": "one exact gradient, or one round of coordinate ascent",
           "lanczos": "double loop, variances by Lanczos", "default": "double loop, variances as klimb chooses"}
PRINTED = {"MAP": "N_Newt N_CG", "gradient": "q N_CG", "lanczos": "outer (k + N_Newt N_CG)", "default": NOTHING}


def rows(library: Library, name: str, size: Size) -> tuple[Any, Any]:
    """Sparse features and labels of random rows."""
    data = library.load(name)
    most = {"full": len(data.y), "quick": 3000, "tiny": 60}[size]
    kept = np.sort(np.random.default_rng(0).permutation(len(data.y))[:most])
    return data.X[kept], data.y[kept]


def count(library: Library, name: str, method: str, size: Size) -> Found:
    """Products and CPU seconds of one method on one data set."""
    X, y = rows(library, name, size)
    begin = time.process_time()
    latent, site = latents.Implicit(X, cov=1.0), sites.Logistic()
    found: Found = {"q": X.shape[0], "n": X.shape[1], "nonzeros": int(X.nnz)}
    if method == "gradient":
        return {**found, **one_gradient(latent, X), "seconds": time.process_time() - begin}
    if method == "MAP":
        result = methods.map_estimate(latent, site, y, tol=1e-4)
    else:
        step = steps.DoubleLoop(bound="local", variances="lanczos" if method == "lanczos" else "auto")
        result = infer(latent, site, y, step=step)
    return {**found, "products": int(np.sum(result.history.n_products)), "iterations": result.n_iter,
            "bound": float(result.bound), "status": result.status.name.lower(),
            "seconds": time.process_time() - begin}


def one_gradient(latent: Any, X: Any) -> Found:
    """q linear systems, counted by solving a few of them, at gamma = 1/4."""
    A = latent.precision(np.full(X.shape[0], 0.25))
    chosen = np.sort(np.random.default_rng(0).permutation(X.shape[0])[:SAMPLED])
    iterations = [solve(A, np.asarray(X[int(row)].todense()).ravel(), tol=ACCURACY).n_iter for row in chosen]
    mean = float(np.mean(iterations))
    return {"n_cg": mean, "products": round(2 * mean * X.shape[0]), "iterations": None}


def plan(library: Library, size: Size) -> list[Job]:
    """A job for every set and method."""
    def job(name: str, method: str) -> Job:
        return Job(f"{name}/{method}", lambda _: count(library, name, method, size))

    return [job(name, method) for name in SETS for method in METHODS]


def tables(results: Results) -> list[Table]:
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
        found.append(Table(f"[N] section 2.4, {name}: q = {first['q']:,} rows, n = {first['n']:,} weights,"
                           f" {first['nonzeros']:,} nonzeros",
                           ("algorithm", "paper", "products with B or B'", "iterations", "CPU"), tuple(lines), left=2))
    return found


TABLE = Experiment(plan, tables, remarks=(
    "The paper's table has formulas and no counts; q is the number of rows, k that of Lanczos vectors.",
    "A gradient of the criterion, or a round of coordinate ascent, needs a linear system for every row: its count is q"
    " times what a few of these systems took, to 1e-6. That is why neither is a method for large data.",
    "The double loop needs one or two outer iterations, as the paper says, and products of the order of a MAP fit.",
    "klimb chooses exact variances where a factorisation of the weights is cheap, which needs few products.",
))
