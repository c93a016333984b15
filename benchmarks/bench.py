"""One instrument for all benchmarks: klimb and whichever rivals are installed, each in a process of its own.

    python -m benchmarks.bench run [--only PART ...] [--packages NAME ...] [--most SIZE]    measure, judge, write down
    python -m benchmarks.bench page                                        docs/benchmarks.md from what was written
    python -m benchmarks.bench compare BASE [--only PART ...]              klimb at two commits

A case (`benchmarks.cases`) makes data of a size, has a solver for each package, and one judge of all answers. Packages
are looked for in this interpreter, then in the virtual environments in the directory named by KLIMB_RIVALS; one that is
in none of them is a line that says so. Figures are CPU and wall seconds of the best of a few runs (the first one, with
imports and compilation, apart), peak memory above that before the run, with one thread, and the seconds of the BLAS
calls that nobody does without. Lines of JSON go to benchmarks/results/bench.jsonl.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pickle
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cases.base import Case

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "bench.jsonl"
PAGE, MARKS = ROOT / "docs" / "benchmarks.md", ("<!-- bench: begin -->\n", "<!-- bench: end -->\n")
MODULES = ("logistic", "formulas", "processes", "expensive")
# What a package is called by import; R packages are asked for by Rscript.
IMPORTS = {"klimb": "klimb", "scikit-learn": "sklearn", "glum": "glum", "NumPyro": "numpyro", "PyMC": "pymc",
           "statsmodels": "statsmodels", "glmm": "glmm", "mixedlm": "mixedlm", "GPBoost": "gpboost", "GPflow": "gpflow",
           "GPyTorch": "gpytorch", "GPJax": "gpjax", "BayesNewton": "bayesnewton", "PyVBMC": "pyvbmc"}
IN_R = ("lme4", "glmmTMB", "mgcv")
SHORT, LONGEST, REPEATS = 2.0, 900.0, 3  # a run of less CPU seconds is repeated; seconds after which one is ended
SLOWER = 1.15  # ratio from which a commit is said to be slower
THREADS = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL", "NUMBA")}
ALONE = {**THREADS, "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false", "JAX_PLATFORMS": "cpu"}


def cases() -> dict[str, Case]:
    return {name: case for module in MODULES
            for name, case in importlib.import_module(f"benchmarks.cases.{module}").CASES.items()}


def interpreter(solver: str, known: dict[str, str | None]) -> str | None:
    """The Python of a package, or None where it is not installed."""
    package = next((name for name in (*IMPORTS, *IN_R) if solver.startswith(name)), solver)
    if package not in known:
        known[package] = _searched(package)
    return known[package]


def _searched(package: str) -> str | None:
    if package in IN_R:
        asked = ["Rscript", "-e", f'quit(status = !requireNamespace("{package}", quietly = TRUE))']
        found = shutil.which("Rscript") and subprocess.run(asked, capture_output=True, check=False).returncode == 0
        return sys.executable if found else None
    folder = os.environ.get("KLIMB_RIVALS")
    others = sorted(Path(folder).glob("*/bin/python")) if folder else []
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({IMPORTS.get(package, package)!r}) is None)"
    for python in [sys.executable, *map(str, others)]:
        if subprocess.run([python, "-c", code], capture_output=True, check=False).returncode == 0:
            return python
    return None


def launched(name: str, size: int, solver: str, python: str, source: Path = ROOT / "src") -> dict[str, Any]:
    """One solver on one case in a process of its own: what it answered and took."""
    path = os.pathsep.join([str(source), str(ROOT)] if python == sys.executable else [str(ROOT)])
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "out.pickle")
        command = [python, "-m", "benchmarks.bench", "one", name, str(size), solver, str(out)]
        try:
            done = subprocess.run(command, cwd=ROOT, env={**os.environ, **ALONE, "PYTHONPATH": path}, text=True,
                                  capture_output=True, timeout=LONGEST, check=False)
        except subprocess.TimeoutExpired:
            return {"error": f"not done in {LONGEST:g} s"}
        if not out.exists():
            return {"error": done.stderr.strip().splitlines()[-1][:200] if done.stderr.strip() else "no answer"}
        return dict(pickle.loads(out.read_bytes()))


def one(name: str, size: int, solver: str, out: Path) -> None:
    """The worker: the best of a few runs after a first one, which pays for imports and compilation."""
    case = cases()[name]
    data = case.make(size)
    before = _peak()
    runs, answer = [], {}
    while len(runs) < REPEATS + 1 and (len(runs) < 2 or runs[-1][0] < SHORT):
        cpu, wall = _cpu(), time.perf_counter()
        answer = case.solvers[solver](data)
        runs.append((float(answer.get("cpu", _cpu() - cpu)), float(answer.get("wall", time.perf_counter() - wall))))
        if runs[0][0] > LONGEST / 20:
            break
    best = min(runs[1:] or runs)
    floor = case.floor(size)
    out.write_bytes(pickle.dumps({"answer": answer, "cpu": best[0], "wall": best[1], "first": runs[0][0],
                                  "memory": _peak() - before, "floor": None if floor is None else _floor(floor)}))


def _cpu() -> float:
    """Of this process and the children that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def _peak() -> float:
    """The largest resident size so far of this process or of a child, in MB."""
    return max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) / 1024


def _floor(shape: tuple[Any, ...]) -> float:
    from benchmarks import floors

    return {"weights": floors.weights_floor, "kernel": floors.kernel_floor}[shape[0]](*shape[1:], repeats=3)


def chosen(only: list[str], most: float) -> Iterator[tuple[str, Case, int]]:
    for name, case in cases().items():
        if not only or any(part in name for part in only):
            for size in case.sizes:
                if size <= most:
                    yield name, case, size


def run(options: argparse.Namespace) -> None:
    known: dict[str, str | None] = {}
    asked = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    about = {"commit": commit, "when": datetime.now(UTC).isoformat(timespec="seconds")}
    for name, case, size in chosen(options.only, options.most):
        records, answers = [], {}
        for solver in case.solvers:
            if options.packages and not any(solver.startswith(asked) for asked in options.packages):
                continue
            python = interpreter(solver, known)
            found = {"error": "not installed"} if python is None else launched(name, size, solver, python)
            answer = found.pop("answer", None)
            record = {"case": name, "size": size, "package": solver, **found, **about, "load": os.getloadavg()[0]}
            if answer is not None:
                answers[solver] = answer
                record.update({key: answer[key] for key in ("evaluations", "note") if key in answer})
            records.append(record)
        quality = case.judge(case.make(size), answers) if answers else {}
        with RESULTS.open("a") as file:
            for record in records:
                record["quality"] = quality.get(record["package"])
                file.write(json.dumps(record) + "\n")
                print(_line(record), flush=True)


def _line(record: dict[str, Any]) -> str:
    head = f"{record['case']}, {record['size']:,}: {record['package']}: "
    if "error" in record:
        return head + record["error"]
    floor = f", {record['cpu'] / record['floor']:.3g} floors" if record.get("floor") else ""
    more = f", {record['evaluations']} evaluations" if "evaluations" in record else ""
    return head + (f"CPU {record['cpu']:.3g} s, wall {record['wall']:.3g} s, {record['memory']:.0f} MB{floor}{more}, "
                   f"quality {record['quality']:.2g}")


def latest() -> dict[tuple[str, int], dict[str, dict[str, Any]]]:
    """The last record of every package on every case and size; one of an absent package yields to a measured one."""
    found: dict[tuple[str, int], dict[str, dict[str, Any]]] = {}
    for line in RESULTS.read_text().splitlines():
        record = json.loads(line)
        here = found.setdefault((record["case"], record["size"]), {})
        if record.get("error") != "not installed" or record["package"] not in here:
            here[record["package"]] = record
    return found


def lost(here: dict[str, dict[str, Any]]) -> list[str]:
    """Who was faster than klimb at a quality no worse, and who was of better quality."""
    ours = here.get("klimb", {})
    if "cpu" not in ours:
        return []
    found = []
    for who, record in here.items():
        if who != "klimb" and "cpu" in record:
            as_good = record["quality"] <= 1.5 * ours["quality"] + 1e-3
            if as_good and record["cpu"] < ours["cpu"]:
                found.append(f"{who} is {ours['cpu'] / record['cpu']:.1f} times faster")
            elif record["quality"] < ours["quality"] / 1.5 - 1e-3:
                found.append(f"{who} is closer ({record['quality']:.2g} against {ours['quality']:.2g})")
    return found


def page() -> None:
    everything = latest()
    lines, losing, judged = [], [], {name: case.judged for name, case in cases().items()}
    for name in dict.fromkeys(name for name, _ in everything):
        sizes = {size: here for (one_name, size), here in everything.items() if one_name == name}
        lines += [f"**{name}** (quality: {judged.get(name, 'as recorded')})", "",
                  "| size | package | CPU s | wall s | first run | memory, MB | in floors | evaluations | quality |",
                  "|---|---|---|---|---|---|---|---|---|"]
        for size, here in sorted(sizes.items()):
            for who, record in here.items():
                if "error" in record:
                    lines.append(f"| {size:,} | {who} | {record['error'].replace('|', '/')} | | | | | | |")
                    continue
                floors = f"{record['cpu'] / record['floor']:.3g}" if record.get("floor") else ""
                memory = "" if record["memory"] is None else f"{record['memory']:.0f}"
                lines.append(f"| {size:,} | {who} | {record['cpu']:.3g} | {record['wall']:.3g} | "
                             f"{record['first']:.3g} | {memory} | {floors} | "
                             f"{record.get('evaluations', '')} | {record['quality']:.2g} |")
            losing += [f"- {name}, {size:,}: {reason}." for reason in lost(here)]
        lines += ["", *_growth(sizes), ""]
    recorded = sorted({record["commit"] for here in everything.values() for record in here.values()})
    text = ["### Where klimb loses", "", *(losing or ["Nowhere in these records."]), "", "### All records", "",
            f"Measured at {', '.join(recorded)}.", "", *lines]
    before, _, rest = PAGE.read_text().partition(MARKS[0])
    PAGE.write_text(before + MARKS[0] + "\n".join(text).rstrip() + "\n" + MARKS[1] + rest.partition(MARKS[1])[2])


def _growth(sizes: dict[int, dict[str, dict[str, Any]]]) -> list[str]:
    """Slopes of log CPU seconds in the log of the size."""
    found = []
    for who in dict.fromkeys(who for here in sizes.values() for who in here):
        points = [(size, here[who]["cpu"]) for size, here in sorted(sizes.items()) if "cpu" in here.get(who, {})]
        if len(points) > 1:
            x, y = np.log(np.array(points)).T
            found.append(f"{who} {np.polyfit(x, y, 1)[0]:.2f}")
    return [f"Growth (exponent of the size): {', '.join(found)}."] if found else []


def compare(options: argparse.Namespace) -> bool:
    """klimb at another commit and here, in turn; whether some case has become slower."""
    worse = False
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder, "base")
        subprocess.run(["git", "worktree", "add", "--detach", str(base), options.base], cwd=ROOT, check=True,
                       capture_output=True)
        try:
            for name, _, size in chosen(options.only, options.most):
                taken: dict[Path, list[float]] = {base / "src": [], ROOT / "src": []}
                errors = set()
                for _ in range(options.rounds):
                    for source, seconds in taken.items():
                        found = launched(name, size, "klimb", sys.executable, source)
                        errors |= {f"{source.parent.name}: {found['error']}"} if "error" in found else set()
                        seconds += [found["cpu"]] if "cpu" in found else []
                if errors:
                    print(f"{name}, {size:,}: {'; '.join(sorted(errors))}", flush=True)
                    continue
                old, new = (min(seconds) for seconds in taken.values())
                slower = new > SLOWER * old and min(taken[ROOT / "src"]) > max(taken[base / "src"])
                worse |= slower
                print(f"{name}, {size:,}: {old:.4g} s at {options.base}, {new:.4g} s here, ratio {new / old:.2f}"
                      f"{'  SLOWER' if slower else ''}", flush=True)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(base)], cwd=ROOT, check=False)
    return worse


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    runs, compared, single = commands.add_parser("run"), commands.add_parser("compare"), commands.add_parser("one")
    commands.add_parser("page")
    compared.add_argument("base")
    compared.add_argument("--rounds", type=int, default=3)
    for part in (runs, compared):
        part.add_argument("--only", nargs="*", default=[], help="parts of the names of cases")
        part.add_argument("--most", type=float, default=np.inf, help="the largest size")
    runs.add_argument("--packages", nargs="*", default=[])
    for argument, kind in (("name", str), ("size", int), ("solver", str), ("out", Path)):
        single.add_argument(argument, type=kind)
    options = parser.parse_args()
    if options.command == "one":
        one(options.name, options.size, options.solver, options.out)
    elif options.command == "compare":
        sys.exit(1 if compare(options) else 0)
    else:
        run(options) if options.command == "run" else page()


if __name__ == "__main__":
    main()
