"""The columns of a formula by kind of term, as tests look at them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from klimb.terms.encoder import Encoded, Encoder
from klimb.terms.encoder import encode as learn
from klimb.terms.gp import GaussianProcess
from klimb.terms.group import Group
from klimb.terms.offset import OffsetTerm
from klimb.terms.smooth import Smooth


@dataclass(frozen=True)
class Named:
    """A term with its columns: what either has can be asked."""

    term: Any
    block: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.block, name) if hasattr(self.block, name) else getattr(self.term, name)


@dataclass(frozen=True)
class View:
    """One frame in the terms of an encoder."""

    encoder: Encoder
    encoded: Encoded

    def _of(self, kind: type) -> list[Named]:
        pairs = zip(self.encoder.terms, self.encoded.blocks, strict=True)
        return [Named(term, block) for term, block in pairs if isinstance(term, kind)]

    @property
    def names(self) -> tuple[str, ...]:
        return self.encoder.fixed.every_name

    @property
    def matrix(self) -> Any:
        return self.encoded.blocks[0].values

    @property
    def groups(self) -> list[Named]:
        return self._of(Group)

    @property
    def smooths(self) -> list[Named]:
        return self._of(Smooth)

    @property
    def gps(self) -> list[Named]:
        return self._of(GaussianProcess)

    @property
    def offset(self) -> Any:
        return sum((found.term.shift(found.block) for found in self._of(OffsetTerm)), np.zeros(self.encoded.n))

    @property
    def response(self) -> Any:
        return None if self.encoded.left is None else self.encoded.left.values

    @property
    def n(self) -> int:
        return self.encoded.n

    @property
    def rows(self) -> Any:
        return self.encoded.rows

    @property
    def dropped(self) -> int:
        return self.encoded.dropped


def encode(formula: str, frame: Any, **more: Any) -> tuple[Encoder, View]:
    """What a formula learns, and the view of the data that it learnt from."""
    encoder, encoded = learn(formula, frame, **more)
    return encoder, View(encoder, encoded)


def view(encoder: Encoder, frame: Any, **more: Any) -> View:
    """Another frame."""
    return View(encoder, encoder.encode(frame, **more))
