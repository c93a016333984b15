"""Active learning: which data to label next, from the posterior of the model itself ([N] section 3)."""

from klimb.design.bald import bald
from klimb.design.inclusion import Inclusion, include
from klimb.design.learner import ActiveLearner
from klimb.design.scores import (
    SCORES,
    Bald,
    Candidates,
    ClassifierUncertainty,
    InformationGain,
    Random,
    Score,
    classifier_uncertainty,
    information_gain,
)

__all__ = ["SCORES", "ActiveLearner", "Bald", "Candidates", "ClassifierUncertainty", "Inclusion", "InformationGain",
           "Random", "Score", "bald", "classifier_uncertainty", "include", "information_gain"]
