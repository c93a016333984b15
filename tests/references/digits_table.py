"""Correct digits of every site on the stored references: ``python tests/references/digits_table.py``."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from klimb import sites
from klimb.numerics.arrays import Array
from klimb.sites.base import Site

STORE = Path(__file__).parent / "site_references.npz"
MOST_DIGITS = 16.0
SMALLEST = 1e-290  # below this, numbers lose digits to gradual underflow


def load(name: str) -> tuple[Site, Array, Array, Array, Array]:
    """The site with its parameters, y, m, v and the (n, 7) reference numbers."""
    with np.load(STORE) as stored:
        table, parameters = stored[name], stored[f"{name}_parameters"]
    y, m, v = table[:, :3].T.copy()
    return _build(name, parameters), y, m, v, table[:, 3:]


def names() -> list[str]:
    """The names in the store: those of the registry, and one per variant."""
    with np.load(STORE) as stored:
        return [name for name in stored.files if not name.endswith("_parameters")]


def _build(name: str, parameters: Array) -> Site:
    if name in ("Ordinal", "OrdinalProbit"):
        return sites.Ordinal(parameters, link="logit" if name == "Ordinal" else "probit")
    if name == "Exponential":
        return _EitherExponential(parameters[:, 0] > 0.5)
    columns = parameters.T if parameters.size else []
    return sites.SITES[name](*columns)


class _EitherExponential:
    """The two parametrisations of Exponential, one per datum."""

    def __init__(self, mean: np.ndarray) -> None:
        self.mean = mean

    def expect(self, y: Array, m: Array, v: Array) -> sites.Expectation:
        rate, mean = sites.Exponential().expect(y, m, v), sites.Exponential(mean=True).expect(y, m, v)
        return sites.Expectation(*(np.where(self.mean, getattr(mean, k), getattr(rate, k))
                                   for k in ("value", "alpha", "gamma")))


def digits(name: str) -> Array:
    """Correct digits of (value, alpha, gamma), (3, n).

    Relative to the number itself or, where it is a difference, to what cancels: the integral of the absolute value, and
    for the value, and for alpha near its change of sign, the change that rounding of m and v brings about.
    """
    site, y, m, v, reference = load(name)
    e = site.expect(y, m, v)
    value, alpha, gamma, size, size_alpha, size_gamma, size_by_parts = np.abs(reference.T)
    with np.errstate(over="ignore", invalid="ignore"):
        scale_value = np.fmax(np.fmax(value, size), np.abs(m) * alpha + v * gamma)
        scale_alpha = np.where(size_alpha > (1.0 + 1e-9) * alpha, np.fmax(size_alpha, np.abs(m) * gamma), alpha)
        scales = (scale_value, scale_alpha, np.fmin(size_gamma, np.fmax(size_by_parts, gamma)))
    result = np.empty((3, y.size))
    for k, got in enumerate((e.value, e.alpha, e.gamma)):
        exact, scale = reference[:, k], scales[k]
        with np.errstate(invalid="ignore", divide="ignore"):
            error = np.abs(got - exact) / np.maximum(scale, SMALLEST)
            result[k] = np.where(got == exact, MOST_DIGITS, np.minimum(-np.log10(error), MOST_DIGITS))
        result[k] = np.where(np.isnan(result[k]), 0.0, result[k])
    return result


def main() -> None:
    print(f"{'site':22s}{'points':>7s}   " + "   ".join(f"{k:^23s}" for k in ("value", "alpha", "gamma")))
    print(" " * 32 + "   ".join(f"{'min':>7s}{'1%':>8s}{'median':>8s}" for _ in range(3)))
    for name in names():
        d = digits(name)
        cells = "   ".join(f"{row.min():7.2f}{np.quantile(row, 0.01):8.2f}{np.median(row):8.2f}" for row in d)
        print(f"{name:22s}{d.shape[1]:7d}   {cells}")


if __name__ == "__main__":
    main()
