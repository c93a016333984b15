"""The GPML toolbox in Octave (``GPML_DIR``: a copy of it; ``OCTAVE``: the program): infKL with and without its step.

The toolbox shows no iterates, so there is one lap: its own stop.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import numpy as np
from scipy.io import loadmat, savemat

from benchmarks.rivals import gp_common as common

SCRIPT = """
warning('off', 'all'); page_screen_output(false);
addpath(getenv('GPML_DIR')); startup;
given = load('given.mat');
hyp = struct('mean', [], 'cov', given.cov(:), 'lik', given.lik(:));
options = struct();
if given.step > 0, options = struct('step_size', given.step, 'tol', 1e-6, 'max_iters', 2000); end
begin = cputime();
post = %(inference)s(hyp, {@meanZero}, {@covSEiso}, %(likelihood)s, given.X, given.y(:), options);
seconds = cputime() - begin;
alpha = post.alpha; root = post.sW;
save('-v7', 'found.mat', 'alpha', 'root', 'seconds');
"""
LIKELIHOODS = {"logistic": "{@likLogistic}", "poisson": "{@likPoisson, 'exp'}", "laplace": "{@likLaplace}",
               "student": "{@likT}"}


def inference(name, step=0.0):
    def fit(task, watch):
        y = np.where(task.y > 0, 1.0, -1.0) if task.likelihood == "logistic" else task.y
        noise = {"laplace": [np.log(np.sqrt(2.0) * common.LAPLACE_SCALE)],
                 "student": [np.log(common.STUDENT_DF - 1.0), np.log(common.STUDENT_SCALE)]}.get(task.likelihood, [])
        with tempfile.TemporaryDirectory() as folder:
            savemat(Path(folder, "given.mat"), {"X": task.X, "y": y[:, None], "step": step, "lik": noise, "cov": [
                np.log(task.lengthscale), 0.5 * np.log(task.variance)]})
            script = SCRIPT % {"inference": name, "likelihood": LIKELIHOODS[task.likelihood]}
            Path(folder, "fit.m").write_text(script)
            done = subprocess.run([os.environ.get("OCTAVE", "octave"), "--no-gui", "-q", "fit.m"], cwd=folder,
                                  capture_output=True, text=True, timeout=12 * watch.cap, check=False)
            if not Path(folder, "found.mat").exists():
                raise RuntimeError(done.stderr[-150:])
            found = loadmat(Path(folder, "found.mat"))
        root = found["root"].ravel()
        watch.cpu = watch.wall = float(found["seconds"].ravel()[0])
        watch.start()
        watch.lap(lambda task: task.sites(found["alpha"].ravel(), root * np.abs(root)), force=True)

    return fit


if __name__ == "__main__":
    common.compete({"kl": inference("infKL"), "kl-0.5": inference("infKL", 0.5), "laplace": inference("infLaplace")},
                   "GPML in Octave", 0.0)
