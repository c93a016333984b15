"""``python -m klimb.demo``: a logistic regression on the bundled table, as a summary and a one-page report."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import klimb
from klimb.demo.data import load_summit
from klimb.demo.report import page
from klimb.demo.summary import Summary, summarise
from klimb.latents import Weights
from klimb.sites import Logistic

TITLE = "Who reaches the summit?"
STORY = ("Bayesian logistic regression of 200 invented attempts at a mountain on wind, days of acclimatisation, size of"
         " the party and hour of the start, each standardised. Prior sd: 5 for the intercept, 2.5 for other weights.")


def fit_summit() -> Summary:
    """The example fit: from the bundled table to its summary."""
    table = load_summit()
    names, design = table.design()
    prior_variance = np.array([25.0] + [6.25] * len(table.names))
    result = klimb.infer(Weights(design, cov=prior_variance), Logistic(), table.y)
    return summarise(names, result.posterior.mean, result.posterior.covariance(), bound=result.bound,
                     n_iter=result.n_iter, status=result.status.name.lower(), advice=result.status.advice,
                     bounds=tuple(result.history.bound))


def main(arguments: list[str] | None = None) -> None:
    """Print the summary; write the report where ``--report`` says."""
    parser = argparse.ArgumentParser(prog="python -m klimb.demo", description=__doc__)
    parser.add_argument("--report", type=Path, metavar="FILE", help="write the one-page HTML report here")
    report = parser.parse_args(arguments).report
    summary = fit_summit()
    print(f"{TITLE}\n\n{summary.text()}")
    if report is not None:
        report.write_text(page(TITLE, STORY, summary), encoding="utf-8")
        print(f"report      {report}")


if __name__ == "__main__":
    main()
