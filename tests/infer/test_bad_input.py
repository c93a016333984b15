"""Bad input gets an error in three parts: what was expected, what came (value and index), what to do."""

from __future__ import annotations

import re

import numpy as np
import pytest
import scipy.sparse

import klimb
from klimb import latents, methods, sites, steps
from klimb.errors import InputError, KlimbError

X = np.arange(12.0).reshape(6, 2) / 10
Y = np.array([0, 1, 0, 1, 1, 0])
K = np.exp(-0.5 * (X[:, :1] - X[:, 0]) ** 2)
BAD_X, BAD_K, SKEW_K, NEGATIVE_K = X.copy(), K.copy(), K.copy(), K.copy()
BAD_X[3, 1] = np.nan
BAD_K[2, 4] = np.inf
SKEW_K[1, 5] += 0.5
NEGATIVE_K[0, 1] = NEGATIVE_K[1, 0] = 1.5
BAD_DIAGONAL = K - 2 * np.diag([0, 0, 1.0, 0, 0, 0])
SPARSE = scipy.sparse.csr_matrix(BAD_X)
FIT = klimb.infer(latents.Weights(X), sites.Logistic(), Y)
GP = klimb.infer(latents.Kernel(K), sites.Logistic(), Y)

# what is done -> pieces that the message must have, in order
CASES = {
    "NaN in X": (lambda: latents.Weights(BAD_X), ["X must be finite", "nan at index (3, 1)", "Drop or impute"]),
    "NaN in sparse X": (lambda: latents.Weights(SPARSE), ["X must be finite", "nan at index (3, 1)", "Drop or impute"]),
    "text in X": (lambda: latents.Weights([["a", "b"]]), ["X must be an array of numbers", "list", "Convert"]),
    "flat X": (lambda: latents.Weights(X[:, 0]), ["X must have 2 dimensions", "shape (6,)", "Reshape"]),
    "no rows": (lambda: latents.Weights(X[:0]), ["X must have at least one row", "shape (0, 2)", "Pass some data"]),
    "no columns": (lambda: latents.Weights(X[:, :0]), ["at least one row and one column", "(6, 0)", "Pass some data"]),
    "inf in K": (lambda: latents.Kernel(BAD_K), ["K must be finite", "inf at index (2, 4)", "Drop or impute"]),
    "asymmetric K": (lambda: latents.Kernel(SKEW_K), ["K must be symmetric", "at index (1, 5) but", "(K + K.T) / 2"]),
    "K not PSD": (lambda: latents.Kernel(NEGATIVE_K), [
        "K must be positive semi-definite", "smallest eigenvalue -", "Check the kernel"]),
    "negative diagonal": (lambda: latents.Kernel(BAD_DIAGONAL), [
        "the diagonal of K must not be negative", "-1 at index 2", "Variances are 0 or more"]),
    "K not square": (lambda: latents.Kernel(K[:4]), ["K must be square", "shape (4, 6)", "full matrix"]),
    "empty K": (lambda: latents.Kernel(np.zeros((0, 0))), [
        "K must have at least one row", "(0, 0)", "at least one site"]),
    "mean of wrong length": (lambda: latents.Kernel(K, mean=[1.0, 2.0]), [
        "mean must be a number or", "shape (2,)", "one"]),
    "negative variance": (lambda: latents.Weights(X, cov=[1.0, -0.5]), [
        "cov must not be negative", "-0.5 at index 1", "0"]),
    "negative scalar variance": (lambda: latents.Weights(X, cov=-1.0), ["cov must not be negative", "-1", "0 or more"]),
    "cov of wrong shape": (lambda: latents.Weights(X, cov=np.eye(3)), [
        "cov must be a number, a vector of 2", "(3, 3)", "column"]),
    "cov not PSD": (lambda: latents.Weights(X, cov=[[1.0, 2.0], [2.0, 1.0]]), [
        "cov must be positive semi-definite", "eigenvalue -1", "Check"]),
    "asymmetric cov": (lambda: latents.Weights(X, cov=[[1.0, 0.2], [0.1, 1.0]]), [
        "cov must be symmetric", "(0, 1)", "K.T"]),
    "negative slack": (lambda: latents.Weights(X, slack=-0.1), ["slack must not be negative", "-0.1", "0 or more"]),
    "unknown form": (lambda: latents.Weights(X, form="fast"), ['form must be "auto"', "'fast'", "Leave it out"]),
    "singular mean-field": (lambda: latents.MeanField(X, cov=np.ones((2, 2))), [
        "full rank", "rank 1 for 2", "Use Weights"]),
    "wrong labels": (lambda: klimb.infer(latents.Weights(X), sites.Logistic(), [0, 1, 0, 2, 1, 2]), [
        "Logistic needs y in {-1, +1} or {0, 1}", "2.0 at index 3 (2 such values)",
        "Use Binomial or Ordinal for counts"]),
    "NaN in y": (lambda: klimb.infer(latents.Weights(X), sites.Gaussian(1.0), [
        0, 1, np.nan, 2, 1, 2]), ["nan at index 2"]),
    "negative count": (lambda: klimb.infer(latents.Weights(X), sites.Poisson(), [
        0, 1, -3, 2, 1, 2]), ["-3.0 at index 2"]),
    "y too short": (lambda: klimb.infer(latents.Weights(X), sites.Logistic(), Y[:4]), [
        "y must have one entry per site (6)", "4", "Check that X or K and y match"]),
    "empty y": (lambda: klimb.infer(latents.Weights(X), sites.Logistic(), []), ["y"]),
    "a class for a site": (lambda: klimb.infer(latents.Weights(X), sites.Logistic, Y), [
        "site must be a klimb site", "Logistic()"]),
    "an array for a latent": (lambda: klimb.infer(X, sites.Logistic(), Y), [
        "latent must be a klimb latent", "ndarray", "Weights"]),
    "a name for a step": (lambda: klimb.infer(latents.Weights(X), sites.Logistic(), Y, step="natural"), [
        "step must be a klimb step", "'natural'", "klimb.steps.Natural()"]),
    "tol of zero": (lambda: klimb.infer(latents.Weights(X), sites.Logistic(), Y, tol=0.0), [
        "tol must be positive", "0.0", "1e-6"]),
    "negative max_iter": (lambda: klimb.infer(latents.Weights(X), sites.Logistic(), Y, max_iter=-1), [
        "max_iter", "-1", "500"]),
    "beta of zero": (lambda: steps.Proximal(0.0), ["beta must be positive", "0.0", "0.25"]),
    "unknown treatment": (lambda: steps.FixedPoint(negative="drop"), [
        'negative must be "keep", "clip" or "gradient"', "'drop'", "zero"]),
    "unknown start": (lambda: steps.FixedPoint(start="here"), ['start must be "prior" or "data"', "'here'", "prior"]),
    "memory of zero": (lambda: steps.Natural(memory=0), ["memory must be at least 1", "0", "turns"]),
    "damping": (lambda: methods.ep(latents.Weights(X), sites.Logistic(), Y, damping=2.0), [
        "damping", "2.0", "full steps"]),
    "certificate": (lambda: methods.certificate(FIT, sites.Point(sites.Logistic()), Y), [
        "a certificate needs", "Point", "Poisson"]),
    "no radius": (lambda: steps.TrustRegion(0.0), ["epsilon must be positive", "0.0", "nats"]),
    "mean_field of a stranger": (lambda: methods.mean_field(X, sites.Logistic(), Y), [
        "mean_field needs", "ndarray", "klimb.infer"]),
    "X_new of wrong width": (lambda: FIT.posterior.latent.predict(FIT.posterior, np.ones((3, 5))), [
        "X_new must have 2 columns", "(3, 5)", "columns of the fit"]),
    "NaN in X_new": (lambda: FIT.posterior.latent.predict(FIT.posterior, BAD_X), [
        "X_new must be finite", "(3, 1)", "Drop"]),
    "K_new of wrong width": (lambda: GP.posterior.latent.predict(GP.posterior, K[:, :3], np.ones(6)), [
        "K_new must have one column per site (6)", "(6, 3)", "k(X_new, X)"]),
    "negative k_new_diag": (lambda: GP.posterior.latent.predict(GP.posterior, K, -np.ones(6)), [
        "k_new_diag must not be negative", "-1 at index 0", "Variances"]),
    "negative number of draws": (lambda: FIT.posterior.sample(-1), ["draws", "-1", "n >= 0"]),
    "unknown link": (lambda: sites.Ordinal([0.0, 1.0], link="cauchit"), ["link", "cauchit"]),
    "cut points out of order": (lambda: sites.Ordinal([1.0, 0.0]), [
        "cutpoints", "1.0 and 0.0 at indices 0 and 1", "Sort"]),
    "scale of zero": (lambda: sites.Gaussian(0.0), ["scale", "0.0"]),
}


@pytest.mark.parametrize("name", CASES)
def test_message_has_its_parts(name):
    action, pieces = CASES[name]
    with pytest.raises(InputError) as caught:
        action()
    message = str(caught.value)
    position = 0
    for piece in pieces:
        found = message.find(piece, position)
        assert found >= 0, f"{piece!r} is not in {message!r} after {position}"
        position = found
    assert re.search(r"; got .+\. \S.+", message), message
    assert isinstance(caught.value, KlimbError)
    assert isinstance(caught.value, ValueError)


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="nonsense"):
        _ = klimb.nonsense
    with pytest.raises(AttributeError, match="Nonsense"):
        _ = sites.Nonsense


def test_a_callback_error_is_the_users_own():
    def broken(_):
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        klimb.infer(latents.Weights(X), sites.Logistic(), Y, callback=broken)
