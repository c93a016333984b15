"""What a linear model costs by each engine, before anything is allocated: flops, bytes, and which one to take.

The figures are models of an ordinary fit, good to a factor of two or three. They need not be better: the engines differ
by orders of magnitude wherever the choice matters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, final

from klimb.errors import InputError

EngineName: TypeAlias = Literal["primal", "dual", "double loop"]

DENSE_RATE = 2e10  # flops a second of one core in large dense products
SPARSE_RATE = 1.2e9  # of sparse ones, which wait for memory
ITERATIONS = 10  # factorisations of an ordinary fit by the exact engines
SINGLE_PRODUCTS = 200  # of the double loop, for means, one by one
BLOCK_PRODUCTS = 100.0  # for variances, in blocks, times 1 / accuracy: 9,000 to 14,000 at 1% and 500 to 1,000 at 10%
SURROGATE = 128, 32  # directions of the preconditioner that goes with them, below and from an accuracy of 10%
SURROGATE_RATE = 5e9  # flops a second of its products, which are tall and thin
BLOCK_GAIN = 2.5  # how much cheaper a product is inside a block
PATIENCE, EXACT_BONUS = 5.0, 2.0  # an exact answer is worth so many seconds, or waiting this much longer for
BLOCK_BYTES = 6 * 2**27  # temporaries of block products
VECTORS = 24  # of one number per site or weight that the loop holds


@final
@dataclass(frozen=True)
class Option:
    """One way to fit the model."""

    name: EngineName
    flops: float
    seconds: float
    bytes: float
    exact: bool


@final
@dataclass(frozen=True)
class Plan:
    """The ways to fit a model of ``n_sites`` x ``n_weights``, and the one that was chosen; ``print`` it.

    >>> print(plan(50_000, 15_000, 4_000_000, memory=8e9))
    50,000 sites, 15,000 weights, 4,000,000 nonzeros; 8.0 GB allowed
      primal       2.4e+13 flops    1,227.7 s     5.5 GB  exact
      dual         8.3e+14 flops   41,835.8 s    80.1 GB  exact  too large
    * double loop  1.2e+11 flops       35.7 s   141.8 MB
    """

    n_sites: int
    n_weights: int
    n_nonzeros: int
    memory: float
    options: tuple[Option, ...]
    choice: EngineName

    def __str__(self) -> str:
        lines = [f"{self.n_sites:,} sites, {self.n_weights:,} weights, {self.n_nonzeros:,} nonzeros; "
                 f"{readable(self.memory)} allowed"]
        for option in self.options:
            mark = "*" if option.name == self.choice else " "
            notes = ["exact"] * option.exact + ["too large"] * (option.bytes > self.memory)
            line = (f"{mark} {option.name:12s} {option.flops:.1e} flops {option.seconds:10,.1f} s "
                    f"{readable(option.bytes):>10s}  {'  '.join(notes)}")
            lines.append(line.rstrip())
        return "\n".join(lines)


def readable(size: float) -> str:
    """A number of bytes, as people write it.

    >>> readable(8e9), readable(1234)
    ('8.0 GB', '1.2 kB')
    """
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= unit:
            return f"{size / unit:,.1f} {name}"
    return f"{size:.0f} B"


def plan(
    n_sites: int, n_weights: int, n_nonzeros: int, *, memory: float, dense: bool = False, exact_engines: bool = True,
    choice: EngineName | None = None, accuracy: float = 0.01,
) -> Plan:
    """The cheapest way that fits into ``memory`` bytes, exact ones favoured; or the given one.

    ``accuracy`` is that of the variances where they are estimated.
    ``dense`` says that products run at the dense rate; without ``exact_engines`` (a flat prior, operators that are not
    stored) only the double loop is there.
    """
    N, D, nnz = float(n_sites), float(n_weights), float(n_nonzeros)
    stored = 8.0 * nnz if dense else 24.0 * nnz
    rate = DENSE_RATE if dense else SPARSE_RATE
    options = []
    if exact_engines:
        gram = N * D * D if dense else nnz * nnz / N
        norms = 2.0 * nnz * D
        factor = 2.0 / 3.0 * D**3
        primal = ITERATIONS * (gram + norms + factor)
        seconds = ITERATIONS * (gram / rate + norms / (DENSE_RATE if dense else 10 * SPARSE_RATE) + factor / DENSE_RATE)
        options.append(Option("primal", primal, seconds, stored + 8.0 * (3 * D * D + VECTORS * N), True))
        once, each = N * N * D if dense else nnz * N, 2.0 / 3.0 * N**3 + 2.0 * N * N
        dual, seconds = once + ITERATIONS * each, once / rate + ITERATIONS * each / DENSE_RATE
        options.append(Option("dual", dual, seconds, stored + 8.0 * (4 * N * N + N * D * dense + VECTORS * N), True))
    in_blocks = BLOCK_PRODUCTS / accuracy
    rank = SURROGATE[0] if accuracy < 0.1 else SURROGATE[1]
    surrogate = 2.0 * in_blocks * D * rank  # 4 D rank flops for each pair of products
    flops = 2.0 * nnz * (SINGLE_PRODUCTS + in_blocks) + surrogate
    seconds = 2.0 * nnz * (SINGLE_PRODUCTS + in_blocks / BLOCK_GAIN) / rate + surrogate / SURROGATE_RATE
    held = stored + min(BLOCK_BYTES, 8.0 * 64 * (N + D)) + 8.0 * VECTORS * (N + D)
    options.append(Option("double loop", flops, seconds, held, False))
    chosen = choice or _cheapest(options, memory)
    picked = next(option for option in options if option.name == chosen)
    if picked.bytes > memory:
        raise InputError(
            f"the model must fit into {readable(memory)}", f"{readable(picked.bytes)} for the {chosen} engine "
            f"({n_sites:,} sites, {n_weights:,} weights, {n_nonzeros:,} nonzeros)",
            "Raise memory, drop rare columns, or fit a part of the rows.",
        )
    return Plan(n_sites, n_weights, n_nonzeros, memory, tuple(options), chosen)


def _cheapest(options: list[Option], memory: float) -> EngineName:
    fitting = [option for option in options if option.bytes <= memory] or [min(options, key=lambda o: o.bytes)]
    quick = [option for option in fitting if option.exact and option.seconds <= PATIENCE]
    if quick:
        return min(quick, key=lambda o: o.seconds).name
    return min(fitting, key=lambda o: o.seconds / (EXACT_BONUS if o.exact else 1.0)).name
