"""Means and sds of posteriordb's reference posteriors, for every model there that is a latent Gaussian one."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from benchmarks.posteriordb import compare

DIRECTORY = Path(os.environ.get("KLIMB_POSTERIORDB", Path(__file__).resolve().parents[2].parent / "shared/posteriordb"))

# (largest error of a mean in sd, of an sd, verdict on holding the hyperparameters at their best). The references are
# 10,000 draws, so their own error is about 0.01 sd in a mean and 0.7% in an sd.
EXPECTED = {
    "arK-arK": (0.03, 0.02, "trust"),
    "diamonds-diamonds": (0.04, 0.02, "trust"),
    "earnings-logearn_interaction": (0.03, 0.025, "trust"),
    "eight_schools-eight_schools_noncentered": (0.08, 0.04, "doubt"),
    "gp_pois_regr-gp_pois_regr": (0.04, 0.05, "corrected"),
    "gp_pois_regr-gp_regr": (0.06, 0.03, "corrected"),
    "kidiq-kidscore_interaction": (0.03, 0.02, "trust"),
    "kidiq-kidscore_momiq": (0.03, 0.02, "trust"),
    "kilpisjarvi_mod-kilpisjarvi": (0.03, 0.035, "trust"),
    "mesquite-logmesquite": (0.03, 0.02, "trust"),
    "nes1972-nes": (0.03, 0.02, "trust"),
    "sblrc-blr": (0.03, 0.02, "trust"),
    "sblri-blr": (0.03, 0.02, "trust"),
}


@pytest.mark.data
@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_reference_posterior(name: str) -> None:
    path = DIRECTORY / f"{name}.npz"
    if not path.is_file():
        pytest.skip(f"no {path}: set KLIMB_POSTERIORDB to run this test")
    found = compare(path)
    assert found is not None
    mean_error, sd_error, verdict = EXPECTED[name]
    assert np.abs(found.mean_error).max() < mean_error
    assert np.abs(found.sd_ratio - 1).max() < sd_error
    assert np.abs(found.corrected_ratio - 1).max() < max(sd_error, 0.03)
    assert found.trust.verdict == verdict
