"""Makes the screenshots of the report: ``python docs/images/make_screenshots.py [checks]`` (needs chromium and Pillow).

The page is that of ``klimb demo``; light and dark as a desktop shows it, narrow as a phone does, and printed.
``checks`` makes the picture of docs/checks.md alone.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

import klimb
from klimb.demo.run import run
from klimb.report.page import page

HERE = Path(__file__).resolve().parent
LARGEST = 150_000  # bytes of a picture
FRAME = """<!doctype html><style>body{{margin:0;background:#8a949b}}iframe{{border:0;width:390px;height:{height}px;
display:block}}</style><iframe src="report.html"></iframe>"""


def browser(*arguments: str) -> None:
    """Chromium without a window."""
    program = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")
    if program is None:
        raise SystemExit("make_screenshots needs chromium")
    subprocess.run([program, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", *arguments],
                   check=True, capture_output=True, timeout=120)


def shrink(source: Path, target: Path, crop: tuple[int, int], scale: float = 1.0) -> None:
    """Cut, scale and reduce to as many colours as fit into the limit."""
    picture = Image.open(source).convert("RGB").crop((0, 0, *crop))
    if scale != 1.0:
        picture = picture.resize((round(crop[0] * scale), round(crop[1] * scale)), Image.Resampling.LANCZOS)
    for colours in (256, 128, 64, 32):
        picture.quantize(colours, dither=Image.Dither.NONE).save(target, optimize=True)
        if target.stat().st_size <= LARGEST:
            break
    print(f"{target.name}: {picture.width} x {picture.height}, {target.stat().st_size / 1000:.0f} kB")


def checks() -> None:
    """What the page says of a Poisson model of counts that vary too much."""
    rng = np.random.default_rng(1)
    x = rng.uniform(-2.0, 2.0, 400)
    data = {"visits": rng.poisson(np.exp(0.5 + 0.4 * x) * rng.gamma(0.7, 1 / 0.7, 400)), "income": x}
    report = klimb.fit("visits ~ income", data, family="poisson").report()
    few = replace(report, coefficients=(), effects=(), calibration=None, loo=None, trace=None, data=(), priors=(),
                  reproduce=(), versions=())
    with tempfile.TemporaryDirectory() as folder:
        source, shot = Path(folder) / "checks.html", Path(folder) / "shot.png"
        source.write_text(page(few), encoding="utf-8")
        browser("--window-size=1000,1470", f"--screenshot={shot}", source.as_uri())
        shrink(shot, HERE / "checks.png", (1000, 1470), scale=0.8)


def main() -> None:
    """All pictures, from one fit."""
    checks()
    if sys.argv[1:] == ["checks"]:
        return
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        run(place, tell=lambda _: None)
        report, shot = (place / "report.html").as_uri(), place / "shot.png"
        wide = (1080, 1560)
        size = f"--window-size={wide[0]},{wide[1]}"
        browser(size, f"--screenshot={shot}", report)
        shrink(shot, HERE / "report-light.png", wide)
        browser(size, "--blink-settings=preferredColorScheme=0", f"--screenshot={shot}", report)
        shrink(shot, HERE / "report-dark.png", wide)
        narrow = (390, 1500)
        (place / "frame.html").write_text(FRAME.format(height=narrow[1]))
        browser(f"--window-size=500,{narrow[1]}", "--force-device-scale-factor=1.5", f"--screenshot={shot}",
                (place / "frame.html").as_uri())
        shrink(shot, HERE / "report-narrow.png", (585, 2250), scale=2 / 3 * 1.2)
        shutil.copy(place / "effects.svg", HERE / "effects.svg")


if __name__ == "__main__":
    main()
