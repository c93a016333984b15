"""Quasi-random draws of a normal distribution.

They are a rank-1 lattice, shifted, folded and mapped through the normal quantile function.

A good lattice fills the cube far more evenly than random numbers do, in its first coordinates above all. Its generating
vector is found component by component with fast Fourier transforms (Nuyens and Cools, Math. Comp. 75, 2006), so there
is no table; it depends on the size alone and is kept. Coordinates beyond those a lattice serves well are stratified
one by one (a Latin hypercube). Everything is deterministic.
"""

from functools import lru_cache

import numpy as np
from scipy.special import ndtri

from klimb.errors import InputError, require
from klimb.numerics.arrays import Array

LATTICE_DIMENSIONS = 64  # further coordinates are stratified one by one: no lattice of such a size helps there
POINTS_PER_DIMENSION = 16  # a lattice of n points takes at most n / 16 coordinates: more of them would be correlated
PRIMES_BELOW = 1 << 14  # the largest lattice; larger sets of draws are made of several shifted ones
DRAWS_TO_MATCH = 8  # draws per dimension from which all second moments are matched; with fewer, each variance
DECAY = 2.0  # the j-th coordinate counts 1 / j^DECAY in the search: the first ones should carry what matters


def normal_draws(n: int, dim: int, *, seed: int = 0, symmetric: bool = True) -> Array:
    """``n`` x ``dim`` draws of N(0, I), evenly spread, the first coordinates most so.

    ``symmetric`` draws come in pairs z and -z (the last draw of an odd n alone), so that odd functions average to zero.
    The same arguments give the same draws.
    """
    if n < 1 or dim < 0:
        raise InputError("draws need n >= 1 and dim >= 0", f"n = {n}, dim = {dim}", "Ask for at least one draw.")
    half = (n + 1) // 2 if symmetric else n
    rng = np.random.default_rng([seed, dim, n])
    z = np.empty((half, dim))
    even = min(dim, LATTICE_DIMENSIONS, half // POINTS_PER_DIMENSION)
    if even:
        z[:, :even] = ndtri(_shifted_lattice(half, even, rng))
    # The others are stratified: each has one point in every part of the interval.
    strata = rng.permuted(np.tile(np.arange(half, dtype=np.float64), (dim - even, 1)), axis=1).T
    z[:, even:] = ndtri((strata + rng.random(strata.shape)) / half)
    return np.concatenate([z, -z])[:n] if symmetric else z


def matched_draws(n: int, dim: int, *, seed: int = 0) -> Array:
    """Symmetric `normal_draws` with exactly the second moments of N(0, I), where n is large enough for that."""
    n += n % 2
    z = normal_draws(n, dim, seed=seed)
    if dim == 0:
        return z
    if n >= DRAWS_TO_MATCH * dim:
        return np.asarray(np.linalg.solve(np.linalg.cholesky(z.T @ z / n), z.T).T)
    return np.asarray(z / np.sqrt(np.mean(z * z, axis=0)))


def _shifted_lattice(n: int, dim: int, rng: np.random.Generator) -> Array:
    """``n`` points of (0, 1)^dim: as many copies of a lattice as needed, each shifted by its own random vector."""
    size = _prime_from(n) if n < PRIMES_BELOW else _prime_from(PRIMES_BELOW)
    generator = generating_vector(size, dim)
    parts = []
    for begin in range(0, n, size):
        index = np.arange(size, dtype=np.float64)[: n - begin]
        points = (np.outer(index, generator / size) + rng.random(dim)) % 1.0
        parts.append(1.0 - np.abs(2.0 * points - 1.0))  # the tent: no jump where the ends meet
    # An end of the interval has no normal quantile; keep half a grid step from it.
    return np.clip(np.concatenate(parts), 0.25 / n, 1.0 - 0.25 / n)


@lru_cache(maxsize=32)
def generating_vector(n: int, dim: int) -> Array:
    """The lattice {i g / n}, one component of g after the other, each the best given those before. n is prime.

    Best in the worst-case error of the Korobov space of smoothness 1, whose kernel is a product of Bernoulli
    polynomials 2 pi^2 B_2(x) with weights 1 / j^DECAY. Over the powers of a primitive root the search is a convolution.
    """
    require(dim < n / 2, "a lattice needs more than twice as many points as dimensions", f"{n} for {dim}", "Use fewer.")
    powers = _primitive_powers(n)  # rho^0, rho^1, ...: every residue but 0
    half = (n - 1) // 2  # B_2 is even, so residues come in pairs
    x = powers[:half] / n
    bernoulli = x * x - x + 1.0 / 6.0
    spectrum = np.fft.rfft(bernoulli)
    product = np.ones(half)  # of the kernel over the components found, at i = rho^-k
    found, taken = np.empty(dim), np.zeros(half, dtype=bool)
    inverse = (-np.arange(half)) % half
    for j in range(dim):
        score = np.fft.irfft(spectrum * np.fft.rfft(product), half)
        score[taken] = np.inf  # a component that comes twice makes two coordinates one
        best = int(np.argmin(score)) if j else 0
        taken[best] = True
        found[j] = powers[best]
        product = product * (1.0 + 2.0 * np.pi**2 * (j + 1.0) ** -DECAY * bernoulli[(best + inverse) % half])
        product /= product.max()  # only ratios matter
    return found


def _primitive_powers(n: int) -> Array:
    """rho^k mod n for k = 0, ..., n - 2 with rho the smallest primitive root of the prime n."""
    for rho in range(2, n):
        powers = np.empty(n - 1)
        value = 1
        for k in range(n - 1):
            powers[k] = value
            value = value * rho % n
            if value == 1:
                break
        if k == n - 2:
            return powers
    raise AssertionError(f"{n} is not prime")


def _prime_from(n: int) -> int:
    """The smallest prime that is at least ``n``."""
    candidate = max(n, 2)
    while any(candidate % d == 0 for d in range(2, int(candidate**0.5) + 1)):
        candidate += 1
    return candidate
