"""Products of factors as columns of a design: values and names, first factor fastest.

A product of factors with levels spans the products of all subsets of them: a:b in full is 1 + a + b + a:b, each by
contrasts. From every term we keep the subsets that no earlier term has spanned, then merge them back as far as
possible with

    rest:(a by contrasts) + rest  =  rest:(a in full)

(the rule of S and R, done for any formula as patsy does). Numeric factors are part of the rest: x:a is spanned by
itself, not by a.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import product as every_choice
from typing import Any, TypeAlias

import numpy as np

from klimb.errors import InputError
from klimb.formula.factors import Factor
from klimb.numerics.arrays import Array
from klimb.rows.table import Source

Product: TypeAlias = tuple[tuple[str, bool], ...]  # (factor, in full?) in the order of the term; () is the intercept
INTERCEPT = "Intercept"
MOST_ENTRIES = 2**28  # 2 GiB


def full_rank(terms: Iterable[Sequence[str]], has_levels: Callable[[str], bool]) -> list[Product]:
    """The products to build for ``terms``; a factor by its key, numeric ones count as "in full".

    >>> full_rank([[], ["a"], ["a", "x"]], lambda key: key == "a")
    [(), (('a', False),), (('a', True), ('x', True))]
    >>> full_rank([["a"], ["a", "b"]], lambda key: True)
    [(('a', True),), (('a', True), ('b', False))]
    """
    spanned: set[frozenset[str]] = set()
    built: list[Product] = []
    for term in terms:
        choices = [((key, None) if has_levels(key) else (key,)) for key in term]
        subsets = [tuple(key for key in choice if key is not None) for choice in every_choice(*choices)]
        fresh = [subset for subset in subsets if frozenset(subset) not in spanned]
        spanned.update(frozenset(subset) for subset in fresh)
        parts = [tuple((key, not has_levels(key)) for key in subset) for subset in sorted(fresh, key=len)]
        built += _merge(parts)
    return built


def _merge(parts: list[Product]) -> list[Product]:
    """Merge until nothing can be merged; every part is the product of exact subsets, shortest first."""
    merged: list[Product] = []
    for part in parts:
        for k, shorter in enumerate(merged):
            extra = set(part) - set(shorter)
            if len(part) == len(shorter) + 1 and len(extra) == 1 and not next(iter(extra))[1]:
                key = next(iter(extra))[0]
                longer = tuple((name, full or name == key) for name, full in part)
                return _merge(sorted([*merged[:k], *merged[k + 1 :], longer], key=len) + parts[parts.index(part) + 1 :])
        merged.append(part)
    return merged


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
