"""References for the softmax oracle: python tests/references/make_softmax_references.py

Nested integrals from the definition of the distribution of f + Gumbel, by Gauss-Legendre panels in extended precision
with some thousand nodes in each direction; shares no code with the library.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from scipy.special import ndtr

NODES, WEIGHTS = (part.astype(np.longdouble) for part in np.polynomial.legendre.leggauss(32))
CASES = [  # (label, means, variances)
    (0, [0.0, 0.5, -1.0], [0.01, 0.04, 0.02]),
    (2, [0.3, 1.5, -0.7], [1.0, 0.5, 2.5]),
    (1, [4.0, -3.0, 0.0], [9.0, 30.0, 0.3]),
    (0, [20.0, -30.0, 45.0], [400.0, 900.0, 100.0]),
    (1, [300.0, -300.0, 0.0], [1e6, 1e6, 1e6]),
    (2, [0.0, 100.0, -2.0], [1e-4, 1e6, 1.0]),
    (0, [-5.0, 0.0, 1.0, 2.0, 0.5], [0.1, 3.0, 1.0, 0.0, 50.0]),
]




def panels(points: list[float]) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights between consecutive points."""
    edges = np.array(points, dtype=np.longdouble)
    half = np.diff(edges)[:, None] / 2
    return (edges[:-1, None] + half * (NODES + 1)).ravel(), (half * WEIGHTS).ravel()


def gumbel_normal(t: np.ndarray, v: float) -> tuple[np.ndarray, np.ndarray]:
    """Distribution function and density of N(0, v) + Gumbel at t."""
    if v == 0:
        return np.exp(-np.exp(-t)), np.exp(-t - np.exp(-t))
    s = np.sqrt(np.longdouble(v))
    root = np.sqrt(2 * np.longdouble(np.pi))
    if s < 2:
        z, w = panels(list(np.linspace(-13, 13, 27)))
        w = w * np.exp(-z * z / 2) / root
        rate = np.exp(s * z - t[:, None])
        return np.exp(-rate) @ w, (rate * np.exp(-rate)) @ w
    g, w = panels([-5, -3, -2, -1, 0, 1, 2, 4, 6, 9, 13, 20, 30, 45, 70])
    w = w * np.exp(-g - np.exp(-g))
    x = (t[:, None] - g) / s
    return ndtr(x.astype(float)) @ w, np.exp(-x * x / 2) @ w / (s * root)


def moments(label: int, m: list[float], v: list[float]) -> dict[str, object]:
    C, ends = len(m), set()
    for mean, variance in zip(m, v, strict=True):
        s = np.sqrt(variance)
        ends |= {mean + k * (s + 1) for k in (-9, -7, -5, -4, -3, -2, -1, 0, 1, 2, 3, 5, 7, 9)} | {mean + 20, mean + 45}
    left = max(mean - 12 * np.sqrt(variance) - 6 for mean, variance in zip(m, v, strict=True))
    x, w = panels([left, *sorted(end for end in ends if end > left)])
    factors = [gumbel_normal(x - mean, variance) for mean, variance in zip(m, v, strict=True)]

    def rest(*left_out: int) -> np.ndarray:
        return np.prod([F for c, (F, _) in enumerate(factors) if c not in left_out], axis=0)

    p = [w @ (factors[c][1] * rest(c)) for c in range(C)]
    pairs = {(c, d): w @ (factors[c][1] * factors[d][1] * rest(c, d)) for c in range(C) for d in range(c)}
    gamma = [sum(value for pair, value in pairs.items() if c in pair) for c in range(C)]
    top = w @ (x * sum(factors[c][1] * rest(c) for c in range(C)))
    euler = np.longdouble("0.57721566490153286060651209008240243")
    return {"label": label, "m": m, "v": v, "value": float(m[label] - (top - euler)), "p": [float(x) for x in p],
            "gamma": [float(x) for x in gamma], "sum of p - 1": float(sum(p) - 1)}


def main() -> None:
    found = [moments(*case) for case in CASES]
    for one in found:
        print(one)
    path = Path(__file__).with_name("softmax_references.json")
    path.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
