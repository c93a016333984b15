"""Gaussian processes against other packages: CPU seconds to within 1e-3 nats of the best bound anyone found.

    python -m benchmarks.gp_rivals --venvs DIR [--only ionosphere ...] [--rivals klimb gpflow ...] [--again]
    python -m benchmarks.gp_rivals --report

``DIR`` (or ``KLIMB_RIVALS``) holds one virtual environment per rival (tf, torch, gpjax, bn); what is missing is
reported as not installed. Every rival runs alone in a process of its own with one thread; its clock leaves out imports,
compilation and evaluation. Bounds are those of one evaluator: (m, v, KL) of every q by `benchmarks.rivals.gp_common`,
expectations by klimb's likelihoods. Results are kept in ``results/gp_rivals.json``; ``--again`` measures again what is
there.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg as sla
from scipy.special import expit

from benchmarks import problems
from benchmarks.measure import RESULTS, environment, table
from benchmarks.rivals import gp_common as common
from klimb import sites

CLOSE = 1e-3  # nats
Arrays = dict[str, Any]
FULL = ("klimb default", "gpflow natural", "gpytorch natural", "gpjax dual", "bayesnewton natural", "gpml kl-0.5")
ROBUST = (*FULL, "gpml kl", "gpflow natural-0.3", "gpytorch natural-0.3", "gpjax dual-0.3", "bayesnewton natural-0.3",
          "gpflow lbfgs", "gpytorch lbfgs")
SPARSE = ("klimb default", "gpflow natural", "gpytorch natural", "gpjax natural", "gpjax dual", "bayesnewton natural")
LEARN = ("klimb learn", "gpflow learn-lbfgs", "gpflow learn-natural-adam", "gpytorch learn-natural-adam",
         "sklearn learn-laplace")
POINT = "sklearn laplace"  # not variational: a price to compare with, not a rival for the bound
ENVIRONMENTS = {"gpflow": "tf", "gpytorch": "torch", "gpjax": "gpjax", "bayesnewton": "bn"}
LIKELIHOODS = {"logistic": sites.Logistic(), "poisson": sites.Poisson(), "laplace": sites.Laplace(common.LAPLACE_SCALE),
               "student": sites.StudentT(common.STUDENT_DF, common.STUDENT_SCALE)}


# -- the problems


def ionosphere() -> Arrays:
    data = problems.load("ionosphere")
    return {"X": problems.standardised(data.X), "y": (data.y > 0).astype(float), "likelihood": "logistic",
            "lengthscale": 5.0, "variance": 25.0}


def draw(n: int, lengthscale: float, variance: float) -> tuple[np.ndarray, np.ndarray, np.random.Generator]:
    """Normal inputs in four dimensions, a function drawn from the prior there, and the generator for its data."""
    X, rng = np.random.default_rng(n).standard_normal((n, 4)), np.random.default_rng(100 + n)
    K = common.rbf(X, X, lengthscale, variance)
    return X, sla.cholesky(K + 1e-6 * np.eye(n), lower=True) @ rng.standard_normal(n), rng


def labels(n: int) -> Arrays:
    X, f, rng = draw(n, 1.5, 9.0)
    return {"X": X, "y": (rng.uniform(size=n) < expit(f)).astype(float), "likelihood": "logistic", "lengthscale": 1.5,
            "variance": 9.0}


def counts(n: int) -> Arrays:
    X, f, rng = draw(n, 2.0, 1.0)
    return {"X": X, "y": rng.poisson(np.exp(f)).astype(float), "likelihood": "poisson", "lengthscale": 2.0,
            "variance": 1.0}


def housing(likelihood: str) -> Arrays:
    data = problems.load("boston")
    X, y = problems.standardised(data.X), problems.standardised(data.y[:, None])[:, 0]
    return {"X": X[:500], "y": y[:500], "likelihood": likelihood, "lengthscale": 3.0, "variance": 1.0}


def many(n: int) -> Arrays:
    """Labels of a smooth function (300 random features); 100 inducing points among the inputs."""
    rng = np.random.default_rng(7)
    X = rng.standard_normal((n, 4))
    directions, phases = rng.standard_normal((4, 300)) / 1.5, rng.uniform(0, 2 * np.pi, 300)
    f = 3.0 * np.sqrt(2 / 300) * np.cos(X @ directions + phases) @ rng.standard_normal(300)
    y = (rng.uniform(size=n) < expit(f)).astype(float)
    return {"X": X, "y": y, "Z": X[rng.permutation(n)[:100]], "likelihood": "logistic", "lengthscale": 1.5,
            "variance": 9.0}


def poor_start(made: Arrays) -> Arrays:
    """Hyperparameters from which there is something to learn."""
    return {**made, "lengthscale": 0.3 * made["lengthscale"], "variance": 0.2 * made["variance"]}


class Contest(NamedTuple):
    """A problem, who takes part, how many CPU seconds they have, and our bar: a share of the best rival's time."""

    make: Callable[[], Arrays]
    entrants: tuple[str, ...]
    cap: float
    bar: float


CONTESTS = {
    "logistic, n = 351 (ionosphere)": Contest(ionosphere, (*FULL, POINT), 10, 1 / 4),
    "logistic, n = 1000": Contest(lambda: labels(1000), (*FULL, POINT), 15, 1 / 5),
    "logistic, n = 2000": Contest(lambda: labels(2000), (*FULL, POINT), 40, 1 / 6),
    "Laplace noise, n = 500 (housing)": Contest(lambda: housing("laplace"), ROBUST, 7, 1 / 8),
    "Student-t noise, n = 500 (housing)": Contest(lambda: housing("student"), ROBUST, 6, 1 / 8),
    "Poisson, n = 1000": Contest(lambda: counts(1000), FULL, 7, 1 / 5),
    "100 inducing points, N = 10,000": Contest(lambda: many(10_000), SPARSE, 4, 1 / 2),
    "100 inducing points, N = 100,000": Contest(lambda: many(100_000), SPARSE, 10, 1 / 2),
    "learning, n = 351 (ionosphere)": Contest(lambda: poor_start(ionosphere()), LEARN, 30, 1 / 5),
    "learning, n = 1000": Contest(lambda: poor_start(labels(1000)), LEARN, 30, 1 / 5),
}


# -- running them


def interpreter(rival: str, venvs: Path | None) -> str | None:
    """The Python of a rival, or None where it is not installed."""
    if rival in ("klimb", "sklearn"):
        return sys.executable
    if rival == "gpml":
        found = "GPML_DIR" in os.environ and shutil.which(os.environ.get("OCTAVE", "octave"))
        return sys.executable if found else None
    python = None if venvs is None else venvs / ENVIRONMENTS[rival] / "bin" / "python"
    return str(python) if python is not None and python.exists() else None


def run(entrant: str, python: str, problem: Path, cap: float) -> Arrays:
    """One rival on one problem, in its own process; what it wrote down."""
    rival, variant = entrant.split()
    threads = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL", "NUMBA")}
    alone = {**os.environ, **threads, "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false", "JAX_PLATFORMS": "cpu"}
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder, "found.npz")
        command = [python, "-m", f"benchmarks.rivals.gp_{rival}", str(problem), str(found), "--variant", variant,
                   "--cap", str(cap)]
        try:
            done = subprocess.run(command, cwd=problems.ROOT, env=alone, capture_output=True, text=True,
                                  timeout=30 * cap + 300, check=False)
        except subprocess.TimeoutExpired:
            return {"about": {"error": "took more than its time"}}
        if not found.exists():
            return {"about": {"error": done.stderr.strip().splitlines()[-1][:200] if done.stderr else "no result"}}
        with np.load(found, allow_pickle=False) as stored:
            return {**{key: stored[key] for key in stored.files}, "about": json.loads(str(stored["about"]))}


def bounds(made: Arrays, traced: Arrays) -> np.ndarray:
    """The bound at every lap."""
    site = LIKELIHOODS[made["likelihood"]]
    y = site.validate(made["y"])
    constant = float(np.sum(np.broadcast_to(site.constant(y), y.shape)))
    found = np.full(len(traced["kl"]), np.nan)
    for k, (m, v, kl) in enumerate(zip(traced["m"], traced["v"], traced["kl"], strict=True)):
        if np.isfinite(kl) and np.isfinite(m).all() and (v > 0).all():
            with np.errstate(all="ignore"):
                found[k] = float(site.oracle(y, m, v).value.sum()) + constant - kl
    return found


def hold(name: str, options: argparse.Namespace, found: dict[str, Arrays], save: Callable[[], None]) -> None:
    """One contest: whoever is asked for and not measured yet."""
    contest = CONTESTS[name]
    made = contest.make()
    with tempfile.TemporaryDirectory() as folder:
        problem = Path(folder, "problem.npz")
        np.savez(problem, **made)
        for entrant in contest.entrants:
            rival = entrant.split()[0]
            asked = not options.rivals or rival in options.rivals
            if not asked or (entrant in found and "trace" in found[entrant] and not options.again):
                continue
            python = interpreter(rival, options.venvs)
            if python is None:
                found.setdefault(entrant, {"error": "not installed"})
                continue
            record = min((written(made, run(entrant, python, problem, contest.cap)) for _ in range(options.rounds)),
                         key=pace)
            found[entrant] = record
            last = record["trace"][-1] if record.get("trace") else None
            print(f"{name}: {entrant}: {last} {record.get('error', '')}", flush=True)
            save()


def written(made: Arrays, traced: Arrays) -> Arrays:
    """What is kept of a run."""
    record = dict(traced["about"])
    if "cpu" in traced:
        trace = zip(traced["cpu"], traced["wall"], bounds(made, traced), strict=True)
        record["trace"] = thinned([[round(float(c), 4), round(float(w), 4), float(b)] for c, w, b in trace])
        record["theta"] = np.round(traced["theta"][-1], 4).tolist() if len(traced["theta"]) else None
    return record


def pace(record: Arrays) -> float:
    """CPU seconds a lap: of several runs of the same solver the least disturbed one has the least."""
    trace = record.get("trace")
    return trace[-1][0] / len(trace) if trace else float("inf")


def thinned(trace: list[list[float]], most: int = 60) -> list[list[float]]:
    """Few enough laps to keep: all early ones, then those that matter for the time of arrival, evenly."""
    if len(trace) <= most:
        return trace
    keep = sorted({*range(most // 2), *np.linspace(most // 2, len(trace) - 1, most // 2).astype(int).tolist()})
    return [trace[k] for k in keep]


# -- what came of it


def arrival(trace: list[list[float]], best: float) -> float | None:
    """CPU seconds from which a trace stays within `CLOSE` of ``best``."""
    late = [k for k, (_, _, bound) in enumerate(trace) if not bound >= best - CLOSE]
    first = late[-1] + 1 if late else 0
    return trace[first][0] if first < len(trace) else None


def report(everything: dict[str, dict[str, Arrays]]) -> None:
    summary = []
    for name, found in everything.items():
        traces = {who: record["trace"] for who, record in found.items() if record.get("trace")}
        final = [bound for trace in traces.values() for _, _, bound in trace if np.isfinite(bound)]
        best = max(final)
        arrived = {who: arrival(trace, best) for who, trace in traces.items()}
        rows = []
        for who in sorted(found, key=lambda who: (arrived.get(who) is None, arrived.get(who) or 0.0)):
            record, trace = found[who], traces.get(who)
            gap = best - trace[-1][2] if trace else float("nan")
            rows.append((who, arrived[who] if arrived.get(who) is not None else "-", trace[-1][0] if trace else "-",
                         f"{gap:.1e}", round(record.get("compile", 0.0), 2), round(record.get("imports", 0.0), 2),
                         record.get("error", "")[:60]))
        table(f"{name}: best bound {best:.6f}",
              ["who", "CPU s to 1e-3 nats", "to its stop", "left at its stop", "compile s", "import s", "note"], rows)
        ours = next((arrived[who] for who in arrived if who.startswith("klimb")), None)
        rivals = {who: t for who, t in arrived.items() if not who.startswith("klimb") and t is not None}
        if ours is not None and rivals:
            first = min(rivals, key=lambda who: rivals[who])
            share, bar = ours / rivals[first], CONTESTS[name].bar
            summary.append((name, ours, f"{first}: {rivals[first]:.3g}", f"1/{1 / share:.1f}", f"1/{1 / bar:.0f}",
                            "yes" if share <= bar else "NO"))
        elif ours is not None:  # the nearest rival, by the time it took to come to its own end
            near = {who: max(b for _, _, b in trace if np.isfinite(b)) for who, trace in traces.items()
                    if not who.startswith(("klimb", "sklearn")) and any(np.isfinite(b) for _, _, b in trace)}
            first = max(near, key=lambda who: near[who])
            end = arrival(traces[first], near[first]) or traces[first][-1][0]
            summary.append((name, ours, f"none; {first} ends {best - near[first]:.1g} below at {end:.3g}",
                            f"1/{end / ours:.1f}", f"1/{1 / CONTESTS[name].bar:.0f}", "yes"))
        point = found.get(POINT, {}).get("trace")
        if ours is not None and point:
            whole = traces["klimb default"][-1][0]
            summary.append((f"{name}, whole fit", whole, f"{POINT}: {point[-1][0]:.3g}",
                            f"{whole / point[-1][0]:.2f}", "1.2", "yes" if whole <= 1.2 * point[-1][0] else "NO"))
    table("klimb beside the best rival", ["contest", "klimb, CPU s", "best rival", "ratio", "bar", "met"], summary)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--venvs", type=Path, default=os.environ.get("KLIMB_RIVALS"))
    parser.add_argument("--only", nargs="*", default=[""], help="parts of the names of contests")
    parser.add_argument("--rivals", nargs="*", help="klimb, gpflow, gpytorch, gpjax, bayesnewton, gpml, sklearn")
    parser.add_argument("--rounds", type=int, default=1, help="run everyone so often and keep the fastest")
    parser.add_argument("--again", action="store_true", help="measure again what is there")
    parser.add_argument("--report", action="store_true", help="only show what was measured")
    options = parser.parse_args()
    options.venvs = Path(options.venvs).resolve() if options.venvs else None
    path = RESULTS / "gp_rivals.json"
    everything = json.loads(path.read_text())["found"] if path.exists() else {}

    def save() -> None:
        path.write_text(json.dumps({"environment": environment(), "found": everything}, indent=None) + "\n")

    if not options.report:
        for name in CONTESTS:
            if any(part in name for part in options.only):
                hold(name, options, everything.setdefault(name, {}), save)
        save()
    report(everything)


if __name__ == "__main__":
    main()
