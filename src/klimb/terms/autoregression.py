"""``ar1(t)`` and ``ar(t, p=2)``: stationary autoregressions over time.

    x_k | x_<k ~ N(sum over lags of phi_j x_{k-j}, s^2 prod over lags of (1 - psi_j^2)),        x_k ~ N(0, s^2)

with psi_j the partial autocorrelations: any values between -1 and 1 make a stationary process. The first values have
fewer lags, with the coefficients of that order (Durbin and Levinson), so that Q = B'diag(1 / innovation variances)B
with B a unit lower triangular band. Times of an autoregression of order 1 may have gaps: over a gap d the correlation
is rho^d, exactly. Whole-number times are steps of one; a higher order needs them, and has a node at each of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from klimb._stan import StanDefinition, StanPart, said
from klimb._stored import stored
from klimb.errors import require
from klimb.formula.functions import Function, Parameter, bind
from klimb.formula.nodes import Call
from klimb.formula.numeric import Numeric, learn_numeric
from klimb.numerics.arrays import Array
from klimb.numerics.lazy import scipy_linalg, scipy_sparse
from klimb.priors import PCCorrelation
from klimb.rows.table import Source
from klimb.terms.base import Context, Nodes
from klimb.terms.field import Field, apart, banded, column_positions, grid, on_pattern, snapped, symmetric_pattern
from klimb.theta import ParameterBlock

MOST_LAGS = 10
CLOSE = 1e-9  # of an ordinary step, below which two times are one: a precision has the inverse of the step


@stored("term.autoregression")
@dataclass(frozen=True, eq=False)
class Autoregression(Field):
    """A stationary autoregression over its nodes; values are its marginal sd and partial autocorrelations."""

    kind = "autoregression"
    functions = (Function("ar1", "special", (Parameter("t", "numeric"),),
                          "autoregression of order 1 over time; times may have gaps", joins=True),
                 Function("ar", "special", (Parameter("t", "numeric"), Parameter("p", "whole", 1)),
                          "autoregression of order p over whole-number times", joins=True))
    name: str
    expression: Numeric
    lags: int
    nodes: Array
    parameters: tuple[ParameterBlock, ...] = ()

    @classmethod
    def learn(cls, call: Call, source: Source, text: str, factors: dict[str, Any]) -> "tuple[Autoregression, ...]":
        """Nodes at the times of the data; at every whole number of their range for higher orders."""
        arguments = bind(call)
        lags, expression = int(arguments.get("p", 1)), learn_numeric(arguments["t"], source)
        require(1 <= lags <= MOST_LAGS, f"expected p from 1 to {MOST_LAGS}", str(lags), "1 is ar1(t).")
        times = column_positions(expression, source, whole=lags > 1)
        nodes = grid(times) if lags > 1 else apart(times, CLOSE * _ordinary(times))
        require(len(nodes) >= lags + 2, f"expected at least {lags + 2} different times",
                f"{len(nodes)} in {expression}", "Use fewer lags.")
        return (cls(f"{call.function}({arguments['t']})", expression, lags, nodes),)

    @cached_property
    def _whole(self) -> bool:
        return bool((self.nodes == np.round(self.nodes)).all())

    def shape_parameters(self, context: Context) -> tuple[ParameterBlock, ...]:
        low, choices = (-1.0 if self._whole else 0.0), context.choices
        names = ["rho"] if self.lags == 1 else [f"pacf{j + 1}" for j in range(self.lags)]
        begin = 0.75 if self._whole else 0.5
        return tuple(choices.bounded(f"{name}({self.name})", PCCorrelation(0.5, 0.5), low, 1.0,
                                     begin=begin if number == 0 else 0.5) for number, name in enumerate(names))

    # -- the prior

    @cached_property
    def pattern(self) -> Any:
        n, ones = len(self.nodes), np.ones(len(self.nodes))
        B = banded([ones] * (self.lags + 1), range(-self.lags, 1), (n, n))
        return symmetric_pattern(B.T @ B)

    def entries(self, values: Sequence[Any]) -> tuple[Array, float]:
        """By bands: entry (i, i + lag) of B'WB is the sum over k of B_{k,i} W_k B_{k,i+lag}."""
        lower, weights = self._triangle(values)
        n, p = len(self.nodes), self.lags
        bands = []
        for lag in range(p + 1):
            total = np.zeros(n - lag)  # of column i and row i + lag
            for j in range(lag, p + 1):  # k = i + j holds column i at band j and column i + lag at band j - lag
                total[: n - j] += lower[j, : n - j] * weights[j:] * lower[j - lag, lag : n - j + lag]
            bands.append(total)
        matrix = banded([bands[abs(lag)] for lag in range(-p, p + 1)], range(-p, p + 1), (n, n))
        return on_pattern(matrix, self.pattern), float(np.log(weights).sum())  # which has entries that are 0 here

    def _triangle(self, values: Sequence[Any]) -> tuple[Array, Array]:
        """Bands of B, lower[j, i] = B_{i+j, i}, and the innovations' precisions."""
        sd, partial = float(values[0]), [float(value) for value in values[1:]]
        n, p = len(self.nodes), self.lags
        lower, weights = np.zeros((p + 1, n)), np.full(n, sd**-2)
        lower[0] = 1.0
        if p == 1:
            gaps = np.diff(self.nodes)
            lower[1, :-1] = -_powers(partial[0], gaps)
            weights[1:] /= _rest(partial[0], gaps)
            return lower, weights
        coefficients, variance = np.zeros(0), 1.0
        for order, psi in enumerate(partial, start=1):
            coefficients = np.append(coefficients - psi * coefficients[::-1], psi)
            variance *= 1.0 - psi**2
            last = n if order == p else order + 1  # rows that have this many lags
            for j in range(1, order + 1):
                lower[j, order - j : last - j] = -coefficients[j - 1]
            weights[order:last] = 1.0 / (sd**2 * variance)
        return lower, weights

    def stan_root(self, values: Sequence[str], z: str, w: str, tag: str, columns: int = 0) -> StanPart:
        """One time after the other."""
        n, p, sd, data = len(self.nodes), self.lags, values[0], StanPart()
        begin = (f"{w}{{c}}[1] = {sd} * {z}[1];", f"for (k in 2:{n}) {{")
        if p == 1:
            gap = f"gap{tag}"
            data = StanPart(data=(f"vector[{n - 1}] {gap};" + said(f"between times of {self.name}"),),
                            values={gap: np.diff(self.nodes)})
            each = [f"  real r = pow({values[1]}, {gap}[k - 1]);",
                    f"  {w}{{c}}[k] = r * {w}{{c}}[k - 1] + {sd} * sqrt(1 - square(r)) * {z}[k];"]
            steps = [*begin, *each, "}"]
        else:  # Durbin and Levinson
            each = [f"  if (k <= {p + 1}) {{", "    real psi = partial[k - 1];", f"    vector[{p}] old = a;",
                    "    for (j in 1:(k - 2)) a[j] = old[j] - psi * old[k - 1 - j];", "    a[k - 1] = psi;",
                    "    v *= 1 - square(psi);", "  }", f"  {w}{{c}}[k] = sqrt(v) * {z}[k];",
                    f"  for (j in 1:min(k - 1, {p})) {w}{{c}}[k] += a[j] * {w}{{c}}[k - j];"]
            steps = ["{", f"vector[{p}] partial = [{', '.join(values[1:])}]';", f"vector[{p}] a = rep_vector(0, {p});",
                     f"real v = square({sd});", *begin, *each, "}", "}"]
        kind = f"matrix[{n}, {columns}]" if columns else f"vector[{n}]"
        return replace(data, transformed=(StanDefinition(kind, w, "", steps=tuple(steps)),), free=(n,))

    def standardised(self, values: Sequence[Any], weights: Array) -> Array:
        lower, precisions = self._triangle(values)
        found = np.array(weights)
        for j in range(1, self.lags + 1):
            found[..., j:] += lower[j, :-j] * weights[..., :-j]
        return np.asarray(found * np.sqrt(precisions))

    # -- rows

    def block(self, source: Source) -> Nodes:
        x, nodes = snapped(self.expression.evaluate(source)), self.nodes
        if self.lags > 1:
            source.check((x == np.round(x)) | np.isnan(x), x, f"{self.name} needs whole-number times",
                         "Count time in steps.")
        right = np.clip(np.searchsorted(nodes, x), 1, len(nodes) - 1)
        closest = np.where(x - nodes[right - 1] < nodes[right] - x, right - 1, right)
        at = np.abs(x - nodes[closest]) <= CLOSE * _ordinary(nodes)
        matrix = scipy_sparse.csr_array((np.ones(int(at.sum())), (np.flatnonzero(at), closest[at])),
                                        shape=(len(x), self.size))
        return Nodes(matrix, None if at.all() else np.where(at, np.nan, x))

    def at_nodes(self) -> tuple[Any, Any]:
        return self.nodes, scipy_sparse.eye_array(self.size, format="csr")

    def columns_at(self, block: Nodes, values: Sequence[Any]) -> Any:
        return block.values if block.beyond is None else self._expected(block, values)[0]

    def new(self, block: Nodes, values: Sequence[Any]) -> Array | None:
        """What the nodes leave unknown of the process at other times."""
        if block.beyond is None:
            return None
        return np.asarray(values[0] * np.sqrt(np.maximum(self._expected(block, values)[1], 0.0)))[:, None]

    def _expected(self, block: Nodes, values: Sequence[Any]) -> tuple[Any, Array]:
        """Rows over the nodes of E[x | nodes] at other times, and what is left of the variance at sd 1."""
        assert block.beyond is not None
        rows = scipy_sparse.lil_array(block.values)
        rest, x = np.zeros(rows.shape[0]), block.beyond
        for row in np.flatnonzero(np.isfinite(x)).tolist():
            columns, weights, rest[row] = self._conditional(float(x[row]), values)
            rows[row, columns] = weights
        return scipy_sparse.csr_array(rows), rest

    def _conditional(self, x: float, values: Sequence[Any]) -> tuple[Any, Array, float]:
        last, p = len(self.nodes) - 1, self.lags
        inside = self.nodes[0] < x < self.nodes[-1]
        if inside:  # order 1, between two nodes
            left = int(np.searchsorted(self.nodes, x)) - 1
            gaps = np.array([x - self.nodes[left], self.nodes[left + 1] - x])
            (one, two), (rest, other) = _powers(values[1], gaps), _rest(values[1], gaps)
            known = rest + one**2 * other
            return [left, left + 1], np.array([one * other, two * rest]) / known, rest * other / known
        gap = np.array([max(x - self.nodes[-1], self.nodes[0] - x)])
        ends = [last - j for j in range(p)] if x > self.nodes[-1] else list(range(p))  # a mirror image is as likely
        if p == 1:
            return ends, _powers(values[1], gap), float(_rest(values[1], gap)[0])
        coefficients, variance, correlations = np.zeros(0), 1.0, [1.0]
        for psi in values[1:]:
            correlations.append(float(coefficients @ correlations[:0:-1]) + psi * variance)
            coefficients = np.append(coefficients - psi * coefficients[::-1], psi)
            variance *= 1.0 - psi**2
        companion = np.eye(p, k=-1)
        companion[0] = coefficients
        state = np.linalg.matrix_power(companion, int(gap[0]))[0]
        return ends, state, 1.0 - float(state @ scipy_linalg.toeplitz(correlations[:p]) @ state)


def _ordinary(times: Array) -> float:
    """A step between times that is no exception."""
    return float(np.quantile(np.diff(times), 0.75)) if len(times) > 1 else 0.0


def _powers(rho: float, gaps: Array) -> Array:
    """rho^gap; a negative rho needs whole-number gaps."""
    sizes = np.exp(gaps * _log(rho))
    return np.asarray(sizes if rho >= 0.0 else sizes * np.where(np.round(gaps) % 2 == 1, -1.0, 1.0))


def _rest(rho: float, gaps: Array) -> Array:
    """1 - rho^(2 gap)."""
    return np.asarray(-np.expm1(2.0 * gaps * _log(rho)))


def _log(rho: float) -> float:
    return float(np.log(max(abs(rho), 1e-300)))
