"""What a test adds to the registries is taken out again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from klimb._stored import STATES
from klimb.formula.functions import FUNCTIONS
from klimb.kernels import KERNELS
from klimb.latents import LATENTS
from klimb.likelihoods import LIKELIHOODS
from klimb.models.checks import CHECKS
from klimb.terms import TERMS


@contextmanager
def as_before() -> Iterator[None]:
    """The registries as they were, whatever happens inside; records that modules register on import may stay."""
    registries: tuple[dict[Any, Any], ...] = (KERNELS, LIKELIHOODS, TERMS, FUNCTIONS, LATENTS, CHECKS)
    before, states = [dict(registry) for registry in registries], dict(STATES)
    try:
        yield
    finally:
        for registry, content in zip(registries, before, strict=True):
            registry.clear()
            registry.update(content)
        added = [kind for kind in STATES if kind not in states]
        for kind in (kind for kind in added if not STATES[kind].__module__.startswith("klimb")):
            del STATES[kind]
