"""How long klimb.fit takes: CPU seconds of fit, print-out and prediction, one BLAS thread.

    OPENBLAS_NUM_THREADS=1 python -m benchmarks.fit_scale
"""

from __future__ import annotations

import resource
import time
from typing import Any

import numpy as np

import klimb

FAMILIES = ("bernoulli", "gaussian", "poisson")


def grouped(n: int, columns: int, levels: int, family: str) -> tuple[str, dict[str, Any]]:
    rng = np.random.default_rng(0)
    X, g = rng.standard_normal((n, columns)), rng.integers(0, levels, n)
    f = 0.3 + X @ np.linspace(-0.5, 0.5, columns) + 0.7 * rng.standard_normal(levels)[g]
    y = {"bernoulli": rng.random(n) < 1 / (1 + np.exp(-f)), "gaussian": f + rng.standard_normal(n),
         "poisson": rng.poisson(np.exp(f))}[family]
    names = [f"x{j}" for j in range(columns)]
    data = {"y": y, "g": g.astype(str), **{name: X[:, j] for j, name in enumerate(names)}}
    return f"y ~ {' + '.join(names)} + (1 | g)", data


def measure(n: int, columns: int, levels: int) -> None:
    for family in FAMILIES:
        formula, data = grouped(n, columns, levels, family)
        begin = time.process_time()
        fit = klimb.fit(formula, data, family=family)
        fitted = time.process_time()
        str(fit)
        printed = time.process_time()
        fit.predict()
        end = time.process_time()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        levels_seen = len(fit.group_term("g").levels)
        print(f"| {n} | {columns} | {levels_seen} | {family} | {fit.n_fits} | {fitted - begin:.2f} | "
              f"{printed - fitted:.2f} | {end - printed:.2f} | {peak:.2f} |", flush=True)


def main() -> None:
    print("| rows | columns | levels | family | fits | fit (s) | print (s) | predict (s) | peak memory (GB) |")
    print("|---|---|---|---|---|---|---|---|---|")
    measure(400, 2, 20)
    measure(400, 2, 20)  # again: the first pays for imports and tables
    measure(100_000, 10, 100)
    measure(200_000, 2, 100_000)


if __name__ == "__main__":
    main()
