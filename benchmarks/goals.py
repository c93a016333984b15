"""The price of a fit beside a point estimate at every door: one line a goal, ours, the rival's, the ratio, and the bar.

    python -m benchmarks.goals [PART ...] [--structured FOLDER]      # goals whose names have one of these parts
    PYTHONPATH=OTHER/src python -m benchmarks.goals                  # the same for another commit

CPU seconds of one thread, ours and the rival's in turn in one process, the best of a few runs after a first one; R
packages time themselves. Memory is what tracemalloc sees at the peak, over the rows. A rival that is not installed, or
data that are not there (``KLIMB_DATA``; --structured has ``data/`` and ``refs/`` of structured models), is a line that
says so.
"""

from __future__ import annotations

import argparse
import csv
import time
import tracemalloc
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import klimb
from benchmarks import problems, structured_goals
from benchmarks.cases import formulas
from benchmarks.cases.base import in_r
from benchmarks.inducing import GPFLOW, KERNEL, problem
from benchmarks.measure import one_thread

GLMER = {"VerbAgg": "r2 ~ Anger + Gender + btype + situ + (1 | id) + (1 | item)",
         "grouseticks": "TICKS ~ YEAR + cHEIGHT + (1 | BROOD) + (1 | INDEX) + (1 | LOCATION)",
         "sleepstudy": "Reaction ~ Days + (Days | Subject)"}
FAMILIES = {"VerbAgg": "bernoulli", "grouseticks": "poisson", "sleepstudy": "gaussian"}
LEVELS = {"BROOD", "INDEX", "LOCATION", "YEAR", "Subject", "id", "item"}
LMER = "answer <- lme4::fixef(lme4::lmer(y ~ x0 + x1 + (1 | g), d))"
REPEATS = 3


class Goal(NamedTuple):
    """``ours`` and ``rival`` give CPU seconds, or bytes a row and 1, as fast as they can."""

    name: str
    bar: float
    ours: Callable[[], float]
    rival: Callable[[], float]


def seconds(call: Callable[[], Any], repeats: int = REPEATS) -> float:
    """CPU seconds of the fastest of a few runs after a first one."""
    taken = []
    for _ in range(repeats + 1):
        began = time.process_time()
        call()
        taken.append(time.process_time() - began)
        if sum(taken) > 60.0:
            break
    return min(taken[1:] or taken)


def classifiers() -> list[Goal]:
    """One fit to all rows beside a mode at a given penalty."""
    from sklearn.datasets import load_digits
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    from klimb.sklearn import GLMClassifier

    found = []
    for name, bar in (("digits", 30.0), ("pcmac", 40.0), ("spambase", 6.0)):
        if name == "digits":
            X, y = load_digits(return_X_y=True)
        else:
            _, X, y = problems.load(name, dense=False)
        mode = LogisticRegression(max_iter=1000)
        rival = mode if hasattr(X, "tocsr") else make_pipeline(StandardScaler(), mode)
        found.append(Goal(f"GLMClassifier, {name}", bar, partial(seconds, partial(GLMClassifier().fit, X, y)),
                          partial(seconds, partial(rival.fit, X, y))))
    a1a = problems.a1a()
    newton = LogisticRegression(C=1.0, fit_intercept=False, solver="newton-cholesky", tol=1e-6)
    latent = partial(klimb.latents.Weights, a1a.X, cov=1.0)
    found.append(Goal("infer, a1a, beside newton-cholesky", 1.5,
                      partial(seconds, lambda: klimb.infer(latent(), klimb.sites.Logistic(), a1a.y), 9),
                      partial(seconds, partial(newton.fit, a1a.X, a1a.y), 9)))
    return found


def formula(data: dict[str, Any]) -> Any:
    return klimb.fit(data["formula"], data["frame"], family=data["family"], progress=False)


def long_tables() -> list[Goal]:
    """Many rows by formula, beside the engine alone and R packages."""
    wide = formulas.many_columns(1_000_000)
    X, y = np.column_stack([np.ones(1_000_000), *list(wide["frame"].values())[1:]]), wide["frame"]["y"]

    def engine() -> float:
        """1.5 times the engine, and one pass that checks, measures and copies the columns, as the goal says."""
        def encoded() -> None:
            for column in wide["frame"].values():
                np.dot(column, column), column.min(), column.max(), column.std()
            np.column_stack(list(wide["frame"].values()))

        infer = partial(klimb.infer, klimb.latents.Weights(X, cov=4.0), klimb.sites.Logistic(), y)
        return 1.5 * seconds(infer, 1) + seconds(encoded, 1)

    gaussian, logistic, curve = (formulas.grouped("gaussian")(200_000), formulas.grouped("bernoulli")(200_000),
                                 formulas.curve(100_000))

    def fit_of(data: dict[str, Any]) -> Callable[[], float]:
        return partial(seconds, partial(formula, data), 1)

    def in_package(package: str, script: str, data: dict[str, Any]) -> Callable[[], float]:
        return lambda: float(in_r(package, script)(data)["cpu"])

    mixed = partial(formula, logistic)
    return [
        Goal("y ~ ., 1e6 x 50, beside 1.5 infer and one encoding", 1.0, fit_of(wide), engine),
        Goal("mixed gaussian, 2e5 rows, beside lmer", 1.0, fit_of(gaussian), in_package("lme4", LMER, gaussian)),
        Goal("s(x), 1e5 rows, beside bam(discrete)", 2.0, fit_of(curve), in_package("mgcv", formulas.BAM, curve)),
        Goal("mixed logistic, 2e5 rows, beside glmmTMB", 0.1, fit_of(logistic),
             in_package("glmmTMB", formulas.TMB["bernoulli"], logistic)),
        Goal("predict over fit, mixed logistic, 2e5 rows", 0.15, lambda: seconds(mixed().predict, 1), fit_of(logistic)),
        Goal("bytes a row, mixed logistic, 2e5 rows", 200.0, lambda: peak(mixed) / 200_000, lambda: 1.0),
        Goal("bytes a time, series of 1e5", 200.0, lambda: peak(series()) / 100_000, lambda: 1.0),
    ]


def series() -> Callable[[], Any]:
    """The fit to times and counts that are there."""
    t = np.arange(100_000.0)
    y = np.random.default_rng(0).poisson(np.exp(0.5 * np.sin(t / 300.0)))
    return lambda: klimb.series(klimb.kernels.Matern32(lengthscale=100.0), t, klimb.sites.Poisson()).fit(y)


def peak(call: Callable[[], Any]) -> float:
    """Bytes that a second run takes at its peak, beyond what was there."""
    call()
    tracemalloc.start()
    call()
    found = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return float(found)


def inducing() -> list[Goal]:
    """100 inducing points beside the recorded GPflow, in units of a Cholesky factorisation; verdicts beside fits."""
    found = []
    A = np.cov(np.random.default_rng(0).standard_normal((2000, 4000)))
    for n in (10_000, 100_000):
        data = problem(n)
        process = klimb.gp(KERNEL, data.X, klimb.sites.Logistic(), inducing=data.Z)
        fit = partial(process.fit, data.y, hyper="fixed")
        recorded = partial(lambda n: GPFLOW[n][0] / GPFLOW[n][2] * seconds(partial(np.linalg.cholesky, A)), n)
        if n == 10_000:
            found.append(Goal("100 inducing points, N = 1e4, beside GPflow", 0.5, partial(seconds, fit), recorded))
        found.append(Goal(f"verdict over fit, inducing points, N = {n:,}", 0.3,
                          partial(lambda fit: seconds(lambda: fit().trust) - seconds(fit), fit),
                          partial(seconds, fit)))
    return found


def small_mixed(folder: Path | None) -> list[Goal]:
    """Mixed models of lme4's data sets, hyperparameters integrated out, beside a point estimate in Rust."""
    if folder is None:
        return []
    found = []
    for name, text in GLMER.items():
        with Path(folder, "data", f"{name.lower()}.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        numbers = {key for key in rows[0] if key not in LEVELS and _is_number(rows[0][key])}
        frame = {key: np.array([float(row[key]) if key in numbers else row[key] for row in rows]) for key in rows[0]}
        plain = {key: column if key in numbers else column.tolist() for key, column in frame.items()}
        data = {"formula": text, "frame": frame, "family": FAMILIES[name]}
        found.append(Goal(f"{name}, beside glmm", 10.0, partial(seconds, partial(formula, data)),
                          partial(_glmm, plain, text, FAMILIES[name].replace("bernoulli", "binomial"))))
    return found


def _glmm(frame: dict[str, Any], text: str, family: str) -> float:
    import glmm

    return seconds(partial(glmm.fit, frame, text, family=family), 9)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART")
    parser.add_argument("--structured", type=Path)
    asked = parser.parse_args()
    print(f"{'goal':56s} {'klimb':>9s} {'rival':>9s} {'ratio':>8s} {'bar':>6s}")
    with one_thread(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # rivals warn of iterations
        structured = structured_goals.goals(asked.structured) if asked.structured else []
        for goal in [*classifiers(), *long_tables(), *inducing(), *small_mixed(asked.structured),
                     *(Goal(*goal) for goal in structured)]:
            if asked.parts and not any(part in goal.name for part in asked.parts):
                continue
            ours = goal.ours()
            try:
                rival = goal.rival()
            except (ImportError, RuntimeError, FileNotFoundError) as error:
                print(f"{goal.name:56s} {ours:9.4g} {error}", flush=True)
                continue
            ratio = ours / rival
            print(f"{goal.name:56s} {ours:9.4g} {rival:9.4g} {ratio:8.3g} {goal.bar:6g}  "
                  f"{'met' if ratio <= goal.bar else 'missed'}", flush=True)


if __name__ == "__main__":
    main()
