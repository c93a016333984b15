"""What all Gaussian process rivals share: the problem, the stopwatch, and what is written down. NumPy and SciPy only.

A rival runs in a process (and mostly in a virtual environment) of its own:

    python -m benchmarks.rivals.gp_gpflow problem.npz found.npz --variant natural --cap 10

It reads a problem, fits it while a `Stopwatch` runs, and at every lap, the clock stopped, hands over its q in whatever
form it keeps. What is stored is what any q comes down to: means and variances at the data, and the divergence from the
prior, all by the code below, whoever found q; `benchmarks.gp_rivals` turns them into bounds, with one set of
likelihoods for all.
"""

from __future__ import annotations

import argparse
import json
import time
from functools import cached_property

import numpy as np
import scipy.linalg as sla

JITTER = 1e-6  # part of the prior for everyone: some packages add it in any case
LAPLACE_SCALE = 0.3
STUDENT_DF, STUDENT_SCALE = 3.0, float(np.sqrt(1.0 / 3.0))  # [S] section 4
SETTLED = 1e-8  # a q that moves less than this (in its marginals, relatively) has arrived


def rbf(X, Z, lengthscale, variance):
    """variance exp(-|x - z|^2 / 2 lengthscale^2)."""
    squared = (X * X).sum(1)[:, None] + (Z * Z).sum(1) - 2.0 * (X @ Z.T)
    return variance * np.exp(-0.5 * np.maximum(squared, 0.0) / lengthscale**2)


class Task:
    """Data, likelihood and prior N(0, K + JITTER I), and the marginals of a q in the forms that packages use."""

    def __init__(self, path):
        with np.load(path, allow_pickle=False) as stored:
            self.X, self.y = stored["X"], stored["y"]  # y in {0, 1} for "logistic"
            self.Z = stored["Z"] if "Z" in stored.files else None
            self.likelihood = str(stored["likelihood"])
            self.lengthscale, self.variance = float(stored["lengthscale"]), float(stored["variance"])
        self.n = len(self.y)

    def at(self, lengthscale, variance):
        """The same task under other hyperparameters."""
        other = object.__new__(Task)
        other.__dict__ = {key: self.__dict__[key] for key in ("X", "y", "Z", "likelihood", "n")}
        other.lengthscale, other.variance = float(lengthscale), float(variance)
        return other

    @property
    def points(self):
        """Where q is whitened: the inducing points, or the inputs."""
        return self.X if self.Z is None else self.Z

    @cached_property
    def K(self):
        K = rbf(self.points, self.points, self.lengthscale, self.variance)
        K[np.diag_indices(len(K))] = self.variance + JITTER
        return K

    @cached_property
    def root(self):
        return sla.cholesky(self.K, lower=True)

    def whitened(self, mean, root):
        """u = root(K) w with w ~ N(mean, root root')."""
        root = np.tril(root)
        kl = 0.5 * (np.sum(root * root) + mean @ mean - len(mean)) - np.sum(np.log(np.abs(np.diag(root))))
        if self.Z is None:
            return self.root @ mean, np.square(self.root @ root).sum(1), kl
        m, v = np.empty(self.n), np.empty(self.n)
        for start in range(0, self.n, 20_000):
            rows = slice(start, start + 20_000)
            A = sla.solve_triangular(self.root, rbf(self.Z, self.X[rows], self.lengthscale, self.variance), lower=True)
            m[rows] = A.T @ mean
            v[rows] = self.variance - np.square(A).sum(0) + np.square(root.T @ A).sum(0)
        return m, v, kl

    def dense(self, mean, V):
        """u ~ N(mean, V) at the points."""
        inner = sla.solve_triangular(self.root, sla.cholesky(0.5 * (V + V.T), lower=True), lower=True)
        return self.whitened(sla.solve_triangular(self.root, mean, lower=True), inner)

    def sites(self, a, gamma):
        """Mean K a and covariance (K^-1 + diag(gamma))^-1."""
        if gamma.min() < 0.0:
            return self.dense(self.K @ a, sla.solve(np.eye(self.n) + self.K * gamma, self.K))
        scale = np.sqrt(gamma)
        B = scale[:, None] * self.K * scale
        B[np.diag_indices(self.n)] += 1.0
        lower = sla.cholesky(B, lower=True)
        inverse = sla.solve_triangular(lower, np.eye(self.n), lower=True)
        W = inverse @ (scale[:, None] * self.K)
        m, v = self.K @ a, np.diag(self.K) - np.square(W).sum(0)
        kl = 0.5 * (np.square(inverse).sum() - self.n + a @ m) + np.log(np.diag(lower)).sum()
        return m, v, kl

    def natural_sites(self, slope, gamma):
        """Sites exp(slope f - gamma f^2 / 2)."""
        m = sla.solve(np.eye(self.n) + self.K * gamma, self.K @ slope)
        return self.sites(slope - gamma * m, gamma)


class Stopwatch:
    """CPU and wall seconds of the solver alone, and the marginals of q at every lap."""

    def __init__(self, task, cap, ratio=1.03):
        self.task, self.cap, self.ratio = task, cap, ratio
        self.cpu = self.wall = self.due = 0.0
        self.laps, self.theta = [], []
        self.settled = False
        self.about = {}  # versions, compile seconds, errors

    def compiling(self, call):
        """Run what compiles, warms up or imports on its first call, on a clock of its own."""
        begin = time.perf_counter()
        value = call()
        self.about["compile"] = time.perf_counter() - begin
        return value

    def start(self):
        self._cpu, self._wall = time.process_time(), time.perf_counter()

    def stop(self):
        self.cpu += time.process_time() - self._cpu
        self.wall += time.perf_counter() - self._wall

    def lap(self, describe, theta=None, force=False):
        """Write q down, unless the last lap is too recent; ``describe(task)`` gives its (m, v, kl)."""
        self.stop()
        if force or self.cpu >= self.due:
            task = self.task if theta is None else self.task.at(*theta)
            try:
                m, v, kl = describe(task)
            except Exception as error:  # a q that is no distribution
                self.about["error"] = repr(error)[:200]
                m = v = np.full(self.task.n, np.nan)
                kl = np.nan
            if self.laps and theta is None:
                _, _, m_last, v_last, _ = self.laps[-1]
                moved = max(np.max(np.abs(m - m_last) / (1.0 + np.abs(m))), np.max(np.abs(v / v_last - 1.0)))
                self.settled = bool(moved < SETTLED) or not np.isfinite(moved)
            self.laps.append((self.cpu, self.wall, m, v, kl))
            self.theta.append((self.task.lengthscale, self.task.variance) if theta is None else theta)
            self.due = self.ratio * self.cpu
        self.start()

    @property
    def over(self):
        return self.settled or self.cpu + time.process_time() - self._cpu >= self.cap

    def save(self, path):
        columns = [np.array(column) for column in zip(*self.laps, strict=True)] if self.laps else [np.empty(0)] * 5
        np.savez_compressed(path, theta=np.array(self.theta), about=json.dumps(self.about),
                            **dict(zip(("cpu", "wall", "m", "v", "kl"), columns, strict=True)))


def compete(variants, version, import_seconds):
    """The command line of a rival: ``variants`` maps names to functions of (task, watch)."""
    parser = argparse.ArgumentParser()
    parser.add_argument("problem")
    parser.add_argument("found")
    parser.add_argument("--variant", choices=list(variants), required=True)
    parser.add_argument("--cap", type=float, default=10.0, help="CPU seconds")
    options = parser.parse_args()
    task = Task(options.problem)
    watch = Stopwatch(task, options.cap)
    watch.about.update(version=version, imports=import_seconds)
    try:
        variants[options.variant](task, watch)
    except Exception as error:
        watch.about["error"] = f"{type(error).__name__}: {error}"[:200]
    watch.save(options.found)
