"""Can a fit be believed? Importance weights of q against the exact posterior, corrected marginals, a verdict."""

from __future__ import annotations

from klimb._callable import make_callable
from klimb.errors import InputError
from klimb.infer.hyper import Optimum
from klimb.infer.result import Result
from klimb.trust.hyper import HyperTrust, hyper_trust
from klimb.trust.ladder import Ladder
from klimb.trust.marginals import Corrected
from klimb.trust.report import FULL_DRAWS, Trust, trust_report
from klimb.trust.sites import SignMap, SiteReport, sign_map
from klimb.trust.verdict import Verdict

__all__ = ["Corrected", "HyperTrust", "Ladder", "SignMap", "SiteReport", "Trust", "Verdict", "hyper_trust", "sign_map",
           "trust", "trust_report"]


def trust(fitted: Result | Optimum, *, draws: int = FULL_DRAWS, seed: int = 0) -> Trust | HyperTrust:
    """The complete trust report of a fit, or of hyperparameters chosen by `klimb.infer.evidence.optimise`.

    ``result.trust`` is the same for a `Result` with as many draws as cost a fraction of the fit.

    Examples
    --------
    >>> import numpy as np, klimb
    >>> y = np.array([0, 0, 1, 0, 0, 0, 0])
    >>> result = klimb.infer(klimb.latents.Weights(np.ones((7, 1)), cov=4.0), klimb.sites.Poisson(), y)
    >>> report = klimb.trust(result)
    >>> report.verdict, report.n_draws
    ('corrected', 16384)
    """
    if isinstance(fitted, Optimum):
        return hyper_trust(fitted)
    if not isinstance(fitted, Result):
        raise InputError("trust needs a Result or an Optimum", type(fitted).__name__, "Pass what klimb.infer returned.")
    return trust_report(fitted, draws=draws, seed=seed, complete=True)


make_callable(__name__, trust)
