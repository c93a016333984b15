"""The network behind some data, and KL proximal-point: factors move to their optimum, and the bound never falls."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from time import perf_counter
from typing import Any

import numpy as np

from klimb.conjugate.classes import MarkovChain
from klimb.conjugate.families import Categorical, Family, Naturals
from klimb.conjugate.variables import Evidence, NetworkState, Variable
from klimb.errors import InputError, NotPositiveDefiniteError, require
from klimb.infer.result import History, Iteration, Status

HALVINGS = 30  # of a step that a linearised site made too long


class Network:
    """All variables that some evidence depends on, parents first."""

    def __init__(self, evidence: Iterable[Evidence]) -> None:
        self.evidence = tuple(evidence)
        for item in self.evidence:
            require(isinstance(item, Evidence), "a network is made from observed data", f"{item!r}",
                    "Call .observe(values) on the node that was seen.")
        require(self.evidence, "a network needs observed data", "none", "Call .observe(values) on a node.")
        self.variables = ancestors([variable for item in self.evidence for variable in item.variables])
        self.said = {variable: [item for item in self.evidence if variable in item.variables]
                     for variable in self.variables}
        self.children = {parent: [child for child in self.variables if parent in child.conditional.variables]
                         for parent in self.variables}

    def optimum(self, variable: Variable, state: NetworkState) -> Naturals:
        """Natural parameters of the variable's best factor given all others: [A] Eq. (5), lambda*."""
        return add(variable.conditional.natural(state), *self.messages(variable, state, self.children[variable]))

    def messages(self, variable: Variable, state: NetworkState, children: Iterable[Variable]) -> list[Naturals]:
        """What the evidence and these children say about a variable."""
        said = [item.message(variable, state) for item in self.said[variable]]
        for child in children:
            said.append(child.conditional.message(variable, state[child].moments, np.ones(()), state))
        return said

    def bound(self, state: NetworkState) -> float:
        """Expected log joint plus entropies: [A] Eq. (1)."""
        total = sum(item.expected_log(state) for item in self.evidence)
        return total - sum(divergence(variable, state) for variable in self.variables)


def divergence(variable: Variable, state: NetworkState) -> float:
    """That of its factor from p(variable | parents), over all plates."""
    return float(variable.conditional.divergence(state[variable], state).sum())


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
    return tuple(sum(parts[1:], parts[0]) for parts in zip(first, *more, strict=True))


def prior_state(variables: Iterable[Variable], start: Mapping[Variable, Family] | None = None) -> NetworkState:
    """Every variable at its prior, given its parents at theirs, or where ``start`` puts it."""
    state: NetworkState = {}
    for variable in ancestors(variables):
        state[variable] = variable.conditional.member(variable.conditional.natural(state))
    for variable, factor in (start or {}).items():
        require(variable in state, "start must name variables of the network", f"{variable!r}",
                "Check what was observed.")
        wanted, got = (tuple(part.shape for part in one.natural) for one in (state[variable], factor))
        require(isinstance(factor, variable.family) and got == wanted,
                f"the start of {variable.name} must be a {variable.family.__name__} with natural parameters of shapes"
                f" {wanted}", f"{type(factor).__name__} with {got}", "Build it with the same plates as the variable.")
        state[variable] = factor
    return state


def proper(factor: Family) -> bool:
    """Whether natural parameters belong to a distribution (a linearised site may ask for one that does not)."""
    try:
        with np.errstate(all="ignore"):
            value = factor.log_partition()
    except (InputError, NotPositiveDefiniteError, np.linalg.LinAlgError):
        return False
    return bool(np.all(np.isfinite(value)))


@dataclass(frozen=True)
class ProximalPoint:
    """lambda <- r lambda + (1 - r) lambda*, r = 1/(1 + beta): [A] Eq. (2) for one factor after the other.

    The same as a step of length beta/(1 + beta) along the natural gradient ([A] Theorem 1). ``beta`` infinite, the
    default, is coordinate ascent (variational message passing).

    >>> from klimb.conjugate import ProximalPoint, fit, gamma, normal
    >>> evidence = normal(normal(0.0, 1e-4), gamma(1e-3, 1e-3), plates=(5,)).observe([4.1, 5.2, 4.7, 5.6, 4.9])
    >>> full, half = fit(evidence), fit(evidence, step=ProximalPoint(beta=1.0))
    >>> bool(abs(full.bound - half.bound) < 1e-3), half.n_iter > full.n_iter  # the same place, by smaller steps
    (True, True)
    """

    beta: float = float("inf")

    def __post_init__(self) -> None:
        require(self.beta > 0, "beta must be positive", f"{self.beta}", "Use float('inf') for coordinate ascent.")

    @property
    def keep(self) -> float:
        """r: the share of the old natural parameters."""
        return 1.0 / (1.0 + self.beta)


class Fitted:
    """The factors of a network, the bound on the log evidence, how the fit ended and how it went there.

    >>> from klimb.conjugate import fit, gamma, poisson
    >>> result = fit(poisson(gamma(1.0, 1.0, name="rate")).observe([3, 5, 4]))
    >>> result
    Fitted(bound=-7.79192, status=CONVERGED, n_iter=2)
    >>> print(result["rate"].mean, result["rate"].quantile([0.05, 0.95]).round(1))  # the mean is (1 + 12) / (1 + 3)
    3.25 [1.9 4.9]
    """

    def __init__(self, network: Network, state: NetworkState, bound: float, status: Status, history: History) -> None:
        self.network, self.state, self.bound, self.status, self.history = network, state, bound, status, history

    def __getitem__(self, variable: Variable | str) -> Any:
        """The factor of a variable, by the variable itself or by its name."""
        if isinstance(variable, Variable):
            return self.state[variable]
        named = [v for v in self.network.variables if v.name == variable]
        if len(named) != 1:
            names = ", ".join(v.name for v in self.network.variables)
            raise InputError(f"one variable named {variable!r}", f"{len(named)}", f"There are: {names}.")
        return self.state[named[0]]

    @property
    def converged(self) -> bool:
        return self.status is Status.CONVERGED

    @property
    def n_iter(self) -> int:
        return len(self.history) - 1

    def __repr__(self) -> str:
        return f"Fitted(bound={self.bound:.6g}, status={self.status.name}, n_iter={self.n_iter})"


class SweepRecord:
    """The history of a fit, and its end: when what the bound may still gain is below ``tol`` (1 + |bound|)."""

    def __init__(self, bound: float, tol: float, callback: Callable[[Iteration], Any] | None) -> None:
        self.bound, self.gain, self.tol, self.callback = bound, np.inf, tol, callback
        self.begin, self.status = perf_counter(), Status.MAX_ITER
        self.rows = [Iteration(0, bound, np.inf, 1.0, "start", 0.0, 0, 0)]

    def ends(self, bound: float, step: float, rule: str, visits: int, least: int = 2) -> bool:
        """Note the bound after a sweep; whether it was the last one, which it cannot be before the ``least``-th."""
        number, before = len(self.rows), self.gain
        self.gain, self.bound = bound - self.bound, bound
        left = remaining(self.gain, before) if np.isfinite(self.gain) else np.inf
        self.rows.append(Iteration(number, bound, left, step, rule, perf_counter() - self.begin, visits, 0))
        if self.callback is not None and self.callback(self.rows[-1]) is False:
            self.status = Status.STOPPED
        elif number >= least and left <= self.tol * (1.0 + abs(bound)):
            self.status = Status.CONVERGED
        return self.status is not Status.MAX_ITER

    def fitted(self, network: Network, state: NetworkState) -> Fitted:
        return Fitted(network, state, self.bound, self.status, History(self.rows))


def fit(*evidence: Evidence, step: ProximalPoint | None = None, start: Mapping[Variable, Family] | None = None,
        tol: float = 1e-6, max_iter: int = 1000, callback: Callable[[Iteration], Any] | None = None,
        improve: "Callable[[NetworkState], NetworkState | None] | None" = None) -> Fitted:
    """Fit all unknowns behind some evidence.

    ``start`` gives factors to begin with (mixtures and factorisations need some asymmetry); the others begin at their
    priors. The fit has converged when what the bound may still gain, extrapolated from the last sweeps, is below
    ``tol`` (1 + |bound|). ``improve`` may propose another state after each sweep, kept if its bound is higher: a model
    that knows its own symmetries jumps along them.

    >>> import numpy as np
    >>> from klimb.conjugate import fit, gamma, normal
    >>> mu, tau = normal(0.0, 1e-4, name="mu"), gamma(1e-3, 1e-3, name="tau")
    >>> y = np.array([4.1, 5.2, 4.7, 5.6, 4.9])
    >>> result = fit(normal(mu, tau, plates=(5,)).observe(y))
    >>> print(result.status.name, float(np.round(result[mu].mean, 3)))
    CONVERGED 4.9
    """
    network = Network(evidence)
    step = step or ProximalPoint()
    state = prior_state(network.variables, start)
    order = _order(network, start or {})
    record, stretch = SweepRecord(network.bound(state), tol, callback), Stretch(order)
    for _ in range(max_iter):
        rule = "sweep"
        if step.keep == 0 and (longer := stretch.propose(state)) is not None:
            rule = "stretch"
            sweep(network, order, longer, step.keep)
            if (new := network.bound(longer)) > record.bound:
                state = longer
            else:  # too far: the plain sweep from where we were
                rule = "sweep"
                stretch.failed()
        if rule == "sweep":
            sweep(network, order, state, step.keep)
            new = network.bound(state)
        if improve is not None and (other := improve(state)) is not None and (height := network.bound(other)) > new:
            state, new = other, height
        stretch.seen(state)
        if record.ends(new, 1.0 - step.keep, rule, len(order)):
            break
    return record.fitted(network, state)


class Stretch:
    """Longer steps along the direction of the last sweep, for sweeps that shrink their steps by a steady factor rho.

    What is left is then rho/(1 - rho) times the last step, in symmetric KL. Classes, given by others at once, do not
    stretch.
    """

    LONGEST = 30.0

    def __init__(self, order: tuple[Variable, ...]) -> None:
        self.moved = tuple(v for v in order if v.family not in (Categorical, MarkovChain))
        self.last: NetworkState | None = None
        self.length, self.rho, self.wait, self.patience = 0.0, 0.0, 3, 3

    def seen(self, state: NetworkState) -> None:
        """Note a state after a sweep."""
        length = 0.0
        if self.last is not None:
            for v in self.moved:
                old, new = self.last[v], state[v]
                gap = tuple(b - a for a, b in zip(old.natural, new.natural, strict=True))
                change = tuple(b - a for a, b in zip(self.last[v].moments, state[v].moments, strict=True))
                length += float(new.inner(gap, change).sum())
        length = float(np.sqrt(max(length, 0.0)))
        self.rho = min(length / self.length, 1.0) if self.length > 0 else 0.0
        self.before, self.last, self.length = self.last, state.copy(), length
        self.wait -= 1

    def failed(self) -> None:
        """A stretch lowered the bound: wait longer before the next."""
        self.patience = min(2 * self.patience, 50)
        self.wait = self.patience

    def propose(self, state: NetworkState) -> "NetworkState | None":
        """A state further along, or None."""
        if self.wait > 0 or self.last is None or self.before is None or self.rho < 0.3:
            return None
        self.wait = 2
        factor = min(self.rho / max(1.0 - self.rho, 1e-9), self.LONGEST)
        longer = state.copy()
        for v in self.moved:
            old, new = self.before[v].natural, state[v].natural
            further = v.conditional.member(tuple(b + factor * (b - a) for a, b in zip(old, new, strict=True)))
            if not proper(further):
                return None
            longer[v] = further
        return longer


def sweep(network: Network, order: tuple[Variable, ...], state: NetworkState, keep: float) -> None:
    """One proximal step of every factor in turn."""
    for variable in order:
        update(network, variable, state, keep)


def update(network: Network, variable: Variable, state: NetworkState, keep: float) -> None:
    """One proximal step of one factor; halved until the bound does not fall where a site was linearised."""
    old, best = state[variable], network.optimum(variable, state)

    def member(keep: float) -> Family:
        between = best if keep == 0 else tuple(keep * a + (1.0 - keep) * b
                                               for a, b in zip(old.natural, best, strict=True))
        return variable.conditional.member(between)

    if all(item.exact for item in network.said[variable]):
        state[variable] = member(keep)
        return
    height = network.bound(state)
    slack = 1e-12 * (1.0 + abs(height))
    for _ in range(HALVINGS):
        new = member(keep)
        if proper(new):
            state[variable] = new
            if network.bound(state) >= height - slack:
                return
        keep = 0.5 * (1.0 + keep)
    state[variable] = old


def remaining(gain: float, before: float) -> float:
    """What a linearly converging sequence may still gain: gain rho / (1 - rho), rho the ratio of the last two gains."""
    if gain <= 0:
        return 0.0
    rho = min(max(gain / before, 0.5), 0.999) if before > 0 and np.isfinite(before) else 0.9
    return gain * rho / (1.0 - rho)


def _order(network: Network, start: Mapping[Variable, Family]) -> tuple[Variable, ...]:
    """Those with most copies first, which hear the data under priors that differ; what was given to start with last."""
    backwards = list(reversed(network.variables))
    backwards.sort(key=lambda variable: -prod(variable.plates))
    return tuple(v for v in backwards if v not in start) + tuple(v for v in backwards if v in start)
