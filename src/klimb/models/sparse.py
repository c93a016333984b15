"""Large and sparse linear models in one call.

    sparse_linear    y = X u + noise, and a sparsity prior on u or on an analysis of it (gradients, wavelets)
    sparse_glm       any likelihood of X u, with a Gaussian or a sparsity prior on u

Both build a model of sites, look at what the engines would cost (`Plan`), fit it, and return a `SparseFit`.
"""

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import numpy as np

from klimb.errors import InputError, require
from klimb.infer.loop import infer
from klimb.infer.matrixfree.inner import Bound, site_for
from klimb.infer.matrixfree.outer import DoubleLoop
from klimb.latents.costs import Shape
from klimb.latents.implicit import Implicit
from klimb.latents.weights import Weights
from klimb.linalg.operators import BlockedOperator, DenseOperator, Operator, SparseOperator, as_operator
from klimb.models.plan import Plan, engine_plan
from klimb.models.sparse_fit import SparseFit, identity, sparse_fit, with_intercept
from klimb.numerics.arrays import Array, as_float
from klimb.sites.base import Site
from klimb.sites.counts import Logistic
from klimb.sites.local import ExponentialPower, Sech2
from klimb.sites.real import Gaussian, Laplace, StudentT
from klimb.sites.stack import Stack

Engine: TypeAlias = Literal["auto", "primal", "dual", "double loop"]

MEMORY = 8e9  # bytes that a fit may take unless told otherwise
INTERCEPT = 10.0  # prior standard deviation of the intercept, in units of the link
PRIORS: dict[str, Callable[[Any, float, float], Site]] = {  # of a scale, degrees of freedom and an exponent
    "laplace": lambda scale, df, power: Laplace(scale), "student": lambda scale, df, power: StudentT(df, scale),
    "power": lambda scale, df, power: ExponentialPower(scale, power), "sech2": lambda scale, df, power: Sech2(scale)}

__all__ = ["Plan", "SparseFit", "plan_for", "sparse_glm", "sparse_linear"]


def sparse_glm(X: Any, y: Any, *, site: Site | None = None, prior: Any = "gaussian", scale: Any = 1.0, df: float = 3.0,
               power: float = 0.5, intercept: bool = True, bound: Bound = "auto", engine: Engine = "auto",
               variances: str = "auto", accuracy: float = 0.01, tol: float = 1e-6, max_outer: int = 200,
               memory: float = MEMORY, seed: int = 0, explain: bool = False) -> SparseFit:
    """Fit a generalised linear model with many rows or columns: y ~ site(intercept + X u).

    Parameters
    ----------
    X : (N, D) array, scipy.sparse matrix or LinearOperator
        Or `klimb.linalg.operators.BlockedOperator`: blocks of rows that are read again for every product.
    y : array
        What the site takes; labels for the default, `klimb.sites.Logistic`.
    site : Site
        The likelihood.
    prior : "gaussian", "laplace", "student", "power", "sech2" or a Site
        Of each coefficient. A site is used as a density of the coefficient around 0.
    scale : number or (D,) array
        Of that prior: the standard deviation of a Gaussian (its square is the C of scikit-learn's l2 penalty), the
        scale of a Laplace (the C of its l1 penalty).
    df, power : float
        Degrees of freedom of "student", exponent of "power".
    intercept : bool
        Add a column of ones, whose coefficient has a normal prior with a standard deviation of 10.
    bound, variances, accuracy, max_outer, seed
        As in `klimb.steps.DoubleLoop`.
    engine : "auto", "primal", "dual" or "double loop"
        Factorise D x D or N x N matrices (`klimb.latents.Weights`), or multiply only (`klimb.latents.Implicit`); "auto"
        compares their costs.
    memory : float
        Bytes that the fit may take. It is refused, with the number, where no engine fits.
    explain : bool
        Print the `Plan` first: what each engine costs in flops, seconds and bytes, and the choice. `plan_for`
        makes one without fitting.

    Examples
    --------
    >>> import numpy as np, scipy.sparse, klimb
    >>> rng = np.random.default_rng(0)
    >>> X = scipy.sparse.random(300, 40, density=0.2, random_state=0, format="csr")
    >>> y = X @ np.r_[4.0, -4.0, np.zeros(38)] + 0.3 * rng.standard_normal(300) > 0.0
    >>> fit = klimb.sparse_glm(X, y, prior="laplace", scale=0.5)
    >>> np.flatnonzero(np.abs(fit.coef) > 3 * fit.coef_sd)
    array([0, 1])
    >>> fit.predict(X[:2])["mean"].shape
    (2,)
    """
    design = with_intercept(X, "X", intercept)
    D = design.shape[1] - intercept
    likelihood = Logistic() if site is None else site
    if not isinstance(likelihood, Site):
        raise InputError("site must be a klimb site", repr(site), "Use an instance such as klimb.sites.Logistic().")
    gaussian = isinstance(prior, str) and prior == "gaussian"
    chosen = _planned(design, engine, memory, exact=gaussian, accuracy=accuracy)
    if explain:
        print(chosen)
    target = likelihood.validate(y)
    if gaussian:
        deviations = _positive(scale, D, "scale")
        cov = np.append(deviations**2, [INTERCEPT**2] * intercept)
        if chosen.choice != "double loop":
            latent = Weights(design.explicit, cov=cov, form="dual" if chosen.choice == "dual" else "primal")
            result = infer(latent, site_for(likelihood, bound), target, tol=tol)
            return sparse_fit(result, chosen, likelihood, design, intercept, target)
        model, whole = Implicit(design, cov=cov), likelihood
    else:
        penalty = _prior_site(prior, scale, df, power, D)
        cov = np.append(np.full(D, np.inf), [INTERCEPT**2] * intercept)
        model = Implicit([design, identity(D, intercept)], cov=cov)
        whole, target = _stacked([(likelihood, target), (penalty, np.zeros(D))])
    step = DoubleLoop(bound, variances, accuracy, max_outer, seed)
    result = infer(model, whole, target, step=step, tol=tol)
    return sparse_fit(result, chosen, likelihood, design, intercept, target[: design.shape[0]])


def sparse_linear(X: Any, y: Any, *, noise: Any, prior: Any = "laplace", scale: Any = 1.0, analysis: Any = None,
                  df: float = 3.0, power: float = 0.5, bound: Bound = "auto", variances: str = "auto",
                  accuracy: float = 0.01, tol: float = 1e-6, max_outer: int = 200, memory: float = MEMORY,
                  seed: int = 0) -> SparseFit:
    """Fit y = X u + noise with a sparsity prior on u, or on an analysis of u.

    Parameters
    ----------
    X : (M, D) array, scipy.sparse matrix or LinearOperator
        What was measured: a design, a blur, a partial Fourier transform. Complex ones become pairs of real rows.
    y : array
        The measurements.
    noise : number or array
        Their standard deviation.
    analysis : operator or list of operators
        What should be sparse: gradients, wavelets, several of them. The identity unless given.
    prior, scale, df, power
        As in `sparse_glm`, without "gaussian"; lists where ``analysis`` is one. The scale is that of ``analysis @ u``.
    bound, variances, accuracy, max_outer, seed
        As in `klimb.steps.DoubleLoop`.
    memory : float
        Bytes that the fit may take.

    Notes
    -----
    Weights have no other prior: what neither the measurements nor the analysis determine makes the posterior improper,
    which is refused.

    Examples
    --------
    >>> import numpy as np, klimb
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((60, 100))
    >>> y = 3 * X[:, 7] - 2 * X[:, 30] + 0.1 * rng.standard_normal(60)
    >>> fit = klimb.sparse_linear(X, y, noise=0.1, scale=0.05)
    >>> np.flatnonzero(np.abs(fit.coef) > 4 * fit.coef_sd)
    array([ 7, 30])
    """
    data = as_operator(X, "X")
    D = data.shape[1]
    several = isinstance(analysis, (list, tuple))
    parts = list(analysis) if several else [identity(D, False) if analysis is None else analysis]
    operators = [as_operator(part, f"analysis[{k}]" if several else "analysis") for k, part in enumerate(parts)]
    priors, scales = (_each(value, len(parts), several, name) for value, name in ((prior, "prior"), (scale, "scale")))
    sites = [(_prior_site(p, s, df, power, operator.shape[0]), np.zeros(operator.shape[0]))
             for p, s, operator in zip(priors, scales, operators, strict=True)]
    whole, target = _stacked(sites)
    chosen = _planned(as_operator([data, *operators], "X with the analysis"), "double loop", memory, exact=False,
                      accuracy=accuracy)
    model = Implicit(operators if len(operators) > 1 else operators[0], X=data, y=y, noise=noise, cov=None)
    step = DoubleLoop(bound, variances, accuracy, max_outer, seed)
    result = infer(model, whole, target, step=step, tol=tol)
    return sparse_fit(result, chosen, Gaussian(noise if np.ndim(noise) == 0 else float(np.mean(noise))), data, False)


def plan_for(X: Any, *, prior: Any = "gaussian", engine: Engine = "auto", memory: float = MEMORY,
             accuracy: float = 0.01) -> Plan:
    """What `sparse_glm` would do with this design: the engines, their flops, seconds and bytes, and the choice.

    >>> import scipy.sparse
    >>> X = scipy.sparse.kron(scipy.sparse.eye(4000), np.ones((5, 2)), format="csr")  # 20,000 x 8,000
    >>> plan_for(X).choice, plan_for(X[:500]).choice
    ('double loop', 'dual')
    """
    return _planned(as_operator(X, "X"), engine, memory, exact=isinstance(prior, str) and prior == "gaussian",
                    accuracy=accuracy)


def _planned(design: Operator, engine: Engine, memory: float, *, exact: bool, accuracy: float) -> Plan:
    if engine not in ("auto", "primal", "dual", "double loop"):
        raise InputError('engine must be "auto", "primal", "dual" or "double loop"', repr(engine), "Leave it out.")
    stored = design.explicit is not None
    if engine in ("primal", "dual") and not (exact and stored):
        raise InputError(f"the {engine} engine needs a stored X and a Gaussian prior",
                         "an operator" if exact else "another prior", 'Leave engine out.')
    shape = Shape(*design.shape, _nonzeros(design), dense=isinstance(design, DenseOperator), memory=memory)
    return engine_plan(shape, None if engine == "auto" else engine, exact_engines=exact and stored, accuracy=accuracy)


def _nonzeros(operator: Operator) -> int:
    """Numbers that a product goes through; for a function, as for a fast transform."""
    if isinstance(operator, SparseOperator):
        return int(operator.matrix.nnz)
    if isinstance(operator, DenseOperator):
        return int(operator.matrix.size)
    if isinstance(operator, BlockedOperator):
        return int(operator.nnz)
    parts = getattr(operator, "parts", None)
    if parts is not None:
        return sum(_nonzeros(part) for part in parts)
    size = sum(operator.shape)
    return int(8 * size * np.log2(size + 1))


def _prior_site(prior: Any, scale: Any, df: float, power: float, count: int) -> Site:
    """The density of ``count`` coefficients around zero."""
    if isinstance(prior, Site):
        prior.check_length(count)
        return prior
    require(prior in PRIORS, f"prior must be one of {', '.join(PRIORS)}, a site, or (sparse_glm only) gaussian",
            repr(prior), "Laplace is the l1 penalty as a distribution.")
    values = _positive(scale, count, "scale")
    width: Any = float(scale) if np.ndim(scale) == 0 else values
    return PRIORS[prior](width, df, power)


def _stacked(parts: list[tuple[Site, Array]]) -> tuple[Site, Array]:
    if len(parts) == 1:
        return parts[0]
    return Stack([(site, len(y)) for site, y in parts]), np.concatenate([y for _, y in parts])


def _each(value: Any, count: int, several: bool, name: str) -> list[Any]:
    """One value for each analysis operator: a list of them, or the same for all."""
    if not several or not isinstance(value, (list, tuple)):
        return [value] * count
    require(len(value) == count, f"{name} must be one value or one for each of the {count} analysis operators",
            len(value), "Write them in the order of analysis.")
    return list(value)


def _positive(scale: Any, count: int, name: str) -> Array:
    values = as_float(scale, name)
    require(values.ndim <= 1 and (values.ndim != 1 or len(values) == count),
            f"{name} must be a number or one per coefficient ({count})", f"shape {values.shape}", "Pass a 1-d array.")
    if not (values > 0.0).all():
        bad = int(np.flatnonzero(np.atleast_1d(values) <= 0.0)[0])
        raise InputError(f"{name} must be positive", f"{np.atleast_1d(values)[bad]:.6g} at index {bad}",
                         "It is the width of the prior.")
    return np.broadcast_to(values, (count,)).copy()
