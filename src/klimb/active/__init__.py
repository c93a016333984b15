"""Active learning: which data to label next, from the posterior of the model itself ([N] section 3)."""

from klimb.active.inclusion import Inclusion, include
from klimb.active.information import bald, epig
from klimb.active.learner import ActiveLearner
from klimb.active.marginals import Marginals
from klimb.active.scores import (
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
    measurement_gains,
    variance_reduction,
)

__all__ = ["SCORES", "ActiveLearner", "Bald", "Candidates", "ClassifierUncertainty", "Epig", "Inclusion",
           "InformationGain", "Marginals", "Random", "Score", "VarianceReduction", "bald", "classifier_uncertainty",
           "epig", "include", "information_gain", "measurement_gains", "variance_reduction"]
