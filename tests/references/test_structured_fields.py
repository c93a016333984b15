"""Structured models against long NUTS runs and exact integration, every prior stated in the folder of references.

Means of coefficients and of the linear predictor within 0.05 sd, sds within 5%; hyperparameters within 0.1 sd and 10%.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import klimb

pandas = pytest.importorskip("pandas")
ZERO = {"Intercept": "normal(0, 10)"}


@pytest.fixture
def folder(data_dir: Path) -> Path:
    path = data_dir.parent / "structured"
    if not path.is_dir():
        pytest.skip(f"no folder of structured references at {path}")
    return path


def judged(fit: Any, folder: Path, name: str, names: dict[str, str], *, offset: Any = 0.0, worst: float = 0.05) -> Any:
    """Compare with the truth of a reference: ``names`` are those of its coefficients and hyperparameters, by ours."""
    stored = json.loads((folder / "refs" / f"{name}.json").read_text())
    truth = stored.get("exact") or stored["nuts"]
    fixed = {one["name"]: one for one in truth["fixed"]}
    rows = {row.name: row for row in fit.table_rows()}
    for ours, theirs in names.items():
        exact, mean, spread = (fixed[theirs], 0.05, 0.05) if theirs in fixed else (truth["hyper"][theirs], 0.1, 0.1)
        assert abs(rows[ours].mean - exact["mean"]) < mean * exact["sd"], ours
        assert abs(rows[ours].sd / exact["sd"] - 1.0) < spread, ours
    eta = truth.get("eta") or truth["latent"]["eta"]
    found = fit.predict(kind="latent")
    away = (np.asarray(found["mean"]) - offset - eta["mean"]) / np.asarray(eta["sd"])
    assert np.abs(away).max() < worst
    np.testing.assert_allclose(found["sd"], eta["sd"], rtol=0.05)
    assert fit.trust.verdict != "doubt"
    return truth


def test_tokyo(folder: Path) -> None:
    fit = klimb.fit("p(y, n) ~ rw2(time, cyclic=True)", pandas.read_csv(folder / "data" / "tokyo.csv"),
                    family="binomial", priors={**ZERO, "sd(rw2(time))": "exponential(1)"})
    judged(fit, folder, "tokyo", {"Intercept": "(Intercept)", "sd(rw2(time))": "sd_time"})


def test_scotland(folder: Path) -> None:
    data = pandas.read_csv(folder / "data" / "scotland.csv")
    data["tenth"], data["logE"] = data.X / 10, np.log(data.E)
    fit = klimb.fit("Counts ~ tenth + offset(logE) + bym2(Region, graph=G)", data, family="poisson",
                    graphs={"G": pandas.read_csv(folder / "data" / "scotland_edges.csv")},
                    priors={**ZERO, "fixed": "normal(0, 10)", "sd(bym2(Region))": "exponential(1)",
                            "phi(bym2(Region))": "beta(1, 1)"})
    judged(fit, folder, "scotland", {"Intercept": "(Intercept)", "tenth": "x10", "sd(bym2(Region))": "sd_Region",
                                     "phi(bym2(Region))": "phi"}, offset=data.logE.to_numpy())


def test_mcycle(folder: Path) -> None:
    data = pandas.read_csv(folder / "data" / "mcycle.csv")
    data["a"] = data.accel / 50
    fit = klimb.fit("a ~ rw2(times)", data,
                    priors={**ZERO, "sd(rw2(times))": "exponential(1)", "sigma": "exponential(1)"})
    judged(fit, folder, "mcycle", {"Intercept": "(Intercept)", "sd(rw2(times))": "sd_times", "sigma": "sigma"})


def test_ldeaths(folder: Path) -> None:
    fit = klimb.fit("ldeaths ~ rw1(t) + seasonal(t, period=12)", pandas.read_csv(folder / "data" / "ldeaths.csv"),
                    family="poisson",
                    priors={**ZERO, "sd(rw1(t))": "exponential(1)", "sd(seasonal(t))": "exponential(0.1)"})
    judged(fit, folder, "ldeaths", {"Intercept": "(Intercept)", "sd(rw1(t))": "sd_t", "sd(seasonal(t))": "sd_t2"},
           worst=0.07)  # the reference's own error is of this size


def test_a_series_of_ten_thousand_counts(folder: Path) -> None:
    spec = importlib.util.spec_from_file_location("make_series", folder / "data" / "make_series.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    made = script.make(10_000)
    fit = klimb.fit("y ~ rw2(t)", {"t": made["t"], "y": made["y"]}, family="poisson",
                    priors={**ZERO, "sd(rw2(t))": "exponential(1)"})
    judged(fit, folder, "series10000", {"Intercept": "(Intercept)", "sd(rw2(t))": "sd_t"})


def test_spdetoy(folder: Path) -> None:
    """The truth is of the Matern field itself: the mesh moves the mean at one place of 200 by 0.048 sd."""
    name = "spde(s1, s2)"
    fit = klimb.fit(f"y ~ {name}", pandas.read_csv(folder / "data" / "spdetoy.csv"),
                    priors={"Intercept": "normal(0, 100)", f"sd({name})": "exponential(1)",
                            f"range({name})": "pc_range(0.3, 0.5)", "sigma": "exponential(1)"})
    truth = judged(fit, folder, "spdetoy", {"Intercept": "b0", f"sd({name})": "sigma", f"range({name})": "range",
                                            "sigma": "noise"}, worst=0.055)
    found = fit.predict(kind="latent")
    away = (found["mean"] - np.array(truth["eta"]["mean"])) / np.array(truth["eta"]["sd"])
    assert np.sqrt((away**2).mean()) < 0.02
    new, places = truth["new"], np.array(truth["new"]["loc"])
    field = fit.predict({"s1": places[:, 0], "s2": places[:, 1]}, kind="latent")["mean"] - fit.coefficients["mean"][0]
    assert np.abs((field - new["field_mean"]) / np.array(new["field_sd"])).max() < 0.05
