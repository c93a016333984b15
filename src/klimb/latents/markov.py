"""A Gaussian process over time with a Matern kernel, or a sum of them, in time and memory linear in the data.

f and its derivatives are a Gauss-Markov chain x over the sorted times, with f the first entry of the state. Equal to
`Kernel` with the Gram matrix of the same kernel.
"""

from functools import cached_property
from typing import Any

import numpy as np

from klimb.errors import InputError, require
from klimb.latents.base import Factor, Latent, Posterior, Product, check_spread, factor_of, mean_at
from klimb.latents.coordinates import LARGEST_DENSE, Coordinates, Kind, Visit, dense_coordinates
from klimb.latents.costs import Option, Shape, chain
from klimb.latents.kernel import Kernel
from klimb.latents.weights_posterior import WeightPosterior
from klimb.linalg import chains, matern
from klimb.linalg.chains import Chain, Conditioned, SquaredCovariance
from klimb.linalg.matern import MaternSum
from klimb.numerics.arrays import Array, as_float, slices
from klimb.numerics.dense import psd_square_root, row_blocks

SMALL = 100  # sites up to which the loop works with an N x N matrix
SOLVED = 1e-12  # of its terms, left of an equation that needs no refinement
FEW = LARGEST_DENSE // 10  # sites up to which coordinates are those of such a matrix
LARGEST_LIFT = 4e7  # numbers in the band of products of states, for products with the squares of V


class MarkovFactor(Factor):
    """The chain given its sites; those with gamma < 0 come after all the others, so that every step stays proper."""

    def __init__(self, latent: "Markov", gamma: Array) -> None:
        self.gamma = gamma
        self._latent = latent
        self._passes: tuple[Conditioned, ...] = ()
        self.logdet = sum(one.logdet for one in self.passes)

    @property
    def passes(self) -> tuple[Conditioned, ...]:
        """One or two; made again after ``release``."""
        passes = self._passes  # read once: another thread may replace it
        if not passes:
            ordered = self.gamma[self._latent.order]
            passes = (chains.condition(self._latent.chain, np.maximum(ordered, 0.0)),)
            if ordered.min() < 0.0:
                passes += (chains.condition(passes[0].after, np.minimum(ordered, 0.0)),)
            self._passes = passes
        return passes

    def release(self) -> None:
        self._passes = ()

    @property
    def chain(self) -> Chain:
        """The posterior over the states, centred."""
        return self.passes[-1].after

    def variances(self) -> Array:
        return self._latent.unsorted(np.concatenate([P[0, 0].copy() for _, P in self.chain.covariances()]))

    def smooth(self, b: Array) -> Array:
        return self._latent.through(self.chain, b)

    def solve(self, b: Array) -> tuple[Array, Array]:
        """x = b - gamma V b and K x; for precise sites the difference cancels, where one step of refinement helps."""
        x = self.smooth(b)
        x *= -self.gamma
        x += b
        Kx = self._latent.mvm(x)
        largest = float(np.abs(Kx).max())
        for rows in slices(len(b), chains.AT_ONCE):
            left, weight = b[rows] - x[rows] - self.gamma[rows] * Kx[rows], np.abs(self.gamma[rows])
            if not (np.abs(left) <= SOLVED * (np.abs(b[rows]) + weight * largest)).all():
                left = b - x - self.gamma * Kx
                x += left - self.gamma * self.smooth(left)
                return x, self._latent.mvm(x)
        return x, Kx

    def energy(self, b: Array) -> float:
        """r'C r with r = D^-T b."""
        chain, total, pulled = self.chain, 0.0, self._latent.pull(b)
        del b  # a vector of all sites
        r = chain.costates(pulled, reuse=True)
        for block in slices(len(r), chains.AT_ONCE):
            total += float(np.vdot(r[block], np.einsum("ijn,nj->ni", chain.noise[..., block], r[block])))
        return total

    def covariance(self) -> Array | None:
        return self.dense() if len(self.gamma) <= SMALL else None

    def products(self) -> tuple[Product, Product] | None:
        states = self.chain.transition.shape[0]
        if len(self.gamma) <= SMALL or 0.5 * (states * (states + 1)) ** 2 * len(self.gamma) > LARGEST_LIFT:
            return None
        order, unsorted, squared = self._latent.order, self._latent.unsorted, SquaredCovariance(self.chain)
        return self.smooth, lambda b: unsorted(squared.times(b[order]))

    def dense(self) -> Array:
        """V, N x N."""
        V = self.smooth(np.eye(len(self.gamma)))
        return np.asarray(0.5 * (V + V.T))


class Markov(Latent):
    """f ~ GP(mean, Matern kernel) at n times, which may come in any order and repeat.

    Parameters
    ----------
    times : (n,) array
    variance, lengthscale : number or sequence
        Of the kernel, as in `klimb.kernels.Matern32`; sequences make a sum of kernels, one per entry.
    smoothness : 0.5, 1.5 or 2.5, or a sequence of them
        Which Matern kernel: Matern12, Matern32 or Matern52.
    mean : number or (n,) array
        Prior mean of f.

    Examples
    --------
    >>> import numpy as np, klimb
    >>> t = np.linspace(0, 10, 2000)
    >>> y = np.random.default_rng(0).poisson(np.exp(np.sin(t)))
    >>> latent = klimb.latents.Markov(t, variance=1.0, lengthscale=2.0, smoothness=2.5)
    >>> result = klimb.infer(latent, klimb.sites.Poisson(), y)
    >>> m, v = latent.predict(result.posterior, [np.pi / 2, 12.0])
    >>> result.converged, bool(abs(m[0] - 1.0) < 0.2), bool(v[1] > v[0])
    (True, True, True)
    """

    def __init__(self, times: Any, variance: Any = 1.0, lengthscale: Any = 1.0, smoothness: Any = 1.5,
                 mean: Any = 0.0) -> None:
        self.times = _times(times, "times")
        require(len(self.times) != 0, "times must have at least one entry", "none", "Pass one time per site.")
        self.variance, self.lengthscale, self.smoothness = _terms(variance, lengthscale, smoothness)
        self._process = MaternSum.of(self.variance, self.lengthscale, self.smoothness)
        self.n_sites = self.n_weights = len(self.times)
        self.dense_size = self._process.states
        self.mean = mean_at(mean, (self.n_sites,), "mean")
        self.slack = np.broadcast_to(0.0, self.n_sites)
        in_order = bool((np.diff(self.times) >= 0.0).all())
        self.order: Any = slice(None) if in_order else np.argsort(self.times, kind="stable")
        self._sorted = self.times[self.order]
        self.chain = self._process.chain(self._gaps(slice(0, self.n_sites)))

    # -- between sites in the order they came and states in the order of time

    def unsorted(self, values: Array) -> Array:
        """Values in the order of time, put back to the order of the sites."""
        out = np.empty_like(values)
        out[self.order] = values
        return out

    def pull(self, b: Array) -> Array:
        """b_k on the first entry of every state, for one vector (n,) or several (n, columns)."""
        out = np.zeros((self.n_sites, self.dense_size, *b.shape[1:]))
        out[:, 0] = b[self.order]
        return out

    def through(self, chain: Chain, b: Array) -> Array:
        """D^-1 C D^-T b, first entries: the product of b with the covariance of f under ``chain``."""
        return self.unsorted(chain.driven(chain.costates(self.pull(b), reuse=True), reuse=True)[:, 0])

    def _gaps(self, block: slice) -> Array:
        """Since the last time, of some times in order; the first comes from nowhere."""
        return np.diff(self._sorted[max(block.start - 1, 0) : block.stop], prepend=-np.inf if block.start == 0 else [])

    # -- the contract

    @cached_property
    def prior_variances(self) -> Array:
        return np.broadcast_to(float(sum(self.variance)), self.n_sites)

    def mvm(self, a: Array) -> Array:
        return self.through(self.chain, a)

    def factor(self, gamma: Array) -> MarkovFactor:
        return MarkovFactor(self, gamma)

    def gram(self) -> Array:
        """K as a dense matrix, for small n."""
        self._check_small("a dense K")
        K = self.mvm(np.eye(self.n_sites))
        return np.asarray(0.5 * (K + K.T))

    def design(self) -> Array:
        return psd_square_root(self.gram(), "K")

    def weight_mean(self, posterior: Posterior) -> Array:
        return posterior.m

    def weight_covariance(self, posterior: Posterior) -> Array:
        self._check_small("the posterior covariance of all sites")
        return factor_of(posterior, MarkovFactor).dense()

    def weight_sample(self, posterior: Posterior, n: int, rng: np.random.Generator) -> Array:
        """Draws of f at the sites: the posterior chain run forward with its own noise."""
        draws = np.tile(posterior.m, (n, 1))
        chain = factor_of(posterior, MarkovFactor).chain
        root = chain.root
        for rows in row_blocks(n, self.n_sites * self.dense_size):
            shocks = rng.standard_normal((self.n_sites, self.dense_size, len(draws[rows])))
            x = chain.run(np.einsum("ijn,njc->nic", root, shocks))
            draws[rows] += self.unsorted(x[:, 0]).T
        return draws

    def coordinates(self, posterior: Posterior) -> Coordinates:
        factor = factor_of(posterior, MarkovFactor)
        if self.n_sites > FEW:
            return MarkovCoordinates(self, posterior, factor)
        covariance = factor.covariance()
        return dense_coordinates(factor.dense() if covariance is None else covariance, posterior.m)

    def detach(self, posterior: Posterior) -> WeightPosterior:
        from klimb.latents.kernel_weights import ChainWeights

        check_spread(posterior)
        terms = (np.array(values) for values in (self.variance, self.lengthscale, self.smoothness))
        return ChainWeights(posterior.m, posterior.a, posterior.gamma, self.times, *terms)

    def diagonal(self) -> Latent:
        """With q diagonal over f at the sites."""
        return Kernel(self.gram(), self.mean, check=False).diagonal()

    @classmethod
    def costs(cls, shape: Shape) -> Option | None:
        return chain(shape) if shape.chain and shape.n_outputs == 1 else None

    def _check_small(self, what: str) -> None:
        require(self.n_sites <= LARGEST_DENSE, f"{what} is formed for at most {LARGEST_DENSE} sites",
                f"{self.n_sites} sites", "Use posterior.v, predict or sample, which never form it.")

    # -- prediction

    def predict(self, posterior: Posterior, times_new: Any, mean: Any = 0.0) -> tuple[Array, Array]:
        """Mean and variance of f at new times, anywhere, in any order, repeated or not; ``mean`` is the prior's there.

        Each new time lies between two states (or before the first, or after the last) and is inserted there. The new
        times do not see each other, and their number may be any.
        """
        new = _times(times_new, "times_new")
        m, v = np.array(mean_at(mean, new.shape, "mean")), np.zeros(len(new))
        r = self.chain.costates(self.pull(posterior.a))
        x = self.chain.driven(r)
        factor = factor_of(posterior, MarkovFactor) if posterior.spread else None
        passes = () if factor is None else factor.passes
        P = None if factor is None else np.concatenate([own for _, own in factor.chain.covariances()], axis=2)
        for rows in row_blocks(len(new), self.dense_size**2):
            before = np.searchsorted(self._sorted, new[rows], side="right") - 1  # -1 where there is none
            after = before + 1  # n where there is none
            first, second = self._around(new[rows], before, after)
            ahead = np.einsum("jin,nj->ni", second.transition, _padded(r.T, after).T)
            here = np.einsum("jn,nj->n", first.transition[0], x[np.maximum(before, 0)])
            m[rows] += here + np.einsum("jn,nj->n", first.noise[0], ahead)
            for one in passes:
                first, second = chains.inserted(first, second, _padded(one.B, after))
            if P is not None:
                v[rows] = chains.pushed(first, P[..., np.maximum(before, 0)])[0, 0]
        return m, v

    def _around(self, new: Array, before: Any, after: Any) -> tuple[Chain, Chain]:
        """The steps to the new times from the states before them, and from there to the states after."""
        # Times before the first state come from nowhere: their negative gaps must not overflow.
        gaps = np.maximum(new - self._sorted[np.maximum(before, 0)], 0.0)
        first, start = self._process.steps(gaps), self._process.stationary
        none = before < 0
        for own, from_nowhere in ((first.transition, start.transition), (first.noise, start.noise)):
            own[..., none] = from_nowhere
        left = self._sorted[np.minimum(after, self.n_sites - 1)] - new
        return first, self._process.steps(np.maximum(left, 0.0))

    # -- hyperparameters

    def bound_gradient(self, posterior: Posterior) -> Array:
        """d bound / d (log variance, log lengthscale) at a converged posterior, one row per kernel of the sum.

        By the envelope theorem q may be held fixed, and the gradient is that of E_q log p(x). With r = D^-T a, the mean
        x = D^-1 C r, P the posterior covariances of the states and N as in `Conditioned`,

            d/dC_k = 1/2 [r_k r_k' - N_k + N_k A_k P_{k-1} A_k' N_k]      d/dA_k = r_k x_{k-1}' - N_k A_k P_{k-1}.

        d bound / d mean is ``posterior.a``.
        """
        chain, factor = self.chain, factor_of(posterior, MarkovFactor)
        r = chain.costates(self.pull(posterior.a), reuse=True)
        x = chain.driven(r)
        s, total = self.dense_size, np.zeros((len(self.variance), 2))
        last_x, last_P = np.zeros((1, s)), np.zeros((s, s, 1))
        for block, own in factor.chain.covariances():
            A, N = chain.transition[..., block], _seen_in_all(factor, block)
            before = np.concatenate([last_P, own[..., :-1]], axis=2)
            r_k, x_k = r[block].T, np.concatenate([last_x, x[block][:-1]]).T
            d_noise = 0.5 * (r_k[:, None] * r_k - N + chains.congruence(N, chains.congruence(A, before)))
            d_transition = r_k[:, None] * x_k - chains.product(N, chains.product(A, before))
            total += self._process.pulled_back(self._gaps(block), d_noise, d_transition)
            last_x, last_P = x[block][-1:], own[..., -1:]
        return total


class MarkovCoordinates(Coordinates):
    """A chain over time: z are the shocks that drive it, a few per site, and no matrix is formed."""

    def __init__(self, latent: Markov, posterior: Posterior, factor: MarkovFactor) -> None:
        self._latent, self._chain, self.n_sites = latent, factor.chain, latent.n_sites
        self._root = factor.chain.root
        self._states = latent.dense_size
        self.dim = latent.n_sites * self._states
        self.kind: Kind = "f"
        self.mean, self.sd = posterior.m, np.sqrt(posterior.v)
        self._last: tuple[Array, Array] | None = None  # draws and their deviations, which are asked for twice

    @property
    def work(self) -> float:
        return float(40 * self.n_sites * self._states**2)  # two scans along the chain, by small matrices

    def deviations(self, z: Array) -> Array:
        last = self._last  # read once: another thread may replace it
        if last is None or last[0] is not z:
            shocks = z.T.reshape(self._latent.n_sites, self._states, len(z))
            x = self._chain.run(np.einsum("ijn,njc->nic", self._root, shocks))
            last = self._last = (z, np.ascontiguousarray(self._latent.unsorted(x[:, 0]).T))
        return last[1]

    def pull(self, slopes: Array) -> Array:
        costates = self._chain.costates(self._latent.pull(np.ascontiguousarray(slopes.T)))
        pulled = np.einsum("ijn,nic->njc", self._root, costates)
        return np.asarray(pulled.reshape(self.dim, len(slopes)).T)

    def sweep(self, z: Array, visit: Visit) -> Array:
        return self.pull(visit(slice(0, self.n_sites), self.deviations(z)))

    def report(self, z: Array, which: Any) -> Array:
        return np.asarray(self.deviations(z)[:, which])


def _seen_in_all(factor: MarkovFactor, block: slice) -> Array:
    """N of all sites, at some: that of the first pass, and that of the second as the prior's noise sees it."""
    first, *more = factor.passes
    N = first.through(block)
    for second in more:
        moved = -chains.product(first.before.noise[..., block], N)
        for i in range(len(moved)):
            moved[i, i] += 1.0
        N = N + chains.congruence_t(moved, second.through(block))
    return N


def _padded(values: Array, index: Any) -> Array:
    """values[..., index], zero where the index is past the end."""
    n = values.shape[-1]
    out = values[..., np.minimum(index, n - 1)]
    out[..., index >= n] = 0.0
    return np.asarray(out)


def _times(times: Any, name: str) -> Array:
    array = as_float(times, name)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    require(array.ndim == 1, f"{name} must have one dimension", f"shape {array.shape}",
            "A Gaussian process over several inputs is a Kernel, or Inducing.")
    return array


def _terms(variance: Any, lengthscale: Any, smoothness: Any) -> tuple[tuple[float, ...], ...]:
    """One entry per kernel of the sum, from numbers or sequences of one length."""
    arrays = [np.atleast_1d(as_float(value, name)) for value, name in
              ((variance, "variance"), (lengthscale, "lengthscale"), (smoothness, "smoothness"))]
    try:
        sigma2, scale, nu = np.broadcast_arrays(*arrays)
    except ValueError:
        sigma2 = np.empty((0, 0))
    if sigma2.ndim != 1 or sigma2.size == 0:
        raise InputError("variance, lengthscale and smoothness must be numbers or sequences of one length",
                         f"shapes {', '.join(str(one.shape) for one in arrays)}", "Pass one of each per kernel.")
    for name, values in (("variance", sigma2), ("lengthscale", scale)):
        if values.min() <= 0.0:
            i = int(values.argmin())
            raise InputError(f"{name} must be positive", f"{values[i]:.6g} at index {i}", "Drop a kernel that is zero.")
    for i, value in enumerate(nu):
        require(value in matern.STATES, "smoothness must be 0.5, 1.5 or 2.5", f"{value:.6g} at index {i}",
                "Those are Matern12, Matern32 and Matern52; use Kernel for others.")
    return tuple(map(float, sigma2)), tuple(map(float, scale)), tuple(map(float, nu))
