"""Where natural steps are slow: Anderson's combination of the last states, and a Newton direction on (a, gamma).

The direction is for latents that have their covariance V, or products with it, at hand. Let F = (a + alpha, q.gamma -
e.gamma), the residuals that vanish at the optimum, and write the change of q as x = (I + G K) da and dgamma, so that
dm = V x and dv = -(V o V) dgamma. Then

    dF = (I + C P) (x, dgamma),    P = diag(V, V o V / 2),    C = [[e.gamma - q.gamma, -t], [-t, 2 u]] site by site,

with t = d gamma/dm and u = d gamma/dv of the oracle. P is positive definite, and I + C P is self-adjoint in the inner
product of P, in which the gradient of the bound is -F. So conjugate gradients in that inner product, stopped early or
at negative curvature, give a direction of ascent with one product by V and one by V o V an iteration: no factorisation.

For a site that couples several latent values per datum, C has a block per datum: C (dm, -dv / 2) is the change of
(alpha - q.gamma m, -gamma) along (dm, dv). The site knows the block, or a difference of the oracle stands in for it.
"""

from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from klimb.infer.problem import Problem, State
from klimb.latents.base import Factor, Product
from klimb.numerics.arrays import Array, rounded

DIFFERENCE = 1e-5  # relative step in v for the derivatives of gamma
MOST_PRODUCTS = 60
LOOSE, TIGHT = 0.05, 0.02  # residual that conjugate gradients may leave, at most, and at least of coupled sites
IN_CACHE = 400  # sites up to which both matrices fit the cache in double precision
ENOUGH = 30_000  # sites whose residuals choose a combination: of many more, every so-manieth speaks for all
STIFF = 3e-3  # gamma v below which a site that is one of several of a datum hardly changes with its variance


class Direction(NamedTuple):
    """A direction for (a, m, gamma), with m moving as a does."""

    a: Array
    m: Array
    gamma: Array


class Linearised:
    """The residuals to first order around a state: products with P and C, which serve nearby states as well.

    Everything is scaled by sd: u = (sd x, v dgamma), which makes P a correlation matrix and its entrywise square;
    marginals that change by dm and dv are p = (dm / sd, -dv / 2 v), which is P u where the sites change by u.
    """

    def __init__(self, sd: Array, P: Product, C: Product, least: float) -> None:
        self.sd, self.P, self.C, self._least = sd, P, C, least

    @classmethod
    def of(cls, problem: Problem, state: State) -> "Linearised | None":
        """None where the latent has no products with V, or derivatives of the oracle are not finite."""
        v = state.v
        sd = np.sqrt(np.where(v > 0, v, 1.0))  # a site whose f is known (an empty row of X) has no share in V
        separable = problem.site.separable
        bends = None if separable else v * np.maximum(state.gamma, state.expectation.gamma) > STIFF
        P = _scaled_products(state.factor, sd, bends)
        C = _site_by_site(problem, state, sd) if separable else _datum_by_datum(problem, state, sd)
        return None if P is None or C is None else cls(sd, P, C, 0.0 if separable else TIGHT)

    def residual(self, state: State) -> Array:
        """Of a state, scaled."""
        return np.concatenate([self.sd * state.mean_residual, self.sd**2 * state.gamma_residual])

    def marginals(self, dm: Array, dv: Array) -> Array:
        """p of marginals that change by so much."""
        return np.concatenate([dm / self.sd, -0.5 * dv / self.sd**2])

    def sites(self, u: Array) -> tuple[Array, Array]:
        """x and dgamma."""
        n = len(self.sd)
        return u[:n] / self.sd, u[n:] / self.sd**2

    def solve(self, rhs: Array, wanted: float = TIGHT) -> Array | None:
        """u with (I + C P) u = ``rhs``, as closely as is ``wanted``, within limits."""
        size = float(np.abs(rhs).max())  # single precision has no room for 1e-40
        if size == 0.0:
            return None
        kind = _precision(len(self.sd), coupled=self._least > 0.0)
        rhs = (rhs / size).astype(kind, copy=False)
        u = _conjugate_gradients(self.P, self.C, rhs, min(max(wanted, self._least), LOOSE))
        return None if u is None else size * u.astype(float)


def _precision(n: int, coupled: bool = False) -> Any:
    """Of products of directions, which need few digits; of long data they are most of what is held."""
    return np.float32 if coupled or n > ENOUGH else np.float64


def newton_direction(linear: Linearised, state: State) -> Direction | None:
    """The (truncated) Newton direction at a state near which ``linear`` was made; None where there is none."""
    u = linear.solve(-linear.residual(state), state.stationarity**0.5)
    if u is None:
        return None
    x, dgamma = linear.sites(u)
    da, dm = state.factor.solve(x)
    return Direction(da, dm, dgamma)


def _site_by_site(problem: Problem, state: State, sd: Array) -> Product | None:
    """u -> C u, where each site has its own 2 x 2 block: one oracle call in all."""
    v, e, n = state.v, state.expectation, len(state.v)
    ahead = problem.oracle(state.m, v * (1 + DIFFERENCE))
    twist = 2 * sd * (ahead.alpha - e.alpha) / DIFFERENCE  # v^(3/2) d gamma/dm, as d alpha/dv = (d gamma/dm)/2
    bend = 2 * v * (ahead.gamma - e.gamma) / DIFFERENCE  # 2 v^2 d gamma/dv
    gap, kind = v * (e.gamma - state.gamma), _precision(n)
    if not (np.isfinite(twist).all() and np.isfinite(bend).all() and np.isfinite(gap).all()):
        return None
    twist, bend, gap = (values.astype(kind, copy=False) for values in (twist, bend, gap))

    def C(u: Array) -> Array:
        return np.concatenate([gap * u[:n] - twist * u[n:], bend * u[n:] - twist * u[:n]])

    return C


def _datum_by_datum(problem: Problem, state: State, sd: Array) -> Product:
    """u -> C u, where each datum has a block; without ``couplings`` at the price of an oracle call each time."""
    v, e, n = state.v, state.expectation, len(state.v)
    couplings = problem.site.rough(1.0).couplings(problem.y, state.m, v)
    if couplings is not None:
        problem.n_oracle += 1
        # As P does, in single precision, for which a rule that is to serve while far has all digits; data last, so that
        # sums over a datum's values run over all data at once.
        size = len(problem.y)
        dm, dv = sd.reshape(-1, size), -v.reshape(-1, size)
        blocks = np.ascontiguousarray(couplings.transpose(1, 2, 0), dtype=np.float32)
        blocks *= np.concatenate([dm, dv]).astype(np.float32)[:, None]
        blocks *= np.concatenate([dm, 2.0 * dv]).astype(np.float32)
        outputs = np.arange(len(dm))
        blocks[outputs, outputs] -= (v * state.gamma).reshape(-1, size)
        return lambda u: np.einsum("ijn,jn->in", blocks, u.reshape(-1, size).astype(np.float32, copy=False)).ravel()

    def by_differences(u: Array) -> Array:
        largest = float(np.abs(u).max())
        if largest == 0.0:
            return np.zeros_like(u)
        small = DIFFERENCE / largest  # so that no mean moves by more than that in sd, and no variance by twice that
        ahead = problem.oracle(state.m + small * sd * u[:n], v * (1.0 - 2.0 * small * u[n:]))
        d_alpha, d_gamma = (ahead.alpha - e.alpha) / small, (ahead.gamma - e.gamma) / small
        return np.concatenate([sd * d_alpha - v * state.gamma * u[:n], -v * d_gamma])

    return by_differences


def _scaled_products(factor: Factor, sd: Array, bends: npt.NDArray[np.bool_] | None) -> Product | None:
    """u -> (R u_1, (R o R) u_2 / 2) with R the posterior correlations; None where the latent has no V."""
    blocks = factor.blocks()
    own = [None] * len(blocks) if bends is None else np.split(bends, len(blocks))
    found = [_halves(*part) for part in zip(blocks, np.split(sd, len(blocks)), own, strict=True)]
    parts, n = [part for part in found if part is not None], len(sd) // len(blocks)
    if len(parts) < len(blocks):
        return None

    at_once = _at_once(blocks, sd) or (lambda x: [first(one) for (first, _), one in zip(parts, x, strict=True)])

    def product(u: Array) -> Array:
        (first, second), out = u.reshape(2, len(parts), n), np.empty((2, len(parts), n), u.dtype)
        out[0], out[1] = at_once(first), [half(one) for (_, half), one in zip(parts, second, strict=True)]
        return out.ravel()

    return product


def _at_once(blocks: tuple[Factor, ...], sd: Array) -> Any:
    """The products with R of several blocks that have one X: two products with that instead of two for each block."""
    given = [found for part in blocks if (found := part.by_weights()) is not None]
    if len(given) < max(len(blocks), 2) or any(X is not given[0][0] for X, _ in given):
        return None
    X, V = (np.asarray(one, dtype=np.float32) for one in (given[0][0].dense(), [S @ S.T for _, S in given]))
    scale = (1.0 / sd.reshape(len(blocks), -1)).astype(np.float32)

    def product(x: Array) -> Array:
        return np.asarray(scale * ((((scale * x) @ X)[:, None] @ V)[:, 0] @ X.T))

    return product


def _halves(factor: Factor, sd: Array, bends: npt.NDArray[np.bool_] | None) -> tuple[Product, Product] | None:
    """The products with R, and with half of R o R.

    Large dense ones are kept in single precision: products are bound by memory, and a few digits are enough. Where only
    some sites bend, as those of most classes of a datum do not, R o R is theirs, and the identity elsewhere.
    """
    from scipy.linalg.blas import dsymv, ssyrk

    n, products, scale = len(sd), factor.products(), 1.0 / sd
    few = bends is not None and 2 * np.count_nonzero(bends) <= n
    rows = np.flatnonzero(bends) if bends is not None and few else np.arange(n)
    single = np.zeros((0, 0), np.float32)  # BLAS complains of nothing
    if (few or (products is None and n > IN_CACHE)) and (given := factor.by_weights()) is not None:
        W = np.asarray(given[0].dense() @ given[1] * scale[:, None], dtype=np.float32)
        if rows.size:
            single = ssyrk(1.0, W.T if len(rows) == n else W[rows].T, trans=1, lower=1)
        return (lambda x: W @ (x.astype(np.float32, copy=False) @ W)), _among(np.square(single, out=single), rows, n)
    if few:
        V = factor.covariance_of(rows) if rows.size else single
        if V is None:
            return None
        squared = np.square(np.asarray(V * scale[rows] * scale[rows, None], dtype=np.float32, order="F"))
        return (lambda x: scale * factor.smooth(scale * x)), _among(squared, rows, n)
    if products is None and n > IN_CACHE:
        R = factor.correlations(sd)
        return None if R is None else (partial(symmetric_product, 1.0, R), _among(R * R, rows, n))
    if products is None:
        V = factor.covariance()
        if V is None:
            return None
        V_squared = np.square(V)  # scaling vectors is cheaper than scaling matrices
        products = (lambda x: dsymv(1.0, V, x, lower=1)), (lambda x: dsymv(1.0, V_squared, x, lower=1))
    by_V, by_square = products
    return (lambda x: scale * by_V(scale * x)), (lambda x: 0.5 * scale**2 * by_square(scale**2 * x))


def _among(squared: npt.NDArray[np.float32], rows: npt.NDArray[np.intp], n: int) -> Product:
    """Half of R o R among some sites, the identity elsewhere."""
    if len(rows) == n:
        return partial(symmetric_product, 0.5, squared)

    def product(x: Array) -> Array:
        half = 0.5 * x
        if rows.size:
            half[rows] = symmetric_product(0.5, squared, x[rows])
        return half

    return product


def symmetric_product(scale: float, lower: npt.NDArray[np.float32], x: Array) -> Array:
    """A product with the matrix of this lower triangle, in single precision."""
    from scipy.linalg.blas import ssymv

    return np.asarray(ssymv(scale, lower, x, lower=1), dtype=x.dtype)


def _conjugate_gradients(P: Product, C: Product, rhs: Array, accuracy: float) -> Array | None:
    """(I + C P) u = rhs, which is overwritten, in the inner product of P, until ``accuracy`` or negative curvature."""
    u, r = np.zeros_like(rhs), rhs
    p, Pp = np.zeros_like(rhs), np.zeros_like(rhs)
    rho_before, rho_first = 1.0, 0.0
    for k in range(MOST_PRODUCTS):
        Pr = P(r)
        rho = float(r @ Pr)
        if k == 0:
            rho_first = rho
        if rho <= accuracy**2 * rho_first:
            break
        beta = rho / rho_before if k else 0.0
        for direction, new in ((p, r), (Pp, Pr)):
            direction *= beta
            direction += new
        Ap = p + C(Pp)
        curvature = float(Pp @ Ap)
        if curvature <= 1e-12 * float(p @ Pp):
            return p if k == 0 else u
        length = rho / curvature
        u += length * p
        r -= length * Ap
        rho_before = rho
    return u if np.isfinite(u).all() else None


class Mixer:
    """Combines the last states so that their combined residual is least.

    The weights sum to one. The combination has the same form as a natural step from a single state: a target gamma, a
    mean m and a slope alpha there, so that it costs one factorisation as well. Of all states but the last only steps to
    the next one are kept, for long data in sixteen bits: relative to a step, so that nothing is lost at the end.
    """

    def __init__(self, memory: int) -> None:
        self._memory = memory
        self._residuals: list[tuple[Any, ...]] = []  # of means and of gammas, at some sites
        self._steps: list[list[tuple[float, Any]]] = []  # of target gammas, slopes and means, from state to state
        self._last: tuple[Array, ...] = ()
        self._v: Array = np.zeros(0)  # of the last state, at some sites: the scale of the residuals

    def add(self, state: State) -> None:
        e, some = state.expectation, slice(None, None, -(-len(state.v) // ENOUGH))
        here, long = (e.gamma, e.alpha, state.m), len(state.v) > ENOUGH
        with np.errstate(over="ignore", invalid="ignore"):
            if self._last:
                self._steps.append([rounded(new - old, np.float16 if long else np.float64)
                                    for new, old in zip(here, self._last, strict=True)])
            residuals = state.a[some] + e.alpha[some], state.gamma[some] - e.gamma[some]
            self._residuals.append(tuple(values.astype(np.float32 if long else np.float64) for values in residuals))
        self._last, self._v = here, state.v[some].copy()
        del self._residuals[: -self._memory], self._steps[: 1 - self._memory]

    def restart(self) -> None:
        """Forget all but the last state."""
        self._residuals, self._steps = self._residuals[-1:], []

    def __len__(self) -> int:
        return len(self._residuals)

    def combine(self) -> tuple[Array, Array, Array]:
        """Target gamma and slope of the best combination, and its mean less that of the last state."""
        sd = np.sqrt(self._v)
        weights = anderson_weights(np.stack([np.concatenate([sd * of_mean, self._v * of_gamma])
                                             for of_mean, of_gamma in self._residuals]))
        # sum_i c_i x_i = x - sum_j (c_1 + ... + c_j) s_j, s_j being the step from x_j to x_(j + 1) and x the last.
        away = [-sum(share * unit * step.astype(float, copy=False)
                     for share, (unit, step) in zip(np.cumsum(weights)[:-1], steps, strict=True))
                for steps in zip(*self._steps, strict=True)]
        return self._last[0] + away[0], self._last[1] + away[1], away[2]


def anderson_weights(residuals: Array) -> Array:
    """Weights that sum to one and make the combination of the rows of ``residuals`` least."""
    differences = residuals[:-1] - residuals[-1]
    gram = differences @ differences.T
    gram.flat[:: len(gram) + 1] += 1e-14 * np.trace(gram) + 1e-300
    weights = np.linalg.solve(gram, -(differences @ residuals[-1]))
    return np.append(weights, 1.0 - weights.sum())
