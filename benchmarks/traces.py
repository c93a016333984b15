"""[S] Figures 2-5: the bound against time for Gaussian processes with four likelihoods, 500 data each.

    python -m benchmarks.traces [--n 500] [--cap 30] [--picture docs/papers/traces.png]

FPb, FPi and the proximal step start at the prior and have no safeguard, as in the papers; GRAD is L-BFGS on the mean
and the Cholesky factor of V. A rule that diverges or leaves the cone ends where it does, and the legend says so.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import klimb
from benchmarks import problems
from benchmarks.measure import one_thread, save, table
from klimb import kernels, latents, methods, sites, steps

PROBLEMS = {  # likelihood: (data set, site, kernel variance, lengthscale)
    "logistic": ("german", sites.Logistic(), 4.0, 4.0),
    "Poisson": ("flares", sites.Poisson(), 1.0, 3.0),
    "Laplace": ("boston", sites.Laplace(0.3), 1.0, 2.5),
    "Student-t": ("boston", sites.StudentT(3.0, 1 / np.sqrt(3.0)), 1.0, 2.5),
}
COLOURS = {"default": "#0b7285", "FPi": "#e8590c", "FPb": "#7048e8", "proximal": "#2b8a3e", "GRAD": "#868e96"}
MARKS = {"default": "o", "FPi": "s", "FPb": "^", "proximal": "v", "GRAD": "x"}


def problem(name: str, n: int) -> tuple[latents.Kernel, sites.Site, np.ndarray]:
    data, site, variance, lengthscale = PROBLEMS[name]
    loaded = problems.load(data)
    rows = np.random.default_rng(0).permutation(len(loaded.y))[:n]
    X, y = loaded.X[rows], loaded.y[rows]
    sd = X.std(0)
    X = (X - X.mean(0)) / np.where(sd > 0, sd, 1.0)
    if data == "boston":
        y = (y - y.mean()) / y.std()
    K = kernels.RBF(variance=variance, lengthscale=lengthscale).gram(X)
    K.flat[:: len(K) + 1] += 1e-6 * variance  # the same for everyone; GRAD factorises K
    return latents.Kernel(K, check=False), site, y


def rules(latent: Any, site: Any, y: Any, cap: float) -> dict[str, Callable[[], Any]]:
    def stop_at(begin: float) -> Callable[[Any], bool]:
        return lambda row: time.perf_counter() - begin < cap

    def by_step(step: Any) -> Callable[[], Any]:
        return lambda: klimb.infer(latent, site, y, step=step, max_iter=5000, callback=stop_at(time.perf_counter()))

    return {
        "default": by_step(None), "FPi": by_step(steps.FixedPoint()), "FPb": by_step(steps.FixedPoint(batch=True)),
        "proximal": by_step(steps.Proximal(0.25 if isinstance(site, sites.Logistic) else 1.0)),
        "GRAD": lambda: methods.cholesky_gradient(latent, site, y, callback=stop_at(time.perf_counter())),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=500)
    parser.add_argument("--cap", type=float, default=30.0, help="seconds for each rule")
    parser.add_argument("--picture", type=Path, default=None)
    options = parser.parse_args()
    found: dict[str, Any] = {}
    with one_thread():
        for name in PROBLEMS:
            latent, site, y = problem(name, options.n)
            for rule, run in rules(latent, site, y, options.cap).items():
                result = run()
                found[f"{name}, {rule}"] = {
                    "seconds": result.history.seconds, "bound": result.history.bound,
                    "status": result.status.name.lower()}
                print(name, rule, result, flush=True)
    best = {name: max(np.nanmax(found[f"{name}, {rule}"]["bound"]) for rule in COLOURS) for name in PROBLEMS}
    table("seconds until the bound stays within 1e-3 nats of the best", ["likelihood", *COLOURS],
          [(name, *(arrival(found[f"{name}, {rule}"], best[name]) for rule in COLOURS)) for name in PROBLEMS])
    if options.picture is not None:
        draw(found, best, options.picture)
    print("results:", save("traces", found))


def arrival(trace: dict[str, Any], best: float) -> str:
    late = np.flatnonzero(~(trace["bound"] >= best - 1e-3))
    if len(late) and late[-1] == len(trace["bound"]) - 1:
        return f"never ({trace['status']})"
    return f"{trace['seconds'][late[-1] + 1 if len(late) else 0]:.2f}"


def draw(found: dict[str, Any], best: dict[str, float], path: Path) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 2, figsize=(9.0, 6.6), layout="constrained", sharex=True)
    for ax, name in zip(axes.flat, PROBLEMS, strict=True):
        for rule, colour in COLOURS.items():
            trace = found[f"{name}, {rule}"]
            gap = np.maximum(best[name] - trace["bound"], 1e-7)
            label = rule if trace["status"] == "converged" else f"{rule} ({trace['status'].replace('_', ' ')})"
            ax.plot(np.maximum(trace["seconds"], 1e-3), np.where(gap < 1e7, gap, np.nan), color=colour,
                    marker=MARKS[rule], ms=3.5, lw=1.2, label=label)
        ax.set(xscale="log", yscale="log", title=name, ylim=(5e-8, 5e6))
        ax.grid(alpha=0.25)
        ax.legend(fontsize=8, frameon=False)
    for ax in axes[:, 0]:
        ax.set_ylabel("nats below the best bound")
    for ax in axes[1]:
        ax.set_xlabel("seconds")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
