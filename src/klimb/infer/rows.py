"""A linear model whose rows are summed wherever they are: the loop of `klimb.infer` over passes.

Of the sites of its rows, q needs nothing but sums,

    sum_i E log p(y_i | f_i)        sum_i (gamma_i m_i - alpha_i) z_i        sum_i gamma_i z_i z_i'

z_i being the row over all weights: the shared columns x_i, and t_i for the level that it belongs to. A pass gives them
for the q that it is shown, and they are linear in the sites, so a natural step of length t mixes the sums that q was
made of with those of the pass ([A] Eq. (16)-(17), r = 0). Nothing of the length of the data outlives a pass.

`fit_by_sums` does so for one design without levels, in whitened coordinates, w = mu + S u: D numbers and a D x D matrix
go out to the blocks, as many come back.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from klimb.errors import InputError, NotPositiveDefiniteError, require
from klimb.infer.loop import Callback, infer, run
from klimb.infer.minibatch import FactorisedGaussian
from klimb.infer.natural import Natural
from klimb.infer.problem import ROUNDING
from klimb.infer.result import Result, Status
from klimb.latents.base import Posterior
from klimb.latents.linear import WeightPrior
from klimb.latents.mixed import level_sums
from klimb.latents.weights import Weights
from klimb.latents.weights_posterior import DenseWeights
from klimb.linalg.matrix import ColumnDesign, DenseDesign
from klimb.numerics.arrays import Array
from klimb.numerics.dense import cholesky, threads_for, triangular_inverse
from klimb.rows.blocks import BlockEngine
from klimb.sites.base import Site
from klimb.sites.real import Gaussian

Rows: TypeAlias = tuple[Any, Array]  # X (an array, or sparse) and y of some rows
Block: TypeAlias = "Rows | Callable[[], Rows]"  # in memory, or what reads them where the function runs

SHARPER, MOST_SHARPER = 4.0, 30  # of the sites of a start whose bound overflows, again and again
NOTHING: Array = np.zeros(0)
FINEST = 1e-10  # tolerance: sums over many rows have no more digits
GONE = 1e-14  # eigenvalue over the largest one below which a direction is rounding
RULE = Natural(memory=1, newton=False)  # what it does beyond natural steps needs sites one by one


class SiteSums(NamedTuple):
    """Sums over rows; those by level belong to the levels ``present`` (None: to all, in order)."""

    value: float  # of E log p
    size: float  # of its absolute values
    pull: Array  # (B,)
    gram: Array  # (B, B)
    level_pull: Array  # (L, k)
    cross: Array  # (L, k, B)
    level_gram: Array  # (L, k, k)
    slopes: Array  # d value / d parameters of the likelihood
    present: npt.NDArray[np.intp] | None = None

    def arrays(self) -> dict[str, Array]:
        """For a file; of sums over all levels."""
        return {name: np.asarray(part) for name, part in self._asdict().items() if name != "present"}

    @classmethod
    def of_arrays(cls, found: Mapping[str, Array]) -> "SiteSums":
        """What ``arrays`` gave."""
        known: dict[str, Any] = {name: float(part) if part.ndim == 0 else part for name, part in found.items()}
        return cls(**known)

    def mixed(self, other: "SiteSums", share: float) -> "SiteSums":
        """The sums of sites that are so far on the way to those of another."""
        pairs: Iterable[tuple[Any, Any]] = zip(self[:-1], other[:-1], strict=True)
        return SiteSums._make([*((1.0 - share) * a + share * b for a, b in pairs), None])

    def scaled(self, factor: float) -> "SiteSums":
        """As if every row were there so often."""
        every: tuple[Any, ...] = self[:-1]
        return SiteSums._make([*(factor * part for part in every), self.present])


def total_sums(parts: Iterable[SiteSums | None], n_levels: int | None = None) -> SiteSums:
    """The sum of ``parts`` in their order: over all ``n_levels`` levels, or over those that some part has."""
    some: Iterable[Any] = (part for part in parts if part is not None)  # a block without rows has none
    levels: Any = None
    if n_levels is None:
        some = list(some)
        levels = np.flatnonzero(np.bincount(np.concatenate([part.present for part in some])))
    total: SiteSums | None = None
    for part in some:
        if total is None:
            shape = (len(levels) if n_levels is None else n_levels, *part.cross.shape[1:])
            total = SiteSums(0.0, 0.0, np.zeros_like(part.pull), np.zeros_like(part.gram), np.zeros(shape[:2]),
                             np.zeros(shape), np.zeros((*shape[:2], shape[1])), np.zeros_like(part.slopes), levels)
        at = part.present if levels is None else np.searchsorted(levels, part.present)
        for own, more in ((total.level_pull, part.level_pull), (total.cross, part.cross),
                          (total.level_gram, part.level_gram)):
            own[at] += more
        for own, more in ((total.pull, part.pull), (total.gram, part.gram), (total.slopes, part.slopes)):
            own += more
        total = total._replace(value=total.value + part.value, size=total.size + part.size)
    if total is None:
        raise InputError("data with at least one row", "no rows", "Check how the data were read.")
    return total


def sums_of(X: Array, codes: npt.NDArray[np.intp], values: Array, slope: Array, gamma: Array, value: float = 0.0,
            size: float = 0.0, slopes: Array = NOTHING, rounded: bool = False) -> SiteSums:
    """The sums of rows in memory with these sites; those of levels that are there."""
    k, B = values.shape[1], X.shape[1]
    gram = ColumnDesign(X, rounded).weighted_gram(gamma) if len(X) else np.zeros((B, B))
    if not k or not len(X):
        return SiteSums(value, size, X.T @ slope, gram, np.zeros((0, k)), np.zeros((0, k, B)), np.zeros((0, k, k)),
                        slopes, np.zeros(0, dtype=np.intp))
    present, level = np.unique(codes, return_inverse=True)
    by_level = partial(level_sums, level, len(present))
    cross, own = (np.stack([by_level(gamma * t, part) for t in values.T], axis=1) for part in (X, values))
    return SiteSums(value, size, X.T @ slope, gram, by_level(slope, values), cross, own, slopes, present)


def few_rows(sums: SiteSums) -> tuple[Array, npt.NDArray[np.intp], Array, Array]:
    """X, codes, values and y of few rows with unit noise that say of the weights what ``sums`` do.

    The code of no level is -1. Each level keeps at most k rows, a root of its own matrix; what it leaves of the shared
    columns is one triangle.
    """
    L, k, B = sums.cross.shape
    pull, gram = sums.pull, sums.gram
    codes, values, X, y = np.zeros(0, dtype=np.intp), np.zeros((0, k)), np.zeros((0, B)), np.zeros(0)
    if L:
        roots, inverse, kept = _roots(sums.level_gram)
        X, y = (inverse @ sums.cross)[kept], np.einsum("lij,lj->li", inverse, sums.level_pull)[kept]
        codes, values = np.nonzero(kept)[0], roots[kept]
        gram, pull = gram - X.T @ X, pull - X.T @ y
    R, own = _triangle(gram, pull)
    none = np.full(len(R), -1, dtype=np.intp)
    return (np.ascontiguousarray(np.vstack([X, R])), np.concatenate([codes, none]),
            np.vstack([values, np.zeros((len(R), k))]), np.concatenate([y, own]))


def _roots(D: Array) -> tuple[Array, Array, npt.NDArray[np.bool_]]:
    """R with R'R = D for every level, its inverse transposed, and which of its rows are not zero."""
    found, vectors = np.linalg.eigh(D)
    largest = np.maximum(found[:, -1:], 0.0)
    if (found < -GONE * np.maximum(largest, np.abs(D).max(axis=(1, 2), initial=0.0)[:, None])).any():
        raise NotPositiveDefiniteError("the sites of a level are not those of Gaussian rows")
    kept = found > GONE * largest
    size = np.sqrt(np.where(kept, found, 1.0))[:, :, None]
    turned = np.swapaxes(vectors, 1, 2)
    return turned * size, turned / size, kept


def _triangle(G: Array, b: Array) -> tuple[Array, Array]:
    """R with R'R = G, and y with R'y = b."""
    size = np.sqrt(np.maximum(np.diagonal(G), 0.0))
    unit = np.where(size > 0.0, size, 1.0)
    scaled = G / np.outer(unit, unit)
    try:
        lower = cholesky(np.asfortranarray(scaled))
        y = triangular_inverse(lower.copy(order="F")) @ (b / unit)
        return np.triu(lower.T) * unit, y
    except NotPositiveDefiniteError:
        found, vectors = np.linalg.eigh(scaled)
    if found[0] < -np.sqrt(GONE) * max(found[-1], 0.0) or not found[-1] > 0.0:
        raise NotPositiveDefiniteError("the sites are not those of Gaussian rows")
    kept = found > GONE * len(G) * found[-1]
    root = np.sqrt(found[kept])[:, None] * vectors.T[kept]
    return root * unit, (vectors.T[kept] @ (b / unit)) / np.sqrt(found[kept])


# One pass: the sums at a q; without a q, those of sites that match each datum, so much sharper.
Look: TypeAlias = Callable[[Posterior | None, float], SiteSums]
# q under the prior, where the rows say what such sums do.
Solve: TypeAlias = Callable[[SiteSums], Posterior]


@dataclass(frozen=True, eq=False)
class RowState:
    """A q, the sums of sites that it was made of, and those that the rows wish for."""

    own: SiteSums
    posterior: Posterior
    wanted: SiteSums
    ahead: Posterior | None  # where the full natural step leads; None where that is not proper
    bound: float
    noise: float
    stationarity: float  # how far that is, in standard deviations and variances of the few rows
    remaining: float
    bound_error: float = 0.0

    @property
    def objective(self) -> float:
        return self.bound

    def release(self) -> None:
        """Nothing of the rows is held."""


class RowProblem:
    """`klimb.infer.problem.Problem` for rows that are summed; counts passes."""

    def __init__(self, look: Look, solve: Solve, dense_size: int, start: SiteSums | None) -> None:
        self.look, self.solve, self.dense_size, self.start = look, solve, dense_size, start
        self.warm = start is not None
        self.n_factor = self.n_oracle = self.n_products = 0

    def own_start(self) -> RowState:
        if self.start is not None:
            return self.state(self.start)
        sharper = 1.0
        for _ in range(MOST_SHARPER):
            self.n_oracle += 1
            try:
                return self.state(self.look(None, sharper))
            except NotPositiveDefiniteError:
                sharper *= SHARPER
        raise InputError("prior and data must have a finite bound somewhere near the data",
                         "an infinite one at every start",
                         "Check offsets, exposures and the prior mean for values that overflow under the link.")

    def rules(self, state: RowState) -> tuple[str, ...]:
        return ("natural",)

    def stepped(self, state: RowState, rule: str, step: float) -> RowState:
        if step == 1.0:
            if state.ahead is None:
                raise NotPositiveDefiniteError("the natural step is not proper")
            return self.state(state.wanted, state.ahead)
        return self.state(state.own.mixed(state.wanted, step))

    def state(self, own: SiteSums, posterior: Posterior | None = None) -> RowState:
        q = self._solved(own) if posterior is None else posterior
        self.n_oracle += 1
        wanted = self.look(q, 1.0)
        bound = wanted.value - q.kl
        if not (np.isfinite(bound) and np.isfinite(wanted.gram).all()):
            raise NotPositiveDefiniteError("the bound is not finite")
        try:
            ahead: Posterior | None = self._solved(wanted)
        except NotPositiveDefiniteError:
            ahead = None
        noise = ROUNDING * (wanted.size + abs(q.kl))
        return RowState(own, q, wanted, ahead, bound, noise, *_distance(q, ahead))

    def _solved(self, sums: SiteSums) -> Posterior:
        self.n_factor += 1
        return self.solve(sums)


def _distance(q: Posterior, ahead: Posterior | None) -> tuple[float, float]:
    """How far ``ahead`` is at the rows that q was made of, and what the bound may gain by going there."""
    if ahead is None:
        return float("inf"), float("inf")
    m, v = q.latent.marginals(ahead)
    good = q.v > 0.0
    moved, wider = (m - q.m)[good], (v - q.v)[good]
    own = q.v[good]
    farthest = max(np.abs(moved / np.sqrt(own)).max(initial=0.0), np.abs(wider / own).max(initial=0.0))
    return float(farthest), 0.5 * float(moved @ moved + 0.5 * (wider @ wider))


def infer_rows(look: Look, solve: Solve, dense_size: int, *, start: SiteSums | None = None, tol: float = 1e-6,
               max_iter: int = 500, callback: Callback | None = None) -> tuple[Result, RowState]:
    """Climb the bound by passes; the state has the sums that another fit may start from."""
    problem = cast(Any, RowProblem(look, solve, dense_size, start))
    found, status, history, notes = run(problem, RULE, max(tol, FINEST), max_iter, callback)
    state = cast(RowState, found)
    return Result(state.posterior, state.bound, status, history, tuple(notes)), state


class SumsFit(NamedTuple):
    """The posterior of the weights, its bound, and the bound after every pass that was accepted."""

    posterior: DenseWeights
    bound: float
    status: Status
    passes: int
    bounds: tuple[float, ...]


def rows_of(block: Block) -> Rows:
    """The rows themselves; a callable reads them now, and those of a sparse block become dense here."""
    X, y = block() if callable(block) else block
    return X.toarray() if hasattr(X, "tocsr") else X, y


def block_sums(site: Site, prior: WeightPrior, q: FactorisedGaussian | DenseWeights | None, block: Block) -> SiteSums:
    """What one block has to say about ``q``; without a q, the sites that match each datum."""
    X, y = rows_of(block)
    y = site.validate(y)
    with threads_for(0), np.errstate(over="ignore", invalid="ignore"):
        offset = X @ np.ascontiguousarray(prior.mean)  # a broadcast number is another product than what is unpickled
        rows = np.ascontiguousarray(X * prior.root if prior.root.ndim == 1 else X @ prior.root)
        if q is None:
            slope, gamma = site.start(y)
            return sums_of(rows, np.zeros(0, dtype=np.intp), np.zeros((len(y), 0)), slope - gamma * offset,
                           gamma * np.ones(len(y)))
        v, h = DenseDesign(rows).row_norms_squared(q.root, upper=True, times=q.mean)
        e = site.oracle(y, offset + h, v)
        each = e.value + site.constant(y)
        return sums_of(rows, np.zeros(0, dtype=np.intp), np.zeros((len(y), 0)), e.gamma * h - e.alpha, e.gamma,
                       float(each.sum()), float(np.abs(each).sum()))


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

    def look(q: Posterior | None, sharper: float) -> SiteSums:
        here: Any = None if q is None else q.latent.detach(q)
        mapped = map if engine is None else engine.map
        return total_sums(mapped(partial(block_sums, site, prior, here), blocks), 0).scaled(sharper)

    def solve(sums: SiteSums) -> Posterior:
        X, _, _, y = few_rows(sums)
        return infer(Weights(X, form="primal"), Gaussian(1.0), y).posterior

    result, state = infer_rows(look, solve, prior.n_weights, tol=tol, max_iter=max_passes - 2)
    q = cast(DenseWeights, state.posterior.latent.detach(state.posterior))
    weights = DenseWeights(prior.mean + prior.root_times(q.mean[:, None])[:, 0], prior.root_times(q.root))
    return SumsFit(weights, result.bound, result.status, int(result.history.n_oracle.sum()),
                   tuple(result.history.bound.tolist()))
