"""Gaussian processes over time: how the cost of `latents.Markov` grows with the data, beside the dense kernel.

    python -m benchmarks.markov [--quick] [--json PATH]
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

import klimb
from benchmarks.measure import cpu, one_thread, save, table
from klimb import latents, sites

SIZES = (1_000, 10_000, 100_000)
DENSE_SIZES = (1_000, 2_000)
PROCESSES = {
    "Matern12": (1.0, 1.0, 0.5),
    "Matern32": (1.0, 1.0, 1.5),
    "Matern52": (1.0, 1.0, 2.5),
    "Matern12 + Matern52": ((0.5, 1.0), (0.3, 5.0), (0.5, 2.5)),
}
KERNEL = klimb.kernels.Matern52


def problem(n: int, seed: int = 0) -> tuple[np.ndarray, dict[str, tuple[Any, np.ndarray]]]:
    """``n`` random times, a hundred to a lengthscale, and what three likelihoods see of one function of time."""
    draw = np.random.default_rng(seed)
    times = np.sort(draw.random(n)) * n / 100
    f = np.sin(times) + 0.5 * np.sin(2.3 * times)
    return times, {
        "logistic": (sites.Logistic(), (draw.random(n) < 1 / (1 + np.exp(-2 * f))).astype(int)),
        "poisson": (sites.Poisson(), draw.poisson(np.exp(f))),
        "student-t": (sites.StudentT(4.0, 0.3), f + 0.3 * draw.standard_t(2.0, n)),
        "volatility": (sites.StochasticVolatility(), np.exp(f / 2) * draw.standard_normal(n)),
    }


def parts(n: int) -> list[dict[str, Any]]:
    """CPU seconds of what an iteration is made of."""
    times, _ = problem(n)
    gamma = np.random.default_rng(1).gamma(1.0, size=n)
    signed = np.where(np.arange(n) % 7 == 0, -0.01, gamma)
    new = np.random.default_rng(2).random(n) * times[-1]
    rows = []
    for name, process in PROCESSES.items():
        latent, build = cpu(lambda process=process: latents.Markov(times, *process))
        factor, positive = cpu(lambda latent=latent: _used(latent.factor(gamma)))
        _, both_signs = cpu(lambda latent=latent: _used(latent.factor(signed)))
        _, solve = cpu(lambda factor=factor: factor.solve(gamma))
        fitted = klimb.infer(latent, sites.Gaussian(1.0), np.sin(times)).posterior
        _, predict = cpu(lambda latent=latent, fitted=fitted: latent.predict(fitted, new))
        rows.append({"n": n, "process": name, "build": build, "factor": positive, "signed factor": both_signs,
                     "solve": solve, "predict n": predict})
    return rows


def _used(factor: Any) -> Any:
    factor.variances()
    return factor


def fits(n: int) -> list[dict[str, Any]]:
    """CPU seconds of whole fits with a Matern52 kernel."""
    times, targets = problem(n)
    rows = []
    for name, (site, y) in targets.items():
        latent = latents.Markov(times, 1.0, 1.0, 2.5)
        found, seconds = cpu(lambda latent=latent, site=site, y=y: klimb.infer(latent, site, y), repeats=1)
        row = {"n": n, "site": name, "markov": seconds, "n_iter": found.n_iter, "status": found.status.name.lower(),
               "bound": found.bound}
        if n in DENSE_SIZES:
            K = KERNEL().gram(times)
            dense, row["dense"] = cpu(lambda K=K, site=site, y=y: klimb.infer(latents.Kernel(K), site, y), repeats=1)
            row["difference"] = abs(dense.bound - found.bound)
        rows.append(row)
    return rows


def learning(n: int) -> dict[str, Any]:
    """CPU seconds to learn variance and lengthscale."""
    times, targets = problem(n)
    model = klimb.series(KERNEL(), times, targets["poisson"][0])
    found, seconds = cpu(lambda: klimb.optimise(model, targets["poisson"][1]), repeats=1)
    return {"n": n, "seconds": seconds, "n_fits": found.n_fits, "converged": found.converged}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.markov", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="n = 1,000 only")
    parser.add_argument("--json", type=Path, help="where the results go (default: benchmarks/results/markov.json)")
    options = parser.parse_args(arguments)
    sizes = SIZES[:1] if options.quick else SIZES
    with one_thread():
        found: dict[str, Any] = {"parts": [row for n in sizes for row in parts(n)]}
        _show("CPU seconds of one call", found["parts"])
        found["fits"] = [row for n in sorted({*sizes, *(() if options.quick else DENSE_SIZES)}) for row in fits(n)]
        _show("CPU seconds of a fit (Matern52)", found["fits"])
        found["learning"] = [learning(n) for n in sizes]
        _show("CPU seconds to learn two hyperparameters (Poisson, Matern52)", found["learning"])
    print(f"\nresults: {save('markov', found, options.json)}")


def _show(title: str, rows: list[dict[str, Any]]) -> None:
    heads = list(dict.fromkeys(key for row in rows for key in row))
    table(title, heads, [[row.get(head, "") for head in heads] for row in rows])


if __name__ == "__main__":
    main()
