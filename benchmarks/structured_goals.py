"""Goals of structured models: crossed and nested effects, fields, beside R packages and GPBoost in the same run.

`benchmarks.goals` prints them where it is given the folder of structured models. klimb integrates hyperparameters out;
the others maximise a likelihood. Fits take seconds to minutes, so each runs once after a small one that loads the code.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

import klimb
from benchmarks.cases.base import Data, in_r
from benchmarks.ratings import even, made
from benchmarks.structured import MODELS, graph_of

CROSSED = "y ~ x + (1 | user) + (1 | film)"
INSTEVAL = MODELS["insteval"].formula
GLMER = {"verbagg": ("r2 ~ Anger + Gender + btype + situ + (1 | id) + (1 | item)", "bernoulli"),
         "grouseticks": ("TICKS ~ factor(YEAR) + cHEIGHT + (1 | BROOD) + (1 | INDEX) + (1 | LOCATION)", "poisson")}
R_FAMILIES = {"bernoulli": "binomial", "poisson": "poisson"}


def once(call: Callable[[], Any]) -> float:
    """CPU seconds of one run."""
    began = time.process_time()
    call()
    return time.process_time() - began


def in_lme4(data: Data) -> float:
    """CPU seconds of lme4 by maximum likelihood."""
    call = (f"lmer({data['formula']}, d, REML = FALSE)" if data["family"] == "gaussian"
            else f"glmer({data['formula']}, d, family = {R_FAMILIES[data['family']]})")
    levels = "\n".join(f"d${name} <- factor(d${name})" for name in data["levels"])
    return float(in_r("lme4", f"{levels}\nanswer <- lme4::fixef(lme4::{call})")(data)["cpu"])


def in_glmmtmb(data: Data) -> float:
    """CPU seconds of glmmTMB."""
    family = "gaussian" if data["family"] == "gaussian" else R_FAMILIES[data["family"]]
    levels = "\n".join(f"d${name} <- factor(d${name})" for name in data["levels"])
    script = f"{levels}\nanswer <- glmmTMB::fixef(glmmTMB::glmmTMB({data['formula']}, d, family = {family}))$cond"
    return float(in_r("glmmTMB", script)(data)["cpu"])


def in_gpboost(data: Data) -> float:
    """CPU seconds of GPBoost by maximum likelihood, without standard errors."""
    import gpboost

    frame = data["frame"]
    X = np.column_stack([np.ones(len(frame["y"])), frame["x"]])
    groups = np.column_stack([frame[name] for name in data["levels"]])
    likelihood = "gaussian" if data["family"] == "gaussian" else "bernoulli_logit"

    def fit() -> None:
        gpboost.GPModel(group_data=groups, likelihood=likelihood).fit(y=frame["y"].astype(float), X=X)

    return once(fit)


def goals(folder: Path) -> list[tuple[str, float, Callable[[], float], Callable[[], float]]]:
    """Name, bar, ours and the rival's seconds (1 where the bar is in seconds) of every goal."""
    load()

    @cache
    def ratings(family: str, rows: int) -> Data:
        return {"formula": CROSSED, "frame": even(rows, family)[0], "family": family, "levels": ("user", "film")}

    @cache
    def ours(family: str, rows: int) -> float:
        return fitted(ratings(family, rows))

    insteval = {"formula": INSTEVAL, "frame": MODELS["insteval"].data(folder), "family": "gaussian",
                "levels": ("s", "d", "dept")}
    nested = {"formula": CROSSED, "frame": made(31_022, 2410, 131, True, "gaussian")[0], "family": "gaussian",
              "levels": ("user", "film")}
    films = {"formula": CROSSED, "frame": made(1_000_000, 6000, 4000, False)[0], "family": "bernoulli"}
    found = [("InstEval, beside lmer", 2.0, partial(fitted, insteval), partial(in_lme4, insteval)),
             ("2,410 levels nested in 131, beside lmer", 3.0, partial(fitted, nested), partial(in_lme4, nested))]
    for family, rows, rivals in (("gaussian", 1_000_000, {"lmer": in_lme4, "GPBoost": in_gpboost}),
                                 ("bernoulli", 1_000_000, {"GPBoost": in_gpboost}),
                                 ("bernoulli", 100_000, {"glmer": in_lme4, "glmmTMB": in_glmmtmb})):
        found += [(f"crossed, {rows:,} rows, {family}, beside {name}", 1.0, partial(ours, family, rows),
                   lambda rival=rival, family=family, rows=rows: rival(ratings(family, rows)))
                  for name, rival in rivals.items()]
    found += [("ratings, 1e6 rows, 6,000 x 4,000 levels, seconds", 300.0, partial(fitted, films), lambda: 1.0)]
    for name, (formula, family) in GLMER.items():
        data = {"formula": formula, "frame": column_table(folder, name), "family": family, "levels": ()}
        own = {**data, "formula": formula.replace("factor(YEAR)", "C(YEAR)")}
        found += [(f"{name}, beside glmer", 1.0, partial(fitted, own), partial(in_lme4, data))]
    for name, label, bar in (("lattice100", "bym2 on a 100 x 100 lattice, seconds", 15.0),
                             ("series100000", "rw2 over 1e5 times, seconds", 8.0)):
        found += [(label, bar, partial(field, folder, name), lambda: 1.0)]
    return found


def load() -> None:
    """A small fit of each kind, so that what is loaded once counts for nobody."""
    rng = np.random.default_rng(0)
    data = {"y": rng.poisson(2.0, 60), "a": np.arange(60) % 7, "b": np.arange(60) % 5, "t": np.arange(60)}
    klimb.fit("y ~ (1 | a) + (1 | b)", data, family="poisson", progress=False)
    klimb.fit("y ~ rw2(t)", data, family="poisson", progress=False)


def column_table(folder: Path, name: str) -> dict[str, Any]:
    """The columns of one of the data sets."""
    from benchmarks.structured import table

    return table(folder, name)


def fitted(data: Data) -> float:
    """CPU seconds of klimb, hyperparameters integrated out."""
    return once(partial(klimb.fit, data["formula"], data["frame"], family=data["family"], progress=False))


def field(folder: Path, name: str) -> float:
    """CPU seconds of one of the models with references."""
    model = MODELS[name]
    data, graphs = model.data(folder), {"G": graph_of(folder, model.graph)} if model.graph else None
    return once(partial(klimb.fit, model.formula, data, family=model.family, priors=model.priors, graphs=graphs,
                        progress=False))
