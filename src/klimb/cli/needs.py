"""Which columns of a table a formula needs: only those are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from klimb.errors import InputError


def columns_of(formula: str, *others: str | None) -> Callable[[tuple[str, ...]], Sequence[str]]:
    """For a header, the columns that ``formula`` uses (all for a dot) and ``others``; errors point at absent ones.

    >>> columns_of("y ~ log(x) + (1 | g)", "w")(("g", "w", "x", "y", "z"))
    ['g', 'w', 'x', 'y']
    """
    from klimb.errors import listed, nearest
    from klimb.formula import parse
    from klimb.formula.nodes import Dot, Node, children
    from klimb.formula.parts import check_columns, used_columns

    parsed = parse(formula)
    extra = [name for name in others if name is not None]

    def has_dot(node: Node) -> bool:
        stack = [node]  # a long sum is a deep tree: no recursion
        while stack:
            top = stack.pop()
            if isinstance(top, Dot):
                return True
            stack += children(top)
        return False

    def choose(header: tuple[str, ...]) -> Sequence[str]:
        check_columns(parsed, header)
        for name in extra:
            if name not in header:
                raise InputError("a column of the data", repr(name),
                                 f"{nearest(name, header)}The columns are: {listed(header)}.")
        if has_dot(parsed.right):
            return header
        used = {name.name for side in (parsed.response, parsed.right) for name in used_columns(side, formula)}
        return [name for name in header if name in used or name in extra]

    return choose
