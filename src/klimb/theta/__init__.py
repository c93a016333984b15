"""The hyperparameters of a model as one vector theta without units, made of blocks that belong together."""

from klimb.theta.base import BoundedParameter, ParameterBlock, PositiveParameter, RealParameter, RowKind, Scale, Theta
from klimb.theta.blocks import Cutpoints, GroupCovariance, correlation_root, partial_correlations

__all__ = ["BoundedParameter", "Cutpoints", "GroupCovariance", "ParameterBlock", "PositiveParameter", "RealParameter",
           "RowKind", "Scale", "Theta", "correlation_root", "partial_correlations"]
