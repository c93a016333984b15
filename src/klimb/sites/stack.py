"""Several likelihoods in one model."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from klimb.errors import InputError, require
from klimb.numerics.arrays import Array, ArrayLike, as_float
from klimb.sites.base import Rows, Site
from klimb.sites.wrappers import needs_one_output, set_facts


def _by_parts(name: str) -> Any:
    """That method of every part on its own data, joined; a number is for all of them."""
    def ask(self: Any, *given: Any) -> Any:
        found = [getattr(site, name)(*(x if np.ndim(x) == 0 else x[..., piece] for x in given))
                 for site, piece in self._pieces()]
        if not isinstance(found[0], tuple):
            return np.concatenate(found, axis=-1)
        joined = (np.concatenate(same, axis=-1) for same in zip(*found, strict=True))
        return getattr(found[0], "_make", tuple)(joined)  # a pair, or a record of arrays

    return ask


@dataclass(frozen=True, eq=False)
class Stack(Site):
    """Several likelihoods in one model: the first ``count`` data belong to the first site, and so on.

    ``y`` is the concatenation of the data of the parts (or a list with one array per part).

    >>> from klimb.sites.counts import Logistic, Poisson
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
        kinds = {name: {getattr(site, name) for site in sites} for name in ("gamma_trend", "response")}
        shared = {name: kind.pop() if len(kind) == 1 else "mixed" for name, kind in kinds.items()}
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
        return np.concatenate([np.broadcast_to(site.constant(y[piece]), y[piece].shape)
                               for site, piece in self._pieces()])

    oracle = _by_parts("oracle")
    point = _by_parts("point")
    curvature = _by_parts("curvature")
    symmetry = _by_parts("symmetry")
    even_part = _by_parts("even_part")
    start = _by_parts("start")
    peak = _by_parts("peak")
    tilted = _by_parts("tilted")
    log_predictive = _by_parts("log_predictive")
    conditional_moments = _by_parts("conditional_moments")
    response_moments = _by_parts("response_moments")
    cdf = _by_parts("cdf")
    response_quantile = _by_parts("response_quantile")

    def touching(self, y: Array, variance: Array) -> Array | None:
        found = [site.touching(y[piece], variance[piece]) for site, piece in self._pieces()]
        return None if any(part is None for part in found) else np.concatenate([p for p in found if p is not None])

    def labels(self) -> Array:
        found = [site.labels() for site, _ in self.parts]
        if any(not np.array_equal(labels, found[0]) for labels in found):
            raise InputError("Class probabilities of a Stack need parts with the same classes",
                             " and ".join(str(labels.tolist()) for labels in found), "Predict each part on its own.")
        return found[0]

    def class_probabilities(self, m: Array, v: Array) -> Array:
        self.labels()
        return np.concatenate([site.class_probabilities(m[piece], v[piece]) for site, piece in self._pieces()])


def _checked_part(index: int, part: Any) -> tuple[Site, int]:
    site, count = part if isinstance(part, (tuple, list)) and len(part) == 2 else (None, None)
    whole = isinstance(count, (int, np.integer)) and not isinstance(count, bool)
    if not isinstance(site, Site) or not whole or int(count) < 1:  # type: ignore[arg-type]
        raise InputError("Stack needs (site, count) pairs with count >= 1", f"{part!r} at index {index}",
                         "Write Stack([(Logistic(), 100), (Poisson(), 50)]).")
    needs_one_output(site, "Stack")
    site.check_length(int(count))  # type: ignore[arg-type]
    return site, int(count)  # type: ignore[arg-type]
