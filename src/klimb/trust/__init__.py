"""Can a fit be believed? Importance weights of q against the exact posterior, corrected marginals, a verdict."""

from typing import Any

from klimb._callable import make_callable
from klimb.errors import InputError
from klimb.infer.result import Result
from klimb.trust.ladder import Ladder
from klimb.trust.marginals import Corrected
from klimb.trust.report import FULL_DRAWS, Trust, trust_report
from klimb.trust.sites import SignMap, SiteReport, sign_map
from klimb.trust.verdict import Verdict

__all__ = ["Corrected", "Ladder", "SignMap", "SiteReport", "Trust", "Verdict", "sign_map", "trust", "trust_report"]


def trust(fitted: Any, *, draws: int = FULL_DRAWS, seed: int = 0) -> Any:
    """The complete trust report of a `Result` (a `Trust`), or of a fit, whose hyperparameters are judged too.

    ``result.trust`` and ``fit.trust`` are the same with as many draws as cost a fraction of the fit.

    Examples
    --------
    >>> import numpy as np, klimb
    >>> y = np.array([0, 0, 1, 0, 0, 0, 0])
    >>> result = klimb.infer(klimb.latents.Weights(np.ones((7, 1)), cov=4.0), klimb.sites.Poisson(), y)
    >>> report = klimb.trust(result)
    >>> report.verdict, report.n_draws
    ('corrected', 16384)
    """
    if isinstance(fitted, Result):
        return trust_report(fitted, draws=draws, seed=seed, complete=True)
    judged = getattr(fitted, "judged", None)  # fits stand above this room: they say themselves how they are judged
    if judged is None:
        raise InputError("trust needs a Result or a fit", type(fitted).__name__,
                         "Pass what klimb.infer, klimb.fit or model.fit returned.")
    return judged(draws=draws, seed=seed)


make_callable(__name__, trust)
