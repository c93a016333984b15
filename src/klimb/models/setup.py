"""Priors from data: what the terms and the likelihood of a formula take as theirs."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf, isfinite
from typing import Any

import numpy as np

from klimb.errors import InputError, require
from klimb.formula.factors import INTERCEPT
from klimb.likelihoods import Choices, Likelihood, Observed
from klimb.models.linear import LinearModel
from klimb.numerics.arrays import Array, as_float
from klimb.terms.base import Context, Term, TermBlock
from klimb.terms.encoder import Encoded, Encoder


def build(encoder: Encoder, encoded: Encoded, family: Likelihood, priors: Mapping[str, Any] | None,
          memory: float = inf) -> tuple[LinearModel, Encoder, Observed, dict[str, str]]:
    """The model of a formula's terms with their priors, its data, and the priors in words; columns are used up."""
    assert encoded.left is not None
    shift = total_shift(encoder.terms, encoded.blocks)
    observed = replace(family.read(encoded.left, encoded.weights, shift), dropped=encoded.dropped)
    terms, family, printed = with_priors(encoder, encoded.blocks, observed.shares, observed, family, priors)
    blocks = tuple(term.settled(block) for term, block in zip(terms, encoded.blocks, strict=True))
    more = {"memory": memory} if isfinite(memory) else {}
    return LinearModel.of(terms, family, blocks, **more), replace(encoder, terms=terms), observed, printed


def with_priors(encoder: Encoder, blocks: Sequence[TermBlock], shares: Array, observed: Observed, family: Likelihood,
                priors: Mapping[str, Any] | None) -> tuple[tuple[Term, ...], Likelihood, dict[str, str]]:
    """Terms and likelihood that know their priors, from columns with these shares and from all responses."""
    shift = total_shift(encoder.terms, blocks)
    family, choices = family.for_data(observed), Choices(priors)
    cut = family.response == "ordered" and "cutpoints" not in family.known  # free cut points are the intercept
    offset = 0.0 if shift is None else float(shares @ shift)
    follows = family.centre_words() and family.centre_words() + (f" {-offset:+.3g}" if offset else "")
    context = Context(family.units(observed), family.centre(observed) - offset, family.reach(observed), shares, choices,
                      intercept=not cut, follows=follows, centred=INTERCEPT in encoder.fixed.every_name)
    terms = tuple(term.ready(block, context) for term, block in zip(encoder.terms, blocks, strict=True))
    family = family.prepared(observed, choices)
    choices.finish()
    return terms, family, choices.printed


def total_shift(terms: Sequence[Term], blocks: Sequence[TermBlock]) -> Array | None:
    """All offsets together; None where there are none."""
    parts = [own for term, block in zip(terms, blocks, strict=True) if (own := term.shift(block)) is not None]
    return np.sum(parts, axis=0) if parts else None


def checked_weights(weights: Any, n: int) -> Array:
    """How often each of ``n`` rows counts."""
    array = as_float(weights, "weights", ndim=1)
    require(len(array) == n, f"weights must have one entry per row ({n})", len(array), "Pass one per row.")
    if (array < 0).any():
        i = int(np.argmin(array))
        raise InputError("weights must not be negative", f"{array[i]:g} at row {i}", "0 leaves a row out.")
    require(array.any(), "some weight must be positive", "none", "Rows with weight 0 are left out.")
    return array
