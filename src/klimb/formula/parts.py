"""What the operators mean: a tree becomes a list of terms, and every term a set of factors.

    a + b       both                    a:b         their products
    a - b       a without b             a*b         a + b + a:b
    a/b         a + a:b                 b %in% a    a:b
    (a + b)^2   all products of up to two of them
    .           every column that is not used otherwise (response, groupings, offset, s, gp)
    1, 0, -1    the intercept, there unless taken out
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias

from klimb.errors import listed, nearest
from klimb.formula.errors import FormulaError, Span
from klimb.formula.functions import FUNCTIONS, columns_of
from klimb.formula.grammar import Formula
from klimb.formula.nodes import Bar, Call, Dot, Name, Node, Operation, Value, walk

MOST_TERMS = 5000

Term: TypeAlias = tuple[Name | Call, ...]  # the product of its factors; () is the intercept
INTERCEPT: Term = ()


@dataclass(frozen=True)
class Grouping:
    """``(effects | groups)`` with one grouping: ``(1 | g/h)`` becomes two of these."""

    effects: tuple[Term, ...]
    groups: Term
    correlated: bool
    bar: Bar

    @property
    def span(self) -> Span:
        return self.bar.span

    @property
    def name(self) -> str:
        return ":".join(label(factor) for factor in self.groups)


@dataclass(frozen=True)
class Joined:
    """``ar1(t):car(g, graph=G)``: the product of two calls that stand on their own."""

    calls: tuple[Call, Call]
    span: Span = field(compare=False)


class Parts(NamedTuple):
    """A formula's right side, expanded: products with wide priors, and what stands on its own."""

    fixed: tuple[Term, ...]  # by number of factors, the intercept first
    others: tuple[Call | Grouping | Joined, ...]  # as written

    def nodes(self) -> list[Name | Call]:
        """The parts of the tree that name the columns of what stands on its own."""
        found: list[Name | Call] = []
        for part in self.others:
            if isinstance(part, Grouping):
                found += [*(factor for term in part.effects for factor in term), *part.groups]
            else:
                found += part.calls if isinstance(part, Joined) else (part,)
        return found


def label(factor: Name | Call) -> str:
    """How a factor is called in tables: a column by its plain name, a call as it is written."""
    return factor.name if isinstance(factor, Name) else str(factor)


def expand(formula: Formula, columns: Sequence[str]) -> Parts:
    """The terms of ``formula`` for data with these ``columns``; every column it names must be there."""
    check_columns(formula, columns)
    found = add(_ordered([INTERCEPT]), _Expansion(formula, columns).value(formula.right))
    fixed = sorted(_terms(found), key=len)
    for factor in (factor for term in fixed for factor in term):
        if factor == formula.response:
            raise FormulaError("expected other columns than the response", f"{factor} on both sides",
                               "Take it out on the right.", formula.text, factor.span)
    others: list[Call | Grouping | Joined] = []
    for item in found.values():
        if isinstance(item, Grouping):
            _check_twice(item, [other for other in others if isinstance(other, Grouping)], formula.text)
        if isinstance(item, (Call, Grouping, Joined)):
            others.append(item)
    return Parts(tuple(fixed), tuple(others))


def _check_twice(grouping: Grouping, others: list[Grouping], text: str) -> None:
    """``(1 | g) + (0 + x | g)`` is a way to write ``(x || g)``; ``(1 | g) + (x | g)`` has two intercepts per group."""
    for other in others:
        twice = set(map(frozenset, other.effects)) & set(map(frozenset, grouping.effects))
        if frozenset(other.groups) == frozenset(grouping.groups) and twice:
            what = ":".join(label(factor) for factor in min(twice, key=len)) or "the intercept"
            raise FormulaError(f"expected {what} by {grouping.name} once", "it twice",
                               f"Leave one out, or write (0 + ... | {grouping.name}) there.", text, grouping.span)


def check_columns(formula: Formula, columns: Sequence[str]) -> None:
    """Every column that the formula names is one of ``columns``."""
    known = set(columns)
    for side in (formula.response, formula.right):
        for name in used_columns(side, formula.text):
            if name.name not in known:
                raise FormulaError("expected a column of the data", repr(name.name),
                                   f"{nearest(name.name, columns)}The columns are: {listed(columns)}.", formula.text,
                                   name.span)


def used_columns(node: Node | None, text: str) -> list[Name]:
    """Every column named below ``node``, in the order of the text."""
    return sorted((name for top in walk(node, Call) for name in columns_of(top, text)), key=lambda name: name.span)


_NO_INTERCEPT = "0"  # the mark that 0 or -1 leaves in a list of items

_Item: TypeAlias = Term | Call | Grouping | Joined | str
_Items: TypeAlias = dict[Hashable, _Item]  # in order, without repetition: a:b and b:a have the same key


class _Expansion:
    def __init__(self, formula: Formula, columns: Sequence[str]) -> None:
        self.text = formula.text
        taken = {name.name for name in used_columns(formula.response, formula.text)}
        taken |= {name.name for node in _specials(formula.right) for name in used_columns(node, formula.text)}
        self.others = [name for name in columns if name not in taken]
        self.named = {name.name for name in used_columns(formula.right, formula.text)}

    def wrong(self, expected: str, got: str, advice: str, span: Span) -> FormulaError:
        return FormulaError(f"expected {expected}", got, advice, self.text, span)

    def value(self, node: Node) -> _Items:
        # A long sum leans to the left: walk down that side without recursion.
        spine: list[Operation] = []
        while isinstance(node, Operation) and node.left is not None:
            spine.append(node)
            node = node.left
        items = self.leaf(node)
        for operation in reversed(spine):
            items = self.combine(items, operation)
        return items

    def leaf(self, node: Node) -> _Items:
        if isinstance(node, Operation):  # a sign
            items = self.value(node.right)
            return items if node.operator == "+" else subtract({}, items)
        if isinstance(node, Value):
            if node.value not in (0.0, 1.0):
                raise self.wrong("0 or 1 among the terms", str(node),
                                 "1 is the intercept, 0 leaves it out; other numbers are no terms.", node.span)
            return _ordered([INTERCEPT] if node.value == 1.0 else [_NO_INTERCEPT])
        if isinstance(node, Dot):
            return _ordered((Name(name, node.span),) for name in self.others)
        if isinstance(node, Bar):
            return _ordered(self.groupings(node))
        if isinstance(node, Name):
            return _ordered([(node,)])
        assert isinstance(node, Call)  # the grammar lets nothing else through
        role = FUNCTIONS[node.function].role
        if role == "response":
            raise self.wrong("a term", f"{node.function}()", f"{node.function}() goes to the left of ~.", node.span)
        return _ordered([self.without_dot(node) if role == "special" else (node,)])

    def without_dot(self, call: Call) -> Call:
        """``ridge(.)`` with the columns that the formula does not name, one by one."""
        if not any(isinstance(value, Dot) for _, value in call.arguments):
            return call
        arguments: list[tuple[str | None, Node]] = []
        for key, value in call.arguments:
            names = [Name(name, value.span) for name in self.others if name not in self.named]
            arguments += [(key, name) for name in names] if isinstance(value, Dot) else [(key, value)]
        return replace(call, arguments=tuple(arguments))

    def combine(self, left: _Items, operation: Operation) -> _Items:
        operator = operation.operator
        if operator == "^":
            assert isinstance(operation.right, Value)
            return self.power(left, int(operation.right.value or 0), operation)
        right = self.value(operation.right)
        if operator == "+":
            return add(left, right)
        if operator == "-":
            return subtract(left, right)
        if operator in (":", "*") and (joined := _joined(left, right, operation)):
            return joined if operator == ":" else add(add(left, right), joined)
        self.only_products(left, operation)
        self.only_products(right, operation)
        if operator == ":":
            return self.multiply(left, right, operation)
        if operator == "*":
            return add(add(left, right), self.multiply(left, right, operation))
        if operator == "%in%":  # what is on the left is nested in what is on the right
            return self.multiply(right, left, operation)
        every = _ordered([tuple(dict.fromkeys(factor for term in _terms(left) for factor in term))])
        return add(left, self.multiply(every, right, operation))

    def power(self, base: _Items, exponent: int, operation: Operation) -> _Items:
        self.only_products(base, operation)
        items = base
        for _ in range(exponent - 1):
            longer = add(items, self.multiply(items, base, operation))
            if len(longer) == len(items):
                break
            items = longer
        return items

    def multiply(self, left: _Items, right: _Items, operation: Operation) -> _Items:
        if len(left) * len(right) > 40 * MOST_TERMS:
            raise self.too_many(operation)
        products = _ordered(tuple(dict.fromkeys(a + b)) for a in _terms(left) for b in _terms(right))
        if len(products) > MOST_TERMS:
            raise self.too_many(operation)
        return products

    def too_many(self, operation: Operation) -> FormulaError:
        return self.wrong(f"at most {MOST_TERMS} terms", "more", "Choose the interactions that you need.",
                          operation.operator_span)

    def only_products(self, items: _Items, operation: Operation) -> None:
        """s(), gp(), offset() and groupings stand on their own; so does 0."""
        for item in items.values():
            if item == _NO_INTERCEPT:
                raise self.wrong("columns on both sides", f"0 or -1 beside {operation.operator!r}",
                                 "0 and -1 can only be added to the other terms.", operation.operator_span)
            if isinstance(item, Grouping):
                raise self.wrong("a grouping on its own", f"{operation.operator!r} beside (... | ...)",
                                 "Join it with +; slopes that differ by group are (1 + x | g).", item.bar.span)
            if isinstance(item, Joined):
                raise self.wrong("two fields in a product", "more, or something else beside them",
                                 "Join the product with +.", item.span)
            if isinstance(item, Call):
                more = {"s": "s(x, by=g) gives a curve per level of g.", "gp": "gp(x, z) is a joint surface.",
                        "offset": "Make the column in your data first."}.get(item.function, "")
                raise self.wrong(f"{item.function}() on its own", f"{operation.operator!r} beside it",
                                 f"Join it with +. {more}".strip(), item.span)

    def groupings(self, bar: Bar) -> list[Grouping]:
        effects = add(_ordered([INTERCEPT]), self.value(bar.effects))
        groups = self.value(bar.groups)
        for items, where in ((effects, "left of the bar"), (groups, "right of the bar")):
            for item in items.values():
                if isinstance(item, (Call, Grouping, Joined)):
                    span = item.bar.span if isinstance(item, Grouping) else item.span
                    raise self.wrong(f"columns {where}", "a term that stands on its own",
                                     "Move it out of the parentheses.", span)
        terms = tuple(sorted(_terms(effects), key=len))
        if not terms:
            raise self.wrong("something that varies by group", "nothing left of the bar",
                             "Write (1 | g) or (0 + x | g).", bar.effects.span)
        found = [term for term in _terms(groups) if term != INTERCEPT]
        for factor in {factor: None for term in found for factor in term}:
            if isinstance(factor, Call) and FUNCTIONS[factor.function].role != "factor":
                raise self.wrong("a column that says to which group a row belongs", str(factor),
                                 "Write (1 | g); for numbers as groups the column itself will do.", factor.span)
        if not found or _NO_INTERCEPT in groups:
            raise self.wrong("a column right of the bar", str(bar.groups), "Write (1 | g).", bar.groups.span)
        return [Grouping(terms, term, bar.correlated, bar) for term in found]


def add(left: _Items, right: _Items) -> _Items:
    """``left + right``; 0 on the right takes the intercept out, 1 puts it back."""
    merged = dict(left)
    if _NO_INTERCEPT in right:
        merged.pop(frozenset(), None)
    if frozenset() in right:
        merged.pop(_NO_INTERCEPT, None)
    for key, item in right.items():
        merged.setdefault(key, item)
    return merged


def subtract(left: _Items, right: _Items) -> _Items:
    """``left - right``; -1 is remembered, because the intercept may come from further out."""
    kept = {key: item for key, item in left.items() if key not in right}
    if frozenset() in right:
        kept[_NO_INTERCEPT] = _NO_INTERCEPT
    if _NO_INTERCEPT in right:
        kept.pop(_NO_INTERCEPT, None)
        kept[frozenset()] = INTERCEPT
    return kept


def _joined(left: _Items, right: _Items, operation: Operation) -> _Items:
    """The products of calls that join; nothing where something else is among them."""
    sides = [[item for item in side.values() if isinstance(item, Call) and FUNCTIONS[item.function].joins]
             for side in (left, right)]
    if [len(side) for side in sides] != [len(left), len(right)]:
        return {}
    return _ordered(Joined((a, b), operation.span) for a in sides[0] for b in sides[1])


def _ordered(items: Iterable[_Item]) -> _Items:
    found: _Items = {}
    for item in items:
        found.setdefault(frozenset(item) if isinstance(item, tuple) else item, item)
    return found


def _terms(items: _Items) -> list[Term]:
    return [item for item in items.values() if isinstance(item, tuple)]


def _specials(node: Node) -> list[Node]:
    """Groupings (their right side), offsets, smooths, Gaussian processes below ``node``; ``.`` leaves them out."""
    return [top.groups if isinstance(top, Bar) else top for top in walk(node, Bar, Call)
            if isinstance(top, Bar) or (isinstance(top, Call) and FUNCTIONS[top.function].role == "special")]
