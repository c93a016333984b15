"""Codings of a factor with k levels: full (one column per level) or k - 1 contrasts beside an intercept."""

from __future__ import annotations

import numpy as np

from klimb.numerics.arrays import Array


def contrast_labels(kind: str, levels: tuple[str, ...], reference: str | None) -> tuple[str, ...]:
    """What the k - 1 columns of a contrast are called.

    >>> contrast_labels("Treatment", ("a", "b", "c"), "b")
    ('T.a', 'T.c')
    """
    if kind == "Poly":
        return tuple(_ORDERS.get(j, f"^{j}") for j in range(1, len(levels)))
    left_out = left_out_level(kind, levels, reference)
    return tuple(f"{kind[0]}.{level}" for k, level in enumerate(levels) if k != left_out)


def left_out_level(kind: str, levels: tuple[str, ...], reference: str | None) -> int:
    """The level without a column of its own."""
    if reference is not None:
        return levels.index(reference)
    return len(levels) - 1 if kind == "Sum" else 0


def contrast(kind: str, levels: tuple[str, ...], reference: str | None) -> Array:
    """The (k, k - 1) matrix of a contrast: row by row, what a level puts into the columns.

    >>> contrast("Sum", ("a", "b", "c"), None)
    array([[ 1.,  0.],
           [ 0.,  1.],
           [-1., -1.]])
    """
    k = len(levels)
    if kind == "Poly":
        return orthogonal(np.arange(1.0, k + 1.0), k - 1)
    if kind == "Helmert":
        matrix = np.zeros((k, k - 1))
        for j in range(k - 1):
            matrix[: j + 1, j] = -1.0
            matrix[j + 1, j] = j + 1.0
        return matrix
    left_out = left_out_level(kind, levels, reference)
    matrix = np.delete(np.eye(k), left_out, axis=1)
    if kind == "Sum":
        matrix[left_out] = -1.0
    return matrix


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
