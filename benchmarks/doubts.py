"""Small fits that a Gaussian is far from: does klimb put them right, and where it does not, does its advice work?

    python -m benchmarks.doubts [NAME ...] [--advice] [--json FILE]       errors, verdicts and times
    python -m benchmarks.doubts --truth [NAME ...]                        makes tests/references/doubts.json anew

Labels that columns separate under wide priors, ridges over such columns, groups beside them, Student-t responses with
two modes, few answers of several classes, Gaussian processes. A fit is right where all means are within 0.2 sd of the
truth and all sds within 10%; a false trust is a verdict other than "doubt" over one that is not. The truth is by sums
over fine grids where few parameters allow it, else by long runs of `fit.exact`, whose text and sampler share nothing
with what is judged but the model. ``--advice`` runs the call that a doubt advises.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from scipy.interpolate import RegularGridInterpolator
from scipy.special import gammaln

import klimb
from benchmarks import measure

STORED = Path(__file__).parents[1] / "tests" / "references" / "doubts.json"
MEAN, SD = 0.2, 0.1  # errors up to which a row is right, in sd and relative
LONG = 12_000  # exact draws

Fitted = Callable[[], Any]
TWO = np.array([-5.0, -5.1, -4.9, -5.05, 5.0, 5.1, 4.9, 5.0])
CLOSE = np.array([-1.5, -1.2, -1.4, 1.3, 1.5, 1.1])
SPLIT = np.concatenate([0.3 * np.random.default_rng(1).standard_normal(6),
                        4.0 + 0.3 * np.random.default_rng(2).standard_normal(5)])


def columns(n: int, d: int, seed: int) -> dict[str, np.ndarray]:
    """d columns, labels that their sum separates, and six groups that say nothing."""
    X = np.random.default_rng(seed).standard_normal((n, d))
    return {"y": (X.sum(axis=1) > 0.0).astype(float), "g": np.arange(n) % 6, **{f"x{j}": X[:, j] for j in range(d)}}


def separated(n: int, d: int, seed: int, sd: float, more: str = "", **options: Any) -> Fitted:
    names = [f"x{j}" for j in range(d)]
    return lambda: klimb.fit(f"y ~ {' + '.join(names)}{more}", columns(n, d, seed), "bernoulli",
                             priors=dict.fromkeys(("Intercept", *names), f"normal(0, {sd})"), **options)


def ridge(n: int, d: int, seed: int, more: str = "") -> Fitted:
    names = ", ".join(f"x{j}" for j in range(d))
    return lambda: klimb.fit(f"y ~ ridge({names}){more}", columns(n, d, seed), "bernoulli")


def one_centre(y: np.ndarray, family: str, **priors: str) -> Fitted:
    return lambda: klimb.fit("y ~ 1", {"y": y}, family, priors={"Intercept": "normal(0, 10)", **priors})


def classes(count: int, n: int, d: int, seed: int, sd: float, more: str = "", order: bool = False) -> Fitted:
    """Answers of several classes, in turn, or in the ``order`` of the one column."""
    X = np.random.default_rng(seed).standard_normal((n, d)) if not order else np.linspace(-1.0, 1.0, n)[:, None]
    own = (np.arange(n) * count) // n if order else np.arange(n) % count
    names = [f"x{j}" for j in range(d)]
    data = {"y": np.array([f"c{k}" for k in own]), "g": np.arange(n) % 4, **{f"x{j}": X[:, j] for j in range(d)}}
    return lambda: klimb.fit(f"y ~ {' + '.join(names)}{more}", data, "categorical",
                             priors=dict.fromkeys(("Intercept", *names), f"normal(0, {sd})"))


def everyday_classes() -> Any:
    rng = np.random.default_rng(60)
    x = rng.standard_normal(30)
    y = np.array(list("abc"))[np.digitize(x + rng.standard_normal(30), [-0.5, 0.5])]
    return klimb.fit("y ~ x", {"x": x, "y": y}, "categorical")


def heavy_groups() -> Any:
    rng = np.random.default_rng(81)
    g, _, (x, _) = rng.integers(0, 10, 20), rng.integers(0, 4, 20), rng.standard_normal((2, 20))
    f = 0.3 * x + rng.standard_normal(10)[g]
    rng.standard_normal(20), rng.poisson(np.exp(f))  # other responses
    y = f + rng.standard_t(2, 20)
    return klimb.fit("y ~ 1 + (1 | g)", {"y": y, "g": g}, "student_t")


def crowded_counts() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(86)
    g, _, (x, z) = rng.integers(0, 5, 20), rng.integers(0, 4, 20), rng.standard_normal((2, 20))
    f = 0.3 * x + rng.standard_normal(5)[g]
    rng.standard_normal(20), rng.poisson(np.exp(f)), rng.standard_t(2, 20)  # other responses
    return {"x": x, "z": z, "y": rng.poisson(np.exp(f) * rng.gamma(0.5, 2.0, 20))}


def crowded_process() -> Any:
    return klimb.fit("y ~ gp(x, z)", crowded_counts(), "negative_binomial", priors={"Intercept": "normal(-0.2, 2.5)"})


def labelled_process() -> Any:
    x = np.linspace(0.0, 6.0, 15)
    return klimb.gp(klimb.kernels.RBF(), x, klimb.sites.Logistic()).fit(np.sin(x) > 0)


CASES: dict[str, Fitted] = {
    "5 columns, sd 50": separated(20, 5, 7, 50.0), "8 columns": separated(30, 8, 3, 10.0),
    "12 columns": separated(40, 12, 4, 10.0), "16 columns, sd 20": separated(60, 16, 5, 20.0),
    "25 columns": separated(60, 25, 6, 10.0), "10 columns, probit": separated(40, 10, 9, 10.0, link="probit"),
    "8 columns and groups": separated(40, 8, 5, 10.0, " + (1 | g)"),
    "12 columns and groups": separated(40, 12, 6, 10.0, " + (1 | g)"),
    "ridge of 20": ridge(40, 20, 3), "ridge of 30": ridge(60, 30, 33),
    "ridge of 10 and groups": ridge(40, 10, 4, " + (1 | g)"),
    "two modes": one_centre(TWO, "student_t", df="gamma(2, 1)", scale="exponential(1)"),
    "two modes, close": one_centre(CLOSE, "student_t(df=1, scale=0.5)"),
    "two modes, one rare": one_centre(SPLIT, "student_t(df=2, scale=0.3)"),
    "groups with outliers": heavy_groups,
    "3 classes of 9": classes(3, 9, 1, 12, 5.0), "6 classes of 18": classes(6, 18, 2, 13, 5.0),
    "8 classes of 16": classes(8, 16, 2, 51, 2.5), "3 classes in order": classes(3, 9, 1, 0, 10.0, order=True),
    "3 classes, default priors": everyday_classes, "3 classes and groups": classes(3, 12, 1, 52, 2.5, " + (1 | g)"),
    "gp of counts": crowded_process, "gp of labels": labelled_process,
}
UNKNOWN = ("gp of labels",)  # whose hyperparameters are at their best value


# -- the truth


def student_sums(y: np.ndarray, df: np.ndarray, scale: np.ndarray, log_prior: Any) -> dict[str, Any]:
    """Means and sds of the centre, df and scale on a grid; ``log_prior`` of the last two, per unit of their logs."""
    b = np.linspace(-14.0, 14.0, 7001)
    logs, first, second = (np.empty((len(df), len(scale))) for _ in range(3))
    for (i, nu), (j, s) in product(enumerate(df), enumerate(scale)):
        each = gammaln(0.5 * (nu + 1)) - gammaln(0.5 * nu) - 0.5 * np.log(nu * np.pi) - np.log(s)
        fall = sum(np.log1p(((value - b) / s) ** 2 / nu) for value in y)
        line = -0.5 * (b / 10.0) ** 2 + len(y) * each - 0.5 * (nu + 1) * fall + log_prior(nu, s)
        top = line.max()
        w = np.exp(line - top)
        logs[i, j], first[i, j], second[i, j] = top + np.log(w.sum()), w @ b / w.sum(), w @ b**2 / w.sum()
    p = np.exp(logs - logs.max())
    p /= p.sum()
    centre = float((p * first).sum())
    found = {"Intercept": {"mean": centre, "sd": float(np.sqrt((p * second).sum() - centre**2))}}
    for name, values, w in (("df", df, p.sum(axis=1)), ("scale", scale, p.sum(axis=0))):
        if len(values) > 1:
            mean = float(w @ values)
            found[name] = {"mean": mean, "sd": float(np.sqrt(w @ (values - mean) ** 2))}
    return found


def process_sums(data: dict[str, np.ndarray], centre: float = -0.2, width: float = 2.5) -> dict[str, Any]:
    """Sums over (size^-1/2, sd, log lengthscale); at each the evidence of the counts by draws around the mode of f."""
    y, n = data["y"].astype(float), len(data["y"])
    inputs = np.column_stack([(data[name] - data[name].mean()) / data[name].std() for name in ("x", "z")])
    apart = np.sqrt(5.0) * np.sqrt(((inputs[:, None] - inputs) ** 2).sum(axis=2))
    rng, nu = np.random.default_rng(0), 8.0
    e = np.concatenate([half := rng.standard_normal((600, n)), -half]) * np.sqrt(nu / rng.chisquare(nu, 600))[
        np.tile(np.arange(600), 2), None]
    log_q = gammaln(0.5 * (nu + n)) - gammaln(0.5 * nu) - 0.5 * n * np.log(nu * np.pi)
    log_q = log_q - 0.5 * (nu + n) * np.log1p((e**2).sum(axis=1) / nu)

    def evidence(P: np.ndarray, size: float, f: np.ndarray) -> tuple[float, np.ndarray]:
        for _ in range(100):
            p = 1.0 / (1.0 + size * np.exp(-f))
            H = P + np.diag((y + size) * p * (1.0 - p))
            step = np.linalg.solve(H, y - (y + size) * p - P @ (f - centre))
            f = f + step * min(1.0, 3.0 / np.abs(step).max())
            if np.abs(step).max() < 1e-8:
                break
        root = np.linalg.cholesky(np.linalg.inv(H))
        draws = f + e @ root.T
        each = gammaln(y + size) - gammaln(size) - gammaln(y + 1.0) + y * draws + size * np.log(size)
        each -= (y + size) * np.logaddexp(np.log(size), draws)
        away = draws - centre
        logs = each.sum(axis=1) - 0.5 * np.einsum("si,ij,sj->s", away, P, away) + 0.5 * np.linalg.slogdet(P)[1]
        logs += np.log(np.diagonal(root)).sum() - 0.5 * n * np.log(2.0 * np.pi) - log_q
        return float(logs.max() + np.log(np.exp(logs - logs.max()).mean())), f

    u = np.concatenate([[0.003, 0.01, 0.02, 0.04, 0.07, 0.1, 0.14, 0.18], np.arange(0.22, 6.5, 0.2)])
    sd, log_l = np.concatenate([[0.02, 0.1], np.arange(0.25, 6.3, 0.3)]), np.linspace(-3.2, 5.2, 22)
    logs = np.empty((len(u), len(sd), len(log_l)))
    for (j, s), (k, one) in product(enumerate(sd), enumerate(log_l)):
        r = apart / np.exp(one)
        K = s**2 * (1.0 + r + r**2 / 3.0) * np.exp(-r) + width**2 + 1e-8 * (s**2 + 1.0) * np.eye(n)
        P, f = np.linalg.inv(K), np.full(n, centre)
        for i, value in enumerate(u):
            logs[i, j, k], f = evidence(P, value**-2.0, f)
            logs[i, j, k] -= value + s + 0.5 * one**2  # the printed priors
    fine = (np.arange(400) + 0.5) / 400 * 6.4, (np.arange(80) + 0.5) / 80 * 6.2, np.linspace(-3.2, 5.2, 84)
    between = RegularGridInterpolator((u, sd, log_l), logs, method="cubic", bounds_error=False, fill_value=None)
    p = between(np.stack(np.meshgrid(*fine, indexing="ij"), axis=-1).reshape(-1, 3)).reshape(400, 80, 84)
    p = np.exp(p - p.max())
    found = dict[str, Any]()
    for name, axis, values in (("sd(gp(x, z))", 1, fine[1]), ("lengthscale(gp(x, z))", 2, np.exp(fine[2]))):
        w = p.sum(axis=tuple({0, 1, 2} - {axis})) / p.sum()
        found[name] = {"mean": float(w @ values), "sd": float(np.sqrt(w @ (values - w @ values) ** 2))}
    w = p.sum(axis=(1, 2)) / p.sum()
    ends = np.interp([0.95, 0.5, 0.05], np.cumsum(w) - 0.5 * w, fine[0]) ** -2.0
    return found | {"_size": dict(zip(("lower", "median", "upper"), ends.tolist(), strict=True))}  # it has no moments


def truth(name: str) -> dict[str, Any]:
    if name == "gp of counts":
        return process_sums(crowded_counts())
    if name == "two modes":
        return student_sums(TWO, np.exp(np.linspace(-4.0, 3.0, 71)), np.exp(np.linspace(-8.0, 3.2, 113)),
                            lambda nu, s: 2.0 * np.log(nu) - nu + np.log(s) - s)
    held = {"two modes, close": (CLOSE, 1.0, 0.5), "two modes, one rare": (SPLIT, 2.0, 0.3)}
    if name in held:
        y, df, scale = held[name]
        return student_sums(y, np.array([df]), np.array([scale]), lambda nu, s: 0.0)
    found = CASES[name]().exact(draws=LONG, seed=1)
    facts = found.trust.to_dict()["facts"]
    rows = {row.name: {"mean": row.mean, "sd": row.sd} for row in found.table_rows()}
    kept = ("largest rhat", "smallest bulk ess", "divergent transitions")
    return rows | {"_draws": {key: facts[key] for key in kept}}


# -- klimb beside it


def compared(name: str, rows: dict[str, Any] | None, advice: bool) -> dict[str, Any]:
    began = time.process_time()
    fit = CASES[name]()
    word = fit.trust.verdict
    found: dict[str, Any] = {"verdict": word, "advice": fit.trust.advice, "seconds": time.process_time() - began}
    if rows is not None:
        own = {row.name: row for row in fit.table_rows()}
        true = {key: row for key, row in rows.items() if not key.startswith("_")}
        found["mean_error"] = max(abs(own[key].mean - row["mean"]) / row["sd"] for key, row in true.items())
        found["sd_error"] = max(abs(own[key].sd / row["sd"] - 1.0) for key, row in true.items())
        found["right"] = bool(found["mean_error"] < MEAN and found["sd_error"] < SD)
        found["false_trust"] = word != "doubt" and not found["right"]
    if advice and word == "doubt":
        found["followed"] = followed(fit)
    return found


def followed(fit: Any) -> str:
    """The calls in the advice of a doubt, after they were run on the fit; "" where there is none."""
    calls = re.findall(r"\b(?:fit|klimb)\.[\w.]*\w(?:\([^()]*\)(?:\.\w+)*)*", fit.trust.advice)
    for call in calls:
        eval(call, {"fit": fit, "klimb": klimb})  # the very text that is printed
    return ", ".join(calls)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="fits; all unless given")
    parser.add_argument("--truth", action="store_true", help="compute and store the truth")
    parser.add_argument("--advice", action="store_true", help="run what a doubt advises")
    parser.add_argument("--json", type=Path, help="also write what was found to this file")
    arguments = parser.parse_args()
    known = json.loads(STORED.read_text()) if STORED.exists() else {}
    names = arguments.names or list(CASES)
    if arguments.truth:
        for name in (name for name in names if name not in UNKNOWN):
            known[name] = truth(name)
            print(name, known[name].get("_draws", "by sums"), flush=True)
            STORED.write_text(json.dumps(known, indent=1) + "\n")
        return
    with measure.one_thread():
        found = {name: compared(name, known.get(name), arguments.advice) for name in names}
    measure.table("far from Gaussian", ["fit", "verdict", "mean/sd", "sd", "right", "CPU s", "advice followed"],
                  [(name, r["verdict"], *((f"{r['mean_error']:.3f}", f"{r['sd_error']:.1%}",
                                           "yes" if r["right"] else "FALSE TRUST" if r["false_trust"] else "no")
                                          if "right" in r else ("", "", "")), f"{r['seconds']:.1f}",
                    r.get("followed", "")) for name, r in found.items()])
    judged = [r for r in found.values() if "right" in r]
    print(f"\n{len(found)} fits: {sum(r['verdict'] == 'doubt' for r in found.values())} in doubt; of {len(judged)} "
          f"whose truth is known {sum(r['right'] for r in judged)} right, "
          f"{sum(r['right'] and r['verdict'] != 'doubt' for r in judged)} right and said so, "
          f"{sum(r['false_trust'] for r in judged)} false trust; {sum(r['seconds'] for r in found.values()):.1f} CPU s")
    if arguments.json:
        measure.save("doubts", {"results": found}, arguments.json)


if __name__ == "__main__":
    main()
