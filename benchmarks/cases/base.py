"""What a case is: data from a size, a solver for each package, and one judge of all answers."""

from __future__ import annotations

import csv
import json
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

Data = dict[str, Any]
Answer = dict[str, Any]  # arrays; "cpu" where a solver runs elsewhere and times itself, "evaluations" where they count


@dataclass(frozen=True)
class Case:
    """``floor`` names the BLAS calls nobody does without, with their shape; ``judged`` says what the quality is."""

    make: Callable[[int], Data]
    sizes: tuple[int, ...]
    solvers: dict[str, Callable[[Data], Answer]]
    judge: Callable[[Data, dict[str, Answer]], dict[str, float]]  # an error of every answer: lower is better
    judged: str
    floor: Callable[[int], tuple[str, ...] | None] = field(default=lambda size: None)


def against_best(key: str) -> Callable[[Data, dict[str, Answer]], dict[str, float]]:
    """The largest error of an estimate in klimb's posterior standard deviations, from the median of all packages."""
    def judge(data: Data, answers: dict[str, Answer]) -> dict[str, float]:
        middle = np.median([answer[key] for answer in answers.values()], axis=0)
        sd = answers["klimb"]["sd"] if "klimb" in answers else np.ones_like(middle)
        return {who: float(np.max(np.abs(answer[key] - middle) / sd)) for who, answer in answers.items()}

    return judge


def in_r(package: str, script: str) -> Callable[[Data], Answer]:
    """A solver in R: ``script`` finds a data frame ``d`` and leaves a vector ``answer``; only its own time counts."""
    def solve(data: Data) -> Answer:
        with tempfile.TemporaryDirectory() as folder:
            table, found = Path(folder, "d.csv"), Path(folder, "found.json")
            columns = data["frame"]
            with table.open("w", newline="") as file:
                writer = csv.writer(file)
                writer.writerow(columns)
                writer.writerows(zip(*columns.values(), strict=True))
            whole = (f'd <- read.csv("{table}", stringsAsFactors = TRUE)\nlibrary({package})\n'
                     f'began <- proc.time()\n{script}\n'
                     f'took <- proc.time() - began\ncat(sprintf(\'{{"cpu": %.4f, "wall": %.4f, "estimate": [%s]}}\', '
                     f'sum(took[c(1, 2)]), took[3], paste(sprintf("%.10g", answer), collapse = ", ")), '
                     f'file = "{found}")\n')
            done = subprocess.run(["Rscript", "-e", whole], capture_output=True, text=True, check=False)
            if not found.exists():
                raise RuntimeError(done.stderr.strip().splitlines()[-1] if done.stderr else "no answer")
            answer = json.loads(found.read_text())
            return {**answer, "estimate": np.array(answer["estimate"])}

    return solve
