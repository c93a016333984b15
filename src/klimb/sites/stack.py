"""Several likelihoods in one model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, final

import numpy as np

from klimb.errors import InputError, require
from klimb.numerics.arrays import Array, ArrayLike, as_float
from klimb.numerics.tilted import Tilted
from klimb.sites.base import EvenPart, Expectation, Rows, Site
from klimb.sites.wrappers import needs_one_output, set_facts


@final
@dataclass(frozen=True, eq=False)
class Stack(Site):
    """Several likelihoods in one model: the first ``count`` data belong to the first site, and so on.

    ``y`` is the concatenation of the data of the parts (or a list with one array per part).

    >>> from klimb.sites.binary import Logistic
    >>> from klimb.sites.counts import Poisson
    >>> both = Stack([(Logistic(), 2), (Poisson(), 1)])
    >>> both.expect([1, 0, 7], m=[0.0, 0.0, 2.0], v=[1.0, 1.0, 0.0]).gamma.round(6).tolist()
    [0.206621, 0.206621, 7.389056]
    """

    parts: Sequence[tuple[Site, int]]

    def __post_init__(self) -> None:
        parts = tuple(_checked_part(index, part) for index, part in enumerate(self.parts))
        require(parts, "Stack needs at least one (site, count) pair", "none", "Pass a list of pairs.")
        object.__setattr__(self, "parts", parts)
        sites = [site for site, _ in parts]
        shared = {name: _shared([getattr(site, name) for site in sites]) for name in ("gamma_trend", "response")}
        every = {name: all(getattr(site, name) for site in sites)
                 for name in ("log_concave", "super_gaussian", "discrete", "smooth")}
        support = ", then ".join(f"{count} in {site.support}" for site, count in parts)
        set_facts(self, **shared, **every, support=support)

    @property
    def size(self) -> int:
        """The number of data of all parts together."""
        return sum(count for _, count in self.parts)

    def _pieces(self) -> Iterator[tuple[Site, slice]]:
        begin = 0
        for site, count in self.parts:
            yield site, slice(begin, begin + count)
            begin += count

    def check_length(self, n: int) -> None:
        if n != self.size:
            counts = [count for _, count in self.parts]
            raise InputError(f"Stack has parts of {counts} data, so y must have {self.size} entries", f"{n}",
                             "Concatenate the data of the parts in their order.")

    def validate(self, y: ArrayLike) -> Array:
        if isinstance(y, (list, tuple)) and len(y) == len(self.parts) and all(np.ndim(part) == 1 for part in y):
            lengths = [len(part) for part in y]
            if lengths != [count for _, count in self.parts]:
                raise InputError(f"Stack needs parts of {[count for _, count in self.parts]} data", f"{lengths}",
                                 "Give one array per part, in their order.")
            y = np.concatenate([np.asarray(part, dtype=np.float64) for part in y])
        whole = as_float(y, "y", ndim=1)
        self.check_length(whole.size)
        return np.concatenate([site.validate(whole[piece]) for site, piece in self._pieces()])

    def rows(self, rows: Rows) -> Self:
        index = np.arange(self.size)[rows]
        edges = np.cumsum([0] + [count for _, count in self.parts])
        owner = np.searchsorted(edges, index, side="right") - 1
        # Runs of rows of one part become the parts of the new stack, whatever the order of the rows.
        begins = np.flatnonzero(np.r_[True, owner[1:] != owner[:-1]]) if index.size else np.empty(0, dtype=np.intp)
        runs = np.split(index, begins[1:])
        return replace(self, parts=[(self.parts[owner[b]][0].rows(run - edges[owner[b]]), run.size)
                                    for b, run in zip(begins, runs, strict=True)])

    def constant(self, y: Array) -> Array:
        return self._join(lambda site, piece: np.broadcast_to(site.constant(y[piece]), y[piece].shape))

    def oracle(self, y: Array, m: Array, v: Array) -> Expectation:
        found = [site.oracle(y[piece], m[piece], v[piece]) for site, piece in self._pieces()]
        return _joined_expectation(found)

    def point(self, y: Array, f: Array) -> Expectation:
        return _joined_expectation([site.point(y[piece], f[..., piece]) for site, piece in self._pieces()])

    def curvature(self, y: Array, m: Array, v: Array) -> Array:
        return self._join(lambda site, piece: site.curvature(y[piece], m[piece], v[piece]))

    def symmetry(self, y: Array) -> tuple[Array, Array]:
        return self._join_pairs(lambda site, piece: site.symmetry(y[piece]))

    def even_part(self, y: Array, x: Array) -> EvenPart:
        found = [site.even_part(y[piece], x[piece]) for site, piece in self._pieces()]
        return EvenPart(*(np.concatenate([getattr(part, name) for part in found])
                          for name in ("value", "slope", "curvature", "bend")))

    def touching(self, y: Array, variance: Array) -> Array | None:
        found = [site.touching(y[piece], variance[piece]) for site, piece in self._pieces()]
        return None if any(part is None for part in found) else np.concatenate([p for p in found if p is not None])

    def start(self, y: Array) -> tuple[Array, Array]:
        return self._join_pairs(lambda site, piece: site.start(y[piece]))

    def peak(self, y: Array) -> tuple[Array, Array]:
        return self._join_pairs(lambda site, piece: site.peak(y[piece]))

    def tilted(self, y: Array, m: Array, v: Array, power: float | Array = 1.0) -> Tilted:
        powers = np.broadcast_to(np.asarray(power, dtype=np.float64), m.shape)
        found = [site.tilted(y[piece], m[piece], v[piece], powers[piece]) for site, piece in self._pieces()]
        return Tilted(*(np.concatenate([getattr(t, name) for t in found]) for name in ("log_z", "slope", "curvature")))

    def log_predictive(self, y: Array, m: Array, v: Array) -> Array:
        return self._join(lambda site, piece: site.log_predictive(y[piece], m[piece], v[piece]))

    def conditional_moments(self, f: Array) -> tuple[Array, Array]:
        return self._join_pairs(lambda site, piece: site.conditional_moments(f[..., piece]))

    def response_moments(self, m: Array, v: Array) -> tuple[Array, Array]:
        return self._join_pairs(lambda site, piece: site.response_moments(m[piece], v[piece]))

    def cdf(self, y: Array, f: Array) -> Array:
        return self._join(lambda site, piece: site.cdf(y[piece], f[..., piece]))

    def response_quantile(self, p: float, m: Array, v: Array) -> Array:
        return self._join(lambda site, piece: site.response_quantile(p, m[piece], v[piece]))

    def labels(self) -> Array:
        found = [site.labels() for site, _ in self.parts]
        if any(not np.array_equal(labels, found[0]) for labels in found):
            raise InputError("Class probabilities of a Stack need parts with the same classes",
                             " and ".join(str(labels.tolist()) for labels in found), "Predict each part on its own.")
        return found[0]

    def class_probabilities(self, m: Array, v: Array) -> Array:
        self.labels()
        return np.concatenate([site.class_probabilities(m[piece], v[piece]) for site, piece in self._pieces()])

    def _join(self, ask: Callable[[Site, slice], Array]) -> Array:
        return np.concatenate([ask(site, piece) for site, piece in self._pieces()], axis=-1)

    def _join_pairs(self, ask: Callable[[Site, slice], tuple[Array, Array]]) -> tuple[Array, Array]:
        first, second = zip(*(ask(site, piece) for site, piece in self._pieces()), strict=True)
        return np.concatenate(first, axis=-1), np.concatenate(second, axis=-1)


def _joined_expectation(found: list[Expectation]) -> Expectation:
    values, alphas, gammas = zip(*((e.value, e.alpha, e.gamma) for e in found), strict=True)
    return Expectation(*(np.concatenate(part, axis=-1) for part in (values, alphas, gammas)))


def _shared(facts: list[str]) -> str:
    return facts[0] if all(fact == facts[0] for fact in facts) else "mixed"


def _checked_part(index: int, part: Any) -> tuple[Site, int]:
    site, count = part if isinstance(part, (tuple, list)) and len(part) == 2 else (None, None)
    whole = isinstance(count, (int, np.integer)) and not isinstance(count, bool)
    if not isinstance(site, Site) or not whole or int(count) < 1:  # type: ignore[arg-type]
        raise InputError("Stack needs (site, count) pairs with count >= 1", f"{part!r} at index {index}",
                         "Write Stack([(Logistic(), 100), (Poisson(), 50)]).")
    needs_one_output(site, "Stack")
    site.check_length(int(count))  # type: ignore[arg-type]
    return site, int(count)  # type: ignore[arg-type]
