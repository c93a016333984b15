"""Mixed models on public data against long NUTS runs and exact quadrature, every prior stated.

Data and references are those of the directory ``structured`` beside the data directory; without it the tests skip.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import klimb

TEN, ONE = "normal(0, 10)", "exponential(1)"
# The formula, the family, columns that are factors, and by name in the reference: our name and the prior.
MODELS: dict[str, tuple[str, str, tuple[str, ...], dict[str, tuple[str, str]]]] = {
    "penicillin": ("diameter ~ 1 + (1 | plate) + (1 | sample)", "gaussian", (), {
        "(Intercept)": ("Intercept", "normal(0, 100)"), "sd_plate": ("sd(plate)", ONE),
        "sd_sample": ("sd(sample)", ONE), "sigma": ("sigma", ONE)}),
    "verbagg": ("r2 ~ Anger + Gender + btype + situ + (1 | id) + (1 | item)", "bernoulli", (), {
        "(Intercept)": ("Intercept", TEN), "Anger": ("Anger", TEN), "GenderM": ("Gender[T.M]", TEN),
        "btypescold": ("btype[T.scold]", TEN), "btypeshout": ("btype[T.shout]", TEN),
        "situself": ("situ[T.self]", TEN), "sd_id": ("sd(id)", ONE), "sd_item": ("sd(item)", ONE)}),
    "cbpp": ("incidence | trials(size) ~ period + (1 | herd)", "binomial", ("period",), {
        "(Intercept)": ("Intercept", TEN), "period2": ("period[T.2]", TEN), "period3": ("period[T.3]", TEN),
        "period4": ("period[T.4]", TEN), "sd_herd": ("sd(herd)", ONE)}),
    "sleepstudy": ("Reaction ~ Days + (1 + Days | Subject)", "gaussian", (), {
        "(Intercept)": ("Intercept", "normal(0, 1000)"), "Days": ("Days", "normal(0, 1000)"),
        "sd_Subject_Intercept": ("sd(Subject)", "exponential(50)"),
        "sd_Subject_Days": ("sd(Days | Subject)", "exponential(10)"),
        "cor": ("cor(Intercept, Days | Subject)", "lkj(2)"), "sigma": ("sigma", "exponential(50)")}),
    "insteval": ("y ~ service + (1 | s) + (1 | d) + (1 | dept:service)", "gaussian", ("s", "d", "service", "dept"), {
        "(Intercept)": ("Intercept", TEN), "service": ("service[T.1]", TEN), "sd_s": ("sd(s)", ONE),
        "sd_d": ("sd(d)", ONE), "sd_ds": ("sd(dept:service)", ONE), "sigma": ("sigma", ONE)}),
}


@pytest.fixture(scope="module")
def structured(data_dir: Path) -> Path:
    path = data_dir.parent / "structured"
    if not path.is_dir():
        pytest.skip(f"no directory with references at {path}")
    return path


def read(path: Path, factors: tuple[str, ...]) -> dict[str, Any]:
    with path.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    columns: dict[str, Any] = {}
    for name in rows[0]:
        values = np.array([row[name] for row in rows])
        numeric = name not in factors and all(value.replace(".", "", 1).isdigit() for value in values[:50])
        columns[name] = values.astype(float) if numeric else values
    return columns


@pytest.mark.data
@pytest.mark.parametrize("name", [
    pytest.param(name, marks=pytest.mark.slow) if name in ("insteval", "verbagg") else name for name in MODELS])
def test_posterior_is_the_reference(structured: Path, name: str) -> None:
    """Means within 0.05 sd and sds within 5%, hyperparameters within 0.1 sd and 10%, beyond the truth's own error."""
    formula, family, factors, named = MODELS[name]
    reference = json.loads((structured / "refs" / f"{name}.json").read_text())
    truth = reference.get("exact") or reference["nuts"]
    data = read(structured / "data" / f"{name}.csv", factors)
    priors = {("cor(Subject)" if own.startswith("cor(") else own): prior for own, prior in named.values()}
    fit = klimb.fit(formula, data, family=family, priors=priors)
    assert fit.mode == "integrate"
    assert fit.trust.verdict in ("trust", "corrected")
    rows = {row.name: row for row in fit.table_rows()}
    ess = float(truth.get("ess", truth.get("worst_ess", 1e4)))
    error = 2.0 / np.sqrt(ess)  # of the truth
    for one in truth["fixed"]:
        row = rows[named[one["name"]][0]]
        assert abs(row.mean - one["mean"]) < (0.05 + error) * one["sd"], one["name"]
        assert abs(row.sd / one["sd"] - 1.0) < 0.05 + 0.7 * error, one["name"]
    for key, one in truth["hyper"].items():
        row = rows[named[key][0]]
        assert abs(row.mean - one["mean"]) < (0.1 + error) * one["sd"], key
        assert abs(row.sd / one["sd"] - 1.0) < 0.1 + 0.7 * error, key
    eta = truth.get("eta") or truth.get("latent", {}).get("eta")
    if eta is not None:
        found, mean, sd = fit.predict(kind="latent"), np.array(eta["mean"]), np.array(eta["sd"])
        assert np.abs((found["mean"] - mean) / sd).max() < 0.05 + error
        assert np.abs(found["sd"] / sd - 1.0).max() < 0.05 + 0.7 * error
    for effects, group in (("u_s", "s"), ("u_d", "d")) if name == "insteval" else ():
        levels, own = fit.random_effects(group), truth["latent"][effects]
        order = np.argsort([int(level) for level in levels["level"]])  # the reference numbers them by value
        assert np.abs((levels["mean"][order] - np.array(own["mean"])) / np.array(own["sd"])).max() < 0.05
        assert np.abs(levels["sd"][order] / np.array(own["sd"]) - 1.0).max() < 0.05
