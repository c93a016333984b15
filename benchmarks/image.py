"""A picture from a quarter of its spectrum, and a blurred one made sharp: posterior mean and standard deviation.

    python -m benchmarks.image [--size 256] [--draw docs/images/sparse-images.png] [--keep]

The scene is drawn in code: flat and shaded regions with sharp edges, thin lines, a textured patch. It is not a draw
from the prior (no picture is), so coverage of the truth is a matter of how well gradients and wavelets describe it.
"""

from __future__ import annotations

import argparse
import io
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

import klimb
from benchmarks.measure import one_thread, save, table
from klimb.linalg import images as operators


def scene(n: int) -> np.ndarray:
    """A picture of n x n with values about [0, 1]."""
    y, x = np.meshgrid(np.linspace(-1.0, 1.0, n), np.linspace(-1.0, 1.0, n), indexing="ij")

    def ellipse(cx: float, cy: float, a: float, b: float, angle: float = 0.0) -> np.ndarray:
        c, s = np.cos(angle), np.sin(angle)
        return (((x - cx) * c + (y - cy) * s) / a) ** 2 + (((y - cy) * c - (x - cx) * s) / b) ** 2 < 1.0

    picture = np.zeros((n, n))
    body = ellipse(0.0, 0.05, 0.82, 0.9)
    picture[body] = 0.45
    picture[body] += 0.15 * (x - 0.4 * y)[body]  # shading
    picture[ellipse(0.0, 0.05, 0.82, 0.9) & ~ellipse(0.0, 0.05, 0.76, 0.84)] = 0.95  # a bright rim
    picture[ellipse(-0.33, -0.25, 0.2, 0.3, 0.4)] = 0.15
    picture[ellipse(0.33, -0.25, 0.2, 0.3, -0.4)] = 0.2
    picture[ellipse(-0.33, -0.25, 0.05, 0.08)] = 0.9
    patch = ellipse(0.05, 0.42, 0.42, 0.24)
    picture[patch] = 0.55 + 0.12 * np.sign(np.sin(28.0 * x) * np.sin(22.0 * (y + 0.3 * x)))[patch]  # texture
    for k, offset in enumerate((0.2, 0.27, 0.34)):  # thin lines
        picture[(np.abs(x - 0.6 + 0.2 * y) < 0.012 * (k + 1)) & (np.abs(y + 0.75 - offset * 2.2) < 0.05)] = 1.0
    picture[(np.abs(x + 0.55) < 0.07) & (np.abs(y - 0.3) < 0.07)] = 0.8
    return picture


def spectrum_mask(n: int, share: float, rng: np.random.Generator) -> np.ndarray:
    """Frequencies to measure: all low ones, others at random with a density that falls; one of each mirror pair."""
    k = np.fft.fftfreq(n) * 2.0
    radius = np.hypot(k[:, None], k)
    first = np.arange(n * n) <= ((-np.arange(n)[:, None]) % n * n + (-np.arange(n)) % n).ravel()
    half = first.reshape(n, n)
    density = 1.0 / (radius + 0.05) ** 2
    wanted = share * n * n / 2.0  # a pair of real numbers each
    low, high = 0.0, 10.0
    for _ in range(60):
        c = 0.5 * (low + high)
        low, high = (c, high) if np.minimum(c * density, 1.0)[half].sum() < wanted else (low, c)
    return np.asarray(half & (rng.random((n, n)) < np.minimum(c * density, 1.0)))


@dataclass(frozen=True)
class Task:
    """Measurements of a scene, and what they measure."""

    name: str
    truth: np.ndarray
    X: Any
    y: np.ndarray
    noise: float
    naive: np.ndarray  # the picture that the measurements show without a prior


def fourier_task(n: int, share: float = 0.25, noise: float = 0.01, seed: int = 0) -> Task:
    rng, truth = np.random.default_rng(seed), scene(n)
    mask = spectrum_mask(n, share, rng)
    X = operators.partial_fourier(mask)
    y = X.times(truth.ravel()) + noise * rng.standard_normal(X.shape[0])
    # Zeros where nothing was measured; a measured frequency stands for its mirror image too, unless it is its own.
    own = np.add.outer(2 * np.arange(n) % n, 2 * np.arange(n) % n)[mask] == 0
    filled = X.transpose_times(np.tile(np.where(own, 1.0, 2.0), 2) * y)
    return Task("partial Fourier", truth, X, y, noise, filled.reshape(n, n))


def blur_task(n: int, noise: float = 0.01, seed: int = 0) -> Task:
    rng, truth = np.random.default_rng(seed), scene(n)
    k = np.arange(-6, 7)
    kernel = np.exp(-0.5 * (k[:, None] ** 2 + k**2) / 1.6**2)
    X = operators.convolution(kernel / kernel.sum(), (n, n))
    y = X.times(truth.ravel()) + noise * rng.standard_normal(X.shape[0])
    return Task("deblurring", truth, X, y, noise, y.reshape(n, n))


def analysis(n: int) -> list[Any]:
    return [operators.gradients((n, n)), operators.wavelet((n, n), "db2", levels=3)]


DOTS, GREYS, HEAT = 88, 64, 40  # of the drawing: its resolution and its colours
SCALES = [0.03, 0.1]  # of gradients and of wavelet coefficients


def reconstruct(task: Task, **options: Any) -> Any:
    n = len(task.truth)
    return klimb.sparse_linear(task.X, task.y, noise=task.noise, analysis=analysis(n), scale=SCALES, **options)


def mode(task: Task, rounds: int = 150) -> np.ndarray:
    """The posterior mode (what is usually called the reconstruction), by the method of multipliers.

    minimise |y - X u|^2 / (2 noise^2) + sum_i |s_i| / scale_i over u and s = B u; u by conjugate gradients.
    """
    from scipy.sparse.linalg import LinearOperator, cg

    parts = analysis(len(task.truth))
    B = operators.stack(parts)
    width = np.concatenate([np.full(part.shape[0], scale) for part, scale in zip(parts, SCALES, strict=True)])
    rho = 1.0 / (0.05 * width)  # a precision: splits agree where gradients are below a twentieth of their scale
    pull = task.X.transpose_times(task.y) / task.noise**2

    def normal(u: np.ndarray) -> np.ndarray:
        return task.X.transpose_times(task.X.times(u)) / task.noise**2 + B.transpose_times(rho * B.times(u))

    size = task.truth.size
    A = LinearOperator((size, size), matvec=normal, dtype=float)
    u, split, dual = task.naive.ravel().copy(), np.zeros(B.shape[0]), np.zeros(B.shape[0])
    for _ in range(rounds):
        u, _ = cg(A, pull + B.transpose_times(rho * (split - dual)), x0=u, rtol=1e-5, maxiter=30)
        s = B.times(u) + dual
        split = np.sign(s) * np.maximum(np.abs(s) - 1.0 / (rho * width), 0.0)
        dual = s - split
    return np.asarray(u.reshape(task.truth.shape))


def report(task: Task, **options: Any) -> dict[str, Any]:
    """Fit, time and compare with the truth; the pictures are kept under names that begin with an underscore."""
    start = time.process_time()
    fit = reconstruct(task, **options)
    fitted = time.process_time() - start
    variances = fit.coef_variances(options.get("accuracy", 0.01))
    measured = time.process_time() - start - fitted
    best = mode(task)
    mean, sd = fit.coef.reshape(task.truth.shape), np.sqrt(variances.value).reshape(task.truth.shape)
    error = mean - task.truth
    edges = np.hypot(*np.gradient(task.truth)) > 0.05
    return {
        "task": task.name, "size": len(task.truth), "measurements": task.X.shape[0], "seconds": fitted,
        "sd_seconds": measured, "mode_seconds": time.process_time() - start - fitted - measured,
        "products": int(fit.result.n_products), "iterations": fit.result.n_iter, "status": fit.status.name,
        "sd_error": float(np.median(variances.error / variances.value) / 2.0),
        "rmse_naive": _rmse(task.naive, task.truth), "rmse_mode": _rmse(best, task.truth),
        "rmse_mean": _rmse(mean, task.truth), "coverage_90": float(np.mean(np.abs(error) < 1.645 * sd)),
        "coverage_90_edges": float(np.mean((np.abs(error) < 1.645 * sd)[edges])),
        "coverage_90_elsewhere": float(np.mean((np.abs(error) < 1.645 * sd)[~edges])),
        "error_sd_correlation": float(np.corrcoef(np.abs(error).ravel(), sd.ravel())[0, 1]),
        "_mean": mean, "_sd": sd, "_mode": best, "_task": task,
    }


def _rmse(picture: np.ndarray, truth: np.ndarray) -> float:
    return float(np.sqrt(np.mean((picture - truth) ** 2)))


def draw(found: list[dict[str, Any]], path: str) -> None:
    """One row a task: scene, what was measured, mode, mean, standard deviation, error of the mean."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from PIL import Image

    size = (13.2, 2.55 * len(found))
    figure, axes = plt.subplots(len(found), 6, figsize=size, constrained_layout=True, squeeze=False)
    for row, line in zip(found, axes, strict=True):
        task = row["_task"]
        panels = [("scene", task.truth, "gray", (0, 1)),
                  (f"without a prior ({row['rmse_naive']:.3f})", task.naive, "gray", (0, 1)),
                  (f"mode ({row['rmse_mode']:.3f})", row["_mode"], "gray", (0, 1)),
                  (f"mean ({row['rmse_mean']:.3f})", row["_mean"], "gray", (0, 1)),
                  ("standard deviation", row["_sd"], "magma", (0, float(np.quantile(row["_sd"], 0.999)))),
                  ("|error| of the mean", np.abs(row["_mean"] - task.truth), "magma",
                   (0, float(np.quantile(row["_sd"], 0.999) * 1.645)))]
        for axis, (title, picture, colours, limits) in zip(line, panels, strict=True):
            image = axis.imshow(picture, cmap=colours, vmin=limits[0], vmax=limits[1], interpolation="nearest")
            axis.set_title(title, fontsize=9)
            axis.set_xticks([])
            axis.set_yticks([])
            if colours == "magma":
                bar = figure.colorbar(image, ax=axis, fraction=0.046, pad=0.02)
                bar.ax.tick_params(labelsize=7)
        line[0].set_ylabel(row["task"], fontsize=10)
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=DOTS)
    plt.close(figure)
    # Steps of grey and of the heat map are enough, and make the file four times lighter.
    greys = np.repeat(np.linspace(0, 255, GREYS).round()[:, None], 3, axis=1)
    heat = (255 * plt.get_cmap("magma")(np.linspace(0.0, 1.0, HEAT))[:, :3]).round()
    palette = Image.new("P", (1, 1))
    palette.putpalette(np.concatenate([greys, heat]).astype(np.uint8).ravel().tolist())
    light = Image.open(drawn).convert("RGB").quantize(palette=palette, dither=Image.Dither.NONE)
    light.save(path, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--accuracy", type=float, default=0.1, help="relative error of the variances")
    parser.add_argument("--bound", default="auto")
    parser.add_argument("--draw", default="", help="write the pictures to this file")
    parser.add_argument("--keep", action="store_true", help="store the figures in benchmarks/results")
    arguments = parser.parse_args()
    with one_thread():
        found = [report(task, accuracy=arguments.accuracy, bound=arguments.bound)
                 for task in (fourier_task(arguments.size), blur_task(arguments.size))]
    for row in found:
        table(row["task"], ["", "value"], [[key, value] for key, value in row.items() if not key.startswith("_")])
    if arguments.keep:
        save("image", {"runs": [{k: v for k, v in row.items() if not k.startswith("_")} for row in found]})
    if arguments.draw:
        draw(found, arguments.draw)


if __name__ == "__main__":
    main()
