"""The network behind some data: which variables there are, who speaks to whom, the bound and each factor's optimum."""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

import numpy as np

from klimb.conjugate.conditionals import NormalGiven
from klimb.conjugate.families import Family, Naturals
from klimb.conjugate.variables import Evidence, NetworkState, Variable
from klimb.errors import InputError, NotPositiveDefiniteError


@final
class Network:
    """All variables that some evidence depends on, parents first."""

    def __init__(self, evidence: Iterable[Evidence]) -> None:
        self.evidence = tuple(evidence)
        for item in self.evidence:
            if not isinstance(item, Evidence):
                raise InputError("a network is made from observed data", f"{item!r}",
                                 "Call .observe(values) on the node that was seen.")
        if not self.evidence:
            raise InputError("a network needs observed data", "none", "Call .observe(values) on a node.")
        self.variables = ancestors([variable for item in self.evidence for variable in item.variables])
        self._said: dict[Variable, list[Evidence]] = {variable: [] for variable in self.variables}
        self._children: dict[Variable, list[Variable]] = {variable: [] for variable in self.variables}
        for item in self.evidence:
            for variable in dict.fromkeys(item.variables):
                self._said[variable].append(item)
        for child in self.variables:
            for parent in dict.fromkeys(child.conditional.variables):
                self._children[parent].append(child)

    def optimum(self, variable: Variable, state: NetworkState) -> Naturals:
        """Natural parameters of the variable's best factor given all others: [A] Eq. (5), lambda*."""
        return add(variable.conditional.natural(state), *self.messages(variable, state, self._children[variable]))

    def messages(self, variable: Variable, state: NetworkState, children: Iterable[Variable]) -> list[Naturals]:
        """What the evidence and these children say about a variable."""
        said = [item.message(variable, state) for item in self._said[variable]]
        for child in children:
            said.append(child.conditional.message(variable, state.moments(child), np.ones(()), state))
        return said

    def children(self, variable: Variable) -> tuple[Variable, ...]:
        """The variables whose conditional names this one."""
        return tuple(self._children[variable])

    def exact(self, variable: Variable) -> bool:
        """Whether all that is said to the variable is conjugate."""
        return all(item.exact for item in self._said[variable])

    def bound(self, state: NetworkState) -> float:
        """Expected log joint plus entropies: [A] Eq. (1)."""
        total = sum(item.expected_log(state) for item in self.evidence)
        return total - sum(divergence(variable, state) for variable in self.variables)


def divergence(variable: Variable, state: NetworkState) -> float:
    """E KL(factor || p(variable | parents)) over the parents' factors."""
    factor, conditional = state[variable], variable.conditional
    if not conditional.variables:
        return float(factor.kl(conditional.member(conditional.natural(state))).sum())
    if isinstance(conditional, NormalGiven):  # the form without cancellation
        return float((-conditional.expected_log(state.moments(variable), state) - factor.entropy()).sum())
    gap = tuple(a - b for a, b in zip(factor.natural, conditional.natural(state), strict=True))
    inner = factor.inner(gap, state.moments(variable))
    return float((inner - factor.log_partition() + conditional.log_partition(state)).sum())


def ancestors(variables: Iterable[Variable]) -> tuple[Variable, ...]:
    """The variables and all they depend on, parents first."""
    found: dict[Variable, None] = {}

    def visit(variable: Variable) -> None:
        if variable in found:
            return
        for parent in variable.conditional.variables:
            visit(parent)
        found[variable] = None

    for variable in variables:
        visit(variable)
    return tuple(found)


def add(first: Naturals, *more: Naturals) -> Naturals:
    """Natural parameters added up."""
    total = list(first)
    for item in more:
        total = [a + b for a, b in zip(total, item, strict=True)]
    return tuple(total)


def prior_state(variables: Iterable[Variable]) -> NetworkState:
    """Every variable at its prior, given its parents at theirs."""
    state = NetworkState()
    for variable in ancestors(variables):
        state.set(variable, variable.conditional.member(variable.conditional.natural(state)))
    return state


def proper(factor: Family) -> bool:
    """Whether natural parameters belong to a distribution (a linearised site may ask for one that does not)."""
    try:
        with np.errstate(all="ignore"):
            value = factor.log_partition()
    except (InputError, NotPositiveDefiniteError, np.linalg.LinAlgError):
        return False
    return bool(np.all(np.isfinite(value)))
