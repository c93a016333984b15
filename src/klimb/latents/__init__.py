"""Latent Gaussian models: priors and their maps to the sites."""

from klimb.latents.arrow import ArrowRows, DrawnWeights
from klimb.latents.base import Factor, Latent, Posterior
from klimb.latents.corrected_weights import CutWeights, WidenedWeights  # which registers them
from klimb.latents.crossed import Crossed
from klimb.latents.crossed_products import CrossedProducts
from klimb.latents.implicit import Implicit
from klimb.latents.inducing import Inducing
from klimb.latents.kernel import Kernel
from klimb.latents.kernel_weights import ChainWeights, KernelWeights  # which registers them
from klimb.latents.markov import Markov
from klimb.latents.meanfield import MeanField
from klimb.latents.mixed import Mixed
from klimb.latents.outputs import Outputs
from klimb.latents.precision import Precision
from klimb.latents.precision_weights import SparseWeights  # which registers it
from klimb.latents.weights import Weights
from klimb.latents.weights_posterior import WEIGHT_POSTERIORS, WeightPosterior

LATENTS: dict[str, type[Latent]] = {
    latent.__name__: latent for latent in (Weights, Kernel, Inducing, Mixed, Crossed, CrossedProducts, Precision,
                                           Markov, Implicit, Outputs, MeanField)
}

__all__ = ["LATENTS", "WEIGHT_POSTERIORS", "ArrowRows", "Crossed", "CrossedProducts", "DrawnWeights", "Factor",
           "Implicit", "Inducing", "Kernel", "Latent", "Markov", "MeanField", "Mixed", "Outputs", "Posterior",
           "Precision", "SparseWeights", "WeightPosterior", "Weights"]
