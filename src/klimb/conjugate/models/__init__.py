"""Ready conjugate models: regression, mixtures, topics, factorisations, hidden Markov models, hierarchies."""

from klimb.conjugate.models.factorisation import matrix_factorisation, poisson_factorisation, probabilistic_pca
from klimb.conjugate.models.mixtures import gaussian_mixture, hidden_markov, latent_dirichlet
from klimb.conjugate.models.regression import hierarchical_normal, regression

__all__ = ["gaussian_mixture", "hidden_markov", "hierarchical_normal", "latent_dirichlet", "matrix_factorisation",
           "poisson_factorisation", "probabilistic_pca", "regression"]
