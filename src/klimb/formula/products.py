"""Products of factors as columns of a design: values and names, first factor fastest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from klimb.errors import InputError
from klimb.formula.coding import Product
from klimb.formula.factors import Factor
from klimb.numerics.arrays import Array
from klimb.rows.table import Source

INTERCEPT = "Intercept"
MOST_ENTRIES = 2**28  # 2 GiB


def design_names(products: Sequence[Product], factors: dict[str, Factor]) -> tuple[str, ...]:
    """Names of the columns of all ``products``."""
    found: list[str] = []
    for product in products:
        names = [""]
        for key, full in product:
            names = [f"{old}:{new}" if old else new for new in factors[key].names(full) for old in names]
        found += names if product else [INTERCEPT]
    return tuple(found)


def design(products: Sequence[Product], factors: dict[str, Factor], source: Source) -> Any:
    """All columns of ``products``, one matrix."""
    sizes = [_width(product, factors) for product in products]
    if source.n * sum(sizes) > MOST_ENTRIES:
        widest = products[int(np.argmax(sizes))]
        raise InputError(f"at most {MOST_ENTRIES:.0e} numbers in the fixed columns",
                         f"{source.n} rows and {sum(sizes)} columns, {max(sizes)} of them from "
                         f"{':'.join(key for key, _ in widest)!r}",
                         "Many levels are better as groups: (1 | g) keeps one number per row.")
    matrix = np.empty((source.n, sum(sizes)))
    cache: dict[tuple[str, bool], Array] = {}
    start = 0
    for product, size in zip(products, sizes, strict=True):
        matrix[:, start : start + size] = _columns(product, factors, source, cache)
        start += size
    return matrix


def _width(product: Product, factors: dict[str, Factor]) -> int:
    return int(np.prod([len(factors[key].names(full)) for key, full in product], dtype=np.int64))


def _columns(product: Product, factors: dict[str, Factor], source: Source,
             cache: dict[tuple[str, bool], Array]) -> Array:
    values = np.ones((source.n, 1))
    for key, full in product:
        if (key, full) not in cache:
            cache[key, full] = factors[key].block(source, full)
        block = cache[key, full]
        if values.shape[1] == 1:
            values = values * block
        else:
            values = (block[:, :, None] * values[:, None, :]).reshape(source.n, block.shape[1] * values.shape[1])
    return values
