"""Step rules: how far to go. ``Natural()`` is the default; the others are the papers' own, for comparison."""

from klimb.infer.literal import FixedPoint, Proximal
from klimb.infer.loop import Step
from klimb.infer.natural import Natural

__all__ = ["FixedPoint", "Natural", "Proximal", "Step"]
