"""Do 90% intervals of mixed models hold the truth 90 times in a hundred? Simulation-based calibration by formula.

    python -m benchmarks.coverage [DATA SETS] [--seed 0] [--workers 2] [--json FILE]

Hyperparameters and coefficients are drawn from explicit priors, data are simulated and fitted, and the place of the
truth in each fitted marginal is looked up. Seeds are fixed beforehand: data set i of a model has the seed (model, i).
"""

from __future__ import annotations

import argparse
import json
import os
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import ndtr

PRIORS = {"Intercept": "normal(0, 1)", "x": "normal(0, 1)", "sd(g)": "exponential(1)"}
MODELS: dict[str, dict[str, Any]] = {  # groups, rows in each, how y comes about
    "mixed logistic": {"family": "bernoulli", "groups": 25, "rows": 5, "priors": PRIORS},
    "mixed Poisson": {"family": "poisson", "groups": 20, "rows": 4, "priors": PRIORS},
    "Gaussian, few groups": {"family": "gaussian", "groups": 6, "rows": 5,
                             "priors": {**PRIORS, "sigma": "exponential(1)"}},
}
BINS = 20
DRAWS = 4000


def simulated(model: dict[str, Any], rng: np.random.Generator) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """Data and the truth behind them. The intercept's prior acts where x is at its mean, which is 0 here."""
    groups, rows = model["groups"], model["rows"]
    g = np.repeat(np.arange(groups), rows)
    x = rng.standard_normal(groups * rows)
    x -= x.mean()
    truth = {"Intercept": rng.standard_normal(), "x": rng.standard_normal(), "sd(g)": rng.exponential()}
    f = truth["Intercept"] + truth["x"] * x + truth["sd(g)"] * rng.standard_normal(groups)[g]
    if model["family"] == "bernoulli":
        y = (rng.random(len(g)) < 1.0 / (1.0 + np.exp(-f))).astype(float)
    elif model["family"] == "poisson":
        y = rng.poisson(np.exp(np.minimum(f, 15.0))).astype(float)
    else:
        truth["sigma"] = rng.exponential()
        y = f + truth["sigma"] * rng.standard_normal(len(g))
    return {"y": y, "x": x, "g": g}, truth


def places(name: str, seed: int, number: int) -> tuple[dict[str, float], str]:
    """P(marginal <= truth) of every coefficient and parameter, and the verdict."""
    import klimb
    from klimb.models.components import SCORES

    model = MODELS[name]
    data, truth = simulated(model, np.random.default_rng([seed, list(MODELS).index(name), number]))
    try:
        fit = klimb.fit("y ~ x + (1 | g)", data, model["family"], priors=model["priors"])
    except klimb.errors.KlimbError as error:
        return {}, type(error).__name__
    draws = fit.draws(DRAWS, seed=number)
    found = {key: float(np.mean(draws[key] <= truth[key])) for key in ("Intercept", "x")}
    for j, key in enumerate(fit.model.names):
        found[key] = float(ndtr(np.interp(np.log(truth[key]), fit.components.quantiles[j], SCORES)))
    return found, fit.trust.verdict


def summary(found: list[tuple[dict[str, float], str]]) -> dict[str, Any]:
    """Coverage and the largest departure of a rank histogram, by marginal."""
    from collections import Counter

    rows = [one for one, _ in found if one]
    out: dict[str, Any] = {"data sets": len(rows), "verdicts": dict(Counter(word for _, word in found))}
    for key in rows[0]:
        u = np.array([row[key] for row in rows])
        counts = np.histogram(u, np.linspace(0.0, 1.0, BINS + 1))[0]
        expected = len(u) / BINS
        # Largest standardised bin, against the 99% simultaneous band of BINS bins.
        worst = float(np.abs(counts - expected).max() / np.sqrt(expected * (1.0 - 1.0 / BINS)))
        out[key] = {"coverage of 90%": float(np.mean(np.abs(u - 0.5) <= 0.45)), "largest bin, sd": worst}
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", nargs="?", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    results = {}
    with ProcessPoolExecutor(arguments.workers) as pool:
        for name in MODELS:
            found = list(pool.map(partial(places, name, arguments.seed), range(arguments.count), chunksize=8))
            results[name] = summary(found)
            print(name, json.dumps(results[name], indent=1), flush=True)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
