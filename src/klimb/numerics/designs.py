"""Designs: few points that stand for a normal distribution."""

from __future__ import annotations

from itertools import product

import numpy as np

from klimb.numerics.arrays import Array

SPHERE = 1.1  # radius of the central composite design over sqrt(d): its points carry 1 / SPHERE^2 of the mass


def central_composite(d: int) -> tuple[Array, Array]:
    """A centre, 2 d axial points and corners, all on a sphere; masses that match E 1 and E |z|^2 under N(0, I)."""
    radius = SPHERE * np.sqrt(d)
    axial = radius * np.vstack([np.eye(d), -np.eye(d)])
    corners = SPHERE * _two_level_design(d)
    sphere = np.vstack([axial, corners])
    mass = np.full(len(sphere), 1.0 / (SPHERE**2 * len(sphere)))
    return np.vstack([np.zeros(d), sphere]), np.append(1.0 - 1.0 / SPHERE**2, mass)


def _two_level_design(d: int) -> Array:
    """Signs of a two-level design with orthogonal main effects: full up to 4 factors, else Hadamard and its mirror."""
    if d <= 4:
        return np.array(list(product((-1.0, 1.0), repeat=d)))
    matrix = np.ones((1, 1))
    while len(matrix) <= d:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    half = matrix[:, 1 : d + 1]
    return np.vstack([half, -half])
