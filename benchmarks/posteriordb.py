"""klimb against the reference posteriors of posteriordb: means in sd, ratios of sd, for every model it can express.

    python -m benchmarks.posteriordb [directory]     a table (the directory, or KLIMB_POSTERIORDB)

Each model becomes a latent, a site and a few hyperparameters that are averaged over (`klimb.infer.integrate`).
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
from klimb.infer.evidence import optimise
from klimb.infer.hyper import Hypermodel
from klimb.infer.integrate import Integrated, integrate, mix_moments
from klimb.trust import HyperTrust, hyper_trust

Density = Callable[[float], tuple[float, float]]  # of a positive parameter: log density and d / d log parameter
FLAT = 1e6  # prior variance of a coefficient without a prior, in units of var(y) / var(column)


def flat(s: float) -> tuple[float, float]:
    return 0.0, 0.0


def half_normal(scale: float) -> Density:
    return lambda s: (-0.5 * (s / scale) ** 2, -((s / scale) ** 2))


def half_t(df: float, scale: float) -> Density:
    def density(s: float) -> tuple[float, float]:
        r = (s / scale) ** 2 / df
        return -0.5 * (df + 1) * float(np.log1p(r)), -(df + 1) * r / (1 + r)

    return density


def gamma(shape: float, rate: float) -> Density:
    return lambda s: ((shape - 1) * float(np.log(s)) - rate * s, shape - 1 - rate * s)


@dataclass(frozen=True, eq=False)
class Regression(Hypermodel):
    """y ~ N(X b, s) with a Gaussian prior on b and any on s; theta = log s."""

    X: np.ndarray
    mean: np.ndarray
    variance: np.ndarray
    prior: Density
    scale: float

    names = ("log sigma",)

    @property
    def theta(self) -> np.ndarray:
        return np.log([self.scale])

    @property
    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        return np.log([self.scale * 1e-4]), np.log([self.scale * 1e4])

    def with_theta(self, theta: Any) -> Regression:
        return replace(self, scale=float(np.exp(np.asarray(theta)[0])))

    @property
    def latent(self) -> Any:
        return klimb.latents.Weights(self.X, mean=self.mean, cov=self.variance, form="primal")

    @property
    def site(self) -> Any:
        return klimb.sites.Gaussian(self.scale)

    def gradient(self, posterior: Any, y: Any) -> np.ndarray:
        error = (np.asarray(y) - posterior.m) ** 2 + posterior.v
        return np.array([float((error / self.scale**2 - 1.0).sum())])

    def log_prior(self) -> tuple[float, Any]:
        value, slope = self.prior(self.scale)
        return value + float(np.log(self.scale)), np.array([slope + 1.0])  # per unit of log s


@dataclass(frozen=True, eq=False)
class Process(Hypermodel):
    """f ~ GP(0, alpha^2 exp(-d^2 / (2 rho^2))), Poisson counts or noise of variance sigma; theta their logs."""

    x: np.ndarray
    counts: bool
    rho: float = 5.0
    alpha: float = 1.0
    sigma: float = 0.5

    @property
    def names(self) -> tuple[str, ...]:
        return ("log rho", "log alpha") if self.counts else ("log rho", "log alpha", "log sigma")

    @property
    def theta(self) -> np.ndarray:
        return np.log([self.rho, self.alpha, self.sigma])[: len(self.names)]

    @property
    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        return np.full(len(self.names), np.log(1e-3)), np.full(len(self.names), np.log(1e3))

    def with_theta(self, theta: Any) -> Process:
        return replace(self, **dict(zip(("rho", "alpha", "sigma"), np.exp(theta).tolist(), strict=False)))

    @property
    def squares(self) -> np.ndarray:
        return (self.x[:, None] - self.x) ** 2

    @property
    def latent(self) -> Any:
        K = self.alpha**2 * np.exp(-0.5 * self.squares / self.rho**2)
        return klimb.latents.Kernel(K + 1e-10 * np.eye(len(K)))

    @property
    def site(self) -> Any:
        return klimb.sites.Poisson() if self.counts else klimb.sites.Gaussian(float(np.sqrt(self.sigma)))

    def gradient(self, posterior: Any, y: Any) -> np.ndarray:
        latent = posterior.latent
        d_K, K = latent.bound_gradient(posterior), latent.K
        parts = [float((d_K * K * self.squares).sum() / self.rho**2), float(2.0 * (d_K * K).sum())]
        if not self.counts:
            error = (np.asarray(y) - posterior.m) ** 2 + posterior.v
            parts.append(0.5 * float((error / self.sigma - 1.0).sum()))
        return np.array(parts)

    def log_prior(self) -> tuple[float, Any]:
        found = [gamma(25.0, 4.0)(self.rho), half_normal(2.0)(self.alpha), half_normal(1.0)(self.sigma)]
        used = found[: len(self.names)]
        return sum(value for value, _ in used) + float(self.theta.sum()), np.array([slope + 1.0 for _, slope in used])


# -- the models


def regression(X: np.ndarray, y: np.ndarray, prior: Density, mean: Any = 0.0, variance: Any = None) -> Regression:
    columns = X.shape[1]
    if variance is None:  # flat
        size = np.sqrt((X**2).mean(0))
        spread = np.where(X.std(0) > 0, X.std(0), size)
        variance = FLAT * np.var(y) / np.minimum(spread, size) ** 2
    start = float(np.std(y - X @ np.linalg.lstsq(X, y, rcond=None)[0]))
    return Regression(X, np.broadcast_to(mean, (columns,)), np.broadcast_to(variance, (columns,)), prior, start)


def build(name: str, data: dict[str, np.ndarray]) -> tuple[Hypermodel, np.ndarray] | None:
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
        return regression(np.column_stack([ones(len(y)), x]), y, flat, mean, np.square(sd)), y
    if name.startswith("earnings"):
        y, h, male = np.log(data["earn"]), data["height"], data["male"]
        return regression(np.column_stack([ones(len(y)), h, male, h * male]), y, flat), y
    if name.startswith("mesquite"):
        logs = [np.log(data[key]) for key in ("diam1", "diam2", "canopy_height", "total_height", "density")]
        y = np.log(data["weight"])
        return regression(np.column_stack([ones(len(y)), *logs, data["group"]]), y, flat), y
    if name.startswith("nes"):
        y, age = data["partyid7"], data["age_discrete"]
        groups = [(age == level).astype(float) for level in (2, 3, 4)]
        X = np.column_stack([ones(len(y)), data["real_ideo"], data["race_adj"], *groups, data["educ1"], data["gender"],
                             data["income"]])
        return regression(X, y, flat), y
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
        return Process(data["x"], True), data["k"]
    if name == "gp_pois_regr-gp_regr":
        return Process(data["x"], False), data["y"]
    if name.startswith("eight_schools"):
        return Groups(data["sigma"]), data["y"]
    return None


def moments(name: str, found: Integrated, corrected: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Means and sds of the reference's parameters, in its order; ``corrected`` by the trust reports of all fits.

    Corrected marginals replace q's, and the points are weighted by the log evidence instead of its bound.
    """
    posteriors = [result.posterior for result in found.results]
    w = found.weights
    if corrected:
        w = w * np.exp([result.trust.kl for result in found.results])
        w = w / w.sum()

    def of_theta(j: int, power: float = 1.0) -> tuple[float, float]:
        values = np.exp(power * found.theta[:, j])
        mean = float(w @ values)
        return mean, float(w @ values**2) - mean**2

    if name.startswith("gp_pois"):
        hyper = [of_theta(j) for j in range(found.theta.shape[1])]
        if name.endswith("gp_regr"):
            pairs = hyper
        else:
            exact = [result.corrected for result in found.results] if corrected else []
            f = [(e.mean, e.sd**2) for e in exact] if corrected else [(p.m, p.v) for p in posteriors]
            m, v = mix_moments(w, f)
            pairs = [*hyper, *zip(m, v, strict=True)]
    elif name.startswith("eight"):
        m, v = mix_moments(w, [(p.m, p.v) for p in posteriors])
        mu = mix_moments(w, [(p.mean[:1], np.diag(p.covariance())[:1]) for p in posteriors])
        pairs = [*zip(m, v, strict=True), (float(mu[0][0]), float(mu[1][0])), of_theta(0)]
    else:
        m, v = mix_moments(w, [(p.mean, np.diag(p.covariance())) for p in posteriors])
        pairs = [*zip(m, v, strict=True), of_theta(0)]
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
    trust: HyperTrust
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
    best = optimise(*model)
    found = integrate(*model, optimum=best)
    m, s = moments(name, found)
    seconds = time.process_time() - begin
    report = hyper_trust(best, integrated=found)
    m2, s2 = moments(name, found, corrected=True) if name.endswith("gp_pois_regr") else (m, s)
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
