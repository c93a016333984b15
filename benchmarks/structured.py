"""klimb against exact posteriors and R-INLA on structured models whose every prior is stated.

    python -m benchmarks.structured FOLDER [NAME ...] [--json FILE]
    python -m benchmarks.structured FOLDER --clusters       binary data in clusters of three, beside lme4
    python -m benchmarks.structured FOLDER --growth         time against nodes: lattices, chains

FOLDER has ``data/`` and ``refs/``: one JSON file a model, with ``exact`` (quadrature, importance sampling) or ``nuts``
(long runs) as the truth and ``inla`` beside it. Coefficients and the linear predictor are right with means within 0.05
sd and sds within 5%, hyperparameters within 0.1 sd and 10%. CPU seconds are those of the call, one thread.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import klimb
from benchmarks.measure import save

WIDE = {"Intercept": "normal(0, 10)", "fixed": "normal(0, 10)"}
COEFFICIENT, PARAMETER = (0.05, 0.05), (0.1, 0.1)


@dataclass(frozen=True)
class Model:
    """A call of `klimb.fit`, and what its rows are called in the reference."""

    formula: str
    family: str
    priors: dict[str, str]
    fixed: dict[str, str]
    hyper: dict[str, str]
    data: Callable[[Path], dict[str, Any]]
    offset: str | None = None  # a column that the reference's linear predictor leaves out
    graph: str | None = None
    inla: dict[str, str] = field(default_factory=dict)  # names of the hyperparameters there, where they are comparable


def table(folder: Path, name: str) -> dict[str, Any]:
    """A CSV file as columns."""
    from klimb.cli.tables.read import read_table

    return dict(read_table(str(folder / "data" / f"{name}.csv")).columns)


def scotland(folder: Path) -> dict[str, Any]:
    data = table(folder, "scotland")
    return {**data, "x10": data["X"] / 10.0, "logE": np.log(data["E"])}


def lattice(folder: Path) -> dict[str, Any]:
    made = np.load(folder / "data" / "lattice100.npz")
    data = {name: made[name].ravel() for name in ("y", "E", "x")}
    return {**data, "i": np.arange(10_000), "logE": np.log(data["E"])}


def series(n: int) -> Callable[[Path], dict[str, Any]]:
    def made(folder: Path) -> dict[str, Any]:
        rng, s = np.random.default_rng(5), np.arange(n) / n
        f = 0.5 + np.sin(14.0 * np.pi * s) + 0.5 * np.sin(62.0 * np.pi * s + 1.0) + 0.3 * np.cos(100.0 * np.pi * s**2)
        return {"t": np.arange(n), "y": rng.poisson(np.exp(f))}

    return made


def pounds(folder: Path) -> dict[str, Any]:
    y = np.load(folder.parent / "data" / "gbpusd.npz")["y"]
    return {"t": np.arange(len(y)), "y": y}


def kidney(folder: Path) -> dict[str, Any]:
    data = table(folder, "kidney")
    return {**data, "t": data["time"] / 100.0, "age10": (data["age"] - data["age"].mean()) / 10.0,
            "fem": (data["sex"] == 2).astype(float)}


def mcycle(folder: Path) -> dict[str, Any]:
    data = table(folder, "mcycle")
    return {**data, "a": data["accel"] / 50.0}


def plain(name: str) -> Callable[[Path], dict[str, Any]]:
    return lambda folder: table(folder, name)


ONE = {"Intercept": "(Intercept)"}
MODELS: dict[str, Model] = {
    "tokyo": Model("p(y, n) ~ rw2(time, cyclic=True)", "binomial",
                   {"Intercept": "normal(0, 10)", "sd(rw2(time))": "exponential(1)"}, ONE,
                   {"sd(rw2(time))": "sd_time"}, plain("tokyo"), inla={"sd(rw2(time))": "sd for time"}),
    "scotland": Model("Counts ~ x10 + offset(logE) + bym2(Region, graph=G)", "poisson",
                      {**WIDE, "sd(bym2(Region))": "exponential(1)", "phi(bym2(Region))": "beta(1, 1)"},
                      {**ONE, "x10": "x10"}, {"sd(bym2(Region))": "sd_Region", "phi(bym2(Region))": "phi"}, scotland,
                      "logE", "scotland_edges",
                      {"sd(bym2(Region))": "sd for Region", "phi(bym2(Region))": "Logit phi for Region"}),
    "mcycle": Model("a ~ rw2(times)", "gaussian",
                    {"Intercept": "normal(0, 10)", "sd(rw2(times))": "exponential(1)", "sigma": "exponential(1)"}, ONE,
                    {"sd(rw2(times))": "sd_times", "sigma": "sigma"}, mcycle,
                    inla={"sigma": "sd for the Gaussian observations"}),
    "ldeaths": Model("ldeaths ~ rw1(t) + seasonal(t, period=12)", "poisson",
                     {"Intercept": "normal(0, 10)", "sd(rw1(t))": "exponential(1)",
                      "sd(seasonal(t))": "exponential(0.1)"}, ONE,
                     {"sd(rw1(t))": "sd_t", "sd(seasonal(t))": "sd_t2"}, plain("ldeaths"),
                     inla={"sd(rw1(t))": "sd for t", "sd(seasonal(t))": "sd for t2"}),
    "gbpusd": Model("y ~ ar1(t)", "stochastic_volatility",
                    {"Intercept": "normal(0, 10)", "sd(ar1(t))": "exponential(1)", "rho(ar1(t))": "beta(20, 1.5)"}, ONE,
                    {"sd(ar1(t))": "sd_t", "rho(ar1(t))": "rho"}, pounds,
                    inla={"sd(ar1(t))": "sd for t", "rho(ar1(t))": "Rho_intern for t"}),
    "series10000": Model("y ~ rw2(t)", "poisson", {"Intercept": "normal(0, 10)", "sd(rw2(t))": "exponential(1)"}, ONE,
                         {"sd(rw2(t))": "sd_t"}, series(10_000), inla={"sd(rw2(t))": "sd for t"}),
    "series100000": Model("y ~ rw2(t)", "poisson", {"Intercept": "normal(0, 10)", "sd(rw2(t))": "exponential(1)"}, ONE,
                          {"sd(rw2(t))": "sd_t"}, series(100_000)),
    "spdetoy": Model("y ~ spde(s1, s2)", "gaussian",
                     {"Intercept": "normal(0, 100)", "sd(spde(s1, s2))": "exponential(1)",
                      "range(spde(s1, s2))": "pc_range(0.3, 0.5)", "sigma": "exponential(1)"}, {"Intercept": "b0"},
                     {"sd(spde(s1, s2))": "sigma", "range(spde(s1, s2))": "range", "sigma": "noise"}, plain("spdetoy"),
                     inla={"sigma": "sd for the Gaussian observations", "range(spde(s1, s2))": "log(Range) for field"}),
    "kidney": Model("Surv(t, status) ~ age10 + fem + (1 | id)", "weibull",
                    {**WIDE, "sd(id)": "exponential(1)", "shape": "log_normal(1, 1)"},
                    {**ONE, "age10": "age10", "fem": "fem"}, {"sd(id)": "sd_id", "shape": "alpha"}, kidney,
                    inla={"sd(id)": "sd for id"}),
    "seeds": Model("p(r, n) ~ x1*x2 + (1 | plate)", "binomial", {**WIDE, "sd(plate)": "exponential(1)"},
                   {**ONE, "x1": "x1", "x2": "x2"}, {"sd(plate)": "sd_plate"}, plain("seeds"),
                   inla={"sd(plate)": "sd for plate"}),
    "cbpp": Model("p(incidence, size) ~ C(period) + (1 | herd)", "binomial", {**WIDE, "sd(herd)": "exponential(1)"},
                  {**ONE, "C(period)[T.2]": "period2", "C(period)[T.3]": "period3"}, {"sd(herd)": "sd_herd"},
                  plain("cbpp"), inla={"sd(herd)": "sd for herd"}),
    "penicillin": Model("diameter ~ (1 | plate) + (1 | sample)", "gaussian",
                        {"Intercept": "normal(0, 100)", "sd(plate)": "exponential(1)", "sd(sample)": "exponential(1)",
                         "sigma": "exponential(1)"}, ONE,
                        {"sd(plate)": "sd_plate", "sd(sample)": "sd_sample", "sigma": "sigma"}, plain("penicillin"),
                        inla={"sd(plate)": "sd for plate", "sd(sample)": "sd for sample",
                              "sigma": "sd for the Gaussian observations"}),
    "sleepstudy": Model("Reaction ~ Days + (1 + Days | Subject)", "gaussian",
                        {"Intercept": "normal(0, 1000)", "fixed": "normal(0, 1000)", "sd(Subject)": "exponential(50)",
                         "sd(Days | Subject)": "exponential(10)", "cor(Subject)": "lkj(2)", "sigma": "exponential(50)"},
                        {**ONE, "Days": "Days"},
                        {"sd(Subject)": "sd_Subject_Intercept", "sd(Days | Subject)": "sd_Subject_Days",
                         "cor(Intercept, Days | Subject)": "cor", "sigma": "sigma"}, plain("sleepstudy")),
    "verbagg": Model("r2 ~ Anger + Gender + btype + situ + (1 | id) + (1 | item)", "bernoulli",
                     {**WIDE, "sd(id)": "exponential(1)", "sd(item)": "exponential(1)"},
                     {**ONE, "Anger": "Anger", "Gender[T.M]": "GenderM"}, {"sd(id)": "sd_id", "sd(item)": "sd_item"},
                     plain("verbagg"), inla={"sd(id)": "sd for id", "sd(item)": "sd for item"}),
    "insteval": Model("y ~ service + (1 | s) + (1 | d) + (1 | dept:service)", "gaussian",
                      {**WIDE, "sd(s)": "exponential(1)", "sd(d)": "exponential(1)",
                       "sd(dept:service)": "exponential(1)", "sigma": "exponential(1)"}, {**ONE, "service": "service"},
                      {"sd(s)": "sd_s", "sd(d)": "sd_d", "sd(dept:service)": "sd_ds", "sigma": "sigma"},
                      plain("insteval")),
    "lattice100": Model("y ~ x + offset(logE) + bym2(i, graph=G)", "poisson",
                        {**WIDE, "sd(bym2(i))": "exponential(1)", "phi(bym2(i))": "beta(1, 1)"}, {}, {}, lattice,
                        "logE", "lattice"),
}


def graph_of(folder: Path, name: str) -> Any:
    """Edges of a graph: from a file, or of a lattice of 100 x 100."""
    if name != "lattice":
        return table(folder, name)
    return lattice_edges(100)


def lattice_edges(side: int) -> Any:
    at = np.arange(side * side).reshape(side, side)
    across = np.column_stack([at[:, :-1].ravel(), at[:, 1:].ravel()])
    return np.vstack([across, np.column_stack([at[:-1].ravel(), at[1:].ravel()])])


def errors(mean: float, sd: float, truth: dict[str, Any]) -> tuple[float, float]:
    """Of the mean in sds, and of the sd as a share."""
    return (mean - truth["mean"]) / truth["sd"], sd / truth["sd"] - 1.0


def compared(folder: Path, name: str) -> dict[str, Any]:
    """Errors of every row of one model, of the linear predictor, and of R-INLA's beside them."""
    model, stated = MODELS[name], json.loads((folder / "refs" / f"{name}.json").read_text())
    truth = stated.get("exact") or stated.get("nuts") or {}
    data = model.data(folder)
    graphs = {"G": graph_of(folder, model.graph)} if model.graph else None
    began = time.process_time()
    fit = klimb.fit(model.formula, data, family=model.family, priors=model.priors, graphs=graphs, progress=False)
    seconds = time.process_time() - began
    rows, other = {row.name: row for row in fit.table_rows()}, stated.get("inla", {}).get("default", {})
    found: dict[str, Any] = {"name": name, "seconds": seconds, "verdict": fit.trust.verdict, "bound": fit.bound,
                             "inla_cpu": other.get("cpu"), "rows": []}
    fixed = {row["name"]: row for row in truth.get("fixed", [])}
    theirs = {row["name"]: row for row in other.get("fixed", [])}
    for own, label in model.fixed.items():
        found["rows"].append(_row(own, rows[own], fixed[label], theirs.get(label), COEFFICIENT))
    for own, label in model.hyper.items():
        beside = other.get("hyper", {}).get(model.inla.get(own, ""))
        found["rows"].append(_row(own, rows[own], truth["hyper"][label], beside, PARAMETER))
    eta = truth.get("eta") or truth.get("latent", {}).get("eta")
    if eta:
        shown = fit.predict(kind="latent")
        shift = 0.0 if model.offset is None else data[model.offset]
        mean, sd = np.array(eta["mean"]), np.array(eta["sd"])
        found["eta"] = {"mean": float(np.abs((shown["mean"] - shift - mean) / sd).max()),
                        "sd": [float((shown["sd"] / sd).min() - 1.0), float((shown["sd"] / sd).max() - 1.0)]}
    return found


def _row(name: str, own: Any, truth: dict[str, Any], inla: dict[str, Any] | None,
         bars: tuple[float, float]) -> dict[str, Any]:
    shift, ratio = errors(own.mean, own.sd, truth)
    right = abs(shift) <= bars[0] and abs(ratio) <= bars[1]
    theirs = (math.nan, math.nan) if inla is None else errors(inla["mean"], inla["sd"], truth)
    return {"row": name, "mean": own.mean, "sd": own.sd, "truth": [truth["mean"], truth["sd"]], "shift": shift,
            "ratio": ratio, "right": right, "inla": theirs}


def printed(found: dict[str, Any]) -> None:
    inla = "" if found["inla_cpu"] is None else f" (R-INLA {found['inla_cpu']:.1f})"
    print(f"\n{found['name']}: {found['seconds']:.1f} CPU s{inla}, {found['verdict']}")
    print(f"  {'row':32s} {'klimb':>20s} {'truth':>20s} {'mean':>9s} {'sd':>7s}   R-INLA mean, sd")
    for row in found["rows"]:
        own, truth = (f"{mean:.4g} ({sd:.3g})" for mean, sd in ((row["mean"], row["sd"]), row["truth"]))
        mark = " " if row["right"] else "!"
        beside = "" if math.isnan(row["inla"][0]) else f"{row['inla'][0]:+8.3f} {row['inla'][1]:+7.1%}"
        print(f"{mark} {row['row']:32s} {own:>20s} {truth:>20s} {row['shift']:+9.3f} {row['ratio']:+7.1%}   {beside}")
    if "eta" in found:
        low, high = found["eta"]["sd"]
        print(f"  linear predictor: means within {found['eta']['mean']:.3f} sd, sds {low:+.1%} to {high:+.1%}")


def clusters(folder: Path, count: int = 200) -> None:
    """Bias and coverage over data sets of 100 clusters of 3: logit P = -0.5 + x + 1.5 u."""
    truth, names = np.array([-0.5, 1.0, np.log(1.5)]), ("Intercept", "x", "sd(g)")
    priors = {"Intercept": "normal(0, 10)", "fixed": "normal(0, 10)", "sd(g)": "exponential(1)"}
    centre, held, began = np.empty((count, 3)), np.empty((count, 3)), time.process_time()
    for r in range(count):
        rng, g = np.random.default_rng(1000 + r), np.repeat(np.arange(100), 3)
        x, u = rng.standard_normal(300), 1.5 * rng.standard_normal(100)
        y = rng.random(300) < 1.0 / (1.0 + np.exp(0.5 - x - u[g]))
        fit = klimb.fit("y ~ x + (1 | g)", {"y": y, "x": x, "g": g}, family="bernoulli", priors=priors)
        rows = {row.name: row for row in fit.table_rows()}
        theta, weights = fit.components.marginal_points
        lower, upper = (np.array([getattr(rows[name], end) for name in names]) for end in ("lower", "upper"))
        lower[2], upper[2] = np.log(lower[2]), np.log(upper[2])
        centre[r] = rows["Intercept"].mean, rows["x"].mean, weights @ theta[:, 0]
        held[r] = (lower <= truth) & (truth <= upper)
    print(f"{count} data sets, {time.process_time() - began:.0f} CPU s")
    print(f"{'':12s} {'bias (se)':>18s} {'90% intervals hold':>20s}")
    for j, name in enumerate(("Intercept", "x", "log sd(g)")):
        bias, error = centre[:, j].mean() - truth[j], centre[:, j].std() / np.sqrt(count)
        print(f"{name:12s} {bias:+10.3f} ({error:.3f}) {held[:, j].mean():20.1%}")
    for tool in ("lme4_laplace", "lme4_agq25"):
        found = json.loads((folder / "clusters" / f"{tool}.json").read_text())["summary"]
        print(tool, {name: (round(one["bias"], 3), one["coverage90"]) for name, one in found.items()})


GROWTH = {"bym2 on a lattice": (lambda n: round(n**0.5) ** 2, "y ~ bym2(i, graph=G)", 1.5),
          "rw2 on a chain": (lambda n: n, "y ~ rw2(i)", 1.0), "ar1 on a chain": (lambda n: n, "y ~ ar1(i)", 1.0)}


def growth(sizes: tuple[int, ...] = (1_000, 10_000, 100_000)) -> dict[str, Any]:
    """CPU seconds of fits of Poisson counts at the best hyperparameters, and the power of n by which they grow."""
    found: dict[str, Any] = {}
    klimb.fit("y ~ rw1(i)", {"i": [0, 1, 2, 3], "y": [1, 0, 2, 1]}, family="poisson")  # what is loaded once
    for name, (nodes, formula, asked) in GROWTH.items():
        seconds, every = [], [nodes(n) for n in sizes]
        for n in every:
            at, side = np.arange(n), round(n**0.5)
            f = np.sin(10.0 * (at % side) / side) * np.cos(7.0 * (at // side) / side) if "G" in formula else np.sin(
                60.0 * at / n)
            data = {"i": at, "y": np.random.default_rng(0).poisson(np.exp(0.5 + f))}
            graphs = {"G": lattice_edges(side)} if "G" in formula else None
            began = time.process_time()
            fit = klimb.fit(formula, data, family="poisson", graphs=graphs, hyper="optimise", progress=False)
            seconds.append(time.process_time() - began)
            print(f"{name}: {n:,} nodes, {seconds[-1]:.2f} CPU s, {fit.n_fits} fits, {fit.status.name}", flush=True)
        power = float(np.polyfit(np.log(every), np.log(seconds), 1)[0])
        found[name] = {"nodes": every, "seconds": seconds, "power": power, "asked": asked}
        print(f"{name}: seconds grow as n^{power:.2f} (asked: n^{asked:g})", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--clusters", action="store_true")
    parser.add_argument("--growth", action="store_true")
    given = parser.parse_args()
    if given.clusters:
        clusters(given.folder)
        return
    if given.growth:
        print(save("structured_growth", growth(), given.json))
        return
    every = []
    for name in given.names or MODELS:
        every.append(compared(given.folder, name))
        printed(every[-1])
    if given.json:
        given.json.write_text(json.dumps(every, indent=1))


if __name__ == "__main__":
    main()
