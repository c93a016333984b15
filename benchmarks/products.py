"""Products of [N] section 2.4's table, predicted and counted, on one sparse set.

    python -m benchmarks.products [--set reuters]
    python -m benchmarks.products --baselines      coordinate ascent and direct gradients, timed beside the double loop

A product with A = P + B' diag(gamma) B is one with B and one with B'. N_CG is what conjugate gradients (diagonal
preconditioner) need for the Newton systems at hand, N_Newt the Newton steps, k the directions of Lanczos's iteration.
"""

from __future__ import annotations

import argparse
from typing import Any, NamedTuple

import numpy as np

from benchmarks.measure import cpu, one_thread, save, table
from benchmarks.sparse_glm import SETS, Split, split
from klimb import latents, methods, sites, steps
from klimb.apps.papers.data import Library
from klimb.infer.loop import infer
from klimb.linalg.krylov import solve
from klimb.linalg.krylov.surrogates import ScaledLanczos
from klimb.linalg.normal_matrix import NormalMatrix
from klimb.linalg.operators import Operator, as_operator
from klimb.sites.base import Site

TOLERANCE = 1e-6  # of the systems
STEPS = 30
BASELINES = ("ionosphere", "german")


class Climb(NamedTuple):
    """A mean, how many Newton steps and products with A led there, and the conjugate gradient iterations of each."""

    u: Any
    steps: int
    iterations: list[int]
    products: float


def newton(B: Operator, site: Site, y: Any, v: Any, variance: float, u: Any) -> Climb:
    """IRLS on the mean at fixed variances v: [N] section 2.2; v = 0 is the mode."""
    before, iterations = B.n_products, []
    s = B.times(u)
    for _ in range(STEPS):
        e, weights = site.oracle(y, s, v), np.maximum(site.curvature(y, s, v), 1e-12)
        found = solve(NormalMatrix(np.full(u.size, 1.0 / variance), [(B, weights)]),
                      -u / variance - B.transpose_times(e.alpha), tol=TOLERANCE)
        iterations.append(found.n_iter)
        along, step = B.times(found.x), 1.0
        start = e.value.sum() - 0.5 * u @ u / variance
        while step > 1e-6:
            moved = u + step * found.x
            if site.oracle(y, s + step * along, v).value.sum() - 0.5 * moved @ moved / variance > start:
                break
            step *= 0.5
        else:
            break
        u, s = moved, s + step * along
        if step * np.abs(along).max() < 1e-6:
            break
    return Climb(u, len(iterations), iterations, (B.n_products - before) / 2.0)


def counted(data: Split, variance: float, directions: int = 80) -> list[list[object]]:
    B, y, zero = as_operator(data.X, "X"), data.y, np.zeros(data.X.shape[0])
    site = sites.SuperGaussian(sites.Logistic())
    mode = newton(B, sites.Point(sites.Logistic()), y, zero, variance, np.zeros(B.shape[1]))
    n_cg = float(np.mean(mode.iterations))
    gamma = site.oracle(y, B.times(mode.u), zero).gamma
    A = NormalMatrix(np.full(B.shape[1], 1.0 / variance), [(B, gamma)])
    before = B.n_products
    z = ScaledLanczos(A, directions, 0).lower(B)
    lanczos = (B.n_products - before) / 2.0
    inner = newton(B, site, y, np.maximum(z, 0.0), variance, mode.u)
    inner_cg = float(np.mean(inner.iterations))
    before = B.n_products
    row = B.transpose_times(np.eye(1, B.shape[0]).ravel())
    single = solve(A, row, tol=TOLERANCE).n_iter
    one_site = (B.n_products - before) / 2.0
    q = B.shape[0]
    return [
        ["full Newton for the mode", "N_Newt N_CG", f"{mode.steps} x {n_cg:.0f}", mode.steps * n_cg, mode.products],
        ["one coordinate ascent sweep, or one exact gradient", "q N_CG", f"{q:,} x {single}", q * single,
         f"{q * one_site:.0f} (one site: {one_site:.1f})"],
        ["one approximate gradient", "k + N_CG", f"{directions} + {single}", directions + single, lanczos + one_site],
        ["one (u, gamma), inner loop", "N_Newt N_CG", f"{inner.steps} x {inner_cg:.0f}", inner.steps * inner_cg,
         inner.products],
        ["one z, outer loop", "k", f"{directions}", directions, lanczos],
    ]


def baselines(name: str) -> list[object]:
    """CPU seconds of three ways to the local bound of a logistic regression, standardised columns, N(0, 1) prior."""
    data = Library().load(name)
    X, sd = data.dense, data.dense.std(axis=0)
    X = np.column_stack([np.ones(len(X)), (X - X.mean(axis=0)) / np.where(sd > 0, sd, 1.0)])
    weights, local = latents.Weights(X), sites.SuperGaussian(sites.Logistic())
    fits = [cpu(lambda: infer(latents.Implicit(X), sites.Logistic(), data.y, step=steps.DoubleLoop("local")), 1),
            cpu(lambda: infer(weights, local, data.y, step=steps.CoordinateAscent(), max_iter=1000), 1),
            cpu(lambda: methods.direct_gradient(weights, local, data.y, max_iter=5000), 1)]
    apart = max(abs(fit.value.bound - fits[0].value.bound) for fit in fits)
    return [name, f"{X.shape[0]} x {X.shape[1]}",
            *(f"{fit.seconds:.2g} s, {fit.value.n_iter:,} {what}, {fit.value.status.name.lower()}"
              for fit, what in zip(fits, ("outer", "sweeps", "iterations"), strict=True)), f"{apart:.0e}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", default="reuters", choices=list(SETS))
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--baselines", action="store_true")
    arguments = parser.parse_args()
    if arguments.baselines:
        with one_thread():
            table("local bound: CPU seconds", ["set", "rows x columns", "double loop", "coordinate ascent",
                                               "direct gradient", "bounds apart"], map(baselines, BASELINES))
        return
    data = split(arguments.set)
    with one_thread():
        rows = counted(data, SETS[arguments.set][0])
    table(f"{arguments.set}, {data.X.shape[0]:,} x {data.X.shape[1]:,}: products with A",
          ["what", "formula", "with", "predicted", "counted"], rows)
    if arguments.keep:
        save("products", {"set": arguments.set, "rows": rows})


if __name__ == "__main__":
    main()
