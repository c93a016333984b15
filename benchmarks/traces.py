"""[S] Figures 3-5: the bound against time for Gaussian processes, full (500 data) and with 100 inducing points.

    python -m benchmarks.traces [--n 500] [--cap 30] [--only logistic ...] [--picture docs/papers/traces.png]

As in the paper, hyperparameters come from 200 random data and stay fixed, inputs are standardised, inducing points are
random data. FPb, FPi and the proximal step start at the prior and have no safeguard; "FPi from data" is the same rule
from klimb's start. GRAD is L-BFGS on the mean and the Cholesky factor of V. A rule that diverges or leaves the cone
ends where it does, and the legend says so. Times are CPU seconds with one BLAS thread.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import klimb
from benchmarks import problems
from benchmarks.measure import one_thread, save, table
from klimb import kernels, methods, sites, steps
from klimb.infer.evidence import optimise


class Panel(NamedTuple):
    """A data set, its likelihood, what of it is learnt from the first data, and how many inducing points there are."""

    data: str
    site: sites.Site
    learn: tuple[str, ...] = ()
    inducing: int = 0


PANELS = {
    "logistic": Panel("german", sites.Logistic()),
    "Poisson": Panel("flares", sites.Poisson()),
    "Laplace": Panel("boston", sites.Laplace(0.3), ("scale",)),
    "Student-t": Panel("boston", sites.StudentT(3.0, 1 / np.sqrt(3.0))),
    "Laplace, 100 inducing points": Panel("stock", sites.Laplace(0.3), ("scale",), 100),
    "Laplace, 100 inducing points, 3107 data": Panel("space_ga", sites.Laplace(0.3), ("scale",), 100),
}
FEW = 200  # data to choose the hyperparameters by
COLOURS = {"default": "#0b7285", "FPi": "#e8590c", "FPi from data": "#f4a261", "FPb": "#7048e8",
           "proximal": "#2b8a3e", "GRAD": "#868e96"}
MARKS = {"default": "o", "FPi": "s", "FPi from data": "D", "FPb": "^", "proximal": "v", "GRAD": "x"}


def problem(name: str, n: int) -> tuple[Any, np.ndarray]:
    """The model at the hyperparameters that 200 of its data prefer, and its target."""
    panel = PANELS[name]
    data = problems.load(panel.data)
    rows = np.random.default_rng(0).permutation(len(data.y))[: None if panel.inducing else n]
    X, y = problems.standardised(data.X[rows]), data.y[rows]
    if panel.site.response == "real":
        y = (y - y.mean()) / y.std()
    kernel = kernels.RBF(variance=1.0, lengthscale=float(np.sqrt(X.shape[1])))
    best = optimise(klimb.gp(kernel, X[:FEW], panel.site, learn=panel.learn), y[:FEW]).model
    # The jitter is the same for everyone: GRAD factorises K.
    return klimb.gp(best.kernel, X, best.likelihood, inducing=X[: panel.inducing] if panel.inducing else None,
                    jitter=1e-6), y


def rules(model: Any, y: np.ndarray) -> dict[str, Callable[..., Any]]:
    """Each rule as a function of a callback."""
    latent, site = model.latent, model.site

    def by_step(step: Any) -> Callable[..., Any]:
        return lambda callback: klimb.infer(latent, site, y, step=step, max_iter=5000, callback=callback)

    return {
        "default": by_step(None), "FPi": by_step(steps.FixedPoint()),
        "FPi from data": by_step(steps.FixedPoint(start="data")), "FPb": by_step(steps.FixedPoint(batch=True)),
        "proximal": by_step(steps.Proximal(0.25 if isinstance(site, sites.Logistic) else 1.0)),
        "GRAD": lambda callback: methods.cholesky_gradient(latent, site, y, callback=callback),
    }


def traced(run: Callable[..., Any], cap: float) -> dict[str, Any]:
    """The bound after every iteration, with CPU seconds."""
    begin = time.process_time()
    seconds: list[float] = []

    def note(_: Any) -> bool:
        seconds.append(time.process_time() - begin)
        return seconds[-1] < cap

    result = run(note)
    bound = result.history.bound
    seconds += [time.process_time() - begin] * (len(bound) - len(seconds))  # the last one ends without a call
    print(result, flush=True)
    return {"seconds": np.round(seconds[: len(bound)], 4), "bound": bound, "status": result.status.name.lower()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=500)
    parser.add_argument("--cap", type=float, default=30.0, help="CPU seconds for each rule")
    parser.add_argument("--only", nargs="*", default=list(PANELS), choices=list(PANELS))
    parser.add_argument("--picture", type=Path, default=None)
    options = parser.parse_args()
    found: dict[str, Any] = {}
    with one_thread():
        for name in options.only:
            model, y = problem(name, options.n)
            print(name, model.kernel, model.site, flush=True)
            for rule, run in rules(model, y).items():
                found[f"{name}, {rule}"] = traced(run, options.cap)
    best = {name: max(np.nanmax(found[f"{name}, {rule}"]["bound"]) for rule in COLOURS) for name in options.only}
    table("CPU seconds until the bound stays within 1e-3 nats of the best", ["likelihood", *COLOURS],
          [(name, *(arrival(found[f"{name}, {rule}"], best[name]) for rule in COLOURS)) for name in options.only])
    if options.picture is not None:
        draw(found, best, options.picture)
    print("results:", save("traces", found))


def arrival(trace: dict[str, Any], best: float) -> str:
    late = np.flatnonzero(~(trace["bound"] >= best - 1e-3))
    if len(late) and late[-1] == len(trace["bound"]) - 1:
        return f"never ({trace['status']})"
    return f"{trace['seconds'][late[-1] + 1 if len(late) else 0]:.2f}"


def draw(found: dict[str, Any], best: dict[str, float], path: Path) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 3, figsize=(13.0, 7.0), layout="constrained", sharex=True, sharey=True)
    for ax, name in zip(axes.flat, best, strict=False):
        for rule, colour in COLOURS.items():
            trace = found[f"{name}, {rule}"]
            gap = np.maximum(best[name] - np.asarray(trace["bound"]), 1e-7)
            label = rule if trace["status"] == "converged" else f"{rule} ({trace['status'].replace('_', ' ')})"
            ax.plot(np.maximum(trace["seconds"], 1e-3), np.where(gap < 1e7, gap, np.nan), color=colour,
                    marker=MARKS[rule], ms=3.5, lw=1.2, label=label)
        ax.set(xscale="log", yscale="log", title=name, ylim=(5e-8, 5e6))
        ax.grid(alpha=0.25)
        ax.legend(fontsize=8, frameon=False)
    for ax in axes[:, 0]:
        ax.set_ylabel("nats below the best bound")
    for ax in axes[1]:
        ax.set_xlabel("CPU seconds")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
