"""Gaussian processes with fixed hyperparameters: klimb beside other packages, bounds by one evaluator.

The rivals are the workers of `benchmarks.rivals.gp_*`, which write down q at every lap with the clock stopped; what
counts here is the time to the stop, `benchmarks.gp_rivals` has the time to within 1e-3 nats.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.cases.base import Answer, Case, Data

CAP = 20.0  # CPU seconds


def worker(name: str, variant: str) -> Callable[[Data], Answer]:
    def solve(data: Data) -> Answer:
        with tempfile.TemporaryDirectory() as folder:
            problem, found = Path(folder, "problem.npz"), Path(folder, "found.npz")
            np.savez(problem, **data)
            command = [sys.executable, "-m", f"benchmarks.rivals.gp_{name}", str(problem), str(found), "--variant",
                       variant, "--cap", str(CAP)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if not found.exists():
                raise RuntimeError(done.stderr.strip().splitlines()[-1] if done.stderr else "no answer")
            with np.load(found, allow_pickle=False) as kept:
                return {"m": kept["m"][-1], "v": kept["v"][-1], "kl": kept["kl"][-1], "cpu": float(kept["cpu"][-1]),
                        "wall": float(kept["wall"][-1])}

    return solve


def labels(n: int) -> Data:
    from benchmarks import gp_rivals

    return gp_rivals.labels(n)


def judge(data: Data, answers: dict[str, Answer]) -> dict[str, float]:
    from benchmarks import gp_rivals

    bounds = {who: float(gp_rivals.bounds(data, {key: np.array([answer[key]]) for key in ("m", "v", "kl")})[0])
              for who, answer in answers.items()}
    best = max(bounds.values())
    return {who: best - bound for who, bound in bounds.items()}


SOLVERS = {"klimb": worker("klimb", "default"), "GPflow": worker("gpflow", "natural"),
           "GPyTorch": worker("gpytorch", "natural"), "GPJax": worker("gpjax", "dual"),
           "BayesNewton": worker("bayesnewton", "natural"), "scikit-learn Laplace": worker("sklearn", "laplace")}
CASES = {"Gaussian process, logistic": Case(labels, (250, 500, 1000), SOLVERS, judge,
                                            "nats below the best evidence lower bound", lambda n: ("kernel", n))}
