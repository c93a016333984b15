"""Latent Gaussian models: priors and their maps to the sites."""

from klimb.latents.base import Factor, Latent, Posterior
from klimb.latents.implicit import Implicit
from klimb.latents.inducing import Inducing
from klimb.latents.kernel import Kernel
from klimb.latents.markov import Markov
from klimb.latents.meanfield import MeanField
from klimb.latents.mixed import Mixed
from klimb.latents.outputs import Outputs
from klimb.latents.weights import Weights

__all__ = ["Factor", "Implicit", "Inducing", "Kernel", "Latent", "Markov", "MeanField", "Mixed", "Outputs", "Posterior",
           "Weights"]
