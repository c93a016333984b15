"""Crossed random effects of the size of MovieLens: 1,000,000 binary ratings of 6,000 users and 4,000 films.

    python -m benchmarks.ratings [--rows N] [--users N] [--films N] [--nested] [--hyper MODE]

P(liked) = logit^-1(0.3 + 0.5 x + u_user + v_film), sds 1 and 0.7; some users and films are seen far more often than
others. With ``--nested`` every user belongs to one "film", which makes a factor nested in another. Prints CPU and wall
seconds, the memory at its highest, the table of the fit, and how far effects are from the truth in their sds.
"""

from __future__ import annotations

import argparse
import resource
import time
from typing import Any

import numpy as np

import klimb

SDS = {"user": 1.0, "film": 0.7}


def made(rows: int, users: int, films: int, nested: bool, seed: int = 7) -> tuple[dict[str, Any], dict[str, Any]]:
    """Columns of the data, and the effects behind them."""
    rng = np.random.default_rng(seed)
    effects = {"user": SDS["user"] * rng.standard_normal(users), "film": SDS["film"] * rng.standard_normal(films)}
    user = rng.choice(users, rows, p=skewed(users, rng))
    film = (user * films) // users if nested else rng.choice(films, rows, p=skewed(films, rng))
    x = rng.standard_normal(rows)
    f = 0.3 + 0.5 * x + effects["user"][user] + effects["film"][film]
    y = (rng.random(rows) < 1.0 / (1.0 + np.exp(-f))).astype(float)
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
    parser.add_argument("--hyper", default="auto")
    given = parser.parse_args()
    data, effects = made(given.rows, given.users, given.films, given.nested)
    cpu, wall = time.process_time(), time.perf_counter()
    fit = klimb.fit("y ~ x + (1 | user) + (1 | film)", data, family="bernoulli", hyper=given.hyper, progress=False)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    levels = f"{given.users:,} + {given.films:,} levels"
    print(f"{given.rows:,} rows, {levels}: {cpu:.0f} CPU s, {wall:.0f} s, {memory:.1f} GiB")
    print(fit)
    for name, truth in effects.items():
        found = fit.random_effects(name)
        mean, sd = np.array(found["mean"]), np.array(found["sd"])
        away = (mean - truth[[int(level) for level in found["level"]]]) / sd
        print(f"{name}: errors over sds have mean {away.mean():+.2f} and sd {away.std():.2f}; "
              f"sds are {sd.min():.3f} to {sd.max():.3f}")


if __name__ == "__main__":
    main()
