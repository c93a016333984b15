"""Hidden classes: Markov chains of them, and observations whose class is unknown (mixtures).

The log density of a datum in class k is linear in the component's moments, so that all N x K are one matrix product and
the messages to components another. `EMISSIONS` says what a datum adds to each kind of component.
"""

from collections.abc import Callable
from functools import cached_property
from typing import Any, ClassVar, TypeAlias

import numpy as np
from scipy.special import gammaln

from klimb.conjugate.families import Beta, Dirichlet, Family, Gamma, NormalGamma, NormalWishart, TiedNormalWishart
from klimb.conjugate.families.base import Naturals, generator
from klimb.conjugate.means import packed, unpacked
from klimb.conjugate.observations import Observable
from klimb.conjugate.variables import Conditional, Evidence, NetworkState, Plates, Variable
from klimb.errors import InputError, require
from klimb.numerics.arrays import Array, as_float, refuse
from klimb.numerics.special import HALF_LOG_2PI


class MarkovChain(Family):
    """Chains of K classes: natural parameters (first, step, class at each time), all logarithms.

    Statistics: class of the first element of every sequence, counts of steps, indicators of each time.
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

    By about sqrt(T) steps of all blocks at once, one pass over the blocks' ends, and sqrt(T) steps again.
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
        product, state = np.broadcast_to(np.eye(K), (S, n_blocks, K, K)), first
        for t in range(size):  # rows: class before the block; the very first element has no step before it
            product = (product @ transition) * blocks[:, :, t, None, :]
            product[:, 0] = product[:, 0] if t else np.eye(K)
            product = product / product.max((2, 3), keepdims=True)
        for b in range(1, n_blocks):
            state = (state[:, None, :] @ product[:, b - 1])[:, 0]
            state = state / state.sum(1, keepdims=True)
            entering[:, b] = (state @ transition) * blocks[:, b, 0]
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


Said: TypeAlias = tuple[tuple[Any, ...], Array]  # N x S or a constant, per natural parameter; what no class changes


def _vectors(x: Array) -> Said:
    """(L mu, mu'L mu, L, log det L): the products of entries stand for a symmetric matrix."""
    i, j = np.tril_indices(x.shape[1])
    return (x, -0.5, -0.5 * x[:, i] * x[:, j], 0.5), np.full(len(x), -x.shape[1] * HALF_LOG_2PI)


def _entries(x: Array) -> Said:
    """The same for independent entries."""
    return (x, -0.5, -0.5 * x * x, 0.5), np.full(len(x), -x.shape[1] * HALF_LOG_2PI)


def _counts(x: Array) -> Said:
    refuse((x < 0) | (x != np.floor(x)), x, "counts must be whole numbers from 0 on",
           "Use normal components for real numbers.")
    return (x, -1.0), -gammaln(x + 1.0).sum(1)


def _zero_one(x: Array) -> Said:
    refuse((x != 0) & (x != 1), x, "the data must be zeros and ones", "Use counts or normals.")
    return (x, 1.0 - x), np.zeros(len(x))


def _words(x: Any) -> Said:
    """Rows of counts of V words, dense or sparse; without the multinomial coefficient."""
    return (x,), np.zeros(x.shape[0])


EMISSIONS: dict[type[Family], Callable[[Any], Said]] = {
    NormalWishart: _vectors, TiedNormalWishart: _vectors, NormalGamma: _entries, Gamma: _counts, Beta: _zero_one,
    Dirichlet: _words}


class Emission:
    """What rows of data add to the natural parameters of the classes, if they belong to them."""

    def __init__(self, component: Variable, values: Any) -> None:
        self.component, plates = component, component.plates
        self.tied, self.vectors = component.family is TiedNormalWishart, EMISSIONS[component.family] is _vectors
        self.width = plates[1] if len(plates) > 1 else component.dimension
        if component.family is Dirichlet and hasattr(values, "tocsr"):
            x = values.tocsr().astype(float)
            if x.shape[1] != self.width or np.any(x.data < 0) or not np.isfinite(x.data).all():
                raise InputError(f"word counts must have {self.width} columns, finite and not negative",
                                 f"shape {x.shape}, smallest {x.data.min(initial=0.0)}", "Check the matrix.")
        else:
            x = as_float(values, f"the data of {component.name}")
            x = x[:, None] if x.ndim == 1 else x
            require(x.ndim == 2 and x.shape[1] == self.width,
                    f"the data of {component.name} must have {self.width} columns", f"shape {x.shape}",
                    "One row per datum, one column per entry of a component.")
        self.said, self.base = EMISSIONS[component.family](x)
        data = [part for part in self.said if not isinstance(part, float)]
        self.statistics = data[0] if len(data) == 1 else np.hstack(data)

    def coefficients(self, moments: Naturals) -> tuple[Array, Array, Array]:
        """K x S, K and K: the log density in class k is statistics @ first[k] + second[k] + third[k].

        A precision that is scaled by a datum multiplies the first two (the squared distance), not the third.
        """
        slopes, constants, K = list[Array](), list[Any](), classes(self.component)
        for number, (part, moment) in enumerate(zip(self.said, moments, strict=True)):
            each = packed(moment, twice=True) if self.vectors and number == 2 else moment
            each = (np.broadcast_to(each, (K, *each.shape)) if self.tied and number > 1 else each).reshape(K, -1)
            constants.append(part * each.sum(1) if isinstance(part, float) else np.zeros(K))
            slopes += [] if isinstance(part, float) else [each]
        return np.hstack(slopes), sum(constants[:-1], np.zeros(K)), constants[-1]

    def message(self, like: Naturals, sums: Array, scaled: Array, counts: Array) -> Naturals:
        """From the sums of statistics (K x S), of scales and of ones (K), in the shapes of ``like``."""
        found, place = list[Array](), 0
        for number, (part, shape) in enumerate(zip(self.said, (one.shape for one in like), strict=True)):
            if isinstance(part, float):
                each = part * (counts if number == len(like) - 1 else scaled)
            else:
                each, place = sums[:, place : place + part.shape[1]], place + part.shape[1]
            each = each.sum(0) if self.tied and number > 1 else each
            if self.vectors and number == 2:
                found.append(unpacked(each, self.width))
            else:
                found.append(np.broadcast_to(each[:, None], shape) if each.ndim < len(shape) else each.reshape(shape))
        return tuple(found)


def classes(component: Variable) -> int:
    """The number of classes that a component has copies for."""
    tied = component.family is TiedNormalWishart
    return int(component.conditional.natural({})[0].shape[0]) if tied else component.plates[0]


class MixtureData(Evidence):
    """Observed rows of a mixture, one per plate of the gate; a row with NaN is missing."""

    def __init__(self, gate: Variable, component: Variable, scale: Variable | None, values: Any) -> None:
        self.gate, self.component, self.scale = gate, component, scale
        self.variables = (gate, component) if scale is None else (gate, component, scale)
        x, missing = without_missing(values)
        self.emission = Emission(component, x)
        self.statistics, base, n = self.emission.statistics, self.emission.base, self.emission.statistics.shape[0]
        require(gate.plates == (n,), f"{gate.name} must have one plate with one class per row",
                f"plates {gate.plates} and {n} rows", f"Give it plates=({n},).")
        if scale is not None and scale.plates != gate.plates:
            raise InputError(f"{scale.name} must have one copy per row, plates {gate.plates}", f"{scale!r}",
                             "Every datum has a scale of its own.")
        if missing is not None:
            self.statistics[missing], base[missing] = 0.0, 0.0
        self.present = None if missing is None else 1.0 - missing
        self._base = float(base.sum())
        self._last: tuple[Family, Array, Array] | None = None

    def _parts(self, state: NetworkState) -> tuple[Array, Array]:
        """The log densities N x K in two parts, of which a datum's scale multiplies the first."""
        factor = state[self.component]
        if self._last is None or self._last[0] is not factor:
            slope, near, free = self.emission.coefficients(factor.moments)
            distance = np.asarray(self.statistics @ slope.T)
            distance += near if self.scale is not None else near + free
            self._last = (factor, distance, free)
        return self._last[1], self._last[2]

    def log_densities(self, state: NetworkState) -> Array:
        """E log p(x_i | class k), N x K (without what no class changes)."""
        values, free = self._parts(state)
        if self.scale is not None:
            log_scale, scale = state[self.scale].moments
            values = values * scale[:, None] + free + 0.5 * self.emission.width * log_scale[:, None]
        return values if self.present is None else values * self.present[:, None]

    def expected_log(self, state: NetworkState) -> float:
        return float(np.einsum("nk,nk->", state[self.gate].moments[-1], self.log_densities(state))) + self._base

    def message(self, to: Variable, state: NetworkState) -> Naturals:
        if to is self.gate:
            zeros = tuple(np.zeros(part.shape) for part in state[self.gate].natural[:-1])
            return (*zeros, self.log_densities(state))
        shares = state[self.gate].moments[-1]
        if self.present is not None:
            shares = shares * self.present[:, None]
        if to is self.scale:
            count = shares.sum(1)
            return 0.5 * self.emission.width * count, np.einsum("nk,nk->n", shares, self._parts(state)[0])
        heavy = shares if self.scale is None else shares * state[self.scale].moments[1][:, None]
        sums = np.asarray((self.statistics.T @ heavy).T)
        return self.emission.message(state[to].natural, sums, heavy.sum(0), shares.sum(0))


def mixture(gate: Variable, component: Variable, *, scale: Variable | None = None) -> Observable:
    """Data whose class is ``gate`` (a `categorical` or a `chain`) and whose classes are the plates of ``component``.

    ``scale``, one gamma per row, multiplies the precision of normal components: gamma(df/2, df/2) makes them Student-t.

    >>> from klimb.conjugate import categorical, dirichlet, fit, gamma, mixture
    >>> rate, kind = gamma([1.0, 10.0], 1.0), categorical(dirichlet([1.0, 1.0]), plates=(8,))
    >>> result = fit(mixture(kind, rate).observe([0, 1, 2, 0, 1, 9, 12, 8]))
    >>> print(result[rate].mean.round(1), result[kind].mean.argmax(axis=1))
    [0.8 9.7] [0 0 0 0 0 1 1 1]
    """
    known = ", ".join(family.__name__ for family in EMISSIONS)
    require(component.family in EMISSIONS, f"the components of a mixture must be one of {known}", f"{component!r}",
            "normal_gamma(...) for numbers, normal_wishart(...) for vectors.")
    require(component.family is TiedNormalWishart or component.plates,
            "the components of a mixture need a plate, one copy per class", f"{component!r}", "Give it plates=(K,).")
    normal, K = EMISSIONS[component.family] in (_vectors, _entries), classes(component)
    require(scale is None or (normal and scale.family is Gamma),
            "scale must be a gamma variable, for normal components", f"{scale!r} with {component!r}",
            "gamma(df / 2, df / 2, plates=(N,)) makes the components Student-t.")
    require(gate.dimension == K, f"{gate.name} and {component.name} must have the same number of classes",
            f"{gate.dimension} and {K}", "The first plate of the components is K.")
    return Observable(lambda values: MixtureData(gate, component, scale, values))


def without_missing(values: Any) -> tuple[Any, Array | None]:
    """Rows with a NaN set to zero, and which they were (None if there are none)."""
    if hasattr(values, "tocsr"):
        return values, None
    x = np.asarray(values, dtype=float)
    missing = np.isnan(x).any(axis=tuple(range(1, x.ndim))) if x.ndim > 1 else np.isnan(x)
    if not missing.any():
        return x, None
    x = x.copy()
    x[missing] = 0.0
    return x, missing
