"""Every Gaussian process model: kernels, mean functions and inputs, and a likelihood; made by `klimb.gp`.

    f_c ~ GP(mean_c, kernel_c),  c = 1 .. fields,    y_i ~ likelihood(f_1(x_i), ..., f_C(x_i))

The forms of its latent: "Kernel" (n x n matrices), "Inducing" (seen through M points), "Markov" (Matern kernels over
time, linear in the data).
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, Self, TypeAlias

import numpy as np

from klimb._stored import stored
from klimb.errors import InputError, KlimbError, require
from klimb.kernels import Kernel as Covariance
from klimb.kernels import Matern12, Matern32, Matern52, Product, Sum
from klimb.kernels.inducing_points import MOST_AUTOMATIC, choose_inducing
from klimb.kernels.means import Mean
from klimb.latents.base import Latent, Posterior
from klimb.latents.costs import Shape
from klimb.latents.inducing import Inducing
from klimb.latents.kernel import Kernel
from klimb.latents.kernel_weights import CrossCovariances
from klimb.latents.markov import Markov
from klimb.latents.outputs import Outputs
from klimb.latents.shocks import MOST_REDUCED
from klimb.latents.weights_posterior import WeightPosterior
from klimb.likelihoods import Choices, Likelihood, Observed
from klimb.models.kernel_blocks import Points
from klimb.models.model import DRAW_JITTER, Functionals, Model, joined
from klimb.numerics.arrays import Array, ArrayLike, as_float
from klimb.rows.kernel_rows import inducing_latent
from klimb.theta import ParameterBlock, Theta

Form: TypeAlias = Literal["Kernel", "Inducing", "Markov"]  # the latent
SITES, LOOKED_AT = 32, 0.99  # at which it is seen what inducing points leave, and the share of sites among them
SMALL, GROWTH = (0.1, 0.05), 1.5  # errors that points enough leave, and the factor by which they become more
PERIODS, MOST_SCANNED, ROUGH = 48, 1000, 0.01  # of loose fits to up to so many rows, to this tolerance
SMOOTHNESS: dict[type[Covariance], float] = {Matern12: 0.5, Matern32: 1.5, Matern52: 2.5}


@dataclass(frozen=True, eq=False)
class Inputs:
    """Inputs as a matrix. ``own`` are those of the fit: there f has what the data's f has (jitter, white noise)."""

    X: Array
    own: bool = False
    at: Any = ...  # which of the fit's own

    @property
    def n(self) -> int:
        return len(self.X)

    def some(self, rows: Any) -> "Inputs":
        """Some of them."""
        return replace(self, X=self.X[rows], at=np.arange(self.n)[rows])


@stored("model.kernel")
@dataclass(frozen=True, eq=False, repr=False)
class KernelModel(Model):
    """A Gaussian process with its inputs and the values of its hyperparameters.

    One kernel and mean function serve all latent fields, or there is one of each for every field.

    >>> import numpy as np, klimb
    >>> x = np.linspace(0.0, 6.0, 30)
    >>> fit = klimb.gp(klimb.kernels.RBF(), x, klimb.sites.Gaussian(0.1)).fit(np.sin(x), hyper="fixed")
    >>> found = fit.predict([1.0, 20.0], kind="latent")  # near the data, and far from them
    >>> print(found["mean"].round(2), found["sd"].round(2), fit.model.names)
    [0.84 0.  ] [0.05 1.  ] ('variance', 'lengthscale')
    """

    kernel_blocks: tuple[ParameterBlock, ...]
    mean_blocks: tuple[ParameterBlock, ...]
    X: Array
    likelihood: Likelihood
    at: Array
    points: ParameterBlock | None = None  # inducing points
    jitter: float = 0.0  # share of the mean prior variance on the diagonal of K, or of that of the inducing points
    form: Form = "Kernel"
    automatic: bool = False  # whether there may be more inducing points

    def __repr__(self) -> str:
        rows, columns = self.X.shape
        points = "" if self.Z is None else f", {len(self.Z)} inducing points"
        kernels = ", ".join(repr(kernel) for kernel in self.kernels)
        return f"KernelModel({kernels}, {self.likelihood.label}, {rows} x {columns} inputs{points})"

    @property
    def title(self) -> str:
        """The model in one line."""
        count = f", for each of {self.fields} latent values" if self.fields > 1 else ""
        return f"Gaussian process, {', '.join(_title(kernel) for kernel in self.kernels)}{count}"

    # -- hyperparameters

    @cached_property
    def theta(self) -> Theta:  # type: ignore[override]
        points = () if self.points is None else (self.points,)
        return Theta.of([*self.kernel_blocks, *self.likelihood.parameters, *self.mean_blocks, *points])

    def _moved(self, at: Array) -> Self:
        moved = replace(self, at=at)
        moved.__dict__["theta"] = self.theta
        return moved

    def _values(self, blocks: Sequence[ParameterBlock]) -> tuple[Any, ...]:
        own = self.theta.of_owner(self.at, blocks)
        return tuple(block.value(theta) for block, theta in zip(blocks, own, strict=True))

    @cached_property
    def kernels(self) -> tuple[Covariance, ...]:
        """The kernels at the present hyperparameters: one for all latent fields, or one for each."""
        return self._values(self.kernel_blocks)

    @cached_property
    def means(self) -> tuple[Mean, ...]:
        """The mean functions, as many as there are kernels."""
        return self._values(self.mean_blocks)

    @property
    def kernel(self) -> Covariance:
        """The kernel (of the first field)."""
        return self.kernels[0]

    @property
    def mean(self) -> Mean:
        """The mean function (of the first field)."""
        return self.means[0]

    @cached_property
    def Z(self) -> Array | None:
        """The inducing points."""
        return None if self.points is None else np.asarray(self._values([self.points])[0])

    @property
    def fields(self) -> int:
        """How many latent values a datum has."""
        return len(self.likelihood.fields)

    def with_blocks(self, at: Sequence[Array] | None = None, **changed: Any) -> "KernelModel":
        """The model with other parts; theta is ``at``, block by block, or where the new blocks start."""
        model = replace(self, at=np.zeros(0), **changed)
        return replace(model, at=model.theta.start if at is None else joined(list(at)))

    def ready(self, data: Observed) -> Self:
        """With the parameters of a likelihood given by name, whose priors depend on the scale of the data."""
        require(len(data.y) == len(self.X), f"y must have one entry per row of X ({len(self.X)})", len(data.y),
                "Check that X and y match.")
        likelihood = self.likelihood.for_data(data)
        if not likelihood.parameters:
            prepared = likelihood.prepared(data, Choices())
            likelihood = prepared if prepared.parameters else likelihood
        model = self
        if likelihood is not self.likelihood:
            split = dict(zip(map(id, self.theta.blocks), self.theta.split(self.at), strict=True))
            model = replace(self, likelihood=likelihood)
            model = replace(model, at=joined([split.get(id(block), block.start) for block in model.theta.blocks]))
        check_fields(len(model.kernel_blocks), model.fields)
        # Of few data the answer is that of dense matrices, which can be corrected, and costs no more.
        short = model.form == "Markov" and len(model.X) <= MOST_REDUCED
        return replace(model, form="Kernel") if short else model

    def elsewhere(self, data: Observed) -> Self | None:
        """With kernels in the units of the data: a climb from far away may see no slope."""
        units = self.likelihood.units(data)
        variance = units.spread**2 + units.centre**2
        typical = [kernel.typical(self.X, variance, data.shares) for kernel in self.kernels]
        near = all(one is own for one, own in zip(typical, self.kernels, strict=True))
        model = self if near else self._with_kernels(typical)
        waves = model._by_period(data)
        return waves if waves is not None else None if near else model

    def _with_kernels(self, kernels: Sequence[Covariance]) -> Self:
        """Where a search begins from such kernels."""
        pairs: Any = zip(self.kernel_blocks, kernels, strict=True)
        blocks = tuple(replace(block, kernel=kernel) if block.size else block for block, kernel in pairs)
        model = replace(self, at=np.zeros(0), kernel_blocks=blocks)
        return replace(model, at=model.theta.start)

    def _by_period(self, data: Observed) -> Self | None:
        """At the best of many periods, between which a climb finds no way; None without one period, or for many rows.

        Frequencies are evenly spaced from half a wave over the inputs up to two rows a wave.
        """
        names = [(k, name) for k, kernel in enumerate(self.kernels) for name in kernel.free if _is_period(name)]
        extent = float(np.ptp(self.X, axis=0).max(initial=0.0))
        if len(names) != 1 or not extent > 0.0 or len(self.X) > MOST_SCANNED:
            return None
        (k, name), found = names[0], list[tuple[float, Self]]()
        for number in range(1, min(len(self.X), PERIODS) + 1):
            with suppress(KlimbError):
                one = self.kernels[k].with_parameters({name: 2.0 * extent / number})
                here = self._with_kernels([*self.kernels[:k], one, *self.kernels[k + 1 :]])
                found.append((here.infer(data, tol=ROUGH).bound + here.log_prior()[0], here))
        found = [pair for pair in found if np.isfinite(pair[0])]
        return max(found, key=lambda pair: pair[0])[1] if found else None

    # -- the latent

    def shape(self) -> Shape:
        n, points = len(self.X), self.Z
        states = 0
        if self.X.shape[1] == 1 and points is None:
            with suppress(InputError):
                states = int(sum(smoothness + 0.5 for smoothness in markov_terms(self.kernel)[2]))
        weights = n if points is None else len(points)
        return Shape(n, weights, n * weights, level_size=max(states, 1), kernel=True, chain=states > 0)

    @cached_property
    def latent(self) -> Latent:
        parts = [self._latent_of(kernel, mean) for kernel, mean in zip(self.kernels, self.means, strict=True)]
        if self.fields == 1 and len(parts) == 1:
            return parts[0]
        return Outputs(parts if len(parts) > 1 else parts * self.fields)

    def _latent_of(self, kernel: Covariance, mean: Mean) -> Latent:
        if self.form == "Markov":
            return Markov(self.X, *markov_terms(kernel), mean=mean(self.X))
        if self.form == "Inducing":
            return self._through_points(kernel, mean, self.X)
        K = kernel.gram(self.X)
        K.flat[:: len(K) + 1] += self.jitter * K.diagonal().mean()
        return Kernel(K, mean(self.X), check=False)

    def _through_points(self, kernel: Covariance, mean: Mean, X: Array) -> Inducing:
        return inducing_latent(kernel, X, self.Z, mean=mean, jitter=self.jitter)

    def _parts(self) -> tuple[Any, ...]:
        """The latents of the kernels."""
        return self.latent.parts[: len(self.kernels)]

    def detach(self, posterior: Posterior) -> WeightPosterior:
        return super().detach(posterior).without_prior()

    # -- the gradient

    def prior_gradient(self, posterior: Posterior) -> Array:
        total = np.zeros(self.theta.size)
        parts = posterior.latent.split(posterior)
        groups = [parts] if len(self.kernels) == 1 else [(part,) for part in parts]
        moving = self.points is not None and self.points.size > 0
        for number, group in enumerate(groups):
            kernel, mean = self.kernels[number], self.means[number]
            slopes, points = self._kernel_gradient(kernel, group, points=moving)
            self._add(total, self.kernel_blocks[number], slopes)
            self._add(total, self.mean_blocks[number], mean.vjp(self.X, np.sum([part.a for part in group], axis=0)))
            if points is not None:
                self._add(total, self.points, points)
        return total

    def _add(self, total: Array, block: Any, slopes: Array) -> None:
        at = self.theta.slice_of(block)
        total[at] += block.pull(self.at[at], slopes)

    def _kernel_gradient(self, kernel: Covariance, posteriors: Sequence[Posterior], *,
                         points: bool) -> tuple[Array, Array | None]:
        """d bound / d(free log parameters), and if asked for dZ, summed over posteriors that share this prior."""
        latent: Any = posteriors[0].latent
        if self.form == "Inducing":
            return self._pulled(kernel, latent, posteriors, points=points)
        d_K = latent.bound_gradient(posteriors[0])
        for posterior in posteriors[1:]:
            d_K += latent.bound_gradient(posterior)
        if self.form == "Markov":
            slopes = dict(zip(kernel.parameters, d_K.flat, strict=True))
            return np.array([slopes[name] for name in kernel.free]), None
        d_K.flat[:: len(d_K) + 1] += self.jitter * np.trace(d_K) / len(d_K)
        return kernel.gram_vjp(self.X, d_K), None

    def _pulled(self, kernel: Covariance, latent: Inducing, posteriors: Sequence[Posterior], *,
                points: bool) -> tuple[Array, Array | None]:
        """Gradients in Kuu, Kuf (by blocks) and diag(Kff) as those in the kernel's parameters and (``points``) in Z."""
        assert self.Z is not None
        Z, X = self.Z, self.X
        slopes, moved = np.zeros(len(kernel.free)), np.zeros_like(Z)

        def take(block: slice, part: Array) -> None:
            if points:
                cross, shift = kernel.cross_vjp(X[block], Z, part.T)
                moved[:] += shift
            else:
                cross = kernel.cross_parameter_vjp(Z, X[block], part)
            slopes[:] += cross

        d_inner, d_diagonal = latent.pull_back(posteriors, take)
        d_inner.flat[:: len(d_inner) + 1] += self.jitter * np.trace(d_inner) / len(d_inner)  # a share of the diagonal
        slopes += kernel.gram_vjp(Z, d_inner) + kernel.diag_vjp(X, d_diagonal)
        return slopes, moved + kernel.gram_input_vjp(Z, d_inner) if points else None

    # -- what inducing points leave

    def left_out(self, posterior: Posterior) -> tuple[float, float]:
        if self.form != "Inducing":
            return 0.0, 0.0
        parts = posterior.latent.split(posterior)
        kernels = self.kernels if len(self.kernels) == len(parts) else self.kernels * len(parts)
        errors = [self._left_of(*pair) for pair in zip(kernels, parts, strict=True)]
        return max(mean for mean, _ in errors), max(sd for _, sd in errors)

    def _left_of(self, kernel: Covariance, q: Posterior) -> tuple[float, float]:
        """With C the prior covariance that the points leave, means move by C a to first order.

        Of the variance c that is left at a site, the data would take all, if they saw it as well as what the points
        carry, or leave c / (1 + c t), t = sum_j gamma_j (C_ij / c)^2, if all else were known: an sd is about midway.
        """
        latent: Any = q.latent
        order, last = np.argsort(latent.slack / q.v), LOOKED_AT * (latent.n_sites - 1)
        rows = order[np.unique(np.linspace(0.0, last, SITES).astype(int))]
        own = latent.row_design.subset(rows).dense()
        shift, seen, left = np.zeros(len(rows)), np.zeros(len(rows)), np.zeros(len(rows))
        for block, P in latent.row_design.blocks():
            C = kernel.gram(self.X[rows], self.X[block]) - own @ P.T
            shift += C @ q.a[block]
            seen += C**2 @ q.gamma[block]
            here = (rows >= block.start) & (rows < block.stop)
            left[here] = np.maximum(C[here, rows[here] - block.start], 0.0)
        v = q.v[rows]
        if not left.any():
            return 0.0, 0.0
        left = np.clip(left, 1e-12 * v, 0.999 * v)
        least, most = v - left, v - left + left / (1.0 + np.maximum(seen, 0.0) / left)
        sd = 0.5 * (np.sqrt(v / least) + np.sqrt(v / most)) - 1.0
        return float((np.abs(shift) / np.sqrt(v)).max()), float(sd.max())

    def finer(self, posterior: Posterior) -> Self | None:
        if not self.automatic or self.Z is None or np.less_equal(self.left_out(posterior), SMALL).all():
            return None
        count = min(int(GROWTH * len(self.Z)) + 1, MOST_AUTOMATIC, len(self.X))
        points = choose_inducing(self.kernel, self.X, max(count, len(self.Z)))
        if len(points) <= len(self.Z):
            return None
        return replace(self, points=Points.among(self.X, points))  # held ones take no entry of theta

    # -- predictions

    def prepare(self, new: Any) -> Inputs:
        """New inputs as a matrix, or those of the fit."""
        if new is None:
            return Inputs(self.X, own=True)
        return new if isinstance(new, Inputs) else Inputs(as_inputs(new, "X_new", self.X.shape[1]))

    def functionals(self, prepared: Inputs) -> Functionals:
        found = [self._functionals_of(prepared, *parts)
                 for parts in zip(self.kernels, self.means, self._parts(), strict=True)]
        if len(found) == 1:
            return replace(found[0], shift=np.tile(found[0].shift, self.fields))
        covariances: Any = [one.covariance for one in found]
        return Functionals(tuple(one.L for one in found), tuple(one.rest for one in found),  # type: ignore[arg-type]
                           joined([one.shift for one in found]), lambda: tuple(each() for each in covariances))

    def _functionals_of(self, prepared: Inputs, kernel: Covariance, mean: Mean, latent: Any) -> Functionals:
        X, own = prepared.X, prepared.own
        if self.form == "Markov":  # the chain carries all of f, so that nothing is left over for new times
            return Functionals(X[:, 0], np.zeros(len(X)), mean(X), lambda: 0.0)
        if self.form == "Inducing":
            seen = latent if own and len(X) == latent.n_sites else self._through_points(kernel, mean, X)
            return Functionals(seen.row_design, seen.slack, seen.mean, lambda: _unexplained(kernel, X, seen))
        n = latent.n_sites
        if own:
            K, at = latent.K[prepared.at], prepared.at
            return Functionals(CrossCovariances(len(X), n, K.__getitem__, latent.kept_factor),
                               latent.prior_variances[at], latent.mean[at], lambda: K[:, at])
        cross = CrossCovariances(len(X), n, lambda rows: kernel.gram(X[rows], self.X), latent.kept_factor)
        return Functionals(cross, kernel.diag(X), mean(X), lambda: kernel.gram(X))


def _is_period(name: str) -> bool:
    return name.rpartition(".")[2].partition("[")[0] == "period"


def _title(kernel: Covariance) -> str:
    """The names of a kernel's parts."""
    if isinstance(kernel, Sum):
        return " + ".join(map(_title, kernel.parts))
    if isinstance(kernel, Product):
        return " * ".join(f"({_title(part)})" if isinstance(part, Sum) else _title(part) for part in kernel.parts)
    return type(kernel).__name__


def _unexplained(kernel: Covariance, X: Array, seen: Inducing) -> Array:
    """The prior covariance that inducing points leave, which is a difference: as exact as the prior is large."""
    rows = seen.row_design.dense()
    left = kernel.gram(X) - rows @ rows.T
    left.flat[:: len(left) + 1] += DRAW_JITTER * float(kernel.diag(X).max())
    return np.asarray(left)


def markov_terms(kernel: Covariance) -> tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]:
    """Variances, lengthscales and smoothnesses of a Matern kernel, or of a sum of them."""
    terms = []
    for part in kernel.parts if isinstance(kernel, Sum) else (kernel,):
        smoothness = SMOOTHNESS.get(type(part))
        if smoothness is None or not isinstance(part, Matern12 | Matern32 | Matern52):
            raise InputError("kernel must be Matern12, Matern32, Matern52 or a sum of them", repr(part),
                             "Use klimb.gp for other kernels.")
        (lengthscale,) = np.atleast_1d(part.lengthscale)
        terms.append((part.variance, float(lengthscale), smoothness))
    variances, lengthscales, smoothnesses = zip(*terms, strict=True)
    return variances, lengthscales, smoothnesses


def check_fields(kernels: int, fields: int, least: int = 1) -> None:
    """An error where the number of kernels is not that of the latent fields."""
    require(kernels in (least, fields), f"kernel must be one kernel, or one for each of {fields} latent values",
            kernels, "With baseline=True class 0 has none.")


def single(model: Any, advice: str) -> KernelModel:
    """``model`` if it is a Gaussian process with one latent value per datum, else an `InputError`."""
    if not isinstance(model, KernelModel) or model.fields != 1:
        process = isinstance(model, KernelModel)
        raise InputError("this needs a Gaussian process with one latent value per datum",
                         f"{model.fields} per datum" if process else f"a {type(model).__name__}",
                         advice if process else "Fit this model again to all data.")
    return model


def as_inputs(X: ArrayLike, name: str, width: int | None = None) -> Array:
    """``X`` as a matrix with one row per input (and ``width`` columns); a 1-d array is one column."""
    array = as_float(X, name)
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2 or 0 in array.shape:
        raise InputError(f"{name} must have at least one row and one column", f"shape {array.shape}", "Pass some data.")
    if width is not None and array.shape[1] != width:
        columns = "1 column" if width == 1 else f"{width} columns"
        raise InputError(f"{name} must have {columns}", f"shape {array.shape}", "Use the columns of the fit.")
    return array
