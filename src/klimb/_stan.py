"""What every part of a model may say in Stan: lines by block of the program, and the data that they name.

Names of variables are made of fixed words and a tag, never of the user's text: that enters comments alone, where
`comment` leaves letters, digits and a few signs of it.
"""

import string
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

_PLAIN = frozenset(string.ascii_letters + string.digits + " _.,:()|+-~^*=<>[]")
LONGEST = 100  # characters of a comment


@dataclass(frozen=True)
class StanDefinition:
    """A variable with its expression; one for every class where ``{c}`` stands in it."""

    kind: str  # its type
    name: str
    value: str
    words: str = ""  # a comment
    steps: tuple[str, ...] = ()  # statements that define it, where one expression does not

    def lines(self, classes: int) -> tuple[str, ...]:
        """The definition in Stan."""
        if self.steps and (classes == 1 or "{c}" not in "".join(self.steps)):
            return (f"{self.kind} {self.name};" + said(self.words), *(line.replace("{c}", "") for line in self.steps))
        if self.steps:
            return (f"array[C] {self.kind} {self.name};" + said(self.words), "for (c in 1:C) {",
                    *(f"  {line.replace('{c}', '[c]')}" for line in self.steps), "}")
        if classes == 1 or "{c}" not in self.value:
            return (f"{self.kind} {self.name} = {self.value.replace('{c}', '')};" + said(self.words),)
        return (f"array[C] {self.kind} {self.name};" + said(self.words),
                f"for (c in 1:C) {self.name}[c] = {self.value.replace('{c}', '[c]')};")


@dataclass(frozen=True, eq=False)
class StanPart:
    """Lines of a Stan program, by its blocks.

    In lines of terms ``{c}`` stands for the class of a response that has several: "[c]", in a loop, or nothing. In the
    ``density`` of a likelihood ``{n}`` stands for a row: "[n]" in a loop, or nothing.
    """

    data: tuple[str, ...] = ()  # declarations
    values: Mapping[str, Any] = field(default_factory=dict)  # of the data
    parameters: tuple[str, ...] = ()  # declarations
    names: tuple[str, ...] = ()  # of the parameters, in that order
    transformed: tuple[StanDefinition, ...] = ()
    model: tuple[str, ...] = ()
    generated: tuple[StanDefinition, ...] = ()
    value: str = ""  # an expression: of a block its value, of a term what it adds to f
    weights: str = ""  # of a term, the variable that holds its weights
    shape: tuple[int, ...] = ()  # of that variable: (D,), or (coefficients of a level, levels)
    free: tuple[int, ...] = ()  # shape of its parameters, where constraints leave fewer of them than weights
    density: str = ""  # of a likelihood: log p(y | f) of one row, or summed over all
    by_row: bool = False  # whether the density takes one row at a time


@dataclass(frozen=True, eq=False)
class ToldLevels:
    """What the rows say of the levels of a group: log p(y | .) is about pull'b - (lean c)'b - b'precision b / 2.

    b are the k weights of a level, c those of all rows. In units of what this and the prior together say levels are
    close to N(0, I) whatever their scale: no funnel is left.
    """

    precision: npt.NDArray[np.float64]  # (L, k, k)
    pull: npt.NDArray[np.float64]  # (L, k)
    lean: npt.NDArray[np.float64]  # (L, k, B)

    def _lower(self, root: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        inverse = np.linalg.inv(root)
        return np.asarray(np.linalg.cholesky(inverse.T @ inverse + self.precision), dtype=np.float64)

    def standardised(self, root: npt.NDArray[np.float64], levels: npt.NDArray[np.float64],
                     shared: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """z of the levels (L, k), b = P (pull - lean c) + P^1/2 z with P^-1 = (root root')^-1 + precision."""
        lower = self._lower(root)
        middle = np.linalg.solve(lower, (self.pull - self.lean @ shared)[..., None])
        return np.asarray((np.swapaxes(lower, 1, 2) @ levels[..., None] - middle)[..., 0])

    def log_volume(self, root: npt.NDArray[np.float64]) -> float:
        """log |db / dz| of all levels."""
        return -float(np.log(np.diagonal(self._lower(root), axis1=1, axis2=2)).sum())


@dataclass(frozen=True)
class StanScope:
    """Where a term stands: the ending of its names, how many classes the response has, how its weights are written."""

    tag: str = ""
    classes: int = 1
    centred: bool = False  # weights themselves are the parameters, not weights in units of their prior's root
    follows: str = ""  # what the centre of the likelihood moves by, where it does
    told: ToldLevels | None = None  # how levels are written that are neither centred nor in units of their prior's root

    def declare(self, kind: str, name: str, words: str = "") -> str:
        """The declaration of what there is for every class."""
        return f"{'array[C] ' if self.classes > 1 else ''}{kind} {name}{self.tag};" + said(words)


def comment(text: str) -> str:
    """The user's text as a comment may have it: on one line, without any sign that could end the comment."""
    plain = "".join(sign if sign in _PLAIN else "_" for sign in text)
    return plain if len(plain) <= LONGEST else plain[: LONGEST - 3] + "..."


def said(words: str) -> str:
    """A comment at the end of a line; nothing without words."""
    return f"  // {comment(words)}" if words else ""


def literal(value: float) -> str:
    """A number with all its digits."""
    return repr(float(value))


def spline_text(x: str, spline: Any) -> tuple[str, str]:
    """A cubic spline and its slope at ``x`` past the first knot: a cubic, and a truncated cube for each inner knot."""
    cubic, square, slope, start = spline.c[:, 0].tolist()
    knots, jumps = (spline.x[1:-1] - spline.x[0]).tolist(), f"{np.diff(spline.c[0]).tolist()}'"
    over = f"fmax({x} - {knots}', 0)"
    value = f"{start!r} + {x} * ({slope!r} + {x} * ({square!r} + {x} * {cubic!r})) + dot_product({jumps}, {over}^3)"
    rise = f"({slope!r} + {x} * ({2.0 * square!r} + {x} * {3.0 * cubic!r}) + 3 * dot_product({jumps}, {over}^2))"
    return value, rise
