"""The engine against its floors: ``python -m benchmarks.engine [--only PART ...]``.

Parts: ``iteration`` (cost of a step beside the BLAS calls it cannot avoid), ``ordinary`` and ``grid`` (factorisations
to stationarity 1e-6). One BLAS thread, CPU seconds, medians; a table per part and one JSON file for all. Point
estimates beside the posterior are cases of `benchmarks.bench`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

import numpy as np

import klimb
from benchmarks import problems
from benchmarks.floors import kernel_floor, weights_floor
from benchmarks.measure import cpu, one_thread, save, table
from klimb import latents, sites

TOL = 1e-6
Found = dict[str, Any]


def counts(result: Any) -> Found:
    """What a fit cost, from its history."""
    history = result.history
    return {"status": result.status.name.lower(), "bound": float(result.bound), "n_iter": int(result.n_iter),
            "n_factor": int(np.sum(history.n_factor)), "n_oracle": int(np.sum(history.n_oracle)),
            "stationarity": float(history.stationarity[-1])}


def step_seconds(latent: Any, y: np.ndarray) -> dict[str, float]:
    """Median CPU seconds of an iteration per factorisation in it, by the rule it took; start and end are left out."""
    stamps: list[tuple[float, str, int]] = []
    klimb.infer(latent, sites.Logistic(), y, tol=1e-10,
                callback=lambda row: stamps.append((process_time(), row.rule, row.n_factor)))
    taken: dict[str, list[float]] = {}
    for (before, _, _), (after, rule, n) in pairwise(stamps):
        taken.setdefault(rule, []).append((after - before) / max(n, 1))
    return {rule: median(seconds) for rule, seconds in taken.items()}


def part_iteration(repeats: int, size: int) -> Found:
    """What an iteration costs, and what a whole fit costs per factorisation, beside the floor of that shape."""
    found: Found = {}
    cases: list[tuple[str, Any, np.ndarray, float]] = []
    for data in (problems.a1a(), problems.a9a(), problems.synthetic(size)):
        n, d = data.X.shape
        cases.append((f"weights {n} x {d}", latents.Weights(data.X, cov=1.0), data.y, weights_floor(n, d)))
    for n in (1000, 2000):
        process = problems.synthetic_process(n)
        K = problems.rbf(process.d2, np.log(2.0), np.log(2.0))
        cases.append((f"kernel {n}", latents.Kernel(K), process.y, kernel_floor(n)))
    rows = []
    for name, latent, y, floor in cases:
        fit = cpu(lambda latent=latent, y=y: klimb.infer(latent, sites.Logistic(), y, tol=TOL), min(repeats, 3))
        cost = counts(fit.value)
        steps = step_seconds(latent, y)
        whole = fit.seconds / cost["n_factor"]
        found[name] = {"floor": floor, "steps": steps, "fit_per_factorisation": whole, "seconds": fit.seconds, **cost}
        rows += [(name, f"{rule} step", floor, seconds, seconds / floor) for rule, seconds in steps.items()]
        rows.append((name, f"fit / {cost['n_factor']} factorisations", floor, whole, whole / floor))
    table("cost of an iteration (CPU s)", ["shape", "what", "floor", "taken", "taken / floor"], rows)
    return found


def ordinary_problems() -> list[tuple[str, Any, Any, np.ndarray]]:
    """Fits as people have them: name, latent, site, target."""
    def design(data: problems.Regression) -> np.ndarray:
        return np.column_stack([np.ones(len(data.y)), problems.standardised(data.X)])

    chosen = [("a1a, logistic", latents.Weights(problems.a1a().X, cov=1.0), sites.Logistic(), problems.a1a().y)]
    for name, site in (("pima", sites.Logistic()), ("german", sites.Probit()), ("flares", sites.Poisson()),
                       ("abalone", sites.Poisson()), ("abalone", sites.NegativeBinomial(5.0))):
        data = problems.load(name)
        chosen.append((f"{name}, {type(site).__name__}", latents.Weights(design(data), cov=1.0), site, data.y))
    boston = problems.load("boston")
    target = (boston.y - boston.y.mean()) / boston.y.std()
    for site in (sites.Gaussian(0.5), sites.Laplace(0.4), sites.StudentT(4.0, 0.3)):
        chosen.append((f"boston, {type(site).__name__}", latents.Weights(design(boston), cov=1.0), site, target))
    for name in ("sonar", "ionosphere"):
        process = problems.process(name)
        chosen.append((f"{name} GP, logistic", latents.Kernel(problems.rbf(process.d2, 1.5, 1.5)), sites.Logistic(),
                       process.y))
    coal = problems.process("coal")
    chosen.append(("coal GP, Poisson", latents.Kernel(problems.rbf(coal.d2, -1.0, 0.0)), sites.Poisson(), coal.y))
    return chosen


def part_ordinary(repeats: int, size: int) -> Found:
    found = {name: counts(klimb.infer(latent, site, y, tol=TOL)) for name, latent, site, y in ordinary_problems()}
    table("factorisations to stationarity 1e-6, ordinary problems",
          ["problem", "factorisations", "oracle calls", "iterations", "stationarity", "bound", "status"],
          [(name, row["n_factor"], row["n_oracle"], row["n_iter"], row["stationarity"], row["bound"], row["status"])
           for name, row in found.items()])
    return found


def part_grid(repeats: int, size: int) -> Found:
    """Every cell of the papers' grid of log lengthscales and log amplitudes."""
    found: Found = {}
    floors: dict[str, float] = {}
    for name in ("sonar", "ionosphere"):
        process = problems.process(name)
        cells = []
        for log_l in problems.GRID:
            for log_s in problems.GRID:
                latent = latents.Kernel(problems.rbf(process.d2, log_l, log_s))
                fit = cpu(lambda latent=latent, y=process.y: klimb.infer(latent, sites.Logistic(), y, tol=TOL), 1)
                cells.append({"log_l": log_l, "log_sigma": log_s, "seconds": fit.seconds, **counts(fit.value)})
        floors[name] = kernel_floor(len(process.y))
        found[name] = cells
    rows = []
    for name, cells in found.items():
        taken = np.array([cell["n_factor"] for cell in cells])
        worst = cells[int(taken.argmax())]
        rows.append((name, int(np.median(taken)), int(np.quantile(taken, 0.95)), int(taken.max()),
                     f"({worst['log_l']:g}, {worst['log_sigma']:g})", int(np.sum(taken > 60)),
                     sum(cell["status"] != "converged" for cell in cells), sum(cell["seconds"] for cell in cells),
                     max(cell["seconds"] for cell in cells) / floors[name]))
    table("factorisations to stationarity 1e-6, 15 x 15 grid",
          ["data", "median", "95%", "worst", "at (log l, log sigma)", "over 60", "not converged", "CPU s",
           "most expensive cell in floors"], rows)
    for name, cells in found.items():
        square = np.array([cell["n_factor"] for cell in cells]).reshape(len(problems.GRID), -1)
        table(f"{name}: factorisations", ["log l \\ log sigma", *(f"{value:g}" for value in problems.GRID)],
              [(f"{log_l:g}", *(int(count) for count in line))
               for log_l, line in zip(problems.GRID, square, strict=True)])
    return found


PARTS: dict[str, Callable[[int, int], Found]] = {
    "iteration": part_iteration, "ordinary": part_ordinary, "grid": part_grid}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine", description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS), metavar="PART",
                        help=f"run these parts: {', '.join(PARTS)}")
    parser.add_argument("--repeats", type=int, default=5, help="repeats of a timed fit (the median counts)")
    parser.add_argument("--size", type=int, default=1_000_000, help="rows of the large synthetic problem")
    parser.add_argument("--json", type=Path, help="where the results go (default: benchmarks/results/engine.json)")
    options = parser.parse_args()
    with one_thread():
        found = {part: PARTS[part](options.repeats, options.size) for part in options.only}
        print(f"\nresults: {save('engine', found, options.json)}")


if __name__ == "__main__":
    main()
