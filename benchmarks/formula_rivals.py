"""The same model by formula in klimb, Bambi (NUTS) and statsmodels: coefficients beside each other.

    python -m benchmarks.formula_rivals --python PYTHON [--only nodal ...]
    python -m benchmarks.formula_rivals --report

``PYTHON`` is the interpreter of a virtual environment with bambi and statsmodels. klimb runs with its default priors
and Bambi with the same ones, so that the two have one posterior; statsmodels has none (maximum likelihood, REML for the
mixed model). Numbers are kept in ``results/formula_rivals.json``; ``--report`` prints the tables of docs/formula.md.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import klimb
from benchmarks import measure, problems

OTHERS = Path(__file__).parent / "rivals" / "formula_others.py"
RESULT = measure.RESULTS / "formula_rivals.json"


def read_csv(name: str) -> dict[str, Any]:
    path = problems.data_dir() / f"{name}.csv"
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {column: [float(row[column]) for row in rows] for column in rows[0]}


def nodal(python: str) -> dict[str, Any]:
    data = read_csv("nodal")
    data["y"] = [float(value > 0) for value in data["y"]]
    return {"formula": "y ~ aged + stage + grade + xray + acid", "family": "bernoulli", "group": None, "data": data}


def grunfeld(python: str) -> dict[str, Any]:
    return {"formula": "invest ~ value + capital + (1 | firm)", "fixed": "invest ~ value + capital",
            "family": "gaussian", "group": "firm", "data": ask(python, "grunfeld", None)}


def coal(python: str) -> dict[str, Any]:
    return {"formula": "disasters ~ bs(year, df=5)", "family": "poisson", "group": None, "data": read_csv("coal")}


PROBLEMS = {"nodal": nodal, "grunfeld": grunfeld, "coal": coal}


def ask(python: str, what: str, problem: dict[str, Any] | None) -> dict[str, Any]:
    """What the other environment answers."""
    out = subprocess.run([python, str(OTHERS), what], input=json.dumps(problem), capture_output=True, text=True,
                         check=False)
    if out.returncode:
        raise RuntimeError(f"{what} failed:\n{out.stderr[-3000:]}")
    answer: dict[str, Any] = json.loads(out.stdout[out.stdout.rindex("ANSWER") + 6 :])
    return answer


def fit_klimb(problem: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """klimb's table, and the priors it chose (``{name: ["normal", mean, sd]}``)."""
    start = time.process_time()
    fit = klimb.fit(problem["formula"], problem["data"], family=problem["family"], progress=False)
    seconds = time.process_time() - start
    table = {row.name: [row.mean, row.sd] for row in [*fit.coefficient_rows(), *fit.parameter_rows()]}
    return {"table": table, "seconds": seconds, "version": klimb.__version__}, full_priors(fit)


def full_priors(fit: Any) -> dict[str, Any]:
    """The priors as they are printed: three digits, which is what the other program is given too."""
    found = {}
    for name, text in fit.priors.items():
        kind, numbers = re.match(r"(\w+)\(([^)]*)\)", text).groups()  # type: ignore[union-attr]
        found[name] = [kind, *(float(number) for number in numbers.split(","))]
    return found


def measured(name: str, python: str) -> dict[str, Any]:
    problem = PROBLEMS[name](python)
    ours, priors = fit_klimb(problem)
    problem["priors"] = priors
    return {"formula": problem["formula"], "family": problem["family"], "n": len(next(iter(problem["data"].values()))),
            "priors": priors, "klimb": ours, "bambi": ask(python, "bambi", problem),
            "statsmodels": ask(python, "statsmodels", problem)}


def cell(found: dict[str, Any], name: str) -> str:
    if name not in found["table"]:
        return ""
    mean, sd = found["table"][name]
    digits = max(0, min(2 - math.floor(math.log10(sd or abs(mean))), 6))
    return f"{mean:.{digits}f}" + (f" ({sd:.{digits}f})" if sd else "")


def report(results: dict[str, Any]) -> None:
    for name, found in results.items():
        print(f"\n### {name}: `{found['formula']}`, {found['family']}, {found['n']} rows\n")
        print("| | klimb | Bambi (NUTS) | statsmodels | (klimb - Bambi) / sd |\n|---|---|---|---|---|")
        for row, (mean, sd) in found["klimb"]["table"].items():
            other = found["bambi"]["table"].get(row)
            gap = f"{(mean - other[0]) / sd:+.2f}" if other else ""
            print(f"| {row} | {cell(found['klimb'], row)} | {cell(found['bambi'], row)} "
                  f"| {cell(found['statsmodels'], row)} | {gap} |")
        bambi = found["bambi"]
        noise = max(bambi["errors"][row] / sd for row, (_, sd) in bambi["table"].items())
        print(f"\nBambi: R-hat at most {bambi['rhat']:.4f}, Monte Carlo error of a mean at most {noise:.3f} sd.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", help="interpreter of an environment with bambi and statsmodels")
    parser.add_argument("--only", nargs="*", default=list(PROBLEMS), choices=list(PROBLEMS))
    parser.add_argument("--report", action="store_true", help="print the tables of what was measured")
    arguments = parser.parse_args()
    results = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    if not arguments.report:
        for name in arguments.only:
            results[name] = measured(name, arguments.python)
            measure.save("formula_rivals", results, RESULT)
    report({name: found for name, found in results.items() if name in PROBLEMS})


if __name__ == "__main__":
    main()
