"""``spde(x)``: a Matern process with nu = 3/2 over a line, exactly, by its Markov form.

In units of the extent of the places, with k = kappa times the extent, z = (f, f') is a Markov process: over a gap d

    z_{j+1} | z_j ~ N(A z_j, s^2 C),        z_0 ~ N(0, s^2 diag(1, k^2)).

Over a gap far shorter than the range C is about k^3 (d^3, d^2, d), so that the precision of z has entries beside which
what it says of the level is lost in rounding. Weights are therefore the level a and the slope b at the first node, and
at each other node what the straight line through these leaves, w_j = z_j - T_j (a, b), T_j = [1 t_j; 0 1]:

    w_{j+1} - A w_j + R_j (a, b) ~ N(0, s^2 C),        R_j = T_{j+1} - A T_j,

where R vanishes as the range grows. The condition of the precision is then bounded by the gaps between nodes alone, by
about the sum of (extent / gap)^3 whatever the range; places closer than that allows share nodes, between which f is a
cubic. Other places have their exact conditional distribution given the two nodes beside them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.special import gammainc

from klimb._stan import StanDefinition, StanPart, literal, said
from klimb._stored import stored
from klimb.errors import require
from klimb.formula.numeric import Numeric
from klimb.latents.weights_posterior import Moments
from klimb.linalg.chains import semidefinite_root
from klimb.linalg.matern import derivatives, noise, transition
from klimb.numerics.arrays import Array, Index
from klimb.numerics.lazy import scipy_sparse
from klimb.priors import pc_lengthscale
from klimb.rows.table import Source
from klimb.terms.base import Context, Nodes
from klimb.terms.field import Field, column_positions, symmetric_pattern
from klimb.theta import ParameterBlock

TYPICAL = 0.2  # median of the range in the default prior, of the largest distance between places
FEW = 5.0  # spacings in a range, below which the nodes do not tell it
SMOOTH = 1e-6  # k of a curve that is a cubic between nodes
DIGITS = 2e12  # the most that (extent / gap)^3 may add up to: log densities keep errors below 1e-3
WORST = 1e4 * DIGITS  # the same where a user asks for it: short ranges are right, long ones may be out of reach


@stored("term.curve")
@dataclass(frozen=True, eq=False)
class MaternCurve(Field):
    """A Matern process at places on a line; values are its standard deviation and its range."""

    kind = "curve"
    name: str
    expression: Numeric
    nodes: Array
    spacing: float  # that of places that share nodes; 0 where every place has one
    parameters: tuple[ParameterBlock, ...] = ()

    @classmethod
    def learn(cls, name: str, expression: Numeric, source: Source, spacing: float | None) -> "tuple[MaternCurve, ...]":
        """A node at every place of the data, or at points of a grid near them."""
        places = column_positions(expression, source)
        require(len(places) >= 3, "expected at least three different places", str(len(places)), "Use (1 | g).")
        extent = float(np.ptp(places))
        nodes, closest = places if spacing is None else _on_grid(places, spacing), spacing or 0.0
        while spacing is None and _lost(nodes, extent) > DIGITS:
            closest = max(1.25 * closest, 1e-5 * extent)
            nodes = _on_grid(places, closest)
        require(_lost(nodes, extent) <= WORST, "expected a spacing that double precision can tell", f"{spacing}",
                f"Choose one of {extent * WORST**-0.25:.2g} or more.")
        require(len(nodes) > 1, "expected a spacing below the extent of the places", f"{spacing}", "Leave it out.")
        return (cls(name, expression, nodes, closest),)

    def note(self) -> str:
        return (f"{self.name} has {len(self.nodes):,} nodes, {self.spacing:.2g} apart where the data are dense; "
                "spacing= chooses another.") if self.spacing else ""

    def doubt(self, values: Sequence[Any]) -> tuple[float, str]:
        return FEW * self.spacing / values[1], (
            f"range({self.name}) is {values[1]:.2g}, and its nodes are {self.spacing:.2g} or more apart: pass "
            f"spacing={0.1 * values[1]:.1g}.")

    def shape_parameters(self, context: Context) -> tuple[ParameterBlock, ...]:
        typical = TYPICAL * self._extent
        return (context.choices.positive(f"range({self.name})", pc_lengthscale(typical, 0.5), typical, kind="field"),)

    # -- the prior

    @cached_property
    def _extent(self) -> float:
        return float(np.ptp(self.nodes))

    @cached_property
    def _times(self) -> Array:
        return np.asarray((self.nodes - self.nodes[0]) / self._extent)

    @cached_property
    def _gaps(self) -> Array:
        return np.diff(self._times)

    @property
    def size(self) -> int:
        return 2 * len(self.nodes)

    @cached_property
    def _local(self) -> Index:
        """(n - 1, 6): the weights of each step, before it, after it, and the line; -1 for those of the first node."""
        n = len(self.nodes)
        own = 2 * np.arange(n - 1)[:, None] + np.arange(-2, 2)
        return np.hstack([np.maximum(own, -1), np.tile([2 * n - 2, 2 * n - 1], (n - 1, 1))])

    @cached_property
    def _scatter(self) -> tuple[Any, Index, Index]:
        """The pattern, which entries of the (6, 6) matrices of all steps there are, and where they go."""
        rows, columns = np.repeat(self._local, 6, axis=1).ravel(), np.tile(self._local, 6).ravel()
        there = np.flatnonzero((rows >= 0) & (columns >= 0))
        n, at = self.size, (rows[there], columns[there])
        pattern = symmetric_pattern(scipy_sparse.coo_array((np.ones(len(there)), at), shape=(n, n)))
        keys = np.repeat(np.arange(n, dtype=np.int64), np.diff(pattern.indptr)) * n + pattern.indices
        return pattern, there, np.searchsorted(keys, at[1].astype(np.int64) * n + at[0])

    @property
    def pattern(self) -> Any:
        return self._scatter[0]

    def _gathered(self, local: Array, level: float, slope: float) -> Array:
        """The entries on the pattern of the sum of (6, 6, n - 1) matrices, and those of the line's own precision."""
        pattern, there, to = self._scatter
        data = np.bincount(to, local.transpose(2, 0, 1).ravel()[there], pattern.nnz).astype(np.float64)
        data[[pattern.indptr[-2] - 2, pattern.nnz - 1]] += level, slope
        return data

    def _rate(self, values: Sequence[Any]) -> float:
        """k = kappa times the extent."""
        return float(np.sqrt(12.0) / values[1] * self._extent)

    def _steps(self, k: float) -> tuple[Array, Array]:
        """M (2, 6, n - 1) with M (w_j, w_{j+1}, a, b) the innovation of a step, and its covariance C at s = 1."""
        t, d = self._times[:-1], self._gaps
        x = k * d
        A, C = _moved(d, k)
        M = np.zeros((2, 6, len(d)))
        M[:, :2], M[0, 2], M[1, 3] = -A, 1.0, 1.0
        M[0, 4], M[1, 4] = gammainc(2.0, x), -A[1, 0]  # 1 - A_00 keeps its digits
        M[0, 5] = -d * np.expm1(-x) + t * M[0, 4]
        M[1, 5] = -np.expm1(-x) + x * np.exp(-x) - A[1, 0] * t
        return M, C

    def _excess(self, k: float) -> tuple[Array, Array]:
        """k dM/dk, and k dC/dk - 3 C, which vanishes beside C as the range grows."""
        t, x = self._times[:-1], k * self._gaps
        powers = np.subtract.outer(np.arange(2), np.arange(2))[:, :, None] * 1.0
        A, C = transition(2, x), noise(2, x)
        dA, dC = derivatives(2, x)
        scale = k ** powers
        dA = (dA + powers * A) * scale
        both = np.add.outer(np.arange(2), np.arange(2))[:, :, None] * 1.0
        dM = np.zeros((2, 6, len(x)))
        dM[:, :2], dM[:, 4], dM[:, 5] = -dA, -dA[:, 0], -dA[:, 0] * t - dA[:, 1]
        return dM, (dC + (both - 3.0) * C) * k**both

    def entries(self, values: Sequence[Any]) -> tuple[Array, float]:
        s, k = float(values[0]), self._rate(values)
        M, C = self._steps(k)
        W, logdet = _inverse(C)
        local = np.einsum("ain,abn,bjn->ijn", M, W, M) / s**2
        total = -logdet.sum() - 2.0 * self.size * np.log(s) - 2.0 * np.log(k)
        return self._gathered(local, s**-2, (s * k) ** -2), float(total)

    def gradient(self, values: Sequence[Any], moments: Moments) -> tuple[float, ...]:
        """E[w'Q w] cancels where gaps are short: it is taken from what the sites explain, and dQ as -3 Q and a rest.

        k dQ/dk = -3 Q + sum over steps of (dM'W M + M'W dM - M'W dC' W M) + (3 of the level, 1 of the slope), with W =
        C^-1 and dC' = k dC/dk - 3 C.
        """
        s, k, pattern = float(values[0]), self._rate(values), self.pattern
        M, C = self._steps(k)
        dM, dC = self._excess(k)
        W, _ = _inverse(C)
        columns = np.repeat(np.arange(self.size), np.diff(pattern.indptr))
        second = moments.pattern(pattern.indices.astype(np.intp), columns)
        WM = np.einsum("abn,bjn->ajn", W, M)
        cross = np.einsum("ain,ajn->ijn", dM, WM)
        local = cross + cross.transpose(1, 0, 2) - np.einsum("ain,abn,bjn->ijn", WM, dC, WM)
        rest = float(self._gathered(local / s**2, 3.0 * s**-2, (s * k) ** -2) @ second)
        if moments.explained is None:
            square = float(self.entries(values)[0] @ second)
        else:
            square = float((self.standardised(values, moments.mean) ** 2).sum())
            square += self.size - moments.explained(slice(0, self.size))
        steps = len(self.nodes) - 1
        by_rate = 0.5 * (3.0 * square - rest - 6.0 * steps - 2.0 - float(np.einsum("abn,abn->", W, dC)))
        return (square - self.size) / s, -by_rate / float(values[1])

    def standardised(self, values: Sequence[Any], weights: Array) -> Array:
        s, k = float(values[0]), self._rate(values)
        M, C = self._steps(k)
        own = np.where(self._local >= 0, weights[..., self._local], 0.0)
        first, second = np.einsum("ajn,...nj->a...n", M, own)
        (top, _), (across, below) = semidefinite_root(C)
        one = first / top
        found = np.stack([one, (second - across * one) / below], axis=-1).reshape(*weights.shape[:-1], -1)
        return np.concatenate([found, weights[..., -2:] / [1.0, k]], axis=-1) / s

    def stan_root(self, values: Sequence[str], z: str, w: str, tag: str, columns: int = 0) -> StanPart:
        """One place after the other; 1 - e^-2x (1 + 2 x + 2 x^2) is an incomplete gamma function."""
        n, sd, gap, time = len(self.nodes), values[0], f"gap{tag}", f"time{tag}"
        index, last = (", ]" if columns else "]"), 2 * n
        kind = f"matrix[{last}, {columns}]" if columns else f"vector[{last}]"
        state = f"row_vector[{columns}]" if columns else "real"

        def at(of: str, row: str) -> str:
            return f"{of}[{row}{index}"

        out = w + "{c}"
        steps = ["{", f"real k = {literal(np.sqrt(12.0) * self._extent)} / {values[1]};",
                 f"{state} f = {sd} * {at(z, str(last - 1))};", f"{state} g = {sd} * k * {at(z, str(last))};",
                 f"{at(out, str(last - 1))} = f;", f"{at(out, str(last))} = g;", f"for (j in 1:{n - 1}) {{",
                 f"  real x = k * {gap}[j];", "  real p = gamma_p(3, 2 * x);",
                 "  real q = 2 * square(x) * exp(-2 * x);",
                 "  real r = -expm1(-2 * x) + 2 * x * (1 - x) * exp(-2 * x);", f"  {state} old = f;",
                 f"  f = exp(-x) * ((1 + x) * old + {gap}[j] * g) + {sd} * sqrt(p) * {at(z, '2 * j - 1')};",
                 f"  g = exp(-x) * ((1 - x) * g - k * x * old) + {sd} * k * (q / sqrt(p) * {at(z, '2 * j - 1')} "
                 f"+ sqrt(r - square(q) / p) * {at(z, '2 * j')});",
                 f"  {at(out, '2 * j - 1')} = f - {at(out, str(last - 1))} - {time}[j + 1] * {at(out, str(last))};",
                 f"  {at(out, '2 * j')} = g - {at(out, str(last))};", "}", "}"]
        data = (f"vector[{n - 1}] {gap};" + said(f"between places of {self.name}"), f"vector[{n}] {time};")
        return StanPart(data=data, values={gap: self._gaps, time: self._times}, free=(last,),
                        transformed=(StanDefinition(kind, w, "", steps=tuple(steps)),))

    # -- rows

    def block(self, source: Source) -> Nodes:
        x = self.expression.evaluate(source)
        right = np.clip(np.searchsorted(self.nodes, x), 1, len(self.nodes) - 1)
        away = np.minimum(np.abs(x - self.nodes[right]), np.abs(x - self.nodes[right - 1]))
        near = away <= 0.5 * (1.0 + 1e-9) * self.spacing
        rows = self._rows(x, SMOOTH, near)[0]
        return Nodes(rows, None if near.all() else np.where(near, np.nan, x))

    def at_nodes(self) -> tuple[Any, Any]:
        return self.nodes, self._rows(self.nodes, SMOOTH, np.ones(len(self.nodes), dtype=bool))[0]

    def columns_at(self, block: Nodes, values: Sequence[Any]) -> Any:
        if block.beyond is None:
            return block.values
        return block.values + self._rows(block.beyond, self._rate(values), np.isfinite(block.beyond))[0]

    def new(self, block: Nodes, values: Sequence[Any]) -> Array | None:
        """What the nodes leave unknown of f between them and beyond."""
        if block.beyond is None:
            return None
        rest = self._rows(block.beyond, self._rate(values), np.isfinite(block.beyond))[1]
        return np.asarray(values[0] * np.sqrt(rest))[:, None]

    def _rows(self, x: Array, k: float, wanted: Any) -> tuple[Any, Array]:
        """Rows of E[f(x) | the nodes] for the wanted ones, and the variance that is left at s = 1."""
        n, which = len(self.nodes), np.flatnonzero(wanted)
        place = (x[which] - self.nodes[0]) / self._extent
        left = np.clip(np.searchsorted(self.nodes, x[which], side="right") - 1, 0, n - 2)
        h = self._gaps[left]
        d = np.clip(place - self._times[left], 0.0, h)
        (here, own), (rest, _), (over, whole) = _moved(d, k), _moved(h - d, k), _moved(h, k)
        cross = np.einsum("bn,abn->an", own[0], rest)  # Cov(f(x), state at the right | that at the left)
        gain = np.einsum("bn,abn->an", cross, _inverse(whole)[0])
        before, left_over = here[0] - np.einsum("bn,ban->an", gain, over), own[0, 0] - (gain * cross).sum(axis=0)
        exact = self.nodes[left + 1] == x[which]
        gain[:, exact], before[:, exact], left_over[exact] = [[1.0], [0.0]], 0.0, 0.0
        for outside, end, to, other, sign in ((place > 1.0, 1.0, gain, before, 1.0),
                                              (place < 0.0, 0.0, before, gain, -1.0)):
            A, C = _moved(np.abs(place[outside] - end), k)
            to[:, outside], other[:, outside] = A[0] * np.array([[1.0], [sign]]), 0.0
            left_over[outside] = C[0, 0]
        slope = before[1] + gain[1] + before[0] * self._times[left] + gain[0] * self._times[left + 1]
        values = np.stack([*before, *gain, before[0] + gain[0], slope])
        columns = self._local[left].T
        kept = (columns >= 0) & (values != 0.0)
        rows = np.broadcast_to(which, values.shape)[kept]
        variances = np.zeros(len(x))
        variances[which] = np.maximum(left_over, 0.0)
        return scipy_sparse.csr_array((values[kept], (rows, columns[kept])), shape=(len(x), self.size)), variances


def _moved(d: Array, k: float) -> tuple[Array, Array]:
    """A and C over gaps, for the state (f, f') in units of the extent."""
    scale = np.array([1.0, k])
    return (transition(2, k * d) * (scale[:, None] / scale)[:, :, None],
            noise(2, k * d) * np.multiply.outer(scale, scale)[:, :, None])


def _inverse(C: Array) -> tuple[Array, Array]:
    """C^-1 and log det C of (2, 2) matrices."""
    det = C[0, 0] * C[1, 1] - C[0, 1] ** 2
    return np.array([[C[1, 1], -C[0, 1]], [-C[0, 1], C[0, 0]]]) / det, np.log(det)


def _on_grid(places: Array, spacing: float) -> Array:
    """The points of a grid that some place is next to."""
    return np.asarray(places[0] + spacing * np.unique(np.round((places - places[0]) / spacing)))


def _lost(nodes: Array, extent: float) -> float:
    with np.errstate(over="ignore"):  # places may be the next float to each other
        return float(((extent / np.diff(nodes)) ** 3).sum())
