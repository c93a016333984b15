"""Inducing points at scale: ``python -m benchmarks.inducing [--only PART ...]``.

Parts: ``fit`` (logistic, M = 100, fixed points and hyperparameters, N = 1e4 and 1e5: the whole fit, and the time until
the bound stays within 1e-3 nats of its best, beside GPflow's full-data natural gradients), ``million`` (N = 1e6 with
rows computed on demand: time and peak memory, in a process of its own), ``minibatch`` (bound after each pass),
``update`` (adding data beside refitting), ``moving`` (optimising the points). One BLAS thread, CPU seconds.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import klimb
from benchmarks.measure import cpu, one_thread, save, table
from klimb import kernels, sites
from klimb.infer.minibatch import minibatch
from klimb.kernels import choose_inducing
from klimb.models.inducing import enough_inducing, optimise_inducing
from klimb.rows.kernel_rows import inducing_latent

Found = dict[str, Any]
CLOSE = 1e-3  # nats from the best bound
# CPU seconds of GPflow's SVGP with natural gradients of step 1 on all data, whitened, q alone trained: until the bound
# is within 1e-3 nats of its best, and until its own stop (1e-9 relative), compilation apart; and those of one Cholesky
# factorisation of order 2000 in the same run, the unit that makes runs on different days comparable.
GPFLOW = {10_000: (0.194, 0.497, 0.0669), 100_000: (2.14, 3.82, 0.0660)}


class Sparse(NamedTuple):
    """Inputs, labels and inducing points."""

    X: NDArray[np.float64]
    y: NDArray[np.float64]
    Z: NDArray[np.float64]


KERNEL = kernels.RBF(variance=9.0, lengthscale=1.5)


def problem(n: int, m: int = 100) -> Sparse:
    """Labels of a smooth function of four normal inputs (random features); inducing points drawn from the inputs."""
    rng = np.random.default_rng(7)
    X = rng.standard_normal((n, 4))
    directions, phases = rng.standard_normal((4, 300)) / 1.5, rng.uniform(0, 2 * np.pi, 300)
    weights = 3.0 * np.sqrt(2 / 300) * rng.standard_normal(300)
    f = np.concatenate([np.cos(rows @ directions + phases) @ weights for rows in np.array_split(X, max(1, n // 5000))])
    y = (rng.uniform(size=n) < 1 / (1 + np.exp(-f))).astype(float)
    return Sparse(X, y, X[rng.permutation(n)[:m]].copy())


def timed_fit(data: Sparse) -> tuple[float, float, float, Any]:
    """CPU seconds for the latent, until `CLOSE` and for the whole fit, and the result."""
    begin = process_time()
    latent = inducing_latent(KERNEL, data.X, data.Z, jitter=1e-6 / 9.0)
    built = process_time()
    moments: list[float] = []
    result = klimb.infer(latent, sites.Logistic(), data.y, callback=lambda _: moments.append(process_time()))
    moments.append(process_time())
    arrived = int(np.argmax(result.bound - result.history.bound <= CLOSE))
    return built - begin, moments[arrived] - begin, moments[-1] - begin, result


def part_fit(repeats: int) -> Found:
    K = np.random.default_rng(0).standard_normal((2000, 2000))
    K = K @ K.T + 2000 * np.eye(2000)
    unit = cpu(lambda: np.linalg.cholesky(K), 5).seconds
    found: Found = {"cholesky of order 2000": unit}
    rows = []
    for n, (gpflow_close, gpflow_whole, gpflow_unit) in GPFLOW.items():
        data = problem(n)
        clocks = []
        for _ in range(repeats):  # one result at a time: many would hold so much memory that each begins with new pages
            *clock, result = timed_fit(data)
            clocks.append(clock)
        latent, close, whole = (median(clock[i] for clock in clocks) for i in range(3))
        found[str(n)] = {"latent": latent, "close": close, "whole": whole, "bound": result.bound,
                         "n_factor": int(result.history.n_factor.sum()), "gpflow close": gpflow_close,
                         "gpflow whole": gpflow_whole, "ratio": close / gpflow_close,
                         "ratio in units": close / unit / (gpflow_close / gpflow_unit)}
        rows.append((n, latent, close, whole, gpflow_close, gpflow_whole, close / gpflow_close,
                     close / unit / (gpflow_close / gpflow_unit), result.bound))
    table("M = 100, fixed points and hyperparameters", ["N", "rows", "to 1e-3", "whole fit", "GPflow to 1e-3",
          "GPflow whole", "ratio", "in units of a Cholesky", "bound"], rows)
    return found


def peak_mebibytes() -> float:
    """Peak resident memory of this process (Linux); that of `resource` would include the parent's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def million(n: int, m: int) -> Found:
    """A fit of n data with rows computed on demand; runs in a fresh process so that its peak memory is its own."""
    with one_thread():
        data = problem(n, m)
        before = peak_mebibytes()
        fit = cpu(lambda: klimb.infer(inducing_latent(KERNEL, data.X, data.Z, stored=False), sites.Logistic(), data.y),
                  1)
    return {"n": n, "m": m, "seconds": fit.seconds, "status": fit.value.status.name, "bound": fit.value.bound,
            "n_factor": int(fit.value.history.n_factor.sum()), "data MiB": before, "peak MiB": peak_mebibytes()}


def part_million(repeats: int) -> Found:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        found = pool.submit(million, 1_000_000, 100).result()
    table("rows on demand", list(found), [tuple(found.values())])
    return found


def part_minibatch(repeats: int) -> Found:
    found: Found = {}
    rows = []
    for n in GPFLOW:
        data = problem(n)
        latent = inducing_latent(KERNEL, data.X, data.Z)
        best = klimb.infer(latent, sites.Logistic(), data.y, tol=1e-9).bound
        run = cpu(lambda latent=latent, data=data: minibatch(latent, sites.Logistic(), data.y), repeats)
        gaps = [klimb.infer(latent, sites.Logistic(), data.y, max_iter=0, start=minibatch(
            latent, sites.Logistic(), data.y, max_passes=k).posterior).bound - best for k in (1, 2, 3)]
        found[str(n)] = {"seconds": run.seconds, "gap": run.value.bound - best, "gap after passes": gaps,
                         "passes": run.value.history.rule.count("pass")}
        rows.append((n, run.seconds, found[str(n)]["passes"], run.value.bound - best, *gaps))
    table("minibatches with a site per datum", ["N", "CPU s", "passes", "gap", "after 1", "after 2", "after 3"], rows)
    return found


def part_update(repeats: int) -> Found:
    found: Found = {}
    rows = []
    data = problem(2000)
    for name, points in (("full process, n = 1000", None), ("M = 100, N = 2000", data.Z)):
        n = 1000 if points is None else 2000
        for new in (1, 20):
            X, y, old = data.X[:n], data.y[:n], n - new
            fit = klimb.gp(KERNEL, X[:old], sites.Logistic(), inducing=points).fit(y[:old], hyper="fixed")
            whole = cpu(lambda X=X, y=y, points=points: klimb.gp(
                KERNEL, X, sites.Logistic(), inducing=points).fit(y, hyper="fixed"), repeats)
            more = cpu(lambda fit=fit, X=X, y=y, old=old: fit.update(X[old:], y[old:]), repeats)
            line = {"refit": whole.seconds, "update": more.seconds,
                    "factorisations of refit": int(whole.value.history.n_factor.sum()),
                    "factorisations of update": int(more.value.history.n_factor.sum()),
                    "difference": more.value.bound - whole.value.bound}
            if points is not None:
                summary = fit.summarise()
                line["summary"] = cpu(lambda s=summary, X=X, y=y, old=old: s.absorb(X[old:], y[old:]), repeats).seconds
            found[f"{name}, {new} new"] = line
            rows.append((f"{name}, {new} new", *line.values()))
    table("adding data", ["model", "refit s", "update s", "factorisations of refit", "of update", "difference",
                          "summary s"], [(*row, *[""] * (7 - len(row))) for row in rows])
    return found


def part_moving(repeats: int) -> Found:
    data = problem(2000)
    model = klimb.gp(KERNEL, data.X, sites.Logistic())
    found: Found = {}
    rows = []
    enough = cpu(lambda: enough_inducing(model, data.y, tol=1.0, most=400), 1)
    found["enough"] = {"seconds": enough.seconds, "sizes": enough.value.trace.rule, "bounds": enough.value.trace.bound,
                       "reason": enough.value.notes[0]}
    for method in ("greedy", "kmeans++"):
        Z = choose_inducing(KERNEL, data.X, 50, method=method)
        start = klimb.gp(KERNEL, data.X, sites.Logistic(), inducing=Z)
        run = cpu(lambda start=start: optimise_inducing(start, data.y, hyperparameters=False), 1)
        line = {"start": start.fit(data.y, hyper="fixed").bound, "moved": run.value.bound, "n_fits": run.value.n_fits,
                "seconds": run.seconds}
        found[method] = line
        rows.append((method, *line.values()))
    table("N = 2000, M = 50: moving the points", ["start", "bound before", "bound after", "fits", "CPU s"], rows)
    table("how many are enough (1 nat, at most 400)", ["M", "bound"], list(zip(*[found["enough"][key] for key in (
        "sizes", "bounds")], strict=True)))
    return found


PARTS = {"fit": part_fit, "million": part_million, "minibatch": part_minibatch, "update": part_update,
         "moving": part_moving}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.inducing", description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, help="where to write the JSON file (default: benchmarks/results)")
    chosen = parser.parse_args()
    with one_thread():
        small = problem(300)  # imports and tables
        klimb.gp(KERNEL, small.X, sites.Logistic(), inducing=20).fit(small.y, hyper="fixed")
        found = {name: PARTS[name](chosen.repeats) for name in chosen.only}
    print("\nwritten to", save("inducing", found, chosen.out))


if __name__ == "__main__":
    main()
