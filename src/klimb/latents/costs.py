"""What an ordinary fit costs with each latent, before anything is allocated: flops, seconds, bytes.

The figures are models, good to a factor of two or three. They need not be better: the ways to fit a model differ by
orders of magnitude wherever the choice matters. They come from counts alone, so that every machine chooses alike.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf, log2

DENSE_RATE = 2e10  # flops a second of one core in large dense products
SPARSE_RATE = 1.2e9  # of sparse ones, which wait for memory
SCAN_RATE = 1e9  # of recursions along a chain, by small matrices
ITERATIONS = 10  # factorisations of an ordinary fit by the exact ways
SINGLE_PRODUCTS = 200  # of the double loop, for means, one by one
BLOCK_PRODUCTS = 100.0  # for variances, in blocks, times 1 / accuracy: 9,000 to 14,000 at 1% and 500 to 1,000 at 10%
SURROGATE = 128, 32  # directions of the preconditioner that goes with them, below and from an accuracy of 10%
SURROGATE_RATE = 5e9  # flops a second of its products, which are tall and thin
BLOCK_GAIN = 2.5  # how much cheaper a product is inside a block
PATIENCE, EXACT_BONUS = 5.0, 2.0  # an exact answer is worth so many seconds, or waiting this much longer for
BLOCK_BYTES = 6 * 2**27  # temporaries of block products
VECTORS = 24  # of one number per site or weight that the loop holds
GATHERS = 12.0  # passes over the rows of levels in sums and variances of one iteration
DRAWS, PRODUCTS, SYSTEM_PRODUCTS = 12.0, 25.0, 60.0  # behind variances that are estimated: products of each, of systems
CHAIN_FLOPS, CHAIN_ARRAYS = 40.0, 12.0  # products of states per site and iteration, and arrays of them that are held


@dataclass(frozen=True)
class Shape:
    """The counts of a model that its costs follow from."""

    n_sites: int
    n_weights: int
    n_nonzeros: int  # of the design; n_sites x n_weights where it is dense
    n_levels: int = 0  # of the group whose codes may be kept
    level_size: int = 1  # coefficients of a level; of a chain, the size of its state
    border: int = 0  # columns beside the codes of the group, dense
    n_outputs: int = 1
    apart: bool = False  # whether no weight serves two outputs
    dense: bool = True
    chain: bool = False  # a Gaussian process over one input whose kernel has a state
    kernel: bool = False  # a Gaussian process; n_weights are its sites or its inducing points
    memory: float = inf  # bytes that may be used
    sparse: int = 0  # columns of the border that are levels of other groups, by their codes
    fields: bool = False  # a sparse prior precision

    @property
    def linear(self) -> bool:
        """Whether the model is a design with a prior on its weights."""
        return not (self.chain or self.kernel or self.fields)

    @property
    def stored(self) -> float:
        """Bytes of the design."""
        return 8.0 * self.n_nonzeros if self.dense else 24.0 * self.n_nonzeros

    @property
    def rate(self) -> float:
        """Flops a second of its products."""
        return DENSE_RATE if self.dense else SPARSE_RATE


@dataclass(frozen=True)
class Option:
    """One way to fit a model; ``exact`` unless variances are estimated or the prior is approximated."""

    name: str
    flops: float
    seconds: float
    bytes: float
    exact: bool


def primal(shape: Shape) -> Option:
    """D x D matrices."""
    N, D, nnz, dense = float(shape.n_sites), float(shape.n_weights), float(shape.n_nonzeros), shape.dense
    gram = N * D * D if dense else nnz * nnz / N
    norms = 2.0 * nnz * D
    factor = 2.0 / 3.0 * D**3
    flops = ITERATIONS * (gram + norms + factor)
    norm_rate = DENSE_RATE if dense else 10 * SPARSE_RATE
    seconds = ITERATIONS * (gram / shape.rate + norms / norm_rate + factor / DENSE_RATE)
    return Option("primal", flops, seconds, shape.stored + 8.0 * (3 * D * D + VECTORS * N), True)


def dual(shape: Shape) -> Option:
    """N x N matrices of a design."""
    N, D, dense = float(shape.n_sites), float(shape.n_weights), shape.dense
    once, each = N * N * D if dense else shape.n_nonzeros * N, 2.0 / 3.0 * N**3 + 2.0 * N * N
    flops, seconds = once + ITERATIONS * each, once / shape.rate + ITERATIONS * each / DENSE_RATE
    return Option("dual", flops, seconds, shape.stored + 8.0 * (4 * N * N + N * D * dense + VECTORS * N), True)


def double_loop(shape: Shape, accuracy: float = 0.01) -> Option:
    """Products alone, with variances estimated to ``accuracy``."""
    N, D, nnz = float(shape.n_sites), float(shape.n_weights), float(shape.n_nonzeros)
    in_blocks = BLOCK_PRODUCTS / accuracy
    rank = SURROGATE[0] if accuracy < 0.1 else SURROGATE[1]
    surrogate = 2.0 * in_blocks * D * rank  # 4 D rank flops for each pair of products
    flops = 2.0 * nnz * (SINGLE_PRODUCTS + in_blocks) + surrogate
    seconds = 2.0 * nnz * (SINGLE_PRODUCTS + in_blocks / BLOCK_GAIN) / shape.rate + surrogate / SURROGATE_RATE
    held = shape.stored + min(BLOCK_BYTES, 8.0 * 64 * (N + D)) + 8.0 * VECTORS * (N + D)
    return Option("double loop", flops, seconds, held, False)


def kernel(shape: Shape) -> Option:
    """A dense K over all sites."""
    N = float(shape.n_sites)
    flops = ITERATIONS * (2.0 / 3.0 * N**3 + 2.0 * N * N)
    return Option("kernel", flops, flops / DENSE_RATE, 8.0 * (4 * N * N + VECTORS * N), True)


def inducing(shape: Shape) -> Option:
    """M inducing points, with rows that are stored."""
    N, M = float(shape.n_sites), float(shape.n_weights)
    flops = ITERATIONS * (3.0 * N * M * M + 2.0 / 3.0 * M**3)
    return Option("inducing", flops, flops / DENSE_RATE, 8.0 * (N * M + 3 * M * M + VECTORS * N), False)


def arrow(shape: Shape) -> Option:
    """One group by its codes, the rest as a dense border: [[levels, C], [C', border]]."""
    N, B, k, L = float(shape.n_sites), float(shape.border), float(shape.level_size), float(shape.n_levels)
    rows = N * (3.0 * B * B + 4.0 * k * B + 2.0 * k * k)  # the border's Gram, the sums of levels, the variances
    levels = L * (k**3 + 2.0 * k * k * B + 2.0 * k * B * B) + 2.0 / 3.0 * B**3
    flops = ITERATIONS * (rows + levels)
    sums = ITERATIONS * GATHERS * N * (k * B + k * k) / SPARSE_RATE  # they wait for memory
    held = 8.0 * (N * (3 * B + 2 * k + VECTORS) + L * k * (2 * B + 2 * k) + 3 * B * B)
    return Option("arrow", flops, flops / DENSE_RATE + sums, held, True)


def sparse_factor(shape: Shape) -> Option:
    """A sparse Cholesky factor with its selected inverse, as on a planar graph: n^1.5 flops, n log n entries."""
    N, n, B = float(shape.n_sites), float(max(shape.sparse, 1)), float(shape.border - shape.sparse)
    flops = ITERATIONS * (30.0 * n**1.5 + 2.0 * N * B * B)
    entries = 8.0 * n * max(log2(n), 1.0)
    seconds = flops / DENSE_RATE + ITERATIONS * (GATHERS * N + entries) / SPARSE_RATE
    return Option("sparse factor", flops, seconds, 8.0 * (3 * entries + N * (B + VECTORS)), True)


def crossed(shape: Shape) -> Option:
    """One group by its codes, other groups as sparse columns of the border, which is factorised dense."""
    N, B, k, L = float(shape.n_sites), float(shape.border), float(shape.level_size), float(shape.n_levels)
    dense = B - shape.sparse
    rows = N * (3.0 * dense**2 + 8.0 * k * dense + 20.0)
    levels = L * k * min(4.0 * B * B, 200.0 * N / L * N / L) + 1.5 * B**3  # by dense products, or cell by cell
    flops = ITERATIONS * (rows + levels)
    held = 8.0 * (N * (dense + 2 * k + VECTORS + 30) + L * k * (2 * dense + 2 * k) + 6 * B * B)
    return Option("crossed", flops, ITERATIONS * (levels / DENSE_RATE + rows / SPARSE_RATE), held, True)


def crossed_products(shape: Shape) -> Option:
    """The same without a dense border: systems and draws by products over the cells, variances estimated."""
    N, k, L, S = float(shape.n_sites), float(shape.level_size), float(shape.n_levels), float(shape.sparse)
    dense = float(shape.border - shape.sparse)
    cells = N * k * (DRAWS * PRODUCTS + dense * SYSTEM_PRODUCTS)
    rows = N * (3.0 * dense**2 + 8.0 * k * dense + DRAWS * (2.0 + 2.0 * k) + 80.0)
    flops = ITERATIONS * (cells + rows)
    held = 8.0 * (N * (dense + 2 * k + VECTORS + 30) + (L * k + S * PRODUCTS) * (DRAWS + dense + k))
    return Option("crossed, by products", flops, flops / SPARSE_RATE, held, False)


def chain(shape: Shape) -> Option:
    """Recursions along a chain of states."""
    N, s = float(shape.n_sites), float(shape.level_size)
    flops = ITERATIONS * CHAIN_FLOPS * N * (s**3 + 4.0)
    return Option("chain", flops, flops / SCAN_RATE, 8.0 * N * (CHAIN_ARRAYS * s * s + VECTORS), True)


def cheapest(options: Iterable[Option], memory: float) -> Option:
    """The quickest of those that fit into ``memory``, exact ones favoured; the smallest where none fits."""
    every = list(options)
    fitting = [option for option in every if option.bytes <= memory] or [min(every, key=lambda o: o.bytes)]
    quick = [option for option in fitting if option.exact and option.seconds <= PATIENCE]
    if quick:
        return min(quick, key=lambda o: o.seconds)
    return min(fitting, key=lambda o: o.seconds / (EXACT_BONUS if o.exact else 1.0))
