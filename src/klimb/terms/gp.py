"""``gp(x, z)``: a Gaussian process over numeric columns, through its values at some points.

The inputs are brought to mean 0 and standard deviation 1. With u the whitened values at the points,

    f = Phi u + rest,    Phi = K_fu L^-T,    K_uu = L L',    u ~ N(0, I),    var(rest) = k_ff - |phi|^2,

exact where the points are all distinct inputs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from klimb._stan import StanPart, StanScope
from klimb._stored import stored
from klimb.errors import InputError, listed, nearest, require
from klimb.formula.factors import Factor
from klimb.formula.functions import Function, Parameter, bind
from klimb.formula.nodes import Call
from klimb.formula.numeric import Numeric, distinct_values, learn_numeric, moments
from klimb.numerics.arrays import Array
from klimb.numerics.dense import cholesky, row_blocks, triangular_solve
from klimb.priors import LogNormal
from klimb.rows.table import Source
from klimb.terms.base import Context, FeatureGradients, Moving, Term, TermBlock, WeightsPrior
from klimb.theta import ParameterBlock

MOST_POINTS = 120  # inducing inputs; with no more distinct inputs than these it is exact
JITTER = 1e-8  # of the variance, on the diagonal over the points


@stored("term.gp")
@dataclass(frozen=True, eq=False)
class GaussianProcess(Term):
    """What one ``gp()`` learnt: its columns, their means and standard deviations, and the points."""

    kind = "gp"
    holds = "points of Gaussian processes, which may be inputs of the data"
    functions = (Function("gp", "special", (Parameter("x", "numeric", many=True),
                                            Parameter("kernel", "word", "matern52"),
                                            Parameter("points", "whole", None)),
                          "Gaussian process over the columns, with a kernel of klimb.kernels"),)
    name: str
    expressions: tuple[Numeric, ...]
    centers: tuple[float, ...]
    scales: tuple[float, ...]
    kernel_name: str
    points: Array  # (M, d)
    parameters: tuple[ParameterBlock, ...] = ()

    @classmethod
    def learn(cls, call: Call, source: Source, text: str, factors: dict[str, Factor]) -> "tuple[GaussianProcess, ...]":
        """Means and standard deviations of the inputs, a kernel that there is, and well-spread points."""
        from klimb.kernels import KERNELS

        arguments = bind(call)
        names = {name.lower(): name for name in KERNELS}
        key = arguments["kernel"].lower().replace("_", "")
        if key not in names:
            raise InputError("expected a kernel of klimb.kernels", repr(arguments["kernel"]),
                             f"{nearest(key, names)}They are {listed(names)}.")
        most = arguments["points"]
        require(most is None or 2 <= most <= 5000, "expected points from 2 to 5000", str(most),
                "Leave it out for a good number.")
        expressions = tuple(learn_numeric(node, source) for node in arguments["x"])
        learnt = [moments(source.numbers(expression), f"gp({expression})") for expression in expressions]
        centers, scales = (tuple(numbers) for numbers in zip(*learnt, strict=True))
        inputs = (distinct_values(expressions, source) - centers) / scales
        return (cls(f"gp({', '.join(map(str, arguments['x']))})", expressions, centers, scales, names[key],
                    choose_points(inputs, most or MOST_POINTS)),)

    @property
    def size(self) -> int:
        return len(self.points)

    def block(self, source: Source) -> Moving:
        columns = [(expression.evaluate(source) - center) / scale
                   for expression, center, scale in zip(self.expressions, self.centers, self.scales, strict=True)]
        return Moving(np.column_stack(columns))

    def ready(self, block: TermBlock, context: Context) -> Self:
        return replace(self, parameters=tuple(
            context.sd(self.name, "gp") if name == "variance" else
            context.choices.positive(f"{name}({self.name})", LogNormal(1.0, 1.0), kind="gp")
            for name in self._kernel_type()().free))

    def _kernel_type(self) -> Any:
        from klimb.kernels import KERNELS

        return KERNELS[self.kernel_name]

    def kernel(self, values: Sequence[Any]) -> Any:
        """The kernel; its variance is held as a standard deviation."""
        kernel = self._kernel_type()()
        return kernel.with_parameters({name: value**2 if name == "variance" else value
                                       for name, value in zip(kernel.free, values, strict=True)})

    def prior(self, values: Sequence[Any], field: int = 0) -> WeightsPrior:
        return WeightsPrior(np.zeros(self.size), np.ones(self.size))

    def features(self, block: Moving, values: Sequence[Any]) -> tuple[Array, Array]:
        kernel = self.kernel(values)
        root = point_root(kernel, self.points)
        n = len(block.inputs)
        features, slack = np.empty((n, self.size)), np.empty(n)
        for rows in row_blocks(n, 2 * self.size):
            features[rows] = triangular_solve(root, kernel.gram(self.points, block.inputs[rows])).T
            rest = kernel.diag(block.inputs[rows]) - np.einsum("ij,ij->i", features[rows], features[rows])
            slack[rows] = np.maximum(rest, 0.0)
        return features, slack

    def pull_features(self, block: Moving, values: Sequence[Any], found: FeatureGradients) -> tuple[float, ...]:
        """Through K ~ Phi Phi' with Phi = K_fu L^-T, and through the variance that it leaves.

        ``found.moments`` is Phi'(d bound / d Phi) at the optimum, so K_uu needs no sum over rows but for the slack.
        """
        kernel = self.kernel(values)
        root = point_root(kernel, self.points)
        half = triangular_solve(root, triangular_solve(root, found.moments, transpose=True).T, transpose=True)
        d_points = -0.5 * (half + half.T) * 0.5
        pulled = np.zeros(len(kernel.free))
        for rows, d_features, d_slack in found.pieces:
            inputs = block.inputs[rows]
            features = triangular_solve(root, kernel.gram(self.points, inputs)).T
            P = d_features - 2.0 * d_slack[:, None] * features  # slack = k_ff - |phi|^2, with the same Phi
            d_cross = triangular_solve(root, P.T, transpose=True)
            pulled += kernel.cross_parameter_vjp(self.points, inputs, d_cross)
            pulled += kernel.diag_vjp(inputs, d_slack)
            phi = triangular_solve(root, features.T, transpose=True)
            d_points += (phi * d_slack) @ phi.T
        d_points = 0.5 * (d_points + d_points.T)
        d_points.flat[:: len(d_points) + 1] += JITTER * np.trace(d_points) / len(d_points)
        pulled += kernel.gram_vjp(self.points, d_points)
        # Gradients of kernels are in the logs of their parameters; the variance is held as an sd.
        return tuple((2.0 if name == "variance" else 1.0) * slope / value
                     for name, slope, value in zip(kernel.free, pulled, values, strict=True))

    def stan(self, block: TermBlock, values: Sequence[str], scope: StanScope) -> StanPart:
        raise InputError(
            "Stan text is written for terms whose columns stand still", f"{self.name}, whose columns move with its "
            "lengthscale and leave a part of the variance to every row by itself",
            "Use s() for a smooth curve over one column, or klimb.trust(fit) to judge the fit as it is.")


def choose_points(distinct: Array, most: int) -> Array:
    """All distinct inputs, which come in order, where they are few, else well-spread ones among them."""
    if len(distinct) <= most:
        return distinct
    if distinct.shape[1] == 1:  # between equal spacing, which prediction likes, and equal counts, which data like
        share = np.linspace(0.0, 1.0, most)
        low, high = distinct[0, 0], distinct[-1, 0]
        return np.unique(0.5 * (np.quantile(distinct[:, 0], share) + low + (high - low) * share))[:, None]
    from klimb.kernels import RBF, choose_inducing

    return choose_inducing(RBF(lengthscale=0.3), distinct, most)


def point_root(kernel: Any, points: Array) -> Array:
    """The Cholesky factor of the covariance over the points, with a little noise of its own."""
    K = np.asfortranarray(kernel.gram(points))
    K.flat[:: len(K) + 1] += JITTER * K.diagonal().mean()
    return cholesky(K)
