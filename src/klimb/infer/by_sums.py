"""A linear model fitted by sums over its rows alone: D numbers and a D x D matrix go out, as many come back.

In whitened coordinates, w = mu + S u, q(u) = N(P^-1 s, P^-1). A block returns what the sites of its rows should be,

    E log p(y | f)        sum_i (gamma_i h_i - alpha_i) x_i        sum_i gamma_i x_i x_i'

and the sums are the bound at q and the natural step from it ([A] Eq. (16)-(17), r = 0), which the loop of
`klimb.infer` takes (`klimb.infer.rows`). Nothing of the length of the data outlives a pass.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, cast, final

import numpy as np

from klimb.errors import require
from klimb.infer.loop import infer
from klimb.infer.minibatch import FactorisedGaussian
from klimb.infer.result import Status
from klimb.infer.rows import SiteSums, few_rows, infer_rows
from klimb.latents.base import Posterior
from klimb.latents.prior import WeightPrior
from klimb.latents.weights import Weights
from klimb.latents.weights_posterior import DenseWeights
from klimb.linalg.matrix import DenseDesign
from klimb.numerics.arrays import Array
from klimb.numerics.dense import threads_for
from klimb.rows.reduction import Block, BlockEngine, rows_of, summed
from klimb.sites.base import Site
from klimb.sites.real import Gaussian


class SumsFit(NamedTuple):
    """The posterior of the weights, its bound, and the bound after every pass that was accepted."""

    posterior: DenseWeights
    bound: float
    status: Status
    passes: int
    bounds: tuple[float, ...]


def block_sums(site: Site, prior: WeightPrior, q: FactorisedGaussian | DenseWeights | None, block: Block
               ) -> tuple[float, Array, Array]:
    """What one block has to say about ``q``; without a q, the sites that match each datum."""
    X, y = rows_of(block)
    y = site.validate(y)
    with threads_for(0):
        offset = X @ np.ascontiguousarray(prior.mean)  # a broadcast number is another product than what is unpickled
        rows = np.ascontiguousarray(X * prior.root if prior.root.ndim == 1 else X @ prior.root)
        if q is None:
            slope, gamma = site.start(y)
            slope, gamma, value = slope - gamma * offset, gamma * np.ones(len(y)), 0.0
        else:
            v, h = DenseDesign(rows).row_norms_squared(q.root, upper=True, times=q.mean)
            with np.errstate(over="ignore", invalid="ignore"):
                e = site.oracle(y, offset + h, v)
                slope, gamma = e.gamma * h - e.alpha, e.gamma
                value = float(e.value.sum() + np.sum(np.broadcast_to(site.constant(y), y.shape)))
        return value, rows.T @ slope, rows.T @ (rows * gamma[:, None])


def fit_by_sums(blocks: Sequence[Block], site: Site, prior: WeightPrior, *, engine: BlockEngine | None = None,
                tol: float = 1e-6, max_passes: int = 100) -> SumsFit:
    """Fit ``site`` on f = X w, w ~ ``prior``, to rows in ``blocks``, which ``engine`` maps a function over.

    For given blocks the answer has the same bits whatever the engine and the number of its workers. Blocks are pairs
    (X, y), or callables that read them where the work is done, so that rows need not move. ``tol`` bounds the length of
    the last natural step, in standard deviations of q.

    >>> import numpy as np, klimb
    >>> X = np.random.default_rng(0).standard_normal((60, 2))
    >>> y = X[:, 0] > 0
    >>> fit = fit_by_sums([(X[:25], y[:25]), (X[25:], y[25:])], klimb.sites.Logistic(), WeightPrior(0.0, 1.0, 2))
    >>> whole = klimb.infer(klimb.latents.Weights(X), klimb.sites.Logistic(), y)
    >>> fit.status.name, bool(abs(fit.bound - whole.bound) < 1e-9)
    ('CONVERGED', True)
    """
    require(tol > 0 and max_passes >= 2, "tol must be positive and max_passes at least 2", f"{tol}, {max_passes}",
            "The defaults are 1e-6 and 100.")
    work = _Whitened(tuple(blocks), site, prior, engine)
    result, state = infer_rows(work, prior.n_weights, tol=tol, max_iter=max_passes - 2)
    q = cast(DenseWeights, state.posterior.latent.detach(state.posterior))
    weights = DenseWeights(prior.mean + prior.root_times(q.mean[:, None])[:, 0], prior.root_times(q.root))
    return SumsFit(weights, result.bound, result.status, int(result.history.n_oracle.sum()),
                   tuple(result.history.bound.tolist()))


@final
@dataclass(frozen=True, eq=False)
class _Whitened:
    """Blocks in coordinates where the prior is standard: a `klimb.infer.rows.RowWork`."""

    blocks: tuple[Block, ...]
    site: Site
    prior: WeightPrior
    engine: BlockEngine | None

    def look(self, q: Posterior | None, sharper: float = 1.0) -> SiteSums:
        here: Any = None if q is None else q.latent.detach(q)
        value, pull, gram = summed(partial(block_sums, self.site, self.prior, here), self.blocks, self.engine)
        D = len(pull)
        return SiteSums(value, abs(value), sharper * pull if q is None else pull, sharper * gram if q is None else gram,
                        np.zeros((0, 0)), np.zeros((0, 0, D)), np.zeros((0, 0, 0)), np.zeros(0))

    def solve(self, sums: SiteSums) -> Posterior:
        X, _, _, y = few_rows(sums)
        return infer(Weights(X, form="primal"), Gaussian(1.0), y).posterior
