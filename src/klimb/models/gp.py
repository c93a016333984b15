"""The doors to Gaussian processes: `gp` by kernel, and `series` over time at a cost linear in the data.

    fit = klimb.gp(klimb.kernels.RBF(), X, "bernoulli").fit(y)      # hyperparameters at their best value
    fit.predict(X_new)                                              # mean of y; kind="latent": f; kind="response": y
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import numpy as np

from klimb.errors import InputError, require
from klimb.kernels import Kernel as Covariance
from klimb.kernels.inducing_points import choose_inducing, explaining_points
from klimb.kernels.means import Mean, ZeroMean
from klimb.likelihoods import Likelihood, from_site, likelihood
from klimb.models.kernel import Form, KernelModel, as_inputs, check_fields, markov_terms, single
from klimb.models.kernel_blocks import KernelBlock, MeanBlock, Points
from klimb.numerics.arrays import Array, ArrayLike
from klimb.sites.base import Site

INDUCING_JITTER = 1e-8  # of the mean prior variance, on the diagonal of Kuu: noise on the inducing values themselves


def gp(kernel: Covariance | Sequence[Covariance], X: ArrayLike, site: Site | Likelihood | str | None = None, *,
       mean: Mean | None = None, inducing: int | Literal["auto"] | ArrayLike | None = None,
       learn: str | tuple[str, ...] = (), jitter: float | None = None) -> KernelModel:
    """A Gaussian process model: prior by kernel at the inputs ``X``, likelihood by ``site``.

    Parameters
    ----------
    kernel : klimb.kernels.Kernel
        With several latent values per datum (`klimb.sites.Softmax`), one kernel for all, or a list with one for each.
    X : (n, d) array
        A 1-d array counts as one column.
    site : Site, or the name of a likelihood
        A site, such as ``klimb.sites.Poisson()``, with its parameters fixed except those to ``learn``; or a name, such
        as "poisson" or "student_t(df=4)", whose other parameters are learnt under their default priors. Measurements
        with normal noise, "gaussian", if it is left out.
    mean : klimb.kernels.means.Mean
        Zero unless given.
    inducing : int, (M, d) array or "auto"
        Inducing points, or how many to choose (`klimb.kernels.choose_inducing`), or as many (up to 500) as leave
        errors of about a tenth of an sd at the hyperparameters found; the full Gaussian process if it is left out.
    learn : names of parameters of the site
        Those that a fit may change, such as "scale", with a prior that is flat in their logarithm.
    jitter : float
        Share of the mean prior variance added to the diagonal of K (default 0) or of Kuu (default 1e-8).

    Examples
    --------
    >>> import numpy as np, klimb
    >>> x = np.linspace(0, 6, 40)
    >>> y = np.sin(x) > 0
    >>> model = klimb.gp(klimb.kernels.RBF(lengthscale=1.0, variance=4.0), x, klimb.sites.Logistic())
    >>> fit = model.fit(y)
    >>> fit.converged, bool(fit.bound > model.fit(y, hyper="fixed").bound)
    (True, True)
    >>> fit.predict([1.5, 4.5])["mean"].round(1)
    array([1., 0.])
    >>> three = klimb.gp(klimb.kernels.RBF(variance=4.0), x, klimb.sites.Softmax(3))
    >>> found = three.fit(np.digitize(np.sin(x), [-0.5, 0.5]), hyper="fixed").predict([0.0, 1.5, 4.7])
    >>> sorted(found), found["P(1)"].round(2)
    (['P(0)', 'P(1)', 'P(2)'], array([0.79, 0.03, 0.03]))
    """
    inputs, family = as_inputs(X, "X"), _likelihood(site, learn)
    kernels = list(kernel) if isinstance(kernel, Sequence) else [kernel]
    function: Any = ZeroMean() if mean is None else mean
    require(isinstance(function, Mean), "mean must be a klimb mean function", repr(mean),
            "Use klimb.kernels.means.ConstantMean(), say.")
    for one in kernels:
        if not isinstance(one, Covariance):
            raise InputError("kernel must be a klimb kernel", repr(one), "Use klimb.kernels.RBF(), say.")
        one.diag(inputs[:1])  # refuses inputs of the wrong width
    function(inputs[:1])
    if isinstance(kernel, Sequence) and family.fields:  # classes by name are known with the data
        check_fields(len(kernels), len(family.fields), least=len(family.fields))
    points = _points(kernels[0], inputs, inducing)
    share = jitter if jitter is not None else (0.0 if points is None else INDUCING_JITTER)
    if not 0.0 <= share < np.inf:
        raise InputError("jitter must be at least 0", f"{share}", "It is a share of the prior variance, such as 1e-8.")
    return _model(kernels, inputs, family, function, points, float(share), "Kernel" if points is None else "Inducing",
                  automatic=isinstance(inducing, str))


def series(kernel: Covariance, times: ArrayLike, site: Site | Likelihood | str | None = None, *,
           mean: Mean | None = None, learn: str | tuple[str, ...] = ()) -> KernelModel:
    """A Gaussian process over time: `gp` with a Matern kernel and one input, at a cost linear in the data.

    Parameters
    ----------
    kernel : klimb.kernels.Matern12, Matern32, Matern52 or a sum of them
    times : (n,) array
        In any order, repeated or not.
    site, mean, learn
        As for `klimb.gp`.

    Examples
    --------
    >>> import numpy as np, klimb
    >>> t = np.linspace(0, 20, 400)
    >>> y = np.random.default_rng(0).poisson(np.exp(np.sin(t)))
    >>> model = klimb.series(klimb.kernels.Matern52(variance=1.0, lengthscale=1.0), t, klimb.sites.Poisson())
    >>> fit = model.fit(y)
    >>> fit.converged, bool(fit.bound > model.fit(y, hyper="fixed").bound)
    (True, True)
    >>> f = fit.predict([np.pi / 2, 40.0], kind="latent")
    >>> bool(abs(f["mean"][0] - 1.0) < 3 * f["sd"][0]), bool(f["sd"][1] > 3 * f["sd"][0])
    (True, True)
    """
    model = single(gp(kernel, times, site, mean=mean, learn=learn),
                   "Use klimb.latents.Outputs.shared(klimb.latents.Markov(times), C) for several classes.")
    if model.X.shape[1] != 1:
        raise InputError("times must have one dimension", f"shape {model.X.shape}", "Use klimb.gp for more inputs.")
    markov_terms(model.kernel)
    return model.with_blocks(form="Markov")


def _model(kernels: Sequence[Covariance], X: Array, family: Likelihood, mean: Mean, Z: Array | None, jitter: float,
           form: Form, automatic: bool) -> KernelModel:
    prefixes = [f"{c}: " for c in range(len(kernels))] if len(kernels) > 1 else [""]
    kernel_blocks = tuple(KernelBlock(kernel, prefix) for kernel, prefix in zip(kernels, prefixes, strict=True))
    means = tuple(MeanBlock(mean, prefix) for prefix in prefixes)
    points = None if Z is None else Points.among(X, Z)
    return KernelModel(kernel_blocks, means, X, family, np.zeros(0), points, jitter, form,
                       automatic).with_blocks()


def _likelihood(site: Any, learn: str | tuple[str, ...]) -> Likelihood:
    """The likelihood, with the parameters of a site that may be learnt."""
    names = (learn,) if isinstance(learn, str) else tuple(learn)
    if isinstance(site, Site):
        if names and not site.separable:
            raise InputError(f"{type(site).__name__} has no parameters to learn", repr(names[0]), "Leave learn out.")
        return from_site(site, names)
    if names:
        raise InputError("learn names parameters of a site", f"learn={names[0]!r} for {site!r}",
                         "A likelihood by name learns its parameters; pass a site, such as klimb.sites.Gaussian(1.0).")
    return likelihood("gaussian" if site is None else site)


def _points(kernel: Covariance, X: Array, inducing: Any) -> Array | None:
    """The inducing points that were asked for."""
    if inducing is None:
        return None
    count = isinstance(inducing, int | np.integer) and not isinstance(inducing, bool)
    if count or isinstance(inducing, str):
        require(count or inducing == "auto", 'inducing must be a number, points or "auto"', repr(inducing),
                "Say how many, or where.")
        choose: Any = partial(choose_inducing, count=int(inducing)) if count else explaining_points
        # One that is far too smooth for the inputs asks for too few; a search will leave it.
        return max((choose(one, X) for one in (kernel, kernel.typical(X))), key=len)  # type: ignore[no-any-return]
    points = as_inputs(inducing, "inducing")
    require(len(points) <= len(X) and points.shape[1] == X.shape[1],
            f"inducing must be at most {len(X)} points with {X.shape[1]} columns", f"shape {points.shape}",
            "Leave it out for the full Gaussian process.")
    return points
