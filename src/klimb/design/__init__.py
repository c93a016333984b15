"""Active learning: which data to label next, from the posterior of the model itself ([N] section 3)."""

from klimb.design.bald import bald
from klimb.design.inclusion import Inclusion, include
from klimb.design.learner import ActiveLearner
from klimb.design.marginals import Marginals
from klimb.design.measurements import measurement_gains
from klimb.design.pairs import epig
from klimb.design.scores import (
    SCORES,
    Bald,
    Candidates,
    ClassifierUncertainty,
    Epig,
    InformationGain,
    Random,
    Score,
    VarianceReduction,
    classifier_uncertainty,
    information_gain,
    variance_reduction,
)

__all__ = ["SCORES", "ActiveLearner", "Bald", "Candidates", "ClassifierUncertainty", "Epig", "Inclusion",
           "InformationGain", "Marginals", "Random", "Score", "VarianceReduction", "bald", "classifier_uncertainty",
           "epig", "include", "information_gain", "measurement_gains", "variance_reduction"]
