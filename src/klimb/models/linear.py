"""Every linear model: terms under priors that move with theta, and a likelihood that may.

    f = X w + t'b_level + offset,    w ~ N(mean, Sigma(theta)),    b_l ~ N(0, R R'(theta)),    y_i ~ site(theta)(f_i)

At the optimum over q the bound changes with theta as if q stood still, so its gradient is a sum over terms, each from
q's second moments of its own weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Self

import numpy as np

from klimb._stored import SKIPPED, stored
from klimb.errors import InputError
from klimb.infer.loop import Callback, infer
from klimb.infer.problem import Start
from klimb.infer.result import Result
from klimb.latents import LATENTS
from klimb.latents.base import Latent, Posterior
from klimb.latents.costs import Shape
from klimb.latents.linear import LinearParts, side_by_side
from klimb.latents.outputs import Outputs
from klimb.latents.weights import Weights
from klimb.latents.weights_posterior import AttachedWeights, WeightPosterior
from klimb.likelihoods import Likelihood, Observed
from klimb.linalg.matrix import BlockedDesign, DesignMatrix, as_design
from klimb.models.following import add_following, followed
from klimb.models.grams import Grams
from klimb.models.linear_parts import JointPrecision, LinearRows, block_length, check_size, dense_prior, many_nested
from klimb.models.model import Functionals, Model
from klimb.models.prior_sites import WithIdentity, log_tapers
from klimb.models.reduction import reduced_rows
from klimb.models.row_gradients import explained, feature_pieces
from klimb.models.squares import Squares, by_squares
from klimb.numerics.arrays import Array
from klimb.rows.scaling import Scaling
from klimb.sites.base import Site
from klimb.sites.stack import Stack
from klimb.terms import base
from klimb.terms.base import Coded, Moving, Nodes, Placed, Term, TermBlock, WeightsPrior
from klimb.theta import Theta
from klimb.trust.coupled import MOST_JOINT

FEW_LEVELS = 64  # weights of all groups but the largest up to which they are dense columns like any other
PREDICTED = 0.03  # relative error of variances that are estimated after a fit
NARROW = 200  # columns up to which a sparse design is worth the triangle of a dense one
CROSSED, DRAWN = 0.008, 60.0  # time of a dense product, and of a row of draws, over that of one in a sum over rows
WIDE = 1.5  # columns over rows from which N x N matrices are cheaper than D x D ones


@stored("model.linear")
@dataclass(frozen=True, eq=False)
class LinearModel(Model):
    """Terms, a likelihood and the values of their hyperparameters; ``rows`` are those of the fit."""

    terms: tuple[Term, ...]
    likelihood: Likelihood
    at: Array
    coded: int = -1  # which term may keep its codes, -1: none
    sparse: tuple[int, ...] = ()  # which other terms have sparse columns
    form: str = "Weights"  # which of `klimb.latents.LATENTS` it is fitted with
    rows: LinearRows | None = field(default=None, metadata={SKIPPED: False})
    kept: dict[str, Any] = field(default_factory=dict, metadata={SKIPPED: False}, repr=False)  # by all theta
    inputs: Scaling | None = None  # what makes columns of a user's matrix; None where terms make their own
    passes: Any = field(default=None, metadata={SKIPPED: False}, repr=False)  # over rows that ``rows`` are a sample of
    memory: float = field(default=8e9, metadata={SKIPPED: False})  # bytes that a fit may take
    loose: bool = field(default=False, metadata={SKIPPED: False})  # far from the optimum, products in 32 bits

    @classmethod
    def of(cls, terms: Sequence[Term], likelihood: Likelihood, blocks: Sequence[TermBlock], **more: Any) -> LinearModel:
        """The model of terms that know their priors, with the columns of the data of the fit."""
        sizes = [term.size if isinstance(block, Coded | Nodes) else 0
                 for term, block in zip(terms, blocks, strict=True)]
        fields = any(isinstance(block, Nodes) for block in blocks) or many_nested(sizes, blocks)
        if not fields and 1 < len(likelihood.fields) <= MOST_JOINT / max(sum(term.size for term in terms), 1):
            sizes = [0] * len(terms)  # all columns are dense: few enough for a posterior of all classes together
        coded = int(np.argmax(sizes)) if max(sizes, default=0) > 0 and not fields else -1
        if coded >= 0:
            sizes[coded] = 0
        sparse = tuple(np.flatnonzero(sizes).tolist()) if fields or sum(sizes) > FEW_LEVELS else ()
        model = cls(tuple(terms), likelihood, np.zeros(0), coded, sparse, **more)
        check_size(block_length(blocks), model._dense_width)
        model = model.moved(model.theta.start)
        model = replace(model, rows=model.arranged(blocks))
        return replace(model, form=model.plan().choice)

    @classmethod
    def of_matrix(cls, terms: Sequence[Term], likelihood: Likelihood, inputs: Scaling, X: Any) -> LinearModel:
        """The model of a matrix: the columns of all terms, side by side, are those that ``inputs`` makes of it."""
        model = cls(tuple(terms), likelihood, np.zeros(0), form="Implicit" if inputs.products else "Weights",
                    inputs=inputs)
        return replace(model, at=model.theta.start, rows=model._placed(X))

    def _placed(self, X: Any) -> LinearRows:
        assert self.inputs is not None
        design = self.inputs.design(X)
        n = design.shape[0]
        codes = np.full(n, base.UNSEEN, dtype=np.intp)
        return LinearRows(design, codes, np.zeros((n, 0)), (Placed(),) * len(self.terms), np.zeros(n))

    def shape(self) -> Shape:
        """The counts that costs follow from."""
        rows, outputs = self.fitted_rows(), len(self.likelihood.fields)
        levels, k = self.n_levels, rows.values.shape[1]
        size = self.width + levels * k
        nonzeros = rows.X.nnz if hasattr(rows.X, "nnz") else rows.n * size
        return Shape(rows.n, size, nonzeros, levels, k, self.width, outputs, apart=True,
                     dense=not hasattr(rows.X, "nnz"), memory=self.memory, sparse=self.width - self._dense_width,
                     fields=bool(self.sparse) and self.coded < 0)

    @property
    def level_size(self) -> int:
        """Coefficients of a level of the group that may keep its codes; 0 without one."""
        if self.coded < 0:
            return 0
        return self.fitted_rows().values.shape[1] if self.rows is not None else len(self.values[self.coded][0])

    @property
    def n_levels(self) -> int:
        """Of that group."""
        return self.terms[self.coded].size // self.level_size if self.coded >= 0 else 0

    @cached_property
    def theta(self) -> Theta:  # type: ignore[override]
        blocks = [block for term in self.terms for block in term.parameters]
        return Theta.of([*blocks, *self.likelihood.parameters])

    def _moved(self, at: Array) -> Self:
        moved = replace(self, at=at)
        moved.__dict__.update(theta=self.theta, places=self.places)
        return moved

    # -- where everything is

    @cached_property
    def places(self) -> tuple[slice, ...]:
        """The weights of each term, of one field: those of dense columns, of sparse ones, of the coded term."""
        begin, places = 0, list[slice]()
        for number, term in enumerate(self.terms):
            size = 0 if number == self.coded or number in self.sparse else term.size
            places.append(slice(begin, begin + size))
            begin += size
        begin = self._dense_width
        for number in (*self.sparse, *([self.coded] if self.coded >= 0 else [])):
            places[number] = slice(begin, begin + self.terms[number].size)
            begin = places[number].stop
        return tuple(places)

    @property
    def _dense_width(self) -> int:
        """How many dense columns there are; at least one, which holds the place where there are none."""
        return max(sum(term.size for k, term in enumerate(self.terms) if k not in (self.coded, *self.sparse)), 1)

    @property
    def width(self) -> int:
        """How many columns all rows share."""
        return self._dense_width + sum(self.terms[number].size for number in self.sparse)

    def arranged(self, blocks: Sequence[TermBlock]) -> LinearRows:
        """The columns of every term as rows of this model."""
        n = block_length(blocks)
        alone = [block.values for term, block in zip(self.terms, blocks, strict=True)  # who has all columns: no copy
                 if isinstance(block, base.Dense) and term.size == self._dense_width]
        X, shift = alone[0] if alone else np.zeros((n, self._dense_width)), np.broadcast_to(0.0, n)
        codes, values, columns = np.full(n, base.UNSEEN, dtype=np.intp), np.zeros((n, 0)), list[Any]()
        for number, (term, block, place) in enumerate(zip(self.terms, blocks, self.places, strict=True)):
            own = term.shift(block)
            if own is not None:
                shift = shift + own
            elif number == self.coded:
                assert isinstance(block, Coded)
                codes, seen = block.codes, (block.codes >= 0)[:, None]
                values = block.values if seen.all() else np.where(seen, block.values, 0.0)
            elif number in self.sparse:
                columns.append(term.columns_at(block, self.values[number]))
            elif isinstance(block, Coded):
                X[:, place] = block.dense()
            elif isinstance(block, base.Dense) and not alone:
                X[:, place] = block.values
        return LinearRows(X, codes, values, tuple(blocks), shift, side_by_side(columns) if columns else None)

    # -- the prior

    @cached_property
    def values(self) -> tuple[tuple[Any, ...], ...]:
        """What the parameters of each term are."""
        return tuple(
            tuple(block.value(self.at[self.theta.slice_of(block)]) for block in term.parameters) for term in self.terms
        )

    def priors(self, field: int = 0) -> tuple[WeightsPrior | None, ...]:
        """The prior of the weights of each term; None for terms without any."""
        return tuple(followed(self, term, term.prior(values, field)) if term.size else None
                     for term, values in zip(self.terms, self.values, strict=True))

    def prior_moments(self, field: int = 0, priors: Sequence[WeightsPrior | None] = ()) -> tuple[Array, Array]:
        """Prior mean and covariance of the weights of dense columns: variances, or a matrix where blocks need one."""
        apart = (self.coded, *self.sparse)
        every = enumerate(zip(priors or self.priors(field), self.places, strict=True))
        return dense_prior([pair for number, pair in every if number not in apart], self._dense_width)

    def with_features(self, rows: LinearRows) -> tuple[Any, Array]:
        """The shared columns with features that move filled in, and the variance that those leave unexplained."""
        moving = [k for k, block in enumerate(rows.blocks) if isinstance(block, Moving)]
        X, slack = (rows.X.copy(), np.zeros(rows.n)) if moving else (rows.X, np.broadcast_to(0.0, rows.n))
        for k in moving:
            X[:, self.places[k]], rest = self.terms[k].features(rows.blocks[k], self.values[k])  # type: ignore[arg-type]
            slack += rest
        return X, slack

    def fitted_rows(self) -> LinearRows:
        """The rows of the fit; an error where they were not kept."""
        if self.rows is None:
            raise InputError("this needs the rows of the fit", "a model from a file", "Fit again.")
        return self.rows

    @cached_property
    def latent(self) -> Latent:
        parts = [self.latent_of(field) for field in range(len(self.likelihood.fields))]
        return parts[0] if len(parts) == 1 else Outputs(parts)

    def latent_of(self, field: int) -> Latent:
        """The latent of one field."""
        rows = self.fitted_rows()
        priors = self.priors(field)
        mean, cov = self.prior_moments(field, priors)
        X, slack = self.featured
        if self.by_gram:
            return Weights.with_gram(self.design, mean, cov, self._grams.total(single=self.loose), single=self.loose)
        if self.densities:
            return Weights(self._with_identity(X), mean, cov, self._with_zeros(slack), form="primal")
        root = self.values[self.coded][0] if self.coded >= 0 else None
        crossed = [priors[number] for number in self.sparse]
        roots = tuple((prior.root, prior.copies) for prior in crossed if prior is not None and prior.root is not None)
        parts = LinearParts(X, mean, cov, slack, rows.codes, rows.values, self.n_levels,
                            None if root is None else root @ root.T, X is rows.X, rows.sparse, roots,
                            reduced=rows.stands_for > 0, loose=self.loose)
        if self.form == "Precision":
            joint = JointPrecision(cov, [prior for prior in crossed if prior is not None],
                                   [self.terms[number] for number in self.sparse])
            parts = replace(parts, precision=joint.Q, logdet=joint.logdet, constraints=joint.constraints)
        latent = LATENTS[self.form].of_parts(parts, self.kept)
        if latent is not None:
            return latent
        raise InputError("the latent must be one that is made of columns", self.form,
                         "Let the plan choose, or give the latent a method of_parts.")

    @cached_property
    def featured(self) -> tuple[Any, Array]:
        """The shared columns of the rows of the fit, and the variance that they leave."""
        return self.with_features(self.fitted_rows())

    @property
    def slack(self) -> Array:
        return np.tile(self.featured[1], len(self.likelihood.fields))

    @property
    def design(self) -> Any:
        """The shared columns of the data, in the form that multiplies fastest: a `DesignMatrix`."""
        if "design" not in self.kept:
            self.kept["design"] = as_design(self.fitted_rows().X, "X")
        return self.kept["design"]

    @cached_property
    def by_gram(self) -> bool:
        """Whether N x N matrices are cheaper than D x D ones, and are sums that theta only scales."""
        rows = self.fitted_rows()
        plain = self.form == "Weights" and self.coded < 0 and self.featured[0] is rows.X and not self.densities
        plain = plain and rows.n < WIDE * self.width and not rows.stands_for
        return plain and all(prior is None or prior.root is None for prior in self.priors())

    @property
    def _grams(self) -> Grams:
        return Grams(self.design, self.terms, self.places, self.priors(), self.kept)

    # -- priors that are no Gaussians

    @cached_property
    def densities(self) -> tuple[tuple[int, Site], ...]:
        """The terms whose prior is a density, and the site of each of their weights."""
        found = ((k, term.density(self.values[k])) for k, term in enumerate(self.terms) if term.size)
        return tuple((number, site) for number, site in found if site is not None)

    def _with_identity(self, X: Any) -> DesignMatrix:
        """The columns with a row below for each weight whose prior is a density."""
        columns = np.concatenate([np.arange(self.width)[self.places[number]] for number, _ in self.densities])
        return WithIdentity(self.design if X is self.fitted_rows().X else as_design(X, "X"), columns)

    def _with_zeros(self, values: Array) -> Array:
        return np.append(values, np.zeros(sum(self.terms[number].size for number, _ in self.densities)))

    def infer(self, data: Observed, *, start: Start = None, tol: float = 1e-6, max_iter: int = 500,
              callback: Callback | None = None) -> Result:
        if self.densities and (self.coded >= 0 or self.sparse or len(self.likelihood.fields) > 1):
            names = (f"{self.terms[self.densities[0][0]].name}()", *(self.terms[number].name for number in self.sparse))
            raise InputError("priors that are no Gaussians need one latent value per row and no group or field",
                             f"{self.likelihood.name} with {' and '.join(names)}", "Use ridge() in place of it.")
        if self.passes is not None:
            found: Result = self.passes.infer(self, tol, max_iter, callback)
            return found
        if not self.densities:
            return super().infer(data, start=start, tol=tol, max_iter=max_iter, callback=callback)
        site = Stack([(self.site(data), data.n), *((own, self.terms[number].size) for number, own in self.densities)])
        result = infer(self.latent, site, self._with_zeros(data.y), start=start, tol=tol, max_iter=max_iter,
                       callback=callback)
        return replace(result, bound=result.bound - log_tapers(self))

    def closed(self, data: Observed) -> Squares | None:
        return Squares.of(self, data)

    def reduced(self, data: Observed) -> tuple[Self, Observed] | None:
        if not by_squares(self, data) or not (isinstance(self.design, BlockedDesign) or self.width <= NARROW):
            return None
        found = reduced_rows(self.fitted_rows(), self.design, self.n_levels, data)
        if found is not None:
            self.kept["reduced"] = found[0].n
        return None if found is None else (replace(self, rows=found[0], kept={}), found[1])

    def explain(self) -> str:
        if self.passes is not None or "by passes" in self.kept:
            return str(self.kept.get("by passes") or self.passes.explain(self))
        few, n = int(self.kept.get("reduced", 0)), self.fitted_rows().n
        return f"{n:,} rows, reduced to {few:,} without loss (Gaussian noise)\n" * (few > 0) + super().explain()

    def gradient(self, posterior: Posterior, data: Observed) -> Array:
        total = super().gradient(posterior, data) if self.passes is None else (
            self.prior_gradient(posterior) + self.passes.slopes_at(posterior))
        add_following(self, total, posterior, data if self.passes is None else None)
        return np.asarray(total)

    def prior_gradient(self, posterior: Posterior) -> Array:
        total = np.zeros(self.theta.size)
        free = any(term.parameters for term in self.terms)
        for part in posterior.latent.split(posterior) if free else ():
            if self.by_gram:
                for term, slope in self._grams.slopes(part):
                    self.pull(total, term, (slope,))
            else:
                self.add_field(total, part.latent.detach(part), part)
        return total

    def add_field(self, total: Array, q: WeightPosterior, posterior: Any = None) -> None:
        """Add the slopes in what priors hang on, by q of the weights; columns that move need all of its posterior."""
        for number, (term, values, place) in enumerate(zip(self.terms, self.values, self.places, strict=True)):
            if not term.parameters:
                continue
            block = self.fitted_rows().blocks[number]
            if isinstance(block, Moving):
                learnt = q.moments(place).blocks(term.size) - np.eye(term.size)
                found = base.FeatureGradients(feature_pieces(self, posterior, q, place), learnt)
                self.pull(total, term, term.pull_features(block, values, found))
            else:
                moments = q.moments(place)
                if isinstance(block, Nodes):
                    moments = replace(moments, explained=partial(explained, self, posterior, q, place))
                self.pull(total, term, term.gradient(values, moments))

    def pull(self, total: Array, term: Term, slopes: Sequence[Any]) -> None:
        own = [block.pull(self.at[self.theta.slice_of(block)], slope)
               for block, slope in zip(term.parameters, slopes, strict=True)]
        self.theta.add(total, term.parameters, own)

    # -- predictions

    def rows_over(self, X: Any, codes: Any, values: Array, sparse: Any = None) -> Any:
        return LATENTS[self.form].rows_of(X, codes, values, self.n_levels, sparse)

    def prepare(self, new: Any) -> LinearRows:
        """Columns of new rows, or those of the fit."""
        if new is None or isinstance(new, LinearRows):
            return self.fitted_rows() if new is None else new
        return self._placed(new) if self.inputs is not None else self.arranged(new)

    @property
    def by_products(self) -> bool:
        """Whether the matrix only multiplies, because the exact engines would cost too much."""
        return self.form == "Implicit"

    def detach(self, posterior: Posterior) -> WeightPosterior:
        return AttachedWeights(posterior, PREDICTED) if self.by_products else super().detach(posterior)

    def weight_rows(self, L: Array) -> Any:
        """Rows of a matrix over the weights of one field, in the form that its posterior takes."""
        none, k = np.full(len(L), base.UNSEEN, dtype=np.intp), len(self.values[self.coded][0]) if self.coded >= 0 else 0
        if L.shape[1] > self.width and L[:, self.width :].any():
            raise InputError("functionals of a group's own weights are asked of its rows", "weights of levels",
                             "Use random_effects.")
        sparse = side_by_side([L[:, self._dense_width : self.width]]) if self.sparse else None
        return self.rows_over(L[:, : self._dense_width], none, np.zeros((len(L), k)), sparse)

    def functionals(self, prepared: LinearRows, *, new_levels: bool = True) -> Functionals:
        X, rest = self.with_features(prepared)
        for term, block, values in zip(self.terms, prepared.blocks, self.values, strict=True):
            root = term.new(block, values) if new_levels else None
            if root is not None:
                rest = rest + np.einsum("ij,ij->i", root, root)
        L = self.rows_over(X, prepared.codes, prepared.values, self._sparse_columns(prepared))
        return Functionals(L, rest, np.tile(prepared.shift, len(self.likelihood.fields)))

    def _sparse_columns(self, rows: LinearRows) -> Any:
        """Sparse columns; those of rows beyond the nodes of a field may move with its parameters."""
        if all(not isinstance(block, Nodes) or block.beyond is None for block in rows.blocks):
            return rows.sparse
        return side_by_side([self.terms[k].columns_at(rows.blocks[k], self.values[k]) for k in self.sparse])

    @property
    def settles(self) -> bool:
        scaled = [term for term in self.terms if term.parameters and self.passes is None]
        return len(scaled) == self.theta.size == 1 and scaled[0].kind == "ridge" and not self.by_products

    @property
    def holds_sites(self) -> bool:
        return self.passes is None and self.form in ("Mixed", "Crossed") and not self.likelihood.squares

    def information(self) -> Array | None:
        """As if weights and residuals were seen: two for each of the numbers that a log standard deviation is of."""
        if not self.form.startswith("Crossed"):
            return None
        found = np.full(self.theta.size, 2.0 * self.fitted_rows().n)
        for term, prior in zip(self.terms, self.priors(), strict=True):
            for block in term.parameters:
                found[self.theta.slice_of(block)] = 2.0 * (prior.copies if prior is not None else term.size)
        return found

    def work(self) -> float:
        rows = self.fitted_rows()
        if self.passes is not None:
            return 15.0 * float(self.passes.n) * float(self._dense_width + self.level_size + 5) ** 2
        if self.form == "Precision":  # a sparse factor and its selected inverse, as on a planar graph
            size = float(self.width - self._dense_width)
            return 15.0 * (rows.n * float(self._dense_width + 5) ** 2 + 200.0 * size + 2.0 * float(size**1.5))
        k = rows.values.shape[1] + (0 if rows.sparse is None else len(self.sparse))
        levels = 0.0 if rows.sparse is None else CROSSED * (self.width + self.n_levels) * float(self.width) ** 2
        levels = DRAWN * rows.n if self.form == "CrossedProducts" else levels
        return 15.0 * (rows.n * float(self._dense_width + k + 5) ** 2 + levels)
