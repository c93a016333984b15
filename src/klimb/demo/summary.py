"""What the demo says of a fit: one record, and its form as plain text."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from klimb.numerics.arrays import Array


@dataclass(frozen=True, slots=True)
class Summary:
    """Marginals of the weights with their central intervals, and how the fit went."""

    names: tuple[str, ...]
    mean: Array
    sd: Array
    lower: Array
    upper: Array
    bound: float
    n_iter: int
    status: str
    advice: str
    bounds: tuple[float, ...]  # one per iteration

    def text(self) -> str:
        """The summary as a table of fixed width."""
        width = max(len(name) for name in self.names)
        lines = [f"{'weight':<{width}}  {'mean':>8}  {'sd':>8}  {'5%':>8}  {'95%':>8}"]
        lines += [f"{name:<{width}}  {mean:8.3f}  {sd:8.3f}  {low:8.3f}  {high:8.3f}"
                  for name, mean, sd, low, high in
                  zip(self.names, self.mean, self.sd, self.lower, self.upper, strict=True)]
        lines += ["", f"bound       {self.bound:.6f}", f"iterations  {self.n_iter}",
                  f"status      {self.status}: {self.advice}"]
        return "\n".join(lines)


def summarise(names: tuple[str, ...], mean: Array, covariance: Array, *, bound: float, n_iter: int, status: str,
              advice: str, bounds: tuple[float, ...]) -> Summary:
    """The summary of a Gaussian posterior over named weights.

    >>> fit = dict(bound=-1.0, n_iter=3, status="converged", advice="Nothing to do.", bounds=(-2.0, -1.0))
    >>> print(summarise(("slope",), np.array([1.0]), np.array([[0.25]]), **fit).text())
    weight      mean        sd        5%       95%
    slope      1.000     0.500     0.178     1.822
    <BLANKLINE>
    bound       -1.000000
    iterations  3
    status      converged: Nothing to do.
    """
    sd = np.sqrt(np.diag(covariance))
    half = float(ndtri(0.95)) * sd
    return Summary(names, mean, sd, mean - half, mean + half, bound, n_iter, status, advice, bounds)
