"""Latent Gaussian models fitted by deterministic variational inference.

    klimb.fit(formula, data)        the front door: klimb.fit("y ~ x + (1 | g)", df, family="bernoulli")
    klimb.infer(latent, site, y)    the engine
    klimb.latents                   priors: Weights, Kernel, Inducing, Markov, MeanField
    klimb.sites                     likelihoods: Logistic, Poisson, StudentT, ...
    klimb.gp(kernel, X, site)       a Gaussian process by kernel (klimb.kernels), with its hyperparameters
    klimb.series(kernel, t, site)   the same over time, at a cost linear in the data
    klimb.inducing, klimb.scale     inducing points, how many and where; rows on demand, minibatches
    klimb.streaming                 adding data to a fitted process
    klimb.sparse_glm(X, y)          large and sparse linear models; klimb.sparse_linear: sparsity priors, images
    klimb.operators                 gradients, wavelets, partial Fourier, blur: for images in klimb.sparse_linear
    klimb.multiclass                one class against the rest (a softmax is klimb.sites.Softmax)
    klimb.trust(result)             can this fit be believed? The complete report (result.trust is the quick one)
    klimb.calibrate(latent, site)   do intervals cover the truth? Simulate, fit, count
    klimb.conjugate                 mixtures, topics, factorisations, hidden Markov models: declared networks
    klimb.boost(log_density, dim)   a mixture of Gaussians for any log density; klimb.bridges: from other packages
    klimb.design                    active learning: which data to label next, from the posterior itself
    klimb.label                     the parts of the labelling page, which ``klimb label`` opens
    klimb.load(path)                what was saved to a file
    klimb.sklearn                   estimators for scikit-learn (an extra)
    klimb.steps, klimb.methods      other step rules and baselines, same arguments, same Result

The parts are imported when they are first used, so that ``import klimb`` costs next to nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from klimb import boosting, bridges, conjugate, errors, inducing, kernels, latents, methods, multiclass, scale
    from klimb import design as design
    from klimb import operators as operators
    from klimb import sites as sites
    from klimb import steps as steps
    from klimb import streaming as streaming
    from klimb.boosting import boost
    from klimb.calibration import calibrate
    from klimb.frontend import priors
    from klimb.frontend.compare import compare
    from klimb.frontend.files import load
    from klimb.frontend.fitting import fit
    from klimb.infer.loop import infer
    from klimb.infer.trust import trust
    from klimb.process import gp
    from klimb.sparse import sparse_glm, sparse_linear
    from klimb.temporal import series

__version__ = "0.1.0"

# Functions that live in a module of another name; everything else in __all__ is a module of its own.
_HOME = {
    "boost": "klimb.boosting",
    "calibrate": "klimb.calibration",
    "compare": "klimb.frontend.compare",
    "fit": "klimb.frontend.fitting",
    "gp": "klimb.process",
    "load": "klimb.frontend.files",
    "series": "klimb.temporal",
    "sparse_glm": "klimb.sparse",
    "sparse_linear": "klimb.sparse",
    "trust": "klimb.infer.trust",
}
__all__ = ["boost", "boosting", "bridges", "calibrate", "compare", "conjugate", "design", "errors", "fit", "gp",
           "inducing", "infer", "kernels", "label", "latents", "load", "methods", "multiclass", "operators", "priors",
           "scale", "series", "sites", "sparse_glm", "sparse_linear", "steps", "streaming", "trust"]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    if name == "priors":
        return import_module("klimb.frontend.priors")
    # klimb.infer is a package and can be called: see klimb/infer/__init__.py.
    if name in __all__ or name == "sklearn":  # not in __all__: it is an extra, and * must not need it
        return import_module(f"klimb.{name}")
    raise AttributeError(f"module 'klimb' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
