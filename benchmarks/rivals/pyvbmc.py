"""PyVBMC on the targets of benchmarks.boosting_targets; run where pyvbmc is installed."""

from __future__ import annotations

import time

import numpy as np
from pyvbmc import VBMC

from benchmarks.boosting import chosen, moment_errors, record
from benchmarks.boosting_targets import PROBLEMS


def main() -> None:
    for name in chosen():
        problem = PROBLEMS[name]()
        if problem.dim > 10:
            continue
        np.random.seed(0)  # noqa: NPY002
        box = np.full((1, problem.dim), 6.0)
        start = time.process_time()
        run = VBMC(lambda x, p=problem: float(p.values(x)[0]), np.zeros((1, problem.dim)), -np.inf * box, np.inf * box,
                   -box, box, options={"display": "off"})
        try:
            q, result = run.optimize()
        except Exception as error:  # part of what is measured: it happens within the package's own Gaussian process
            record("PyVBMC", name, {"failed": type(error).__name__})
            continue
        seconds = time.process_time() - start
        X, _ = q.sample(50_000)
        kl = float(np.mean(np.log(q.pdf(X).ravel()) - problem.values(X)) + problem.log_evidence)
        found = {"kl": kl, "evaluations": int(result["func_count"]), "seconds": seconds, "n_components": int(q.K)}
        record("PyVBMC", name, {**found, **moment_errors(problem, X.mean(0), X.std(0))})


if __name__ == "__main__":
    main()
