"""klimb against the reference posteriors of posteriordb: means in sd, ratios of sd, for every model it can express.

    python -m benchmarks.posteriordb [directory]     a table (the directory, or KLIMB_POSTERIORDB)

Each model becomes a latent, a site and a few hyperparameters that are integrated out (`klimb.integrate`).
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import klimb
from benchmarks.trust import Groups
from klimb.latents.costs import Shape
from klimb.likelihoods import from_site
from klimb.models.components import Components
from klimb.models.model import Functionals, Model
from klimb.numerics.mixtures import mixture_moments
from klimb.priors import PositivePrior
from klimb.theta import PositiveParameter, Theta

FLAT = 1e6  # prior variance of a coefficient without a prior, in units of var(y) / var(column)


@dataclass(frozen=True)
class Density(PositivePrior):
    """Of a positive parameter: a function that gives the log density and d / d log parameter."""

    both: Callable[[float], tuple[float, float]]

    def log_density(self, value: float) -> float:
        return self.both(value)[0]

    def slope(self, value: float) -> float:
        return self.both(value)[1]

    def typical(self) -> float:
        return 1.0

    def __str__(self) -> str:
        return "given"


FLAT_SCALE = Density(lambda s: (0.0, 0.0))


def half_normal(scale: float) -> Density:
    return Density(lambda s: (-0.5 * (s / scale) ** 2, -((s / scale) ** 2)))


def half_t(df: float, scale: float) -> Density:
    def density(s: float) -> tuple[float, float]:
        r = (s / scale) ** 2 / df
        return -0.5 * (df + 1) * float(np.log1p(r)), -(df + 1) * r / (1 + r)

    return Density(density)


def gamma(shape: float, rate: float) -> Density:
    return Density(lambda s: ((shape - 1) * float(np.log(s)) - rate * s, shape - 1 - rate * s))


class Written(Model):
    """A model written out by hand: its site and its gradient are its own."""

    form = "Weights"

    def _moved(self, at: Any) -> Written:
        return replace(self, at=at)  # type: ignore[type-var]

    def prior_gradient(self, posterior: Any) -> np.ndarray:
        return np.zeros(self.theta.size)

    def prepare(self, new: Any) -> Any:
        return self.rows

    def functionals(self, prepared: Any) -> Functionals:
        rows = self.rows  # those at the present theta
        return Functionals(rows, np.diag(rows).copy() if self.form == "Kernel" else np.zeros(len(rows)),
                           np.zeros(len(rows)))

    def shape(self) -> Shape:
        return Shape(len(self.rows), self.rows.shape[1], self.rows.size, kernel=self.form == "Kernel")


@dataclass(frozen=True, eq=False)
class Regression(Written):
    """y ~ N(X b, s) with a Gaussian prior on b and any on s; theta = log s."""

    rows: np.ndarray
    mean: np.ndarray
    variance: np.ndarray
    theta: Theta
    at: np.ndarray

    likelihood = from_site(klimb.sites.Gaussian(1.0))

    @property
    def scale(self) -> float:
        return float(np.exp(self.at[0]))

    @property
    def latent(self) -> Any:
        return klimb.latents.Weights(self.rows, mean=self.mean, cov=self.variance, form="primal")

    def site(self, data: Any) -> Any:
        return klimb.sites.Gaussian(self.scale)

    def gradient(self, posterior: Any, data: Any) -> np.ndarray:
        error = (data.y - posterior.m) ** 2 + posterior.v
        return np.array([float((error / self.scale**2 - 1.0).sum())])


@dataclass(frozen=True, eq=False)
class Process(Written):
    """f ~ GP(0, alpha^2 exp(-d^2 / (2 rho^2))), Poisson counts or noise of variance sigma; theta their logs."""

    x: np.ndarray
    counts: bool
    theta: Theta
    at: np.ndarray

    form = "Kernel"

    @property
    def likelihood(self) -> Any:
        return from_site(klimb.sites.Poisson() if self.counts else klimb.sites.Gaussian(1.0))

    @property
    def squares(self) -> np.ndarray:
        return (self.x[:, None] - self.x) ** 2

    @property
    def rows(self) -> np.ndarray:
        rho, alpha = np.exp(self.at[:2])
        return alpha**2 * np.exp(-0.5 * self.squares / rho**2) + 1e-10 * np.eye(len(self.x))

    @property
    def latent(self) -> Any:
        return klimb.latents.Kernel(self.rows)

    def site(self, data: Any) -> Any:
        return klimb.sites.Poisson() if self.counts else klimb.sites.Gaussian(float(np.exp(0.5 * self.at[2])))

    def gradient(self, posterior: Any, data: Any) -> np.ndarray:
        latent = posterior.latent
        d_K, K = latent.bound_gradient(posterior), latent.K
        parts = [float((d_K * K * self.squares).sum() / np.exp(2 * self.at[0])), float(2.0 * (d_K * K).sum())]
        if not self.counts:
            error = (data.y - posterior.m) ** 2 + posterior.v
            parts.append(0.5 * float((error / np.exp(self.at[2]) - 1.0).sum()))
        return np.array(parts)


def process(x: np.ndarray, counts: bool) -> Process:
    """With the reference's priors."""
    blocks = [PositiveParameter("rho", gamma(25.0, 4.0), 5.0), PositiveParameter("alpha", half_normal(2.0), 1.0),
              PositiveParameter("sigma", half_normal(1.0), 0.5)][: 2 if counts else 3]
    theta = Theta.of(blocks)
    return Process(x, counts, theta, theta.start)


# -- the models


def regression(X: np.ndarray, y: np.ndarray, prior: Density, mean: Any = 0.0, variance: Any = None) -> Regression:
    columns = X.shape[1]
    if variance is None:  # flat
        size = np.sqrt((X**2).mean(0))
        spread = np.where(X.std(0) > 0, X.std(0), size)
        variance = FLAT * np.var(y) / np.minimum(spread, size) ** 2
    start = float(np.std(y - X @ np.linalg.lstsq(X, y, rcond=None)[0]))
    theta = Theta.of([PositiveParameter("sigma", prior, start, unit=start)])
    return Regression(X, np.broadcast_to(mean, (columns,)), np.broadcast_to(variance, (columns,)), theta, theta.start)


def build(name: str, data: dict[str, np.ndarray]) -> tuple[Model, np.ndarray] | None:
    """A model and its data; None for what is no latent Gaussian model."""
    ones = lambda n: np.ones(int(n))  # noqa: E731
    if name in ("sblrc-blr", "sblri-blr"):
        X, y = data["X"], data["y"]
        return regression(X, y, half_normal(10.0), variance=100.0), y
    if name.startswith("kidiq"):
        y, hs, iq = data["kid_score"], data["mom_hs"], data["mom_iq"]
        columns = [ones(len(y)), iq] if name.endswith("momiq") else [ones(len(y)), hs, iq, hs * iq]
        return regression(np.column_stack(columns), y, half_t(1.0, 2.5)), y
    if name.startswith("kilpisjarvi"):
        y, x = data["y"], data["x"]
        mean, sd = ([float(data[key + name]) for name in ("alpha", "beta")] for key in ("pmu", "ps"))
        return regression(np.column_stack([ones(len(y)), x]), y, FLAT_SCALE, mean, np.square(sd)), y
    if name.startswith("earnings"):
        y, h, male = np.log(data["earn"]), data["height"], data["male"]
        return regression(np.column_stack([ones(len(y)), h, male, h * male]), y, FLAT_SCALE), y
    if name.startswith("mesquite"):
        logs = [np.log(data[key]) for key in ("diam1", "diam2", "canopy_height", "total_height", "density")]
        y = np.log(data["weight"])
        return regression(np.column_stack([ones(len(y)), *logs, data["group"]]), y, FLAT_SCALE), y
    if name.startswith("nes"):
        y, age = data["partyid7"], data["age_discrete"]
        groups = [(age == level).astype(float) for level in (2, 3, 4)]
        X = np.column_stack([ones(len(y)), data["real_ideo"], data["race_adj"], *groups, data["educ1"], data["gender"],
                             data["income"]])
        return regression(X, y, FLAT_SCALE), y
    if name.startswith("diamonds"):  # the t prior of the intercept has no weight beside 5000 data: a normal stands in
        X, y = data["X"][:, 1:], data["Y"]
        X = np.column_stack([X - X.mean(0), ones(len(y))])
        variance = np.append(np.ones(X.shape[1] - 1), 300.0)
        return regression(X, y, half_t(3.0, 10.0), np.append(np.zeros(X.shape[1] - 1), 8.0), variance), y
    if name.startswith("arK"):
        y, K = data["y"], int(data["K"])
        lags = [y[K - k : len(y) - k] for k in range(1, K + 1)]
        return regression(np.column_stack([ones(len(y) - K), *lags]), y[K:], half_t(1.0, 2.5), variance=100.0), y[K:]
    if name == "gp_pois_regr-gp_pois_regr":
        return process(data["x"], True), data["k"]
    if name == "gp_pois_regr-gp_regr":
        return process(data["x"], False), data["y"]
    if name.startswith("eight_schools"):
        return Groups(data["sigma"]), data["y"]
    return None


def moments(name: str, model: Model, y: np.ndarray, found: Components,
            corrected: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Means and sds of the reference's parameters, in its order; ``corrected`` by the trust reports of all fits.

    Corrected marginals replace q's, and the points are weighted by the log evidence instead of its bound.
    """
    data = model.read(y)
    results = [model.moved(theta).infer(data) for theta in found.theta] if corrected else []
    w = found.weights
    if corrected:
        w = w * np.exp([result.trust.kl for result in results])
        w = w / w.sum()

    def of_theta(j: int) -> tuple[float, float]:
        theta, weights = (found.theta, w) if corrected else found.marginal_points
        values = np.exp(theta[:, j])
        mean = float(weights @ values)
        return mean, float(weights @ values**2) - mean**2

    f = found.at(model, model.prepare(None))
    m, v = mixture_moments(w, f.m, f.v)
    weights = [(part.mean, part.sd() ** 2) for part in found.parts] if not name.startswith("gp_pois") else []
    if weights:
        b, s = mixture_moments(w, np.array([mean for mean, _ in weights]), np.array([var for _, var in weights]))
    if name.startswith("gp_pois"):
        hyper = [of_theta(j) for j in range(found.theta.shape[1])]
        if corrected:
            exact = [result.corrected for result in results]
            m, v = mixture_moments(w, np.array([e.mean for e in exact]), np.array([e.sd**2 for e in exact]))
        pairs = hyper if name.endswith("gp_regr") else [*hyper, *zip(m, v, strict=True)]
    elif name.startswith("eight"):
        pairs = [*zip(m, v, strict=True), (float(b[0]), float(s[0])), of_theta(0)]
    else:
        pairs = [*zip(b, s, strict=True), of_theta(0)]
    both = np.array(pairs, dtype=float)
    return both[:, 0], np.sqrt(both[:, 1])


@dataclass(frozen=True, eq=False)
class Comparison:
    """Errors of all parameters of one posterior: means in reference sd, ratios of sd; None where klimb has no model."""

    name: str
    mean_error: np.ndarray
    sd_ratio: np.ndarray
    corrected_error: np.ndarray  # the same two after correction
    corrected_ratio: np.ndarray
    trust: Any  # of the fit at the best hyperparameters
    seconds: float


def compare(path: Path) -> Comparison | None:
    name = path.stem
    with np.load(path, allow_pickle=False) as stored:
        data = {key[5:]: stored[key] for key in stored.files if key.startswith("data_")}
        mean, sd = stored["mean"], stored["sd"]
    model = build(name, data)
    if model is None:
        return None
    begin = time.process_time()
    found = klimb.integrate(*model).components
    m, s = moments(name, *model, found)
    seconds = time.process_time() - begin
    report = klimb.trust(klimb.optimise(*model))
    m2, s2 = moments(name, *model, found, corrected=True) if name.endswith("gp_pois_regr") else (m, s)
    return Comparison(name, (m - mean) / sd, s / sd, (m2 - mean) / sd, s2 / sd, report, seconds)


def main(arguments: list[str]) -> None:
    directory = Path(arguments[0] if arguments else os.environ.get("KLIMB_POSTERIORDB", "posteriordb"))
    print("| posterior | parameters | largest error of a mean (sd) | sd ratio | verdict at fixed hyperparameters |")
    print("|---|---|---|---|---|")
    for path in sorted(directory.glob("*.npz")):
        found = compare(path)
        if found is None:
            print(f"| {path.stem} | | not a latent Gaussian model | | |")
            continue
        print(f"| {found.name} | {len(found.mean_error)} | {np.abs(found.mean_error).max():.3f} | "
              f"{found.sd_ratio.min():.3f} to {found.sd_ratio.max():.3f} | {found.trust.verdict} |")
        if np.any(found.corrected_ratio != found.sd_ratio):
            print(f"| the same, corrected | | {np.abs(found.corrected_error).max():.3f} | "
                  f"{found.corrected_ratio.min():.3f} to {found.corrected_ratio.max():.3f} | |")


if __name__ == "__main__":
    main(sys.argv[1:])
