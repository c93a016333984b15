"""Several classes: what taking them as independent in q costs, and softmax beside one class against the rest.

    python -m benchmarks.classes [--quick]

The rival "coupled" is the best Gaussian q without any restriction: a C x C block of site precisions per datum, a dense
nC x nC covariance, and expectations by quasi-Monte Carlo, since none of them is one-dimensional any more.
"""

from __future__ import annotations

import argparse
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import klimb
from benchmarks.measure import one_thread, save
from benchmarks.problems import data_dir
from klimb.models.classes import coupled_covariance, one_vs_rest

Array = NDArray[np.float64]


class Labelled(NamedTuple):
    """Training and test data with labels 0 .. C-1."""

    name: str
    X: Array
    y: NDArray[np.intp]
    X_test: Array
    y_test: NDArray[np.intp]
    n_classes: int


class Coupled(NamedTuple):
    """The unrestricted q of a model with prior covariance K for each class."""

    bound: float
    slope: Array  # a = K^-1 m, C x n
    W: Array  # site precisions, n x C x C
    V: Array  # nC x nC, class by class


def normal_points(dim: int, log2: int) -> Array:
    from scipy.stats import norm, qmc

    return np.asarray(norm.ppf(qmc.Sobol(dim, scramble=True, seed=0).random_base2(log2)))


def softmax(f: Array) -> Array:
    e = np.exp(f - f.max(axis=-1, keepdims=True))
    return np.asarray(e / e.sum(axis=-1, keepdims=True))


def coupled(K: Array, y: NDArray[np.intp], C: int, log2: int = 11, steps: int = 60) -> Coupled:
    """Natural gradient with halving, until the bound settles."""
    n, hits, z = len(y), np.eye(C)[y], normal_points(C, log2)
    block = [slice(c * n, (c + 1) * n) for c in range(C)]

    def spread(W: Array) -> tuple[Array, float]:
        """(K^-1 + W)^-1 over all classes, and log det(I + K W)."""
        M = np.eye(n * C)
        for c in range(C):
            for d in range(C):
                M[block[c], block[d]] += K * W[:, c, d]
        return np.linalg.solve(M, np.kron(np.eye(C), K)), float(np.linalg.slogdet(M)[1])

    def oracle(m: Array, V: Array) -> tuple[float, Array, Array]:
        values, p_mean, H = 0.0, np.empty((n, C)), np.empty((n, C, C))
        for i in range(n):
            S = V[i::n, i::n]
            w, U = np.linalg.eigh(0.5 * (S + S.T))
            f = m[i::n] + z @ (U * np.sqrt(np.maximum(w, 0.0))).T
            top = f.max(axis=1)
            values += float((f[:, y[i]] - top - np.log(np.exp(f - top[:, None]).sum(axis=1))).mean())
            p = softmax(f)
            p_mean[i] = p.mean(axis=0)
            H[i] = np.diag(p_mean[i]) - p.T @ p / len(p)
        return values, p_mean, H

    W = np.tile(np.eye(C) / C - 1.0 / C**2, (n, 1, 1))
    rhs = (hits - 1.0 / C).T.ravel()
    best = None
    for _ in range(steps):
        V, logdet = spread(W)
        m = V @ rhs
        a = rhs - np.einsum("icd,di->ci", W, m.reshape(C, n)).ravel()
        value, p, H = oracle(m, V)
        trace = sum(float(W[:, c, d] @ V[block[c], block[d]].diagonal()) for c in range(C) for d in range(C))
        bound = value - 0.5 * (a @ m - trace + logdet)
        if best is not None and bound < best[0].bound - 1e-9:
            W, rhs = 0.5 * (W + best[1]), 0.5 * (rhs + best[2])
            continue
        gain = np.inf if best is None else bound - best[0].bound
        best = (Coupled(float(bound), a.reshape(C, n), W, V), W, rhs)
        if gain < 1e-6:
            break
        W, rhs = H, (np.einsum("icd,di->ic", H, m.reshape(C, n)) + hits - p).T.ravel()
    assert best is not None
    return best[0]


def coupled_log_loss(q: Coupled, cross: Array, prior: Array, y: NDArray[np.intp]) -> float:
    """Mean of -log p(y) at new inputs, in nats."""
    C, n = q.slope.shape
    WV = np.empty_like(q.V)
    for c in range(C):
        WV[c * n : (c + 1) * n] = sum(q.W[:, c, d, None] * q.V[d * n : (d + 1) * n] for d in range(C))
    P = np.zeros_like(q.V)  # (K + W^-1)^-1 = W - W V W
    for c in range(C):
        for d in range(C):
            rows, columns = slice(c * n, (c + 1) * n), slice(d * n, (d + 1) * n)
            P[rows, columns] = -sum(WV[rows, e * n : (e + 1) * n] * q.W[:, e, d] for e in range(C))
            P[rows, columns].flat[:: n + 1] += q.W[:, c, d]
    m = cross @ q.slope.T
    cov = np.empty((len(cross), C, C))
    for c in range(C):
        for d in range(C):
            middle = P[c * n : (c + 1) * n, d * n : (d + 1) * n]
            cov[:, c, d] = (c == d) * prior - np.einsum("ij,jk,ik->i", cross, middle, cross)
    z, total = normal_points(C, 12), 0.0
    for mean, S, label in zip(m, cov, y, strict=True):
        w, U = np.linalg.eigh(0.5 * (S + S.T))
        total -= np.log(softmax(mean + z @ (U * np.sqrt(np.maximum(w, 0.0))).T)[:, label].mean())
    return float(total / len(y))


def compare_processes(data: Labelled) -> dict[str, Any]:
    """Softmax with independent classes, the coupled q at the same hyperparameters, and one against the rest."""
    kernel = klimb.kernels.RBF(lengthscale=np.sqrt(data.X.shape[1]), variance=9.0)
    site = klimb.sites.Softmax(data.n_classes)
    best = klimb.gp(kernel, data.X, site).fit(data.y)
    here = best.model.kernel
    q = coupled(here.gram(data.X), data.y, data.n_classes, 11 if data.n_classes < 5 else 10)
    rest = one_vs_rest(klimb.gp(kernel, data.X, klimb.sites.Logistic()), data.y)
    chances = np.column_stack(list(best.predict(data.X_test).values()))
    error = np.mean(chances.argmax(axis=1) != data.y_test)
    return {
        "data": data.name, "n": len(data.y), "C": data.n_classes, "kernel": repr(here),
        "bound, independent": best.bound, "bound, coupled": q.bound,
        "log loss, independent": float(-best.log_density(data.y_test, data.X_test).mean()),
        "log loss, coupled": coupled_log_loss(q, here.gram(data.X_test, data.X), here.diag(data.X_test), data.y_test),
        "log loss, one against the rest": float(-rest.log_density(data.y_test, data.X_test).mean()),
        "error, independent": float(error),
        "error, one against the rest": float(np.mean(rest.probabilities(data.X_test).argmax(axis=1) != data.y_test)),
        "iterations": best.n_iter, "fits": best.n_fits,
    }


def compare_regressions(data: Labelled, cov: float = 4.0) -> dict[str, Any]:
    """Standard deviations of contrasts of weights: independent q and baseline q against the coupled one."""
    X = np.column_stack([np.ones(len(data.X)), data.X])
    C, D = data.n_classes, X.shape[1]
    prior = klimb.latents.Weights(X, cov=cov)
    latent = klimb.latents.Outputs.shared(prior, C)
    fit = klimb.infer(latent, klimb.sites.Softmax(C), data.y)
    q = coupled(cov * X @ X.T, data.y, C, 11 if C < 5 else 10)
    precision = np.kron(np.eye(C), np.eye(D) / cov)
    for c in range(C):
        for d in range(C):
            precision[c * D : (c + 1) * D, d * D : (d + 1) * D] += X.T @ (q.W[:, c, d, None] * X)
    V = np.linalg.inv(precision)
    means = np.stack([part.mean for part in latent.split(fit.posterior)])
    variances = np.stack([part.covariance().diagonal() for part in latent.split(fit.posterior)])
    exact_means = cov * q.slope @ X
    step = coupled_covariance(fit.posterior, klimb.sites.Softmax(C), data.y)
    ratios, mended, shifts = [], [], []
    for c in range(C):
        for d in range(c):
            pick = [np.arange(D) + c * D, np.arange(D) + d * D]
            full = V[pick[0], pick[0]] + V[pick[1], pick[1]] - 2 * V[pick[0], pick[1]]
            ratios.append(np.sqrt((variances[c] + variances[d]) / full))
            after = step[pick[0], pick[0]] + step[pick[1], pick[1]] - 2 * step[pick[0], pick[1]]
            mended.append(np.sqrt(after / full))
            shifts.append(np.abs(means[c] - means[d] - exact_means[c] + exact_means[d]) / np.sqrt(full))
    X_test = np.column_stack([np.ones(len(data.X_test)), data.X_test])
    observed = klimb.sites.Softmax(C).predict(*latent.predict(fit.posterior, X_test))
    loss = coupled_log_loss(q, cov * X_test @ X.T, cov * np.einsum("ij,ij->i", X_test, X_test), data.y_test)
    return {
        "data": data.name, "n": len(data.y), "C": C, "D": D, "bound, independent": fit.bound, "bound, coupled": q.bound,
        "log loss, independent": float(-observed.log_density(data.y_test).mean()), "log loss, coupled": loss,
        "sd of contrasts over the coupled one, median": float(np.median(ratios)),
        "sd of contrasts over the coupled one, largest": float(np.max(ratios)),
        "the same by coupled_covariance, median": float(np.median(mended)),
        "the same by coupled_covariance, smallest": float(np.min(mended)),
        "the same by coupled_covariance, largest": float(np.max(mended)),
        "means of contrasts, largest shift in sd": float(np.max(shifts)),
    }


def standardised(name: str, X: Array, y: NDArray[np.intp], n_train: int, seed: int = 0, most: int = 1000) -> Labelled:
    order = np.random.default_rng(seed).permutation(len(y))
    X = (X - X.mean(axis=0)) / np.maximum(X.std(axis=0), 1e-9)
    train, test = order[:n_train], order[n_train : n_train + most]
    return Labelled(name, X[train], y[train], X[test], y[test], int(y.max()) + 1)


def data_sets(quick: bool) -> list[Labelled]:
    from sklearn.datasets import load_iris, load_wine

    rng = np.random.default_rng(5)
    X = rng.standard_normal((800, 2)) * 1.5
    f = np.column_stack([X[:, 0], np.sin(2 * X[:, 1]) + 0.5, 0.6 * X.sum(axis=1) - 0.5 * X[:, 0] ** 2])
    noisy = np.argmax(2.0 * f + rng.gumbel(size=f.shape), axis=1)
    sets = [standardised("noisy", X, noisy, 150),
            standardised("iris", *load_iris(return_X_y=True), 75),
            standardised("wine", *load_wine(return_X_y=True), 89)]
    if not quick:
        usps = np.load(data_dir() / "usps.npz")
        digits, labels = usps["X"].astype(float), usps["y"].astype(int)
        some = np.isin(labels, (3, 5, 8))
        sets.append(standardised("usps 3, 5, 8", digits[some], np.searchsorted((3, 5, 8), labels[some]), 150))
        sets.append(standardised("usps 0 .. 9", digits, labels, 100))
    return sets


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="only the small data sets that come with scikit-learn")
    arguments = parser.parse_args()
    found: dict[str, Any] = {"processes": [], "regressions": []}
    with one_thread():
        for data in data_sets(arguments.quick):
            found["processes"].append(compare_processes(data))
            print(found["processes"][-1], flush=True)
            if data.X.shape[1] < 20:
                found["regressions"].append(compare_regressions(data))
                print(found["regressions"][-1], flush=True)
    save("classes", found)


if __name__ == "__main__":
    main()
