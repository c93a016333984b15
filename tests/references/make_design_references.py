"""BALD of the logistic and the probit site with 60 digits: python tests/references/make_design_references.py."""

from __future__ import annotations

import json
from pathlib import Path

import mpmath as mp

mp.mp.dps = 60
LINKS = {
    "logistic": (lambda f: 1 / (1 + mp.exp(-f)), lambda f: 1 / (1 + mp.exp(f))),
    "probit": (lambda f: mp.erfc(-f / mp.sqrt(2)) / 2, lambda f: mp.erfc(f / mp.sqrt(2)) / 2),
}
CASES = {
    "logistic": [(m, v) for m in (0.0, -2.5, 30.0) for v in (1e-12, 1e-6, 0.019, 0.021, 0.7, 9.0, 1e3, 1e6)],
    "probit": [(0.0, 1e-12), (0.5, 1e-4), (-2.0, 1.0), (1.0, 400.0), (-6.0, 0.3), (-12.0, 1e-8)],
}


def bald(m: float, v: float, link: str) -> mp.mpf:
    """E KL(p(.|s) || E p(.|s)): a mean of what is never negative, so nothing cancels."""
    centre, s = mp.mpf(m), mp.sqrt(mp.mpf(v))
    up, down = LINKS[link]
    inner = [float((k - m) / s) for k in (-40, -12, -4, -1, 0, 1, 4, 12, 40)]
    breaks = sorted({-14.0, -7.0, -3.0, 0.0, 3.0, 7.0, 14.0, *(x for x in inner if abs(x) < 14)})

    def mean(g):
        return mp.quad(lambda z: g(centre + s * z) * mp.npdf(z), breaks)

    p, q = mean(up), mean(down)
    return mean(lambda f: up(f) * mp.log(up(f) / p) + down(f) * mp.log(down(f) / q))


if __name__ == "__main__":
    rows = [{"link": link, "m": m, "v": v, "bald": mp.nstr(bald(m, v, link), 17)}
            for link, cases in CASES.items() for m, v in cases]
    path = Path(__file__).with_name("design_bald.json")
    path.write_text(json.dumps(rows, indent=0) + "\n", encoding="utf-8")
