"""Corrected marginals against long NUTS runs (`make_nuts.py`): six models, from nearly Gaussian to separable."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import klimb

sys.path.insert(0, str(Path(__file__).parent))

from nuts_problems import DF, NAMES, SCALE, problem

LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)

# sd of p / sd of q at its largest, the verdict, and how far quantiles of the corrected marginals may be off, in sd.
EXPECTED = {
    "nodal": (1.01, "trust", 0.02),
    "poisson": (1.06, "trust", 0.03),
    "student": (1.01, "trust", 0.02),
    "gp_classes": (1.06, "trust", 0.03),
    "cox": (1.04, "trust", 0.03),
    "separable": (1.22, "corrected", 0.05),
}


@pytest.fixture(scope="module")
def stored() -> dict[str, np.ndarray]:
    with np.load(Path(__file__).parent / "nuts.npz", allow_pickle=False) as file:
        return {key: file[key] for key in file.files}


def fitted(name: str, directory: Any = None) -> Any:
    spec = problem(name, directory)
    if spec is None:
        pytest.skip("the nodal data are missing: set KLIMB_DATA")
    sites = {"logistic": klimb.sites.Logistic(), "poisson": klimb.sites.Poisson(),
             "student": klimb.sites.StudentT(DF, SCALE)}
    latent = klimb.latents.Kernel(spec["K"]) if "K" in spec else klimb.latents.Weights(spec["X"], cov=spec["sd"] ** 2)
    return klimb.infer(latent, sites[spec["site"]], spec["y"])


@pytest.mark.parametrize("name", NAMES)
def test_against_nuts(name: str, stored: dict[str, np.ndarray]) -> None:
    result = fitted(name)
    mean, sd = stored[f"{name}_mean"], stored[f"{name}_sd"]
    q_sd = np.sqrt(np.diag(result.posterior.covariance()))
    ratio, verdict, quantile_error = EXPECTED[name]
    report = klimb.trust(result)
    exact = report.corrected
    # Means within 0.01 sd, beside what NUTS itself does not know.
    assert np.all(np.abs(exact.mean - mean) / sd < 0.01 + 2 * stored[f"{name}_mcse"])
    # q understates; the correction finds by how much.
    assert 1.0 < (sd / q_sd).max() < ratio
    assert np.abs(exact.sd / sd - 1).max() < 0.012
    assert np.abs(exact.sd / sd - 1).max() <= np.abs(q_sd / sd - 1).max() + 0.002  # the sds of NUTS are as uncertain
    assert np.abs(exact.skewness - stored[f"{name}_skewness"]).max() < 0.06
    assert (np.abs(exact.quantile(LEVELS) - stored[f"{name}_quantiles"]) / sd).max() < quantile_error
    assert report.verdict == verdict
    assert report.khat < 0.75


@pytest.mark.parametrize("name", ["poisson", "gp_classes", "separable"])
def test_the_default_report_agrees(name: str) -> None:
    """A few hundred draws say the same as sixteen thousand, within the errors they state."""
    result = fitted(name)
    quick, careful = result.trust, klimb.trust(result)
    assert quick.verdict in (careful.verdict, "trust") or abs(quick.number - careful.number) < 0.02
    gap = np.abs(quick.corrected.sd / careful.corrected.sd - 1)
    assert gap.max() < 0.03
    error = np.hypot(quick.log_evidence_error, careful.log_evidence_error)
    assert abs(quick.log_evidence - careful.log_evidence) < 4 * error + 1e-3


def test_references_are_good(stored: dict[str, np.ndarray]) -> None:
    for name in NAMES:
        assert stored[f"{name}_mcse"].max() < 0.005
        assert stored[f"{name}_rhat"] < 1.001
        assert stored[f"{name}_divergences"] == 0


@pytest.mark.parametrize("name", ["nodal", "student", "separable"])
def test_a_mixture_by_boosting_has_the_moments_of_nuts(name: str, stored: dict[str, np.ndarray]) -> None:
    """Where one Gaussian is 16% short of spread (separable), a mixture is not."""
    bridge = klimb.bridges.latent(fitted(name))
    w = bridge.parameters(bridge.boost().sample(20_000))["w"]
    mean, sd = stored[f"{name}_mean"], stored[f"{name}_sd"]
    assert np.abs((w.mean(0) - mean) / sd).max() < 0.04
    assert np.abs(w.std(0) / sd - 1).max() < 0.025
