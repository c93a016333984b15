"""Dense linear algebra close to LAPACK: Cholesky that raises, triangular inverses, roots, triangles of rows, threads.

Many small calls are slower with several threads than with one, by an order of magnitude where the machine is busy.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np

from klimb.errors import InputError, NotPositiveDefiniteError, require
from klimb.numerics import in_place
from klimb.numerics.arrays import Array, slices
from klimb.numerics.lazy import blas, lapack

if TYPE_CHECKING:
    from threadpoolctl import LibController

T = TypeVar("T")
Blocks: TypeAlias = Callable[[], Iterable[Array]]  # all rows of a tall matrix, whenever they are asked for
CACHE_DOUBLES = 131_072  # 1 MiB: a block of rows and its product stay in the second-level cache of today's cores
SMALLEST_HALF = 96  # rows up to which a triangular inverse is left to LAPACK
SYMMETRY_TOLERANCE = 1e-8  # relative to the largest entry: what float32 kernels and sums in another order leave
EIGENVALUE_TOLERANCE = 1e-8  # relative to the largest eigenvalue: below it a negative one is taken for rounding
WELL_CONDITIONED = 1e-5  # ratio of pivots from which multiplying by the inverse keeps as many digits as solving
FAINT = 1e-50  # a correlation that is none
LARGE = 3000  # rows of a dense matrix from which its factorisation (half a second) is left to the threads of BLAS
HALVED = 500  # rows up to which a matrix is factorised by one thread
SPARED = 1 << 20  # entries of a long matrix from which another thread is worth its start
EVEN, STEEP = 30.0, 1e6  # condition of scaled columns up to which one Gram matrix does, and up to which two do
SMALLEST, LARGEST = 1e-200, 1e200  # squares of lengths between which a Gram matrix has all its digits
MIRRORED = 64  # rows of a block that is transposed at a time
STACKED = 1 << 20  # entries of the rows that are factorised together, at least


def row_blocks(n_rows: int, n_columns: int) -> Iterator[slice]:
    """Slices of consecutive rows such that one block holds about `CACHE_DOUBLES` numbers."""
    return slices(n_rows, max(64, CACHE_DOUBLES // max(n_columns, 1)))


def alike(library: Any, name: str, matrix: Array) -> Any:
    """The routine of BLAS or LAPACK for the precision of a matrix."""
    return getattr(library, ("s" if matrix.dtype == np.float32 else "d") + name)


def cholesky(matrix: Array) -> Array:
    """Lower Cholesky factor, which overwrites a ``matrix`` in Fortran order; raises `NotPositiveDefiniteError`."""
    if n_threads() > 1 and len(matrix) > 2 * HALVED:
        factor = np.asfortranarray(matrix)
        info = _factorise(factor)
        for columns in slices(len(factor), MIRRORED):
            factor[: columns.start, columns] = 0.0
            factor[columns, columns] = np.tril(factor[columns, columns])
    else:
        factor, info = alike(lapack, "potrf", matrix)(matrix, lower=1, overwrite_a=1, clean=1)
    if info != 0 or not np.isfinite(factor[-1, -1]):
        raise NotPositiveDefiniteError(f"the leading minor of order {info} is not positive")
    return np.asarray(factor)


def _factorise(A: Array) -> int:
    """By halves in place: [A . ; B C] with B <- B L_A^-T and C <- C - B B', whose rows the threads share."""
    if len(A) <= HALVED:
        return in_place.factorise(A)
    half = _half(len(A))
    B, C = A[half:, :half], A[half:, half:]
    if info := _factorise(A[:half, :half]):
        return info
    together([partial(in_place.solve_right, A[:half, :half], B[rows]) for rows in shares(len(B))])

    def less(rows: slice) -> None:
        if rows.start:
            in_place.less_product(B[rows], B[: rows.start], C[rows, : rows.start])
        in_place.add_square(B[rows], C[rows, rows], -1.0)

    together([partial(less, rows) for rows in shares(len(C), power=0.5)])
    info = _factorise(C)
    return info + half if info else 0


def triangular_inverse(lower: Array) -> Array:
    """Inverse of a lower triangular matrix; overwrites ``lower`` when it is in Fortran order."""
    inverse = np.asfortranarray(lower)
    zeros = np.flatnonzero(np.diagonal(inverse) == 0.0)
    if zeros.size:
        raise NotPositiveDefiniteError(f"the triangular factor has a zero at {zeros[0]}")
    _invert_lower(inverse)
    return inverse


def _invert_lower(lower: Array) -> None:
    """[A 0; B C]^-1 = [A^-1 0; -C^-1 B A^-1 C^-1], by halves, in place: up to thrice as fast as LAPACK's dtrtri."""
    n = len(lower)
    if n <= SMALLEST_HALF:
        lower[...] = alike(lapack, "trtri", lower)(lower, lower=1)[0]
        return
    half = _half(n)
    A, B, C = lower[:half, :half], lower[half:, :half], lower[half:, half:]
    if n <= HALVED or n_threads() == 1:
        _invert_lower(A)
        _invert_lower(C)
        in_place.times_triangle(C, B, -1.0)
        in_place.times_triangle(A, B, how=b"RLN")
        return
    together([partial(_invert_lower, A), partial(_invert_lower, C)])
    together([partial(in_place.times_triangle, C, B[:, some], -1.0) for some in shares(half)])
    together([partial(in_place.times_triangle, A, B[some], how=b"RLN") for some in shares(n - half)])


def _half(n: int) -> int:
    return (n // 2 + 15) // 16 * 16


def triangular_solve(lower: Array, rhs: Array, *, transpose: bool = False) -> Array:
    """``lower^-1 rhs`` (or ``lower^-T rhs``) for one or several right-hand sides."""
    solution, info = lapack.dtrtrs(lower, rhs, lower=1, trans=int(transpose))
    if info != 0:
        raise NotPositiveDefiniteError(f"the triangular factor has a zero at {info - 1}")
    return np.asarray(solution)


def times(matrix: Array, other: Array) -> Array:
    """A product in the precision of the first matrix, of which NumPy would make a copy in that of the other."""
    return np.asarray(matrix @ other.astype(matrix.dtype, copy=False), dtype=np.float64)


def symmetric_from_lower(lower: Array) -> Array:
    """The symmetric matrix with this lower triangle; what stands above it is ignored."""
    return mirror(lower.copy(order="F"))


def mirror(lower: Array) -> Array:
    """The same in place: what stands below the diagonal is written above it."""
    for some in slices(len(lower), MIRRORED):
        corner = np.tril(lower[some, some])
        lower[some, some] = corner + np.tril(corner, -1).T
        lower[some, some.stop :] = lower[some.stop :, some].T
    return lower


def log_det_from_cholesky(lower: Array) -> float:
    """log det(L L')."""
    return 2.0 * float(np.log(np.diagonal(lower)).sum(dtype=np.float64))


def check_symmetric(matrix: Array, name: str) -> None:
    """An `InputError` that names the worst pair of entries if ``matrix`` is not symmetric."""
    if matrix.shape[0] != matrix.shape[1]:
        raise InputError(f"{name} must be square", f"shape {matrix.shape}", "Pass the full matrix over all sites.")
    if matrix.size == 0:
        return
    scale = float(np.abs(matrix).max())
    worst, where = 0.0, (0, 0)
    for rows in row_blocks(*matrix.shape):
        gap = np.abs(matrix[rows] - matrix[:, rows].T)
        k = int(gap.argmax())
        if gap.flat[k] > worst:
            worst, where = float(gap.flat[k]), (rows.start + k // matrix.shape[1], k % matrix.shape[1])
    if worst > SYMMETRY_TOLERANCE * scale:
        i, j = where
        raise InputError(f"{name} must be symmetric",
                         f"{matrix[i, j]:.6g} at index ({i}, {j}) but {matrix[j, i]:.6g} at ({j}, {i})",
                         "Pass (K + K.T) / 2 if the difference is rounding, or check how the matrix was built.")


def check_psd(matrix: Array, name: str) -> None:
    """An `InputError` with the smallest eigenvalue if that is clearly negative; one Cholesky factor usually decides."""
    top = float(np.diagonal(matrix).max(initial=0.0))
    try:
        shifted = np.array(matrix, order="F")
        shifted.flat[:: len(matrix) + 1] += EIGENVALUE_TOLERANCE * top
        cholesky(shifted)
    except NotPositiveDefiniteError:
        _check_eigenvalues(np.asarray(np.linalg.eigvalsh(matrix), dtype=np.float64), name)


def _check_eigenvalues(values: Array, name: str) -> None:
    top = max(float(values[-1]), 0.0)
    require(values[0] >= -EIGENVALUE_TOLERANCE * top and (top != 0.0 or values[0] >= 0.0),
            f"{name} must be positive semi-definite", f"smallest eigenvalue {values[0]:.6g} (largest {values[-1]:.6g})",
            "Check the kernel or covariance that made it; if it is rounding, add that much to the diagonal yourself.")


def psd_square_root(matrix: Array, name: str) -> Array:
    """S, a triangle or rectangular, with S S' = matrix, singular or not; an `InputError` where it is indefinite."""
    try:
        return np.ascontiguousarray(cholesky(np.array(matrix, order="F")))
    except NotPositiveDefiniteError:
        values, vectors = np.linalg.eigh(matrix)
    _check_eigenvalues(values, name)
    keep = values > np.finfo(float).eps * len(matrix) * max(float(values[-1]), 0.0)
    return np.ascontiguousarray(vectors[:, keep] * np.sqrt(values[keep]))


class Whitener:
    """``L`` with L L' = covariance: lower triangular, or rectangular with orthogonal columns (scaled eigenvectors).

    A product with the inverse triangle is three times as fast as solving, and is used unless pivots say that it loses
    digits. For a rectangular root (a singular covariance) the answer is the least-squares solution.
    """

    def __init__(self, root: Array) -> None:
        self.root = root
        self._pull: Array | None = None
        self._factor: Array | None = None
        self.width = int(root.shape[1])  # entries of a whitened row: the rank
        if root.shape[0] != root.shape[1]:
            self._pull = root / np.einsum("ij,ij->j", root, root)
            return
        pivots = np.diagonal(root)
        self._inverted = bool(pivots.min() >= WELL_CONDITIONED * pivots.max())
        triangle = np.array(root, order="F")
        self._factor = triangular_inverse(triangle) if self._inverted else triangle

    def whitened(self, rows: Array) -> Array:
        """L^-1 k for every row k, as a new array."""
        return self.in_place(np.array(rows, order="C"))

    def in_place(self, rows: Array) -> Array:
        """The same; a C-ordered ``rows`` is overwritten where the root is a triangle."""
        if self._pull is not None:
            return np.asarray(rows @ self._pull)
        apply = blas.dtrmm if self._inverted else blas.dtrsm
        for block in row_blocks(*rows.shape):
            apply(1.0, self._factor, rows[block].T, lower=1, overwrite_b=1)
        return rows


def gram(blocks: Iterable[Array], width: int) -> Array:
    """A'A, the sum over blocks of rows."""
    total = np.zeros((width, width), order="F")
    if not width:
        return total
    with np.errstate(over="ignore", invalid="ignore"):
        for block in blocks:
            total = blas.dsyrk(1.0, np.ascontiguousarray(block).T, beta=1.0, c=total, lower=1, overwrite_c=1)
        full = total + total.T
    full.flat[:: width + 1] *= 0.5
    return np.asarray(full)


def triangle(blocks: Blocks, width: int) -> Array:
    """Upper triangular R (width, width) with R'R = A'A.

    A Gram matrix has squares of the condition: where that costs digits, a second one, of the rows in the coordinates
    that the first gives, has them again (Yamamoto et al. 2015); where even that fails, rows are factorised in turn.
    """
    G = gram(blocks(), width)
    squares = np.diagonal(G)
    if not ((squares > SMALLEST) & (squares < LARGEST)).all():
        return triangle_by_rows(blocks, width)
    size = np.sqrt(squares)
    try:
        first = cholesky(np.asfortranarray(G / np.outer(size, size)))
        inverse = triangular_inverse(first.copy(order="F"))
        condition = float(np.linalg.norm(first) * np.linalg.norm(inverse))
        if condition <= EVEN * width:
            return np.asarray(np.triu(first.T) * size)
        if condition > STEEP * width:
            return triangle_by_rows(blocks, width)
        change = inverse.T / size[:, None]
        second = cholesky(np.asfortranarray(gram((block @ change for block in blocks()), width)))
    except NotPositiveDefiniteError:
        return triangle_by_rows(blocks, width)
    return np.asarray(np.triu(second.T @ first.T) * size)


def triangle_by_rows(blocks: Blocks, width: int) -> Array:
    """The same by QR of the triangle so far over some more rows, again and again: whatever the condition."""
    R, waiting = np.zeros((0, width)), list[Array]()
    for block in blocks():
        waiting.append(block)
        if sum(map(len, waiting)) * width >= STACKED:
            R, waiting = np.asarray(np.linalg.qr(np.vstack([R, *waiting]), mode="r")), []
    R = np.asarray(np.linalg.qr(np.vstack([R, *waiting]), mode="r"))
    return R if len(R) == width else np.vstack([R, np.zeros((width - len(R), width))])


@cache
def _libraries() -> "list[LibController]":
    import scipy.linalg.blas  # noqa: F401  scipy brings a BLAS of its own, which must be loaded to be controlled
    from threadpoolctl import ThreadpoolController

    return list(ThreadpoolController().select(user_api="blas").lib_controllers)


_threads: ContextVar[int] = ContextVar("threads", default=0)  # that BLAS was given, where it is held at one; else 0


def n_threads() -> int:
    """How many threads `together` may use: as many as BLAS was given and is now forbidden to use."""
    return max(_threads.get(), 1)


@contextmanager
def threads_for(size: int) -> Iterator[None]:
    """Here BLAS has one thread if the largest dense matrix has fewer than `LARGE` rows, else as many as were set.

    Threads of BLAS wait for each other by spinning, and those that it does not have are left to `together`. Whatever a
    user calls enters here once, with a size of 0, so that what is inside finds one thread and asks nobody.
    """
    held = _threads.get()
    if held == 1 or (held > 0) == (size < LARGE):  # it has what it should have
        yield
        return
    counts = [(one, one.get_num_threads()) for one in _libraries()]
    wanted = held if size >= LARGE else 1
    changed = [(one, n) for one, n in counts if n != wanted]
    for one, _ in changed:
        one.set_num_threads(wanted)
    token = _threads.set(0 if size >= LARGE else max(min((n for _, n in counts), default=1), 1))
    try:
        yield
    finally:
        _threads.reset(token)
        for one, n in changed:
            one.set_num_threads(n)


def together(tasks: Sequence[Callable[[], T]]) -> list[T]:
    """The results of tasks, done by as many threads as `threads_for` left, each of which has no others."""
    if len(tasks) == 1 or n_threads() == 1:
        return [task() for task in tasks]
    from concurrent.futures import ThreadPoolExecutor

    def alone(task: Callable[[], T]) -> T:
        _threads.set(1)
        return task()

    with ThreadPoolExecutor(min(n_threads(), len(tasks))) as pool:
        return [one.result() for one in [pool.submit(copy_context().run, alone, task) for task in tasks]]


def shares(n_rows: int, n_columns: int = SPARED, power: float = 1.0) -> list[slice]:
    """Consecutive rows for each thread; the j-th of k begins at (j / k)^power of them."""
    k = max(min(n_threads(), n_rows * n_columns // SPARED, n_rows), 1)
    edges = [round(n_rows * (j / k) ** power) for j in range(k + 1)]
    return [slice(*edge) for edge in zip(edges[:-1], edges[1:], strict=True)]


def without_faint(K: Array) -> Array:
    """K, or a copy in which correlations below `FAINT` are 0: products of such are subnormal, 30 times slower."""
    variances = np.diagonal(K)
    smallest = float(variances.min(where=variances > 0.0, initial=np.inf))
    limit = FAINT * smallest if np.isfinite(smallest) else 0.0
    clean = K
    for rows in row_blocks(*K.shape):
        part = K[rows]
        faint = np.abs(part) < limit
        if np.count_nonzero(faint) != part.size - np.count_nonzero(part):
            clean = K.copy() if clean is K else clean
            clean[rows][faint] = 0.0
    return clean
