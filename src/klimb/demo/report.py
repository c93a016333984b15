"""The demo's report: one HTML file that needs nothing else, with its plots drawn as SVG."""

from __future__ import annotations

from html import escape

import numpy as np

from klimb.demo.summary import Summary

_STYLE = """
:root { color-scheme: light dark; --ink: #1d2a33; --soft: #7b8a94; --line: #d9e0e4; --mark: #0b7285; --page: #fbfcfc; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4eaed; --soft: #8fa0ab; --line: #33434d; --mark: #3bc9db; --page: #141b20; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); max-width: 46rem;
  margin: 3rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; margin-bottom: 0; } h2 { font-size: 1.1rem; margin-top: 2.2rem; } p.sub { color: var(--soft); }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .3rem .6rem; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; } th { color: var(--soft); font-weight: 500; }
svg { width: 100%; height: auto; } svg text { font: 13px system-ui, sans-serif; fill: var(--ink); }
svg .soft { fill: var(--soft); } svg .grid { stroke: var(--line); } svg .mark { stroke: var(--mark); fill: none; }
svg circle { fill: var(--mark); }
"""


def page(title: str, story: str, summary: Summary) -> str:
    """The whole report as text."""
    facts = [("bound on the log evidence", f"{summary.bound:.4f}"), ("iterations", f"{summary.n_iter}"),
             ("status", summary.status), ("advice", summary.advice)]
    rows = "".join(f"<tr><td>{escape(name)}</td><td>{mean:.3f}</td><td>{sd:.3f}</td><td>{low:.3f}</td>"
                   f"<td>{high:.3f}</td></tr>"
                   for name, mean, sd, low, high in
                   zip(summary.names, summary.mean, summary.sd, summary.lower, summary.upper, strict=True))
    fit = "".join(f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>" for name, value in facts)
    return (f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>\n'
            f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<style>{_STYLE}</style></head>\n<body>"
            f'<h1>{escape(title)}</h1><p class="sub">{escape(story)}</p>\n'
            f"<h2>Weights</h2>\n{interval_plot(summary)}\n"
            f"<table><tr><th>weight</th><th>mean</th><th>sd</th><th>5%</th><th>95%</th></tr>{rows}</table>\n"
            f"<h2>Fit</h2>\n<table>{fit}</table>\n{climb_plot(summary)}\n</body></html>\n")


def interval_plot(summary: Summary, width: int = 720, row: int = 34) -> str:
    """Each weight as a dot (mean) on a line (5% to 95%), all on one axis that shows zero."""
    left, right, top = 130, 20, 10
    low, high = min(0.0, float(summary.lower.min())), max(0.0, float(summary.upper.max()))
    pad = 0.05 * (high - low)
    low, high = low - pad, high + pad
    bottom = top + row * len(summary.names)

    def across(value: float) -> float:
        return left + (value - low) / (high - low) * (width - left - right)

    parts = [f'<line class="grid" x1="{across(tick):.1f}" x2="{across(tick):.1f}" y1="{top}" y2="{bottom}"/>'
             f'<text class="soft" x="{across(tick):.1f}" y="{bottom + 18}" text-anchor="middle">{tick:g}</text>'
             for tick in _ticks(low, high)]
    zero = across(0.0)
    parts.append(f'<line class="grid" stroke-width="2" x1="{zero:.1f}" x2="{zero:.1f}" y1="{top}" y2="{bottom}"/>')
    for index, name in enumerate(summary.names):
        y = top + row * (index + 0.5)
        parts.append(f'<text x="0" y="{y + 4:.1f}">{escape(name)}</text>'
                     f'<line class="mark" stroke-width="3" x1="{across(summary.lower[index]):.1f}"'
                     f' x2="{across(summary.upper[index]):.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'
                     f'<circle r="5" cx="{across(summary.mean[index]):.1f}" cy="{y:.1f}"/>')
    return (f'<svg viewBox="0 0 {width} {bottom + 28}" role="img" aria-label="posterior intervals of the weights">'
            f'{"".join(parts)}</svg>')


def climb_plot(summary: Summary, width: int = 720, height: int = 150) -> str:
    """How far each iteration was below the last bound, on a logarithmic axis; empty if there is nothing to show."""
    gaps = summary.bounds[-1] - np.array(summary.bounds) if summary.bounds else np.zeros(0)
    logs = [(index, float(np.log10(gap))) for index, gap in enumerate(gaps) if gap > 0.0]
    if len(logs) < 2:
        return ""
    left, edge = 60, 16
    high, low = max(y for _, y in logs), min(y for _, y in logs)
    across = (width - left - edge) / max(len(gaps) - 1, 1)
    down = (height - 2 * edge) / max(high - low, 1e-12)
    points = " ".join(f"{left + across * index:.1f},{edge + down * (high - y):.1f}" for index, y in logs)
    labels = "".join(f'<text class="soft" x="0" y="{edge + down * (high - y) + 4:.1f}">1e{y:+.0f}</text>'
                     for y in (high, low))
    return (f'<h2>The climb</h2><p class="sub">Distance below the last bound, per iteration.</p>'
            f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="bound by iteration">{labels}'
            f'<polyline class="mark" stroke-width="2.5" points="{points}"/></svg>')


def _ticks(low: float, high: float) -> list[float]:
    """About five round numbers between ``low`` and ``high``."""
    rough = (high - low) / 5.0
    scale = 10.0 ** np.floor(np.log10(rough))
    step = min((factor * scale for factor in (1.0, 2.0, 5.0, 10.0)), key=lambda size: abs(size - rough))
    return [round(step * index, 12) for index in range(int(np.ceil(low / step)), int(np.floor(high / step)) + 1)]
