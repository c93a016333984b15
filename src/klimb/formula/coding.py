"""Which factors of which product are coded in full, and which by contrasts, so that no column is redundant.

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
from typing import TypeAlias

Product: TypeAlias = tuple[tuple[str, bool], ...]  # (factor, in full?) in the order of the term; () is the intercept


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
