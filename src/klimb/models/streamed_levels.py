"""Levels of one coefficient, integrated out by passes: what a bound leaves of their evidence, and exact moments.

    log p(y, beta | theta) = log p(beta) + sum_l log Z_l(beta),    Z_l(beta) = int p(y_l | beta, b) N(b; 0, s^2) db

The integral of a level is a sum over nodes around q's own mean, and log p(y_l | beta, b) at a node a sum over rows, so
blocks may hold any rows of any levels. Gaussian levels leave nothing; those of few rows of yes and no do, the more the
larger s is, which is why a bound alone pulls s down. Together they also move the shared weights beta, of which q has
the curvature: steps by its covariance lead to the peak of log p(y, beta).
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from scipy.special import logsumexp

from klimb.infer.result import Result
from klimb.latents.arrow import ArrowWeights
from klimb.models.components import Components
from klimb.models.linear import LinearModel
from klimb.models.passes import MOST_VALUES, NODES, BlockReader, RowPasses
from klimb.numerics.arrays import Array
from klimb.numerics.dense import threads_for
from klimb.rows.blocks import RowBlock

NODE, WEIGHT = np.polynomial.hermite_e.hermegauss(NODES)
STEPS, SMALL, FAR = 3, 0.25, 1.0  # towards the peak of the shared weights; in sd: one that is the last, and too far
LITTLE = 0.02  # sd that nothing is put right for


def values_at(reader: BlockReader, shared: Array, centre: Array, sd: Array, block: RowBlock) -> tuple[Any, Array]:
    """The levels in a block, and log p of their rows at nodes around ``centre``: one row for each of ``shared``."""
    total, seen = np.zeros((*centre.shape, NODES)), np.zeros(centre.shape[1], dtype=bool)
    with threads_for(0), np.errstate(over="ignore", invalid="ignore"):
        for rows, data in reader.pieces(block):
            site = reader.model.site(data)
            y = site.validate(data.y)
            constant, wide = site.constant(y), rows.values[:, 0] * sd[rows.codes]
            seen[rows.codes] = True
            for own, beta, level in zip(total, shared, centre, strict=True):
                f = rows.X @ beta + rows.values[:, 0] * level[rows.codes]
                for j, z in enumerate(NODE):
                    own[:, j] += np.bincount(rows.codes, site.point(y, f + z * wide).value + constant, len(level))
    present = np.flatnonzero(seen)
    return present, total[:, present]


def slopes_at(reader: BlockReader, shared: Array, centre: Array, sd: Array, shares: Array, block: RowBlock) -> Array:
    """d sum_l log Z_l / d ``shared`` over the rows of a block: the slope of log p at nodes, by their ``shares``."""
    total = np.zeros(len(shared))
    with threads_for(0), np.errstate(over="ignore", invalid="ignore"):
        for rows, data in reader.pieces(block):
            site = reader.model.site(data)
            y, slope = site.validate(data.y), np.zeros(data.n)
            f, wide = rows.X @ shared + rows.values[:, 0] * centre[rows.codes], rows.values[:, 0] * sd[rows.codes]
            for j, z in enumerate(NODE):
                slope -= shares[rows.codes, j] * site.point(y, f + z * wide).alpha
            total += rows.X.T @ slope
    return total


@dataclass(frozen=True, eq=False)
class Levels:
    """The levels of a model at its theta, around their q."""

    model: LinearModel
    passes: RowPasses
    q: ArrowWeights

    @classmethod
    def of(cls, model: LinearModel, passes: RowPasses, result: Result) -> "Levels | None":
        """None where there are none, or where they have several coefficients each."""
        q: Any = result.posterior.latent.detach(result.posterior)
        return cls(model, passes, q) if model.level_size == 1 else None

    def at(self, e: Array) -> tuple[Array, Array, Array, Array]:
        """log Z of every level at shared + root e, a row each; where their nodes are, and the shares of those."""
        q, sd = self.q, np.sqrt(self.q.level_cov[:, 0, 0])  # given the shared weights
        shared, centre = q.shared + e @ q.root.T, q.level_mean[:, 0] - e @ q.pull[:, 0].T

        def by_a_pass() -> dict[str, Array]:
            values = np.zeros((*centre.shape, NODES))
            work = partial(values_at, self.passes.reader(self.model), shared, centre, sd)
            for present, found in self.passes.mapped(work):
                values[:, present] += found
            return {"values": values}

        values = self.passes.kept(by_a_pass, "levels", self.model.at, shared, centre, sd)["values"]
        scale = float(self.model.values[self.model.coded][0][0, 0])
        values -= 0.5 * ((centre[:, :, None] + sd[:, None] * NODE) / scale) ** 2
        values += np.log(WEIGHT) + 0.5 * NODE**2 - np.log(scale * np.sqrt(2.0 * np.pi))
        logs = logsumexp(values, axis=2)
        return logs + np.log(sd), centre, sd, np.exp(values - logs[:, :, None])

    @cached_property
    def own(self) -> tuple[Array, Array, Array, Array]:
        """The same at q's own mean, which the evidence and a first step take."""
        return self.at(np.zeros((1, self.q.root.shape[1])))

    def prior(self, e: Array) -> tuple[Array, Array]:
        """log p(beta) - log q(beta) - log det terms, at shared + root e; and the slope of the first."""
        mean, cov = self.model.prior_moments()
        away = self.q.shared + e @ self.q.root.T - mean
        prior = np.diag(cov) if cov.ndim == 1 else cov
        slope = np.asarray(-np.linalg.solve(prior, away.T).T, dtype=np.float64)
        V = self.q.root @ self.q.root.T
        shrunk = np.linalg.slogdet(V)[1] - np.linalg.slogdet(prior)[1]
        return 0.5 * ((slope * away).sum(axis=1) + (e**2).sum(axis=1) + shrunk), slope

    def evidence(self) -> float:
        """log p(y), where log p(y, beta) is as q has it around its mean."""
        return float(self.own[0].sum() + self.prior(np.zeros((1, self.q.root.shape[1])))[0][0])

    def log_weights(self, e: Array) -> Array:
        """log p(y, beta) - log q(beta) at draws of the shared weights."""
        at_once = max(1, MOST_VALUES // (NODES * len(self.q.level_mean)))
        logs = [self.at(some)[0].sum(axis=1) for some in np.split(e, range(at_once, len(e), at_once))]
        return np.asarray(np.concatenate(logs) + self.prior(e)[0])

    def _slope(self, work: partial[Array]) -> Array:
        return self.passes.kept(lambda: {"slope": np.sum(list(self.passes.mapped(work)), axis=0)}, "slopes",
                                self.model.at, *work.args[1:])["slope"]

    def corrected(self, steps: int = STEPS) -> ArrowWeights | None:
        """q with the shared weights at the peak of log p(y, beta), levels with their exact moments given those.

        None where that is farther from q than its own sd, or so near that a mean and a peak differ as much.
        """
        q, e = self.q, np.zeros((1, self.q.root.shape[1]))
        reader = self.passes.reader(self.model)
        for k in range(steps):
            _, centre, sd, shares = self.at(e) if k else self.own
            work = partial(slopes_at, reader, q.shared + q.root @ e[0], centre[0], sd, shares[0])
            step = q.root.T @ (self._slope(work) + self.prior(e)[1][0])
            e = e + step
            if not LITTLE <= np.abs(e).max(initial=0.0) < FAR:
                return None
            if np.abs(step).max(initial=0.0) < SMALL:
                break
        away = shares[0] @ NODE
        variance = sd**2 * (shares[0] @ NODE**2 - away**2)
        mean = centre[0] + sd * away - q.pull[:, 0] @ step
        return replace(q, shared=q.shared + q.root @ e[0], level_mean=mean[:, None], level_cov=variance[:, None, None])


def exact_of(model: LinearModel, passes: RowPasses, result: Result, steps: int = STEPS) -> tuple[Any, float]:
    """q of a fit, with exact moments where its levels can be integrated out, and its log evidence less the bound."""
    found: tuple[Any, float] | None = passes.exact.get(result.posterior)
    if found is None:
        levels = Levels.of(model, passes, result)
        own = result.posterior.latent.detach(result.posterior)
        found = (own, 0.0) if levels is None else (levels.corrected(steps) or own, levels.evidence() - result.bound)
        passes.exact[result.posterior] = found
    return found


def along(components: Components, centre: Array, here: tuple[Any, Any], ends: Array | None = None,
          there: Sequence[tuple[Any, Any]] = ()) -> Components:
    """Components whose parts move from few rows to fits by passes: at ``centre``, and to both ends of every axis.

    ``here`` and ``there`` are the two posteriors at these points. Between them every number of a part moves by a
    quadratic in theta.
    """
    names = [own.name for own in fields(here[0])]
    moves = [{name: getattr(real, name) - getattr(few, name) for name in names} for few, real in (here, *there)]
    parts = []
    for theta, part in zip(components.theta, components.parts, strict=True):
        shares = np.zeros(len(moves))
        for j, at in enumerate(theta - centre):
            low, high = (0.0, 0.0) if ends is None else ends[2 * j : 2 * j + 2, j] - centre[j]
            if low < 0.0 < high:
                shares[1 + 2 * j] = at * (at - high) / (low * (low - high))
                shares[2 + 2 * j] = at * (at - low) / (high * (high - low))
        shares[0] = 1.0 - shares.sum()
        known: Any = part
        parts.append(replace(known, **{name: getattr(part, name) + sum(
            share * move[name] for share, move in zip(shares, moves, strict=True) if share) for name in names}))
    return replace(components, parts=tuple(parts), uncorrected=components)
