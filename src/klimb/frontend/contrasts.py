"""Codings of a factor with k levels: full (one column per level) or k - 1 contrasts beside an intercept."""

from __future__ import annotations

import numpy as np

from klimb.numerics.arrays import Array


def contrast(kind: str, levels: tuple[str, ...], reference: str | None) -> tuple[Array, tuple[str, ...]]:
    """The (k, k - 1) matrix of a contrast and the labels of its columns.

    >>> contrast("Treatment", ("a", "b", "c"), "b")[1]
    ('T.a', 'T.c')
    >>> contrast("Sum", ("a", "b", "c"), None)[0]
    array([[ 1.,  0.],
           [ 0.,  1.],
           [-1., -1.]])
    """
    k = len(levels)
    if kind == "Treatment":
        base = levels.index(reference) if reference is not None else 0
        kept = [j for j in range(k) if j != base]
        return np.eye(k)[:, kept], tuple(f"T.{levels[j]}" for j in kept)
    if kind == "Sum":
        last = levels.index(reference) if reference is not None else k - 1
        kept = [j for j in range(k) if j != last]
        matrix = np.eye(k)[:, kept]
        matrix[last] = -1.0
        return matrix, tuple(f"S.{levels[j]}" for j in kept)
    if kind == "Helmert":
        matrix = np.zeros((k, k - 1))
        for j in range(k - 1):
            matrix[: j + 1, j] = -1.0
            matrix[j + 1, j] = j + 1.0
        return matrix, tuple(f"H.{level}" for level in levels[1:])
    return orthogonal(np.arange(1.0, k + 1.0), k - 1), tuple(_ORDERS.get(j, f"^{j}") for j in range(1, k))


_ORDERS = {1: ".L", 2: ".Q", 3: ".C"}


def orthogonal(points: Array, degree: int) -> Array:
    """Orthonormal polynomials of degree 1 to ``degree`` at few points, each with a positive leading coefficient."""
    centred = (points - points.mean()) / max(float(np.abs(points - points.mean()).max()), 1e-300)
    columns = [np.full(len(points), 1.0 / np.sqrt(len(points)))]
    for _ in range(degree):
        column = columns[-1] * centred
        for _ in ("once", "twice"):  # Gram-Schmidt loses digits the first time
            for other in columns:
                column = column - (other @ column) * other
        columns.append(column / np.linalg.norm(column))
    return np.column_stack(columns[1:]) if degree else np.empty((len(points), 0))
