"""Hidden Markov models with normal or count emissions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np

from klimb.conjugate.chain import MarkovChain, chain
from klimb.conjugate.declare import dirichlet, gamma, normal_gamma
from klimb.conjugate.emissions import mixture, without_missing
from klimb.conjugate.families import Dirichlet, Family
from klimb.conjugate.loop import Fitted, fit
from klimb.errors import InputError
from klimb.numerics.arrays import Array
from klimb.numerics.clusters import kmeans


@final
@dataclass(frozen=True, eq=False)
class HiddenMarkov:
    """A fitted hidden Markov model; states are in order of their mean (of the first column)."""

    fit: Fitted
    shares: Array  # probability of each state at each time
    transition: Array  # expected transition probabilities
    means: Array  # K x D: expected mean or rate of each state, in the units of the data
    chain: MarkovChain
    emissions: Family

    def path(self) -> Array:
        """The most probable state at each time."""
        return np.asarray(self.shares.argmax(1))


def hidden_markov(
    y: Any,
    n_states: int,
    *,
    emission: Literal["normal", "poisson"] = "normal",
    lengths: Any = None,
    concentration: float = 1.0,
    stickiness: float = 0.0,
    seed: int = 0,
    tol: float = 1e-8,
    max_iter: int = 1000,
) -> HiddenMarkov:
    """Sequences laid end to end (``lengths`` of each) whose hidden state jumps between ``n_states`` levels.

    ``y`` is (T,) or (T, D); rows with NaN are missing. ``stickiness`` adds prior counts to staying in a state.

    >>> import numpy as np
    >>> y = np.repeat([0.0, 5.0, 0.0, 5.0], 25) + 0.3 * np.sin(np.arange(100.0) ** 2)
    >>> model = hidden_markov(y, 2)
    >>> print(model.path()[[0, 30, 60, 90]], np.round(model.means.ravel()))
    [0 1 0 1] [0. 5.]
    """
    raw = np.asarray(y, dtype=float)
    raw = raw[:, None] if raw.ndim == 1 else raw
    x, missing = without_missing(raw)
    seen = x if missing is None else x[missing == 0]
    T, D, K = len(raw), raw.shape[1], int(n_states)
    if not 1 <= K <= len(seen):
        raise InputError(f"n_states must lie in 1..{len(seen)}, the number of rows seen", f"{n_states}", "Use fewer.")
    sizes = (T,) if lengths is None else tuple(int(n) for n in np.atleast_1d(lengths))
    if sum(sizes) != T:
        raise InputError(f"lengths must add up to the {T} rows of y", f"{sum(sizes)}", "Lay the sequences end to end.")
    first = dirichlet(np.full(K, concentration), name="first")
    step = dirichlet(concentration + stickiness * np.eye(K), name="step")
    z = chain(first, step, lengths=sizes, name="states")
    if emission == "normal":
        shift, scale = seen.mean(0), np.maximum(seen.std(0), 1e-300)
        data = (raw - shift) / scale
        component = normal_gamma(0.0, 0.1, 1.0, 0.1, plates=(K, D), name="levels")
    elif emission == "poisson":
        shift, scale, data = np.zeros(D), np.ones(D), raw
        component = gamma(1.0, 1.0 / np.maximum(seen.mean(0), 1e-3), plates=(K, D), name="rates")
    else:
        raise InputError('emission must be "normal" or "poisson"', f"{emission!r}", 'Use "poisson" for counts.')
    labels = np.zeros(T, dtype=int)
    standard = (seen - seen.mean(0)) / np.maximum(seen.std(0), 1e-300)
    labels[np.arange(T) if missing is None else missing == 0] = kmeans(standard, K, seed)
    guess = MarkovChain((np.zeros(K), np.zeros((K, K)), 3.0 * np.eye(K)[labels]), sizes)
    fitted = fit(mixture(z, component).observe(data), start={z: guess}, tol=tol, max_iter=max_iter)
    q, levels, steps = fitted[z], fitted[component], fitted[step]
    assert isinstance(q, MarkovChain)
    assert isinstance(steps, Dirichlet)
    means = levels.mean * scale + shift
    order = np.argsort(means[:, 0], kind="stable")
    return HiddenMarkov(fitted, q.mean[:, order], steps.mean[np.ix_(order, order)], means[order], q, levels)
