"""Hyperparameters by the evidence: at their best value, or integrated out.

    fit = klimb.optimise(model, y, restarts=3)      # model.fit(y) with more to choose
    fit = klimb.integrate(model, y)
"""

from typing import Any

from klimb.errors import require
from klimb.models.fit import Fit
from klimb.models.model import HyperMode, Listen, Model
from klimb.models.solution import solve


def optimise(model: Model, y: Any, *, weights: Any = None, tol: float = 1e-2, max_iter: int = 200, restarts: int = 0,
             seed: int = 0, callback: Listen | None = None) -> Fit:
    """Maximise the evidence lower bound (plus log prior) over the hyperparameters.

    A quasi-Newton climb on the converged bound, whose gradient costs one inverse more: at the optimum over q the bound
    changes with a hyperparameter as if q were fixed. Each fit starts from the sites of the previous one.

    Parameters
    ----------
    model : Model
        For instance ``klimb.gp(kernel, X, site)``; the search starts at its present hyperparameters.
    y : array
    weights : array
        How often each datum counts.
    tol : float
        Stop when no entry of the gradient (nats per unit of theta, mostly logs) is larger: at 0.01 the bound is within
        some 1e-5 nats of its best.
    max_iter : int
        Most iterations, per start.
    restarts : int
        More starts, drawn around the first (standard deviation 1 in theta) with ``seed``; the best end counts.
    callback : function of a `Progress`
        Called after every fit; returning False stops the work.
    """
    return _fitted(model, y, weights, "optimise", search_tol=tol, search_iter=max_iter, restarts=restarts, seed=seed,
                   listen=callback, spread=False)


def integrate(model: Model, y: Any, *, weights: Any = None, tol: float = 1e-2, max_iter: int = 200, restarts: int = 0,
              seed: int = 0, callback: Listen | None = None) -> Fit:
    """Integrate the hyperparameters out instead of choosing them.

    From the best ones, found as by `optimise`, and the curvature of the bound there: one or two hyperparameters get a
    lattice, cut where the objective has fallen off, more are sampled with importance weights. The objective is bound
    plus log prior, with the gain of the exact evidence over the bound where that can be estimated.
    """
    return _fitted(model, y, weights, "integrate", search_tol=tol, search_iter=max_iter, restarts=restarts, seed=seed,
                   listen=callback)


def _fitted(model: Model, y: Any, weights: Any, hyper: HyperMode, **options: Any) -> Fit:
    require(isinstance(model, Model), "this needs a model of klimb", type(model).__name__,
            "klimb.gp(kernel, X, site) makes one; fit.model is that of a fit.")
    data = model.read(y, weights)
    ready = model.ready(data)
    require(ready.theta.size != 0, "the model needs free hyperparameters", "none",
            'Free a parameter, or call model.fit(y, hyper="fixed").')
    return Fit.of(solve(ready, data, hyper=hyper, **options), data)
