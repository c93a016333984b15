"""Active learning: which data to label next, from the posterior of the model itself ([N] section 3)."""

from klimb.active.inclusion import Inclusion, include
from klimb.active.information import bald, epig
from klimb.active.learner import ActiveLearner
from klimb.active.marginals import Marginals
from klimb.active.scores import (
    SCORES,
    Candidates,
    Score,
    classifier_uncertainty,
    information_gain,
    measurement_gains,
    variance_reduction,
)

__all__ = ["SCORES", "ActiveLearner", "Candidates", "Inclusion", "Marginals", "Score", "bald", "classifier_uncertainty",
           "epig", "include", "information_gain", "measurement_gains", "variance_reduction"]
