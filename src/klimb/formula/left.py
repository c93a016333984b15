"""The left side of a formula: a column, a function of one, successes and trials, or times that may be censored."""

from dataclasses import dataclass
from typing import Literal, final

import numpy as np

from klimb._stored import stored
from klimb.errors import InputError, listed
from klimb.formula.errors import FormulaError
from klimb.formula.functions import FUNCTIONS, bind
from klimb.formula.nodes import Call, Name, Node
from klimb.formula.numeric import Numeric, learn_numeric
from klimb.formula.parts import label
from klimb.numerics.arrays import Array
from klimb.rows.columns import match_levels, rows_named
from klimb.rows.table import Source


@final
@stored("formula.left")
@dataclass(frozen=True)
class LeftSide:
    """What is modelled.

    A number (with the functions applied to it), the code of a level (0, 1, ..., in the order of ``levels``; False and
    True are 0 and 1), successes and trials, two columns, or times and whether they are of events (1, else 0).
    """

    name: str
    kind: Literal["number", "levels", "trials", "times"]
    columns: tuple[str, ...]
    expression: Numeric | None = None
    levels: tuple[str, ...] = ()
    failures: bool = False  # the second column counts failures, not trials

    def encode(self, source: Source) -> Array:
        if self.kind == "trials":
            return self._trials(source)
        if self.kind == "levels":
            codes, labels = source.factor(self.columns[0])
            known = match_levels(codes, labels, self.levels)
            if len(known) and known.min() < 0:
                new = [text for text in labels if text not in set(self.levels)]
                raise InputError(f"the response must have levels that were there at the fit: {listed(self.levels)}",
                                 f"{listed(map(repr, new), 5)} in {rows_named(source.rows[known < 0])}",
                                 "Leave these rows out.")
            return known.astype(np.float64)
        assert self.expression is not None
        return self.expression.evaluate(source).copy()  # the fit's own: the caller may write to the data later

    def status(self, source: Source) -> Array | None:
        """1 where a time is that of an event, 0 where it is censored; None where the response is no time."""
        if self.kind != "times":
            return None
        values = source.number(self.columns[1])
        advice = "Give 1 for an event, 0 for a censored time."
        if len(values) and set(np.unique(values)) <= {1.0, 2.0}:
            advice += " Where 1 is censored and 2 the event, as R's survival has it, subtract 1."
        source.check((values == 0.0) | (values == 1.0), values, f"Surv() needs 0 and 1 in {self.columns[1]!r}", advice)
        return values

    def _trials(self, source: Source) -> Array:
        successes, second = (source.number(column) for column in self.columns)
        for name, values in zip(self.columns, (successes, second), strict=True):
            source.check((values >= 0) & (values == np.floor(values)), values,
                         f"{self.name} needs counts in {name!r}", "Give whole numbers from 0 on.")
        trials = successes + second if self.failures else second
        source.check(successes <= trials, successes, f"{self.name} needs no more successes than trials",
                     "Check which column is which: p(successes, trials), cbind(successes, failures).")
        return np.column_stack([successes, trials])


def learn_response(node: Node, source: Source, text: str) -> LeftSide:
    """The response of a formula; numbers stay numbers, text and booleans become codes."""
    if isinstance(node, Name):
        column = source.column(node.name)
        if column.is_factor:
            _, levels = source.factor(node.name)
            if column.kind == "flag":
                levels = ("False", "True")
            return LeftSide(node.name, "levels", (node.name,), levels=levels)
        return _checked(LeftSide(node.name, "number", (node.name,), learn_numeric(node, source)), source)
    if isinstance(node, Call):
        role = FUNCTIONS[node.function].role
        arguments = bind(node, text)
        if role == "response":
            if node.function == "Surv":
                expression = learn_numeric(arguments["time"], source)
                columns = (expression.column, arguments["status"].name)
                return _checked(LeftSide(str(expression), "times", columns, expression), source)
            columns = tuple(column.name for column in arguments.values())
            return _checked(LeftSide(label(node), "trials", columns, failures=node.function == "cbind"), source)
        if role == "elementwise":
            expression = learn_numeric(node, source)
            if all(step.function not in ("standardize", "scale", "center") for step in expression.steps):
                return _checked(LeftSide(label(node), "number", (expression.column,), expression), source)
    raise FormulaError("expected one response left of ~", str(node),
                       "Write y, log(y) or another function of one column, cbind(successes, failures), p(y, n), "
                       "y | trials(n) or Surv(time, status).", text, node.span)


def _checked(response: LeftSide, source: Source) -> LeftSide:
    """Look at all values now, when the place in the formula is known."""
    response.encode(source)
    response.status(source)
    return response
