"""Can a fit be believed? Importance weights of q against the exact posterior, corrected marginals, a verdict."""

from klimb.infer.trust.ladder import Ladder
from klimb.infer.trust.marginals import Corrected
from klimb.infer.trust.report import Trust, trust_report
from klimb.infer.trust.sites import SignMap, SiteReport, sign_map
from klimb.infer.trust.verdict import Verdict

__all__ = ["Corrected", "Ladder", "SignMap", "SiteReport", "Trust", "Verdict", "sign_map", "trust_report"]
