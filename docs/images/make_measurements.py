"""The picture of docs/active-learning.md: which lines of a spectrum to measure, chosen one after the other.

    python docs/images/make_measurements.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

import klimb
from klimb import operators
from klimb.design import measurement_gains

N, NOISE, FIRST, MORE = 24, 0.03, 2, 6
SCALES = (0.05, 0.05)  # of gradients and wavelets, about what such pictures have


def phantom(seed: int = 0) -> np.ndarray:
    """Boxes and a disc: edges in few places, more of them across the lines than along them."""
    rows, columns = np.mgrid[:N, :N] / N
    image = 0.2 * ((rows - 0.5) ** 2 / 0.2 + (columns - 0.5) ** 2 / 0.16 < 1.0)
    image = image + 0.5 * ((np.abs(rows - 0.32) < 0.06) & (np.abs(columns - 0.5) < 0.25))
    image = image + 0.6 * ((np.abs(rows - 0.62) < 0.04) & (np.abs(columns - 0.45) < 0.3))
    return image + 0.3 * ((rows - 0.75) ** 2 + (columns - 0.65) ** 2 < 0.006)


def lines() -> list[np.ndarray]:
    """Masks of the lines of the spectrum that differ: k and its mirror image are one."""
    masks = []
    for k in range(N // 2 + 1):
        mask = np.zeros((N, N), dtype=bool)
        mask[k, : N // 2 + 1 if k in (0, N // 2) else N] = True
        masks.append(mask)
    return masks


def reconstruct(chosen: list[int], data: list[np.ndarray]):
    masks = lines()
    X = operators.stack([operators.partial_fourier(masks[k]) for k in chosen])
    analysis = [operators.gradients((N, N)), operators.wavelet((N, N), "haar")]
    y = np.concatenate([data[k] for k in chosen])
    return klimb.sparse_linear(X, y, noise=NOISE, analysis=analysis, scale=list(SCALES), tol=1e-3, max_outer=12)


def run(rule: str, image: np.ndarray, data: list[np.ndarray], seed: int = 0):
    rng = np.random.default_rng(seed)
    blocks = [operators.partial_fourier(mask) for mask in lines()]
    chosen, errors, pictures = list(range(FIRST)), [], []
    for step in range(MORE + 1):
        fit = reconstruct(chosen, data)
        pictures.append(fit.coef.reshape(N, N))
        errors.append(float(np.linalg.norm(pictures[-1] - image) / np.linalg.norm(image)))
        if step == MORE:
            break
        rest = [k for k in range(len(blocks)) if k not in chosen]
        if rule == "design":
            gains = measurement_gains(fit.result.posterior, [blocks[k] for k in rest], NOISE)
            chosen.append(rest[int(gains.argmax())])
        else:
            chosen.append(rest[0] if rule == "low" else int(rng.choice(rest)))
    return chosen, errors, pictures


def main() -> None:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    from klimb.reproduce.pictures import BLUE, GREY, ORANGE, STYLE

    image = phantom()
    rng = np.random.default_rng(1)
    clean = [operators.partial_fourier(mask).times(image.ravel()) for mask in lines()]
    data = [one + NOISE * rng.standard_normal(one.size) for one in clean]
    found = {rule: run(rule, image, data) for rule in ("design", "low")}
    chance = [run("random", image, data, seed)[1] for seed in range(3)]
    with rc_context(STYLE):
        figure = Figure(figsize=(11.0, 3.4), layout="constrained")
        axes = figure.subplots(1, 4, gridspec_kw={"width_ratios": [1, 1, 1, 1.35]})
        views = [("the image", image),
                 (f"lines by design, error {found['design'][1][-1]:.2f}", found["design"][2][-1]),
                 (f"lowest lines, error {found['low'][1][-1]:.2f}", found["low"][2][-1])]
        for ax, (title, picture) in zip(axes, views, strict=False):
            ax.imshow(picture, cmap="gray", vmin=0.0, vmax=0.85)
            ax.set_title(title)
            ax.axis("off")
        x = np.arange(FIRST, FIRST + MORE + 1)
        axes[3].plot(x, found["design"][1], color=BLUE, marker="o", label="by design")
        axes[3].plot(x, found["low"][1], color=ORANGE, marker="s", label="lowest next")
        axes[3].plot(x, np.mean(chance, axis=0), color=GREY, marker="^", label="at random (mean of 3)")
        axes[3].set_xlabel(f"lines measured, of {N // 2 + 1}")
        axes[3].set_ylabel("relative error")
        axes[3].set_ylim(bottom=0.0)
        axes[3].legend()
        figure.savefig(Path(__file__).with_name("measurements.png"), dpi=120, metadata={"Software": None})
    print({rule: (chosen, np.round(errors, 3).tolist()) for rule, (chosen, errors, _) in found.items()})
    print("random", np.round(np.mean(chance, axis=0), 3).tolist())


if __name__ == "__main__":
    main()
