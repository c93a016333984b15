"""The answer of `klimb.boost`: a mixture of Gaussians, its moments and quantiles, and how far to trust it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any

import numpy as np

from klimb.boosting.gaussians import BoostStep, Gaussians
from klimb.boosting.target import Target
from klimb.boosting.transforms import Transform, points
from klimb.boosting.trust import CHECKED, CorrectedMixture, MixtureTrust, SurrogateCheck, Weighed, tail, trust_of
from klimb.errors import grid_of_axes, one_axes, require
from klimb.numerics.arrays import Array, as_float
from klimb.numerics.mixtures import mixture_quantile

DRAWS = 1 << 13  # for moments and quantiles without a closed form


class Ended(Enum):
    """Why a run ended; ``advice`` says what to do about it."""
    GAP = "The estimated divergence from the target is below tol (twice that with points outside the mixture)."
    GAIN = "Another component, tried twice and with more nodes, gains less than tol."
    COMPONENTS = "n_components was reached while components still gained: raise it for a closer fit."
    PREDICTED = "The surrogate predicts the log density at new points well: more evaluations would change little."
    EVALUATIONS = "max_evaluations was reached: raise it for a closer fit."

    @property
    def advice(self) -> str:
        return self.value


@dataclass(frozen=True, eq=False)
class Mixture:
    """sum_k w_k N(mean_k, cov_k) in free coordinates, mapped to the user's by the transforms (identical without any).

    Edges of the target's bulk that are parallel to the axes become transforms, declared or not. At others the mixture
    is cut off (``inside`` is the share it keeps), so that it is a density on the support.

    >>> import klimb
    >>> q = klimb.boost(lambda x: 3.0 * x[:, 0] - np.exp(x[:, 0]), 1)  # the log of a Gamma(3) variable
    >>> print(q.n_components, q.mean.round(1), q.sd.round(1), q.quantiles([0.05, 0.95]).ravel().round(1))
    2 [0.9] [0.6] [-0.2  1.9]
    >>> print(round(q.probability(lambda x: x[:, 0] > 1.0), 1), q.sample(3).shape, q.trust.verdict)
    0.5 (3, 1) trust
    """

    parts: Gaussians = field(repr=False)
    bound: float  # lower bound of the log evidence, estimated at nodes that the fit has not seen
    bound_error: float  # its standard error
    ended: Ended
    steps: tuple[BoostStep, ...] = field(repr=False)
    target: Target = field(repr=False)
    names: tuple[str, ...] = field(repr=False)
    inside: float = 1.0
    seed: int = 0
    surrogate: SurrogateCheck | None = None  # where ``target`` is a surrogate of the log density: how good it is

    @property
    def n_components(self) -> int:
        return len(self.parts)

    @property
    def weights(self) -> Array:
        """K weights of the components."""
        return np.asarray(self.parts.weights)

    @property
    def dim(self) -> int:
        """The number of the user's parameters."""
        return self.target.coordinates.n

    @property
    def means(self) -> Array:
        """K x D means of the components, in free coordinates."""
        return self.parts.means

    @property
    def covariances(self) -> Array:
        """K x D x D covariances of the components, in free coordinates."""
        return self.parts.covariances

    @property
    def transforms(self) -> tuple[Transform, ...]:
        """The blocks of the map from free coordinates: as declared, or as found where edges showed themselves."""
        return self.target.coordinates.blocks

    @property
    def n_values(self) -> int:
        """Points at which the user's log density was evaluated."""
        return self.target.n_values

    @property
    def n_gradients(self) -> int:
        """Points at which the user's gradient was evaluated."""
        return self.target.n_gradients

    @property
    def trace(self) -> dict[str, Any]:
        """Components, bound, its error, gaps, evaluations and weights after every accepted step."""
        names = ("n_components", "bound", "bound_error", "gap", "duality_gap", "n_values", "n_gradients", "weights")
        return {name: [getattr(step, name) for step in self.steps] for name in names}

    def __repr__(self) -> str:
        return (f"Mixture({self.n_components} component{'s' * (self.n_components > 1)} in {self.dim} dimension"
                f"{'s' * (self.dim > 1)}, bound {self.bound:.6g} +- {self.bound_error:.2g}, ended by "
                f"{self.ended.name.lower()})")

    def log_density(self, X: Any) -> Array:
        """log q at a point or at the rows of ``X``; -inf outside the support."""
        rows = points(X, "X", self.dim)
        coordinates = self.target.coordinates
        found = np.full(len(rows), -np.inf)
        ok = coordinates.contains(rows)
        if ok.any():
            U = coordinates.to_free(rows[ok])
            found[ok] = self._log_free(U) - coordinates.to_user(U)[1]
            if self.inside < 1.0:
                found[ok] = np.where(np.isfinite(self.target.values(U)), found[ok], -np.inf)
        return np.asarray(found[0] if np.ndim(X) == 1 else found)

    def _log_free(self, U: Array) -> Array:
        return np.asarray(self.parts.log_density(U) - np.log(self.inside))

    def sample(self, n: int, seed: int | np.random.Generator = 0) -> Array:
        """``n`` independent draws, in the user's coordinates."""
        return self.target.coordinates.to_user(self._free_draws(n, np.random.default_rng(seed)))[0]

    def _free_draws(self, n: int, rng: np.random.Generator | None) -> Array:
        """``n`` free draws; evenly spread ones (as many of each component as its weight says) without ``rng``."""
        require(n >= 1, "n must be at least 1", n, "Ask for at least one draw.")
        kept: list[Array] = []
        found, round_ = 0, 0
        while found < n:
            U = self._raw_draws(n if self.inside == 1.0 else int(1.2 * (n - found) / self.inside) + 8, rng, round_)
            if self.inside < 1.0:
                U = U[np.isfinite(self.target.values(U))]
            kept.append(U)
            found += len(U)
            round_ += 1
        return np.asarray(np.concatenate(kept)[:n])

    def _raw_draws(self, n: int, rng: np.random.Generator | None, round_: int) -> Array:
        if rng is None:
            return self.parts.draws(n, self.seed + 101 + 997 * round_)
        owner = rng.choice(len(self.weights), size=n, p=self.weights)
        z = rng.standard_normal((n, self.parts.dim))
        return np.asarray(self.parts.means[owner] + np.einsum("nde,ne->nd", self.parts.roots[owner], z))

    @cached_property
    def _even(self) -> Array:
        """Evenly spread draws in the user's coordinates, for what has no closed form."""
        return self.target.coordinates.to_user(self._free_draws(DRAWS, None))[0]

    @property
    def _closed(self) -> bool:
        return self.target.coordinates.plain and self.inside == 1.0

    @property
    def mean(self) -> Array:
        """The mean of q."""
        return self.parts.moments()[0] if self._closed else np.asarray(self._even.mean(axis=0))

    @property
    def cov(self) -> Array:
        """The covariance of q."""
        return self.parts.moments()[1] if self._closed else np.atleast_2d(np.cov(self._even.T))

    @property
    def sd(self) -> Array:
        """Standard deviations of q."""
        return np.sqrt(np.diag(self.cov))

    def quantiles(self, p: Any = (0.05, 0.5, 0.95)) -> Array:
        """Marginal quantiles of q, one row per probability in ``p``, one column per parameter."""
        levels = np.atleast_1d(as_float(p, "p"))
        require(not ((levels <= 0) | (levels >= 1)).any(), "p must lie between 0 and 1", levels, "Use 0.05 for 5%.")
        if self.inside < 1.0 or not self.target.coordinates.elementwise:
            return np.quantile(self._even, levels, axis=0)
        free = [mixture_quantile(self.weights, self.parts.means, self.parts.deviations, level) for level in levels]
        return np.asarray(self.target.coordinates.to_user(np.stack(free))[0])

    def probability(self, event: Callable[[Array], Any], n: int = DRAWS) -> float:
        """P(event) under q: ``event`` takes an n x dim batch of draws and returns n truth values."""
        draws = self._even if n == DRAWS else self.target.coordinates.to_user(self._free_draws(n, None))[0]
        happened = np.asarray(event(draws))
        require(happened.shape == (len(draws),), f"event must return {len(draws)} truth values for {len(draws)} draws",
                f"shape {happened.shape}", "Write it for a batch: lambda x: x[:, 0] > 0.")
        return float(happened.astype(bool).mean())

    @cached_property
    def _weighed(self) -> Weighed:
        return Weighed(self, self._free_draws(CHECKED, None))

    @cached_property
    def trust(self) -> MixtureTrust:
        """A verdict (trust, corrected, doubt) with the figures behind it; evaluates the target once (3,072 points)."""
        return trust_of(self, self._weighed)

    @property
    def khat(self) -> float:
        """The tail of target over mixture at draws of the mixture: above 0.7, the two differ too much.

        Held at 0.7 where no single weight is large enough to be felt, whatever the fit of the tail says.
        """
        return tail(self._weighed.plain)

    @property
    def corrected(self) -> CorrectedMixture:
        """Moments and log evidence by Pareto-smoothed weights of draws from q and from around it."""
        return self._weighed.corrected

    @property
    def gap(self) -> float:
        """An estimate of KL(q || target): the importance-sampled log evidence less the bound, at the same draws."""
        return self._weighed.gap

    @property
    def missing(self) -> float:
        """The share of the target's mass where q has less than a third of it, as far as points around q can tell."""
        return self._weighed.missing

    def plot_marginals(self, truth: Array | None = None, *, axes: Any = None) -> Any:
        """Marginal densities, one panel per parameter; ``truth`` draws are shown as histograms."""
        axes = grid_of_axes(axes, self.dim, 4, (3.0, 2.3))
        for j, ax in enumerate(np.ravel(axes)):
            if j >= self.dim:
                ax.set_visible(False)
                continue
            if truth is not None:
                ax.hist(np.asarray(truth)[:, j], bins=60, density=True, color="0.8", label="truth")
            ax.plot(*self._marginal(j), color="C3", label="mixture")
            ax.set_title(self.names[j], fontsize=10)
            ax.set_yticks([])
        return axes

    def _marginal(self, j: int) -> tuple[Array, Array]:
        """A grid and the marginal density of parameter ``j`` there: exact, or of even draws where it is not."""
        if self._closed:
            low, high = self.quantiles((0.001, 0.999))[:, j]
            grid = np.linspace(low, high, 400)
            m, s = self.parts.means[:, j], self.parts.deviations[:, j]
            density = np.exp(-0.5 * ((grid[:, None] - m) / s) ** 2) / (np.sqrt(2 * np.pi) * s)
            return grid, np.asarray(density @ self.weights)
        heights, edges = np.histogram(self._even[:, j], bins=80, density=True)
        return 0.5 * (edges[1:] + edges[:-1]), np.asarray(heights)

    def plot_contours(self, pair: Sequence[int] = (0, 1), *, ax: Any = None) -> Any:
        """Contours of q for two parameters, over those of the target where it has just two."""
        i, j = pair
        require(0 <= i < self.dim and 0 <= j < self.dim and i != j, "contours need two different parameters",
                f"{tuple(pair)} of {self.dim}", "Use plot_marginals for one parameter.")
        ax = one_axes(ax, (4.0, 3.6))
        low, high = self.quantiles((0.002, 0.998))
        pad = 0.15 * (high - low)
        x, y = (np.linspace(low[k] - pad[k], high[k] + pad[k], 120) for k in (i, j))
        A, B = np.meshgrid(x, y)
        grid = np.stack([A.ravel(), B.ravel()], axis=1)
        levels = np.array([-6.0, -4.0, -2.5, -1.5, -0.7, -0.2])
        if self.dim == 2:
            grid, coordinates = grid if i < j else grid[:, ::-1], self.target.coordinates
            inside = coordinates.contains(grid)
            U = coordinates.to_free(grid[inside])
            heights = np.full(len(grid), -np.inf)
            heights[inside] = self.target.values(U, far=True) - coordinates.to_user(U)[1]
            ax.contourf(A, B, _below_top(heights, A), levels=np.append(levels, 0.0), cmap="Blues", alpha=0.8)
            log_q = self.log_density(grid)
        else:
            require(self._closed, "contours of more than two parameters need a mixture without transforms",
                    f"{self.dim}", "Plot draws of sample(n) instead.")
            covariances = self.covariances[:, [i, j]][:, :, [i, j]]
            roots = np.asarray(np.linalg.cholesky(covariances), dtype=np.float64)
            log_q = Gaussians(self.means[:, [i, j]], roots, self.weights).log_density(grid)
        ax.contour(A, B, _below_top(log_q, A), levels=levels, colors="C3", linewidths=1.0, linestyles="solid")
        ax.set(xlabel=self.names[i], ylabel=self.names[j])
        return ax

    def to_arviz(self, n: int = 4000, *, corrected: bool = False) -> Any:
        """An ArviZ InferenceData of ``n`` draws (resampled by importance if ``corrected``); needs the extra arviz."""
        try:
            import arviz
        except ImportError as error:
            raise ImportError("to_arviz needs the package arviz: pip install 'klimb[arviz]'") from error
        draws = self.sample(n, self.seed)
        if corrected:
            found = self.corrected
            draws = found.draws[np.random.default_rng(self.seed).choice(len(found.draws), size=n, p=found.weights)]
        posterior = {name: draws[None, :, j] for j, name in enumerate(self.names)}
        # ArviZ 1 wants a dictionary of groups, earlier versions that of the posterior.
        groups = int(str(getattr(arviz, "__version__", "0")).split(".")[0]) >= 1
        return arviz.from_dict({"posterior": posterior} if groups else posterior)


def _below_top(heights: Array, like: Array) -> Array:
    """Log densities in the shape of a grid, from their largest value down."""
    return np.asarray(np.maximum(heights - heights.max(), -50.0)).reshape(like.shape)
