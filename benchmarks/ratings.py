"""Crossed random effects at size: ratings of the shape of MovieLens, and a design that lme4 and GPBoost were timed on.

    python -m benchmarks.ratings [--rows N] [--users N] [--films N] [--nested] [--family F] [--hyper MODE]
    python -m benchmarks.ratings --even [--family F]

P(liked) = logit^-1(0.3 + 0.5 x + u_user + v_film), sds 1 and 0.7; some users and films are seen far more often than
others. With ``--nested`` every user belongs to one "film", which makes a factor nested in another; a Gaussian family
has noise of sd 1 instead. ``--even`` is another design: 10,000 + 1,000 levels drawn evenly, sds 0.7 and 0.4, of which
lme4 took 32 CPU seconds and GPBoost 14 for a million Gaussian rows (points, no uncertainty of the sds). Prints CPU and
wall seconds, the memory at its highest, the plan, the table of the fit, and how far effects are from the truth in their
sds.
"""

from __future__ import annotations

import argparse
import resource
import time
from typing import Any

import numpy as np

import klimb

SDS = {"user": 1.0, "film": 0.7}


def made(rows: int, users: int, films: int, nested: bool, family: str = "bernoulli",
         seed: int = 7) -> tuple[dict[str, Any], dict[str, Any]]:
    """Columns of the data, and the effects behind them."""
    rng = np.random.default_rng(seed)
    effects = {"user": SDS["user"] * rng.standard_normal(users), "film": SDS["film"] * rng.standard_normal(films)}
    user = rng.choice(users, rows, p=skewed(users, rng))
    film = (user * films) // users if nested else rng.choice(films, rows, p=skewed(films, rng))
    x = rng.standard_normal(rows)
    f = 0.3 + 0.5 * x + effects["user"][user] + effects["film"][film]
    if family == "gaussian":
        y = f + rng.standard_normal(rows)
    else:
        y = (rng.random(rows) < 1.0 / (1.0 + np.exp(-f))).astype(float)
    return {"y": y, "x": x, "user": user, "film": film}, effects


def even(rows: int, family: str, seed: int = 16) -> tuple[dict[str, Any], dict[str, Any]]:
    """10,000 + 1,000 levels, each row's drawn evenly: the data of the references."""
    rng = np.random.default_rng(seed)
    effects = {"user": 0.7 * rng.standard_normal(10_000), "film": 0.4 * rng.standard_normal(1000)}
    user, film, x = rng.integers(0, 10_000, rows), rng.integers(0, 1000, rows), rng.standard_normal(rows)
    f = 0.5 * x + effects["user"][user] + effects["film"][film]
    noisy, chance = 1 + f + rng.standard_normal(rows), rng.random(rows)
    y = noisy if family == "gaussian" else (chance < 1 / (1 + np.exp(0.5 - f))).astype(float)
    return {"y": y, "x": x, "user": user, "film": film}, effects


def skewed(n: int, rng: np.random.Generator) -> Any:
    """Frequencies that are log-normal: some are seen a hundred times as often as others."""
    sizes = np.exp(rng.standard_normal(n))
    return sizes / sizes.sum()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("rows", 1_000_000), ("users", 6000), ("films", 4000)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--nested", action="store_true")
    parser.add_argument("--even", action="store_true")
    parser.add_argument("--family", choices=("bernoulli", "gaussian"), default="bernoulli")
    parser.add_argument("--hyper", default="auto")
    given = parser.parse_args()
    if given.even:
        data, effects = even(given.rows, given.family)
    else:
        data, effects = made(given.rows, given.users, given.films, given.nested, given.family)
    cpu, wall = time.process_time(), time.perf_counter()
    fit = klimb.fit("y ~ x + (1 | user) + (1 | film)", data, family=given.family, hyper=given.hyper, progress=False)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    levels = " + ".join(f"{len(found):,}" for found in effects.values())
    print(f"{given.rows:,} rows, {levels} levels: {cpu:.0f} CPU s, {wall:.0f} s, {memory:.1f} GiB, {fit.n_fits} fits")
    print(fit.model.explain())
    print(fit)
    for name, truth in effects.items():
        found = fit.random_effects(name)
        mean, sd = np.array(found["mean"]), np.array(found["sd"])
        away = (mean - truth[[int(level) for level in found["level"]]]) / sd
        print(f"{name}: errors over sds have mean {away.mean():+.2f} and sd {away.std():.2f}; "
              f"sds are {sd.min():.3f} to {sd.max():.3f}")


if __name__ == "__main__":
    main()
