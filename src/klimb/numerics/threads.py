"""One BLAS thread unless matrices are large.

Many small calls are slower with several threads than with one, by an order of magnitude where the machine is busy.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

LARGE = 3000  # rows of a dense matrix from which its factorisation (half a second) gains more than it risks


@cache
def _controller() -> ThreadpoolController:
    import scipy.linalg.blas  # noqa: F401  scipy brings a BLAS of its own, which must be loaded to be controlled
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


@contextmanager
def threads_for(size: int) -> Iterator[None]:
    """Within this context BLAS has one thread if the largest dense matrix has fewer than `LARGE` rows.

    Otherwise it keeps whatever the user or the environment set.
    """
    if size >= LARGE:
        yield
        return
    with _controller().limit(limits=1, user_api="blas"):
        yield
