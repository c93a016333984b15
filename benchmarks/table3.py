"""[A] Table 3: Gaussian processes over the paper's grids, scored by the log-loss on the other half of the data.

    python -m benchmarks.table3 [--sets sonar ...] [--methods default ep laplace gradient proximal] [--splits N]
    python -m benchmarks.table3 --report

A random half of a data set is fitted at every cell of the 15 x 15 grid of (log l, log sigma), for robust regression
(Laplace noise) with the noise scale as a third axis. The cell is chosen by the method's own evidence, and the other
half scores it. ``gradient`` has no grid: L-BFGS on the bound of the default fit. ``proximal`` is the paper's own
iteration, with its step and its stop; ``proximal-chosen`` and ``ep-chosen`` run at the default's best cell only, for
sets where a whole grid takes a night. Splits are ours, seeded, so figures differ from the paper's by their spread.

Every (set, method, split) is written to ``results/table3-SET.json`` as soon as it is done, and never done twice.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import klimb
from benchmarks import problems
from benchmarks.measure import RESULTS, environment, one_thread, table
from klimb import kernels, latents, methods, sites, steps
from klimb.infer.evidence import optimise


class Paper(NamedTuple):
    """What [A] prints for a data set: splits, log-loss of Laplace, EP and proximal, and their times."""

    splits: int
    loss: tuple[float, float, float]
    time: tuple[str, str, str]


CLASSIFICATION = {
    "sonar": Paper(10, (0.410, 0.341, 0.317), ("4 s", "45 s", "63 s")),
    "ionosphere": Paper(10, (0.285, 0.234, 0.230), ("10 s", "3.8 min", "3.6 min")),
    "usps_3vs5": Paper(5, (0.101, 0.065, 0.055), ("1 min", "1 h", "1 h")),
}
REGRESSION = {
    "triazines": Paper(10, (1.35, 1.36, 1.35), ("10 s", "8 min", "14 min")),
    "boston": Paper(10, (1.03, 0.300, 0.310), ("0.4 min", "25 min", "61 min")),
    "space_ga": Paper(1, (1.01, 0.767, 0.742), ("2 min", "5 h", "11 h")),
}
SETS = CLASSIFICATION | REGRESSION
NOISE = np.linspace(-5.0, 1.0, 4)  # log b: the paper prints linspace(-5, 1, 2), whose values are the outer ones here
PRINTED_NOISE = (0, 3)
ROUNDING = 1e-4  # stationarity below which a fit that stalled did so for lack of digits
STEP = {True: 0.25, False: 1.0}  # the paper's beta, for classification and regression
METHODS = ("laplace", "ep", "ep-chosen", "default", "gradient", "proximal", "proximal-chosen")


class Cell(NamedTuple):
    """A fit at one cell of the grid: indices of (log l, log sigma, site), and what came out."""

    where: tuple[int, int, int]
    bound: float
    loss: float
    status: str
    stationarity: float
    n_factor: int


class Half(NamedTuple):
    """One random half to train on and the rest to test."""

    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray


def split(name: str, seed: int) -> Half:
    """Inputs (and real targets) standardised by the half that is trained on."""
    data = problems.load(name)
    order = np.random.default_rng(seed).permutation(len(data.y))
    train, test = order[: len(order) // 2], order[len(order) // 2 :]
    mean, sd = data.X[train].mean(0), data.X[train].std(0)
    X = (data.X - mean) / np.where(sd > 0, sd, 1.0)
    y = data.y
    if name in REGRESSION:
        y = (y - y[train].mean()) / y[train].std()
    return Half(X[train], y[train], X[test], y[test])


def shapes(name: str) -> list[sites.Site]:
    """The likelihoods of the grid: one for classification, one for each noise scale else."""
    return [sites.Logistic()] if name in CLASSIFICATION else [sites.Laplace(float(np.exp(b))) for b in NOISE]


def fitter(name: str, method: str) -> Callable[..., Any]:
    """A method with the arguments (latent, site, y)."""
    if method.startswith("proximal"):
        # With Laplace noise a step of 1 from the prior runs in a circle; the paper's own start is not the prior either.
        step = steps.Proximal(STEP[name in CLASSIFICATION], start="prior" if name in CLASSIFICATION else "data")
        return lambda latent, site, y: klimb.infer(latent, site, y, step=step, tol=1e-4, max_iter=1000)
    return {"laplace": methods.laplace, "ep": methods.ep, "default": klimb.infer}[method.removesuffix("-chosen")]


def walk(name: str, method: str, half: Half, cells: list[tuple[int, int, int]]) -> list[Cell]:
    """Fit and score the cells, each on its own from a cold start."""
    fit, likelihoods, found = fitter(name, method), shapes(name), []
    unit: tuple[int, Any, Any] | None = None  # the kernel matrices of the present lengthscale
    for where in cells:
        l_index, s_index, shape = where
        if unit is None or unit[0] != l_index:
            kernel = kernels.RBF(lengthscale=float(np.exp(problems.GRID[l_index])))
            unit = (l_index, kernel.gram(half.X), kernel.gram(half.X_test, half.X))
        variance = float(np.exp(2 * problems.GRID[s_index]))
        latent = latents.Kernel(variance * unit[1], check=False)
        result = fit(latent, likelihoods[shape], half.y)
        m, v = latent.predict(result.posterior, variance * unit[2], np.full(len(half.y_test), variance))
        loss = log_loss(likelihoods[shape], m, v, half.y_test)
        found.append(Cell(where, float(result.bound), loss, result.status.name.lower(),
                          float(result.history.stationarity[-1]), int(result.history.n_factor.sum())))
    return found


def log_loss(site: sites.Site, m: np.ndarray, v: np.ndarray, y: np.ndarray) -> float:
    """Minus the mean log predictive probability, in nats."""
    return -float(site.predict(m, v).log_density(y).mean())


def best_of(cells: list[Cell], method: str, noise: tuple[int, ...] | None = None) -> Cell:
    """The cell of the highest evidence; an unfinished variational fit is still a bound, other estimates are not."""
    trusted = [cell for cell in cells if np.isfinite(cell.bound) and (noise is None or cell.where[2] in noise)
               and (cell.status == "converged" or method.startswith(("default", "proximal")))]
    return max(trusted, key=lambda cell: cell.bound)


def summary(cell: Cell) -> dict[str, Any]:
    l_index, s_index, shape = cell.where
    return {"loss": cell.loss, "bound": cell.bound, "log_l": float(problems.GRID[l_index]),
            "log_sigma": float(problems.GRID[s_index]), "noise": shape}


def by_grid(name: str, method: str, seed: int, chosen: tuple[int, int, int] | None, every: int) -> dict[str, Any]:
    """One method on one split: the chosen cell, the least loss of the grid, and what did not converge."""
    half = split(name, seed)
    axis = range(0, len(problems.GRID), every)
    begin = time.process_time()
    places = list(product(axis, axis, range(len(shapes(name))))) if chosen is None else [chosen]
    cells = walk(name, method, half, places)
    seconds = time.process_time() - begin
    failed = [[*cell.where, cell.status, cell.stationarity] for cell in cells if cell.status != "converged"]
    found = {**summary(best_of(cells, method)), "seconds": seconds, "cells": len(cells), "every": every,
             "failed": len(failed),
             "rounding": sum(row[-1] <= ROUNDING for row in failed),
             "least": min(cell.loss for cell in cells if np.isfinite(cell.loss)),
             "most_factorisations": max(cell.n_factor for cell in cells),
             "factorisations": sum(cell.n_factor for cell in cells), "first_failures": failed[:20]}
    if name in REGRESSION and chosen is None:
        found["printed"] = summary(best_of(cells, method, PRINTED_NOISE))
    return found


def by_gradient(name: str, seed: int) -> dict[str, Any]:
    """Hyperparameters by L-BFGS on the bound, from one start for all: lengthscale sqrt(D), amplitude 2 or 1."""
    half = split(name, seed)
    begin = time.process_time()
    if name in CLASSIFICATION:
        kernel = kernels.RBF(variance=4.0, lengthscale=float(np.sqrt(half.X.shape[1])))
        model = klimb.gp(kernel, half.X, sites.Logistic())
    else:
        kernel = kernels.RBF(variance=1.0, lengthscale=float(np.sqrt(half.X.shape[1])))
        model = klimb.gp(kernel, half.X, sites.Laplace(0.3), learn="scale")
    best = optimise(model, half.y)
    seconds = time.process_time() - begin
    m, v = best.model.predict(best.result.posterior, half.X_test)
    return {"loss": log_loss(best.model.likelihood, m, v, half.y_test), "bound": float(best.bound), "seconds": seconds,
            "failed": int(not best.converged), "fits": best.n_fits,
            "theta": dict(zip(best.model.names, best.model.theta.tolist(), strict=True))}


def store(name: str) -> Path:
    return RESULTS / f"table3-{name}.json"


def stored(name: str) -> dict[str, dict[str, Any]]:
    """Method -> split -> record, as far as measured."""
    path = store(name)
    return json.loads(path.read_text())["found"] if path.exists() else {}


def chosen_cell(record: dict[str, Any]) -> tuple[int, int, int]:
    """The indices of a record's cell."""
    place = [int(np.argmin(np.abs(problems.GRID - record[key]))) for key in ("log_l", "log_sigma")]
    return place[0], place[1], int(record["noise"])


def measure(name: str, method: str, seed: int, every: int) -> None:
    """One record, unless it is there."""
    found = stored(name)
    if str(seed) in found.get(method, {}):
        return
    if method == "gradient":
        record = by_gradient(name, seed)
    elif method.endswith("-chosen"):
        record = by_grid(name, method, seed, chosen_cell(found["default"][str(seed)]), every)
    else:
        record = by_grid(name, method, seed, None, every)
    found = stored(name)
    found.setdefault(method, {})[str(seed)] = record
    store(name).write_text(json.dumps({"environment": environment(), "found": found}, indent=1) + "\n")
    print(name, method, seed, {key: record[key] for key in ("loss", "bound", "failed", "seconds")}, flush=True)


def report() -> None:
    """What was measured, beside the paper."""
    rows = []
    for name, paper in SETS.items():
        for method, by_split in stored(name).items():
            records = list(by_split.values())
            loss = np.array([record["loss"] for record in records])
            place = {"laplace": 0, "ep": 1}.get(method, 2)
            error = loss.std(ddof=1) / np.sqrt(len(loss)) if len(loss) > 1 else float("nan")
            printed = [record["printed"]["loss"] for record in records if "printed" in record]
            least = [record["least"] for record in records if "least" in record]
            rows.append((
                f"{name}, {method}", loss.mean() / np.log(2), loss.mean(), error, np.mean(printed) if printed else "",
                np.mean(least) if least else "", paper.loss[place],
                f"{sum(record['failed'] for record in records)} of {sum(record.get('cells', 1) for record in records)}",
                sum(record.get("rounding", 0) for record in records),
                np.mean([record["seconds"] for record in records]), paper.time[place], len(records)))
    table("[A] Table 3: test log-loss at the best evidence",
          ["set, method", "bits", "nats", "+-", "two b, nats", "least, nats", "paper", "not converged", "by rounding",
           "CPU s", "paper's time", "splits"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="*", choices=list(SETS), default=list(SETS))
    parser.add_argument("--methods", nargs="*", choices=METHODS, default=["laplace", "default", "ep", "gradient"])
    parser.add_argument("--splits", type=int, default=99, help="at most this many (default: as the paper)")
    parser.add_argument("--every", type=int, default=1, help="only every so many values of log l and log sigma")
    parser.add_argument("--report", action="store_true", help="only show what was measured")
    options = parser.parse_args()
    if not options.report:
        with one_thread():
            for name, method in product(options.sets, options.methods):
                if method == "laplace" and name in REGRESSION:
                    continue  # the curvature at the mode is zero or infinite: there is no such approximation
                for seed in range(min(SETS[name].splits, options.splits)):
                    measure(name, method, seed, options.every)
    report()


if __name__ == "__main__":
    main()
