"""The kinds of terms, by name; registering one gives formulas its functions."""

from typing import Any

from klimb.errors import InputError
from klimb.formula.functions import FUNCTIONS
from klimb.formula.nodes import Call
from klimb.formula.parts import Grouping, Joined
from klimb.terms.areas import Areas
from klimb.terms.autoregression import Autoregression
from klimb.terms.base import Term
from klimb.terms.curve import MaternCurve
from klimb.terms.fixed import FixedTerm
from klimb.terms.generic import UserPrecision
from klimb.terms.gp import GaussianProcess
from klimb.terms.group import Group
from klimb.terms.knots import ManyKnots
from klimb.terms.offset import OffsetTerm
from klimb.terms.product import FieldProduct
from klimb.terms.ridge import Ridge, Sparse
from klimb.terms.seasonal import Seasonal
from klimb.terms.smooth import Smooth
from klimb.terms.spde import MaternField
from klimb.terms.walk import Walk

TERMS: dict[str, type[Term]] = {}
_BY_FUNCTION: dict[str, type[Term]] = {}


def register(cls: type[Term]) -> type[Term]:
    """Make a kind of term known: formulas may call its functions from now on."""
    if TERMS.setdefault(cls.kind, cls).__qualname__ != cls.__qualname__:
        raise InputError("kinds of terms must have different names", f"{cls.kind!r} twice", "Choose another name.")
    TERMS[cls.kind] = cls
    for function in cls.functions:
        FUNCTIONS[function.name] = function
        _BY_FUNCTION[function.name] = cls
    return cls


for _kind in (FixedTerm, OffsetTerm, Group, Smooth, ManyKnots, GaussianProcess, Ridge, Sparse, Walk, Areas,
              Autoregression, Seasonal, MaternField, MaternCurve, UserPrecision, FieldProduct):
    register(_kind)


def term_of(part: Call | Grouping | Joined) -> Any:
    """The kind of term that a part of a formula is."""
    if isinstance(part, Joined):
        return FieldProduct
    return Group if isinstance(part, Grouping) else _BY_FUNCTION[part.function]
