"""Models by formula: random intercepts, a mixed logistic regression, a smooth, a plain regression of many rows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from benchmarks.cases.base import Answer, Case, Data, against_best, in_r


def grouped(family: str) -> Callable[[int], Data]:
    def make(n: int) -> Data:
        rng = np.random.default_rng(0)
        x, g = rng.standard_normal((n, 2)), rng.integers(0, max(n // 20, 5), n)
        f = 0.3 + x @ [0.5, -0.5] + 0.7 * rng.standard_normal(g.max() + 1)[g]
        y = f + rng.standard_normal(n) if family == "gaussian" else (rng.random(n) < 1 / (1 + np.exp(-f))).astype(int)
        return {"frame": {"y": y, "x0": x[:, 0], "x1": x[:, 1], "g": np.char.add("g", g.astype(str))},
                "formula": "y ~ x0 + x1 + (1 | g)", "family": family}

    return make


def curve(n: int) -> Data:
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 10, n)
    return {"frame": {"y": np.sin(x) + 0.1 * x + 0.5 * rng.standard_normal(n), "x": x}, "formula": "y ~ s(x)",
            "family": "gaussian"}


def many_columns(n: int) -> Data:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, 50))
    y = (rng.random(n) < 1 / (1 + np.exp(-X @ rng.standard_normal(50) / 7))).astype(int)
    return {"frame": {"y": y, **{f"x{j}": X[:, j] for j in range(50)}}, "formula": "y ~ .", "family": "bernoulli"}


def klimb(data: Data) -> Answer:
    import klimb

    fit = klimb.fit(data["formula"], data["frame"], family=data["family"], progress=False)
    if data["formula"] == "y ~ s(x)":
        grid = fit.predict({"x": np.linspace(0.5, 9.5, 50)})
        return {"estimate": np.asarray(grid["mean"]), "sd": np.asarray(grid["sd"])}
    rows = fit.coefficient_rows()
    return {"estimate": np.array([row.mean for row in rows]), "sd": np.array([row.sd for row in rows])}


def statsmodels(data: Data) -> Answer:
    import pandas
    import statsmodels.formula.api as smf

    found = smf.mixedlm("y ~ x0 + x1", pandas.DataFrame(data["frame"]), groups="g").fit()
    return {"estimate": np.asarray(found.fe_params)}


def glmm(data: Data) -> Answer:
    import glmm as package

    family = {"gaussian": "gaussian", "bernoulli": "binomial"}[data["family"]]
    frame = {**data["frame"], "g": data["frame"]["g"].tolist()}
    return {"estimate": np.asarray(package.fit(frame, data["formula"], family=family).beta)}


def mixedlm(data: Data) -> Answer:
    import mixedlm as package
    import pandas

    frame = pandas.DataFrame(data["frame"])
    if data["family"] == "gaussian":
        found = package.lmer(data["formula"], frame)
    else:
        found = package.glmer(data["formula"], frame, family=package.families.Binomial())
    return {"estimate": np.asarray(list(package.fixef(found).values()))}


def gpboost(data: Data) -> Answer:
    import gpboost as package

    frame = data["frame"]
    X = np.column_stack([np.ones(len(frame["y"])), frame["x0"], frame["x1"]])
    likelihood = "gaussian" if data["family"] == "gaussian" else "bernoulli_logit"
    model = package.GPModel(group_data=frame["g"], likelihood=likelihood)
    model.fit(y=frame["y"].astype(float), X=X)
    return {"estimate": np.asarray(model.get_coef(format_pandas=False)).ravel()[:3]}


LME4 = {"gaussian": "answer <- lme4::fixef(lme4::lmer(y ~ x0 + x1 + (1 | g), d))",
        "bernoulli": "answer <- lme4::fixef(lme4::glmer(y ~ x0 + x1 + (1 | g), d, family = binomial))"}
TMB = {"gaussian": "answer <- glmmTMB::fixef(glmmTMB::glmmTMB(y ~ x0 + x1 + (1 | g), d))$cond",
       "bernoulli": "answer <- glmmTMB::fixef(glmmTMB::glmmTMB(y ~ x0 + x1 + (1 | g), d, family = binomial))$cond"}
BAM = ("found <- bam(y ~ s(x, k = 20), data = d, discrete = TRUE)\n"
       "answer <- predict(found, data.frame(x = seq(0.5, 9.5, length.out = 50)))")
JUDGED = "largest distance of a coefficient from the median of all, in posterior sds"


def mixed(family: str, sizes: tuple[int, ...]) -> Case:
    solvers = {"klimb": klimb, "lme4": in_r("lme4", LME4[family]), "glmmTMB": in_r("glmmTMB", TMB[family]),
               "glmm": glmm, "mixedlm": mixedlm, "GPBoost": gpboost}
    if family == "gaussian":
        solvers["statsmodels"] = statsmodels
    return Case(grouped(family), sizes, solvers, against_best("estimate"), JUDGED)


CASES = {
    "mixed, gaussian": mixed("gaussian", (2_000, 20_000, 200_000)),
    "mixed, logistic": mixed("bernoulli", (2_000, 20_000, 200_000)),
    "smooth, gaussian": Case(curve, (10_000, 100_000), {"klimb": klimb, "mgcv": in_r("mgcv", BAM)},
                             against_best("estimate"),
                             "largest distance of the curve from the median of all, in posterior sds"),
    "formula, 50 columns": Case(many_columns, (10_000, 100_000), {"klimb": klimb}, against_best("estimate"), JUDGED,
                                lambda n: ("weights", n, 51)),
}
