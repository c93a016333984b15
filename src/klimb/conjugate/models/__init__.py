"""Ready conjugate models: regression, mixtures, topics, factorisations, hidden Markov models, hierarchies."""

from klimb.conjugate.models.counts import poisson_factorisation
from klimb.conjugate.models.factorisation import matrix_factorisation, probabilistic_pca
from klimb.conjugate.models.hierarchical import hierarchical_normal
from klimb.conjugate.models.mixtures import gaussian_mixture
from klimb.conjugate.models.regression import regression
from klimb.conjugate.models.sequences import hidden_markov
from klimb.conjugate.models.topics import latent_dirichlet

__all__ = ["gaussian_mixture", "hidden_markov", "hierarchical_normal", "latent_dirichlet", "matrix_factorisation",
           "poisson_factorisation", "probabilistic_pca", "regression"]
