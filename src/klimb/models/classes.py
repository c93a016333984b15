"""Around `klimb.sites.Softmax`: one class against the rest to compare with, and covariances between classes.

    fits = one_vs_rest(klimb.gp(klimb.kernels.RBF(), X, klimb.sites.Logistic()), y)
    fits.probabilities(X_new)
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from klimb.errors import InputError
from klimb.infer.loop import infer
from klimb.infer.result import Result
from klimb.latents.base import Latent, Posterior, as_latent
from klimb.models.fit import Fit
from klimb.models.model import HyperMode, Model
from klimb.numerics.arrays import Array, ArrayLike
from klimb.sites.base import Site
from klimb.sites.classes import Softmax
from klimb.sites.counts import Logistic
from klimb.trust.coupled import joint_shocks


@dataclass(frozen=True, eq=False)
class OneVsRest:
    """One binary fit per class: ``fits`` are `Fit` of a model, or results of the engine.

    The probabilities of the classes are those of the binary fits, divided by their sum. That is a convention, not a
    likelihood of y, so there is no bound on the evidence: compare with `Softmax` by the log density of data left out.
    """

    fits: tuple[Fit | Result, ...]
    site: Site

    @property
    def converged(self) -> bool:
        return all(fit.converged for fit in self.fits)

    def predict(self, *inputs: Any) -> tuple[Array, Array]:
        """Means and variances of f at new inputs, one column per class; arguments as the latent's ``predict`` has."""
        pairs = []
        for fit in self.fits:
            latent: Any = fit.posterior.latent
            pairs.append(fit.latents(*inputs).moments() if isinstance(fit, Fit) else
                         latent.predict(fit.posterior, *inputs))
        return np.column_stack([m for m, _ in pairs]), np.column_stack([v for _, v in pairs])

    def probabilities(self, *inputs: Any) -> Array:
        """P(y = class) at new inputs, one column per class; rows sum to 1."""
        return np.exp(self._log_probabilities(*inputs))

    def log_density(self, y: ArrayLike, *inputs: Any) -> Array:
        """log P(y) of labels at new inputs."""
        labels = Softmax(len(self.fits)).validate(y).astype(np.intp)
        table = self._log_probabilities(*inputs)
        if labels.size not in (1, len(table)):
            raise InputError(f"y must have one label per new input ({len(table)})", f"{labels.size}", "Check both.")
        return table[np.arange(len(table)), np.broadcast_to(labels, (len(table),))]

    def _log_probabilities(self, *inputs: Any) -> Array:
        means, variances = self.predict(*inputs)
        ones = np.ones(len(means))
        columns = [self.site.predict(m, v).log_density(ones) for m, v in zip(means.T, variances.T, strict=True)]
        table = np.column_stack(columns)  # in logarithms: where every class is improbable, the ratios still count
        return np.asarray(table - np.logaddexp.reduce(table, axis=1, keepdims=True))


def one_vs_rest(model: Latent | Model, y: ArrayLike, *, site: Site | None = None, n_classes: int | None = None,
                hyper: HyperMode = "optimise", tol: float = 1e-6) -> OneVsRest:
    """Fit each class against all others.

    Parameters
    ----------
    model : Latent or Model
        A latent such as ``klimb.latents.Weights(X)``, or a Gaussian process with a binary likelihood, from `klimb.gp`.
    y : array
        Labels 0 .. C-1.
    site : Site
        A binary likelihood for a latent, `klimb.sites.Logistic` unless given. A model has its own.
    n_classes : int
        C; the largest label and one if it is left out.
    hyper : "optimise" or "fixed"
        What each model does with its hyperparameters.
    tol : float
        As in `klimb.infer`.

    Examples
    --------
    >>> import numpy as np, klimb
    >>> from klimb.models.classes import one_vs_rest
    >>> x = np.linspace(-3, 3, 30)
    >>> X, y = np.column_stack([np.ones(30), x]), np.digitize(x, [-1.0, 1.0])
    >>> fits = one_vs_rest(klimb.latents.Weights(X, cov=4.0), y)
    >>> fits.probabilities([[1.0, -2.5], [1.0, 2.5]]).argmax(axis=1), fits.converged
    (array([0, 2]), True)
    """
    if not isinstance(model, Model):
        as_latent(model, "model must be a latent or a Gaussian process", "Use klimb.gp(kernel, X, site).")
    binary = _binary_site(model, site)
    count = int(np.max(np.asarray(y, dtype=float), initial=1.0)) + 1 if n_classes is None else n_classes
    labels = Softmax(count).validate(y)
    return OneVsRest(tuple(
        model.fit(labels == c, hyper=hyper, tol=tol) if isinstance(model, Model) else
        infer(model, binary, labels == c, tol=tol) for c in range(count)), binary)


def _binary_site(model: Latent | Model, site: Site | None) -> Site:
    found = None if isinstance(model, Model) else site or Logistic()
    if isinstance(model, Model) and len(model.likelihood.fields) == 1 and not model.likelihood.parameters:
        found = model.new_site()
    if found is None or found.response != "classes" or len(found.labels()) != 2:
        raise InputError("one against the rest needs a binary site", repr(site if found is None else found),
                         "Use klimb.sites.Logistic() or Probit().")
    return found


def coupled_covariance(posterior: Posterior, site: Site, y: ArrayLike) -> Array:
    """The covariance of all weights, those of different classes together: KD x KD, class after class.

    A fit with `Softmax` takes the classes as independent, and the difference of two classes' weights is then too
    uncertain, by up to 40% in the cases we measured. This is one step of the fixed point without that restriction,
    (Sigma_w^-1 + sum_i W_i (x) x_i x_i')^-1 with W_i = E[diag(p) - p p'] under q: within 1% to 8% of the best
    Gaussian's. The sum of all classes' weights is not in the data and keeps its prior.

    Parameters
    ----------
    posterior : Posterior
        Of a fit whose latent is `klimb.latents.Outputs` of `Weights`.
    site, y
        Those of the fit.

    Examples
    --------
    >>> import numpy as np, klimb
    >>> from klimb.models.classes import coupled_covariance
    >>> latent = klimb.latents.Outputs.shared(klimb.latents.Weights(np.ones((400, 1)), cov=1e4), 2)
    >>> site, y = klimb.sites.Softmax(2), [0, 1] * 200
    >>> V = coupled_covariance(klimb.infer(latent, site, y).posterior, site, y)
    >>> round(float(V[0, 0] + V[1, 1] - 2 * V[0, 1]), 3)  # the log odds of 200 to 200: 1/200 + 1/200
    0.01
    """
    if site.n_outputs != posterior.latent.n_outputs:
        raise InputError("site must be the Softmax of the fit", repr(site), "Pass that site.")
    found = joint_shocks(site, site.validate(y), posterior)
    if found is None:
        raise InputError("a covariance between classes needs at most 24 of them, and klimb.latents.Outputs of Weights",
                         f"{site.n_outputs} classes of {type(posterior.latent.parts[0]).__name__}",
                         "For a Gaussian process, draw with fit.sample, or fit weights.")
    root = found[0].q.root
    return np.asarray(root @ root.T)
