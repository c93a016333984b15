"""[A] Tables 1 and 2, [B] Table 2: the data sets; Bayesian logistic regression, w ~ N(0, delta I), delta from a grid.

Every method but MAP chooses delta by its own evidence (the bound), MAP by five-fold cross-validation on the training
rows; the other rows score the choice. With more columns than rows the fits see X only through X X', as [A] Eq. (19).
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from klimb import latents, methods, sites, steps
from klimb.apps.papers.data import DataSet, Library, TrainTest, halves, split_rows
from klimb.apps.papers.experiment import EXPERIMENTS, Experiment, Found, Job, Results, Size, by_parts
from klimb.apps.papers.pictures import BLUE, GREEN, INK, NOTHING, ORANGE, PINK, PaperTable, panels, seconds, with_error
from klimb.infer.loop import infer
from klimb.linalg.matrix import as_design
from klimb.numerics.arrays import Array
from klimb.numerics.lazy import scipy_sparse

SITE = sites.Logistic()
FOLDS = 5
STOP = 1e-4  # "all algorithms are stopped when the optimality condition is below": [A] section 6
NARROW, WIDE, BELOW = (-3.0, 1.0), (0.0, 6.0), (-5.0, 1.0)  # log10 delta: [A] Table 1's ranges, and a lower one
POINTS = 30
FIT: dict[str, Callable[..., Any]] = {
    "MAP": partial(methods.map_estimate, tol=STOP),
    "mean-field": partial(methods.mean_field, tol=STOP),
    "Cholesky": partial(methods.cholesky_gradient, tol=STOP),
    "proximal": partial(infer, step=steps.Proximal(0.25), tol=STOP, max_iter=2000),
    "default": infer,
}
PAPER = {**EXPERIMENTS["A-table2"].settings["printed"], **EXPERIMENTS["B-table2"].settings["printed"]}
PRINTED = EXPERIMENTS["A-table1"].settings["printed"]


def official(library: Library, name: str, seed: int) -> TrainTest:
    """LIBSVM's own training rows."""
    data = library.load(name)
    return split_rows(data.dense, data.y, data.train, ~data.train)


def half_of(library: Library, name: str, seed: int) -> TrainTest:
    """A random half, columns scaled to [-1, 1] as LIBSVM scales Gisette (sparse ones to [0, 1]); Colon as it comes."""
    data = pixel_products(library) if name == "4 against 9" else library.load(name)
    return halves(data.X if name in ("colon", "gisette") else scaled(data.X), data.y, seed)


def unit_half(library: Library, name: str, seed: int) -> TrainTest:
    """A random half, columns stretched to [0, 1] and divided by sqrt(D), so that no row is longer than 1."""
    data = library.load(name)
    return halves((scaled(data.dense) + 1.0) / (2.0 * np.sqrt(data.X.shape[1])), data.y, seed)


def scaled(X: Any) -> Any:
    """Columns stretched to [-1, 1]; of a sparse matrix divided by their largest value; constant ones become zero."""
    if not isinstance(X, np.ndarray):
        most = np.asarray(abs(X).max(axis=0).todense()).ravel()
        return (X @ scipy_sparse.diags(1.0 / np.where(most > 0, most, 1.0))).tocsr()
    low, high = X.min(axis=0), X.max(axis=0)
    return np.where(high > low, 2.0 * (X - low) / np.where(high > low, high - low, 1.0) - 1.0, 0.0)


def pixel_products(library: Library) -> DataSet:
    """A small Gisette, in Gisette's proportions: digits 4 and 9, their pixels and products of random pairs of them."""
    digits = library.load("usps")
    kept = (digits.y == 4) | (digits.y == 9)
    pixels = (digits.dense[kept] + 1.0) / 2.0
    n = len(pixels)
    pairs = np.random.default_rng(2003).integers(0, pixels.shape[1], (max(5 * n // 7 - pixels.shape[1], 0), 2))
    X = np.column_stack([pixels, pixels[:, pairs[:, 0]] * pixels[:, pairs[:, 1]]])
    return DataSet(X, np.where(digits.y[kept] == 9, 1.0, -1.0))


def fits(rows: TrainTest, method: str, deltas: Array) -> list[tuple[Any, float]]:
    """For every delta the result and its log-loss on the test rows, in nats; by X X' where that is smaller."""
    X, found = as_design(rows.X, "X"), []
    gram = X.outer_gram(np.ones(X.shape[1])) if X.shape[1] > X.shape[0] and method != "mean-field" else None
    for delta in map(float, deltas):
        latent = latents.Weights(X, cov=delta) if gram is None else latents.Weights.with_gram(
            X, 0.0, delta, delta * gram)
        result = FIT[method](latent, SITE, rows.y)
        m, v = result.posterior.latent.predict(result.posterior, rows.X_test)
        found.append((result, -float(SITE.predict(m, v).log_density(rows.y_test).mean())))
    return found


def sweep(rows: TrainTest, method: str, deltas: Array) -> Found:
    """All values of delta; the one that the method itself prefers, and what the test rows say of it."""
    begin = time.process_time()
    made = fits(rows, method, deltas)
    found: Found = {"log10_delta": np.log10(deltas).round(6), "loss": [loss for _, loss in made],
                    "failed": sum(not result.converged for result, _ in made)}
    if method == "MAP":
        found["cross_validation"] = cross_validated(rows, deltas)
        chosen = int(np.argmin(found["cross_validation"]))
    else:
        found["negative_bound"] = [-float(result.bound) for result, _ in made]
        chosen = int(np.argmin(found["negative_bound"]))
    return {**found, "chosen": chosen, "rows": rows.X.shape[0], "columns": rows.X.shape[1],
            "seconds": time.process_time() - begin}


def cross_validated(rows: TrainTest, deltas: Array) -> list[float]:
    """Mean log-loss of the mode on rows left out, for every delta."""
    fold = np.random.default_rng(0).permutation(len(rows.y)) % FOLDS
    total = np.zeros(len(deltas))
    for one in range(FOLDS):
        part = split_rows(rows.X, rows.y, np.flatnonzero(fold != one), np.flatnonzero(fold == one))
        total += [len(part.y_test) * loss for _, loss in fits(part, "MAP", deltas)]
    return [float(value) for value in total / len(rows.y)]


def grid(ends: tuple[float, float], size: Size) -> Array:
    """Values of delta: thirty as in the paper, or every so many of them."""
    return np.logspace(*ends, POINTS)[:: {"full": 1, "quick": 7, "tiny": 14}[size]]


def jobs(library: Library, name: str, rows: Callable[..., TrainTest], ends: tuple[float, float], splits: int,
         chosen: Sequence[str], size: Size, source: str = "") -> list[Job]:
    """A job for every method and split of a data set."""
    def work(method: str, seed: int, _: Results) -> Found:
        return sweep(rows(library, source or name, seed), method, grid(ends, size))

    return [Job(f"{name}/{method}/{seed}", partial(work, method, seed)) for method in chosen for seed in range(splits)]


def plan_table2(library: Library, size: Size) -> list[Job]:
    """a1a, Colon over the printed range, over a range that holds its optimum, and in a scaling that suits the range."""
    splits = {"full": 10, "quick": 3, "tiny": 1}[size]
    few = ("MAP", "mean-field", "proximal", "default")
    return [*jobs(library, "a1a", official, NARROW, 1, tuple(FIT), size),
            *jobs(library, "colon", half_of, WIDE, splits, few, size),
            *jobs(library, "colon, smaller delta", half_of, BELOW, splits, few, size, source="colon"),
            *jobs(library, "colon, rows within 1", unit_half, WIDE, splits, few, size, source="colon")]


def plan_gisette(library: Library, size: Size) -> list[Job]:
    """Gisette itself where it can be had, else the sets that stand in for it."""
    few = ("MAP", "mean-field", "proximal", "default")
    if library.has("gisette"):
        return jobs(library, "gisette", half_of, WIDE, 1, few, size)
    names = {"full": ("4 against 9", "madelon", "arcene", "dexter"), "quick": ("4 against 9", "arcene", "dexter"),
             "tiny": ("4 against 9", "dexter")}[size]
    return [job for name in names for job in jobs(library, name, half_of, WIDE, 1, few, size)]


def table(results: Results, title: str) -> list[PaperTable]:
    """Ours beside the paper's, a row for every method of every set."""
    parts = by_parts(results)
    rows = []
    for name, method in dict.fromkeys(key[:2] for key in parts):
        records = [found for key, found in parts.items() if key[:2] == (name, method)]
        printed = PAPER.get(name, {}).get(method, (NOTHING, NOTHING, NOTHING))
        evidence = [record["negative_bound"][record["chosen"]] for record in records if "negative_bound" in record]
        loss = [record["loss"][record["chosen"]] for record in records]
        delta = np.mean([record["log10_delta"][record["chosen"]] for record in records])
        size = f"{records[0]['rows']} x {records[0]['columns']}"
        rows.append((name, size, method, with_error(evidence, 2), printed[0],
                     with_error([value / np.log(2) for value in loss], 3), with_error(loss, 3), printed[1],
                     f"{10**delta:.2g}", seconds(float(np.mean([record["seconds"] for record in records]))), printed[2],
                     f"{sum(record['failed'] for record in records)}"))
    heads = ("set", "rows x columns", "method", "-log evidence", "paper", "loss, bits", "nats", "paper", "delta", "CPU",
             "paper's", "not converged")
    return [PaperTable(title, heads, tuple(rows), left=3)]


LINES = {"default": (BLUE, "o"), "proximal": (ORANGE, "s"), "Cholesky": (INK, "x"), "mean-field": (PINK, "v"),
         "MAP": (GREEN, "^")}


def draw(results: Results, path: Path) -> None:
    """Evidence and log-loss over delta, first split of every set."""
    from matplotlib.ticker import LogFormatter
    parts = by_parts(results)
    names = list(dict.fromkeys(key[0] for key in parts))
    with panels(path, 2, len(names), (3.6 * len(names), 6.2), sharex="col") as (_, axes):
        for column, name in enumerate(names):
            for method, (colour, marker) in LINES.items():
                found = parts.get((name, method, "0"))
                if found is None:
                    continue
                x, chosen = found["log10_delta"], found["chosen"]
                for ax, key in ((axes[0, column], "negative_bound"), (axes[1, column], "loss")):
                    if key not in found:
                        continue
                    line = np.array(found[key], dtype=float) / (1.0 if key == "negative_bound" else np.log(2))
                    broad = 5.0 if method == "default" else 1.2  # others lie on it
                    ax.plot(x, line, color=colour, marker=marker, ms=3, lw=broad, alpha=0.45 if broad > 2 else 1.0,
                            label=method)
                    ax.plot(x[chosen], line[chosen], marker=marker, ms=10, mfc="none", mec=colour, mew=1.8)
            axes[0, column].set(title=name, yscale="log", ylim=_ends(parts, name, "negative_bound", 1.0))
            axes[1, column].set_ylim(_ends(parts, name, "loss", np.log(2)))
            axes[0, column].yaxis.set_major_formatter("{x:g}")
            axes[0, column].yaxis.set_minor_formatter(LogFormatter())
            axes[1, column].set(xlabel="log10 delta")
        axes[0, 0].set_ylabel("negative log evidence, nats")
        axes[1, 0].set_ylabel("log-loss of the test rows, bits")
        axes[1, 0].legend()


def _ends(parts: dict[tuple[str, ...], Found], name: str, key: str, unit: float) -> tuple[float, float]:
    """Room for everyone but the proximal rule, which may end anywhere where it does not converge."""
    values = np.concatenate([np.array(found[key], dtype=float) / unit for (one, method, split), found in parts.items()
                             if one == name and method != "proximal" and split == "0" and key in found])
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    return 0.94 * low, 1.06 * high


def look(library: Library, name: str, _: Results) -> Found:
    """Shape, target, and what may surprise: repeated rows, constant columns."""
    data = library.load(name)
    X = data.dense
    return {"rows": X.shape[0], "columns": X.shape[1], "positive": int((data.y > 0).sum()),
            "repeated_rows": int(len(X) - len(np.unique(X, axis=0))),
            "constant_columns": int((X.min(axis=0) == X.max(axis=0)).sum())}


def data_tables(results: Results) -> list[PaperTable]:
    """Ours beside theirs."""
    rows = []
    for name, found in results.items():
        model, n, d, train, splits, grid = PRINTED[name]
        rows.append((name, model, grid, f"{found['rows']:,}", f"{n:,}", f"{found['columns']:,}", f"{d:,}",
                     f"{found['repeated_rows']:,}", str(found["constant_columns"]), train, str(splits)))
    heads = ("set", "model", "hyperparameters", "N", "paper", "D", "paper", "repeated rows", "constant columns",
             "train", "splits")
    return [PaperTable("[A] Table 1: data sets and grids", heads, tuple(rows), left=3)]


TABLE1 = Experiment(lambda library, size: [Job(name, partial(look, library, name)) for name in PRINTED], data_tables)
TABLE2 = Experiment(plan_table2, lambda results: table(results, "[A] Table 2: Bayesian logistic regression"), draw)
GISETTE = Experiment(
    plan_gisette, lambda results: table(results, "[B] Table 2: Gisette, or what stands in for it"), draw)
