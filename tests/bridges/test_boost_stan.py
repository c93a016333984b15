"""The Stan bridge: on compiled Stan programs where there are any, and what it does with names and rejections anywhere.

A compiled program is looked for as ``$KLIMB_STAN_MODELS/<name>_model.so``; else it is compiled by bridgestan, where its
sources and a C++ compiler are at hand ($BRIDGESTAN). The programs are in tests/references/stan.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import expit, gammaln

import klimb
from klimb.errors import InputError

PROGRAMS = Path(__file__).resolve().parents[1] / "references" / "stan"
Y = np.array([28.0, 8, -3, 7, -1, 1, 18, 12])
S = np.array([15.0, 10, 16, 11, 9, 11, 10, 18])


def compiled(name: str, data: dict[str, Any], folder: Path) -> Any:
    """A `bridgestan.StanModel`, or a skipped test that says what is missing."""
    bridgestan = pytest.importorskip("bridgestan", reason="the Stan bridge needs the package bridgestan")
    ready = Path(os.environ.get("KLIMB_STAN_MODELS", folder)) / f"{name}_model.so"
    if not ready.exists():
        if "BRIDGESTAN" not in os.environ or shutil.which("make") is None:
            pytest.skip(f"no {ready.name} in $KLIMB_STAN_MODELS, no BridgeStan sources in $BRIDGESTAN to compile it by")
        shutil.copy(PROGRAMS / f"{name}.stan", folder)
        ready = Path(bridgestan.compile_model(str(folder / f"{name}.stan")))
    return bridgestan.StanModel(str(ready), json.dumps(data), warn=False)


def test_the_evidence_of_counts_under_a_dirichlet(tmp_path: Path) -> None:
    n = np.array([3, 5, 10])
    bridge = klimb.bridges.stan(compiled("shares", {"K": 3, "n": n.tolist()}, tmp_path))
    q = bridge.boost()
    evidence = gammaln(n.sum() + 1) - gammaln(n + 1).sum() + gammaln(n + 2).sum() - gammaln((n + 2).sum()) + gammaln(6)
    assert q.bound == pytest.approx(evidence, abs=0.03)  # constants are kept
    p = bridge.parameters(q.sample(4000))["p"]
    assert p.shape == (4000, 3)
    np.testing.assert_allclose(p.sum(axis=1), 1.0)
    np.testing.assert_allclose(p.mean(axis=0), (n + 2) / (n + 2).sum(), atol=0.01)


def test_bounds_and_rejected_points(tmp_path: Path) -> None:
    y = np.array([1, 2, 3, 2])
    bridge = klimb.bridges.stan(compiled("bounded", {"n": 4, "y": y.tolist()}, tmp_path))
    assert bridge.log_density(np.array([np.log(60.0), 0.0])) == -np.inf
    u = np.array([0.3, -0.4])
    numeric = [(bridge.log_density(u + h) - bridge.log_density(u - h)) / 2e-6 for h in 1e-6 * np.eye(2)]
    np.testing.assert_allclose(bridge.gradient(u), numeric, atol=1e-6)
    q = bridge.boost()
    a, b = (axis.ravel() for axis in np.meshgrid(np.linspace(-5, np.log(50), 400), np.linspace(-9, 9, 400)))
    rate, shift = np.exp(a), -1 + 3 * expit(b)
    lam = rate * np.exp(shift)
    # Stan's normal(0, 1) on an interval is not cut off: its constant is that of the whole line
    log_p = np.log(rate) - rate - 0.5 * shift**2 - 0.5 * np.log(2 * np.pi) + y.sum() * np.log(lam) - 4 * lam \
        - gammaln(y + 1).sum() + a + np.log(3 * expit(b) * expit(-b))
    cell = (np.log(50) + 5) / 399 * 18 / 399
    mass = np.exp(log_p) * cell
    assert q.bound == pytest.approx(np.log(mass.sum()), abs=0.03)
    draws = bridge.parameters(q.sample(20_000))
    assert draws["rate"].mean() == pytest.approx(mass @ rate / mass.sum(), rel=0.03)
    assert draws["shift"].mean() == pytest.approx(mass @ shift / mass.sum(), abs=0.03)


def test_eight_schools(tmp_path: Path) -> None:
    bridge = klimb.bridges.stan(compiled("eight_schools", {"J": 8, "y": Y.tolist(), "sigma": S.tolist()}, tmp_path))
    q = bridge.boost(tol=0.03, n_components=4)
    mu, t = (axis.ravel() for axis in np.meshgrid(np.linspace(-20, 30, 300), np.linspace(-10, 6, 400)))
    tau = np.exp(t)
    # likewise the half-Cauchy: twice the density is not Stan's
    log_p = -(mu**2) / 50 - np.log(5) - 0.5 * np.log(2 * np.pi) - np.log(5 * np.pi) - np.log1p((tau / 5) ** 2) + t
    for y, s in zip(Y, S, strict=True):
        log_p = log_p - 0.5 * (y - mu) ** 2 / (tau**2 + s**2) - 0.5 * np.log(2 * np.pi * (tau**2 + s**2))
    mass = np.exp(log_p - log_p.max())
    assert q.bound == pytest.approx(np.log(mass.sum() * 50 / 299 * 16 / 399) + log_p.max(), abs=0.12)
    draws = bridge.parameters(q.sample(4000))
    assert draws["mu"].mean() == pytest.approx(mass @ mu / mass.sum(), abs=0.3)
    assert draws["theta"].shape == (4000, 8)
    np.testing.assert_allclose(draws["theta"], draws["mu"][:, None] + draws["tau"][:, None] * draws["z"])


class Program:
    """What the bridge asks of a `bridgestan.StanModel`, for a program that rejects points left of -1."""

    def param_unc_num(self) -> int:
        return 2

    def param_unc_names(self) -> list[str]:
        return ["x.1", "x.2"]

    def param_names(self, *, include_tp: bool) -> list[str]:
        return ["x.1", "x.2", "pair:1", "pair:2"][: 4 if include_tp else 2]

    def log_density(self, theta: np.ndarray, *, propto: bool) -> float:
        assert theta.flags.c_contiguous
        assert not propto
        if theta[0] < -30:
            raise RuntimeError("x must be above -30")
        return -0.5 * float(theta @ theta)

    def log_density_gradient(self, theta: np.ndarray, *, propto: bool) -> tuple[float, np.ndarray]:
        return self.log_density(theta, propto=propto), -theta

    def param_constrain(self, theta: np.ndarray, *, include_tp: bool) -> np.ndarray:
        return np.concatenate([theta, [1.0, 2.0]]) if include_tp else theta


def test_names_and_rejections_without_stan() -> None:
    bridge = klimb.bridges.stan(Program())
    q = bridge.boost()
    assert q.bound == pytest.approx(np.log(2 * np.pi), abs=1e-3)
    assert bridge.log_density(np.array([-40.0, 0.0])) == -np.inf
    draws = bridge.parameters(q.sample(5))
    assert {name: value.shape for name, value in draws.items()} == {"x": (5, 2), "pair:1": (5,), "pair:2": (5,)}
    assert list(klimb.bridges.stan(Program(), transformed=False).parameters(np.zeros(2))) == ["x"]


def test_what_is_not_a_stan_model_is_refused() -> None:
    with pytest.raises(InputError, match=r"bridgestan\.StanModel"):
        klimb.bridges.stan(3)
