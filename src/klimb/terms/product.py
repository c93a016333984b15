"""``bym2(region, graph=G):ar1(year)``: separable products of two fields, as for space and time.

    w ~ N(0, s^2 (Q_1 (x) Q_2)^-1)

a value for every pair of nodes, the second factor's running faster, with one standard deviation. Where a factor is
intrinsic its null space N is left out: sums over areas for every time, sums (or lines) over time for every area,

    N_1' (x) I  and  U_1' (x) N_2',        U_1 an orthonormal basis of what N_1 leaves,

which are orthonormal and hence not redundant. There log det = rank_2 log det Q_1 + rank_1 log det Q_2. These are the
interactions of Knorr-Held (2000), and of BYM2 the structured part takes part.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np

from klimb._stan import StanDefinition, StanPart
from klimb._stored import stored
from klimb.errors import require
from klimb.formula.parts import Joined
from klimb.latents.precision import Precision
from klimb.likelihoods import Choices
from klimb.numerics.arrays import Array
from klimb.numerics.lazy import scipy_sparse
from klimb.rows.table import Source
from klimb.terms.base import Context, Nodes, TermBlock
from klimb.terms.field import Field, scaled_entries
from klimb.theta import ParameterBlock

MOST_CONSTRAINTS = 2000


@stored("term.product")
@dataclass(frozen=True, eq=False)
class FieldProduct(Field):
    """Two fields, the standard deviation of their product, and the other parameters of the first, then the second."""

    kind = "product"
    name: str
    first: Field
    second: Field
    counts: tuple[int, int] = (0, 0)  # parameters of each but for its standard deviation
    parameters: tuple[ParameterBlock, ...] = ()

    @classmethod
    def learn(cls, part: Joined, source: Source, text: str, factors: dict[str, Any]) -> tuple[Self, ...]:
        """The two factors, as they are learnt on their own."""
        from klimb.terms.registry import term_of

        first, second = (term_of(call).learn(call, source, text, factors)[0] for call in part.calls)
        found = cls(f"{first.name}:{second.name}", first.factor(), second.factor())
        free = sum(rows.shape[0] * other.size for rows, other in zip(found._null, (second, first), strict=True))
        require(free <= MOST_CONSTRAINTS, f"expected at most {MOST_CONSTRAINTS:,} constraints of an intrinsic product",
                f"{free:,}", "Use ar1() or car(), which are proper.")
        return (found,)

    def ready(self, block: TermBlock, context: Context) -> Self:
        tried = replace(context, choices=Choices())
        named: list[Any] = [replace(factor, name=self.name) for factor in self._factors]  # type: ignore[type-var]
        one, two = ({name for shape in factor.shape_parameters(tried) for name in shape.names} for factor in named)
        if one & two:  # ar1(t):ar1(u), say, has two of the name rho
            named = [replace(factor, name=f"{factor.name} in {self.name}") for factor in self._factors]  # type: ignore[type-var]
        scale, shapes = context.sd(self.name, "field"), [factor.shape_parameters(context) for factor in named]
        return replace(self, parameters=(scale, *shapes[0], *shapes[1]), counts=(len(shapes[0]), len(shapes[1])))

    @property
    def _factors(self) -> tuple[Field, Field]:
        return self.first, self.second

    def _values(self, values: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Those of the factors, with unit standard deviations."""
        middle = 1 + self.counts[0]
        return [1.0, *values[1:middle]], [1.0, *values[middle:]]

    # -- the prior

    @cached_property
    def _null(self) -> tuple[Array, Array]:
        found = [factor.constraints() for factor in self._factors]
        one, two = (np.zeros((0, factor.size)) if rows is None else rows
                    for rows, factor in zip(found, self._factors, strict=True))
        return one, two

    @cached_property
    def pattern(self) -> Any:
        return self._kron(None)

    @cached_property
    def _places(self) -> tuple[Any, Any]:
        """Which entries of the factors each entry of the product is made of."""
        one, two = (self._kron(own).data.astype(np.intp) - 1 for own in self._factors)
        return one, two

    def _kron(self, counted: Field | None) -> Any:
        """The product of the patterns, with the entries of one factor counted from 1."""
        one, two = (_numbered(factor.pattern, factor is counted) for factor in self._factors)
        found = scipy_sparse.csc_array(scipy_sparse.kron(one, two, format="csc"))
        found.sort_indices()
        return found

    def constraints(self) -> Array | None:
        one, two = self._null
        rows = []
        if len(one):
            rows.append(np.kron(one, np.eye(self.second.size)))
        if len(two):
            rest = np.eye(self.first.size)
            if len(one):
                rest = np.linalg.qr(one.T, mode="complete")[0][:, len(one) :].T
            rows.append(np.kron(rest, two))
        return np.vstack(rows) if rows else None

    def entries(self, values: Sequence[Any]) -> tuple[Array, float]:
        (one, det_one), (two, det_two) = (factor.entries(own) for factor, own
                                          in zip(self._factors, self._values(values), strict=True))
        ranks = [factor.size - len(rows) for factor, rows in zip(self._factors, self._null, strict=True)]
        at_one, at_two = self._places
        logdet = ranks[1] * det_one + ranks[0] * det_two
        return scaled_entries(one[at_one] * two[at_two], logdet, ranks[0] * ranks[1], values[0])

    def stan_root(self, values: Sequence[str], z: str, w: str, tag: str, columns: int = 0) -> StanPart:
        """The first factor is made along the rows of a matrix of normals, the second along its columns."""
        (at_one, at_two), n = self._values(values), self.first.size
        made, turned, outer = f"made{tag}", f"turned{tag}", f"pairs{tag}"
        two = self.second.stan_root(at_two, turned + "{c}", outer, f"{tag}_2", n)
        (rank,) = two.free
        one = self.first.stan_root(at_one, z, made, f"{tag}_1", rank)
        middle = StanDefinition(f"matrix[{rank}, {n}]", turned, f"{made}{{c}}'")
        last = StanDefinition(f"vector[{self.size}]", w, f"{values[0]} * to_vector({outer}{{c}})")
        return StanPart(data=(*one.data, *two.data), values={**one.values, **two.values}, free=(*one.free, rank),
                        transformed=(*one.transformed, middle, *two.transformed, last))

    def standardised(self, values: Sequence[Any], weights: Array) -> Array:
        at_one, at_two = self._values([1.0, *values[1:]])
        found = self.second.standardised(at_two, weights.reshape(-1, self.first.size, self.second.size))
        found = self.first.standardised(at_one, np.swapaxes(found, 1, 2))
        return np.asarray(found.reshape(*weights.shape[:-1], -1) / values[0])

    # -- rows

    def level_columns(self) -> tuple[str, ...]:
        return self.first.level_columns() + self.second.level_columns()

    def block(self, source: Source) -> Nodes:
        one, two = self.first.block(source), self.second.block(source)
        assert isinstance(one, Nodes)
        assert isinstance(two, Nodes)
        beyond = any(block.beyond is not None and np.any(block.beyond) for block in (one, two))
        return Nodes(_by_rows(one.values, two.values), (one, two) if beyond else None)

    def at_nodes(self) -> tuple[Sequence[Any], Any]:
        (names, rows), (others, more) = self.first.at_nodes(), self.second.at_nodes()
        return [f"{one}:{two}" for one in names for two in others], scipy_sparse.kron(rows, more, format="csr")

    def columns_at(self, block: Nodes, values: Sequence[Any]) -> Any:
        if block.beyond is None:
            return block.values
        return _by_rows(*(factor.columns_at(own, at) for factor, own, at
                          in zip(self._factors, block.beyond, self._values(values), strict=True)))

    def new(self, block: Nodes, values: Sequence[Any]) -> Array | None:
        """(m_1 + r_1)(m_2 + r_2) - m_1 m_2, with m what the nodes say of a factor's variance and r what they do not."""
        if block.beyond is None:
            return None
        known, all_of = np.ones(block.values.shape[0]), np.ones(block.values.shape[0])
        for factor, own, at, rows in zip(self._factors, block.beyond, self._values(values), self._null, strict=True):
            prior = factor.prior(at)
            m = Precision(prior.precision, factor.columns_at(own, at), rows, logdet=prior.logdet).prior_variances
            root = factor.new(own, at)
            known *= m
            all_of *= m if root is None else m + (root**2).sum(axis=1)
        return np.asarray(values[0] * np.sqrt(np.maximum(all_of - known, 0.0)))[:, None]

    def doubt(self, values: Sequence[Any]) -> tuple[float, str]:
        return max(factor.doubt(own) for factor, own in zip(self._factors, self._values(values), strict=True))

    def note(self) -> str:
        return " ".join(filter(None, (factor.note() for factor in self._factors)))


def _numbered(pattern: Any, count: bool) -> Any:
    """The pattern with its entries counted from 1, or all 1."""
    data = np.arange(1.0, pattern.nnz + 1.0) if count else np.ones(pattern.nnz)
    return scipy_sparse.csc_array((data, pattern.indices, pattern.indptr), shape=pattern.shape)


def _by_rows(one: Any, two: Any) -> Any:
    """The Kronecker product of each row of one matrix with the same row of another.

    >>> a, b = scipy_sparse.csr_array([[1.0, 2.0], [0.0, 3.0]]), scipy_sparse.csr_array([[0.0, 1.0], [5.0, 0.0]])
    >>> _by_rows(a, b).toarray().tolist()
    [[0.0, 1.0, 0.0, 2.0], [0.0, 0.0, 15.0, 0.0]]
    """
    one, two = scipy_sparse.csr_array(one), scipy_sparse.csr_array(two)
    rows = np.repeat(np.arange(one.shape[0]), np.diff(one.indptr))
    copies = np.diff(two.indptr)[rows]
    at = np.repeat(np.arange(one.nnz), copies)
    within = np.arange(len(at)) - np.repeat(np.cumsum(copies) - copies, copies)
    other = two.indptr[rows[at]] + within
    columns = one.indices[at].astype(np.int64) * two.shape[1] + two.indices[other]
    shape = (one.shape[0], one.shape[1] * two.shape[1])
    return scipy_sparse.csr_array((one.data[at] * two.data[other], (rows[at], columns)), shape=shape)
