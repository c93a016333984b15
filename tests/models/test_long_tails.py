"""A field whose sd and range grow together: a ridge with a long tail, which sds rest on."""

import numpy as np
import pytest
from scipy.sparse import csc_array, diags_array
from scipy.sparse.linalg import splu
from scipy.special import kv

import klimb

RANGE_RATE = 0.3 * np.log(2.0)  # of pc_range(0.3, 0.5): P(range < r) = exp(-rate / r)
PRIORS = {"Intercept": "normal(0, 10)", "sd(spde(a, b))": "exponential(1)", "range(spde(a, b))": "pc_range(0.3, 0.5)",
          "sigma": "exponential(1)"}


def _made(seed: int, n: int = 60) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    places = rng.uniform(size=(n, 2))
    away = np.sqrt(8.0) / 0.4 * np.linalg.norm(places[:, None] - places, axis=2)
    K = np.where(away > 0.0, away * kv(1, np.where(away > 0.0, away, 1.0)), 1.0)
    f = np.linalg.cholesky(K + 1e-9 * np.eye(n)) @ rng.standard_normal(n)
    return places, f + 0.5 * rng.standard_normal(n)


def _truth(mesh, places: np.ndarray, y: np.ndarray) -> dict[str, tuple[float, float]]:
    """Sums over a lattice of log sd, log range and log sigma, with the intercept integrated out in closed form."""
    masses, G = mesh.elements()
    rows = mesh.rows(places)[0].toarray()
    sds, ranges, sigmas = (np.linspace(np.log(low), np.log(high), count)
                           for low, high, count in ((0.1, 12.0, 40), (0.04, 20.0, 48), (0.01, 2.0, 44)))
    s, g = np.exp(sds)[:, None], np.exp(sigmas)
    heights, means, variances = [], [], []
    for log_range in ranges:
        kappa = np.sqrt(8.0) / np.exp(log_range)
        X = splu(csc_array(G + diags_array(kappa**2 * masses))).solve(rows.T)
        values, vectors = np.linalg.eigh((X.T * masses) @ X * 4.0 * np.pi * kappa**2)
        d = s[..., None] ** 2 * np.maximum(values, 0.0) + g[:, None] ** 2
        one, turned = vectors.sum(axis=0), vectors.T @ y
        precision, pull = (one**2 / d).sum(axis=-1) + 0.01, (one * turned / d).sum(axis=-1)
        log_likelihood = -0.5 * (np.log(d).sum(axis=-1) + np.log(precision) + (turned**2 / d).sum(axis=-1)
                                 - pull**2 / precision)
        heights.append(log_likelihood - s - g - RANGE_RATE / np.exp(log_range) + sds[:, None] + sigmas - log_range)
        means.append(pull / precision)
        variances.append(1.0 / precision)
    w = np.exp(np.array(heights) - np.max(heights))
    w /= w.sum()

    def moments(values: np.ndarray, own: np.ndarray | float = 0.0) -> tuple[float, float]:
        mean = float((w * values).sum())
        return mean, float(np.sqrt((w * ((values - mean) ** 2 + own)).sum()))

    return {"sd(spde(a, b))": moments(s[None]), "sigma": moments(g[None, None]),
            "Intercept": moments(np.array(means), np.array(variances))}


@pytest.mark.parametrize("seed", [1, 4])
def test_sds_with_the_far_end_of_a_ridge(seed):
    """Without walks along it the intercept's sd was 22% too large under "trust", as a surrogate made mass up there."""
    places, y = _made(seed)
    data = {"y": y, "a": places[:, 0], "b": places[:, 1]}
    fit = klimb.fit("y ~ spde(a, b, spacing=0.1)", data, priors=PRIORS)
    table = fit.summary()
    rows = {name: (mean, sd) for name, mean, sd in zip(table["name"], table["mean"], table["sd"], strict=True)}
    assert fit.trust.verdict == "trust"
    for name, (mean, sd) in _truth(fit.model.terms[-1]._mesh, places, y).items():
        assert abs(rows[name][0] - mean) <= 0.05 * sd, name
        assert abs(rows[name][1] / sd - 1.0) <= (0.1 if name != "Intercept" else 0.07), name
