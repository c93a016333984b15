"""q of the weights of several outputs, such as classes: independent ones side by side, and correlated ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from klimb.latents.base import draws_from
from klimb.latents.weights_posterior import (
    DenseWeights,
    WeightPosterior,
    functionals,
    pooled_root,
    register,
    root_covariances,
    with_rest,
)
from klimb.numerics.arrays import Array, Index
from klimb.numerics.lazy import scipy_linalg


@register
@dataclass(frozen=True, eq=False)
class Several(WeightPosterior):
    """Independent posteriors side by side, one per output; functionals come output by output.

    ``at`` and ``joint`` take a tuple of L (and of ``rest``), one per part, or one for all of them.
    """

    kind: ClassVar[str] = "several"
    parts: tuple[WeightPosterior, ...]

    @cached_property
    def mean(self) -> Array:  # type: ignore[override]
        return np.concatenate([part.mean for part in self.parts])

    @cached_property
    def _edges(self) -> Index:
        return np.cumsum([part.size for part in self.parts])

    def sd(self) -> Array:
        return np.concatenate([part.sd() for part in self.parts])

    def covariances(self, rows: Index, columns: Index) -> Array:
        owner, other = (np.searchsorted(self._edges, index, side="right") for index in (rows, columns))
        out = np.zeros(len(rows))
        for number, part in enumerate(self.parts):
            own = (owner == number) & (other == number)
            begin = self._edges[number] - part.size
            out[own] = part.covariances(rows[own] - begin, columns[own] - begin)
        return out

    def each(self, L: Any, rest: Any) -> Iterator[tuple[Any, Any, Any]]:
        """The parts with their own L and rest."""
        count = len(self.parts)
        every = (one if isinstance(one, tuple) else (one,) * count for one in (L, rest))
        return zip(self.parts, *every, strict=True)

    def at(self, L: Any, rest: Any = 0.0) -> tuple[Array, Array]:
        pairs = [part.at(one, own) for part, one, own in self.each(L, rest)]
        return np.concatenate([m for m, _ in pairs]), np.concatenate([v for _, v in pairs])

    def within(self, L: Any, rest: Any = 0.0) -> Array:
        v = self.at(L, rest)[1].reshape(len(self.parts), -1).T
        return np.asarray(v[:, :, None] * np.eye(len(self.parts)))

    def joint(self, L: Any, rest: Any = 0.0) -> tuple[Array, Array]:
        pairs = [part.joint(one, own) for part, one, own in self.each(L, rest)]
        return np.concatenate([m for m, _ in pairs]), np.asarray(scipy_linalg.block_diag(*(V for _, V in pairs)))

    def sample(self, n: int, rng: np.random.Generator) -> Array:
        return np.hstack([part.sample(n, rng) for part in self.parts])

    def without_prior(self) -> Several:
        return Several(tuple(part.without_prior() for part in self.parts))

    def push(self, L: Any, weights: Array) -> Array:
        own = np.split(weights, self._edges[:-1], axis=1)
        return np.hstack([part.push(one, w) for (part, one, _), w in zip(self.each(L, 0.0), own, strict=True)])


@register
@dataclass(frozen=True, eq=False)
class CoupledOutputs(WeightPosterior):
    """N(mean, root root') over the weights of several outputs, output by output, which are not independent.

    >>> q = CoupledOutputs(np.zeros(2), np.array([[2.0, 1.0], [2.0, -1.0]]), 2)  # one weight each, sd of both large
    >>> q.at(np.ones((1, 1)))[1], independent_variances(q.within(np.ones((1, 1))))  # their difference has variance 4
    (array([5., 5.]), array([[2., 2.]]))
    """

    kind: ClassVar[str] = "coupled"
    couples: ClassVar[bool] = True
    mean: Array
    root: Array
    n_outputs: int

    @cached_property
    def _each(self) -> Several:
        """The marginals of the outputs."""
        halves = (np.split(values, self.n_outputs) for values in (self.mean, self.root))
        return Several(tuple(DenseWeights(*own) for own in zip(*halves, strict=True)))

    @property
    def parts(self) -> tuple[WeightPosterior, ...]:
        return self._each.parts

    def covariances(self, rows: Index, columns: Index) -> Array:
        return root_covariances(self.root, rows, columns)

    def at(self, L: Any, rest: Any = 0.0) -> tuple[Array, Array]:
        return self._each.at(L, rest)

    def within(self, L: Any, rest: Any = 0.0) -> Array:
        each, found = list(self._each.each(L, rest)), list[Array]()
        for blocks in zip(*(functionals(rows, part.size).scaled_blocks(part.root) for part, rows, _ in each),
                          strict=True):
            rooted = np.array([block for _, block in blocks])
            found.append(np.einsum("cij,dij->icd", rooted, rooted))
        S = np.concatenate(found)
        for c, (*_, own) in enumerate(each):
            S[:, c, c] += own
        return S

    def joint(self, L: Any, rest: Any = 0.0) -> tuple[Array, Array]:
        pairs = list(self._each.each(L, rest))
        rows = [functionals(own, part.size).dense() @ part.root for part, own, _ in pairs]
        blocks = [with_rest(np.zeros((len(own), len(own))), more) for own, (*_, more) in zip(rows, pairs, strict=True)]
        whole = np.concatenate(rows)
        return self.at(L)[0], np.asarray(whole @ whole.T + scipy_linalg.block_diag(*blocks))

    @classmethod
    def pooled(cls, parts: Sequence[Any], weights: Array) -> WeightPosterior | None:
        return cls(*pooled_root([part.mean for part in parts], [part.root for part in parts], weights),
                   parts[0].n_outputs)

    def sample(self, n: int, rng: np.random.Generator) -> Array:
        return draws_from(self.mean, self.root, n, rng)

    def push(self, L: Any, weights: Array) -> Array:
        return self._each.push(L, weights)


def independent_variances(S: Array) -> Array:
    """Variances (n, C) of independent values whose differences vary as those of values with covariances ``S`` do.

    By least squares over all pairs, v_c + v_d = Var(f_c - f_d), which is exact for two and three values: with r_c =
    sum_d Var(f_c - f_d), the sum of all v is sum_c r_c / (2 (C - 1)), and (C - 2) v_c is r_c less that.
    """
    C, own = S.shape[1], np.diagonal(S, axis1=1, axis2=2)
    r = C * own + own.sum(axis=1, keepdims=True) - 2.0 * S.sum(axis=2)
    v = 0.5 * r if C == 2 else (r - r.sum(axis=1, keepdims=True) / (2.0 * (C - 1))) / (C - 2)
    return np.asarray(np.maximum(v, 0.0))
