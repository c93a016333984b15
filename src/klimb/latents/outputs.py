"""Several latent values per datum, one for each output (say, each class), and q of their weights.

Priors of the outputs are independent, side by side; under q weights are independent as well, or correlated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from klimb.errors import InputError
from klimb.latents.base import Factor, Latent, Posterior, asked
from klimb.latents.coordinates import Coordinates, Visit
from klimb.latents.costs import Option, Shape, cheapest
from klimb.latents.weights_posterior import DenseWeights, WeightPosterior, functionals, pooled_root, register, with_rest
from klimb.numerics.arrays import Array, Index
from klimb.numerics.lazy import scipy_linalg


def concatenated(name: str) -> Any:
    """That method of every part, answers one behind the other; arguments are split among the parts."""
    def ask(self: Any, *given: Array) -> Array:
        own = zip(*(np.split(one, len(self.parts)) for one in given), strict=True) if given else ((),) * len(self.parts)
        return np.concatenate([getattr(part, name)(*some) for part, some in zip(self.parts, own, strict=True)])

    return ask


class OutputsFactor(Factor):
    """The factors of the parts: the posterior precision is block-diagonal."""

    def __init__(self, parts: Sequence[Factor]) -> None:
        self.parts = tuple(parts)
        self.gamma = np.concatenate([part.gamma for part in parts])
        self.logdet = sum(part.logdet for part in parts)
        self.log_det_error = sum(part.log_det_error for part in parts)

    def _split(self, b: Array) -> list[Array]:
        return np.split(b, len(self.parts))

    variances = concatenated("variances")
    variance_error = concatenated("variance_error")
    smooth = concatenated("smooth")

    @property
    def exact(self) -> bool:
        return all(part.exact for part in self.parts)

    def solve(self, b: Array) -> tuple[Array, Array]:
        solved = [part.solve(x) for part, x in zip(self.parts, self._split(b), strict=True)]
        return np.concatenate([x for x, _ in solved]), np.concatenate([Kx for _, Kx in solved])

    def energy(self, b: Array) -> float:
        return sum(part.energy(x) for part, x in zip(self.parts, self._split(b), strict=True))

    def blocks(self) -> tuple[Factor, ...]:
        return self.parts


class Outputs(Latent):
    """C latents with the same data as the C latent values of each datum: f_1 .. f_C, independent in the prior.

    For sites with several latent values per datum, such as `klimb.sites.Softmax`. Sites are numbered output by output:
    first all data of the first output, then all of the second. ``parts`` may be any latents over the same number of
    data, also different ones; a kernel or design that serves all outputs is passed as ``Outputs.shared(latent, C)``
    and kept once.

    Examples
    --------
    >>> import numpy as np, klimb
    >>> x = np.array([-2.0, -1.5, -0.2, 0.1, 1.4, 2.0])
    >>> X, y = np.column_stack([np.ones(6), x]), [0, 0, 1, 1, 2, 2]
    >>> latent = klimb.latents.Outputs.shared(klimb.latents.Weights(X, cov=4.0), 3)
    >>> result = klimb.infer(latent, klimb.sites.Softmax(3), y)
    >>> m, v = latent.predict(result.posterior, [[1.0, -1.8], [1.0, 1.8]])     # one column per class
    >>> klimb.sites.Softmax(3).predict(m, v).probabilities().argmax(axis=1)
    array([0, 2])
    >>> [part.mean.round(1).tolist() for part in latent.split(result.posterior)[::2]]  # weights of classes 0 and 2
    [[-0.5, -2.5], [-0.4, 2.6]]
    """

    parts: tuple[Latent, ...] = ()

    def __init__(self, parts: Sequence[Latent]) -> None:
        self.parts = tuple(parts)
        if not self.parts:
            raise InputError("Outputs needs at least one latent", "none", "Pass one latent per class.")
        for index, part in enumerate(self.parts):
            given: Any = part
            if not isinstance(given, Latent) or given.n_outputs > 1:
                raise InputError("Outputs needs latents of one output", f"{type(part).__name__} at index {index}",
                                 "Pass klimb.latents.Weights(X), say, one per class.")
            if part.n_sites != self.parts[0].n_sites:
                raise InputError(f"the parts of Outputs must have the same number of data ({self.parts[0].n_sites})",
                                 f"{part.n_sites} at index {index}", "Use the same rows for every part.")
        self.n_outputs, self.reports = len(self.parts), self.parts[0].reports
        self.n_data = self.parts[0].n_sites
        self.n_sites = self.n_outputs * self.n_data
        self.n_weights = sum(part.n_weights for part in self.parts)
        self.dense_size = max(part.dense_size for part in self.parts)
        self.mean = np.concatenate([part.mean for part in self.parts])
        self.slack = np.concatenate([part.slack for part in self.parts])

    @classmethod
    def shared(cls, latent: Latent, n_outputs: int) -> Outputs:
        """The same prior for each of ``n_outputs`` outputs."""
        if n_outputs < 1:
            raise InputError("Outputs needs at least one output", f"{n_outputs}", "Pass the number of classes.")
        return cls([latent] * n_outputs)

    @cached_property
    def prior_variances(self) -> Array:
        return np.concatenate([part.prior_variances for part in self.parts])

    mvm = concatenated("mvm")

    def _split(self, values: Array) -> list[Array]:
        return np.split(values, self.n_outputs)

    def cancelled(self, a: Array) -> float:
        return sum(part.cancelled(x) for part, x in zip(self.parts, self._split(a), strict=True))

    def factor(self, gamma: Array) -> OutputsFactor:
        return OutputsFactor([part.factor(g) for part, g in zip(self.parts, self._split(gamma), strict=True)])

    def thin(self, rows: npt.NDArray[np.intp]) -> Outputs | None:
        """The same with some of the data; ``rows`` are data, not sites."""
        thinned = [part.thin(rows) for part in self.parts]
        return None if any(part is None for part in thinned) else Outputs([part for part in thinned if part])

    def marginals(self, posterior: Posterior) -> tuple[Array, Array]:
        latent = posterior.latent
        assert isinstance(latent, Outputs)
        pairs = [part.marginals(q) for part, q in zip(self.parts, latent.split(posterior), strict=True)]
        return np.concatenate([m for m, _ in pairs]), np.concatenate([v for _, v in pairs])

    def design(self) -> Array:
        return np.asarray(scipy_linalg.block_diag(*(part.design() for part in self.parts)))

    def split(self, posterior: Posterior) -> tuple[Posterior, ...]:
        """The posterior of each output by itself: ``.mean``, ``.covariance()``, ``.m``, ``.v`` and so on.

        Their ``kl`` is nan: only the sum over all outputs is known, as ``posterior.kl``.
        """
        latent, factor = posterior.latent, posterior.factorised()
        assert isinstance(latent, Outputs)
        assert isinstance(factor, OutputsFactor)
        columns = (latent._split(x) for x in (posterior.a, posterior.gamma, posterior.m, posterior.v))
        return tuple(replace(posterior, latent=part, a=a, gamma=gamma, m=m, v=v, kl=float("nan"), factor=one) for part,
                     one, a, gamma, m, v in zip(latent.parts, factor.parts, *columns, strict=True))

    def weight_mean(self, posterior: Posterior) -> Array:
        """The weights of all outputs, one output after the other."""
        return np.concatenate([part.mean for part in self.split(posterior)])

    def weight_covariance(self, posterior: Posterior) -> Array:
        return np.asarray(scipy_linalg.block_diag(*(part.covariance() for part in self.split(posterior))))

    def coordinates(self, posterior: Posterior) -> Coordinates:
        return OutputsCoordinates([part.latent.coordinates(part) for part in self.split(posterior)])

    def detach(self, posterior: Posterior) -> Several:
        return Several(tuple(part.latent.detach(part) for part in self.split(posterior)))

    def draw(self, rng: np.random.Generator) -> tuple[Array, Array]:
        drawn = [part.draw(rng) for part in self.parts]
        return np.concatenate([truth for truth, _ in drawn]), np.concatenate([f for _, f in drawn])

    def diagonal(self) -> Outputs:
        return Outputs([part.diagonal() for part in self.parts])

    @classmethod
    def costs(cls, shape: Shape) -> Option | None:
        """The parts' costs together, each by its cheapest latent; outputs that share weights must be stacked."""
        from klimb.latents import LATENTS

        F = shape.n_outputs
        if F == 1 or not shape.apart:
            return None
        part = replace(shape, n_outputs=1, n_sites=shape.n_sites // F, n_weights=shape.n_weights // F,
                       n_nonzeros=shape.n_nonzeros // F, n_levels=shape.n_levels // F, border=shape.border // F,
                       memory=shape.memory / F)
        one = cheapest(filter(None, (latent.costs(part) for latent in LATENTS.values())), part.memory)
        return Option(f"{F} x {one.name}", F * one.flops, F * one.seconds, F * one.bytes, one.exact)

    def predict(self, posterior: Posterior, *inputs: Any) -> tuple[Array, Array]:
        """Means and variances at new inputs, one column per output; arguments as for the ``predict`` of the parts."""
        latent = posterior.latent
        assert isinstance(latent, Outputs)
        parts: Any = latent.parts
        pairs = [part.predict(q, *inputs) for part, q in zip(parts, latent.split(posterior), strict=True)]
        return np.column_stack([m for m, _ in pairs]), np.column_stack([v for _, v in pairs])


class OutputsCoordinates(Coordinates):
    """Several latent values per datum: the coordinates of the parts side by side."""

    independent = "classes"

    def __init__(self, parts: list[Coordinates]) -> None:
        self.parts = parts
        self.n_sites = sum(part.n_sites for part in parts)
        self._edges = np.cumsum([part.dim for part in parts])[:-1]
        self.dim = sum(part.dim for part in parts)
        self.kind = parts[0].kind
        self.mean = np.concatenate([part.mean for part in parts])
        self.sd = np.concatenate([part.sd for part in parts])

    @property
    def work(self) -> float:
        return sum(part.work for part in self.parts)

    def deviations(self, z: Array) -> Array:
        split = np.split(z, self._edges, axis=1)
        return np.hstack([part.deviations(one) for part, one in zip(self.parts, split, strict=True)])

    def pull(self, slopes: Array) -> Array:
        split = np.split(slopes, np.cumsum([part.n_sites for part in self.parts])[:-1], axis=1)
        return np.hstack([part.pull(np.ascontiguousarray(one)) for part, one in zip(self.parts, split, strict=True)])

    def sweep(self, z: Array, visit: Visit) -> Array:
        return self.pull(visit(slice(0, self.n_sites), self.deviations(z)))

    def report(self, z: Array, which: Any) -> Array:
        split = np.split(z, self._edges, axis=1)
        both = [part.report(one, slice(None)) for part, one in zip(self.parts, split, strict=True)]
        return np.hstack(both)[:, which]


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

    sd = concatenated("sd")

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
    """N(mean, root root') over the weights of several outputs, output by output, which are not independent."""

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

    @property
    def _whole(self) -> DenseWeights:
        return DenseWeights(self.mean, self.root)

    covariances = asked("_whole", "covariances")
    sample = asked("_whole", "sample")
    at = asked("_each", "at")
    push = asked("_each", "push")

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


def independent_variances(S: Array) -> Array:
    """Variances (n, C) of independent values whose differences vary as those of values with covariances ``S`` do.

    By least squares over all pairs, v_c + v_d = Var(f_c - f_d), which is exact for two and three values: with r_c =
    sum_d Var(f_c - f_d), the sum of all v is sum_c r_c / (2 (C - 1)), and (C - 2) v_c is r_c less that.
    """
    C, own = S.shape[1], np.diagonal(S, axis1=1, axis2=2)
    r = C * own + own.sum(axis=1, keepdims=True) - 2.0 * S.sum(axis=2)
    v = 0.5 * r if C == 2 else (r - r.sum(axis=1, keepdims=True) / (2.0 * (C - 1))) / (C - 2)
    return np.asarray(np.maximum(v, 0.0))
