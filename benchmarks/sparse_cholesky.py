"""Sparse Cholesky: analysis, factor, selected inverse and fill, beside CHOLMOD by scikit-sparse or CVXOPT if installed.

    python -m benchmarks.sparse_cholesky [--quick] [--json PATH]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from benchmarks.measure import cpu, one_thread, save, table
from klimb.linalg.sparse_cholesky import SymbolicCholesky

Problem = tuple[Any, Any]  # a matrix, and coordinates or nothing


def laplacian(n: int) -> Any:
    """The graph Laplacian of an n x n lattice."""
    D = sp.diags_array([-np.ones(n - 1), np.ones(n - 1)], offsets=[0, 1], shape=(n - 1, n))
    L, eye = D.T @ D, sp.eye_array(n)
    return sp.kron(L, eye) + sp.kron(eye, L)


def lattice(n: int, order: int = 1) -> Problem:
    """The 5-point (order 1) or 13-point (order 2) stencil on an n x n lattice."""
    L = laplacian(n)
    points = np.stack(np.meshgrid(np.arange(n), np.arange(n), indexing="ij"), axis=-1).reshape(-1, 2).astype(float)
    return (L if order == 1 else L @ L) + 0.1 * sp.eye_array(n * n), points


def mesh(n: int) -> Problem:
    """A Matern field (nu = 1) by finite elements on a triangulation of jittered points, a third of them observed."""
    from scipy.spatial import Delaunay

    rng, m = np.random.default_rng(0), int(np.sqrt(n))
    grid = (np.arange(m) + 0.5) / m
    points = np.stack(np.meshgrid(grid, grid), axis=-1).reshape(-1, 2) + rng.uniform(-0.35, 0.35, (m * m, 2)) / m
    corners = Delaunay(points).simplices
    sides = points[np.roll(corners, 1, axis=1)] - points[np.roll(corners, -1, axis=1)]
    area = 0.5 * np.abs(sides[:, 0, 0] * sides[:, 1, 1] - sides[:, 0, 1] * sides[:, 1, 0])
    stiffness = np.einsum("tia,tja->tij", sides, sides) / (4.0 * area)[:, None, None]
    row, column = np.repeat(corners, 3, axis=1).ravel(), np.tile(corners, (1, 3)).ravel()
    G = sp.csc_array((stiffness.ravel(), (row, column)), shape=(m * m, m * m))
    mass = np.bincount(corners.ravel(), np.repeat(area / 3.0, 3), m * m)
    K = sp.diags_array(200.0 * mass) + G
    observed = sp.diags_array(1e-2 * (rng.random(m * m) < 0.3))
    return K @ sp.diags_array(1.0 / mass) @ K / (800.0 * np.pi) + observed, points


def walk(n: int, width: int = 2) -> Problem:
    """A random walk of order ``width``, every time observed."""
    D = sp.eye_array(n, format="csr")
    for _ in range(width):
        D = D[1:] - D[:-1]
    return 100.0 * (D.T @ D) + 0.3 * sp.eye_array(n), None


def arrow(n: int, p: int) -> Problem:
    """Levels of one group and p columns of fixed effects."""
    rng = np.random.default_rng(0)
    B = sp.csr_array(0.1 * rng.standard_normal((n, p)))
    D = sp.diags_array(1.0 + 4.0 * rng.random(n))
    return sp.block_array([[D, B], [B.T, B.T @ B + 10.0 * sp.eye_array(p)]]), None


def crossed(rows: int, first: int = 10_000, second: int = 1_000) -> Problem:
    """Two crossed factors."""
    rng, r = np.random.default_rng(0), np.arange(rows)
    i, j = rng.integers(0, first, rows), first + rng.integers(0, second, rows)
    Z = sp.csr_array((np.ones(2 * rows), (np.r_[r, r], np.r_[i, j])), shape=(rows, first + second))
    return Z.T @ sp.diags_array(0.05 + 0.2 * rng.random(rows)) @ Z + sp.eye_array(first + second), None


def with_leaves(problem: Problem) -> Problem:
    """Every node coupled to one more, as the two parts of a BYM field are."""
    matrix, points = problem
    eye = sp.eye_array(matrix.shape[0])
    both = sp.block_array([[matrix + eye, -eye], [-eye, 2.0 * eye]])
    return both, None if points is None else np.tile(points, (2, 1))


PROBLEMS: dict[str, Callable[[], Problem]] = {
    "5-point 100 x 100": lambda: lattice(100),
    "13-point 100 x 100": lambda: lattice(100, 2),
    "mesh 1e4": lambda: mesh(10_000),
    "walk2 1e5": lambda: walk(100_000),
    "arrow 1e5 + 10": lambda: arrow(100_000, 10),
    "crossed 1e5": lambda: crossed(100_000),
    "5-point 200 x 200": lambda: lattice(200),
    "13-point 200 x 200": lambda: lattice(200, 2),
    "leaves on 200 x 200": lambda: with_leaves(lattice(200)),
    "5-point 400 x 400": lambda: lattice(400),
    "13-point 400 x 400": lambda: lattice(400, 2),
    "mesh 1e5": lambda: mesh(100_000),
    "mesh 2e5": lambda: mesh(200_000),
    "crossed 1e6": lambda: crossed(1_000_000),
    "leaves on walk2 1e5": lambda: with_leaves(walk(100_000)),
}
QUICK = 6
STEPS = ("analyse", "factor", "inverse", "stored")
FAMILIES: dict[str, tuple[Callable[[int], Problem], tuple[int, ...]]] = {
    "5-point lattice": (lambda n: lattice(round(n**0.5)), (10_000, 40_000, 160_000)),
    "13-point lattice": (lambda n: lattice(round(n**0.5), 2), (10_000, 40_000, 160_000)),
    "mesh": (mesh, (10_000, 40_000, 160_000)),
    "walk of order 2": (walk, (25_000, 100_000, 400_000)),
}


def ready(matrix: Any) -> sp.csc_array:
    out = sp.csc_array(matrix)
    out.sum_duplicates()
    out.sort_indices()
    return out


def measured(matrix: sp.csc_array, coordinates: Any, repeats: int = 3) -> dict[str, float]:
    """CPU seconds of each step, doubles stored by the factor, and how far tr(M M^-1) / n is from 1."""
    symbolic, analyse = cpu(lambda: SymbolicCholesky(matrix, coordinates), 1)
    factor = cpu(lambda: symbolic.factor(matrix.data), repeats).seconds
    fresh = [symbolic.factor(matrix.data) for _ in range(repeats)]
    inverse, seconds = cpu(lambda: fresh.pop().inverse_entries, repeats)
    solve = cpu(lambda: symbolic.factor(matrix.data), 1).value
    return {"analyse": analyse, "factor": factor, "inverse": seconds, "stored": symbolic.tree.length,
            "solve": cpu(lambda: solve.solve(np.ones(matrix.shape[0])), repeats).seconds,
            "error": abs(float(matrix.data @ inverse) / matrix.shape[0] - 1.0)}


def cholmod(matrix: sp.csc_array, repeats: int = 3) -> tuple[float, float] | None:
    """CPU seconds of CHOLMOD's analysis and supernodal factorisation, or nothing where no package has it."""
    try:
        from sksparse.cholmod import analyze

        symbolic, first = cpu(lambda: analyze(sp.csc_matrix(matrix), mode="supernodal"), 1)
        return first, cpu(lambda: symbolic.cholesky(sp.csc_matrix(matrix)), repeats).seconds
    except ImportError:
        pass
    try:
        from cvxopt import cholmod as solver
        from cvxopt import spmatrix
    except ImportError:
        return None
    solver.options["supernodal"] = 2
    lower = sp.tril(matrix).tocoo()
    A = spmatrix(lower.data.tolist(), lower.row.tolist(), lower.col.tolist(), matrix.shape)
    symbolic, first = cpu(lambda: solver.symbolic(A), 1)
    return first, cpu(lambda: solver.numeric(A, symbolic), repeats).seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    found: dict[str, Any] = {"problems": {}, "growth": {}}
    rows = []
    with one_thread():
        for name in list(PROBLEMS)[:QUICK if arguments.quick else None]:
            problem, points = PROBLEMS[name]()
            matrix = ready(problem)
            rival = cholmod(matrix)
            for kind, coordinates in (("graph", None), ("space", points)):
                if kind == "space" and points is None:
                    continue
                figures = measured(matrix, coordinates)
                found["problems"][f"{name}, {kind}"] = {**figures, "n": matrix.shape[0], "cholmod": rival}
                rows.append((name, kind, matrix.shape[0], *figures.values(), *(("-", "-") if rival is None else rival)))
        table("CPU seconds; ordered by the graph alone or by coordinates",
              ["matrix", "order", "n", *STEPS, "solve", "error", "CHOLMOD analyse", "factor"], rows)
        growth = []
        for name, (make, sizes) in FAMILIES.items():
            sizes = sizes[:2] if arguments.quick else sizes
            figures_of = [measured(ready(make(n)[0]), None) for n in sizes]
            times = np.array([[figures[key] for key in STEPS] for figures in figures_of])
            exponents = [float(np.polyfit(np.log(sizes), np.log(column), 1)[0]) for column in times.T]
            found["growth"][name] = exponents
            growth.append((name, f"{sizes[0]} to {sizes[-1]}", *exponents))
        table("growth: the power of n", ["matrix", "n", *STEPS], growth)
    if arguments.json:
        print(save("sparse_cholesky", found, arguments.json))


if __name__ == "__main__":
    main()
