"""Step rules: how far to go. ``Natural()`` is the default, ``DoubleLoop()`` that of `klimb.latents.Implicit`.

The others are the papers' own, for comparison.
"""

from klimb.infer.literal import FixedPoint, FullNatural, Proximal, TrustRegion
from klimb.infer.loop import Step
from klimb.infer.matrixfree.outer import DoubleLoop
from klimb.infer.natural import Natural
from klimb.infer.sitewise import CoordinateAscent

__all__ = ["CoordinateAscent", "DoubleLoop", "FixedPoint", "FullNatural", "Natural", "Proximal", "Step", "TrustRegion"]
