"""The hyperparameters of a model as one vector theta without units, made of blocks that belong together."""

from klimb.theta.base import ParameterBlock, PositiveParameter, RealParameter, RowKind, Scale, Theta
from klimb.theta.bounded import BoundedParameter
from klimb.theta.cutpoints import Cutpoints
from klimb.theta.groups import GroupCovariance, correlation_root, partial_correlations

__all__ = ["BoundedParameter", "Cutpoints", "GroupCovariance", "ParameterBlock", "PositiveParameter", "RealParameter",
           "RowKind", "Scale", "Theta", "correlation_root", "partial_correlations"]
