"""The hyperparameters of a model as one vector theta without units, made of blocks that belong together."""

from klimb.theta.base import ParameterBlock, PlainBlock, RowKind, Scale, Theta
from klimb.theta.blocks import Cutpoints, GroupCovariance, correlation_root, partial_correlations
from klimb.theta.single import LIMIT, BoundedParameter, PositiveParameter, Support

__all__ = ["LIMIT", "BoundedParameter", "Cutpoints", "GroupCovariance", "ParameterBlock", "PlainBlock",
           "PositiveParameter", "RowKind", "Scale", "Support", "Theta", "correlation_root", "partial_correlations"]
