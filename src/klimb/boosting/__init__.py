"""Boosting variational inference: mixtures of Gaussians for any log density. The front door is `klimb.boost`."""

from klimb.boosting.api import boost
from klimb.boosting.gaussians import BoostStep
from klimb.boosting.mixture import Ended, Mixture
from klimb.boosting.target import TargetError
from klimb.boosting.transforms import Above, Below, Interval, Ordered, Positive, Real, Simplex, Transform
from klimb.boosting.trust import CorrectedMixture, MixtureTrust

__all__ = ["Above", "Below", "BoostStep", "CorrectedMixture", "Ended", "Interval", "Mixture", "MixtureTrust",
           "Ordered", "Positive", "Real", "Simplex", "TargetError", "Transform", "boost"]
