"""Log densities that are taken to be expensive: few evaluations, two to eight dimensions.

Every target comes with a rough start and scale, as a user has them: off by one and a half standard deviations,
alternately up and down, and twice as wide. Positive parameters are logarithms, probabilities logits, with their
Jacobians.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import boosting_targets as known
from benchmarks.cases.base import Answer, Case, Data

Points = np.ndarray
LOG_2PI = known.LOG_2PI


@dataclass(frozen=True)
class Expensive:
    """A log density of one point or of rows, where to begin, and how wide it may be."""

    dim: int
    values: Callable[[Points], Points]
    start: Points
    scale: Points


def _rough(dim: int, values: Callable[[Points], Points], mean: Points, sd: Points) -> Expensive:
    return Expensive(dim, values, mean + 1.5 * sd * (-1.0) ** np.arange(dim), 2.0 * sd)


def _known(problem: known.Problem) -> Expensive:
    assert problem.mean is not None
    assert problem.sd is not None
    return _rough(problem.dim, problem.values, problem.mean, problem.sd)


def _stored(name: str) -> dict[str, Any]:
    """A file of posteriordb's reference posteriors."""
    folder = os.environ.get("KLIMB_POSTERIORDB") or Path(__file__).resolve().parents[3] / "shared" / "posteriordb"
    with np.load(Path(folder) / f"{name}.npz", allow_pickle=False) as stored:
        return {key: stored[key] for key in stored.files}


def _linear(name: str, X: Points, y: Points, log_prior: Callable[[Points, Points], Points]) -> Expensive:
    """y ~ N(X b, s) in (b, log s); ``log_prior`` of b and s."""
    stored, (n, d) = _stored(name), X.shape
    gram, pull, total = X.T @ X, X.T @ y, float(y @ y)

    def values(U: Points) -> Points:
        b, log_s = U[..., :d], U[..., d]
        loss = total - 2.0 * b @ pull + np.einsum("...i,ij,...j->...", b, gram, b)
        s = np.exp(log_s)
        return -0.5 * loss / s**2 - n * log_s + log_prior(b, s) + log_s

    mean, sd = stored["mean"].copy(), stored["sd"].copy()
    mean[d], sd[d] = np.log(mean[d]), sd[d] / mean[d]
    return _rough(d + 1, values, mean, sd)


def kidscore() -> Expensive:
    stored = _stored("kidiq-kidscore_momiq")
    X = np.column_stack([np.ones(434), stored["data_mom_iq"]])
    return _linear("kidiq-kidscore_momiq", X, stored["data_kid_score"], lambda b, s: -np.log1p((s / 2.5) ** 2))


def earnings() -> Expensive:
    stored = _stored("earnings-logearn_interaction")
    height, male = stored["data_height"], stored["data_male"]
    X = np.column_stack([np.ones(len(height)), height, male, height * male])
    return _linear("earnings-logearn_interaction", X, np.log(stored["data_earn"]), lambda b, s: 0.0 * s)


def sblrc() -> Expensive:
    stored = _stored("sblrc-blr")
    return _linear("sblrc-blr", stored["data_X"], stored["data_y"], lambda b, s: -0.005 * ((b**2).sum(-1) + s**2))


def ar5() -> Expensive:
    stored = _stored("arK-arK")
    y = stored["data_y"]
    X = np.column_stack([np.ones(195), *(y[5 - k:200 - k] for k in range(1, 6))])
    return _linear("arK-arK", X, y[5:], lambda b, s: -0.005 * (b**2).sum(-1) - np.log1p((s / 2.5) ** 2))


def mesquite() -> Expensive:
    stored = _stored("mesquite-logmesquite")
    names = ("diam1", "diam2", "canopy_height", "total_height", "density")
    X = np.column_stack([np.ones(46), *(np.log(stored[f"data_{name}"]) for name in names), stored["data_group"]])
    return _linear("mesquite-logmesquite", X, np.log(stored["data_weight"]), lambda b, s: 0.0 * s)


def gp_regression() -> Expensive:
    """log rho, log alpha, log sigma of a Gaussian process with variance sigma of the noise."""
    stored = _stored("gp_pois_regr-gp_regr")
    x, y = stored["data_x"], stored["data_y"]
    squares = (x[:, None] - x) ** 2

    def values(U: Points) -> Points:
        logs = np.atleast_2d(U).T
        rho, alpha, sigma = np.exp(np.clip(logs, -30.0, 30.0))
        K = alpha[:, None, None] ** 2 * np.exp(-0.5 * squares / rho[:, None, None] ** 2)
        K = K + (sigma[:, None, None] + 1e-9 * alpha[:, None, None] ** 2) * np.eye(len(x))
        L = np.linalg.cholesky(K)
        white = np.linalg.solve(L, np.broadcast_to(y[:, None], (len(L), len(x), 1)))[..., 0]
        fit = -0.5 * (white**2).sum(-1) - np.log(np.diagonal(L, axis1=1, axis2=2)).sum(-1)
        found = fit + 25.0 * logs[0] - 4.0 * rho - alpha**2 / 8 + logs[1] - 0.5 * sigma**2 + logs[2]
        return found if np.ndim(U) == 2 else found[0]

    return _rough(3, values, np.log(stored["mean"]), stored["sd"] / stored["mean"])


def gauss_mixture() -> Expensive:
    """mu_1, log(mu_2 - mu_1), log sds and the logit of theta."""
    stored = _stored("low_dim_gauss_mix-low_dim_gauss_mix")
    y = stored["data_y"]

    def values(U: Points) -> Points:
        rows = np.atleast_2d(U)
        low, gap, s1, s2, logit = rows.T
        high, log_t, log_r = low + np.exp(gap), -np.logaddexp(0.0, -logit), -np.logaddexp(0.0, logit)
        one = (log_t - s1)[:, None] - 0.5 * ((y - low[:, None]) / np.exp(s1)[:, None]) ** 2
        two = (log_r - s2)[:, None] - 0.5 * ((y - high[:, None]) / np.exp(s2)[:, None]) ** 2
        prior = -(low**2 + high**2 + np.exp(2 * s1) + np.exp(2 * s2)) / 8 + 5.0 * (log_t + log_r) + gap + s1 + s2
        found = np.logaddexp(one, two).sum(axis=1) + prior
        return found if np.ndim(U) == 2 else found[0]

    m, s = stored["mean"], stored["sd"]
    mean = np.array([m[0], np.log(m[1] - m[0]), np.log(m[2]), np.log(m[3]), np.log(m[4] / (1 - m[4]))])
    sd = np.array([s[0], np.hypot(s[0], s[1]) / (m[1] - m[0]), s[2] / m[2], s[3] / m[3], s[4] / (m[4] * (1 - m[4]))])
    return _rough(5, values, mean, sd)


TARGETS: dict[str, Callable[[], Expensive]] = {
    "banana, 2-D": lambda: _known(known.banana()),
    "ring, 2-D": lambda: _known(known.ring()),
    "GP regression, 3-D": gp_regression,
    "GP hyperparameters, 3-D": lambda: _known(known.gp_hyperparameters()),
    "kidscore, 3-D": kidscore,
    "Poisson, 4-D": lambda: _known(known.poisson()),
    "skewed, 4-D": lambda: _known(known.skewed(4)),
    "normal mixture, 5-D": gauss_mixture,
    "earnings, 5-D": earnings,
    "nodal, 6-D": lambda: _known(known.nodal()),
    "sblrc, 6-D": sblrc,
    "AR(5), 7-D": ar5,
    "mesquite, 8-D": mesquite,
}


def klimb(data: Data) -> Answer:
    import klimb as package

    made = TARGETS[data["name"]]()
    q = package.boost(made.values, made.dim, init=made.start, scale=made.scale, max_evaluations=BUDGETS[data["name"]])
    return {"draws": q.sample(DRAWS), "evaluations": q.n_values, "note": q.trust.verdict, "bound": q.bound}


def pyvbmc(data: Data) -> Answer:
    from pyvbmc import VBMC

    made = TARGETS[data["name"]]()
    np.random.seed(0)  # noqa: NPY002
    free = np.full((1, made.dim), np.inf)
    low, high = (made.start - 2 * made.scale)[None], (made.start + 2 * made.scale)[None]
    q, result = VBMC(lambda x: float(made.values(np.atleast_2d(x))[0]), made.start[None], -free, free, low, high,
                     options={"display": "off"}).optimize()
    return {"draws": q.sample(DRAWS)[0], "evaluations": int(result["func_count"]), "bound": float(result["elbo"])}


def truth(made: Expensive, n: int = 200_000) -> tuple[Points, Points]:
    """Points with weights: importance sampling from klimb's default, which takes as many evaluations as it likes."""
    import klimb as package

    q = package.boost(made.values, made.dim, init=made.start, scale=made.scale, tol=0.02)
    wide = [(q.parts.widened(far), share) for far, share in ((0.0, 0.5), (1.0, 0.25), (4.0, 0.25))]
    X = np.concatenate([parts.draws(int(share * n), j) for j, (parts, share) in enumerate(wide)])
    log_r = np.logaddexp.reduce([np.log(share) + parts.log_density(X) for parts, share in wide])
    log_w = np.concatenate([made.values(part) for part in np.array_split(X, 50)]) - log_r
    w = np.exp(log_w - log_w.max())
    assert w.sum() ** 2 > 0.2 * n * (w @ w), "the truth is not known well enough"
    return X, w / w.sum()


def judge(data: Data, answers: dict[str, Answer]) -> dict[str, float]:
    """The worst marginal total variation, by the truth's own 40 quantiles."""
    X, w = truth(TARGETS[data["name"]]())
    worst = dict.fromkeys(answers, 0.0)
    for j in range(X.shape[1]):
        order = np.argsort(X[:, j])
        edges = X[order, j][np.searchsorted(np.cumsum(w[order]), np.linspace(0, 1, 41)[1:-1])]
        shares = np.histogram(X[:, j], np.r_[-np.inf, edges, np.inf], weights=w)[0]
        for who, answer in answers.items():
            found = np.histogram(answer["draws"][:, j], np.r_[-np.inf, edges, np.inf])[0] / len(answer["draws"])
            worst[who] = max(worst[who], 0.5 * float(np.abs(found - shares).sum()))
    return worst


DRAWS = 100_000
# Evaluations that klimb may take: at most twice what PyVBMC takes when it stops by itself, up to five dimensions.
BUDGETS = {"banana, 2-D": 140, "ring, 2-D": 140, "GP regression, 3-D": 120, "GP hyperparameters, 3-D": 190,
           "kidscore, 3-D": 120, "Poisson, 4-D": 120, "skewed, 4-D": 160, "normal mixture, 5-D": 140,
           "earnings, 5-D": 200, "nodal, 6-D": 160, "sblrc, 6-D": 200, "AR(5), 7-D": 200, "mesquite, 8-D": 300}


def case(name: str) -> Case:
    return Case(lambda n: {"name": name}, (1,), {"klimb": klimb, "PyVBMC": pyvbmc}, judge,
                "worst marginal total variation from the truth")


CASES = {f"expensive: {name}": case(name) for name in TARGETS}
