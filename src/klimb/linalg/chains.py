"""Gauss-Markov chains x_k = A_k x_{k-1} + e_k: conditioning on sites, smoothing, sampling, inserting states.

The posterior of a chain is a chain. With B_k all that the sites k, k+1, ... say of x_k,

    A_k <- (I + C_k B_k)^-1 A_k        C_k <- (C_k^-1 + B_k)^-1        log det(I + K G) = sum_k log det(I + C_k B_k),

and its covariance is V = D^-1 C D^-T with D the block bidiagonal matrix (I, -A). The first state has A = 0.

Matrices come many at once, in shape (rows, columns, n). With the batch last every operation is a handful of passes over
long contiguous vectors. For matrices of one to six rows that is several times faster than one call of a linear algebra
library per matrix. Recursions along the chain are solved in about log2(n) vectorised sweeps instead of n steps. Nothing
here divides by the covariance C_k of e_k: zero noise (equal times) is ordinary, and so is noise that is tiny beside the
variance of the states (dense sampling), where working with the precision of the chain, C^-1, would lose every digit.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np

from klimb.errors import NotPositiveDefiniteError
from klimb.numerics.arrays import Array, slices
from klimb.numerics.lazy import lapack

AT_ONCE = 8192  # states whose matrices are worked on together
TIMES = 4096  # states whose bands are made at a time
SEGMENT, SEGMENTS = 25_000, 4  # states, at least, of which information is found in one go, and how many such there are
LONG = 20_000  # states from which memory counts: matrices are made block by block, products with squares of V are rough


def solve_band(band: Array, x: Array, *, transpose: bool, unit: bool = False) -> Array:
    """L^-1 x or L^-T x for L in LAPACK's lower band and columns x."""
    if not x.size:  # LAPACK writes past the end of what has no columns
        return np.zeros(x.shape)
    return np.asarray(lapack.dtbtrs(band, x, uplo="L", trans="T" if transpose else "N", diag="U" if unit else "N")[0])


def product(A: Array, B: Array) -> Array:
    """A B."""
    return np.asarray(np.einsum("ijn,jkn->ikn", A, B))


def product_tn(A: Array, B: Array) -> Array:
    """A' B."""
    return np.asarray(np.einsum("jin,jkn->ikn", A, B))


def congruence(A: Array, S: Array) -> Array:
    """A S A' for symmetric S, exactly symmetric."""
    return symmetric(np.einsum("ijn,kjn->ikn", product(A, S), A))


def congruence_t(A: Array, S: Array) -> Array:
    """A' S A for symmetric S, exactly symmetric."""
    return symmetric(product_tn(A, product(S, A)))


def symmetric(S: Array) -> Array:
    """The mean of each matrix and its transpose, in place."""
    for i in range(S.shape[0]):
        for j in range(i):
            S[i, j] += S[j, i]
            S[i, j] *= 0.5
            S[j, i] = S[i, j]
    return S


def semidefinite_root(S: Array, *, definite: bool = False) -> Array:
    """Lower L, L L' = S; a vanishing pivot leaves its column empty, or raises where S has to be ``definite``."""
    L = np.zeros_like(S)
    for j in range(S.shape[0]):
        pivot = S[j, j] - np.einsum("kn,kn->n", L[j, :j], L[j, :j])
        if definite and not (pivot > 0.0).all():  # also catches NaN
            raise NotPositiveDefiniteError("a pivot of the chain is not positive")
        root = L[j, j] = np.sqrt(np.maximum(pivot, 0.0))
        inverse = np.divide(1.0, root, out=np.zeros_like(root), where=root > 0.0)
        for i in range(j + 1, S.shape[0]):
            L[i, j] = (S[i, j] - np.einsum("kn,kn->n", L[i, :j], L[j, :j])) * inverse
    return L


def solve_lower(L: Array, B: Array) -> Array:
    """L^-1 B for lower triangular L."""
    X = np.empty_like(B)
    for i in range(L.shape[0]):
        X[i] = (B[i] - np.einsum("kn,kjn->jn", L[i, :i], X[:i])) / L[i, i]
    return X


class Absorbed(NamedTuple):
    """Noise C after the information B about its state has been taken in: root'root = (C^-1 + B)^-1."""

    root: Array
    covariance: Array
    log_det: Array  # of I + C B


def absorb(noise_root: Array, B: Array) -> Absorbed:
    """(C^-1 + B)^-1 = L (I + L'BL)^-1 L' for C = L L'; B may be negative as long as the sum is positive."""
    W = congruence_t(noise_root, B)
    for i in range(W.shape[0]):
        W[i, i] += 1.0
    lower = semidefinite_root(W, definite=True)
    root = solve_lower(lower, noise_root.transpose(1, 0, 2))
    log_det = 2.0 * np.log(np.einsum("iin->in", lower)).sum(axis=0)
    return Absorbed(root, symmetric(product_tn(root, root)), log_det)


def seen_through(B: Array, covariance: Array) -> Array:
    """(B^-1 + C)^-1 = B - B (C^-1 + B)^-1 B: what information B about a state says through noise C."""
    return symmetric(B - congruence_t(B, covariance))


def information(A: Array, C: Array, B: Array) -> None:
    """B_k = J_k + A_k' (B_{k+1}^-1 + C_k)^-1 A_k for k = n-1, ..., 0 in the place of J_0, ..., J_{n-1}, before B_n.

    Two neighbouring steps are one of the same form: half of the entries follow from a recursion of half the length. All
    J have one sign; negative ones raise `NotPositiveDefiniteError` where the chain would become improper.
    """
    n = A.shape[2]
    pairs, alone = n // 2, n % 2
    if pairs:
        size = pairs + alone
        halved = a, c, j = [np.empty((*A.shape[:2], length)) for length in (size, size, size + 1)]
        for block in slices(pairs, AT_ONCE):
            left, right = (slice(2 * block.start + k, 2 * block.stop, 2) for k in (0, 1))
            joined = _joined(A[..., left], C[..., left], B[..., left], A[..., right], C[..., right], B[..., right])
            for own, part in zip(halved, joined, strict=True):
                own[..., block] = part
        for own, whole in zip(halved, (A, C, B[..., :n]), strict=True):
            own[..., pairs:size] = whole[..., n - alone :]
        j[..., size] = B[..., n]
        information(a, c, j)
        B[..., : n + 1 : 2] = j[..., : pairs + 1]
    first = min(pairs, 1)
    for block in slices(n // 2 if pairs else n, AT_ONCE):
        steps, after = (slice(2 * block.start + k, 2 * block.stop + k - 1, 2) for k in (first, first + 1))
        within = absorb(semidefinite_root(C[..., steps]), B[..., after]).covariance
        B[..., steps] += congruence_t(A[..., steps], seen_through(B[..., after], within))


def _joined(A1: Array, C1: Array, J1: Array, A2: Array, C2: Array, J2: Array) -> tuple[Array, Array, Array]:
    """The first step, then the second, as one (A, C, J): the state between them is integrated out."""
    within = absorb(semidefinite_root(C1), J2).covariance  # of the state between, given the one before
    pulled = product(J2, A1)
    moved = A1 - product(within, pulled)
    J = J1 + symmetric(product_tn(A1, pulled) - congruence_t(pulled, within))
    return product(A2, moved), C2 + congruence(A2, within), J


def marginal_covariances(A: Array, C: Array) -> Array:
    """P_k = A_k P_{k-1} A_k' + C_k with P_{-1} = 0: covariances of the states, sums of positive terms only."""
    n = A.shape[2]
    if n == 1:
        return C.copy()
    pairs = n // 2
    left, right = slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2)
    A2, C2 = product(A[..., right], A[..., left]), C[..., right] + congruence(A[..., right], C[..., left])
    out = np.empty_like(C)
    out[..., right] = marginal_covariances(A2, C2)
    out[..., 0] = C[..., 0]
    steps = slice(2, n, 2)
    out[..., steps] = C[..., steps] + congruence(A[..., steps], out[..., 1 : n - 1 : 2])
    return out


class Alike:
    """Matrices (s, s, n) of steps that are all one but the first: two are held, blocks are made of them."""

    def __init__(self, first: Array, other: Array, n: int) -> None:
        self._first, self._other, self.shape = first, other, (*other.shape, n)

    def __getitem__(self, key: Any) -> Array:
        steps = range(self.shape[-1])[key[-1]]
        if isinstance(steps, int):
            return self._other if steps else self._first
        found = np.broadcast_to(self._other[..., None], (*self._other.shape, len(steps)))
        if 0 in steps:
            found = found.copy()
            found[..., steps.index(0)] = self._first
        return found


class Symmetric:
    """Symmetric matrices (s, s, n) of which one triangle is held; blocks are made of it."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        s, _, n = self.shape = shape
        self._pairs, self._place = np.triu_indices(s), np.zeros((s, s), np.intp)
        self._held = np.empty((len(self._pairs[0]), n))
        self._place[self._pairs] = self._place.T[self._pairs] = np.arange(len(self._held))

    def __getitem__(self, key: Any) -> Array:
        return self._held[:, key[-1]][self._place]

    def __setitem__(self, key: Any, values: Array) -> None:
        self._held[:, key[-1]] = values[self._pairs]


class AfterInformation:
    """Transitions A - C B A after information B, with the noise C after it, made block by block."""

    def __init__(self, before: Any, noise: Any, B: Any) -> None:
        self._before, self._noise, self._B, self.shape = before, noise, B, noise.shape

    def __getitem__(self, key: Any) -> Array:
        if isinstance(key[-1], int):
            return self[..., slice(key[-1], key[-1] + 1)][..., 0]
        A: Array = self._before[..., key[-1]]
        moved: Array = product(self._noise[..., key[-1]], product(self._B[..., key[-1]], A))
        moved *= -1.0
        moved += A
        return moved


class Bidiagonal:
    """D, unit diagonal with -A_k below it, of transitions (s, s, n); bands of long chains are made in parts."""

    def __init__(self, transition: Any) -> None:
        self._A, self._blocks = transition, tuple(slices(transition.shape[2], TIMES))
        s, _, n = transition.shape
        self._only = self._band(transition[..., :], np.zeros((n, s, 2 * s))) if n <= TIMES else None

    def _band(self, A: Array, space: Array) -> Array:
        """LAPACK's lower band of some states: row (i - j) of column j."""
        s, band = len(A), space[: A.shape[2]]
        band[-1] = 0.0
        for i in range(s):
            for j in range(s):
                np.negative(A[i, j, 1:], out=band[:-1, j, s + i - j])
        return band.reshape(-1, 2 * s).T

    def solve(self, rhs: Array, *, transpose: bool = False, reuse: bool = False, noise: Any = None) -> Array:
        """D^-1 or D^-T times ``rhs``, or ``noise`` times that, of shape (n, s) or (n, s, columns).

        Of long chains ``rhs`` may be overwritten (``reuse``).
        """
        n, s = rhs.shape[:2]
        flat = rhs.reshape(n, s, -1)
        columns = flat.shape[2]
        if self._only is not None:
            own = flat if noise is None else np.einsum("ijn,njc->nic", noise[..., :], flat)
            return solve_band(self._only, own.reshape(n * s, -1), transpose=transpose, unit=True).reshape(rhs.shape)
        out, space = flat if reuse else np.empty(flat.shape), np.zeros((TIMES, s, 2 * s))
        done = np.zeros((s, columns))
        for block in reversed(self._blocks) if transpose else self._blocks:
            x, A = flat[block], self._A[..., block]
            x = x.copy() if noise is None else np.einsum("ijn,njc->nic", noise[..., block], x, order="C")
            x[-1 if transpose else 0] += done if transpose else A[..., 0] @ done
            x = solve_band(self._band(A, space), x.reshape(-1, columns), transpose=transpose, unit=True)
            out[block] = x = x.reshape(-1, s, columns)
            done = A[..., 0].T @ x[0] if transpose else x[-1]  # what the next block has of this one
        return out.reshape(rhs.shape)


@dataclass(frozen=True, eq=False)
class Chain:
    """Transitions and noise, both (s, s, n); a root of the noise, root root' = noise, is made when it is asked for.

    They are arrays or, of long chains, what makes blocks of them.
    """

    transition: Any
    noise: Any
    made: Callable[[slice], Array] | None = None  # what makes the root of some states, if it is not the triangular one

    @property
    def root(self) -> Array:
        """Of all states."""
        return self.root_of(slice(None))

    def root_of(self, block: slice) -> Array:
        """Of some."""
        return semidefinite_root(self.noise[..., block]) if self.made is None else self.made(block)

    @cached_property
    def _recursion(self) -> Bidiagonal:
        return Bidiagonal(self.transition)

    def costates(self, pull: Array, *, reuse: bool = False) -> Array:
        """r_k = pull_k + A_{k+1}' r_{k+1} for pulls of shape (n, s) or (n, s, columns): what all later ones say."""
        return self._recursion.solve(pull, transpose=True, reuse=reuse)

    def run(self, push: Array) -> Array:
        """x_k = A_k x_{k-1} + push_k for pushes of shape (n, s) or (n, s, columns)."""
        return self._recursion.solve(push)

    def driven(self, costates: Array, *, reuse: bool = False) -> Array:
        """The means x = D^-1 C r that belong to costates r."""
        return self._recursion.solve(costates, reuse=reuse, noise=self.noise)

    def covariances(self) -> Iterator[tuple[slice, Array]]:
        """The marginal covariances of some states after the other."""
        A, C = self.transition, self.noise
        last = np.zeros((*C.shape[:2], 1))
        for block in slices(C.shape[2], AT_ONCE):
            own = C[..., block].copy()
            own[..., :1] += congruence(A[..., block.start : block.start + 1], last)
            P = marginal_covariances(A[..., block], own)
            yield block, P
            last = P[..., -1:]

    def seen(self) -> Array:
        """Covariances of f, the first entry of every state, with the state: (s, n)."""
        return np.concatenate([P[0].copy() for _, P in self.covariances()], axis=1)


class Lifted:
    """Transitions of the products of two states that have these transitions, made block by block."""

    def __init__(self, transition: Any) -> None:
        s, _, n = transition.shape
        self._A, self._pairs, self.shape = transition, np.triu_indices(s), (*(s * (s + 1) // 2,) * 2, n)

    def __getitem__(self, key: Any) -> Array:
        if isinstance(key[-1], int):
            return self[..., slice(key[-1], key[-1] + 1)][..., 0]
        (rows, columns), own = self._pairs, self._A[..., key[-1]]
        i, j, twice = rows[:, None], columns[:, None], np.where(rows == columns, 0.0, 1.0)[None, :, None]
        return np.asarray(own[i, rows] * own[j, columns] + twice * own[i, columns] * own[j, rows])


class SquaredCovariance:
    """Products with V o V, V the covariance of f: it belongs to a chain as well, that of the products of two states.

    With p_k = Cov(x_k, f_k), Cov(f_i, f_k) = (A_i ... A_{k+1} p_k)_0 for i >= k, whose square is the first entry of
    A_i ... A_{k+1} p_k p_k' A_{k+1}' ... A_i': a recursion for the s (s + 1) / 2 entries of a symmetric matrix.
    """

    def __init__(self, chain: Chain) -> None:
        rows, columns = np.triu_indices(chain.transition.shape[0])
        lifted = Lifted(chain.transition)
        long = lifted.shape[-1] > LONG  # few digits are enough where memory is what they cost
        self._recursion = Bidiagonal(lifted if long else lifted[..., :])
        p = chain.seen()
        self._lifted: Array = np.empty((p.shape[1], len(rows)), np.float32 if long else np.float64)
        np.multiply(p[rows].T, p[columns].T, out=self._lifted, casting="same_kind")

    def times(self, b: Array) -> Array:
        """(V o V) b, in the order of time."""
        own = b.astype(self._lifted.dtype, copy=False)
        later = np.zeros_like(self._lifted)
        later[:, 0] = own
        ahead = self._recursion.solve(later, transpose=True, reuse=True)
        ahead[:, 0] -= own  # sites after this one
        total = np.einsum("ni,ni->n", self._lifted, ahead)
        del later, ahead
        total += self._recursion.solve(self._lifted * own[:, None], reuse=True)[:, 0]  # this one and those before it
        return np.asarray(total, dtype=b.dtype)


@dataclass(frozen=True, eq=False)
class Conditioned:
    """A chain given its sites: ``after``, the information B that made it so, and the log determinant."""

    before: Chain
    after: Chain
    B: Any  # (s, s, n), as transitions of a chain are
    logdet: float

    def through(self, block: slice) -> Array:
        """N_k = (B_k^-1 + C_k)^-1 with C of the chain before, so that its transitions change by -C N A."""
        return seen_through(self.B[..., block], self.after.noise[..., block])


def condition(chain: Chain, gamma: Array) -> Conditioned:
    """The chain given sites exp(-gamma_k f_k^2 / 2), f the first entry of the state, all gamma of one sign.

    With one sign alone a pivot tells: an improper result raises `NotPositiveDefiniteError`.
    """
    A, C = chain.transition, chain.noise
    n = C.shape[2]
    steps_to, noise_of, logdet = A[..., 1:], C[..., 1:], 0.0
    held: Any = np.empty if n <= LONG else Symmetric
    B = held(C.shape)
    for part in reversed(list(slices(max(n - 1, 1), max(SEGMENT, n // SEGMENTS)))):
        own = np.zeros((*C.shape[:2], min(part.stop, n - 1) - part.start + 1))
        own[0, 0] = gamma[part.start : part.stop + 1]
        if part.stop < n - 1:
            own[..., -1] = B[..., part.stop]
        information(steps_to[..., part], noise_of[..., part], own)
        B[..., part.start : part.stop + 1] = own
        del own
    noise = held(C.shape)
    for block in slices(n, AT_ONCE):
        found = absorb(chain.root_of(block), B[..., block])
        noise[..., block] = found.covariance
        logdet += float(found.log_det.sum())
    transition = AfterInformation(A, noise, B)
    after = Chain(transition if n > LONG else transition[..., :], noise, partial(_root_given, chain, B))
    return Conditioned(chain, after, B, logdet)


def _root_given(chain: Chain, B: Any, block: slice) -> Array:
    """Of the noise of some states after that information."""
    return np.asarray(absorb(chain.root_of(block), B[..., block]).root.transpose(1, 0, 2))


def alike(step: Chain, n: int) -> Chain:
    """``n`` steps, the first and all the others of which are those of ``step``."""
    transition, noise, root = (Alike(one[..., 0], one[..., 1], n) for one in (step.transition, step.noise, step.root))
    return Chain(transition, noise, partial(_part_of, root))


def inserted(first: Chain, second: Chain, B: Array) -> tuple[Chain, Chain]:
    """A state between two others, the later of which has information ``B``: both steps given that information."""
    last = _given(second, B)
    return _given(first, congruence_t(second.transition, seen_through(B, last.noise))), last


def _given(step: Chain, B: Array) -> Chain:
    """A step given information about the state that it leads to."""
    found = absorb(step.root, B)
    transition = step.transition - product(found.covariance, product(B, step.transition))
    return Chain(transition, found.covariance, partial(_part_of, found.root.transpose(1, 0, 2)))


def _part_of(matrices: Any, block: slice) -> Array:
    return np.asarray(matrices[..., block])


def pushed(step: Chain, covariance: Array) -> Array:
    """A P A' + C: the covariance after a step."""
    return np.asarray(congruence(step.transition, covariance) + step.noise)
