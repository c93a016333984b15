"""A fit as JSON: the schema ``klimb.fit/1``, described in docs/command-line.md."""

from __future__ import annotations

from typing import Any

FIT_SCHEMA = "klimb.fit/1"


def fit_json(fit: Any) -> dict[str, Any]:
    """The table and the verdict; numbers in full precision, null where there is none."""
    import klimb
    from klimb.models.reporting import family_words
    from klimb.report.records import to_json

    loo, trust = fit.loo(), fit.trust_summary
    return {
        "schema": FIT_SCHEMA,
        "klimb": klimb.__version__,
        "formula": fit.formula,
        "family": family_words(fit),
        "interval": fit.interval,
        "rows": fit.n,
        "dropped": fit.observed.dropped,
        "coefficients": to_json(fit.coefficient_rows()),
        "parameters": to_json(fit.parameter_rows()),
        "priors": dict(fit.priors),
        "bound": to_json(fit.bound),
        "converged": fit.converged,
        "status": fit.status.name.lower(),
        "advice": fit.status.advice,
        "loo": to_json({"elpd": loo.elpd, "se": loo.se, "failed": loo.failed}),
        "trust": to_json({"verdict": trust.verdict, "number": trust.number, "measures": trust.headline,
                          "advice": trust.advice}),
        "checks": fit.checks.to_dict(),
        "notes": list(fit.notes),
    }
