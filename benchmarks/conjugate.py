"""Conjugate models beside scikit-learn's: ``python -m benchmarks.conjugate [--only PART ...]``.

Parts: ``mixture`` (Gaussian mixture, N = 100,000, D = 10, K = 10), ``topics`` (latent Dirichlet allocation, K = 20, on
word counts of reuters and imdb), ``factorisation`` (1e6 observed entries, rank 20, against a point estimate). Both
libraries begin at the same place; bounds are evaluated by one function, ours, on the factors that each returns. One
BLAS thread, CPU seconds.
"""

from __future__ import annotations

import argparse
import warnings
from time import process_time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.measure import one_thread, save, table
from benchmarks.problems import load
from klimb.conjugate import categorical, dirichlet, mixture, normal_wishart, topics
from klimb.conjugate.families import Categorical, Dirichlet, NormalWishart
from klimb.conjugate.loop import Network, prior_state
from klimb.conjugate.models import gaussian_mixture, latent_dirichlet, matrix_factorisation

Found = dict[str, Any]


def mixture_part() -> Found:
    """Time to the bound that scikit-learn reaches, from the same first shares."""
    rng = np.random.default_rng(0)
    N, D, K = 100_000, 10, 10
    centres, shapes = 0.5 * rng.normal(size=(K, D)), rng.normal(size=(K, D, D)) / np.sqrt(D)
    label = rng.integers(0, K, N)
    X = np.einsum("nij,nj->ni", shapes[label], rng.normal(size=(N, D))) + centres[label]
    from sklearn.cluster import KMeans
    from sklearn.mixture import BayesianGaussianMixture

    begin = process_time()
    shares = np.eye(K)[KMeans(K, n_init=1, random_state=0).fit(X).labels_]
    first = process_time() - begin

    class Started(BayesianGaussianMixture):
        def _initialize_parameters(self, X: Any, *rest: Any, **more: Any) -> None:
            self._initialize(X, shares)

    rows: list[list[Any]] = []
    spread = np.cov(X.T)
    for tol in (1e-2, 1e-3, 1e-4, 1e-5):
        rival = Started(n_components=K, weight_concentration_prior_type="dirichlet_distribution", tol=tol,
                        max_iter=2000, weight_concentration_prior=1 / K, mean_precision_prior=1.0, mean_prior=X.mean(0),
                        degrees_of_freedom_prior=D, covariance_prior=D * spread)
        begin = process_time()
        rival.fit(X)
        seconds = process_time() - begin
        found = NormalWishart(rival.means_ - X.mean(0), rival.mean_precision_, rival.degrees_of_freedom_,
                              rival.covariances_ * rival.degrees_of_freedom_[:, None, None])
        height = mixture_bound(X, found, Dirichlet(rival.weight_concentration_), D * spread)
        rows.append([f"scikit-learn, tol {tol:g}", seconds, rival.n_iter_, height])
    for name, more in (("klimb, sweeps", {}), ("klimb, batches of 10,000", {"batch": 10_000})):
        for tol in (1e-6, 1e-8):
            begin = process_time()
            model = gaussian_mixture(X, K, start=shares, tol=tol, **more)  # type: ignore[arg-type]
            seconds = process_time() - begin
            rows.append([f"{name}, tol {tol:g}", seconds, model.fit.n_iter, model.fit.bound])
    table(f"Gaussian mixture, N = {N}, D = {D}, K = {K} (k-means before: {first:.2f} s)",
          ["", "CPU s", "sweeps", "nats below the best"], below_best(rows))
    return {"rows": rows, "kmeans": first}


def below_best(rows: list[list[Any]]) -> list[list[Any]]:
    """The last column, a bound, as a distance from the best."""
    best = max(row[-1] for row in rows)
    return [[*row[:-1], f"{best - row[-1]:.2f}"] for row in rows]


def mixture_bound(X: NDArray[np.float64], found: NormalWishart, weights: Dirichlet, rate: NDArray[np.float64]) -> float:
    """Our bound at another library's factors, the classes at their optimum."""
    (N, D), K = X.shape, found.plates[0]
    w = dirichlet(np.full(K, 1.0 / K))
    parts = normal_wishart(np.zeros(D), 1.0, float(D), rate, plates=(K,))
    gate = categorical(w, plates=(N,))
    network = Network([mixture(gate, parts).observe(X - X.mean(0))])
    state = prior_state(network.variables)
    state[w] = weights
    state[parts] = found
    state[gate] = Categorical.from_natural(network.optimum(gate, state))
    return network.bound(state)


def topics_part(names: tuple[str, ...] = ("reuters", "imdb")) -> Found:
    """Bound on the training documents against CPU seconds, batch and stochastic."""
    from sklearn.decomposition import LatentDirichletAllocation

    found: Found = {}
    for name in names:
        counts = word_counts(name)
        K, rows = 20, []
        start = np.random.RandomState(0).gamma(100.0, 0.01, (K, counts.shape[1]))
        for method, limits in (("batch", (5, 10, 20)), ("online", (1, 3, 10))):
            for limit in limits if counts.nnz < 1e6 else limits[:1]:
                rival = LatentDirichletAllocation(K, learning_method=method, max_iter=limit, random_state=0,
                                                  batch_size=1024)
                begin = process_time()
                rival.fit(counts)
                rows.append([f"scikit-learn {method}, {limit} passes", process_time() - begin,
                             topics_bound(counts, Dirichlet(rival.components_), 1.0 / K)])
        for label, batch in (("sweeps", None), ("batches of 4096", 4096)):
            marks = (10, 30, 100) if batch is None else (2, 4, 8, 16)
            for limit in marks if counts.nnz < 1e6 else marks[:2]:
                begin = process_time()
                model = latent_dirichlet(counts, K, start=start, batch=batch, max_iter=limit, tol=1e-12)
                seconds = process_time() - begin
                rows.append([f"klimb {label}, {limit} passes", seconds, topics_bound(counts, model.words, 1.0 / K)])
        table(f"Topics of {name}: {counts.shape[0]} x {counts.shape[1]}, {counts.nnz} nonzeros, K = {K}",
              ["", "CPU s", "nats below the best"], below_best(rows))
        found[name] = rows
    return found


def word_counts(name: str) -> Any:
    """Counts of words; tf-idf values are turned into whole numbers of the same order."""
    from scipy.sparse import csr_array

    X = csr_array(load(name, dense=False).X)
    if not np.all(X.data == np.floor(X.data)):
        X.data = np.ceil(10 * X.data)
    return X


def topics_bound(counts: Any, words: Dirichlet, prior: float) -> float:
    """Our bound at another library's topics, the shares of the documents at their optimum."""
    K, V = words.concentration.shape
    theta = dirichlet(np.full(K, prior), plates=(counts.shape[0],))
    beta = dirichlet(np.full(V, prior), plates=(K,))
    network = Network([topics(theta, beta).observe(counts)])
    state = prior_state(network.variables)
    state[beta] = words
    for _ in range(200):
        old = state[theta].natural[0]
        state[theta] = Dirichlet.from_natural(network.optimum(theta, state))
        if np.abs(state[theta].natural[0] - old).max() < 1e-3:
            break
    return network.bound(state)


def factorisation_part() -> Found:
    """1e6 entries of a 10,000 x 2,000 matrix, rank 20 allowed, rank 8 planted; a tenth more held out."""
    rng = np.random.default_rng(0)
    N, D, planted, seen = 10_000, 2_000, 8, 1_000_000
    U, V = rng.normal(size=(N, planted)), rng.normal(size=(D, planted)) * np.linspace(1.0, 0.3, planted)
    place = rng.choice(N * D, int(1.1 * seen), replace=False)
    i, j = np.divmod(place, D)
    y = (U[i] * V[j]).sum(1) + 0.5 * rng.normal(size=len(place)) + 0.3 * rng.normal(size=N)[i]
    train, test = slice(0, seen), slice(seen, None)
    begin = process_time()
    model = matrix_factorisation(i[train], j[train], y[train], 20, shape=(N, D), tol=1e-5, max_iter=40)
    seconds = process_time() - begin
    mean, variance = model.predict(i[test], j[test])
    sd = np.sqrt(variance + 1.0 / model.noise.mean)
    rmse = float(np.sqrt(((y[test] - mean) ** 2).mean()))
    inside = float((np.abs(y[test] - mean) < 1.6449 * sd).mean())
    score = float((-0.5 * ((y[test] - mean) / sd) ** 2 - np.log(sd) - 0.9189385).mean())
    begin = process_time()
    point = alternating_ridge(i[train], j[train], y[train] - y[train].mean(), 20, (N, D))
    baseline = process_time() - begin
    guess = (point[0][i[test]] * point[1][j[test]]).sum(1) + y[train].mean()
    error = float(np.sqrt(((y[test] - guess) ** 2).mean()))
    rows = [["klimb", seconds, model.fit.n_iter, model.rank, rmse, inside, score],
            ["alternating ridge (best of 2 penalties)", baseline, 10, 20, error, "-", "-"],
            ["the noise itself", "-", "-", planted, 0.5, 0.9, "-"]]
    table(f"Factorisation, {seen} entries, rank 20 allowed",
          ["", "CPU s", "sweeps", "rank", "RMSE", "in 90%", "log score"], rows)
    return {"rows": rows, "converged": model.fit.converged}


def alternating_ridge(i: Any, j: Any, y: Any, rank: int, shape: tuple[int, int]) -> Any:
    """The usual point estimate: alternating least squares, the penalty chosen on a tenth of the entries."""
    from scipy.sparse import csr_array

    def fitted(keep: Any, penalty: float) -> Any:
        rng = np.random.default_rng(1)
        V = rng.normal(size=(shape[1], rank))
        for _ in range(10):
            U = solved(csr_array((y[keep], (i[keep], j[keep])), shape=shape), V, penalty)
            V = solved(csr_array((y[keep], (j[keep], i[keep])), shape=shape[::-1]), U, penalty)
        return U, V

    def solved(A: Any, V: Any, penalty: float) -> Any:
        lower = np.tril_indices(rank)
        pattern = A.copy()
        pattern.data = np.ones_like(A.data)
        gram = np.empty((A.shape[0], rank, rank))
        gram[:, lower[0], lower[1]] = pattern @ (V[:, lower[0]] * V[:, lower[1]])
        gram[:, lower[1], lower[0]] = gram[:, lower[0], lower[1]]
        return np.linalg.solve(gram + penalty * np.eye(rank), (A @ V)[..., None])[..., 0]

    n = len(y)
    inner, outer = slice(0, 9 * n // 10), slice(9 * n // 10, None)
    best = None
    for penalty in (1.0, 5.0):
        U, V = fitted(inner, penalty)
        error = float(((y[outer] - (U[i[outer]] * V[j[outer]]).sum(1)) ** 2).mean())
        if best is None or error < best[0]:
            best = (error, penalty)
    assert best is not None
    return fitted(slice(None), best[1])


PARTS = {"mixture": mixture_part, "topics": topics_part, "factorisation": factorisation_part}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    chosen = parser.parse_args().only
    warnings.simplefilter("ignore")
    with one_thread():
        save("conjugate", {name: PARTS[name]() for name in chosen})


if __name__ == "__main__":
    main()
