"""The evidence ladder: local bound <= bound <= log evidence, beside Laplace's and EP's estimates."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from klimb.errors import KlimbError
from klimb.infer.loop import run
from klimb.infer.natural import Natural
from klimb.infer.problem import Problem
from klimb.infer.sitewise import ExpectationPropagation
from klimb.numerics.dense import threads_for
from klimb.sites.local import SuperGaussian
from klimb.sites.wrappers import Cavity, Point
from klimb.trust.weights import exact_site

TOL, ITERATIONS = 1e-6, 300
ROUNDING = 1e-9  # relative size of the bound up to which an order counts as kept


@dataclass(frozen=True)
class Ladder:
    """Estimates of log p(y), from the lowest rung to the best. None where a method does not apply or did not end well.

    ``local`` and ``bound`` are lower bounds, and local <= bound <= evidence must hold (``ordered``); Laplace's and
    EP's numbers may lie anywhere.
    """

    local: float | None
    bound: float
    evidence: float
    evidence_error: float
    laplace: float | None
    ep: float | None

    @property
    def ordered(self) -> bool:
        """Whether the lower bounds are in order, allowing for rounding and three standard errors of the evidence."""
        slack = ROUNDING * max(abs(self.bound), 1.0) + 1e-5
        lower = self.local is None or self.local <= self.bound + slack
        return lower and self.bound <= self.evidence + 3.0 * self.evidence_error + slack

    def rows(self) -> list[tuple[str, float, str]]:
        """(name, value, what it is), lowest rung first."""
        rows: list[tuple[str, float | None, str]] = [
            ("local bound", self.local, "lower bound"),
            ("bound", self.bound, "lower bound"),
            ("log evidence", self.evidence, f"importance sampling, +- {self.evidence_error:.2g}"),
            ("Laplace", self.laplace, "estimate"),
            ("EP", self.ep, "estimate"),
        ]
        return [(name, value, what) for name, value, what in rows if value is not None]

    def __str__(self) -> str:
        return "\n".join(f"{name:13s}{value:14.4f}  {what}" for name, value, what in self.rows())

    def plot(self, ax: Any = None) -> Any:
        """The rungs on a line of nats; needs matplotlib."""
        from klimb.trust.plots import plot_ladder

        return plot_ladder(self, ax)


def climb_ladder(problem: Problem, bound: float, evidence: float, error: float) -> Ladder:
    """Fit the local bound, Laplace's approximation and EP to the same model: three fits more."""
    site = exact_site(problem.site)
    local = _fitted(problem, SuperGaussian(site)) if site.super_gaussian else None
    laplace = _fitted(problem, Point(site)) if site.smooth else None
    return Ladder(local, bound, evidence, error, laplace, _ep(problem))


def _fitted(problem: Problem, site: Any) -> float | None:
    try:
        state, *_ = run(Problem(problem.latent, site, problem.y), Natural(), TOL, ITERATIONS, None)
    except KlimbError:
        return None
    return state.bound if np.isfinite(state.bound) else None


def _ep(problem: Problem) -> float | None:
    site = exact_site(problem.site)
    if not site.separable:
        return None
    own = Problem(problem.latent, site, problem.y)
    try:
        with threads_for(problem.latent.dense_size):
            state, status, *_ = run(own, ExpectationPropagation(Cavity(site), 1.0), TOL, ITERATIONS, None)
    except KlimbError:
        return None
    return state.bound if status.name == "CONVERGED" and np.isfinite(state.bound) else None
