"""Latent Gaussian models fitted by deterministic variational inference.

    klimb.fit(formula, data)        the front door: klimb.fit("y ~ x + (1 | g)", df, family="bernoulli")
    klimb.gp(kernel, X, site)       a Gaussian process by kernel (klimb.kernels), with its hyperparameters
    klimb.series(kernel, t, site)   the same over time, at a cost linear in the data
    klimb.sparse_glm(X, y)          large and sparse linear models; klimb.sparse_linear: sparsity priors, images
    klimb.optimise, klimb.integrate hyperparameters at their best value, or integrated out
    klimb.scan, klimb.cache         files that need not fit in memory: which of their rows; as memory maps
    klimb.compare, klimb.load       several fits side by side; what was saved to a file
    klimb.trust(fit)                can this fit be believed? The complete report (fit.trust is the quick one)
    klimb.calibrate(model)          do credible intervals cover the truth? Simulate, fit, count
    klimb.infer(latent, site, y)    the engine
    klimb.latents, klimb.sites      its priors (Weights, Kernel, Inducing, ...) and likelihoods (Logistic, Poisson, ...)
    klimb.steps, klimb.methods      other step rules and baselines, same arguments, same Result
    klimb.priors, klimb.kernels     priors of coefficients and hyperparameters; covariance functions
    klimb.conjugate                 mixtures, topics, factorisations, hidden Markov models: declared networks
    klimb.boost(log_density, dim)   a mixture of Gaussians for any log density; klimb.bridges: from other packages
    klimb.active                    active learning: which data to label next, from the posterior itself
    klimb.sklearn                   estimators for scikit-learn (an extra)

The parts are imported when they are first used, so that ``import klimb`` costs next to nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from klimb import active as active
    from klimb import bridges as bridges
    from klimb import conjugate as conjugate
    from klimb import errors as errors
    from klimb import kernels as kernels
    from klimb import latents as latents
    from klimb import priors as priors
    from klimb import sites as sites
    from klimb import steps as steps
    from klimb.boosting import boost
    from klimb.infer import methods as methods
    from klimb.infer.loop import infer
    from klimb.models.calibrate import calibrate
    from klimb.models.compare import compare
    from klimb.models.door import fit
    from klimb.models.evidence import integrate, optimise
    from klimb.models.files import load
    from klimb.models.gp import gp, series
    from klimb.models.sparse import sparse_glm, sparse_linear
    from klimb.rows.scans import cache, scan
    from klimb.trust import trust

__version__ = "0.1.0"

# Where a public name lives if that is not the module klimb.<name> itself.
_HOME = {"boost": "boosting", "cache": "rows.scans", "calibrate": "models.calibrate", "compare": "models.compare",
         "fit": "models.door", "gp": "models.gp", "integrate": "models.evidence", "load": "models.files",
         "optimise": "models.evidence", "scan": "rows.scans", "series": "models.gp", "sparse_glm": "models.sparse",
         "sparse_linear": "models.sparse"}
__all__ = ["active", "boost", "bridges", "cache", "calibrate", "compare", "conjugate", "errors", "fit", "gp", "infer",
           "integrate", "kernels", "latents", "load", "methods", "optimise", "priors", "scan", "series", "sites",
           "sparse_glm", "sparse_linear", "steps", "trust"]


def __getattr__(name: str) -> Any:
    if name == "methods":
        return import_module("klimb.infer.methods")
    if name in _HOME:
        return getattr(import_module(f"klimb.{_HOME[name]}"), name)
    # klimb.infer and klimb.trust are packages and can be called: see klimb/_callable.py.
    if name in __all__ or name == "sklearn":  # not in __all__: it is an extra, and * must not need it
        return import_module(f"klimb.{name}")
    raise AttributeError(f"module 'klimb' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
