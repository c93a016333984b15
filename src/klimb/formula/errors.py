"""An error in a formula shows the formula, with a caret under the token it is about."""

from typing import TypeAlias

from klimb.errors import InputError, width

Span: TypeAlias = tuple[int, int]  # first character and one past the last


class FormulaError(InputError):
    """A formula that cannot be read, or that does not fit the data.

    >>> print(FormulaError("expected a column of the data", "'agee'", "Did you mean 'age'?", "y ~ agee", (4, 8)))
    expected a column of the data; got 'agee'.
        y ~ agee
            ^^^^
    Did you mean 'age'?
    """

    def __init__(self, expected: str, got: str, advice: str, formula: str = "", span: Span | None = None) -> None:
        super().__init__(expected, got, advice)
        self.formula, self.span = formula, span

    @classmethod
    def pointing(cls, error: InputError, formula: str, span: Span) -> "FormulaError":
        """An error about the data, now with the place in the formula that asked for them."""
        return error if isinstance(error, cls) else cls(error.expected, error.got, error.advice, formula, span)

    def __str__(self) -> str:
        head = f"{self.expected}; got {self.got}."
        if self.span is None:
            return f"{head} {self.advice}"
        return "\n".join([head, *("    " + line for line in pointed(self.formula, self.span)), self.advice])

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), (self.expected, self.got, self.advice, self.formula, self.span)


def pointed(text: str, span: Span) -> tuple[str, str]:
    """The line of ``text`` that holds ``span``, and a line of carets under it."""
    start = min(max(span[0], 0), len(text))
    begin = text.rfind("\n", 0, start) + 1
    end = text.find("\n", start)
    line = text[begin : end if end >= 0 else len(text)]
    last = max(min(span[1], begin + len(line)), start + 1)
    # A tab or another control character would push the carets out of place.
    shown = "".join(character if character.isprintable() else " " for character in line)
    return shown, " " * width(shown[: start - begin]) + "^" * max(width(shown[start - begin : last - begin]), 1)
