"""statsmodels and Bambi on the problems of `benchmarks.formula_rivals`; runs in a virtual environment of its own.

    python benchmarks/rivals/formula_others.py grunfeld                   # a data set of statsmodels, as JSON
    python benchmarks/rivals/formula_others.py statsmodels < problem.json
    python benchmarks/rivals/formula_others.py bambi < problem.json

The answer is JSON: for every coefficient its estimate and standard error, or posterior mean and sd.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np
import pandas as pd


def grunfeld() -> dict[str, Any]:
    from statsmodels.datasets import grunfeld as source

    frame = source.load_pandas().data
    return {name: frame[name].tolist() for name in frame.columns}


def fit_statsmodels(problem: dict[str, Any]) -> dict[str, Any]:
    import statsmodels
    import statsmodels.api as sm
    import statsmodels.formula.api as smf

    data = pd.DataFrame(problem["data"])
    formula = problem["formula"]
    start = time.process_time()
    if problem["group"]:
        result = smf.mixedlm(problem["fixed"], data, groups=problem["group"]).fit(reml=True)
        names = result.fe_params.index
        table = {name: [float(result.fe_params[name]), float(result.bse_fe[name])] for name in names}
        table[f"sd({problem['group']})"] = [float(np.sqrt(result.cov_re.iloc[0, 0])), None]
        table["sigma"] = [float(np.sqrt(result.scale)), None]
    else:
        family = {"bernoulli": sm.families.Binomial, "poisson": sm.families.Poisson}[problem["family"]]()
        result = smf.glm(formula, data, family=family).fit()
        table = {name: [float(result.params[name]), float(result.bse[name])] for name in result.params.index}
    return {"table": renamed(table), "seconds": time.process_time() - start, "version": statsmodels.__version__}


def fit_bambi(problem: dict[str, Any]) -> dict[str, Any]:
    import bambi

    data = pd.DataFrame(problem["data"])
    start = time.process_time()
    model = bambi.Model(problem["formula"], data, family=problem["family"], priors=bambi_priors(bambi, problem))
    trace = model.fit(draws=4000, tune=2000, chains=4, cores=1, random_seed=1, progressbar=False, target_accept=0.95)
    seconds = time.process_time() - start
    table, errors, worst = {}, {}, 0.0
    posterior = trace.posterior
    for name in posterior.data_vars:
        if name.startswith("1|") and not name.endswith("_sigma"):
            continue
        values = posterior[name].values.reshape(posterior.sizes["chain"], posterior.sizes["draw"], -1)
        for j in range(values.shape[2]):
            label = name if values.shape[2] == 1 else f"{name}[{j + 1}]"
            label = f"sd({name[2:-6]})" if name.endswith("_sigma") and name.startswith("1|") else label
            draws = values[:, :, j]
            table[label] = [float(draws.mean()), float(draws.std())]
            errors[label] = batch_error(draws)
            worst = max(worst, rhat(draws))
    return {"table": table, "errors": errors, "rhat": worst, "seconds": seconds, "version": bambi.__version__}


def bambi_priors(bambi: Any, problem: dict[str, Any]) -> dict[str, Any]:
    """klimb's priors, in Bambi's words; both put the intercept's where the other columns are at their means."""
    priors = problem["priors"]
    out: dict[str, Any] = {}
    several: dict[str, list[float]] = {}
    for name, (kind, *numbers) in priors.items():
        if name.startswith("sd("):
            scale = bambi.Prior("Exponential", lam=1.0 / numbers[0])
            out["1|" + name[3:-1]] = bambi.Prior("Normal", mu=0.0, sigma=scale)
        elif kind == "exponential":
            out[name] = bambi.Prior("Exponential", lam=1.0 / numbers[0])
        elif name.endswith("]"):
            several.setdefault(name[: name.rindex("[")], []).append(numbers[1])
        else:
            out[name] = bambi.Prior("Normal", mu=numbers[0], sigma=numbers[1])
    for name, widths in several.items():
        out[name] = bambi.Prior("Normal", mu=0.0, sigma=np.array(widths))
    return out


def batch_error(draws: np.ndarray) -> float:
    """Monte Carlo error of the mean, from the means of batches."""
    batches = draws.reshape(-1, 200).mean(axis=1)
    return float(batches.std(ddof=1) / np.sqrt(len(batches)))


def rhat(draws: np.ndarray) -> float:
    """The potential scale reduction of Gelman and Rubin."""
    n = draws.shape[1]
    within, between = draws.var(axis=1, ddof=1).mean(), draws.mean(axis=1).var(ddof=1)
    return float(np.sqrt((n - 1) / n + between / within))


def renamed(table: dict[str, Any]) -> dict[str, Any]:
    """patsy numbers the columns of a basis from 0; here they begin at 1."""
    out = {}
    for name, values in table.items():
        head, _, tail = name.rpartition("[")
        out[f"{head}[{int(tail[:-1]) + 1}]" if head and tail[:-1].isdigit() else name] = values
    return out


if __name__ == "__main__":
    what = sys.argv[1]
    if what == "grunfeld":
        answer = grunfeld()
    else:
        answer = {"statsmodels": fit_statsmodels, "bambi": fit_bambi}[what](json.load(sys.stdin))
    print("ANSWER" + json.dumps(answer))
