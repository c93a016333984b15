"""Hidden Markov chains of classes: a gate whose classes follow each other."""

from functools import cached_property
from typing import Any, ClassVar, final

import numpy as np

from klimb.conjugate.families import Dirichlet, Family, Naturals
from klimb.conjugate.families.base import generator
from klimb.conjugate.variables import Conditional, NetworkState, Plates, Variable
from klimb.errors import InputError, require
from klimb.numerics.arrays import Array


@final
class MarkovChain(Family):
    """Chains of K classes: natural parameters (first, step, class at each time), all logarithms.

    Statistics: class of the first element of every sequence, counts of steps, indicators of each time. Expectations by
    forward and backward passes in blocks: about 3 sqrt(T) vectorised steps for T times, not T.
    """

    event_ndims: ClassVar[tuple[int, ...]] = (1, 2, 2)

    def __init__(self, natural: Naturals, lengths: tuple[int, ...]) -> None:
        super().__init__(natural)
        self.lengths = lengths

    @property
    def plates(self) -> tuple[int, ...]:
        return ()

    @cached_property
    def _passes(self) -> tuple[Array, Array, Array]:
        """Log-partition, mean transitions and marginals."""
        first, step, evidence = self.natural
        return forward_backward(first, step, evidence, self.lengths)

    def log_partition(self) -> Array:
        return self._passes[0]

    def mean_parameters(self) -> Naturals:
        shares = self._passes[2]
        return shares[np.concatenate([[0], np.cumsum(self.lengths)[:-1]])].sum(0), self._passes[1], shares

    def statistics(self, x: Array) -> Naturals:
        """``x`` is one path: the class at each time, all sequences end to end."""
        path, K = np.asarray(x, dtype=np.intp), len(self.natural[0])
        begins = np.concatenate([[0], np.cumsum(self.lengths)[:-1]])
        inside = np.setdiff1d(np.arange(1, len(path)), begins)  # times with a step before them
        steps = np.zeros((K, K))
        np.add.at(steps, (path[inside - 1], path[inside]), 1.0)
        return np.bincount(path[begins], minlength=K).astype(float), steps, np.eye(K)[path]

    @property
    def mean(self) -> Array:
        """Probability of each class at each time."""
        return self._passes[2]

    def sample(self, n: int, rng: np.random.Generator | int | None = None) -> Array:
        """``n`` draws of the whole chain, forwards filtered, backwards drawn."""
        rng, out, begin = generator(rng), [], 0
        first, step, evidence = self.natural
        transition, start = np.exp(step - step.max()), np.exp(first - first.max())
        for length in self.lengths:
            local = evidence[begin : begin + length]
            forward = _scan(np.exp(local - local.max(1, keepdims=True))[None], transition, start[None])[0][0]
            path = np.empty((n, length), dtype=np.intp)
            path[:, -1] = _draw(np.broadcast_to(forward[-1], (n, len(first))), rng)
            for t in range(length - 2, -1, -1):
                path[:, t] = _draw(forward[t] * transition[:, path[:, t + 1]].T, rng)
            out.append(path)
            begin += length
        return np.concatenate(out, axis=1)


@final
class ChainGiven(Conditional):
    """Sequences of classes: first ~ Categorical(first), next ~ Categorical(step[previous])."""

    family = MarkovChain
    separate = True

    def __init__(self, first: Variable, step: Variable, lengths: tuple[int, ...], name: str) -> None:
        K = self.dimension = first.dimension
        for variable in (first, step):
            require(variable.family is Dirichlet, "a chain needs dirichlet variables", f"{variable!r}",
                    "Declare dirichlet(numpy.ones(K)).")
        if first.plates or step.plates != (K,) or step.dimension != K:
            raise InputError(f"{name} needs a dirichlet without plates over K classes and one with plates (K,)",
                             f"{first!r} and {step!r}", f"Declare dirichlet(numpy.ones({K}), plates=({K},)) for the "
                             "steps: one row of probabilities per class.")
        require(lengths and min(lengths) >= 1, f"{name} needs the length of every sequence, at least 1", f"{lengths}",
                "Pass lengths=(T,) for one sequence of T data.")
        self.first, self.step, self.lengths, self.variables = first, step, lengths, (first, step)
        self.plates: Plates = (int(sum(lengths)),)

    def member(self, natural: Naturals) -> MarkovChain:
        return MarkovChain(natural, self.lengths)

    def natural(self, state: NetworkState) -> Naturals:
        (first,), (step,) = state[self.first].moments, state[self.step].moments
        return first, step, np.zeros((self.plates[0], len(first)))

    def message(self, to: Variable, x: Naturals, weight: Array, state: NetworkState) -> Naturals:
        return (x[0],) if to is self.first else (x[1],)


def chain(first: Variable, step: Variable, *, lengths: Any, name: str = "chain") -> Variable:
    """A gate for `mixture` whose classes follow a Markov chain: ``lengths`` of the sequences, laid end to end.

    >>> from klimb.conjugate import chain, dirichlet, fit, gamma, mixture
    >>> stay = dirichlet([[5.0, 1.0], [1.0, 5.0]])  # states that last
    >>> state = chain(dirichlet([1.0, 1.0]), stay, lengths=12)
    >>> result = fit(mixture(state, gamma([1.0, 8.0], 1.0)).observe([0, 1, 0, 9, 7, 2, 8, 9, 1, 0, 3, 0]))
    >>> result[state].mean.argmax(axis=1)  # the 2 among large counts, the 3 among small ones
    array([0, 0, 0, 1, 1, 1, 1, 1, 0, 0, 0, 0])
    """
    return Variable(ChainGiven(first, step, tuple(int(n) for n in np.atleast_1d(lengths)), name), name)


def forward_backward(first: Array, step: Array, evidence: Array,
                     lengths: tuple[int, ...]) -> tuple[Array, Array, Array]:
    """Log-partition, expected counts of steps (K x K) and probabilities of the classes (N x K)."""
    K = len(first)
    top_step = step.max()
    transition = np.exp(step - top_step)
    shares, counts, log_total = np.empty_like(evidence), np.zeros((K, K)), 0.0
    top = evidence.max(1)
    local = np.exp(evidence - top[:, None])
    start = np.exp(first - first.max())
    for length in sorted(set(lengths)):  # sequences of one length go together
        begins = np.concatenate([[0], np.cumsum(lengths)[:-1]])[np.asarray(lengths) == length]
        rows = begins[:, None] + np.arange(length)
        forward, scale = _scan(local[rows], transition, start * np.ones((len(begins), K)))
        backward, _ = _scan(local[rows][:, ::-1], transition.T, np.ones((len(begins), K)))
        # backward[t] holds evidence t..T times what follows; taking out the local term gives the usual message
        after = np.ones_like(backward)
        after[:, :-1] = (backward[:, ::-1] @ transition.T)[:, 1:]
        joint = forward * after
        joint /= joint.sum(2, keepdims=True)
        shares[rows] = joint
        if length > 1:
            pairs = np.einsum("sti,stj->stij", forward[:, :-1], backward[:, ::-1][:, 1:]) * transition
            pairs /= pairs.sum((2, 3), keepdims=True)
            counts += pairs.sum((0, 1))
        log_total += float(scale.sum()) + len(begins) * (float(first.max()) + (length - 1) * float(top_step))
        log_total += float(top[rows].sum())
    return np.asarray(log_total), counts, shares


def _scan(local: Array, transition: Array, start: Array) -> tuple[Array, Array]:
    """p_t proportional to (p_{t-1} transition) * local_t, normalised, and the log of what was divided out.

    S sequences of length T. In blocks of about sqrt(T): the product of each block's matrices for all blocks at once,
    then the state at the end of every block one after the other, then all blocks in parallel again.
    """
    S, T, K = local.shape
    size = int(max(1, np.sqrt(T))) if S < T else T  # with many short sequences they are the parallelism
    n_blocks = -(-T // size)
    padded = np.ones((S, n_blocks * size, K))
    padded[:, :T] = local
    blocks = padded.reshape(S, n_blocks, size, K)
    entering = np.empty((S, n_blocks, K))
    first = start * blocks[:, 0, 0]
    entering[:, 0] = first
    if n_blocks > 1:
        product = np.broadcast_to(np.eye(K), (S, n_blocks, K, K))
        for t in range(size):  # rows: class before the block; the very first element has no step before it
            product = (product @ transition) * blocks[:, :, t, None, :]
            product = product / product.max((2, 3), keepdims=True)
        whole = np.broadcast_to(np.eye(K), (S, K, K))
        for t in range(1, size):
            whole = (whole @ transition) * blocks[:, 0, t, None, :]
            whole = whole / whole.max((1, 2), keepdims=True)
        state = (first[:, None, :] @ whole)[:, 0]
        for b in range(1, n_blocks):
            state = state / state.sum(1, keepdims=True)
            entering[:, b] = (state @ transition) * blocks[:, b, 0]
            state = (state[:, None, :] @ product[:, b])[:, 0]
    out = np.empty((S, n_blocks, size, K))
    scale = np.zeros((S, n_blocks, size))
    current = entering
    for t in range(size):
        if t:
            current = (current @ transition) * blocks[:, :, t]
        total = current.sum(2, keepdims=True)
        current = current / total
        out[:, :, t], scale[:, :, t] = current, np.log(total[:, :, 0])
    return out.reshape(S, -1, K)[:, :T], scale.reshape(S, -1)[:, :T]


def _draw(weights: Array, rng: np.random.Generator) -> Any:
    cumulative = np.cumsum(weights, axis=1)
    height = rng.uniform(size=(len(weights), 1)) * cumulative[:, -1:]
    return np.minimum((height > cumulative).sum(1), weights.shape[1] - 1)
