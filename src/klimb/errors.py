"""The errors klimb raises. Every message says what was expected, what came, and what to do."""

from __future__ import annotations


class KlimbError(Exception):
    """Root of every error that klimb raises on purpose."""


class InputError(KlimbError, ValueError):
    """A value that a user gave can not be used."""

    def __init__(self, expected: str, got: str, advice: str) -> None:
        super().__init__(f"{expected}; got {got}. {advice}")
        self.expected, self.got, self.advice = expected, got, advice

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), (self.expected, self.got, self.advice)


class NotPositiveDefiniteError(KlimbError, ArithmeticError):
    """A posterior precision that was asked for is not positive definite (the loop catches this and steps back)."""
