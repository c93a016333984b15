"""Batches of data one after the other, with no learning rate: every batch keeps what it last said.

Its message replaces the one of its last visit: coordinate ascent on the bound of all data, which cannot fall.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from klimb.conjugate.families import Family, Naturals
from klimb.conjugate.loop import Fitted, Network, SweepRecord, add, ancestors, divergence, prior_state, sweep
from klimb.conjugate.variables import Evidence, NetworkState, Variable
from klimb.errors import InputError, require
from klimb.infer.result import Iteration


@dataclass(frozen=True)
class Stochastic:
    """How batches are visited: sweeps over a batch's own variables, and whether these are kept for the next visit.

    >>> from klimb.conjugate import Stochastic, categorical, dirichlet, fit_batches, gamma, mixture
    >>> rng = np.random.default_rng(0)
    >>> batches = np.split(rng.permutation(np.r_[rng.poisson(2.0, 300), rng.poisson(10.0, 300)]), 6)
    >>> rate, share = gamma([2.0, 10.0], 1.0), dirichlet([1.0, 1.0])
    >>> make = lambda y: mixture(categorical(share, plates=(len(y),)), rate).observe(y)
    >>> result = fit_batches(make, batches, shared=(rate, share), step=Stochastic(remember=False))  # less memory
    >>> print(result.status.name, result[rate].mean.round(1))
    CONVERGED [ 2.2 10.3]
    """

    local_sweeps: int = 20
    local_tol: float = 1e-4  # of a batch's own part of the bound, per unit of it
    remember: bool = True  # keep the local factors in memory between visits
    fresh: int = 0  # passes at the start in which local factors begin anew: memories of a poor fit hold it there

    def __post_init__(self) -> None:
        require(self.local_sweeps >= 1, "local_sweeps must be at least 1", f"{self.local_sweeps}", "20 is the default.")


@dataclass
class _Batch:
    """What a batch said last, and its own part of the bound with the shared moments taken out."""
    said: dict[Variable, Naturals] = field(default_factory=dict)
    own: float = 0.0
    local: list[Family] = field(default_factory=list)


def fit_batches(make: Callable[[Any], Evidence | Sequence[Evidence]], batches: Iterable[Any], *,
                shared: Sequence[Variable], step: Stochastic | None = None,
                start: Mapping[Variable, Family] | None = None, tol: float = 1e-6, max_iter: int = 50,
                callback: Callable[[Iteration], Any] | None = None) -> Fitted:
    """Fit the ``shared`` variables to data that come in batches.

    ``batches`` is gone through again and again (a list of row indices, a reader of files, ...); ``make(batch)``
    declares the local part of the network for one batch, with the shared variables in it, and returns its evidence.
    The history has one row per pass. The result holds the factors of the shared variables.

    >>> import numpy as np
    >>> from klimb.conjugate import fit_batches, gamma, poisson
    >>> batches = np.split(np.arange(1000) % 7, 10)
    >>> rate = gamma(1.0, 1.0, name="rate")
    >>> result = fit_batches(lambda b: poisson(rate).observe(b), batches, shared=(rate,))
    >>> print(result.status.name, float(np.round(result[rate].mean, 3)))
    CONVERGED 2.995
    """
    step = step or Stochastic()
    state = prior_state(shared, start)
    family = ancestors(shared)
    store: dict[int, _Batch] = {}
    record, network = SweepRecord(-np.inf, tol, callback), None
    for number in range(1, max_iter + 1):
        count = 0
        for count, data in enumerate(batches, start=1):
            batch = store.setdefault(count - 1, _Batch())
            if number <= step.fresh:
                batch.local = []
            network = _visit(make(data), batch, family, state, step)
            for variable in family[::-1]:
                said = [known.said[variable] for known in store.values() if variable in known.said]
                said += [child.conditional.message(variable, state[child].moments, np.ones(()), state)
                         for child in family if variable in child.conditional.variables]
                state[variable] = variable.conditional.member(add(variable.conditional.natural(state), *said))
        if network is None:
            raise InputError("batches must hold at least one batch", "none", "Pass a list or another re-iterable.")
        require(count == len(store), "batches must give the same batches at every pass", f"{count} after {len(store)}",
                "A generator ends after one pass: pass a list, or an object with __iter__.")
        new = sum(known.own + _linear(known, state) for known in store.values())  # on all data seen
        new -= sum(divergence(variable, state) for variable in family)
        if record.ends(new, 1.0, "pass", count, 2 + step.fresh):
            break
    assert network is not None
    return record.fitted(network, state)


def _visit(evidence: Any, batch: _Batch, shared: tuple[Variable, ...], state: NetworkState, step: Stochastic
           ) -> Network:
    """Fit the batch's own variables, then note what it says about the shared ones."""
    network = Network([evidence] if isinstance(evidence, Evidence) else evidence)
    local = tuple(v for v in network.variables if v not in shared)
    _check_separate(network, local, shared)
    known, own = state.copy(), -np.inf
    for k, variable in enumerate(local):  # declared anew each time, so that old factors are found by their order
        prior = variable.conditional.member(variable.conditional.natural(known))
        old = batch.local[k] if len(batch.local) == len(local) else prior
        same = [p.shape for p in old.natural] == [p.shape for p in prior.natural]
        known[variable] = old if same else prior
    for _ in range(step.local_sweeps if local else 0):
        sweep(network, local[::-1], known, 0.0)
        before, own = own, _own(network, local, known)
        if own - before <= step.local_tol * abs(own):
            break
    own = _own(network, local, known)
    batch.said = {}
    for variable in set(shared) & set(network.variables):
        children = [child for child in network.children[variable] if child not in shared]
        if said := network.messages(variable, known, children):
            batch.said[variable] = add(said[0], *said[1:])
    # The expected log is linear in the moments of each shared variable: what is left over does not move with them.
    batch.own = own - _linear(batch, known)
    batch.local = [v.conditional.member(known[v].natural) for v in local if step.remember]  # without what they cached
    return network


def _check_separate(network: Network, local: tuple[Variable, ...], shared: tuple[Variable, ...]) -> None:
    """A message that is kept must stay right while other shared variables move."""
    terms = [(item.variables, False, item.exact) for item in network.evidence]
    terms += [(v.conditional.variables, v.conditional.separate, True) for v in local]
    for variables, separate, exact in terms:
        names = [v.name for v in variables if v in shared]
        if names and (not exact or (len(names) > 1 and not separate)):
            raise InputError("a batch may tie at most one shared variable into each term, and that one conjugately",
                             f"a term with {' and '.join(names)}",
                             "Use a joint variable such as normal_gamma, or fit(...) on all data.")


def _own(network: Network, local: tuple[Variable, ...], state: NetworkState) -> float:
    """Expected log of the batch's data less the divergences of its own variables."""
    return sum(item.expected_log(state) for item in network.evidence) - sum(divergence(v, state) for v in local)


def _linear(batch: _Batch, state: NetworkState) -> float:
    """What a batch says of the shared variables, at their present moments."""
    return sum(float(state[v].inner(said, state[v].moments).sum()) for v, said in batch.said.items())
