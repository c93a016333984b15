"""How good are the checks of a fit? Right models that are blamed, wrong ones that are caught, and what it costs.

    python -m benchmarks.checks alarms [1000]    verdicts over simulated right models of nine families
    python -m benchmarks.checks cases            twelve wrong and twelve right models (three need KLIMB_DATA)
    python -m benchmarks.checks cost             what the checks add to a fit
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import expit

import klimb

FAMILIES = ("gaussian", "bernoulli", "poisson", "negative_binomial", "binomial", "gamma", "student_t", "ordinal",
            "beta")
SHAPES = ("y ~ x + z", "y ~ x + z + (1 | g)", "y ~ z + s(x)", "y ~ x * h", "y ~ x + (1 + x | g)")
FOLDER = Path(os.environ.get("KLIMB_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
Frame = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A model and data that it suits or not."""

    name: str
    formula: str
    make: Callable[[], Frame]
    family: str = "gaussian"
    data: str = ""  # the file of KLIMB_DATA that it needs

    def fit(self) -> Any:
        return klimb.fit(self.formula, self.make(), self.family)


def response(family: str, f: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Data that a family gives for these linear predictors."""
    mean, n = np.exp(np.clip(f, -8.0, 8.0)), len(f)
    if family == "gaussian":
        return f + 0.7 * rng.standard_normal(n)
    if family == "student_t":
        return f + 0.7 * rng.standard_t(4.0, n)
    if family == "bernoulli":
        return (rng.random(n) < expit(f)).astype(float)
    if family == "binomial":
        return rng.binomial(8, expit(f)).astype(float)
    if family == "poisson":
        return rng.poisson(mean).astype(float)
    if family == "negative_binomial":
        return rng.poisson(mean * rng.gamma(2.0, 0.5, n)).astype(float)
    if family == "gamma":
        return mean * rng.gamma(3.0, 1.0 / 3.0, n)
    if family == "beta":
        return np.clip(rng.beta(6.0 * expit(f), 6.0 * expit(-f)), 1e-6, 1.0 - 1e-6)
    return np.digitize(f + rng.logistic(size=n), [-1.0, 0.5, 2.0]).astype(float)


def right(seed: int) -> Case:
    """A right model by number: family and shape in turn, 40 to 400 rows, columns that do not matter in the frame."""
    rng = np.random.default_rng([18, seed])
    family, shape = FAMILIES[seed % len(FAMILIES)], SHAPES[seed // len(FAMILIES) % len(SHAPES)]
    if family not in ("gaussian", "bernoulli", "poisson"):  # correlated slopes beside more parameters take long
        shape = shape.replace("(1 + x | g)", "(1 | g)")
    n = int(np.exp(rng.uniform(np.log(40), np.log(400))))
    x, z, g = rng.standard_normal(n), rng.uniform(-1.0, 1.0, n), rng.integers(0, max(n // 12, 3), n)
    h = np.array(list("abc"))[rng.integers(0, 3, n)]
    f = 0.3 + 0.5 * z + (np.sin(1.5 * x) if "s(x)" in shape else rng.normal(0.0, 0.5) * x)
    if "| g" in shape:
        f += rng.normal(0.0, 0.5, g.max() + 1)[g] + ("1 + x" in shape) * rng.normal(0.0, 0.3, g.max() + 1)[g] * x
    if "* h" in shape:
        f += -0.5 * z + np.select([h == "b", h == "c"], [0.5 + 0.4 * x, -0.3 * x])
    if "1 + x" in shape:
        f -= 0.5 * z
    frame = {"y": response(family, f, rng), "x": x, "z": z, "g": g, "h": h, "other": rng.standard_normal(n),
             "place": np.array(list("uvwxyz"))[rng.integers(0, 6, n)], "number": np.arange(n)}
    if "z" not in shape:
        del frame["z"]
    if family == "binomial":
        frame["trials"], shape = np.full(n, 8.0), shape.replace("y ~", "p(y, trials) ~")
    return Case(f"{family}, {shape}, {n} rows", shape, lambda: frame, family)


def alarms(count: int = 1000) -> None:
    """How often a right model is blamed, by family and by check."""
    blamed: Counter[str] = Counter()
    checks: Counter[str] = Counter()
    for seed in range(count):
        case = right(seed)
        found = case.fit().checks
        if found.verdict != "fits":
            blamed[case.family] += 1
            checks.update(one.check for one in found.findings)
            why = [(one.check, one.effect, one.p) for one in found.findings]
            print(seed, case.name, found.verdict, found.reason, why, flush=True)
        if seed % 50 == 49:
            print(f"{seed + 1} right models, {blamed.total()} blamed {dict(blamed)} {dict(checks)}", flush=True)


# -- twelve wrong and twelve right ones


def table(name: str, target: str, *columns: str) -> Frame:
    """Columns of a data set of KLIMB_DATA."""
    found = np.load(FOLDER / f"{name}.npz", allow_pickle=False)
    names = [str(one) for one in found["feature_names"]] if "feature_names" in found else [
        f"x{j}" for j in range(found["X"].shape[1])]
    return {target: found["y"], **{one: found["X"][:, names.index(one)] for one in columns or names}}


def simulated(seed: int, make: Callable[[np.random.Generator, Frame], np.ndarray], n: int = 400) -> Frame:
    """A frame with numbers x and z, groups g and the response that ``make`` gives."""
    rng = np.random.default_rng([1812, seed])
    frame: Frame = {"x": rng.uniform(-2.0, 2.0, n), "z": rng.standard_normal(n), "g": rng.integers(0, 25, n),
                    "t": np.arange(n) / n, "trials": np.full(n, 12.0)}
    return {"y": make(rng, frame), **frame}


def _series(rng: np.random.Generator, d: Frame) -> np.ndarray:
    noise = rng.standard_normal(len(d["x"]))
    for i in range(1, len(noise)):
        noise[i] += 0.7 * noise[i - 1]
    return d["x"] + noise


def _outlier(rng: np.random.Generator, d: Frame) -> np.ndarray:
    y = d["x"] + 0.5 * rng.standard_normal(len(d["x"]))
    y[17] = 12.0
    return y


def wrong_cases() -> Iterator[Case]:
    """Twelve models that do not suit their data."""
    yield Case("Poisson on the RAND visits", "y ~ lncoins + lpi + physlm + disea + hlthg + hlthf + hlthp",
               partial(table, "randhie", "y"), "poisson", "randhie")
    for seed, (name, formula, family, make) in enumerate([
        ("a line through a curve", "y ~ x + z", "gaussian", lambda r, d: d["x"] ** 2 + r.standard_normal(len(d["x"]))),
        ("a column left out", "y ~ z", "bernoulli", lambda r, d: response("bernoulli", 1.2 * d["x"] + d["z"], r)),
        ("groups left out", "y ~ x", "poisson",
         lambda r, d: response("poisson", 0.5 + 0.3 * d["x"] + 0.6 * r.standard_normal(25)[d["g"]], r)),
        ("a time series taken for independent rows", "y ~ x", "gaussian", _series),
        ("heavy tails", "y ~ x", "gaussian", lambda r, d: d["x"] + 0.5 * r.standard_t(2.5, len(d["x"]))),
        ("skewed noise", "y ~ x", "gaussian", lambda r, d: d["x"] + r.exponential(1.0, len(d["x"]))),
        ("noise that grows", "y ~ x", "gaussian",
         lambda r, d: d["x"] + np.exp(0.6 * d["x"]) * r.standard_normal(len(d["x"]))),
        ("counts with extra zeros", "y ~ x", "poisson",
         lambda r, d: r.poisson(np.exp(1.2 + 0.3 * d["x"])) * (r.random(len(d["x"])) < 0.7)),
        ("shares that vary more than binomial ones", "p(y, trials) ~ x", "binomial",
         lambda r, d: r.binomial(12, expit(0.5 * d["x"] + 0.9 * r.standard_normal(len(d["x"]))))),
        ("an outlier", "y ~ x", "gaussian", _outlier),
        ("a mean with a floor and a log link", "y ~ x + z", "poisson",
         lambda r, d: r.poisson(4.0 + 6.0 * np.maximum(d["x"] + d["z"], 0.0) ** 2)),
    ]):
        yield Case(name, formula, partial(simulated, seed, make), family)


def right_cases() -> Iterator[Case]:
    """Twelve models that suit their data."""
    yield Case("nodal involvement", "y ~ x1 + x2 + x3 + x4 + x5", _nodal, "bernoulli", "nodal")
    yield Case("Poisson on the coal-mining disasters", "y ~ s(year)", partial(table, "coal", "y"), "poisson", "coal")
    for seed, (name, formula, family, make) in enumerate([
        ("a line", "y ~ x + z", "gaussian", lambda r, d: response("gaussian", d["x"] + d["z"], r)),
        ("a smooth", "y ~ s(x) + z", "gaussian", lambda r, d: response("gaussian", d["x"] ** 2 + d["z"], r)),
        ("groups", "y ~ x + z + (1 | g)", "poisson", lambda r, d: response(
            "poisson", 0.5 + 0.3 * d["x"] + 0.2 * d["z"] + 0.6 * r.standard_normal(25)[d["g"]], r)),
        ("heavy tails and a Student-t", "y ~ x + z", "student_t",
         lambda r, d: d["x"] + d["z"] + 0.5 * r.standard_t(3.0, len(d["x"]))),
        ("a Gaussian process over time", "y ~ x + z + gp(t)", "gaussian",
         lambda r, d: d["x"] + d["z"] + np.sin(9.0 * d["t"]) + 0.5 * r.standard_normal(len(d["x"]))),
        ("overdispersed counts", "y ~ x + z", "negative_binomial",
         lambda r, d: response("negative_binomial", 1.0 + 0.5 * d["x"] + 0.2 * d["z"], r)),
        ("shares", "p(y, trials) ~ x + z", "binomial",
         lambda r, d: r.binomial(12, expit(0.5 * d["x"] + 0.3 * d["z"]))),
        ("yes and no", "y ~ x + z + (1 | g)", "bernoulli", lambda r, d: response(
            "bernoulli", d["x"] + 0.5 * d["z"] + 0.8 * r.standard_normal(25)[d["g"]], r)),
        ("positive data", "y ~ x + z", "gamma", lambda r, d: response("gamma", 0.5 * d["x"] + 0.3 * d["z"], r)),
        ("an effect of its own for every row", "p(y, trials) ~ x + z + (1 | t)", "binomial",
         lambda r, d: r.binomial(12, expit(0.5 * d["x"] + 0.3 * d["z"] + 0.9 * r.standard_normal(len(d["x"]))))),
    ]):
        yield Case(name, formula, partial(simulated, 100 + seed, make), family)


def _nodal() -> Frame:
    found = np.load(FOLDER / "nodal.npz", allow_pickle=False)
    return {"y": found["y"], **{f"x{j}": found["X"][:, j] for j in range(1, 6)}}


def available(case: Case) -> bool:
    return not case.data or (FOLDER / f"{case.data}.npz").exists()


def cases() -> None:
    for kind, every in (("wrong", wrong_cases()), ("right", right_cases())):
        for case in every:
            if not available(case):
                print(f"{kind}  {case.name}: needs {case.data}.npz")
                continue
            found = case.fit().checks
            print(f"{kind}  {case.name} ({case.formula}, {case.family}): {found.verdict} "
                  + "; ".join(f"{one.check} {one.effect:.3g}" for one in found.findings), flush=True)


def cost() -> None:
    """CPU seconds of a fit, of its leave-one-out densities (which every table shows), and of its checks."""
    rng = np.random.default_rng(3)
    for n in (300, 3_000, 100_000):
        x, g = rng.uniform(-2.0, 2.0, (n, 5)), rng.integers(0, 60, n)
        f = 0.5 + 0.3 * x[:, 0] + 0.4 * rng.standard_normal(60)[g]
        frame = {**{f"x{j}": x[:, j] for j in range(5)}, "g": g}
        for family in ("gaussian", "poisson", "bernoulli"):
            frame["y"] = response(family, f, rng)
            marks = [time.process_time()]
            fit = klimb.fit("y ~ x0 + x1 + x2 + (1 | g)", frame, family)
            marks.append(time.process_time())
            fit.loo()
            marks.append(time.process_time())
            assert fit.checks.verdict == "fits"
            marks.append(time.process_time())
            print(f"{family}, {n} rows: fit {marks[1] - marks[0]:.2f} s, leave-one-out {marks[2] - marks[1]:.2f} s, "
                  f"checks {marks[3] - marks[2]:.2f} s", flush=True)


if __name__ == "__main__":
    verb = sys.argv[1] if len(sys.argv) > 1 else ""
    if verb == "alarms":
        alarms(int(sys.argv[2]) if len(sys.argv) > 2 else 1000)
    elif verb in ("cases", "cost"):
        {"cases": cases, "cost": cost}[verb]()
    else:
        sys.exit(__doc__)
